"""The evaluation of graph embeddings: scikit-learn used by hand gives the same, and test classes are not seen."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("torch_geometric")

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from counterpoint.integrations.graph import PROBES, evaluate

C = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
BY_HAND = {
    "svm": (make_pipeline(StandardScaler(), LinearSVC(dual=False, tol=0.01)), {"linearsvc__C": C}),
    "svc": (SVC(), {"C": C}),
    "logreg": (make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), {"logisticregression__C": C}),
    "knn": (make_pipeline(StandardScaler(), KNeighborsClassifier()), {"kneighborsclassifier__n_neighbors": [1, 5, 15]}),
}


def blobs(n: int, width: int, classes: int, gap: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return random.normal(size=(n, width)) * random.uniform(0.1, 9, width) + gap * np.eye(width)[y], y


@pytest.mark.parametrize("probe", PROBES)
def test_it_is_scikit_learns_grid_search_in_each_training_fold(probe):
    assert set(BY_HAND) == set(PROBES)
    z, y = blobs(60, 6, 3, gap=4)
    model, grid = BY_HAND[probe]
    folds = 2 if probe == "logreg" else 3  # it takes ten times as long
    expected = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (train, test) in enumerate(StratifiedKFold(folds, shuffle=True, random_state=7).split(z, y)):
            inner = StratifiedKFold(5, shuffle=True, random_state=folds * 7 + number)
            search = GridSearchCV(model, grid, cv=inner).fit(z[train], y[train])
            expected.append(100 * search.score(z[test], y[test]))
    found = evaluate(z, y, probe, folds=folds, seed=7)
    assert found.folds == pytest.approx(expected, abs=1e-9)
    assert found.accuracy == pytest.approx(np.mean(expected))
    assert found.std == pytest.approx(np.std(expected))
    assert 50 < found.accuracy < 100
    if probe == "svm":  # the seed chooses the folds of every probe alike
        assert found == evaluate(z, y, probe, folds=3, seed=7)
        assert found != evaluate(z, y, probe, folds=3, seed=8)


@pytest.mark.parametrize("probe", PROBES)
def test_test_classes_are_not_seen(probe):
    """Embeddings that memorise every graph, and classes that say nothing: only who sees test classes beats chance."""
    random = np.random.default_rng(0)
    n = 60
    y = np.arange(n) % 2
    accuracies = []
    for _ in range(2 if probe == "logreg" else 5):  # it takes ten times as long
        # any classes at all can be fitted to the training part
        memorised = np.eye(n) + 0.01 * random.normal(size=(n, n))
        accuracies.append(evaluate(memorised, random.permutation(y), probe, folds=3).accuracy)
    assert np.mean(accuracies) == pytest.approx(50, abs=10)


def test_shuffled_classes_of_the_test_fold_alone_are_chance(monkeypatch):
    """Classes that are learnable, but shuffled in each test fold after the split: accuracy is chance, not more."""
    z, y = blobs(200, 4, 2, gap=40)
    assert evaluate(z, y, folds=5).accuracy > 90
    random = np.random.default_rng(0)
    seen = []
    split = StratifiedKFold.split

    class Shuffled(np.ndarray):
        """Classes that are right for the rows of a training fold, and random when a test fold asks for them."""

        def __getitem__(self, rows):
            found = np.asarray(super().__getitem__(rows))
            if getattr(rows, "ndim", 0) == 1 and len(rows) == 40:
                seen.append(len(rows))
                return random.permutation(found)
            return found

    from counterpoint.integrations.graph import evaluation

    real = evaluation.checked
    monkeypatch.setattr(evaluation, "checked", lambda *given: (real(*given)[0], real(*given)[1].view(Shuffled)))
    monkeypatch.setattr(StratifiedKFold, "split", lambda self, a, b, groups=None: split(self, a, np.asarray(b)))
    assert evaluate(z, y, folds=5).accuracy == pytest.approx(50, abs=12)
    assert seen == [40] * 5


def test_scaling_is_learnt_from_training_folds_only():
    """One test graph far out must not change what is said about the others."""
    z, y = blobs(100, 5, 2, gap=3)
    test = next(iter(StratifiedKFold(5, shuffle=True, random_state=0).split(z, y)))[1]
    moved = z.copy()
    moved[test[0]] *= 1e6
    one, other = (evaluate(a, y, folds=5).folds[0] for a in (z, moved))
    assert abs(one - other) <= 100 / len(test) + 1e-9


@pytest.mark.parametrize(("rare", "folds"), [(3, 3), (4, 2), (5, 5)])
def test_the_smallest_classes_that_folds_allow_are_enough(rare, folds):
    z, y = blobs(40, 3, 2, gap=9)
    keep = (y == 0) | (np.cumsum(y == 1) <= rare)
    assert evaluate(z[keep], y[keep], folds=folds).accuracy > 60


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": np.zeros(20)}, "classes: at least 2 are needed, all 20 graphs have the same"),
        ({"y": np.arange(20) < 3}, "folds: class True has 3 graphs, 10 folds need 10"),
        ({"z": np.full((20, 3), np.nan)}, "embeddings: 20 of 20 graphs have values that are NaN or infinite"),
        ({"z": np.ones(20)}, "expected shapes (graphs, width) and (graphs,), got (20,) and (20,)"),
        ({"y": np.arange(20) < 3, "folds": 2}, "folds: class True has 3 graphs, 2 folds need 4"),
        ({"folds": 1}, "folds: expected a whole number of at least 2, got 1"),
        ({"probe": "smv"}, "probe: unknown probe 'smv'. Did you mean 'svm'?"),
    ],
)
def test_wrong_input_is_named(change, says):
    given = {"z": np.ones((20, 3)), "y": np.arange(20) % 2, **change}
    with pytest.raises(ValueError, match=re.escape(says)):
        evaluate(**given)


def test_an_encoder_is_no_embeddings():
    with pytest.raises(TypeError, match=r"evaluate: expected embeddings, got Linear: graph\.embed\(encoder, data\)"):
        evaluate(torch.nn.Linear(3, 3), np.arange(20) % 2)
