"""Verdicts over the items of a test set: these models on new items, and training again. They need scipy.

*These models on new items*: items are drawn again with replacement, the same for all models and seeds, and what is
compared is computed again: a mean of scores, or Spearman's correlation of similarities with gold scores. Intervals are
percentiles, expanded for small numbers of items (Hesterberg, https://arxiv.org/abs/1411.5279). Beside those of means
stands the p-value of a permutation test, which exchanges two models' scores of an item at random.

*Training again*, from 3 seeds on: seeds and items are both a sample. The variance of the mean difference is the sum of
what seeds and items contribute, less what both count; Student's t has the degrees of freedom of Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..items import Items, read, relative
from ..store.run import Run
from .statistics import ALPHA, FEWEST, MANY, Kind, Verdict, _stats, _verdicts, effect_size, holm
from .summary import Report, is_check, plural, usual_margin
from .words import with_interval

DRAWS = 4000
CHUNK = 2**22  # entries of the weights computed at a time
ROUGH = 20  # items below which percentiles are rough

Models = Mapping[str, Mapping[int, Items]]  # the items of each row and seed


@dataclass(frozen=True)
class ItemReport:
    """Rows against a baseline: ``these`` models on new items, and training ``again``, empty with less than 3 seeds.

    ``permutation`` has the p-values of the permutation test.
    """

    title: str
    baseline: str
    items: int
    seeds: int
    digits: int
    values: dict[str, float]
    these: dict[str, Verdict]
    permutation: dict[str, float]
    again: dict[str, Verdict]

    def sentences(self) -> Iterator[str]:
        """Yield what the verdicts say: a sentence on these models, and one on training again."""
        values = ", ".join(f"{row} {value:.{self.digits}f}" for row, value in self.values.items())
        these = "; ".join(self._row(row, v, self.permutation.get(row)) for row, v in self.these.items())
        rough = f" ({self.items} items are few: intervals are rough)" * (self.items < ROUGH)
        yield f"{self.title}, {self.items} items{rough}: {values}. These models on new items: {these}."
        if self.again:
            again = "; ".join(self._row(row, verdict) for row, verdict in self.again.items())
            yield f"{self.title}, training again ({plural(self.seeds, 'seed')}) and new items: {again}."
        elif self.seeds > 0:
            yield f"{self.title}: whether training again gives the same, {FEWEST} seeds or more tell."

    def _row(self, row: str, verdict: Verdict, swapped: float | None = None) -> str:
        sizes = with_interval(verdict.difference, verdict.low, verdict.high, self.digits)
        text = f"{row} minus {self.baseline} {sizes} {verdict.kind}, p = {verdict.corrected:.2g}"
        text += "" if swapped is None else f" (by permutation {swapped:.2g})"
        if verdict.pairs == self.items and verdict.kind == "cannot tell":
            more = f"about {verdict.missing}" if verdict.missing < MANY else f"over {MANY}"
            text += f", {more} more items would tell"
        return text

    def plain(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {**asdict(self), "reading": [*self.sentences()]}


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
    import numpy as np

    _stats()
    scores, gold = _aligned(models)
    rows = {row: [s for s in own if s in scores[baseline]] for row, own in scores.items()}
    rows = {row: shared for row, shared in rows.items() if shared and row != baseline}
    if not rows:
        raise ValueError(f"{title}: nothing shares a seed with {baseline}.")
    count = len(next(iter(scores[baseline].values())))
    drawn = {row: dict.fromkeys(own, np.empty(0)) for row, own in scores.items()}
    rng, step = np.random.default_rng(0), max(1, CHUNK // count)
    for start in range(0, draws, step):
        some = min(step, draws - start)
        chosen = rng.integers(count, size=(some, count)) + count * np.arange(some)[:, None]
        weights = np.bincount(chosen.ravel(), minlength=some * count).reshape(some, count).astype(float)
        for row, own in scores.items():
            for seed, values in own.items():
                drawn[row][seed] = np.append(drawn[row][seed], measure(values, gold, weights))
    once = {row: {s: measure(x, gold).item() for s, x in own.items()} for row, own in scores.items()}
    gaps = {row: np.array([drawn[row][s] - drawn[baseline][s] for s in shared]) for row, shared in rows.items()}
    found = {row: np.array([once[row][s] - once[baseline][s] for s in shared]) for row, shared in rows.items()}
    means = {row: float(np.mean([*own.values()])) for row, own in once.items()}
    margin = usual_margin(max(map(abs, means.values()))) if margin is None else margin
    these = _over_items({row: (found[row].mean(), gaps[row].mean(0)) for row in rows}, count, margin)
    by_item = {row: np.mean([scores[row][s] - scores[baseline][s] for s in shared], 0) for row, shared in rows.items()}
    permutation = {row: _permutation(x, rng, draws) for row, x in by_item.items()} if gold is None else {}
    fewest = min(map(len, rows.values()))
    both = {row: _both(found[row], gaps[row], count) for row in rows} if seeds and fewest >= FEWEST else {}
    digits = 2 if max(map(abs, means.values())) >= 2 else 4
    again = _verdicts(both, margin)
    return ItemReport(title, baseline, count, fewest * seeds, digits, means, these, permutation, again)


def over_items(report: Report, source: Any, margin: float | None = None) -> Iterator[ItemReport]:
    """Compare the items that the runs of a report have written, in each of its data sets and settings."""
    for column in {(c.domain, c.dataset, c.setting): c for c in report.columns}.values():
        models = {
            row: {run.arguments["seed"]: read(_file(run, source.place), source.what) for run in cell.runs}
            for row, cell in column.cells.items()
            if not is_check(cell.runs[0])
        }
        if (baseline := column.baseline or next(iter(models))) in models and len(models) > 1:
            title = f"{column.dataset}{column.setting}, {source.name}"
            yield compare_items(title, baseline, models, margin)


def _file(run: Run, place: str) -> Path:
    folders = [run.file("out"), run.path]
    if found := [file for folder in folders for file in sorted(folder.glob(relative(place))) if file.is_file()]:
        return found[0]
    raise ValueError(f"{run.title}: no {place} in {folders[0]}; scores per item are written by the script.")


def _aligned(models: Models) -> tuple[dict[str, dict[int, Any]], Any]:
    """Return the scores of each row and seed in one order of the items, and the gold scores."""
    import numpy as np

    first_name, first = next((row, items) for row, own in models.items() for items in own.values())
    scores: dict[str, dict[int, Any]] = {}
    for row, own in models.items():
        for seed, items in own.items():
            if (items.gold is None) != (first.gold is None):
                raise ValueError(f"{row} has gold scores and {first_name} has not, or the reverse.")
            if len(items.ids) != len(first.ids) or {*items.ids} != {*first.ids}:
                odd = sorted({*items.ids} ^ {*first.ids})
                numbers = f"{row} has {len(items.ids)} and {first_name} {len(first.ids)}"
                raise ValueError(f"expected the same items of all models: {numbers}; not in both: {odd[:3]}.")
            place = {item: i for i, item in enumerate(items.ids)}
            order = [place[item] for item in first.ids]
            if items.gold is not None and not np.allclose(items.gold[order], first.gold):
                raise ValueError(f"{row} and {first_name} have other gold scores of the same items.")
            scores.setdefault(row, {})[seed] = items.scores[order]
    return scores, first.gold


def measure(scores: Any, gold: Any = None, weights: Any = None) -> Any:
    """Compute the mean of the scores, or 100 times Spearman's correlation with ``gold``, for each row of weights.

    Args:
        scores: ``(n,)``.
        gold: ``(n,)`` or None.
        weights: ``(draws, n)``, how often an item counts; by default each once.
    """
    import numpy as np

    weights = np.ones((1, len(scores))) if weights is None else weights
    if gold is None:
        return weights @ scores / weights.sum(1)
    x, y = (_midranks(values, weights) for values in (scores, gold))
    x, y = (z - (weights * z).sum(1, keepdims=True) / weights.sum(1, keepdims=True) for z in (x, y))
    size = np.sqrt((weights * x**2).sum(1) * (weights * y**2).sum(1))
    return 100 * np.divide((weights * x * y).sum(1), size, out=np.zeros_like(size), where=size > 0)


def _midranks(values: Any, weights: Any) -> Any:
    """Return the rank of each item among items that count as often as ``weights`` ``(draws, n)``; ties share one."""
    import numpy as np

    group = np.unique(values, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    sizes = np.add.reduceat(weights[:, order], np.flatnonzero(np.diff(group[order], prepend=-1)), axis=1)
    return (sizes.cumsum(1) - sizes / 2)[:, group]


def _over_items(rows: Mapping[str, tuple[float, Any]], count: int, margin: float) -> dict[str, Verdict]:
    """Return the verdicts on rows of a difference and its values on drawn items; one family, like paired seeds."""
    import numpy as np

    t, norm = _stats().t, _stats().norm
    expand = math.sqrt(count / (count - 1))
    drawn = np.sort([values for _, values in rows.values()], axis=1)
    draws = drawn.shape[1]
    tail = (1 + np.minimum((drawn <= 0).sum(1), (drawn >= 0).sum(1))) / (draws + 1)
    p = np.minimum(1, 2 * t.sf(-norm.ppf(np.minimum(tail, 0.5)) / expand, count - 1))
    corrected, outside = holm(p, np.ones_like(p, bool))
    verdicts = {}
    for i, (row, (difference, _)) in enumerate(rows.items()):
        quantile = norm.cdf(-expand * t.isf(outside[i] / 2, count - 1))
        k = max(1, math.floor(quantile * (draws + 1)))  # the order statistic that agrees with p
        low, high, sd = drawn[i, k - 1].item(), drawn[i, -k].item(), drawn[i].std().item() * math.sqrt(count)
        within = -margin <= low and high <= margin
        kind: Kind = "different" if corrected[i] <= ALPHA else "equivalent" if within else "cannot tell"
        level, detectable = 1 - float(outside[i]), sd * effect_size(count, len(rows))
        numbers = float(difference), low, high, level, float(p[i]), float(corrected[i]), margin, detectable
        verdicts[row] = Verdict(kind, *numbers, count, sd)
    return verdicts


def _permutation(gaps: Any, rng: Any, draws: int) -> float:
    """Return the p-value of the mean of ``gaps`` ``(n,)`` where the sign of each is drawn: two models exchanged."""
    sums = (2 * rng.integers(2, size=(min(draws, max(1, CHUNK // len(gaps))), len(gaps))) - 1) @ gaps
    return float((1 + (abs(sums) >= abs(gaps.sum()) * (1 - 1e-9)).sum()) / (1 + len(sums)))


def _both(found: Any, drawn: Any, count: int) -> tuple[float, float, int]:
    """Return the mean difference, a standard deviation and a number of pairs that give the test of training again.

    Args:
        found: ``(seeds,)`` differences.
        drawn: ``(seeds, draws)``, these on drawn items.
    """
    seeds = len(found)
    of_items = drawn.mean(0).var()
    of_seeds = found.var(ddof=1) / seeds
    twice = (drawn - drawn.mean(0)).var(1).sum() / (seeds - 1) / seeds  # of one seed on one item, which both count
    total = max(of_items + of_seeds - twice, of_items, of_seeds)
    freedom = total**2 / (of_seeds**2 / (seeds - 1) + of_items**2 / (count - 1)) if total else seeds - 1
    pairs = math.floor(freedom) + 1
    return float(found.mean()), math.sqrt(total * pairs), pairs
