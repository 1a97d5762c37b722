"""CURL (MishaLaskin/curl): SAC from pixels, with a contrastive loss between two random crops of each observation.

**Where the loss sits.** ``CurlSacAgent.update_cpc`` (``curl_sac.py``) calls ``self.cross_entropy_loss`` with what
``CURL.compute_logits(z_a, z_pos)`` returned.

**Which tensors are there.** ``z_a`` and ``z_pos``, ``(B, 50)``, outputs of a LayerNorm, not of unit length; ``z_pos``
comes from the momentum encoder without gradient. Logits ``z_a W z_pos^T`` with a learned ``W``, ``(B, B)``, the
positive on the diagonal and in the denominator, no temperature. The host subtracts each row's maximum, which cross
entropy does not notice, but which leaves nothing of the scale: so ``z_a``, ``z_pos`` and ``W`` are taken where
``compute_logits`` gets them. One process, nothing gathered.

**Which scores an objective gets** is the argument ``scores`` below:

=============  =====================================================================================================
``bilinear``   ``z_a W z_pos^T`` as CURL has it, without the subtraction. Of any size: fine for losses that are
               functions of logits. With ``infonce:t=1`` this is the host's own loss.
``cosine``     cosines of ``z_a`` and ``z_pos``. ``W`` is not used and stays as it was drawn.
=============  =====================================================================================================

By default it follows from the objective: ``bilinear`` if it is ``infonce``, alone, inside ``arcl`` or ``aal`` or beside
regularisers, and ``cosine`` for all others, since these expect similarities between -1 and 1: their floors, weights and
thresholds are places on that scale. Regularisers (``dp``) see the cosines among ``z_a`` with either.

**How an objective gets there.** Each agent that is made gets another criterion::

    counterpoint inject curl --objective "infonce:t=1 + 0.1*dp" -- train.py --domain_name cartpole ...

or, with one line added below the one that makes the agent::

    agent.cross_entropy_loss = counterpoint.plugins.curl.Criterion("infonce:t=1 + 0.1*dp", agent.CURL)

**More than two crops**, for objectives that ask for them (``arcl(infonce:t=1):views=4``) or with ``--views``: the
further crops are cut by the host's own function from the frames that ``sample_cpc`` has just sampled, and encoded as
``z_pos`` is. They need the replay buffer, so by hand it is :func:`attach` instead of :class:`Criterion`.

**What cannot be injected.** Objectives of attacked or mixed frames: the criterion sees embeddings, not frames.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.batch.pairings import Batch
from counterpoint.batch.scores import Scores
from counterpoint.hyper import nearest
from counterpoint.objective import Objective, Sum, as_objective
from counterpoint.objectives.infonce import InfoNCE
from counterpoint.objectives.positives import ArCL

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, Shim, refuse

NAME = "curl"
SCORES = ("bilinear", "cosine")
_NOTHING: dict[str, Any] = dict.fromkeys(
    ("queue", "negatives", "ids", "labels", "queue_ids", "negative_ids", "prior", "adversarial", "mixed")
)


def check(loss_fn: Objective) -> Objective:
    """Refuses objectives of more than crops."""
    return refuse(loss_fn, NAME, inputs="the criterion sees embeddings, not frames")


def natural_scores(loss_fn: Objective) -> str:
    """``bilinear`` if all of an objective that compares anchors with keys is InfoNCE, else ``cosine``."""
    if isinstance(loss_fn, Sum):
        return "cosine" if "cosine" in {natural_scores(part) for _, part in loss_fn.terms()} else "bilinear"
    if isinstance(loss_fn, ArCL):
        return natural_scores(loss_fn.objective)
    return "bilinear" if type(loss_fn) is InfoNCE or loss_fn.pairing == "single" else "cosine"


class Seen:
    """What a ``CURL`` computes its logits from.

    Args:
        curl: the agent's.
        crops: cuts one more crop of the frames of the present batch.
    """

    def __init__(self, curl: Any, crops: Callable[[], Tensor] | None = None) -> None:
        self._crops, self._curl = crops, curl
        self._found: tuple[Tensor, Tensor] | None = None
        compute_logits = curl.compute_logits

        def captured(z_a: Tensor, z_pos: Tensor) -> Tensor:
            self._found = z_a, z_pos
            return compute_logits(z_a, z_pos)  # type: ignore[no-any-return]

        curl.compute_logits = captured

    def take(self, scores: str, views: int) -> Sides:
        """The scores of the logits that were computed last, once; with further crops, if there are to be more views."""
        if self._found is None:
            raise SeamError(f"{NAME}: the criterion is called with logits that its CURL has not computed.")
        (z_a, z_pos), self._found = self._found, None
        keys = [z_pos]
        if views > 2 and self._crops is not None:
            keys += [self._curl.encode(self._crops(), ema=True) for _ in range(views - 2)]
        return Sides(z_a, keys, self._curl.W if scores == "bilinear" else None)


class Sides:
    """Anchors against all keys, whatever an objective's pairing is; for regularisers, the anchors among themselves.

    Args:
        z_a: ``(B, d)`` anchors.
        keys: ``(B, d)`` each.
        w: of bilinear scores; None for cosines.
    """

    def __init__(self, z_a: Tensor, keys: list[Tensor], w: Tensor | None) -> None:
        self.z_a, self.keys, self.w, self.device = z_a, keys, w, z_a.device

    def __call__(self, pairing: str) -> Scores:
        cosine = self.w is None or pairing == "single"
        keys = self.keys if cosine or self.w is None else [key @ self.w.T for key in self.keys]
        batch = Batch((self.z_a, *keys), pairing="one_way", negative_weight=0.0, normalize=cosine, **_NOTHING)
        return batch.scores(pairing)


class Criterion(nn.Module):
    """Takes the place of ``agent.cross_entropy_loss``.

    Args:
        objective: an objective or a spec.
        curl: the agent's ``CURL``, whose logits this is called with.
        scores: ``bilinear`` or ``cosine``; by default what the objective needs.
        views: how many crops there shall be; by default as many as the objective asks for, else two.
        crops: cuts one more crop of the frames of the present batch; see :func:`attach`.
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
        self.objective = check(as_objective(objective)).to(curl.W.device)
        self.scores = natural_scores(self.objective) if scores is None else scores
        if self.scores not in SCORES:
            raise SeamError(f"{NAME}: unknown scores {scores!r}.{nearest(self.scores, SCORES)}")
        self.views = views or self.objective.views or 2
        if crops is None and self.views > 2:
            raise SeamError(
                f"{NAME}: {self.objective} is to get {self.views} crops, but update_cpc has two: "
                "counterpoint.plugins.curl.attach(agent, ...) takes more from the replay buffer."
            )
        self._seen = Seen(curl, crops)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        sides = self._seen.take(self.scores, self.views)
        return self.objective.from_pairings(sides, sides.device)

    def extra_repr(self) -> str:
        return f"scores={self.scores}, views={self.views}"


