"""Numbers and pictures of a batch as an objective weights it.

:func:`report` and :func:`weight_curve` show which negatives an objective trains on, :func:`distances`,
:func:`alignment` and :func:`uniformity` how spread out embeddings are; :mod:`counterpoint.diagnose.plots` draws curves.
"""

from ..batch.report import report
from .spread import alignment, distances, uniformity
from .weights import weight_curve

__all__ = ["alignment", "distances", "report", "uniformity", "weight_curve"]
