"""The image part of ADNCE (https://arxiv.org/abs/2310.11048): SimCLR on CIFAR and STL-10 with a choice of losses.

The settings are attributes: ``temperature``, and ``tau_plus`` and ``beta``, whose meaning depends on the ``estimator``
(:data:`OWN`). :data:`HOST` says where the loss sits, which tensors are there, and what is not possible.

**How to put an objective there.** The arguments of the method get the gradient of the objective, see
:mod:`counterpoint.plugins.embeddings`; by hand, change one line of ``main.py``::

    model_loss = counterpoint.plugins.adnce_image.ContrastiveLoss("adnce:t=0.5,mu=0.7")

The host computes the loss of ``--estimator``: run it with ``--estimator easy``. Its default, ``hard``, has no branch.
"""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from counterpoint.base import Objective

from .call import Call, checked_options
from .embeddings import Embeddings
from .host import Host, Seam, SeamError, Shim, loss_of

NAME = "adnce_image"
OWN = {
    "easy": "infonce:t={temperature!r}",
    "HCL": "hcl:t={temperature!r},prior={tau_plus!r},beta={beta!r}",
    "adnce": "adnce:t={temperature!r},mu={tau_plus!r},sigma={beta!r}",
}
"""The host's losses, by ``estimator``, in terms of the attributes of its loss."""


class ContrastiveLoss(nn.Module):
    """An objective in place of the host's ``DRO_Loss``: takes two views, returns ``(loss, None)``."""

    @checked_options
    def __init__(self, objective: Objective | str) -> None:
        super().__init__()
        self.objective: Objective = HOST.check(objective)

    def forward(self, out_1: Tensor, out_2: Tensor, index: Any = None, labels: Any = None) -> tuple[Tensor, None]:
        return loss_of(self.objective, out_1, out_2, normalize=False), None


def own_spec(loss: Any) -> str:
    """Return the loss of a ``DRO_Loss`` as a spec."""
    if loss.estimator not in OWN:
        raise SeamError(f"{NAME}: the host's --estimator {loss.estimator} does not run; {', '.join(OWN)} do.")
    return OWN[loss.estimator].format(**{k: getattr(loss, k) for k in ("temperature", "tau_plus", "beta")})


def after(seam: Seam, module: ModuleType) -> None:
    """Replace the method of the class that the script has imported."""
    class_: Any = getattr(module, "DRO_Loss", None)
    if class_ is None:
        raise SeamError(f"{NAME}: {module.__file__} uses no DRO_Loss; the script that trains is main.py.")
    host_forward = class_.forward

    def forward(self: Any, out_1: Tensor, out_2: Tensor, *rest: Any) -> Any:
        where = f"{class_.__name__}.forward"
        embeddings = Embeddings(seam, where, own_spec(self), lambda *views: Call(views, {"normalize": False}))
        return host_forward(self, *embeddings(out_1, out_2), *rest)

    class_.forward = forward
    seam.say(f"replacing the gradient of the arguments of {class_.__name__}.forward in {inspect.getfile(class_)}")


def _logs() -> bool:
    missing = not Path("logs").is_dir()
    Path("logs").mkdir(exist_ok=True)
    return missing


HOST = Host(
    name=NAME,
    title="ADNCE, image classification (junkangwu/ADNCE, folder image)",
    seam="DRO_Loss.forward in model.py",
    tensors="out_1, out_2 (B, 128), of unit length, not divided by the temperature; 2B anchors with 2B - 2 negatives "
    "each; the positive in the denominator; nothing gathered",
    spec="infonce:t=0.5",
    tested="torch 2.15, torchvision 0.29, numpy 2.4, opencv 5.0; November 2026",
    markers=(("model.py", "class DRO_Loss"),),
    views="its data sets make two views of an image, and its training loop unpacks exactly two. A loop of your own can "
    "call the objective with more: loss_fn(z1, z2, z3)",
    inputs="the loss sees embeddings, not images",
    shims=(Shim("logs", "main.py logs to a file in ./logs, a folder that the repository does not contain", _logs),),
    after=after,
)