class Crops:
    """Cuts further crops of the frames that an agent's replay buffer has sampled last, with the host's own function."""

    def __init__(self, agent: Any) -> None:
        self.device = agent.CURL.W.device
        self.watched: Any = None
        self._again: Callable[[], Any] | None = None
        update = agent.update

        def watching(replay_buffer: Any, *rest: Any) -> Any:
            self.watch(replay_buffer)
            return update(replay_buffer, *rest)

        agent.update = watching

    def watch(self, replay_buffer: Any) -> None:
        """From now on, notes what ``replay_buffer.sample_cpc`` crops."""
        if self.watched is replay_buffer:
            return
        self.watched = replay_buffer
        sample = replay_buffer.sample_cpc
        names = type(replay_buffer).sample_cpc.__globals__

        def noting() -> Any:
            random_crop = names["random_crop"]

            def noted(frames: Any, size: int) -> Any:
                # the last one cropped is the positive, a copy of the anchor's frames
                self._again = functools.partial(random_crop, frames, size)
                return random_crop(frames, size)

            names["random_crop"] = noted
            try:
                return sample()
            finally:
                names["random_crop"] = random_crop

        replay_buffer.sample_cpc = noting

    def __call__(self) -> Tensor:
        if self._again is None:
            raise SeamError(f"{NAME}: the replay buffer has not cropped any frames yet.")
        return torch.as_tensor(self._again(), device=self.device).float()


def attach(agent: Any, objective: Objective | str, scores: str | None = None, views: int | None = None) -> Criterion:
    """Gives a ``CurlSacAgent`` another criterion, and more than two crops if the objective asks for them.

    Args:
        agent: one that learns from pixels.
        objective, scores, views: see :class:`Criterion`.
    """
    criterion = Criterion(objective, agent.CURL, scores, views, Crops(agent))
    agent.cross_entropy_loss = criterion
    return criterion


def before(seam: Seam) -> None:
    """The package that the host imports and that no index has is worth more than an ImportError."""
    if importlib.util.find_spec("dmc2gym") is None:
        raise SeamError(
            f"{NAME}: the package dmc2gym is missing, and not on the package index: "
            "pip install git+https://github.com/denisyarats/dmc2gym, or clone it and put it on PYTHONPATH."
        )


