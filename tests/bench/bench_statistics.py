"""How often the verdicts of a report err, what they find, and how often their intervals cover: simulated.

    python -m tests.bench.bench_statistics  # 2, 5 and 10 rows, 3 to 20 seeds, five kinds of noise
    python -m tests.bench.bench_statistics --repetitions 400000 --seed 1

A repetition is a table of rows and a baseline, whose noise all differences share; units are standard deviations of a
difference. ``counterpoint.integrations.report.statistics.judge`` judges it, as it judges every report. The columns:

- error: tables without any difference in which a row is called different; at most 5 % is promised;
- error beside others: the same where half of the rows differ by 50, which Holm's later steps make harder;
- power 2, power 4: rows that differ by 2 or 4 and are found;
- false =: tables whose rows differ by the margin in which a row is called equivalent (margin: as detectable);
- covered: rows whose interval covers the true difference, of which some are 0 and some not;
- all covered: tables in which all of them do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from counterpoint.integrations.report.statistics import effect_size, judge

Array = np.ndarray
ROWS, SEEDS = (2, 5, 10), (3, 5, 8, 10, 20)


NOISES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {  # of a run, with variance 1
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed runs": lambda rng, shape: rng.exponential(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / 3**0.5,
    "in steps": lambda rng, shape: rng.normal(size=shape),
    "skewed differences": lambda rng, shape: rng.exponential(size=shape) - 1,
}


def differences(rng: np.random.Generator, noise: str, repetitions: int, rows: int, seeds: int) -> Array:
    """Paired differences ``(repetitions, rows, seeds)`` of mean 0 and variance 1, correlated by 1/2 within a seed.

    A row minus the baseline, which all rows share; skewed differences add up where others cancel. Differences in steps
    are rounded to multiples of their standard deviation, as those of accuracies on a few test samples are.
    """
    draw = NOISES[noise]
    base, own = draw(rng, (repetitions, 1, seeds)), draw(rng, (repetitions, rows, seeds))
    x = (own + base if noise == "skewed differences" else own - base) / 2**0.5
    return x.round() if noise == "in steps" else x


def simulate(noise: str, rows: int, seeds: int, repetitions: int, seed: int) -> dict[str, float]:
    """Return the rates of a table of so many rows and seeds."""
    rng = np.random.default_rng([seed, rows, seeds, list(NOISES).index(noise)])
    found: dict[str, float] = {}

    def judged(effects: Array, margin: float = 0.0):
        x = differences(rng, noise, repetitions, rows, seeds) + effects[:, None]
        return judge(x.mean(-1), x.std(-1, ddof=1), seeds, margin)

    half = np.arange(rows) < rows // 2
    found["error"] = (judged(np.zeros(rows)).kind == "different").any(-1).mean()
    found["error beside others"] = (judged(50.0 * half).kind == "different")[:, ~half].any(-1).mean()
    for effect in (2.0, 4.0):
        found[f"power {effect:g}"] = (judged(np.full(rows, effect)).kind == "different").mean()
    margin = effect_size(seeds, rows)
    found["false ="] = (judged(np.full(rows, margin), margin).kind == "equivalent").any(-1).mean()
    effects = np.linspace(0, 2 * margin, rows)
    some = judged(effects)
    covered = (some.low <= effects) & (effects <= some.high)
    return found | {"covered": covered.mean(), "all covered": covered.all(-1).mean()}


def table(repetitions: int, seed: int) -> Iterator[str]:
    """Yield the lines of the table."""
    head = False
    for noise in NOISES:
        for rows in ROWS:
            for seeds in SEEDS:
                found = simulate(noise, rows, seeds, repetitions, seed)
                if not head:
                    yield "| noise | rows | seeds | " + " | ".join(found) + " |"
                    yield "|---|---|---" + "|---" * len(found) + "|"
                    head = True
                yield f"| {noise} | {rows} | {seeds} | " + " | ".join(f"{x:.3f}" for x in found.values()) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20_000, help="tables per line (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (%(default)s)")
    arguments = parser.parse_args()
    for line in table(arguments.repetitions, arguments.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
