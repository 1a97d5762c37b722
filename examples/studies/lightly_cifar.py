"""Which objective learns the better features of CIFAR-10? SimCLR with any objective, trained, evaluated, compared.

Trains on SimCLR's two views (or as many as an objective needs) without labels; then evaluates frozen features with a
linear probe and weighted nearest neighbours.

Why the comparison is fair:

- every objective chooses among four settings, its temperature included, by the linear accuracy on validation images,
  with a separate seed. The test images are used once, with the chosen setting;
- "InfoNCE, tuned again" is the placebo, InfoNCE whose setting another seed chooses: it shows the noise of tuning;
- for every objective, a seed fixes the same initial weights, batches and first two views: differences are paired;
- batch size, epochs, optimizer and denominator are the same for all. ArCL's four views belong to the method and double
  the work per step; InfoNCE has a row with as many views, and one that trains half the epochs with them;
- the floor is in the table: the untrained encoder.

sizes:
  smoke   scikit-learn's digits, seconds: to see that it runs
  small   5000 images of CIFAR-10, a network of four layers, 5 seeds, and 3 others that choose settings; an hour on 2
          cores. It separates trained from untrained encoders, and temperatures from each other. It cannot resolve
          differences of a point between objectives, which the papers report after hundreds of epochs of a ResNet
  resnet  the same images, ResNet-8, 20 epochs, 8 seeds, two hours on a core: does ADNCE gain early, as its paper says?
  paper   all images, ResNet-18, 100 epochs, 5 seeds: for a GPU (--device cuda)

CIFAR-10 is downloaded, or read from $COUNTERPOINT_DATA/cifar10. A JPEG-compressed copy gives other accuracies than the
official pixels. The study resumes where it stopped.

examples:
  python examples/studies/lightly_cifar.py --size smoke
  COUNTERPOINT_DATA=... python examples/studies/lightly_cifar.py --size small --jobs 2 --out cifar/
  python examples/studies/lightly_cifar.py --size resnet --rows InfoNCE "InfoNCE, tuned again" ADNCE
  python examples/studies/lightly_cifar.py --size paper --device cuda
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from grids import AGAIN, Grids, add_flags, tuning_seeds
from paired import NOTE, compare, said

from counterpoint.integrations.image.data import prepare
from counterpoint.integrations.image.training import UNTRAINED, cell, check, train, untrained
from counterpoint.integrations.report.papers import paper_number
from counterpoint.integrations.report.words import with_interval
from counterpoint.integrations.store.run import Run


class Size(NamedTuple):
    """The data set, the seeds and the settings of a study."""

    dataset: str
    seeds: int
    tuning_seeds: int
    settings: dict[str, Any]


SMALL = {"backbone": "conv4", "channels": 16, "subset": 5000, "batch": 256, "epochs": 8, "width": 64}
RESNET = {**SMALL, "backbone": "resnet8", "channels": 8, "epochs": 20}
SIZES = {
    "smoke": Size("digits", 2, 1, {"backbone": "conv4", "channels": 8, "subset": 256, "batch": 64, "epochs": 1}),
    "small": Size("cifar10", 5, 3, SMALL),
    "resnet": Size("cifar10", 8, 1, RESNET),
    "paper": Size("cifar10", 5, 1, {"backbone": "resnet18", "batch": 256, "epochs": 100, "validation": 0.02}),
}
Setting = str | tuple[str, dict[str, Any]]
"""A spec, and changes of the cell if there are any; ``length`` is a share of the epochs."""

# four settings per row
ROWS: dict[str, list[Setting]] = {
    "InfoNCE": [f"infonce:t={t}" for t in (0.1, 0.2, 0.3, 0.5)],
    "DCL": [f"dcl:t={t},prior={prior}" for t in (0.2, 0.5) for prior in (0.01, 0.1)],
    "HCL": [f"hcl:t={t},prior=0.1,beta={beta}" for t in (0.2, 0.5) for beta in (0.5, 1)],
    "ADNCE": [f"adnce:t={t},mu={mu},sigma=0.5" for t in (0.2, 0.4) for mu in (0.5, 0.7)],
    "InfoNCE + DP": [f"infonce:t={t} + {weight}*dp" for t in (0.2, 0.5) for weight in (0.1, 1)],
    "debiased positives": [f"debpos:t={t},prior={prior}" for t in (0.2, 0.5) for prior in (0.05, 0.1)],
    "AAL, 4 views": [f"aal(infonce:t={t}):views=4" for t in (0.1, 0.2, 0.3, 0.5)],
    "ArCL, 4 views": [f"arcl(infonce:t={t}):views=4" for t in (0.1, 0.2, 0.3, 0.5)],
    "InfoNCE, 4 views": [(f"infonce:t={t}", {"views": 4}) for t in (0.1, 0.2, 0.3, 0.5)],
    "InfoNCE, 4 views at equal time": [(f"infonce:t={t}", {"views": 4, "length": 0.5}) for t in (0.1, 0.2, 0.3, 0.5)],
}
ROWS["InfoNCE" + AGAIN] = ROWS["InfoNCE"]

PRINTED = {"linear": ("cifar10", "linear")}


def study(
    rows: Mapping[str, Sequence[Setting]],
    size: Size,
    metrics: Sequence[str],
    out: Path,
    tuning: Path,
    probe: Sequence[str],
    evaluation: dict[str, Any] | None = None,
    grids: Grids | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Choose a setting per row, train it with every seed, and return every number.

    Args:
        rows: per row the settings to choose from, each a spec, or a spec and changes of the cell; equally many per row.
        metrics: the results to compare with those of the first row.
        out, tuning: folders of the reported runs and of the tuning runs; studies that share the latter share the runs
            that they have in common.
        probe, evaluation: see :mod:`counterpoint.integrations.image.evaluation`.
        grids: where to train; by default in this process.
    """
    grids = grids or Grids()
    if len({len(settings) for settings in rows.values()}) > 1:
        raise ValueError("every row must have as many settings to choose from")
    common = {**size.settings, "device": device, "evaluation": evaluation or {}}

    def cells(spec: Setting, seeds: range, **more: Any) -> list[dict[str, Any]]:
        objective, changes = (spec, {}) if isinstance(spec, str) else spec
        changes = dict(changes)
        length = {}
        if (share := changes.pop("length", None)) is not None:
            changes["epochs"] = length["length"] = max(1, round(share * size.settings["epochs"]))
        return [{**cell(size.dataset, objective, seed, **{**common, **changes, **more}), **length} for seed in seeds]

    seeds = {name: tuning_seeds(name, size.tuning_seeds) for name in rows}
    tried = {
        name: [cells(spec, seeds[name], part="tune", probe=["linear"]) for spec in settings]
        for name, settings in rows.items()
    }
    floor = [untrained(size.dataset, seed, **common, probe=list(probe)) for seed in range(size.seeds)]
    check([floor[0], *(one[0] for settings in tried.values() for one in settings)])
    flat = [one for settings in tried.values() for some in settings for one in some]
    tries = iter(grids.run(train, flat, tuning))
    chosen: dict[str, int] = {}
    validation: dict[str, list[float]] = {}
    for name, settings in tried.items():
        validation[name] = [mean(_result(next(tries))["linear"] for _ in some) for some in settings]
        chosen[name] = validation[name].index(max(validation[name]))
    final = {
        name: cells(rows[name][best], range(size.seeds), probe=list(probe), label=name) for name, best in chosen.items()
    }
    reported = iter(grids.run(train, [*floor, *(one for some in final.values() for one in some)], out))
    values: dict[str, list[dict[str, float]]] = {}
    for name in (UNTRAINED, *rows):
        values[name] = [_result(next(reported)) for _ in range(size.seeds)]
    first = next(iter(rows))
    summary: dict[str, Any] = {name: {} for name in values}
    for metric in metrics:
        scores = {name: [result[metric] for result in results] for name, results in values.items()}
        versus = compare(scores, first, checks=[UNTRAINED])
        for name, row in scores.items():
            summary[name][metric] = {"mean": mean(row), "sd": stdev(row), "values": row, "vs_first": versus.get(name)}
    return {
        "data": f"{size.dataset} ({prepare(floor[0]).test.note})",
        "settings": size.settings,
        "seeds": size.seeds,
        "chosen": {name: rows[name][best] for name, best in chosen.items()},
        "validation": validation,
        "summary": summary,
    }