def after(seam: Seam, module: ModuleType) -> None:
    """Gives every agent that the script makes another criterion."""
    kind: Any = getattr(module, "CurlSacAgent", None)
    if kind is None:
        raise SeamError(f"{NAME}: {module.__file__} makes no CurlSacAgent; the script that trains is train.py.")
    theirs = kind.__init__

    def kind_of_scores(loss_fn: Objective) -> str:
        wanted = None if seam.spec == OWN_LOSS or seam.calls < seam.verify else seam.options.get("scores")
        return wanted or natural_scores(loss_fn)

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **more: Any) -> None:
        theirs(self, *args, **more)
        if not hasattr(self, "CURL"):
            raise SeamError(f"{NAME}: only --encoder_type pixel has a contrastive loss.")
        seen, cross_entropy = Seen(self.CURL, Crops(self)), self.cross_entropy_loss

        def criterion(logits: Tensor, labels: Tensor) -> Tensor:
            loss_fn = seam.objective(HOST.spec)
            sides = seen.take(kind_of_scores(loss_fn), seam.views(loss_fn))
            own = functools.partial(cross_entropy, logits, labels)
            # regularisers look at other similarities than the rest: only what is asked pairing by pairing can give both
            return seam.loss(loss_fn, own, sides, sides.device, call="from_pairings")

        self.cross_entropy_loss = criterion

    kind.__init__ = init
    loss_fn = check(as_objective(HOST.spec if seam.spec == OWN_LOSS else seam.spec))
    scores = seam.options.get("scores") or natural_scores(loss_fn)
    seam.say(
        f"replaced CurlSacAgent.cross_entropy_loss of {inspect.getfile(kind)}: "
        f"{loss_fn} on {scores} scores of {seam.options.get('views') or loss_fn.views or 2} crops"
    )


# ---- shims -----------------------------------------------------------------------------------------


def _np_int() -> bool:
    import numpy

    if hasattr(numpy, "int"):
        return False
    vars(numpy)["int"] = int
    return True


def _env_specs() -> bool:
    gym = _gym()
    if gym is None or hasattr(gym.envs.registry, "env_specs"):
        return False

    class Registry(dict):  # type: ignore[type-arg]
        """The registry, which is a plain dict now, under its former name too."""

        @property
        def env_specs(self) -> Registry:
            return self

    gym.envs.registry = gym.envs.registration.registry = Registry(gym.envs.registry)
    return True


def _old_make() -> bool:
    gym = _gym()
    if gym is None or tuple(map(int, gym.__version__.split(".")[:2])) < (0, 26):
        return False
    make = gym.make

    class TimeLimit(gym.Wrapper):  # type: ignore[name-defined, misc]
        """Ends episodes; ``reset`` gives the observation alone, and ``step`` four values."""

        def __init__(self, env: Any, steps: int) -> None:
            super().__init__(env)
            self._max_episode_steps, self._elapsed = steps, 0

        def reset(self, **how: Any) -> Any:
            self._elapsed = 0
            return self.env.reset(**how)

        def step(self, action: Any) -> Any:
            observation, reward, done, info = self.env.step(action)
            self._elapsed += 1
            return observation, reward, done or self._elapsed >= self._max_episode_steps, info

    def old_make(name: Any, *args: Any, **how: Any) -> Any:
        spec = gym.envs.registry.get(name)
        if spec is None or not str(spec.entry_point).startswith("dmc2gym"):
            return make(name, *args, **how)
        env = gym.envs.registration.load(spec.entry_point)(**spec.kwargs, **how)
        return TimeLimit(env, spec.max_episode_steps)

    gym.make = old_make
    return True


def _gym() -> Any:
    try:
        return importlib.import_module("gym")
    except ImportError:  # the script says it better
        return None


HOST = Host(
    name=NAME,
    title="CURL (MishaLaskin/curl)",
    seam="agent.cross_entropy_loss, with z_a, z_pos and W from CURL.compute_logits in curl_sac.py",
    tensors="z_a, z_pos (B, 50), not of unit length; logits z_a W z_pos^T minus their row maximum, no temperature, "
    "positive in the denominator, nothing gathered; z_pos without gradient",
    spec="infonce:t=1",
    tested="torch 2.15, gym 0.26.2, dm_control 1.0.50, mujoco 3.17, numpy 2.4, scikit-image 0.26",
    markers=(("curl_sac.py", "class CurlSacAgent"),),
    many=True,
    options=("scores",),
    views="as many as the objective or --views asks for, cropped again from the replay buffer's frames",
    shims=(
        Shim("np_int", "dmc2gym uses np.int, which numpy 1.24 has removed", _np_int),
        Shim("env_specs", "dmc2gym looks up registry.env_specs, which gym 0.26 has removed", _env_specs),
        Shim(
            "old_make", "gym.make since 0.26 wraps environments for another reset and a step of five values", _old_make
        ),
    ),
    before=before,
    after=after,
)
