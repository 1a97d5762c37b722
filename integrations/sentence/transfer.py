"""SentEval's classification tasks (https://arxiv.org/abs/1803.05449): logistic regression on frozen embeddings.

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

Tasks are read from a folder: ``transfer/MR.tsv`` and so on, tab-separated without a header (label, text; MRPC has two
texts), or the files that SentEval's scripts leave.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.parallel import Parallel, delayed

from ..domain import check_choice, majority
from ..store.progress import track
from .encode import Embeddings, Matrix, Model, embed, rows
from .files import ENVIRONMENT, find, lines, root, table
from .settings import TRANSFER

CLASSIFIER = LogisticRegression(tol=1e-6, max_iter=1000, warm_start=True)
FOLDS = StratifiedKFold(10, shuffle=True, random_state=1111)
RAREST = 12  # texts of a class, so that nine tenths of them fill every inner fold
NESTED_GRID = tuple(2.0**k for k in range(-2, 4))
SPLIT_GRID = tuple(2.0**k for k in range(-1, 6))
BINARY = {  # the files of class 1, and of class 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}

Labels = NDArray[np.str_]


@dataclass
class Texts:
    """Labeled texts in one column, or labeled pairs of texts in two."""

    labels: list[str]
    columns: list[list[str]]


def load(name: str, data: str | Path | None = None) -> dict[str, Texts]:
    """Load one of :data:`~.settings.TRANSFER`: its ``train`` and ``test`` texts, or ``all`` without an official split.

    Empty lines of CR and MPQA count as texts, and are read as a full stop, as in SentEval's examples. ``data`` is the
    folder of the tasks, by default ``COUNTERPOINT_DATA``; the hub has no copies that could be pinned.
    """
    check_choice("transfer task", name, TRANSFER)
    if (folder := root(data)) is None:
        raise ValueError(f"{name}: give its folder with --root, or in {ENVIRONMENT}; the hub does not have it.")
    splits = ("train", "test") if name in ("TREC", "MRPC") else ("all",)
    return {split: _labeled(name, split, folder) for split in splits}


def _labeled(name: str, split: str, folder: Path) -> Texts:
    if path := find(folder, f"{name}.tsv" if split == "all" else f"{name}-{split}.tsv"):
        rows = [cells for _, cells in table(path, 3 if name == "MRPC" else 2, more=False)]
    else:
        rows = [[" ".join(cell.split()) for cell in row] for row in _senteval(name, split, folder)]
    if len({row[0] for row in rows}) < 2:
        raise ValueError(f"{name}: expected texts of at least 2 classes, got {len(rows)} texts.")
    labels, *columns = ([text or "." for text in column] for column in zip(*rows, strict=True))
    return Texts(labels, columns)


def _senteval(name: str, split: str, folder: Path) -> Iterator[list[str]]:
    """Yield the label and the texts of each row of SentEval's files."""

    def path(file: str) -> Path:
        if (found := find(folder, file)) is None:
            searched = f"{folder}, transfer/ or downstream/"
            raise FileNotFoundError(f"{name}: neither {name}*.tsv nor SentEval's {file} is in {searched}.")
        return found

    if name in BINARY:
        for label, file in zip("10", BINARY[name], strict=True):
            yield from ([label, line] for line in lines(path(file), "latin-1"))
    elif name == "TREC":
        for line in lines(path(f"TREC/{'train_5500' if split == 'train' else 'TREC_10'}.label"), "latin-1"):
            fine, _, text = line.partition(" ")
            yield [fine.partition(":")[0], text]
    else:
        for _, (label, _, _, first, second, *_) in table(path(f"MRPC/msr_paraphrase_{split}.txt"), 5, header=slice(1)):
            yield [label, first, second]


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
    model: Model,
    tasks: Sequence[str] = TRANSFER,
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    jobs: int = 1,
    progress: bool = False,
) -> Report:
    """Score a model on SentEval's tasks.

    Args:
        model, batch_size, progress: see :func:`counterpoint.integrations.sentence.encode.embed`.
        tasks, data: see :func:`load`.
        jobs: processes that fit classifiers.
    """
    loaded = {name: load(name, data) for name in dict.fromkeys(tasks)}
    columns = [column for task in loaded.values() for split in task.values() for column in split.columns]
    embeddings = embed(model, (text for column in columns for text in column), batch_size, progress)
    scores = {name: score(name, task, embeddings, jobs, progress) for name, task in loaded.items()}
    return Report(scores, sum(one.accuracy for one in scores.values()) / len(scores))


