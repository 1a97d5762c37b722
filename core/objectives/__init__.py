"""Objectives, one family per file. Importing this package registers all of them, in the order of these imports."""

from . import infonce, adnce, alpha_cl, dro, nacl, polarization, positives, siglip, ranking, sogclr, matryoshka  # noqa: F401, I001
from . import soft_targets  # noqa: F401
