"""The sets of STS and of SentEval's transfer tasks: scored sentence pairs and labeled texts.

They are read from a folder, by default ``COUNTERPOINT_DATA``, in one of two forms:

* ``sts/STS12.tsv``, ``transfer/MR.tsv`` and so on: tab-separated, a header row in ``sts`` (subset, score, sentence1,
  sentence2), none in ``transfer`` (label, text; for MRPC label, sentence1, sentence2);
* a SentEval folder as its scripts leave it, ``STS/STS12-en-test/STS.input.MSRpar.txt`` and so on.

Without a folder they are downloaded from the Hugging Face hub, in pinned revisions of MTEB's copies. These have no
subsets of a year, and SICK's 9927 pairs without its splits: there is no SICKR-test, hence no average of seven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..domain import check_choice
from .files import ENVIRONMENT, lines, root, table
from .settings import STS, TRANSFER

PLACES = ("", "sts", "transfer", "downstream", "data/downstream", "SentEval/data/downstream")
# the names of SentEval's files; STS13's fourth subset, SMT, has a license that does not allow mirrors
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
BINARY = {  # the files of class 1, and of class 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
STSB = ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
HUB = {  # repository, revision, split
    "STS12": ("mteb/sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", "test"),
    "STS13": ("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test"),
    "STS14": ("mteb/sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", "test"),
    "STS15": ("mteb/sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", "test"),
    "STS16": ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
    "STSB-train": (*STSB, "train"),
    "STSB-dev": (*STSB, "validation"),
    "STSB-test": (*STSB, "test"),
    "SICKR-all": ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", "test"),
}


@dataclass
class Pairs:
    """Sentence pairs with human similarity scores, ``gold``; ``dropped`` counts those without one."""

    name: str
    subset: list[str]
    gold: list[float]
    first: list[str]
    second: list[str]
    dropped: int = 0

    @property
    def texts(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys([*self.first, *self.second]))


@dataclass
class Texts:
    """Labeled texts, or labeled pairs of texts if ``second`` is not empty."""

    labels: list[str]
    first: list[str]
    second: list[str]


# ---- scored pairs --------------------------------------------------------------------------------

Row = tuple[str, str, str, str, str]  # place, subset, gold, first, second


def load_sts(name: str, data: str | Path | None = None) -> Pairs:
    """Load a set of scored pairs. Those without a gold score are dropped and counted, as in the official evaluation.

    Args:
        name: one of :data:`~.settings.STS`. ``STS12`` to ``STS16`` (all subsets of the year), ``STSB-test`` and
            ``SICKR-test`` are SimCSE's seven; ``SICKR-all`` is MTEB's SICK-R, train, trial and test together.
        data: the folder of the sets, or ``hub``; by default ``COUNTERPOINT_DATA``, else the hub.
    """
    check_choice("STS set", name, STS)
    folder = root(data)
    parts = [f"SICKR-{split}" for split in SICK] if name == "SICKR-all" else [name]
    rows = _hub_rows(name) if folder is None else (row for part in parts for row in _folder_rows(part, folder))
    return _scored(name, rows)


def _scored(name: str, rows: Iterable[Row]) -> Pairs:
    pairs = Pairs(name, [], [], [], [])
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
    if (count := len(pairs.gold)) < 2:
        raise ValueError(f"{name}: {count} pairs with a gold score, and {pairs.dropped} without; expected 2 or more.")
    return pairs


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _folder_rows(name: str, folder: Path) -> Iterator[Row]:
    kind, _, split = name.partition("-")
    if path := _find(folder, f"{name}.tsv"):
        _, header = next(table(path, 2), ("", ["", ""]))
        if _is_number(header[1]):  # it would be skipped
            raise ValueError(f"{path}: line 1 is a pair, expected the header: subset, score, sentence1, sentence2.")
        for place, (subset, gold, first, second, *_) in table(path, 4, header=True):
            yield place, subset, gold, first, second
    elif kind in SUBSETS and (path := _find(folder, f"STS/{kind}-en-test")):
        for subset in SUBSETS[kind]:
            texts, gold_path = path / f"STS.input.{subset}.txt", path / f"STS.gs.{subset}.txt"
            rows, scores = list(table(texts, 2)), lines(gold_path)
            if len(rows) != len(scores):
                raise ValueError(f"{gold_path}: {len(scores)} scores for the {len(rows)} pairs of {texts.name}.")
            for (place, (first, second, *_)), gold in zip(rows, scores, strict=True):
                yield place, subset.removeprefix("surprise."), gold, first, second
    elif kind == "STSB" and (path := _find(folder, f"STS/STSBenchmark/sts-{split}.csv")):
        for place, (_, genre, file, _, gold, first, second, *_) in table(path, 7):
            yield place, f"{genre}-{file}", gold, first, second
    elif kind == "SICKR" and (path := _find(folder, f"SICK/{SICK[split]}")):
        for place, (_, first, second, gold, *_) in table(path, 4, header=True):
            yield place, split, gold, first, second
    else:
        searched = f"{folder}, sts/ or downstream/"
        raise FileNotFoundError(f"{name}: neither {name}.tsv nor SentEval's files are in {searched}.")


def _hub_rows(name: str) -> Iterator[Row]:
    from datasets import load_dataset

    if name not in HUB:
        hint = "use SICKR-all, or --data with SentEval's files"
        raise ValueError(f"{name}: the hub's copy of SICK has no splits; {hint}.")
    path, revision, split = HUB[name]
    for i, row in enumerate(load_dataset(path, revision=revision, split=split)):
        yield f"{path}: row {i}", split, str(row["score"]), row["sentence1"], row["sentence2"]


# ---- labeled texts ------------------------------------------------------------------------------


def load_transfer(name: str, data: str | Path | None = None) -> dict[str, Texts]:
    """Load a task: its ``train`` and ``test`` texts, or ``all`` of them if it has no official split.

    Empty lines of CR and MPQA count as texts, and are read as a full stop, as in SentEval's examples. ``data`` is the
    folder of the tasks, by default ``COUNTERPOINT_DATA``; the hub has no copy of these sets that could be pinned.
    """
    check_choice("transfer task", name, TRANSFER)
    if (folder := root(data)) is None:
        raise ValueError(f"{name}: give its folder with --data, or in {ENVIRONMENT}; the hub does not have it.")
    splits = ("train", "test") if name in ("TREC", "MRPC") else ("all",)
    return {split: _labeled(name, split, folder) for split in splits}


def _labeled(name: str, split: str, folder: Path) -> Texts:
    columns = 3 if name == "MRPC" else 2
    if path := _find(folder, f"{name}.tsv" if split == "all" else f"{name}-{split}.tsv"):
        rows = [cells for _, cells in table(path, columns, more=False)]
    else:
        rows = [
            [label, *(" ".join(text.split()) for text in texts)] for label, *texts in _senteval(name, split, folder)
        ]
    if len({row[0] for row in rows}) < 2:
        raise ValueError(f"{name}: expected texts of at least 2 classes, got {len(rows)} texts.")
    labels, first, *second = ([text or "." for text in column] for column in zip(*rows, strict=True))
    return Texts(labels, first, second[0] if second else [])


def _senteval(name: str, split: str, folder: Path) -> Iterator[list[str]]:
    """Yield the label and the texts of each row of SentEval's files."""

    def path(file: str) -> Path:
        if (found := _find(folder, file)) is None:
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
        for _, (label, _, _, first, second, *_) in table(path(f"MRPC/msr_paraphrase_{split}.txt"), 5, header=True):
            yield [label, first, second]


def _find(folder: Path, path: str) -> Path | None:
    """Return the path of a file or folder, there or where SentEval and this library put such files."""
    return next((file for place in PLACES if (file := folder / place / path).exists()), None)
