"""Semantic textual similarity as SimCSE reports it.

The score of a set is 100 times Spearman's rank correlation between the cosine similarities of sentence pairs and human
scores. A year's subsets are concatenated first (the "all" setting), and the average is over seven sets: STS12 to STS16
and the test splits of STS-B and SICK-R. Nothing is trained.

Other numbers go by the same names: averages over a year's subsets (``subsets``), Pearson's correlation (``pearson``),
and MTEB's SICK-R over all 9927 pairs (``SICKR-all``).

SimCSE: https://arxiv.org/abs/2104.08821
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from counterpoint.diagnose import alignment, distances, uniformity
from counterpoint.diagnose.plots import plot_distances

from .benchmarks import Pairs, load_sts
from .encode import Embeddings, Matrix
from .settings import SEVEN
from .tables import grid, number

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
    """The score of a set, and of its subsets."""

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


def evaluate(
    model: Any,
    sets: Sequence[str] = (*SEVEN, "SICKR-all"),
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    progress: bool = False,
    plot: str | Path | None = None,
) -> Report:
    """Score a model on sets of scored sentence pairs. Each distinct text of all sets is embedded once.

    Args:
        model: a name or folder, a SentenceTransformer, or a function from a list of texts to a matrix; see
            :func:`counterpoint.integrations.sentence.encode.encoder`.
        sets: names from :data:`counterpoint.integrations.sentence.settings.STS`.
        data: their folder, see :func:`counterpoint.integrations.sentence.benchmarks.load_sts`.
        batch_size: texts embedded at a time.
        progress: whether to show it.
        plot: file for a histogram of the distances between the sentences of the STS-B set.
    """
    loaded = [load_sts(name, data) for name in dict.fromkeys(sets)]
    embeddings = Embeddings(model, (text for pairs in loaded for text in pairs.texts), batch_size, progress)
    scores = {pairs.name: score(pairs, embeddings) for pairs in loaded}
    known = [scores[name].spearman for name in SEVEN if name in scores]
    seven = [value for value in known if value is not None]
    stsb = next((pairs for pairs in loaded if pairs.name.startswith("STSB")), None)
    if plot is not None:
        if stsb is None:
            raise ValueError("plot: needs an STS-B set among the sets.")
        from ..report.plots import save

        save(plot_distances(torch.from_numpy(embeddings[stsb.texts])), plot)
    average = sum(seven) / len(SEVEN) if len(seven) == len(SEVEN) else None
    return Report(scores, average, stsb and geometry(stsb, embeddings), len(embeddings))


def score(pairs: Pairs, embeddings: Embeddings) -> SetScore:
    """Compute the correlations of a set and of its subsets."""
    similar, gold = cosine(embeddings[pairs.first], embeddings[pairs.second]), np.asarray(pairs.gold)
    subset = np.asarray(pairs.subset)
    parts = {name: subset == name for name in dict.fromkeys(pairs.subset)}
    subsets = {name: Score(*_correlations(similar[p], gold[p])) for name, p in parts.items() if p.sum() > 1}
    return SetScore(*_correlations(similar, gold), pairs.dropped, subsets)


def _correlations(similar: NDArray[np.float64], gold: NDArray[np.float64]) -> tuple[int, float | None, float | None]:
    """Return the number of pairs, Spearman's and Pearson's correlation."""
    if np.ptp(similar) < COLLAPSED or np.ptp(gold) == 0:
        return len(gold), None, None
    return len(gold), 100 * float(spearmanr(similar, gold).statistic), 100 * float(pearsonr(similar, gold).statistic)


def cosine(first: Matrix, second: Matrix) -> NDArray[np.float64]:
    """Return the cosine of each row with its counterpart, in double precision; of a zero row 0, as in SentEval."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    length = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(1) / np.where(length > 0, length, 1.0)  # type: ignore[no-any-return]


def geometry(pairs: Pairs, embeddings: Embeddings) -> Geometry | None:
    """Compute alignment, uniformity and distances; None if the set has no clearly related pairs."""
    if not (related := [i for i, gold in enumerate(pairs.gold) if gold > RELATED]):
        return None
    x, y = (torch.from_numpy(embeddings[[side[i] for i in related]]) for side in (pairs.first, pairs.second))
    z = torch.from_numpy(embeddings[pairs.texts])
    apart = distances(z)
    histogram = torch.histc(apart, BINS, 0, 1) / len(apart)
    return Geometry(pairs.name, alignment(x, y), uniformity(z), histogram.tolist())


def text(report: Report, subsets: bool = False) -> str:
    """Return SimCSE's table, and below it the other sets, the subsets and remarks on the scores."""
    scores = {name: one.spearman for name, one in report.sets.items()}
    parts = []
    if scores.keys() & set(SEVEN):
        average = report.average if scores.keys() >= set(SEVEN) else math.nan
        row = [*(scores.get(name, math.nan) for name in SEVEN), average]
        parts.append(grid([*COLUMNS.values(), "Avg."], [[number(value) for value in row]]))
    if others := {name: number(value) for name, value in scores.items() if name not in SEVEN}:
        parts.append(grid(others, [list(others.values())]))
    if subsets:
        rows = []
        for name, one in report.sets.items():
            parts_of_set: dict[str, Score] = {"all": one} | (one.subsets if len(one.subsets) > 1 else {})
            for part, s in parts_of_set.items():
                rows.append([name, part, str(s.pairs), number(s.spearman), number(s.pearson)])
        parts.append(grid(["set", "subset", "pairs", "Spearman", "Pearson"], rows))
    if g := report.geometry:
        parts.append(f"{g.of}: alignment {g.alignment:.3f}, uniformity {g.uniformity:.3f} (both: lower is better)")
    parts.append(f"{report.texts} distinct texts, each embedded once")
    parts += [
        f"{name}: {s.dropped} pairs without a gold score left out" for name, s in report.sets.items() if s.dropped
    ]
    why = "undefined, as the model gives all its pairs the same similarity"
    parts += [f"{name}: {why}" for name, value in scores.items() if value is None]
    return "\n".join(parts)
