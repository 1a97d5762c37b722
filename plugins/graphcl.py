"""GraphCL (https://arxiv.org/abs/2010.13902) on TU data sets, ``unsupervised_TU/gsimclr.py``, and ADNCE's fork of it.

**The loss and its tensors.** See :data:`HOST`. The fork divides by ``--temp`` and has the mean over the negatives
in the denominator, plain with ``--mode easy``, weighted with ``--mode adnce`` (``--w1`` is ``mu``, ``--w2`` ``sigma``).

**How to put an objective there.** The arguments of the method get the gradient of the objective, see
:mod:`counterpoint.plugins.embeddings`. Without the launcher, one line of the script does the same, where its model is
defined::

    counterpoint.plugins.graphcl.patch("adnce:t=0.05,mu=1.5", sys.modules[__name__])

The objective owns the temperature. Anchors are the first view, as in the host, unless an objective's paper compares
other pairs (debiased positives). The fork's ``--mode reweight_only`` is not an objective of this library, and is
refused.
"""

from types import ModuleType
from typing import Any

from torch import Tensor

from .embeddings import Call, Embeddings
from .host import ONE_WAY, Host, Seam, SeamError
from .shims.graphcl import SHIMS


def patch(objective: str | Seam, module: ModuleType) -> Seam:
    """Put an objective into the class ``simclr`` of the script ``module``."""
    seam = HOST.as_seam(objective)
    model: Any = getattr(module, "simclr", None)
    if not hasattr(model, "loss_cal"):
        raise SeamError(f"{module.__file__} has no simclr.loss_cal: run gsimclr.py, or gsimclr_robust.py of the fork.")
    host_loss = model.loss_cal

    def loss_cal(self: Any, x: Tensor, x_aug: Tensor, *settings: Any) -> Tensor:
        own = own_spec(*settings)
        embeddings = Embeddings(seam, "simclr.loss_cal", own, lambda *views: Call(views, {"pairing": ONE_WAY}))
        return embeddings.returned(host_loss(self, *embeddings(x, x_aug), *settings))  # type: ignore[no-any-return]

    model.loss_cal = loss_cal
    seam.say(f"replacing the gradient of the arguments of simclr.loss_cal in {module.__file__}")
    return seam


def own_spec(mode: str | None = None, args: Any = None) -> str:
    """Return the host's own loss: GraphCL's, or the fork's with this mode and these arguments."""
    if args is None:
        return HOST.spec
    if mode == "easy":
        return f"infonce:t={args.temp},denominator=mean"
    if mode == "adnce":
        return f"adnce:t={args.temp},mu={args.w1},sigma={args.w2},denominator=mean"
    raise SeamError(f"graphcl: --mode {mode} is not an objective of this library; the fork's easy and adnce are.")


HOST = Host(
    name="graphcl",
    title="GraphCL on TU data sets (Shen-Lab/GraphCL, unsupervised_TU) and the graph part of junkangwu/ADNCE",
    seam="simclr.loss_cal(x, x_aug) in gsimclr.py; simclr.loss_cal(x, x_aug, mode, args) in gsimclr_robust.py",
    tensors="projections of the graphs and of their augmented copies, not normalized, no temperature; one way; the "
    "positive is not in the denominator (fork: mean over negatives); one process",
    spec="infonce:t=0.2,denominator=negatives",
    tested="torch 2.15 with torch_geometric 2.8.1; November 2026",
    markers=(
        ("gsimclr.py", "def loss_cal(self, x, x_aug)"),
        ("gsimclr_robust.py", "def loss_cal(self, x, x_aug, mode, args)"),
    ),
    views="its loader makes a graph and one augmented copy. `counterpoint train graph` has more views",
    inputs="graphs cannot be mixed, nor edges moved a little",
    shims=SHIMS,
    after=patch,
)
