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

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from ..domain import majority
from ..store.progress import track
from .benchmarks import Texts, load_transfer
from .encode import Embeddings, Matrix
from .settings import TRANSFER
from .tables import grid, number

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
    """The scores by task, and their average."""

    tasks: dict[str, TaskScore]
    average: float


def evaluate(
    model: Any,
    tasks: Sequence[str] = TRANSFER,
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    jobs: int = 1,
    progress: bool = False,
) -> Report:
    """Score a model on SentEval's tasks. Each distinct text of all tasks is embedded once.

    Args:
        model: as in :func:`counterpoint.integrations.sentence.sts.evaluate`.
        tasks: names from :data:`counterpoint.integrations.sentence.settings.TRANSFER`.
        data: their folder, see :func:`counterpoint.integrations.sentence.benchmarks.load_transfer`.
        batch_size: texts embedded at a time.
        jobs: processes that fit classifiers.
        progress: whether to show it.
    """
    loaded = {name: load_transfer(name, data) for name in dict.fromkeys(tasks)}
    texts = (text for task in loaded.values() for split in task.values() for text in (*split.first, *split.second))
    embeddings = Embeddings(model, texts, batch_size, progress)
    scores = {name: score(name, task, embeddings, jobs, progress) for name, task in loaded.items()}
    return Report(scores, sum(one.accuracy for one in scores.values()) / len(scores))


def score(
    name: str, task: dict[str, Texts], embeddings: Embeddings, jobs: int = 1, progress: bool = False
) -> TaskScore:
    """Compute the score of one task."""
    data = {split: features(texts, embeddings) for split, texts in task.items()}
    x, y = next(iter(data.values()))  # of all texts, or of those to train on
    classes, sizes = np.unique(y, return_counts=True)
    if sizes.min() < RAREST:
        few = f"class {str(classes[sizes.argmin()])!r} has {sizes.min()} texts"
        raise ValueError(f"{name}: {few}, {FOLDS} folds within {FOLDS} folds need {RAREST}; is line 1 a header?")
    if "test" in data:
        folds = [(x, y, *data["test"], SPLIT_GRID)]
    else:
        folds = [(x[train], y[train], x[test], y[test], NESTED_GRID) for train, test in _folds().split(x, y)]
    results = Parallel(n_jobs=jobs, return_as="generator")(delayed(_fit)(*fold) for fold in folds)
    fits = list(track(results, f"{name}, folds", len(folds)) if progress else results)
    accuracies = [100 * float((fit.predicted == fit.labels).mean()) for fit in fits]
    return TaskScore(
        accuracy=float(np.mean(accuracies)),
        f1=100 * float(f1_score(fits[0].labels, fits[0].predicted, pos_label="1")) if name == "MRPC" else None,
        dev=float(np.mean([fit.dev for fit in fits])),
        strength=[fit.strength for fit in fits],
        folds=accuracies,
        texts=sum(len(texts.labels) for texts in task.values()),
        majority=majority(label for fit in fits for label in fit.labels),
    )


def features(texts: Texts, embeddings: Embeddings) -> tuple[Matrix, Labels]:
    """Return the classifier's input and the labels, in SentEval's order, which the folds depend on."""
    sides = [side for side in (texts.first, texts.second) if side]
    lengths = [[len(text.split()) for text in side] for side in sides]
    order = sorted(range(len(texts.labels)), key=lambda i: (*(length[i] for length in lengths), texts.labels[i]))
    u, *other = (embeddings[side].astype(np.float64) for side in sides)
    x = np.concatenate([np.abs(u - other[0]), u * other[0]], axis=1) if other else u
    return x[order], np.asarray(texts.labels)[order]


def _folds() -> Any:
    return StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)


class Fit(NamedTuple):
    """The chosen ``C``, its accuracy on the validation folds, the predictions for the test texts and their labels."""

    strength: float
    dev: float
    predicted: Labels
    labels: Labels


def _fit(x: Matrix, y: Labels, test_x: Matrix, test_y: Labels, strengths: Sequence[float]) -> Fit:
    """Choose ``C`` by 10 folds of the training texts, and predict the test texts."""
    accuracies = np.array([_accuracies(x[a], y[a], x[b], y[b], strengths) for a, b in _folds().split(x, y)])
    dev = (100 * accuracies.mean(0)).round(2)  # SentEval rounds before it compares; ties go to the strongest
    best = int(dev.argmax())
    return Fit(strengths[best], float(dev[best]), _classifier(strengths[best]).fit(x, y).predict(test_x), test_y)


def _accuracies(x: Matrix, y: Labels, test_x: Matrix, test_y: Labels, strengths: Sequence[float]) -> list[float]:
    classifier = _classifier(strengths[0])
    return [float(classifier.set_params(C=c).fit(x, y).score(test_x, test_y)) for c in strengths]


def _classifier(strength: float) -> Any:
    # warm start: the next C's optimum is close to the last one's
    return LogisticRegression(C=strength, tol=TOLERANCE, max_iter=STEPS, warm_start=True)


def text(report: Report) -> str:
    """Return a table like SimCSE's, whose average also includes SST2."""
    scores = {name: report.tasks[name].accuracy for name in TRANSFER if name in report.tasks}
    table = grid([*scores, "Avg."], [[number(value) for value in (*scores.values(), report.average)]])
    return table + "".join(f"\n{name}: F1 {number(s.f1)}" for name, s in report.tasks.items() if s.f1 is not None)
