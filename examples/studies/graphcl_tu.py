"""Which objective learns the better embeddings of graphs? The paper's table on TU data sets, reproduced.

Trains GraphCL's encoder with its augmentations for twenty epochs without labels, then a linear SVM in ten-fold
cross-validation, per objective, data set and seed. Graphs come from TUDataset, or offline from $COUNTERPOINT_DATA/tu.

Why the comparison is fair:

- every objective chooses among six settings, its temperature included, by the classes of 30 % of the graphs and with
  separate seeds. Reported accuracies use the classes of the other 70 % (fewer than in papers, so they are a little
  lower). Pre-training uses all graphs, without their classes, as in the papers;
- for every objective, a seed fixes the same initial weights, batches, views and folds: differences are paired;
- all objectives that have them share GraphCL's pairing (one way) and denominator (without the positive). Separate rows
  show the effect of each;
- the floor is in the table: an untrained encoder, and counts of node labels and degrees ("bag of nodes").

Papers evaluate on all graphs, with a kernel SVM, after the last epoch ("official protocol"; GraphCL's authors confirm
the last epoch in issue 57 of their repository). The rows that begin with "all graphs" are comparable with theirs. Their
code also evaluates on the test folds after the tenth epoch: "best look" in graphcl_tu.json is the result of choosing
the better of the two.

The study resumes where it stopped. --preset paper: 20 seeds on MUTAG, 10 on IMDB-BINARY, 5 on PROTEINS and NCI1, about
two hours on one CPU core; --preset quick only shows that it works.

examples:
  COUNTERPOINT_DATA=... python examples/studies/graphcl_tu.py --preset paper --jobs 2
  python examples/studies/graphcl_tu.py --preset quick --datasets MUTAG
  python examples/studies/graphcl_tu.py --power --datasets MUTAG --seeds 264    to find half a point: four rows, an hour
  python examples/studies/graphcl_tu.py --datasets DD COLLAB REDDIT-BINARY REDDIT-MULTI-5K    long, and downloaded
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grids import AGAIN, Grids, add_flags, tuning_seeds
from paired import NOTE, compare, said

from counterpoint.integrations.graph.presets import preset
from counterpoint.integrations.graph.training import BAG, BEST_LOOK, UNTRAINED, bag, cell, train, untrained
from counterpoint.integrations.report.papers import paper_number
from counterpoint.integrations.report.words import with_interval
from counterpoint.integrations.store.run import Run

DATASETS = ["MUTAG", "PROTEINS", "IMDB-BINARY", "NCI1"]
SEEDS = {"MUTAG": 20, "IMDB-BINARY": 10}  # of reported runs; 5 on other data sets
TUNING_SEEDS = {"MUTAG": 5, "NCI1": 1}  # 2 on other data sets; numbered from 1000
GRAPHCL, TUNED = "GraphCL, t=0.2", "GraphCL, t tuned"
# six settings per row; "negatives" leaves the positive out of the denominator
ROWS: dict[str, list[str]] = {
    TUNED: [f"infonce:t={t},denominator=negatives" for t in (0.05, 0.1, 0.2, 0.3, 0.5, 1)],
    "ADNCE": [
        f"adnce:t={t},mu=0.7,sigma={sigma},denominator=negatives" for t in (0.05, 0.2, 0.5) for sigma in (0.5, 1)
    ],
    "DCL": [f"dcl:t={t},prior={prior},denominator=negatives" for t in (0.1, 0.2, 0.5) for prior in (0.01, 0.1)],
    "HCL": [f"hcl:t={t},prior=0.1,beta={beta},denominator=negatives" for t in (0.1, 0.2, 0.5) for beta in (0.5, 1)],
    "GraphCL + DP": [f"infonce:t={t},denominator=negatives + {w}*dp" for t in (0.1, 0.2, 0.5) for w in (0.1, 1)],
    "ArCL, 4 views": [f"arcl(infonce:t={t},denominator=negatives):views=4" for t in (0.05, 0.1, 0.2, 0.3, 0.5, 1)],
    "KL-DRO": [f"dro:radius={radius}" for radius in (0.03, 0.1, 0.3, 0.6, 1, 2)],
    "debiased positives": [f"debpos:t={t},prior={prior}" for t in (0.2, 0.5, 1) for prior in (0.05, 0.2)],
}
# one setting per row: the effect of the denominator and the pairing at GraphCL's temperature
FACTORS = {
    "positive in the denominator": ("infonce:t=0.2,denominator=with_positive", {}),
    "both views as anchors": ("infonce:t=0.2,denominator=negatives", {"pairing": "views"}),
    "both": ("infonce:t=0.2,denominator=with_positive", {"pairing": "views"}),
}
POWER = {row: ROWS[row.removesuffix(AGAIN)] for row in (TUNED, "ADNCE", "HCL", TUNED + AGAIN)}
# prefixes of the rows to compare with papers: the classes of all graphs, with our protocol and with theirs
ALL, OFFICIAL = "all graphs: ", "all graphs, kernel SVM (official): "
PAPERS_ADNCE = "ADNCE, paper's setting"
PAPERS = {UNTRAINED: UNTRAINED, GRAPHCL: "infonce:t=0.2", PAPERS_ADNCE: "adnce"}  # as paper_number knows them


def tuning(dataset: str, seeds: int, settings: dict[str, Any], power: bool = False) -> dict[str, list[dict[str, Any]]]:
    """List the runs that choose a setting, per row."""
    return {
        row: [
            cell(dataset, spec, seed, part="tune", label=f"tuning {row}: {spec}", **settings)
            for spec in grid
            for seed in tuning_seeds(row, seeds)
        ]
        for row, grid in (POWER if power else ROWS).items()
    }


def choose(runs: Sequence[Run]) -> str:
    """Return the spec with the best mean accuracy on the tuning graphs; among equals, the first."""
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        assert run.result is not None
        accuracies.setdefault(run.arguments["objective"], []).append(run.result["accuracy"])
    return max(accuracies, key=lambda spec: float(np.mean(accuracies[spec])))


def reported(
    dataset: str, seeds: int, chosen: dict[str, str], settings: dict[str, Any], official: bool, power: bool = False
) -> list[dict[str, Any]]:
    """List the runs of the table, seed by seed."""
    graphcl, adnce = preset("graphcl", dataset).objective, preset("adnce", dataset).objective
    common, everything = {**settings, "part": "report"}, {**settings, "part": "all"}
    cells = []
    for seed in range(seeds):
        if power:
            cells += [cell(dataset, spec, seed, label=row, **common) for row, spec in chosen.items()]
            continue
        cells += [bag(dataset, seed, **common), untrained(dataset, seed, **common)]
        cells += [cell(dataset, graphcl, seed, label=GRAPHCL, **common)]
        cells += [cell(dataset, spec, seed, label=row, **common) for row, spec in chosen.items()]
        for row, (spec, changes) in FACTORS.items():
            cells.append(cell(dataset, spec, seed, label=row, **{**common, **changes}))
        cells.append({**bag(dataset, seed, **everything), "label": ALL + BAG})
        official_settings = {**everything, "probe": "svc", "protocol": "official"}
        for prefix, protocol in ((ALL, everything), (OFFICIAL, official_settings))[: 1 + official]:
            cells.append({**untrained(dataset, seed, **protocol), "label": prefix + UNTRAINED})
            cells.append(cell(dataset, graphcl, seed, label=prefix + GRAPHCL, **protocol))
            cells.append(cell(dataset, adnce, seed, label=prefix + PAPERS_ADNCE, **protocol))
    return cells


def study(
    dataset: str, out: Path, grids: Grids, seeds: int, tried: int, epochs: int, official: bool, power: bool = False
) -> dict[str, Any]:
    """Tune, run and summarize one data set; finished runs are not repeated."""
    settings = {"augment": preset("graphcl", dataset).settings["augment"], "epochs": epochs}
    candidates = tuning(dataset, tried, settings, power)
    tuned = grids.run(train, [one for cells in candidates.values() for one in cells], out)
    by_row = {row: [run for run in tuned if run.name.startswith(f"tuning {row}: ")] for row in candidates}
    chosen = {row: choose(runs) for row, runs in by_row.items()}
    done = grids.run(train, reported(dataset, seeds, chosen, settings, official, power), out)
    rows: dict[str, list[float]] = {}
    chosen_looks: dict[str, list[float]] = {}
    for run in sorted(done, key=lambda run: int(run.arguments["seed"])):
        assert run.result is not None
        rows.setdefault(run.name, []).append(run.result["accuracy"])
        if BEST_LOOK in run.result:
            chosen_looks.setdefault(run.name, []).append(run.result[BEST_LOOK])
    return {
        "seeds": seeds,
        "settings": settings,
        "chosen": chosen,
        "rows": summaries(rows),
        BEST_LOOK: summaries(chosen_looks),
        "papers": {row: one.printed for row, name in PAPERS.items() if (one := paper_number("graph", dataset, name))},
    }


def summaries(rows: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return mean and deviation over seeds, and the difference to GraphCL on the same graphs, folds and seeds."""
    versus: dict[str, Any] = {}
    for prefix in (OFFICIAL, ALL, ""):
        family = {name: values for name, values in rows.items() if name not in versus and name.startswith(prefix)}
        if (baseline := prefix + (GRAPHCL if prefix + GRAPHCL in family else TUNED)) in family:
            versus |= compare(family, baseline, checks=[prefix + UNTRAINED, prefix + BAG])
            versus[baseline] = None
    return {
        name: {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "values": values,
            "minus_graphcl": versus.get(name),
        }
        for name, values in rows.items()
    }


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """Format the table, and below it the conclusions."""
    names = list(dict.fromkeys(name for result in results.values() for name in result["rows"]))
    head = [f"{dataset} ({result['seeds']} seeds)" for dataset, result in results.items()]
    lines = ["| accuracy, % | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in names:
        cells = []
        for result in results.values():
            row = result["rows"].get(name)
            text = "" if row is None else f"{row['mean']:.1f} ± {row['sd']:.1f}"
            if row is not None and (versus := row["minus_graphcl"]) is not None:
                text += f" ({with_interval(**versus)})"
            cells.append(text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for row in PAPERS:
        printed = " | ".join(result["papers"].get(row, "").replace("±", " ± ") for result in results.values())
        lines.append(f"| papers (official): {row} | {printed} |")
    return "\n".join([*lines, "", *verdicts(results)])


def verdicts(results: dict[str, dict[str, Any]]) -> list[str]:
    """State for each data set what the paired test supports, corrected for the number of rows."""
    lines = []
    for dataset, result in results.items():
        versus = {
            name: row["minus_graphcl"]
            for name, row in result["rows"].items()
            if row["minus_graphcl"] is not None and not name.startswith((ALL, OFFICIAL, UNTRAINED, BAG))
        }
        if versus:
            baseline = GRAPHCL if GRAPHCL in result["rows"] else TUNED
            lines.append(f"{dataset}, against {baseline} - {said(versus)}.")
    lines.append(f"({NOTE[0].upper() + NOTE[1:]}.)")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--preset", choices=("paper", "quick"), default="paper", help="quick: 2 seeds of 2 epochs, to see that it works"
    )
    add("--datasets", nargs="+", default=DATASETS, metavar="NAME", help="any of the data sets in ADNCE's paper")
    add("--seeds", type=int, help="runs per row; by default 20 on MUTAG, 10 on IMDB-BINARY, 5 elsewhere")
    add(
        "--official",
        nargs="*",
        default=["MUTAG"],
        metavar="NAME",
        help="sets also evaluated with GraphCL's own protocol, whose kernel SVM is slow (%(default)s)",
    )
    add("--power", action="store_true", help=f"few rows for many seeds: {', '.join(POWER)}")
    add("--out", type=Path, default=Path("runs", "graphcl_tu"), help="folder of the runs, to resume from (%(default)s)")
    add_flags(parser)
    args = parser.parse_args(argv)
    quick = args.preset == "quick"
    results = {}
    try:
        grids = Grids(args)
        for dataset in args.datasets:
            preset("adnce", dataset)
        for dataset in args.datasets:
            seeds = args.seeds or (2 if quick else SEEDS.get(dataset, 5))
            tried = 1 if quick else TUNING_SEEDS.get(dataset, 2)
            official = dataset in args.official and not quick
            epochs = 2 if quick else 20
            results[dataset] = study(dataset, args.out, grids, seeds, tried, epochs, official, args.power)
            # after each data set, so that nothing is lost if a later one fails
            (args.out / "graphcl_tu.json").write_text(json.dumps(results, indent=1) + "\n")
            (args.out / "graphcl_tu.md").write_text(markdown(results) + "\n")
    except (OSError, ValueError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(markdown(results))
    print(f"\nevery run, graphcl_tu.json and graphcl_tu.md are in {args.out}")


if __name__ == "__main__":
    main()
