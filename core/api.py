"""The public names, all in one place; ``import counterpoint`` imports this module when one of them is first used."""

from . import views
from .base import Objective, Wrapper, from_dict, objective
from .batch.options import Keys
from .batch.rules import margin, threshold
from .batch.scores import Scores
from .checks import set_checks
from .diagnose import distances, log_reports, pairs_in_margin, plot_weights, weight_curve
from .engine.distributed import gather
from .engine.matrix import MatrixNegatives, Negatives
from .engine.tiles import TileNegatives
from .grad_cache import gradcache
from .hyper import Choice, Flag, Real
from .names import registry
from .objectives.adnce import ADNCE, AlphaCL
from .objectives.dro import (
    CLDRO,
    MeanVariance,
    chi2_ratio,
    kl_alpha,
    mutual_information,
    tau_from_radius,
    worst_case_weights,
)
from .objectives.infonce import DCL, HCL, RINCE, Arctanh, InfoNCE
from .objectives.matryoshka import Matryoshka
from .objectives.nacl import NCA, IntCL, IntNaCl, MixNCA, Robust
from .objectives.pairwise import PSL, DrRL, SigLIP
from .objectives.polarization import DistancePolarization, SpreadOut
from .objectives.positives import AAL, ArCL, DebiasedPositives, SoftTargets, SupCon, worst_alignment
from .objectives.sogclr import ISogCLR, SogCLR
from .spec import SpecError
from .treatments import Treatment, treatment
from .values import Learned, Schedule
from .version import __version__

__all__ = [
    "AAL", "ADNCE", "CLDRO", "DCL", "HCL", "NCA", "PSL", "RINCE", "AlphaCL", "ArCL", "Arctanh", "Choice",
    "DebiasedPositives", "DistancePolarization", "DrRL", "Flag", "ISogCLR", "InfoNCE", "IntCL", "IntNaCl", "Keys",
    "Learned", "MatrixNegatives", "Matryoshka", "MeanVariance", "MixNCA", "Negatives", "Objective", "Real", "Robust",
    "Schedule", "Scores", "SigLIP", "SoftTargets", "SogCLR", "SpecError", "SpreadOut", "SupCon", "TileNegatives",
    "Treatment", "Wrapper", "__version__", "chi2_ratio", "distances", "from_dict", "gather", "gradcache", "kl_alpha",
    "log_reports", "margin", "mutual_information", "objective", "pairs_in_margin", "plot_weights", "registry",
    "set_checks", "tau_from_radius", "threshold", "treatment", "views", "weight_curve", "worst_alignment",
    "worst_case_weights",
]  # fmt: skip