def score(name: str, task: dict[str, Texts], embeddings: Embeddings, jobs: int, progress: bool) -> TaskScore:
    """Compute the score of one task."""
    data = {split: features(texts, embeddings) for split, texts in task.items()}
    x, y = next(iter(data.values()))  # of all texts, or of those to train on
    classes, sizes = np.unique(y, return_counts=True)
    if sizes.min() < RAREST:
        few = f"class {str(classes[sizes.argmin()])!r} has {sizes.min()} texts"
        raise ValueError(f"{name}: {few}, 10 folds within 10 folds need {RAREST}; is line 1 a header?")
    if "test" in data:
        splits, grid = [(data["train"], data["test"])], SPLIT_GRID
    else:
        splits = [((x[train], y[train]), (x[test], y[test])) for train, test in FOLDS.split(x, y)]
        grid = NESTED_GRID
    calls = (delayed(_fit)(*train, test_x, grid) for train, (test_x, _) in splits)
    results = Parallel(n_jobs=jobs, return_as="generator")(calls)
    fits = list(track(results, f"{name}, folds", len(splits)) if progress else results)
    strengths, devs, predictions = zip(*fits, strict=True)
    tests = [labels for _, (_, labels) in splits]
    accuracies = [100 * float((found == labels).mean()) for found, labels in zip(predictions, tests, strict=True)]
    return TaskScore(
        accuracy=float(np.mean(accuracies)),
        f1=100 * float(f1_score(tests[0], predictions[0], pos_label="1")) if name == "MRPC" else None,
        dev=float(np.mean(devs)),
        strength=[*strengths],
        folds=accuracies,
        texts=sum(len(texts.labels) for texts in task.values()),
        majority=majority(label for labels in tests for label in labels),
    )


def features(texts: Texts, embeddings: Embeddings) -> tuple[Matrix, Labels]:
    """Return the classifier's input and the labels, in SentEval's order, which the folds depend on."""
    lengths = [[len(text.split()) for text in column] for column in texts.columns]
    order = sorted(range(len(texts.labels)), key=lambda i: (*(length[i] for length in lengths), texts.labels[i]))
    u, *other = (rows(embeddings, column).astype(np.float64) for column in texts.columns)
    x = np.concatenate([np.abs(u - other[0]), u * other[0]], axis=1) if other else u
    return x[order], np.asarray(texts.labels)[order]


def _fit(x: Matrix, y: Labels, test_x: Matrix, strengths: Sequence[float]) -> tuple[float, float, Labels]:
    """Choose ``C`` by 10 folds of the training texts; return it, its accuracy there, and the test texts' classes."""
    accuracies = []
    for train, dev in FOLDS.split(x, y):
        model = clone(CLASSIFIER)  # one for all, from weak to strong: the optimum is close to the last one's
        accuracies.append([model.set_params(C=c).fit(x[train], y[train]).score(x[dev], y[dev]) for c in strengths])
    means = (100 * np.mean(accuracies, 0)).round(2)  # SentEval rounds before it compares; ties go to the strongest
    best = int(means.argmax())
    predicted = clone(CLASSIFIER).set_params(C=strengths[best]).fit(x, y).predict(test_x)
    return strengths[best], float(means[best]), predicted
