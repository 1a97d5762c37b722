"""Semantic textual similarity as SimCSE reports it.

The score of a set is 100 times Spearman's rank correlation between the cosine similarities of sentence pairs and human
scores. A year's subsets are concatenated first (the "all" setting), and the average is over seven sets: STS12 to STS16
and the test splits of STS-B and SICK-R. Nothing is trained.

Other numbers go by the same names: averages over a year's subsets (``subsets``), Pearson's correlation (``pearson``),
and MTEB's SICK-R over all 9927 pairs (``SICKR-all``).

SimCSE: https://arxiv.org/abs/2104.08821
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from .frameworks import framework  # isort: skip
import numpy as np
import torch
from numpy.typing import NDArray

from counterpoint.diagnose import alignment, distances, uniformity
from counterpoint.diagnose.plots import plot_distances

from .data import Pairs, load_sts
from .encode import Embeddings, Matrix, encoder
from .settings import SEVEN

BINS = 50
RELATED = 4.0  # STS-B pairs above this gold score are the positive pairs of SimCSE's alignment
COLLAPSED = 1e-6  # smaller differences between similarities are rounding errors

# the columns of SimCSE's own table
COLUMNS = {name: name for name in SEVEN} | {"STSB-test": "STSBenchmark", "SICKR-test": "SICKRelatedness"}


@dataclass
class Score:
    """Correlations times 100; None if undefined, because all similarities are equal."""

    pairs: int
    spearman: float | None
    pearson: float | None


@dataclass
class SetScore(Score):
    dropped: int
    subsets: dict[str, Score]


@dataclass
class Geometry:
    """Alignment and uniformity of embeddings (Wang and Isola 2020, https://arxiv.org/abs/2005.10242)."""

    of: str  # the set of the sentences
    alignment: float  # mean squared distance of the pairs with a gold score above 4
    uniformity: float  # log of the mean Gaussian potential of all pairs of sentences
    histogram: list[float]  # share of those pairs in each of BINS bins of the distance (1 - cos) / 2 from 0 to 1


@dataclass
class Report:
    """The result of :func:`evaluate`; ``average`` is None unless all of SimCSE's seven sets have a score."""

    sets: dict[str, SetScore]
    average: float | None
    geometry: Geometry | None
    texts: int
    seconds: dict[str, float]

    @property
    def notes(self) -> list[str]:
        """Remarks for readers of the scores."""
        sets = self.sets.items()
        dropped = [f"{name}: {s.dropped} pairs without a gold score left out" for name, s in sets if s.dropped]
        why = "undefined, as the model gives all its pairs the same similarity"
        return dropped + [f"{name}: {why}" for name, s in sets if s.spearman is None]


def evaluate(
    model: Any,
    sets: Sequence[str] = (*SEVEN, "SICKR-all"),
    data: str | Path | None = None,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 64,
    progress: bool = True,
    plot: str | Path | None = None,
) -> Report:
    """Score a model on sets of scored sentence pairs. Each distinct text of all sets is embedded once.

    Args:
        model: a name or folder, a SentenceTransformer, or a function from a list of texts to a matrix; see
            :func:`counterpoint.integrations.sentence.encode.encoder`.
        sets: names from :data:`counterpoint.integrations.sentence.settings.STS`.
        data: their folder, see :func:`counterpoint.integrations.sentence.data.root`.
        pooling, device: for a model that is named.
        batch_size: texts embedded at a time.
        plot: file for a histogram of the distances between the sentences of the STS-B set.
    """
    start = perf_counter()
    loaded = [load_sts(name, data) for name in dict.fromkeys(sets)]
    read = perf_counter()
    encode = encoder(model, pooling, device=device)
    ready = perf_counter()
    sentences = (t for pairs in loaded for t in (*pairs.first, *pairs.second))
    embeddings = Embeddings(encode, sentences, batch_size, progress)
    scores = {pairs.name: score(pairs, embeddings) for pairs in loaded}
    seven = [scores[name].spearman for name in SEVEN if name in scores]
    known = [s for s in seven if s is not None]
    stsb = next((pairs for pairs in loaded if pairs.name.startswith("STSB")), None)
    stsb_geometry = None if stsb is None else geometry(stsb, embeddings)
    if plot is not None:
        if stsb is None:
            raise ValueError("plot: needs an STS-B set among the sets.")
        from ..report.plots import save

        save(plot_distances(torch.from_numpy(embeddings[texts(stsb)])), plot)
    seconds = {"read data": read - start, "load model": ready - read, "encode": embeddings.seconds}
    seconds["total"] = perf_counter() - start
    average = sum(known) / len(SEVEN) if len(known) == len(SEVEN) else None
    return Report(scores, average, stsb_geometry, len(embeddings), seconds)


def score(pairs: Pairs, embeddings: Embeddings) -> SetScore:
    """Compute the correlations of a set and of its subsets."""
    similar, gold = cosine(embeddings[pairs.first], embeddings[pairs.second]), np.asarray(pairs.gold)
    subset = np.asarray(pairs.subset)
    parts = {name: subset == name for name in dict.fromkeys(pairs.subset)}
    subsets = {name: _score(similar[part], gold[part]) for name, part in parts.items() if part.sum() > 1}
    return SetScore(**asdict(_score(similar, gold)), dropped=pairs.dropped, subsets=subsets)


def _score(similar: NDArray[np.float64], gold: NDArray[np.float64]) -> Score:
    if np.ptp(similar) < COLLAPSED or np.ptp(gold) == 0:
        return Score(len(gold), None, None)
    stats = framework("scipy.stats")
    return Score(len(gold), *(100 * float(f(similar, gold).statistic) for f in (stats.spearmanr, stats.pearsonr)))


def cosine(first: Matrix, second: Matrix) -> NDArray[np.float64]:
    """The cosine of each row with its counterpart, in double precision; 0 where a row is zero, as in SentEval."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    length = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(1) / np.where(length > 0, length, 1.0)  # type: ignore[no-any-return]


def geometry(pairs: Pairs, embeddings: Embeddings) -> Geometry | None:
    """Alignment, uniformity and distances; None if the set has no clearly related pairs."""
    if not (related := [i for i, gold in enumerate(pairs.gold) if gold > RELATED]):
        return None
    x, y = (torch.from_numpy(embeddings[[side[i] for i in related]]) for side in (pairs.first, pairs.second))
    z = torch.from_numpy(embeddings[texts(pairs)])
    apart = distances(z)
    histogram = torch.histc(apart, BINS, 0, 1) / len(apart)
    return Geometry(pairs.name, alignment(x, y), uniformity(z), histogram.tolist())


def texts(pairs: Pairs) -> list[str]:
    """The distinct sentences of a set."""
    return list(dict.fromkeys([*pairs.first, *pairs.second]))


# ---- for people ----------------------------------------------------------------------------------


def text(report: Report, subsets: bool = False) -> str:
    """SimCSE's table, and below it the other sets, the subsets and the notes."""
    names = [COLUMNS[name] for name in SEVEN] + ["Avg."]
    scores = [s.spearman if (s := report.sets.get(name)) else math.nan for name in SEVEN]
    scores.append(report.average if all(name in report.sets for name in SEVEN) else math.nan)
    parts = [grid([names, [number(value) for value in scores]])] if set(SEVEN) & set(report.sets) else []
    others = [[name, number(s.spearman)] for name, s in report.sets.items() if name not in SEVEN]
    if others:
        parts.append(grid([list(column) for column in zip(*others, strict=True)]))
    if subsets:
        rows = [["set", "subset", "pairs", "Spearman", "Pearson"]]
        for name, s in report.sets.items():
            parts_of_set: dict[str, Score] = {"all": s} | (s.subsets if len(s.subsets) > 1 else {})
            for part, v in parts_of_set.items():
                rows.append([name, part, str(v.pairs), number(v.spearman), number(v.pearson)])
        parts.append(grid(rows))
    if g := report.geometry:
        parts.append(f"{g.of}: alignment {g.alignment:.3f}, uniformity {g.uniformity:.3f} (both: lower is better)")
    share, total = report.seconds["encode"] / report.seconds["total"], report.seconds["total"]
    parts.append(f"{report.texts} distinct texts, each embedded once: {100 * share:.0f}% of {total:.0f} s")
    return "\n".join([*parts, *report.notes])


def number(value: float | None) -> str:
    """Format a score: two decimals, ``undef.`` for None, a dash for NaN, which marks a score that was not computed."""
    return "undef." if value is None else "-" if math.isnan(value) else f"{value:.2f}"


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Draw a table with a header row and centered cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    inside = ["|".join(c.center(w + 2) for c, w in zip(row, widths, strict=True)) for row in rows]
    header, *body = [f"|{line}|" for line in inside]
    return "\n".join([rule, header, rule, *body, rule])
