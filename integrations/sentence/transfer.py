"""SentEval's classification tasks: logistic regression on frozen embeddings (Conneau and Kiela 2018).

=====================  ==========================================================================================
MR, CR, SUBJ, MPQA     nested 10-fold cross-validation: the inner folds of each outer one choose the regularization
TREC                   10-fold cross-validation on the training questions chooses it; the official 500 are the test
MRPC                   the same with the official split, on the features ``[|u - v|, u * v]`` of a pair; F1 too
=====================  ==========================================================================================

Classifier, grid, folds and their seed are those of SentEval with scikit-learn (``usepytorch: False``): L2 with ``C`` in
2^-2 ... 2^3 for the nested tasks and 2^-1 ... 2^5 for the others, stratified folds, seed 1111, texts sorted by length.
Differences: the solver's tolerance is 1e-6, so that accuracies do not depend on where it stops; and current versions of
scikit-learn fit one multinomial model without penalty on the intercept, those of 2018 one class against the rest, with
one. SimCSE reports SentEval with PyTorch instead, Adam with early stopping on the same folds, whose results vary by
some tenths of a point.

SentEval: https://arxiv.org/abs/1803.05449
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from .frameworks import framework  # isort: skip
import numpy as np
from numpy.typing import NDArray

from ..domain import majority
from ..store.progress import track
from .data import Texts, load_transfer
from .encode import Embeddings, Matrix, encoder
from .settings import TRANSFER
from .sts import grid, number

FOLDS = 10
RAREST = 12  # texts of a class, so that nine tenths of them fill every inner fold
SEED = 1111
NESTED_GRID = tuple(2.0**k for k in range(-2, 4))
SPLIT_GRID = tuple(2.0**k for k in range(-1, 6))
TOLERANCE = 1e-6
STEPS = 1000

Labels = NDArray[np.str_]


@dataclass
class TaskScore:
    """Percentages."""

    accuracy: float  # on the test texts, or the mean over outer folds if the data have no official split
    f1: float | None  # of the class ``1``, for MRPC
    dev: float  # accuracy of the chosen regularization on the validation folds
    strength: list[float]  # the chosen ``C`` of each outer fold
    folds: list[float]  # the accuracy of each outer fold
    texts: int
    majority: float  # the largest class among the test texts


@dataclass
class Report:
    tasks: dict[str, TaskScore]
    average: float
    seconds: dict[str, float]


def evaluate(
    model: Any,
    tasks: Sequence[str] = TRANSFER,
    data: str | Path | None = None,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 64,
    jobs: int = 1,
    progress: bool = True,
) -> Report:
    """Score a model on SentEval's tasks. Each distinct text of all tasks is embedded once.

    Args:
        model: as in :func:`counterpoint.integrations.sentence.sts.evaluate`.
        tasks: names from :data:`counterpoint.integrations.sentence.settings.TRANSFER`.
        data: the folder of the data, see :func:`counterpoint.integrations.sentence.data.root`.
        pooling, device, batch_size: as there.
        jobs: processes that fit classifiers.
    """
    start = perf_counter()
    loaded = {name: load_transfer(name, data) for name in dict.fromkeys(tasks)}
    splits = [texts for task in loaded.values() for texts in task.values()]
    encode = encoder(model, pooling, device=device)
    ready = perf_counter()
    embeddings = Embeddings(encode, (t for s in splits for t in (*s.first, *s.second)), batch_size, progress)
    embedded = perf_counter()
    scores = {name: score(name, task, embeddings, jobs, progress) for name, task in loaded.items()}
    seconds = {"read and load": ready - start, "encode": embeddings.seconds, "fit": perf_counter() - embedded}
    seconds["total"] = perf_counter() - start
    return Report(scores, sum(s.accuracy for s in scores.values()) / len(scores), seconds)


def score(name: str, task: dict[str, Texts], embeddings: Embeddings, jobs: int = 1, progress: bool = True) -> TaskScore:
    """Compute the score of one task."""
    data = {split: features(texts, embeddings) for split, texts in task.items()}
    classes, sizes = np.unique(data["all" if "all" in data else "train"][1], return_counts=True)
    if sizes.min() < RAREST:
        few = f"class {str(classes[sizes.argmin()])!r} has {sizes.min()} texts"
        raise ValueError(f"{name}: {few}, {FOLDS} folds within {FOLDS} folds need {RAREST}; is line 1 a header?")
    parallel = framework("joblib").Parallel(n_jobs=jobs, return_as="generator")
    delayed = framework("joblib").delayed
    if "all" in data:
        x, y = data["all"]
        folds = [(x[train], y[train], x[test], y[test], NESTED_GRID) for train, test in _folds().split(x, y)]
    else:
        folds = [(*data["train"], *data["test"], SPLIT_GRID)]
    results = parallel(delayed(_fit)(*fold) for fold in folds)
    fitted = list(track(results, f"{name}, folds", len(folds)) if progress else results)
    accuracies = [100 * float((predicted == y).mean()) for _, _, predicted, y in fitted]
    f1 = None
    if name == "MRPC":
        _, _, predicted, y = fitted[0]
        f1 = 100 * float(framework("sklearn.metrics").f1_score(y, predicted, pos_label="1"))
    dev = float(np.mean([dev for _, dev, _, _ in fitted]))
    strength = [c for c, _, _, _ in fitted]
    texts, largest = sum(map(len, task.values())), majority(label for _, _, _, y in fitted for label in y)
    return TaskScore(float(np.mean(accuracies)), f1, dev, strength, accuracies, texts, largest)


def features(texts: Texts, embeddings: Embeddings) -> tuple[Matrix, Labels]:
    """The classifier's input and the labels, in SentEval's order, which the folds depend on."""
    length = [[len(text.split()) for text in side] for side in (texts.first, texts.second) if side]
    order = sorted(range(len(texts)), key=lambda i: (*(side[i] for side in length), texts.labels[i]))
    x = embeddings[texts.first].astype(np.float64)
    if texts.second:
        v = embeddings[texts.second].astype(np.float64)
        x = np.concatenate([np.abs(x - v), x * v], axis=1)
    return x[order], np.asarray(texts.labels)[order]


def _folds() -> Any:
    return framework("sklearn.model_selection").StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)


def _fit(
    x: Matrix, y: Labels, test_x: Matrix, test_y: Labels, strengths: Sequence[float]
) -> tuple[float, float, Labels, Labels]:
    """The best ``C`` on 10 folds of ``x``, its accuracy there, its predictions on ``test_x``, and ``test_y``."""
    accuracies = np.array([_accuracies(x[a], y[a], x[b], y[b], strengths) for a, b in _folds().split(x, y)])
    dev = (100 * accuracies.mean(0)).round(2)  # SentEval rounds before it compares; ties go to the strongest
    best = int(dev.argmax())
    classifier = _classifier(strengths[best]).fit(x, y)
    return strengths[best], float(dev[best]), classifier.predict(test_x), test_y


def _accuracies(x: Matrix, y: Labels, test_x: Matrix, test_y: Labels, strengths: Sequence[float]) -> list[float]:
    classifier = _classifier(strengths[0])
    return [float(classifier.set_params(C=c).fit(x, y).score(test_x, test_y)) for c in strengths]


def _classifier(strength: float) -> Any:
    # warm start: the next C's optimum is close to the last one's
    logistic_regression = framework("sklearn.linear_model").LogisticRegression
    return logistic_regression(C=strength, tol=TOLERANCE, max_iter=STEPS, warm_start=True)


def text(report: Report) -> str:
    """A table like SimCSE's, whose average also includes SST2."""
    names = [name for name in TRANSFER if name in report.tasks]
    cells = [number(report.tasks[name].accuracy) for name in names] + [number(report.average)]
    table = grid([[*names, "Avg."], cells])
    return table + "".join(f"\n{name}: F1 {number(s.f1)}" for name, s in report.tasks.items() if s.f1 is not None)
