"""Semantic textual similarity as SimCSE reports it.

The score of a set is 100 times Spearman's rank correlation between the cosine similarities of sentence pairs and human
scores. A year's subsets are concatenated first (the "all" setting), and the average is over seven sets: STS12 to STS16
and the test splits of STS-B and SICK-R. Nothing is trained.

Other numbers go by the same names: averages over a year's subsets, Pearson's correlation (``pearson``), and MTEB's
SICK-R over all 9927 pairs (``SICKR-all``).

Sets are read from a folder, ``COUNTERPOINT_DATA`` by default: ``sts/STS12.tsv`` and so on, tab-separated with a header
(subset, score, sentence1, sentence2), or the files that SentEval's scripts leave. Without a folder they are downloaded
from the hub, in pinned revisions of MTEB's copies. These have no subsets of a year and no splits of SICK: there is no
SICKR-test, hence no average of seven.

SimCSE: https://arxiv.org/abs/2104.08821
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from datasets import load_dataset
from scipy.stats import pearsonr, spearmanr
from torch.nn.functional import cosine_similarity

from counterpoint.diagnose import alignment, uniformity

from ..domain import check_choice
from .encode import Embeddings, Model, embed, rows
from .files import NUMBER, find, lines, root, table
from .settings import SEVEN, STS

# the names of SentEval's files; STS13's fourth subset, SMT, has a license that does not allow mirrors
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
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
RELATED = 4.0  # STS-B pairs above this gold score are the positive pairs of SimCSE's alignment
COLLAPSED = 1e-6  # smaller differences between similarities are rounding errors


@dataclass
class Pairs:
    """Sentence pairs with human similarity scores, ``gold``; ``dropped`` counts those without one."""

    name: str
    gold: list[float]
    first: list[str]
    second: list[str]
    dropped: int = 0

    @property
    def texts(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys([*self.first, *self.second]))


def load(name: str, data: str | Path | None = None) -> Pairs:
    """Load a set of scored pairs. Those without a gold score are dropped and counted, as in the official evaluation.

    Args:
        name: one of :data:`~.settings.STS`. ``STS12`` to ``STS16`` (all subsets of the year), ``STSB-test`` and
            ``SICKR-test`` are SimCSE's seven; ``SICKR-all`` is MTEB's SICK-R, train, trial and test together.
        data: the folder of the sets, or ``hub``; by default ``COUNTERPOINT_DATA``, else the hub.
    """
    check_choice("STS set", name, STS)
    folder, pairs = root(data), Pairs(name, [], [], [])
    for place, gold, first, second in _hub_rows(name) if folder is None else _folder_rows(name, folder):
        if not gold.strip():
            pairs.dropped += 1
            continue
        if not NUMBER.fullmatch(gold):
            raise ValueError(f"{place}: expected a number as gold score, got {gold!r}.")
        pairs.gold.append(float(gold))
        pairs.first.append(first)
        pairs.second.append(second)
    if (count := len(pairs.gold)) < 2:
        raise ValueError(f"{name}: {count} pairs with a gold score, and {pairs.dropped} without; expected 2 or more.")
    return pairs


Row = tuple[str, str, str, str]  # place, gold, first, second


def _folder_rows(name: str, folder: Path) -> Iterator[Row]:
    kind, _, split = name.partition("-")
    if name == "SICKR-all":
        for part in SICK:
            yield from _folder_rows(f"SICKR-{part}", folder)
    elif path := find(folder, f"{name}.tsv"):
        _, header = next(table(path, 2), ("", ["", ""]))
        if NUMBER.fullmatch(header[1]):  # it would be skipped
            raise ValueError(f"{path}: line 1 is a pair, expected the header: subset, score, sentence1, sentence2.")
        for place, (_, gold, first, second, *_) in table(path, 4, header=slice(1, 2)):
            yield place, gold, first, second
    elif kind in SUBSETS and (path := find(folder, f"STS/{kind}-en-test")):
        for subset in SUBSETS[kind]:
            texts, gold_path = path / f"STS.input.{subset}.txt", path / f"STS.gs.{subset}.txt"
            rows, scores = list(table(texts, 2)), lines(gold_path)
            if len(rows) != len(scores):
                raise ValueError(f"{gold_path}: {len(scores)} scores for the {len(rows)} pairs of {texts.name}.")
            for (place, (first, second, *_)), gold in zip(rows, scores, strict=True):
                yield place, gold, first, second
    elif kind == "STSB" and (path := find(folder, f"STS/STSBenchmark/sts-{split}.csv")):
        for place, (_, _, _, _, gold, first, second, *_) in table(path, 7):
            yield place, gold, first, second
    elif kind == "SICKR" and (path := find(folder, f"SICK/{SICK[split]}")):
        for place, (_, first, second, gold, *_) in table(path, 4, header=slice(3, 4)):
            yield place, gold, first, second
    else:
        neither = f"neither {name}.tsv nor SentEval's files are in {folder}, sts/ or downstream/"
        raise FileNotFoundError(f"{name}: {neither}.")


def _hub_rows(name: str) -> Iterator[Row]:
    if name not in HUB:
        raise ValueError(f"{name}: the hub's SICK has no splits; use SICKR-all, or --root with SentEval's files.")
    path, revision, split = HUB[name]
    for i, row in enumerate(load_dataset(path, revision=revision, split=split)):
        yield f"{path}: row {i}", str(row["score"]), row["sentence1"], row["sentence2"]


@dataclass
class Score:
    """Correlations times 100; NaN if undefined, because all similarities are equal. ``items`` are those of pairs."""

    pairs: int
    dropped: int  # pairs without a gold score
    spearman: float
    pearson: float
    items: list[dict[str, float]] = field(default_factory=list, repr=False)


@dataclass
class Geometry:
    """Alignment and uniformity of embeddings (Wang and Isola 2020, https://arxiv.org/abs/2005.10242)."""

    of: str  # the set of the sentences
    alignment: float  # of the pairs with a gold score above 4
    uniformity: float


@dataclass
class Report:
    """The result of :func:`evaluate`; ``average`` is that of SimCSE's seven sets, None unless all are among them."""

    sets: dict[str, Score]
    average: float | None
    geometry: Geometry | None
    texts: int


def evaluate(
    model: Model,
    sets: Sequence[str] = (*SEVEN, "SICKR-all"),
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on sets of scored sentence pairs, which :func:`load` finds in ``data``.

    For the other arguments see :func:`counterpoint.integrations.sentence.encode.embed`.
    """
    loaded = [load(name, data) for name in dict.fromkeys(sets)]
    embeddings = embed(model, (text for pairs in loaded for text in pairs.texts), batch_size, progress)
    scores = {pairs.name: score(pairs, embeddings) for pairs in loaded}
    average = sum(scores[name].spearman for name in SEVEN) / len(SEVEN) if scores.keys() >= {*SEVEN} else None
    stsb = next((pairs for pairs in loaded if pairs.name.startswith("STSB")), None)
    return Report(scores, average, None if stsb is None else geometry(stsb, embeddings), len(embeddings))


def score(pairs: Pairs, embeddings: Embeddings) -> Score:
    """Compute the correlations of a set."""
    x, y = (torch.from_numpy(rows(embeddings, texts)).double() for texts in (pairs.first, pairs.second))
    similar = cosine_similarity(x, y, eps=1e-300).numpy()  # 0 for a zero row, as in SentEval
    each = enumerate(zip(similar.tolist(), pairs.gold, strict=True))
    items = [{"item": i, "similarity": similarity, "gold": gold} for i, (similarity, gold) in each]
    one = Score(len(pairs.gold), pairs.dropped, math.nan, math.nan, items)
    if np.ptp(similar) >= COLLAPSED and np.ptp(pairs.gold) > 0:
        one.spearman, one.pearson = (100 * float(r(similar, pairs.gold).statistic) for r in (spearmanr, pearsonr))
    return one


def geometry(pairs: Pairs, embeddings: Embeddings) -> Geometry | None:
    """Compute alignment and uniformity; None if the set has no clearly related pairs."""
    if not (related := [i for i, gold in enumerate(pairs.gold) if gold > RELATED]):
        return None
    sides = ([side[i] for i in related] for side in (pairs.first, pairs.second))
    x, y, z = (torch.from_numpy(rows(embeddings, texts)) for texts in (*sides, pairs.texts))
    return Geometry(pairs.name, alignment(x, y), uniformity(z))
