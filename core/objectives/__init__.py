"""Objectives, one family per file. Importing this package registers all of them, in the order of these imports."""

# isort: off
from .infonce import DCL, HCL, InfoNCE
from .adnce import ADNCE
from .alpha_cl import AlphaCL
from .dro import (
    CLDRO,
    MeanVariance,
    chi2_ratio,
    kl_alpha,
    mutual_information,
    tau_from_radius,
    worst_case_weights,
)
from .nacl import NCA, IntCL, IntNaCl, MixNCA, Robust
from .polarization import DistancePolarization, pairs_in_margin
from .positives import AAL, ArCL, DebiasedPositives, worst_alignment
# isort: on

__all__ = [
    "AAL",
    "ADNCE",
    "CLDRO",
    "DCL",
    "HCL",
    "NCA",
    "AlphaCL",
    "ArCL",
    "DebiasedPositives",
    "DistancePolarization",
    "InfoNCE",
    "IntCL",
    "IntNaCl",
    "MeanVariance",
    "MixNCA",
    "Robust",
    "chi2_ratio",
    "kl_alpha",
    "mutual_information",
    "pairs_in_margin",
    "tau_from_radius",
    "worst_alignment",
    "worst_case_weights",
]
