"""How good are embeddings of graphs? A linear classifier under stratified cross-validation, as the field does it.

The classifier's one setting is chosen by cross-validation within the training folds; what is scored has been seen by
nothing that was fitted, not even by the scaling of the features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from counterpoint.hyper import nearest

C = [10.0**power for power in range(-3, 4)]
INNER_FOLDS = 5
# scikit-learn's estimators, and what is chosen within the training folds. The primal solver of LIBLINEAR, to the
# precision that is LIBLINEAR's own default: a hundred times finer takes up to 70 times as long for the same accuracies.
PROBES: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "svm": (make_pipeline(StandardScaler(), LinearSVC(dual=False, tol=0.01)), {"linearsvc__C": C}),
    "svc": (SVC(), {"C": C}),
    "logreg": (make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), {"logisticregression__C": C}),
    "knn": (make_pipeline(StandardScaler(), KNeighborsClassifier()), {"kneighborsclassifier__n_neighbors": [1, 5, 15]}),
}
"""Classifiers by name: linear SVM, the RBF kernel SVM of GraphCL's code, logistic regression, nearest neighbours."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracies in percent.

    Args:
        folds: of each test fold.
    """

    folds: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.folds))

    @property
    def std(self) -> float:
        """Over folds, of one run; what papers print is the deviation over runs with different seeds."""
        return float(np.std(self.folds))

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} +- {self.std:.2f} over {len(self.folds)} folds"


def evaluate(z: Any, y: Any, probe: str = "svm", folds: int = 10, seed: int = 0) -> Evaluation:
    """Cross-validated accuracy of a classifier on embeddings.

    Args:
        z: ``(graphs, width)`` embeddings.
        y: ``(graphs,)`` classes.
        probe: a name in :data:`PROBES`. ``C`` is one of 1e-3 to 1e3 (``knn``: 1, 5 or 15 neighbours), by 5-fold
            cross-validation of the training folds.
        folds: stratified test folds, at least 2.
        seed: of the folds; the inner ones follow from it.
    """
    z, y = checked(z, y, folds)
    if probe not in PROBES:
        raise ValueError(f"probe: unknown probe {probe!r}.{nearest(str(probe), PROBES)}")
    model, grid = PROBES[probe]
    scores = []
    for number, (train, test) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=seed).split(z, y)):
        inner = StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=folds * seed + number)
        search = GridSearchCV(model, grid, cv=inner, scoring="accuracy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # at the large end of C, where it is not chosen
            warnings.filterwarnings("ignore", "The least populated class")
            scores.append(100 * search.fit(z[train], y[train]).score(z[test], y[test]))
    return Evaluation(tuple(float(score) for score in scores))


def checked(z: Any, y: Any, folds: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Embeddings and classes as arrays of which ``folds`` stratified folds can be made."""
    z, y = np.asarray(z, dtype=np.float64), np.asarray(y)
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise ValueError(f"evaluate: expected shapes (graphs, width) and (graphs,), got {z.shape} and {y.shape}.")
    if not isinstance(folds, int) or folds < 2:
        raise ValueError(f"folds: expected a whole number of at least 2, got {folds!r}.")
    if bad := int((~np.isfinite(z)).any(1).sum()):
        raise ValueError(f"embeddings: {bad} of {len(z)} graphs have values that are NaN or infinite.")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"classes: at least 2 are needed, all {len(y)} graphs have the same.")
    if counts.min() < folds:
        rare = classes[counts.argmin()]
        raise ValueError(f"folds: class {rare} has {counts.min()} graphs, fewer than {folds} folds; give folds=.")
    return z, y
