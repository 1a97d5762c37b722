"""Evaluation of graph embeddings: a classifier under stratified cross-validation, the field's protocol.

The classifier's one setting is chosen by cross-validation within the training folds. Nothing is fitted on test folds,
not even the scaling of the features.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import warnings
from dataclasses import dataclass

import numpy as np
import sklearn
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from ..domain import check_choice, check_whole

C = tuple(10.0**power for power in range(-3, 4))
INNER_FOLDS = 5
# LIBLINEAR's primal solver and default tolerance; scikit-learn's tolerance, a hundred times smaller, takes as much as
# 70 times as long for the same accuracies
LINEAR = LinearSVC(dual=False, tol=0.01)
PROBES: dict[str, tuple[BaseEstimator, dict[str, tuple[float, ...]]]] = {
    "svm": (make_pipeline(StandardScaler(), LINEAR), {"linearsvc__C": C}),
    "svc": (SVC(), {"C": C}),
    "logreg": (make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), {"logisticregression__C": C}),
    "knn": (make_pipeline(StandardScaler(), KNeighborsClassifier()), {"kneighborsclassifier__n_neighbors": (1, 5, 15)}),
}
"""Linear SVM, the RBF kernel SVM of GraphCL's code, logistic regression, nearest neighbors; and the settings to try."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in percent, of each test fold."""

    folds: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.folds))

    @property
    def std(self) -> float:
        """Over the folds of one run; papers report the deviation over runs with different seeds."""
        return float(np.std(self.folds))

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} ± {self.std:.2f} over {len(self.folds)} folds"


def evaluate(z: ArrayLike, y: ArrayLike, probe: str = "svm", folds: int = 10, seed: int = 0) -> Evaluation:
    """Cross-validated accuracy of a classifier on embeddings.

    Args:
        z: ``(graphs, width)`` embeddings.
        y: ``(graphs,)`` classes.
        probe: a name in :data:`PROBES`. ``C`` is one of 1e-3 to 1e3 (``knn``: 1, 5 or 15 neighbors), by 5-fold
            cross-validation of the training folds (fewer folds if a class has less than 5 graphs there).
        folds: stratified test folds, at least 2.
        seed: of the folds; the inner ones follow from it.
    """
    z, y = checked(z, y, folds)
    check_choice("probe", probe, PROBES)
    classifier, settings = PROBES[probe]
    scores = []
    for number, (train, test) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=seed).split(z, y)):
        rarest = int(np.unique(y[train], return_counts=True)[1].min())
        inner = StratifiedKFold(min(INNER_FOLDS, rarest), shuffle=True, random_state=folds * seed + number)
        with warnings.catch_warnings(), sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            warnings.simplefilter("ignore", ConvergenceWarning)  # at the largest C, which are rarely chosen
            search = GridSearchCV(classifier, settings, cv=inner).fit(z[train], y[train])
            scores.append(100 * float(search.score(z[test], y[test])))
    return Evaluation(tuple(scores))


def checked(z: ArrayLike, y: ArrayLike, folds: int) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    """Check that embeddings and classes allow ``folds`` stratified folds; returns both as arrays."""
    if callable(z):
        raise TypeError(f"evaluate: expected embeddings, got {type(z).__name__}: graph.embed(encoder, data), data.y.")
    z = z.detach().cpu() if hasattr(z, "detach") else z
    z, y = np.asarray(z, dtype=np.float64), np.asarray(y)
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise ValueError(f"evaluate: expected shapes (graphs, width) and (graphs,), got {z.shape} and {y.shape}.")
    check_whole("folds: expected", folds, 2)
    if bad := int((~np.isfinite(z)).any(1).sum()):
        raise ValueError(f"embeddings: {bad} of {len(z)} graphs have values that are NaN or infinite.")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"classes: at least 2 are needed, all {len(y)} graphs have the same.")
    needed = max(folds, 4 if folds == 2 else 3)  # leaves two in each training fold, for the inner folds
    if counts.min() < needed:
        rare = classes[counts.argmin()]
        raise ValueError(f"folds: class {rare} has {counts.min()} graphs, {folds} folds need {needed}; give folds=.")
    return z, y
