"""The data of a run, and the benchmarks: scored sentence pairs and labeled texts.

Benchmarks are read from a folder, by default ``COUNTERPOINT_DATA``, in one of two forms:

* ``sts/STS12.tsv``, ``transfer/MR.tsv`` and so on: tab-separated, a header row in ``sts`` (subset, score, sentence1,
  sentence2), none in ``transfer`` (label, text; for MRPC label, sentence1, sentence2);
* a SentEval folder as its scripts leave it, ``STS/STS12-en-test/STS.input.MSRpar.txt`` and so on.

Without a folder they are downloaded from the Hugging Face hub, in pinned revisions of MTEB's copies. These have no
subsets of a year, and SICK's 9927 pairs without its splits: there is no SICKR-test, hence no average of seven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import store
from ..domain import check_choice
from . import corpus
from .frameworks import framework
from .settings import ENVIRONMENT, STS, TRANSFER
from .text_files import lines, root, table

_SICK = ("SICKR-train", "SICKR-trial", "SICKR-test")
# the names of SentEval's files; STS13's fourth subset, SMT, has a license that does not allow mirrors
_SENTEVAL_SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
_SENTEVAL_SICK = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SENTEVAL_BINARY = {
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
_HUB_STS = {  # set: (repository, revision, split)
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", "test"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", "test"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", "test"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
    "STSB-train": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "train"),
    "STSB-dev": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "validation"),
    "STSB-test": ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "test"),
    "SICKR-all": ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", "test"),
}


@dataclass
class Pairs:
    """Sentence pairs with human similarity scores, ``gold``."""

    name: str
    subset: list[str] = field(default_factory=list)
    gold: list[float] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.gold)


@dataclass
class Texts:
    """Labeled texts, or labeled pairs of texts if ``second`` is not empty."""

    labels: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


# ---- the folder of the data ---------------------------------------------------------------------------


def _find(folder: Path, *paths: str) -> Path | None:
    """The first of ``paths`` that exists, in the folder itself or where SentEval and this library put such files."""
    places = ("", "sts", "transfer", "downstream", "data/downstream", "SentEval/data/downstream")
    return next((file for place in places for path in paths if (file := folder / place / path).exists()), None)


# ---- scored pairs --------------------------------------------------------------------------------

_Row = tuple[str, str, str, str, str]  # place, subset, gold, first, second


def load_sts(name: str, data: str | Path | None = None) -> Pairs:
    """Load a set of scored pairs. Those without a gold score are dropped and counted, as in the official evaluation.

    Args:
        name: one of :data:`~.settings.STS`. ``STS12`` to ``STS16`` (all subsets of the year), ``STSB-test`` and
            ``SICKR-test`` are SimCSE's seven; ``SICKR-all`` is MTEB's SICK-R, train, trial and test together.
        data: see :func:`root`.
    """
    check_choice("STS set", name, STS)
    if (folder := root(data)) is None:
        return _scored(name, _hub_rows(name))
    parts = _SICK if name == "SICKR-all" else (name,)
    return _scored(name, (row for part in parts for row in _folder_rows(part, folder)))


def _scored(name: str, rows: Iterable[_Row]) -> Pairs:
    pairs = Pairs(name)
    for place, subset, gold, first, second in rows:
        if not gold.strip():
            pairs.dropped += 1
            continue
        if not _is_number(gold):
            raise ValueError(f"{place}: expected a number as gold score, got {gold!r}.")
        pairs.subset.append(subset)
        pairs.gold.append(float(gold))
        pairs.first.append(first)
        pairs.second.append(second)
    if len(pairs) < 2:
        without = f"{pairs.dropped} without"
        raise ValueError(f"{name}: {len(pairs)} pairs with a gold score, and {without}; expected 2 or more.")
    return pairs


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _folder_rows(name: str, folder: Path) -> Iterator[_Row]:
    set_, _, split = name.partition("-")
    if path := _find(folder, f"{name}.tsv"):
        first = next((cells for _, cells in table(path, 2)), ["", ""])
        if _is_number(first[1]):  # it would be skipped
            raise ValueError(f"{path}: line 1 is a pair, expected the header: subset, score, sentence1, sentence2.")
        for place, cells in table(path, 4, header=True):
            yield place, cells[0], cells[1], cells[2], cells[3]
    elif set_ in _SENTEVAL_SUBSETS and (path := _find(folder, f"STS/{set_}-en-test")):
        yield from _senteval_year(set_, path)
    elif set_ == "STSB" and (path := _find(folder, f"STS/STSBenchmark/sts-{split}.csv")):
        for place, cells in table(path, 7):
            yield place, f"{cells[1]}-{cells[2]}", cells[4], cells[5], cells[6]
    elif set_ == "SICKR" and (path := _find(folder, f"SICK/{_SENTEVAL_SICK[split]}")):
        for place, cells in table(path, 4, header=True):
            yield place, split, cells[3], cells[1], cells[2]
    else:
        searched = f"{folder}, sts/ or downstream/"
        raise FileNotFoundError(f"{name}: neither {name}.tsv nor SentEval's files are in {searched}.")


def _senteval_year(name: str, folder: Path) -> Iterator[_Row]:
    for subset in _SENTEVAL_SUBSETS[name]:
        texts, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        pairs, scores = list(table(texts, 2)), lines(gold)
        if len(pairs) != len(scores):
            raise ValueError(f"{gold}: {len(scores)} scores for the {len(pairs)} pairs of {texts.name}.")
        for (place, cells), score in zip(pairs, scores, strict=True):
            yield place, subset.removeprefix("surprise."), score, cells[0], cells[1]


def _hub_rows(name: str) -> Iterator[_Row]:
    if name not in _HUB_STS:
        raise ValueError(
            f"{name}: the hub's copy of SICK has no splits; use SICKR-all, or --root with SentEval's files."
        )
    path, revision, split = _HUB_STS[name]
    for i, row in enumerate(framework("datasets").load_dataset(path, revision=revision, split=split)):
        yield f"{path}: row {i}", split, str(row["score"]), row["sentence1"], row["sentence2"]


# ---- labeled texts ------------------------------------------------------------------------------


def load_transfer(name: str, data: str | Path | None = None) -> dict[str, Texts]:
    """Load a task: its ``train`` and ``test`` texts, or ``all`` of them if it has no official split.

    Empty lines of CR and MPQA count as texts, and are read as a full stop, as in SentEval's examples. For the folder
    ``data`` see :func:`root`; the hub has no copy of these sets that could be pinned.
    """
    check_choice("transfer task", name, TRANSFER)
    if (folder := root(data)) is None:
        raise ValueError(f"{name}: give its folder with --root, or in {ENVIRONMENT}; the hub does not have it.")
    splits = ("train", "test") if name in ("TREC", "MRPC") else ("all",)
    return {split: _labeled(name, split, folder) for split in splits}


def _labeled(name: str, split: str, folder: Path) -> Texts:
    columns = 3 if name == "MRPC" else 2
    if path := _find(folder, f"{name}.tsv" if split == "all" else f"{name}-{split}.tsv"):
        rows = [cells for _, cells in table(path, columns, more=False)]
    else:
        found = _senteval(name, split, folder)
        rows = [[label, *(" ".join(text.split()) for text in texts)] for label, *texts in found]
    if len({row[0] for row in rows}) < 2:
        raise ValueError(f"{name}: expected texts of at least 2 classes, got {len(rows)} texts.")
    texts = [[text or "." for text in column] for column in zip(*rows, strict=False)]
    return Texts(texts[0], texts[1], texts[2] if columns == 3 else [])


def _senteval(name: str, split: str, folder: Path) -> Iterator[list[str]]:
    if name in _SENTEVAL_BINARY:
        for label, file in zip("10", _SENTEVAL_BINARY[name], strict=True):
            for line in lines(_needed(name, folder, file), "latin-1"):
                yield [label, line]
    elif name == "TREC":
        path = _needed(name, folder, f"TREC/{'train_5500' if split == 'train' else 'TREC_10'}.label")
        for line in lines(path, "latin-1"):
            fine, _, text = line.partition(" ")
            yield [fine.partition(":")[0], text]
    else:
        for _, cells in table(_needed(name, folder, f"MRPC/msr_paraphrase_{split}.txt"), 5, header=True):
            yield [cells[0], cells[3], cells[4]]


def _needed(name: str, folder: Path, file: str) -> Path:
    if (path := _find(folder, file)) is None:
        searched = f"{folder}, transfer/ or downstream/"
        raise FileNotFoundError(f"{name}: neither {name}*.tsv nor SentEval's {file} is in {searched}.")
    return path


# ---- the data of a run ---------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A cell's training samples, the number of rows dropped as blank, and a checksum."""

    samples: Any
    dropped: int
    checksum: str


def load_samples(arguments: Mapping[str, Any]) -> tuple[Any, int]:
    """Load and check the training samples of a cell; returns them and the number of rows dropped as blank."""
    samples, dropped = corpus.load(arguments["file"], arguments["positives"], arguments["columns"])
    if len(samples) < arguments["batch"]:
        raise ValueError(
            f"batch: {arguments['batch']} samples, but {arguments['file']} has only {len(samples)}; "
            f"give --batch {len(samples)} or less."
        )
    return samples, dropped


def prepare(arguments: Mapping[str, Any]) -> Prepared:
    """Load and check the data of a cell."""
    samples, dropped = load_samples(arguments)
    path = corpus.find(arguments["file"])
    checksum = store.checksum(path if path.is_file() else samples._fingerprint)
    return Prepared(samples, dropped, checksum)
