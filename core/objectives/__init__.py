"""Objectives, one family per file. Importing this package registers all of them, in the order of these imports."""

from . import infonce, adnce, dro, nacl, polarization, positives, pairwise, sogclr, matryoshka  # noqa: F401, I001
