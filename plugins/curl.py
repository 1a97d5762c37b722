"""CURL (https://arxiv.org/abs/2004.04136): SAC from pixels, with a contrastive loss between two random crops.

**The loss and its tensors.** See :data:`HOST`. The host subtracts each row's maximum, which does not change the
cross entropy, but removes the scale: so the plugin takes ``z_a``, ``z_pos`` and ``W`` where ``compute_logits`` gets
them.

**Which scores an objective gets:**

=============  =====================================================================================================
``bilinear``   ``z_a W z_pos^T``, as in CURL: for ``infonce``, alone, inside ``arcl`` or ``aal`` or beside regularizers.
``cosine``     cosines of ``z_a`` and ``z_pos``, for all others, whose floors, weights and thresholds are values between
               -1 and 1. ``W`` is not used and keeps its initial value. Regularizers always get those of ``z_a``.
=============  =====================================================================================================

**How to put an objective there.** ``z_a`` and ``W`` get the gradient of the objective, see
:mod:`counterpoint.plugins.embeddings`. By hand, add one line below the one that creates the agent::

    counterpoint.plugins.curl.patch(agent, "infonce:t=1 + 0.1*dp")
"""

import functools
import importlib.util
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from counterpoint.base import Objective, Sum
from counterpoint.batch.batch import Batch
from counterpoint.batch.pairings import scores_of
from counterpoint.batch.scores import Scores
from counterpoint.objectives.infonce import InfoNCE
from counterpoint.objectives.positives import ArCL

from .embeddings import Call, Embeddings
from .host import Host, Seam, SeamError, objective_of
from .shims.curl import SHIMS

NAME = "curl"
SCORES = ("bilinear", "cosine")


def default_scores(loss_fn: Objective) -> str:
    """Return ``bilinear`` if all that compares anchors with keys is InfoNCE, else ``cosine``."""
    if isinstance(loss_fn, Sum):
        return "cosine" if "cosine" in {default_scores(part) for _, part in loss_fn.terms()} else "bilinear"
    if isinstance(loss_fn, ArCL):
        return default_scores(loss_fn.objective)
    return "bilinear" if type(loss_fn) is InfoNCE or loss_fn.pairing == "single" else "cosine"


@dataclass(eq=False)
class Sides:
    """Scores of anchors against all keys, whatever the pairing; for regularizers, of anchors among themselves."""

    z_a: Tensor  # (B, d) anchors
    keys: list[Tensor]  # (B, d) for each further crop
    w: Tensor | None  # (d, d) matrix of bilinear scores; None for cosines

    def __call__(self, pairing: str) -> Scores:
        if self.w is None or pairing == "single":
            return scores_of(Batch((self.z_a, *self.keys), pairing="one_way"), pairing)
        keys = [key @ self.w.T for key in self.keys]
        return scores_of(Batch((self.z_a, *keys), pairing="one_way", normalize=False), pairing)


class _Call(Call):
    """A call with ``z_a``, ``z_pos`` and ``W``, whose scores depend on the objective."""

    def loss(self, loss_fn: Objective, own: bool = False) -> Tensor:
        return self._of(loss_fn).loss(loss_fn, own)

    def report(self, loss_fn: Objective) -> dict[str, float]:
        return self._of(loss_fn).report(loss_fn)

    def _of(self, loss_fn: Objective) -> Call:
        z_a, z_pos, w = self.args
        # compute_loss: regularizers look at other similarities than the other terms
        sides = Sides(z_a, [z_pos], w if default_scores(loss_fn) == "bilinear" else None)
        return Call((sides, z_a.device), method="compute_loss")


def patch(agent: Any, objective: str | Seam) -> Seam:
    """Put an objective into a ``CurlSacAgent`` that learns from pixels."""
    seam, curl = HOST.as_seam(objective), agent.CURL
    compute_logits, parameters = curl.compute_logits, vars(curl)["_parameters"]

    def replaced(z_a: Tensor, z_pos: Tensor) -> Tensor:
        w = parameters["W"]
        embeddings = Embeddings(seam, "CURL.compute_logits", HOST.spec, lambda *tensors: _Call(tensors))
        z_a, z_pos, parameters["W"] = embeddings(z_a, z_pos, w)
        try:
            return compute_logits(z_a, z_pos)  # type: ignore[no-any-return]
        finally:
            parameters["W"] = w

    curl.compute_logits = replaced
    return seam


def before(seam: Seam) -> None:
    """Say how to install a package that the host imports and that no index has, rather than raise an ImportError."""
    if importlib.util.find_spec("dmc2gym") is None:
        raise SeamError(
            f"{NAME}: the package dmc2gym is missing, and not on the package index: "
            "pip install git+https://github.com/denisyarats/dmc2gym, or clone it and put it on PYTHONPATH."
        )


def after(seam: Seam, module: ModuleType) -> None:
    """Put the objective into every agent that the script creates."""
    class_: Any = getattr(module, "CurlSacAgent", None)
    if class_ is None:
        raise SeamError(f"{NAME}: {module.__file__} uses no CurlSacAgent; the script that trains is train.py.")
    host_init = class_.__init__

    @functools.wraps(host_init)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        host_init(self, *args, **settings)
        if not hasattr(self, "CURL"):
            raise SeamError(f"{NAME}: only --encoder_type pixel has a contrastive loss.")
        patch(self, seam)

    class_.__init__ = init
    loss_fn = objective_of(seam.spec, HOST.spec)
    where = f"CURL.compute_logits in {inspect.getfile(class_)}"
    seam.say(f"replacing the gradient of the arguments of {where}: {loss_fn} on {default_scores(loss_fn)} scores")


HOST = Host(
    name=NAME,
    title="CURL (MishaLaskin/curl)",
    seam="z_a, z_pos and W in CURL.compute_logits of curl_sac.py",
    tensors="z_a, z_pos (B, 50), not of unit length; logits z_a W z_pos^T minus their row maximum, no temperature, "
    "positive in the denominator, nothing gathered; z_pos without gradient",
    spec="infonce:t=1",
    tested="torch 2.15, gym 0.26.2, dm_control 1.0.50, mujoco 3.17, numpy 2.4, scikit-image 0.26; November 2026",
    markers=(("curl_sac.py", "class CurlSacAgent"),),
    views="its replay buffer cuts two crops. `counterpoint train control` has more",
    inputs="the criterion sees embeddings, not frames",
    shims=SHIMS,
    before=before,
    after=after,
)
