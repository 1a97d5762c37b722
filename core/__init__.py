"""counterpoint: contrastive objectives for the training code you already have.

>>> import torch, counterpoint as cp
>>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
>>> loss_fn = cp.objective("adnce:t=0.5,mu=0.7")
>>> loss_fn == cp.ADNCE(temperature=0.5, mu=0.7)
True
>>> loss_fn(z1, z2).shape
torch.Size([])
"""

from . import perturb as views
from .batch.scores import Scores
from .checks import set_checks
from .diagnose.plots import plot_distances, plot_weights
from .diagnose.report import distances, weight_curve
from .engine.distributed import gather
from .engine.negatives import DenseNegatives, Negatives
from .engine.streamed import StreamedNegatives
from .gradcache import gradcache
from .hyper import Choice, Flag, Learned, Real, Schedule
from .objective import Objective, Wrapper, from_dict, objective, registry
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
from .objectives.positives import AAL, ArCL, DebiasedPositives, worst_alignment
from .spec import SpecError
from .version import __version__

__all__ = [
    "AAL",
    "ADNCE",
    "CLDRO",
    "DCL",
    "HCL",
    "NCA",
    "AlphaCL",
    "ArCL",
    "Choice",
    "DebiasedPositives",
    "DenseNegatives",
    "DistancePolarization",
    "Flag",
    "InfoNCE",
    "IntCL",
    "IntNaCl",
    "Learned",
    "MeanVariance",
    "MixNCA",
    "Negatives",
    "Objective",
    "Real",
    "Robust",
    "Schedule",
    "Scores",
    "SpecError",
    "StreamedNegatives",
    "Wrapper",
    "__version__",
    "chi2_ratio",
    "distances",
    "from_dict",
    "gather",
    "gradcache",
    "kl_alpha",
    "mutual_information",
    "objective",
    "pairs_in_margin",
    "plot_distances",
    "plot_weights",
    "registry",
    "set_checks",
    "tau_from_radius",
    "views",
    "weight_curve",
    "worst_alignment",
    "worst_case_weights",
]
