"""counterpoint: contrastive objectives for the training code you already have.

>>> import torch, counterpoint as cp
>>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
>>> loss_fn = cp.objective("adnce:t=0.5,mu=0.7")
>>> loss_fn == cp.ADNCE(temperature=0.5, mu=0.7)
True
>>> loss_fn(z1, z2).shape
torch.Size([])
"""

import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import names
from .version import __version__

warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, which then works without it

if TYPE_CHECKING:  # at run time each name is imported on first use, so that commands start without torch
    from . import perturb as views
    from .batch.keys import Keys
    from .batch.rules import margin, threshold
    from .batch.scores import Scores
    from .checks import set_checks
    from .diagnose.plots import plot_distances, plot_weights
    from .diagnose.spread import distances
    from .diagnose.weights import weight_curve
    from .engine.distributed import gather
    from .engine.matrix import MatrixNegatives
    from .engine.negatives import Negatives
    from .engine.tiles import TileNegatives
    from .gradcache import gradcache
    from .hyper import Choice, Flag, Learned, Real, Schedule
    from .objective import Objective, Wrapper, from_dict, objective
    from .objectives.adnce import ADNCE
    from .objectives.alpha_cl import AlphaCL
    from .objectives.dro import (
        CLDRO,
        MeanVariance,
        chi2_ratio,
        kl_alpha,
        mutual_information,
        tau_from_radius,
        worst_case_weights,
    )
    from .objectives.infonce import DCL, HCL, InfoNCE
    from .objectives.nacl import NCA, IntCL, IntNaCl, MixNCA, Robust
    from .objectives.polarization import DistancePolarization, pairs_in_margin
    from .objectives.positives import AAL, ArCL, DebiasedPositives, SupCon, worst_alignment
    from .objectives.siglip import SigLIP
    from .registry import registry
    from .spec import SpecError

# module: the public names that it defines; the same as above, which a test checks
_NAMES = {
    "batch.keys": "Keys",
    "batch.rules": "margin threshold",
    "batch.scores": "Scores",
    "checks": "set_checks",
    "diagnose.plots": "plot_distances plot_weights",
    "diagnose.spread": "distances",
    "diagnose.weights": "weight_curve",
    "engine.distributed": "gather",
    "engine.matrix": "MatrixNegatives",
    "engine.negatives": "Negatives",
    "engine.tiles": "TileNegatives",
    "gradcache": "gradcache",
    "hyper": "Choice Flag Learned Real Schedule",
    "objective": "Objective Wrapper from_dict objective",
    "objectives.adnce": "ADNCE",
    "objectives.alpha_cl": "AlphaCL",
    "objectives.dro": "CLDRO MeanVariance chi2_ratio kl_alpha mutual_information tau_from_radius worst_case_weights",
    "objectives.infonce": "DCL HCL InfoNCE",
    "objectives.nacl": "NCA IntCL IntNaCl MixNCA Robust",
    "objectives.polarization": "DistancePolarization pairs_in_margin",
    "objectives.positives": "AAL ArCL DebiasedPositives SupCon worst_alignment",
    "objectives.siglip": "SigLIP",
    "registry": "registry",
    "spec": "SpecError",
}
_MODULE = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AAL", "ADNCE", "CLDRO", "DCL", "HCL", "NCA", "AlphaCL", "ArCL", "Choice", "DebiasedPositives",
    "DistancePolarization", "Flag", "InfoNCE", "IntCL", "IntNaCl", "Keys", "Learned", "MatrixNegatives", "MeanVariance",
    "MixNCA", "Negatives", "Objective", "Real", "Robust", "Schedule", "Scores", "SigLIP", "SpecError",
    "SupCon", "TileNegatives", "Wrapper", "__version__", "chi2_ratio", "distances", "from_dict", "gather",
    "gradcache", "kl_alpha", "margin", "mutual_information", "objective", "pairs_in_margin", "plot_distances",
    "plot_weights", "registry", "set_checks", "tau_from_radius", "threshold", "views",
    "weight_curve", "worst_alignment", "worst_case_weights",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers would take it as a reason to accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module of the package, on first use."""
        from importlib import import_module

        if name in _MODULE:
            import_module(f"{__name__}.objectives")  # fills the registry before any other class can take a name
            module = f"{__name__}.{_MODULE[name]}"
            import_module(module.rpartition(".")[0])  # before its modules, or two threads can wait for each other
            value = getattr(import_module(module), name)
        elif name == "views":
            value = import_module(f"{__name__}.perturb")
        else:
            if here := names.elsewhere(name):
                message = f"module {__name__!r} has no attribute {name!r}; here it is cp.{here[1]}."
                raise AttributeError(message, name=name, obj=None)
            return names.lazy(__name__, known=__all__)(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """A package whose functions ``objective`` and ``gradcache`` are not replaced by their modules.

    Importing the submodule ``counterpoint.objective`` sets the package's attribute of that name to the module, which
    would hide the function. The module stays in ``sys.modules``, so ``from counterpoint.objective import Objective``
    works as usual.
    """

    def __reduce__(self) -> Any:
        """Pickle by name, as cloudpickle and dill do for modules of the plain type only."""
        from importlib import import_module

        return import_module, (self.__name__,)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