def _result(run: Run) -> dict[str, float]:
    """Return the numbers of a run, with the mean over the shifted sets."""
    scores = dict(run.result or {})
    if shifted := [value for name, value in scores.items() if name.startswith("aug")]:
        scores["shifted"] = mean(shifted)
    return scores


def report(result: dict[str, Any], printed: Mapping[str, tuple[str, str]]) -> str:
    """Format the table with the papers' numbers, and the conclusions that its statistics support.

    Args:
        printed: per metric the data set on which the papers trained, and their name of the metric; empty if the
            settings are not the papers'.
    """
    summary, chosen = result["summary"], result["chosen"]
    first = next(iter(chosen))
    metrics = list(summary[first])
    lines = [f"{result['data']}, {result['seeds']} seeds; in brackets the paired difference to {first}", ""]
    head = ["accuracy, %", *metrics, *["papers"] * bool(printed)]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    verdicts: dict[str, dict[str, dict[str, Any]]] = {metric: {} for metric in metrics}
    for name, row in summary.items():
        cells = []
        for metric, scores in row.items():
            cells.append(f"{scores['mean']:.1f} ± {scores['sd']:.1f}")
            if (versus := scores["vs_first"]) is not None:
                cells[-1] += f" ({with_interval(**versus)})"
                verdicts[metric] |= {name: versus} if name != UNTRAINED else {}
        if printed:
            cells.append(papers(chosen[name], printed, result["settings"]) if name in chosen else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    lines += [f"- {metric}, against {first}: {said(versus)}" for metric, versus in verdicts.items() if versus]
    lines.append(f"- {NOTE}")
    lines += [f"- {name}: {spec} was chosen on validation images" for name, spec in chosen.items()]
    return "\n".join(lines)


def papers(setting: Setting, printed: Mapping[str, tuple[str, str]], settings: Mapping[str, Any]) -> str:
    """Return the papers' numbers for this objective."""
    spec, changes = (setting, {}) if isinstance(setting, str) else setting
    setup = {"batch": settings["batch"], "positives": 1 + changes.get("mixed", changes.get("views", 2) - 2)}
    numbers = []
    for metric, (dataset, name) in printed.items():
        if number := paper_number("image", dataset, spec, name, setup):
            numbers.append(f"{metric} {number.printed.replace('±', ' ± ')} ({number.paper}, Table {number.table})")
    return ", ".join(numbers)


def main_of(
    doc: str | None,
    sizes: Mapping[str, Size],
    rows: Mapping[str, Sequence[Setting]],
    metrics: Sequence[str],
    probe: Sequence[str],
    evaluation: dict[str, Any] | None = None,
    printed: Mapping[str, tuple[str, str]] = PRINTED,
    argv: Sequence[str] | None = None,
) -> None:
    """Run a study from the command line."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=sizes, default="small", help="see above (%(default)s)")
    add("--rows", nargs="+", choices=rows, metavar="ROW", default=list(rows), help=", ".join(rows))
    add("--out", type=Path, default=Path("cifar"), help="a folder for runs and results (%(default)s)")
    add_flags(parser)
    add("--device", default="cpu", help="cpu or cuda (%(default)s)")
    args = parser.parse_args(argv)
    name, chosen_rows = Path(parser.prog).stem, {row: rows[row] for row in args.rows}
    try:
        out = args.out / f"{name}-{args.size}"
        tuning = args.out / f"tuning-{args.size}"
        result = study(chosen_rows, sizes[args.size], metrics, out, tuning, probe, evaluation, Grids(args), args.device)
    except (OSError, RuntimeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(report(result, printed if args.size == "paper" else {}))
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nevery number is in {out / 'results.json'}")


if __name__ == "__main__":
    main_of(__doc__, SIZES, ROWS, ("linear", "knn"), ("knn", "linear"))
