"""Verdicts over the items of a test set: these models on new items, and training again. They need scipy.

*These models on new items*: means of scores are compared by the paired t-test, beside which stands the p-value of a
permutation test, which exchanges two models' scores of an item at random. For Spearman's correlation, items are drawn
again with replacement, the same for all models; Student's t has the standard error of these draws.

*Training again*, from 3 seeds on: seeds and items are both a sample. The variance of the mean difference is the sum of
what seeds and items contribute, less what both count; Student's t has the degrees of freedom of Satterthwaite.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..items import Items, Source, read, relative
from ..store.files import finite
from ..store.run import Run
from .statistics import FEWEST, MANY, Verdict, _verdicts
from .summary import Report, digits, is_check, plural, usual_margin
from .words import with_interval

Floats = NDArray[np.float64]
Models = Mapping[str, Mapping[int, Items]]  # the items of each row and seed

DRAWS = 4000
CHUNK = 2**22  # entries of the weights computed at a time


@dataclass(frozen=True)
class ItemReport:
    """Rows against a baseline: ``these`` models on new items, and training ``again``, empty with less than 3 seeds.

    ``permutation`` has the p-values of the permutation test, of means.
    """

    title: str
    baseline: str
    items: int
    seeds: int
    values: dict[str, float]
    these: dict[str, Verdict]
    permutation: dict[str, float]
    again: dict[str, Verdict]

    def sentences(self) -> Iterator[str]:
        """Yield a sentence on these models, and one on training again."""
        values = ", ".join(f"{row} {value:.{digits(self.values.values())}f}" for row, value in self.values.items())
        these = "; ".join(self._row(row, verdict) for row, verdict in self.these.items())
        yield f"{self.title}, {self.items} items: {values}. These models on new items: {these}."
        if self.again:
            again = "; ".join(self._row(row, verdict, again=True) for row, verdict in self.again.items())
            yield f"{self.title}, training again ({plural(self.seeds, 'seed')}) and new items: {again}."
        elif self.seeds:
            yield f"{self.title}: whether training again gives the same, {FEWEST} seeds or more tell."

    def _row(self, row: str, verdict: Verdict, again: bool = False) -> str:
        if verdict.difference == verdict.sd == 0:
            return f"{row} has the scores of {self.baseline} on every item, which says nothing of the training"
        sizes = with_interval(verdict.difference, verdict.low, verdict.high, digits(self.values.values()))
        if not verdict.tested:
            return f"{row} minus {self.baseline} {sizes}, {FEWEST} items or more tell"
        text = f"{row} minus {self.baseline} {sizes} {verdict.word}, p = {verdict.corrected:.2g}"
        if (p := self.permutation.get(row)) is not None and not again:
            text += f" (by permutation {p:.2g}{', not corrected' * (len(self.permutation) > 1)})"
        if verdict.kind == "cannot tell" and not again:
            missing = f"about {verdict.missing}" if verdict.missing < MANY else f"over {MANY}"
            text += f", {missing} more items would tell"
        return text

    def plain(self) -> dict[str, object]:
        """Return the report as plain JSON."""
        return finite({**asdict(self), "reading": [*self.sentences()]})  # type: ignore[no-any-return]


def compare_items(
    title: str, baseline: str, models: Models, margin: float | None = None, *, seeds: bool = True, draws: int = DRAWS
) -> ItemReport:
    """Compare the items of each row with those of the baseline, over the seeds that both have.

    Args:
        title: data set and measure, for sentences.
        baseline: a row of ``models``.
        models: the items of each row and seed; all must have the same items, in any order.
        margin: differences within it are of no interest; by default half a point of a hundred.
        seeds: False where models are given rather than trained, so that nothing is said about training again.
        draws: how often items are drawn.

    >>> import numpy as np
    >>> from counterpoint.integrations.items import Items
    >>> ids, score = tuple(map(str, range(100))), np.random.default_rng(0).normal(size=100)
    >>> models = {"a": {0: Items(ids, score)}, "b": {0: Items(ids, score + 0.5 + 0.1 * score[::-1])}}
    >>> compare_items("test", "a", models, seeds=False).these["b"].kind
    'different'
    """
    scores, gold = _aligned(models)
    rows = {row: [s for s in own if s in scores[baseline]] for row, own in scores.items() if row != baseline}
    if not all(rows.values()):
        raise ValueError(f"{title}: expected a seed of {baseline} in every row.")
    count, rng = len(next(iter(scores[baseline].values()))), np.random.default_rng(0)
    parts: dict[tuple[str, int], list[Floats]] = {(row, seed): [] for row, own in scores.items() for seed in own}
    step = max(1, CHUNK // count)
    for start in range(0, draws, step):
        some = min(step, draws - start)
        chosen = rng.integers(count, size=(some, count)) + count * np.arange(some)[:, None]
        weights = np.bincount(chosen.ravel(), minlength=some * count).reshape(some, count).astype(float)
        for (row, seed), part in parts.items():
            part.append(measure(scores[row][seed], gold, weights))
    drawn = {key: np.concatenate(part) for key, part in parts.items()}
    once = {(row, seed): measure(scores[row][seed], gold).item() for row, seed in parts}
    values = {row: float(np.mean([once[row, seed] for seed in own])) for row, own in scores.items()}
    margin = usual_margin(max(map(abs, values.values()))) if margin is None else margin
    these, again, permutation = {}, {}, {}
    for row, own in rows.items():
        found = np.array([once[row, seed] - once[baseline, seed] for seed in own])
        gaps = np.array([drawn[row, seed] - drawn[baseline, seed] for seed in own])
        # a draw has 1/n less variance than new items have
        spread = float(gaps.mean(0).std()) * count / math.sqrt(count - 1)
        if seeds and len(own) >= FEWEST:
            again[row] = _both(found, gaps, count)
        if gold is None:
            gap = np.mean([scores[row][seed] - scores[baseline][seed] for seed in own], 0)
            signs = 2 * rng.integers(2, size=(min(draws, step), count)) - 1
            permutation[row] = float((1 + (abs(signs @ gap) >= abs(gap.sum()) * (1 - 1e-9)).sum()) / (1 + len(signs)))
            spread = float(gap.std(ddof=1))  # which the draws of a mean approach
        these[row] = float(found.mean()), spread, count
    shown = min(map(len, rows.values())) * seeds
    verdicts = _verdicts(these, margin), permutation, _verdicts(again, margin)
    return ItemReport(title, baseline, count, shown, values, *verdicts)


def over_items(
    report: Report, source: Source, margin: float | None = None, dataset: str | None = None
) -> Iterator[ItemReport]:
    """Compare the items that the runs of a report have written, in each of its settings and data sets, or in one."""
    own = [column for column in report.columns if dataset in (None, column.dataset)]
    for column in {(c.domain, c.dataset, c.setting): c for c in own}.values():
        models = {
            row: {run.arguments["seed"]: read(_file(run, source.place), source.what) for run in cell.runs}
            for row, cell in column.cells.items()
            if not is_check(cell.runs[0])
        }
        if (baseline := column.baseline or next(iter(models))) in models and len(models) > 1:
            yield compare_items(f"{column.dataset}{column.setting}, {source.name}", baseline, models, margin)


def _file(run: Run, place: str) -> Path:
    folders = [run.file("out"), run.path]
    if found := [file for folder in folders for file in sorted(folder.glob(relative(place))) if file.is_file()]:
        return found[0]
    raise ValueError(f"{run.title}: no {place} in {folders[0]}, which is {{out}} in the script's arguments.")


def _aligned(models: Models) -> tuple[dict[str, dict[int, Floats]], Floats | None]:
    """Return the scores of each row and seed in one order of the items, and the gold scores."""
    name, first = next((row, items) for row, own in models.items() for items in own.values())
    scores: dict[str, dict[int, Floats]] = {}
    for row, own in models.items():
        for seed, items in own.items():
            if odd := sorted({*items.ids} ^ {*first.ids}):
                sizes = f"{row} has {len(items.ids)} and {name} {len(first.ids)}"
                raise ValueError(f"expected the same items of all models: {sizes}; not in both: {', '.join(odd[:3])}.")
            order = [*map({item: i for i, item in enumerate(items.ids)}.__getitem__, first.ids)]
            gold, other = (x if x is None else x[o] for x, o in ((items.gold, order), (first.gold, slice(None))))
            if not (gold is other if gold is None or other is None else np.allclose(gold, other)):
                raise ValueError(f"{row} and {name} have other gold scores of the same items.")
            scores.setdefault(row, {})[seed] = items.scores[order]
    return scores, first.gold


def measure(scores: Floats, gold: Floats | None = None, weights: Floats | None = None) -> Floats:
    """Compute the mean of the scores, or 100 times Spearman's correlation with ``gold``, for each row of weights.

    Scores and ``gold`` are ``(n,)``; ``weights`` ``(draws, n)`` are how often an item counts, by default each once.
    """
    weights = np.ones((1, len(scores))) if weights is None else weights
    if gold is None:
        return weights @ scores / weights.sum(1)  # type: ignore[no-any-return]
    x, y = (_midranks(values, weights) for values in (scores, gold))
    x, y = (z - (weights * z).sum(1, keepdims=True) / weights.sum(1, keepdims=True) for z in (x, y))
    size = np.sqrt((weights * x**2).sum(1) * (weights * y**2).sum(1))
    correlations: Floats = np.divide((weights * x * y).sum(1), size, out=np.zeros_like(size), where=size > 0)
    return 100 * correlations


def _midranks(values: Floats, weights: Floats) -> Floats:
    """Return the rank of each item among items that count as often as ``weights`` ``(draws, n)``; ties share one."""
    group = np.unique(values, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    sizes = np.add.reduceat(weights[:, order], np.flatnonzero(np.diff(group[order], prepend=-1)), axis=1)
    return (sizes.cumsum(1) - sizes / 2)[:, group]


def _both(found: Floats, drawn: Floats, count: int) -> tuple[float, float, int]:
    """Return the mean difference, a standard deviation and a number of pairs that give the test of training again.

    ``found`` ``(seeds,)`` are differences, and ``drawn`` ``(seeds, draws)`` these on drawn items.
    """
    seeds = len(found)
    of_items, of_seeds = drawn.mean(0).var(), found.var(ddof=1) / seeds
    twice = (drawn - drawn.mean(0)).var(1).sum() / (seeds - 1) / seeds  # of one seed on one item
    total = max(of_items + of_seeds - twice, of_items, of_seeds)
    freedom = total**2 / (of_seeds**2 / (seeds - 1) + of_items**2 / (count - 1)) if total else seeds - 1
    pairs = max(seeds, math.floor(freedom) + 1)  # less what both count, freedom may end below that of the seeds
    return float(found.mean()), math.sqrt(total * pairs), pairs
