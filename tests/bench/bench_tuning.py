"""How often tables of tuned rows name a difference where no objective is better: simulated, with the tuning inside.

    python -m tests.bench.bench_tuning
    python -m tests.bench.bench_tuning --repetitions 100000 --settings 0 .5 1 2 4

All rows, the baseline and the placebo (the baseline, tuned once more) have the same settings, which are worth the same
to each: none is better. Each row chooses its setting by the mean of its own tuning seeds, and all are trained again on
paired seeds that are reported. Units are standard deviations of a run; half of its variance is the seed's, shared by
all rows, which differences cancel. The columns:

- luck: tables in which a row is called different from the baseline;
- kept: such tables in which the placebo is not called different, so that their verdicts stand;
- placebo: tables whose placebo is called different, whose verdicts are withdrawn;
- apart: rows that chose another setting than the baseline, for which the verdict is true of the settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from counterpoint.integrations.report.statistics import judge

ROWS = 5  # beside the baseline and its placebo


def simulate(settings: Sequence[float], tuning: int, seeds: int, repetitions: int, seed: int) -> dict[str, float]:
    """Return the rates for settings that are worth so much less than the best, and so many seeds to tune and report."""
    rng = np.random.default_rng([seed, tuning, seeds])
    worth = -np.asarray(settings, float)
    means = worth + rng.normal(size=(repetitions, ROWS + 2, len(worth))) / np.sqrt(tuning)
    chosen = means.argmax(-1)
    runs = worth[chosen][..., None] + rng.normal(size=(*chosen.shape, seeds)) / 2**0.5  # but for the seeds' own half
    difference = runs[:, 1:] - runs[:, :1]
    judged = judge(difference.mean(-1), difference.std(-1, ddof=1), seeds)
    different = judged.kind == "different"
    luck, placebo = different[:, 1:].any(-1), different[:, 0]
    return {
        "luck": luck.mean(),
        "kept": (luck & ~placebo).mean(),
        "placebo": placebo.mean(),
        "apart": (chosen[:, 2:] != chosen[:, :1]).mean(),
    }


def table(settings: Sequence[float], repetitions: int, seed: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| tuning seeds | seeds | luck | kept | placebo | apart |"
    yield "|---|---|---|---|---|---|"
    for seeds in (5, 20):
        for tuning in (1, 2, 5, 20):
            found = simulate(settings, tuning, seeds, repetitions, seed)
            yield f"| {tuning} | {seeds} | " + " | ".join(f"{x:.2f}" for x in found.values()) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--repetitions", type=int, default=20_000, help="tables per line (%(default)s)")
    add("--settings", type=float, nargs="+", default=[0, 0.5, 1, 2], help="below the best, in standard deviations")
    add("--seed", type=int, default=0, help="of the random numbers (%(default)s)")
    arguments = parser.parse_args()
    for line in table(arguments.settings, arguments.repetitions, arguments.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
