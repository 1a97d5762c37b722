"""Recompute the atlas's verdicts from the scores of every seed with numpy alone, and print where they differ.

The distribution of t is integrated numerically, Holm's correction is written out, and nothing of
`counterpoint.integrations.report` is used. Equivalence is not recomputed.

  python examples/studies/recompute.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from atlas import PLACEBO, PLAIN, cells, key_of

ROOT = Path(__file__).parents[2]


def p_value(differences: np.ndarray) -> float:
    """Return the two-sided p-value of a paired t-test, by integrating the density with x = tan(angle)."""
    n, spread = len(differences), differences.std(ddof=1)
    if spread == 0:
        return float(differences.mean() == 0)
    t = abs(differences.mean()) / (spread / n**0.5)
    whole, tail = np.linspace(0, np.pi / 2, 20001), np.linspace(np.arctan(t / (n - 1) ** 0.5), np.pi / 2, 20001)
    # with t = sqrt(n - 1) tan(angle), the density is a power of the cosine
    area = [float(np.sum(np.cos(x) ** (n - 2)) * (x[1] - x[0])) for x in (whole, tail)]
    return area[1] / area[0]


def verdicts(dataset: str) -> tuple[int, list[str]]:
    """Return the number of stored verdicts of a data set, and those that other code does not find."""
    lines = (ROOT / "docs" / "atlas" / f"{dataset}.jsonl").read_text(encoding="utf-8").splitlines()
    done = {record["key"]: record for record in map(json.loads, lines)}
    keys = {(regime, dose, name): key_of(dataset, world, row) for regime, dose, name, world, row in cells(dataset)}
    stored = json.loads((ROOT / "docs" / "atlas.json").read_text(encoding="utf-8"))["cells"]
    stored = [cell for cell in stored if cell["data"] == dataset]
    tests, mean = {}, {}
    for i, cell in enumerate(stored):
        regime, _, shifted = cell["regime"].partition(", ")
        base = ("temperature", "x 1", PLAIN) if regime == "temperature" else (regime, cell["dose"], cell["versus"])
        metric = "attacked" if regime == "attacks" else shifted or "accuracy"
        pair = keys[regime, cell["dose"], cell["row"]], keys[base]
        row, versus = (np.array(done[key][metric]) for key in pair)
        tests[i] = (*pair, metric)
        mean[tests[i]] = (float((row - versus).mean()), p_value(row - versus))
    order = sorted(mean, key=lambda test: mean[test][1])
    corrected, largest = {}, 0.0
    for rank, test in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * mean[test][1]))
        corrected[test] = largest
    effect = {
        i: "" if corrected[test] >= 0.05 else "helps" if mean[test][0] > 0 else "hurts" for i, test in tests.items()
    }
    noisy = {(c["regime"], c["dose"]) for i, c in enumerate(stored) if c["row"] == PLACEBO and effect[i]}
    wrong = []
    for i, cell in enumerate(stored):
        withdrawn = (cell["regime"], cell["dose"]) in noisy and cell["versus"] == PLAIN and cell["row"] != PLACEBO
        said = cell["effect"] if cell["effect"] in ("helps", "hurts") else ""
        if said != ("" if withdrawn else effect[i]):
            wrong.append(f"{cell['regime']}, {cell['dose']}, {cell['row']}: stored {said!r}, recomputed {effect[i]!r}")
    return len(stored), wrong


def main() -> None:
    for dataset in sorted(path.stem for path in (ROOT / "docs" / "atlas").glob("*.jsonl")):
        count, wrong = verdicts(dataset)
        print("\n".join([f"{dataset}: {count - len(wrong)} of {count} verdicts agree", *wrong]))


if __name__ == "__main__":
    main()
