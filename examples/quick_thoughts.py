"""Quick-thought with any objective: neighbouring sentences as positives, judged by transfer. LMCL's Table 4, made anew.

small: for two CPU cores. The text is *Pride and Prejudice*, about six thousand sentences in place of BookCorpus' 74
million; what is trained is the table of 30,522 word pieces of all-MiniLM-L6-v2, a sentence being the mean of its
pieces. Three tasks of the six, those whose classifiers are quick to fit; STS beside them.

paper: the preset lmcl-quick-thought on text of your own, all six tasks; for a GPU, with the hub.

What makes the comparison fair:

- every objective has the same grid of temperatures and chooses by STS-B dev, which none of the tasks knows, with seeds
  of its own. What else it has is fixed: a prior of 0.01, beta 1, the paper's weight 0.1 and thresholds 0.1 and 0.5;
- the positive is in the denominator for all; a seed fixes the batches for every objective alike.

It goes on where it was stopped. smoke only shows that it works.

examples:
  COUNTERPOINT_DATA=... python examples/quick_thoughts.py --size small --jobs 2
  python examples/quick_thoughts.py --size paper --data books.txt --device cuda
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from digits import compare
from simcse_sts import BEFORE, FIRST_TUNING_SEED, TUNING_SEEDS, minilm, numbers

from counterpoint.integrations import papers
from counterpoint.integrations.runs import GridError, run_grid
from counterpoint.integrations.sentence import training
from counterpoint.integrations.sentence.data import SEVEN, TRANSFER
from counterpoint.integrations.sentence.encode import load
from counterpoint.integrations.sentence.presets import preset

TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5)
BASES = {"QT": "infonce:t={t}", "DCL": "dcl:t={t},prior=0.01", "HCL": "hcl:t={t},prior=0.01,beta=1"}
ROWS = BASES | {f"{name} + DP": spec + " + 0.1*dp" for name, spec in BASES.items()}
TASKS = ("CR", "TREC", "MRPC")
SMALL = {
    "static": True,
    "positives": "next-sentence",
    "lr": 1e-3,
    "batch": 64,
    "epochs": 1,
    "every": 25,
    "save": 0,
    "keep": False,
}


def small(given: argparse.Namespace, smoke: bool) -> dict[str, Any]:
    """Tunes, trains and scores; returns the summary."""
    settings = {**SMALL, "model": given.model or minilm()}
    rows, temperatures, tuning, tests = ROWS, TEMPERATURES, TUNING_SEEDS, [*SEVEN, *TASKS]
    if smoke:
        settings |= {"steps": 4, "every": 4}
        rows, temperatures, tuning, tests = {"QT": ROWS["QT"], "QT + DP": ROWS["QT + DP"]}, (0.1,), 1, ["MRPC"]

    def cell(name: str, t: float, seed: int, tests: list[str] | None) -> dict[str, Any]:
        how = {**settings, "test": tests, "label": f"{name}, t={t}"}
        return training.cell(given.data, rows[name].format(t=t), seed, **how)

    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning)
    tuned = run_grid(
        training.train,
        [cell(name, t, seed, None) for seed in seeds for name in rows for t in temperatures],
        given.out,
        jobs=given.jobs,
    )
    scores = {
        (name, t): float(np.mean([numbers(run)["STSB-dev"] for run in tuned if run.name == f"{name}, t={t}"]))
        for name in rows
        for t in temperatures
    }
    chosen = {name: max(temperatures, key=lambda t: scores[name, t]) for name in rows}
    cells = [cell(name, chosen[name], seed, tests) for seed in range(given.seeds) for name in rows]
    done = run_grid(training.train, cells, given.out, jobs=given.jobs)
    found: dict[str, list[dict[str, float]]] = {}
    for run in done:
        found.setdefault(run.name, []).append(numbers(run))
    start = training.tested(training.static(load(settings["model"])), tests)
    return {"dev": {f"{name}, t={t}": score for (name, t), score in scores.items()}, BEFORE: start, "rows": found}


def paper(given: argparse.Namespace) -> dict[str, Any]:
    """The preset with each of the six objectives."""
    settings = {**preset("lmcl-quick-thought").settings, "device": given.device, "test": list(TRANSFER)}
    cells = [
        training.cell(given.data, spec.format(t=0.05), seed, **settings, label=name)
        for seed in range(given.seeds)
        for name, spec in ROWS.items()
    ]
    found: dict[str, list[dict[str, float]]] = {}
    for run in run_grid(training.train, cells, given.out, jobs=given.jobs):
        found.setdefault(run.name, []).append(numbers(run))
    return {"rows": found}


def report(summary: dict[str, Any]) -> str:
    """Accuracies with their spread, the difference from quick-thought, and the paper's numbers."""
    rows: dict[str, list[dict[str, float]]] = summary["rows"]
    tasks = [name for name in TRANSFER if name in next(iter(rows.values()))[0]]
    width = max(len(name) for name in rows) + 8
    shown = [*tasks, *(["STS average"] if "average" in next(iter(rows.values()))[0] else [])]
    keys = {name: "average" if name == "STS average" else name for name in shown}
    lines = [f"{'accuracy, %':{width}}" + "".join(f"{name:>34}" for name in shown)]
    if BEFORE in summary:
        cells = "".join(f"{summary[BEFORE][keys[name]]:12.2f}{'':22}" for name in shown)
        lines.append(f"{BEFORE:{width}}{cells}".rstrip())
    first = next(iter(rows.values()))
    verdicts: dict[str, list[str]] = {}
    for row, found in rows.items():
        cells = ""
        for name in shown:
            values = [one[keys[name]] for one in found]
            spread = f" +-{np.std(values, ddof=1):5.2f}" if len(values) > 1 else ""
            gap = ""
            if found is not first and len(values) > 1:
                versus = compare([one[keys[name]] for one in first], values)
                gap = " {difference:+.2f} [{low:+.2f},{high:+.2f}]".format(**versus)
                verdict = "higher" if versus["low"] > 0 else "lower" if versus["high"] < 0 else "no difference found"
                verdicts.setdefault(verdict, []).append(f"{row} on {name}")
            cells += f"{np.mean(values):7.2f}{spread}{gap:>22}"
        lines.append(f"{row:{width}}{cells}".rstrip())
    for row in papers.numbers("sentence", "TREC"):
        cells = "".join(f"{papers.numbers('sentence', name)[row][0]:7.2f}{'':27}" for name in tasks)
        lines.append(f"{'paper: ' + row:{width}}{cells}".rstrip())
    said = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items())
    return "\n".join([*lines, *([f"\nagainst the first row - {said}."] if said else [])])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=("smoke", "small", "paper"), default="small", help="see above (%(default)s)")
    add("--data", default="books/pride-and-prejudice.txt", metavar="FILE", help="running text (%(default)s)")
    add("--model", help="whose word pieces to start from, for small; all-MiniLM-L6-v2 by default")
    add("--seeds", type=int, help="runs per row (5; 2 for smoke)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    add("--device", default="cpu", help="for paper (%(default)s)")
    add("--out", default="runs/quick_thoughts", metavar="FOLDER", help="where the runs are kept (%(default)s)")
    given = parser.parse_args(argv)
    given.seeds = given.seeds or (2 if given.size == "smoke" else 5)
    try:
        summary = paper(given) if given.size == "paper" else small(given, given.size == "smoke")
    except (GridError, ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(report(summary))
    out = Path(given.out, f"{given.size}.json")
    out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nnumbers are in {out}")


if __name__ == "__main__":
    main()
