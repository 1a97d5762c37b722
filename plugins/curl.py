"""CURL (https://arxiv.org/abs/2004.04136): SAC from pixels, with a contrastive loss between two random crops.

**Where the loss sits.** ``CurlSacAgent.update_cpc`` (``curl_sac.py``) calls ``self.cross_entropy_loss`` with what
``CURL.compute_logits(z_a, z_pos)`` returned.

**Which tensors are there.** Those of :data:`HOST`. The host subtracts each row's maximum, which does not change the
cross entropy, but removes the scale: so the plugin takes ``z_a``, ``z_pos`` and ``W`` where ``compute_logits`` gets
them.

**Which scores an objective gets** is the argument ``scores`` below:

=============  =====================================================================================================
``bilinear``   ``z_a W z_pos^T`` as in CURL, without the subtraction. Of any size: suitable for losses that are
               functions of logits. With ``infonce:t=1`` this is the host's own loss.
``cosine``     cosines of ``z_a`` and ``z_pos``. ``W`` is not used and keeps its initial value.
=============  =====================================================================================================

The default depends on the objective: ``bilinear`` for ``infonce``, alone, inside ``arcl`` or ``aal`` or beside
regularizers, and ``cosine`` for all others, which expect similarities between -1 and 1: their floors, weights and
thresholds are values on that scale. Regularizers (``dp``) get the cosines among ``z_a`` with either.

**How to put an objective there.** The launcher gives each new agent another criterion. By hand, add one line below the
one that creates the agent::

    counterpoint.plugins.curl.patch(agent, "infonce:t=1 + 0.1*dp")

**More than two crops**, for objectives that ask for them (``arcl(infonce:t=1):views=4``) or with ``--views``: the
host's own function cuts further crops from the frames that ``sample_cpc`` sampled last, and they are encoded as
``z_pos`` is. They come from the replay buffer, so :class:`ContrastiveLoss` alone, without :func:`patch`, has two.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.batch.batch import Batch
from counterpoint.batch.pairings import scores_of
from counterpoint.batch.scores import Scores
from counterpoint.names import check_known
from counterpoint.objective import Objective, Sum, as_objective
from counterpoint.objectives.infonce import InfoNCE
from counterpoint.objectives.positives import ArCL

from .host import OWN_LOSS, Host, Seam, SeamError, on_cosines
from .shims.curl import SHIMS

NAME = "curl"
SCORES = ("bilinear", "cosine")


def warn_of_bilinear(loss_fn: Objective, scores: str) -> None:
    """Warn if ``loss_fn`` assumes cosines, but gets scores of any size."""
    if scores == "bilinear" != default_scores(loss_fn) and on_cosines(loss_fn):
        warnings.warn(
            f"{NAME}: {loss_fn} assumes similarities between -1 and 1, but bilinear scores have any size; the "
            "default is cosine.",
            stacklevel=3,
        )


def default_scores(loss_fn: Objective) -> str:
    """Return ``bilinear`` if all that compares anchors with keys is InfoNCE, else ``cosine``."""
    if isinstance(loss_fn, Sum):
        return "cosine" if "cosine" in {default_scores(part) for _, part in loss_fn.terms()} else "bilinear"
    if isinstance(loss_fn, ArCL):
        return default_scores(loss_fn.objective)
    return "bilinear" if type(loss_fn) is InfoNCE or loss_fn.pairing == "single" else "cosine"


class ContrastiveLoss(nn.Module):
    """An objective in place of ``agent.cross_entropy_loss``.

    Args:
        objective: an objective or a spec.
        curl: the agent's ``CURL``, whose logits this is called with.
        scores: ``bilinear`` or ``cosine``; by default what the objective needs.
        views: number of crops; by default as many as the objective asks for, else two.
        crops: cuts one more crop of the frames of the current batch; see :func:`patch`.
    """

    def __init__(
        self,
        objective: Objective | str,
        curl: Any,
        scores: str | None = None,
        views: int | None = None,
        crops: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.objective = HOST.check(objective).to(curl.W.device)
        self.scores = default_scores(self.objective) if scores is None else scores
        check_known(f"{NAME}: unknown scores", self.scores, SCORES, SeamError)
        warn_of_bilinear(self.objective, self.scores)
        self.views = views or self.objective.views or 2
        if crops is None and self.views > 2:
            raise SeamError(
                f"{NAME}: {self.objective} is to get {self.views} crops, but update_cpc has two: "
                "counterpoint.plugins.curl.patch(agent, ...) cuts more from the replay buffer's frames."
            )
        self._inputs = _Inputs(curl, crops)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        sides = self._inputs.take(self.scores, self.views)
        return self.objective.from_pairings(sides, sides.device)

    def extra_repr(self) -> str:
        return f"scores={self.scores}, views={self.views}"


def patch(
    agent: Any, objective: Objective | str, scores: str | None = None, views: int | None = None
) -> ContrastiveLoss:
    """Give a ``CurlSacAgent`` another criterion, and more than two crops if the objective asks for them.

    Args:
        agent: an agent that learns from pixels.
        objective, scores, views: see :class:`ContrastiveLoss`.
    """
    criterion = ContrastiveLoss(objective, agent.CURL, scores, views, _Crops(agent))
    agent.cross_entropy_loss = criterion
    return criterion


class Sides:
    """Scores of anchors against all keys, whatever the pairing; for regularizers, of anchors among themselves.

    Args:
        z_a: ``(B, d)`` anchors.
        keys: ``(B, d)`` for each further crop.
        w: ``(d, d)`` matrix of bilinear scores; None for cosines.
    """

    def __init__(self, z_a: Tensor, keys: list[Tensor], w: Tensor | None) -> None:
        self.z_a, self.keys, self.w, self.device = z_a, keys, w, z_a.device

    def __call__(self, pairing: str) -> Scores:
        if self.w is None or pairing == "single":
            return scores_of(Batch((self.z_a, *self.keys), pairing="one_way"), pairing)
        keys = [key @ self.w.T for key in self.keys]
        return scores_of(Batch((self.z_a, *keys), pairing="one_way", normalize=False), pairing)


class _Inputs:
    """Record what a ``CURL`` computes its logits from; ``crops`` as in :class:`ContrastiveLoss`."""

    def __init__(self, curl: Any, crops: Callable[[], Tensor] | None) -> None:
        self._crops, self._curl = crops, curl
        self._recorded: tuple[Tensor, Tensor] | None = None
        compute_logits = curl.compute_logits

        def recording(z_a: Tensor, z_pos: Tensor) -> Tensor:
            self._recorded = z_a, z_pos
            return compute_logits(z_a, z_pos)  # type: ignore[no-any-return]

        curl.compute_logits = recording

    def take(self, scores: str, views: int) -> Sides:
        """Return, once, the scores of the last logits; with further crops for more than two views."""
        if self._recorded is None:
            raise SeamError(f"{NAME}: the criterion was called with logits that its CURL did not compute.")
        (z_a, *keys), self._recorded = self._recorded, None
        if self._crops is not None:
            keys += [self._curl.encode(self._crops(), ema=True) for _ in range(views - 2)]
        return Sides(z_a, keys, self._curl.W if scores == "bilinear" else None)


class _Crops:
    """Cut further crops of the frames that an agent's replay buffer sampled last, with the host's own function."""

    def __init__(self, agent: Any) -> None:
        self._device = agent.CURL.W.device
        self._watched: Any = None
        self._crop: Callable[[], Any] | None = None
        update = agent.update

        def watching(replay_buffer: Any, *rest: Any) -> Any:
            self._watch(replay_buffer)
            return update(replay_buffer, *rest)

        agent.update = watching

    def _watch(self, replay_buffer: Any) -> None:
        """Record what ``replay_buffer.sample_cpc`` crops from now on."""
        if self._watched is replay_buffer:
            return
        self._watched = replay_buffer
        sample = replay_buffer.sample_cpc
        names = type(replay_buffer).sample_cpc.__globals__

        def recording_sample() -> Any:
            random_crop = names["random_crop"]

            def recording_crop(frames: Any, size: int) -> Any:
                # the last one cropped is the positive, a copy of the anchor's frames
                self._crop = functools.partial(random_crop, frames, size)
                return random_crop(frames, size)

            names["random_crop"] = recording_crop
            try:
                return sample()
            finally:
                names["random_crop"] = random_crop

        replay_buffer.sample_cpc = recording_sample

    def __call__(self) -> Tensor:
        if self._crop is None:
            raise SeamError(f"{NAME}: the replay buffer has not cropped any frames yet.")
        return torch.as_tensor(self._crop(), device=self._device).float()


def before(seam: Seam) -> None:
    """Say how to install a package that the host imports and that no index has, rather than raise an ImportError."""
    if importlib.util.find_spec("dmc2gym") is None:
        raise SeamError(
            f"{NAME}: the package dmc2gym is missing, and not on the package index: "
            "pip install git+https://github.com/denisyarats/dmc2gym, or clone it and put it on PYTHONPATH."
        )


def after(seam: Seam, module: ModuleType) -> None:
    """Give every agent that the script creates another criterion."""
    class_: Any = getattr(module, "CurlSacAgent", None)
    if class_ is None:
        raise SeamError(f"{NAME}: {module.__file__} uses no CurlSacAgent; the script that trains is train.py.")
    host_init, option = class_.__init__, seam.options.get("scores")

    @functools.wraps(host_init)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        host_init(self, *args, **settings)
        if not hasattr(self, "CURL"):
            raise SeamError(f"{NAME}: only --encoder_type pixel has a contrastive loss.")
        inputs, cross_entropy = _Inputs(self.CURL, _Crops(self)), self.cross_entropy_loss

        def criterion(logits: Tensor, labels: Tensor) -> Tensor:
            loss_fn = seam.objective(HOST.spec)
            scores = None if seam.uses_own_loss else option
            sides = inputs.take(scores or default_scores(loss_fn), seam.views(loss_fn))
            host_loss = functools.partial(cross_entropy, logits, labels)
            # from_pairings: regularizers look at other similarities than the other terms
            return seam.loss(loss_fn, host_loss, sides, sides.device, call="from_pairings")

        self.cross_entropy_loss = criterion

    class_.__init__ = init
    loss_fn = as_objective(HOST.spec if seam.spec == OWN_LOSS else seam.spec)
    warn_of_bilinear(loss_fn, option or default_scores(loss_fn))
    seam.say(
        f"replaced CurlSacAgent.cross_entropy_loss of {inspect.getfile(class_)}: "
        f"{loss_fn} on {option or default_scores(loss_fn)} scores of "
        f"{seam.options.get('views') or loss_fn.views or 2} crops"
    )


HOST = Host(
    name=NAME,
    title="CURL (MishaLaskin/curl)",
    seam="agent.cross_entropy_loss, with z_a, z_pos and W from CURL.compute_logits in curl_sac.py",
    tensors="z_a, z_pos (B, 50), not of unit length; logits z_a W z_pos^T minus their row maximum, no temperature, "
    "positive in the denominator, nothing gathered; z_pos without gradient",
    spec="infonce:t=1",
    tested="torch 2.15, gym 0.26.2, dm_control 1.0.50, mujoco 3.17, numpy 2.4, scikit-image 0.26; November 2026",
    evidence="the clone, unmodified, trains in dm_control; 4 steps of --verify: value within 5e-7",
    markers=(("curl_sac.py", "class CurlSacAgent"),),
    max_views=None,
    views="as many as the objective or --views asks for, cropped again from the replay buffer's frames",
    inputs="the criterion sees embeddings, not frames",
    options=("scores",),
    shims=SHIMS,
    before=before,
    after=after,
)
