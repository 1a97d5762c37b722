"""counterpoint: contrastive objectives for the training code you already have.

>>> import torch, counterpoint as cp
>>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
>>> loss_fn = cp.objective("adnce:t=0.5,mu=0.7")
>>> loss_fn == cp.ADNCE(temperature=0.5, mu=0.7)
True
>>> loss_fn(z1, z2).shape
torch.Size([])
"""

from counterpoint import views
from counterpoint.adnce import ADNCE
from counterpoint.alpha import AlphaCL
from counterpoint.checks import set_checks
from counterpoint.diagnose import distances, weight_curve
from counterpoint.distributed import gather
from counterpoint.gradcache import gradcache
from counterpoint.hyper import Choice, Flag, Learned, Real, Schedule
from counterpoint.infonce import DCL, HCL, InfoNCE
from counterpoint.nacl import NCA, IntCL, IntNaCl, MixNCA, Robust
from counterpoint.objective import Objective, Wrapper, from_dict, objective, registry
from counterpoint.plots import plot_distances, plot_weights
from counterpoint.polarization import DistancePolarization, pairs_in_margin
from counterpoint.positives import AAL, ArCL, DebiasedPositives, worst_alignment
from counterpoint.robust import (
    CLDRO,
    MeanVariance,
    chi2_ratio,
    kl_alpha,
    mutual_information,
    tau_from_radius,
    worst_case_weights,
)
from counterpoint.scores import DenseNegatives, Negatives, Scores
from counterpoint.spec import SpecError
from counterpoint.streamed import StreamedNegatives
from counterpoint.version import __version__

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
