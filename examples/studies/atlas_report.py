"""Summarize the cells of `atlas.py`: verdicts, decision table, pictures. Cells that are not finished are left out.

Each row is compared with InfoNCE in the same regime and dose, paired by seed; objectives of several views with InfoNCE
of as many views, InfoNCE of several views with InfoNCE at the same compute, and adversarial objectives with InfoNCE on
adversarial positives. Where the placebo of a dose differs, its verdicts on two views are withdrawn. A data set is one
family of tests (paired t, Holm; `counterpoint.integrations.report.statistics`), and the margin is half a point.

  python examples/studies/atlas_report.py                      from the cells in docs/atlas: docs/atlas.json, pictures,
                                                               the tables of the documents, the packaged table
  python examples/studies/atlas_report.py --collect runs/atlas    first adds the finished cells of a folder
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import atlas
import atlas_tables
import differences
import matplotlib
from atlas import ADVERSARIAL, DATASETS, LIMITS, ORACLE, PLACEBO, PLAIN, Row, World, cells, finished, key_of
from PIL import Image

import counterpoint as cp
from counterpoint.integrations import evidence
from counterpoint.integrations.report.statistics import compare

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
MARGIN = 0.5
PACKAGED = ("data", "regime", "dose", "level", "row", "objective", "spec", "versus", "n", "difference", "low", "high")
PACKAGED += ("effect", "recovered", "edges")
NAMED = {"images": 10, "cnn": 10, "text": 77, "graphs": 2}
FALSE = ("false negatives", "mined negatives")
# what the README's table proposes: the rows of the atlas that try it, and the regimes where it should help
PROPOSED = {
    "`adnce`": (("ADNCE",), FALSE),
    "`dcl`, `hcl`": (("DCL", "HCL"), FALSE),
    "any, with `ids=`": (("oracle",), FALSE),
    "any, with `guide=`": (("masked by a guide", "guide, margin -.1", "guide, margin .05"), FALSE),
    "`supcon`, or any other, with `labels=`": (("oracle, SupCon",), FALSE),
    "`drrl`; `debpos`, `nca`": (("DrRL", "debiased positives, 4 views", "NCA, 4 views"), ("wrong positives",)),
    "`arcl(...)` with 4 or more views": (("ArCL, 4 views", "ArCL, 8 views"), ("views, shifted",)),
    "`intnacl`": (("IntNaCl",), ("attacks",)),
    "`... + 0.1*dp`": (("InfoNCE + DP",), FALSE),
    "`dro`, `infonce:radius=0.1`": (("KL-DRO", "InfoNCE by radius"), ("temperature", *FALSE)),
    "`siglip`": (("SigLIP", "SigLIP, learned"), FALSE),
}
AXES = {  # of the curves
    "false negatives": "share of false negatives",
    "topical batches": "share of false negatives",
    "wrong positives": "share of wrong positives",
    "easy negatives": "share of easy negatives",
    "temperature": "factor of the chosen temperature",
    "views": "views",
    "views, shifted": "views",
    "attacks": "size of the attack",
}
COLOURS = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]


def level(dataset: str, regime: str, dose: str, world: World, row: Row) -> float:
    """The dose as a number."""
    doses = {
        "false negatives": world.kept / (world.classes or NAMED[dataset]),
        "topical batches": 1 / max(world.topics, 1),
        "wrong positives": world.wrong,
        "mined negatives": 0.66,
        "easy negatives": world.easy,
        "temperature": row.factor,
        "attacks": world.epsilon,
    }
    return float(dose.split()[0]) if regime == "views" else doses.get(regime, float(row.views))


def reference(name: str, row: Row) -> str:
    """The row that a row is compared with."""
    if row.extra and dict(row.extra).get("epsilon") and name != ADVERSARIAL:
        return ADVERSARIAL
    if row.views == 2:
        longer = row.steps > 1 and not name.startswith("InfoNCE")
        return f"InfoNCE, {row.steps} times the steps" if longer else PLAIN
    return f"InfoNCE, {row.views // 2} times the steps" if name.startswith("InfoNCE") else f"InfoNCE, {row.views} views"


def collect(source: Path, cells_of: Path) -> None:
    """Add the finished cells of a folder to those beside the page, in the order of the study."""
    cells_of.mkdir(parents=True, exist_ok=True)
    for dataset in DATASETS:
        path = cells_of / f"{dataset}.jsonl"
        done = finished(path) | finished(source / f"{dataset}.jsonl")
        keys = dict.fromkeys(key_of(dataset, world, row) for *_, world, row in cells(dataset))
        if lines := [json.dumps(done[key]) for key in keys if key in done]:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def progress(dataset: str, out: Path) -> Iterator[str]:
    """Say which doses of which regimes are finished."""
    done = finished(out / f"{dataset}.jsonl")
    doses: dict[str, dict[str, dict[str, bool]]] = {}
    for regime, dose, _, world, row in cells(dataset):
        key = key_of(dataset, world, row)
        if not dose.endswith(", 0% unknown"):  # which is the oracle
            doses.setdefault(regime, {}).setdefault(dose, {})[key] = key in done
    keys = {key: have for of in doses.values() for some in of.values() for key, have in some.items()}
    if all(keys.values()):
        yield f"- `{dataset}`: all {len(keys)} cells"
        return
    yield f"- `{dataset}`: {sum(keys.values())} of {len(keys)} cells"
    for regime, of in doses.items():
        counts = {dose: (sum(some.values()), len(some)) for dose, some in of.items()}
        begun = [f"{dose} ({have} of {total})" for dose, (have, total) in counts.items() if have > 1 or have == total]
        yield f"    - {regime}: " + ("; ".join(begun) or "not begun") + _more(len(counts) - len(begun), bool(begun))


def _more(missing: int, begun: bool) -> str:
    return f"; {missing} more dose{'s' * (missing > 1)} to come" if missing and begun else ""


def summarize(dataset: str, out: Path) -> tuple[list[dict[str, Any]], int]:
    """The finished cells of a data set with their verdicts, and the number of comparisons, one family of tests."""
    done, found = finished(out / f"{dataset}.jsonl"), []
    by_seed: dict[str, dict[int, float]] = {}  # some cells belong to several regimes: each comparison counts once
    compared: list[str] = []
    blocks: dict[tuple[str, str], dict[str, tuple[World, Row]]] = {}
    for (regime, dose), block in groupby(cells(dataset), lambda cell: cell[:2]):
        blocks.setdefault((regime, dose), {}).update({name: (world, row) for *_, name, world, row in block})
    tuned = blocks.get(("temperature", "x 1"), {}).get(PLAIN)
    metrics = [("", "accuracy")]
    for (regime, dose), block in blocks.items():
        if regime == "attacks":
            metrics = [("", "attacked")]
        elif regime == "views":
            metrics = [("", "accuracy"), (", shifted", "shifted")]
        else:
            metrics = [("", "accuracy")]
        for suffix, metric in metrics:
            records = {name: done.get(key_of(dataset, *pair)) for name, pair in block.items()}
            values = {name: record[metric] for name, record in records.items() if record and metric in record}
            for name, accuracy in values.items():
                _world, row = block[name]
                versus, base = reference(name, row), values.get(reference(name, row))
                pair = block.get(versus)
                if regime == "temperature":
                    pair, versus = tuned, "InfoNCE, x 1"
                    record = tuned and done.get(key_of(dataset, *tuned))
                    base = record and record[metric]
                if not base or (name == PLAIN and versus == PLAIN) or (dose == "x 1" and name == PLAIN):
                    continue
                record = records[name]
                assert record is not None
                assert pair is not None
                of_dose = block.get(PLAIN, block[name])
                gap = fmean(values[ORACLE]) - fmean(values[PLAIN]) if ORACLE in values and PLAIN in values else 0.0
                names = [part.name for _, part in cp.objective(record["spec"]).terms()]
                cell = {"data": dataset, "regime": regime + suffix, "dose": dose, "row": name}
                cell |= {
                    "level": round(level(dataset, regime, dose, *of_dose), 4),
                    "objective": names[-1] if name != ADVERSARIAL else "infonce",
                    "spec": record["spec"],
                }
                cell |= {"versus": versus, "n": len(accuracy), "mean": round(fmean(accuracy), 2)}
                cell |= {"sd": round(stdev(accuracy), 2), "plain": round(fmean(values.get(PLAIN, base)), 2)}
                limits = [axis for axis, value in record.get("chosen", {}).items() if value in LIMITS[axis]]
                edges = sorted({*record["edges"], *limits})
                cell |= {"gap": gap, "edges": edges, "seconds": record["seconds"]}
                gaps = dict(enumerate(a - b for a, b in zip(accuracy, base, strict=True)))
                compared.append("".join([key_of(dataset, *block[name]), key_of(dataset, *pair), metric]))
                by_seed[compared[-1]] = gaps
                found.append(cell)
    zeros = dict.fromkeys(range(atlas.SEEDS), 0.0)
    verdicts = compare(zeros, by_seed, MARGIN)
    for cell, verdict in zip(found, map(verdicts.__getitem__, compared), strict=True):
        effect = {"different": "helps" if verdict.difference > 0 else "hurts", "equivalent": "does nothing"}
        cell["effect"] = effect.get(verdict.kind, verdict.kind)
        for key in ("difference", "low", "high", "level", "corrected", "detectable", "sd"):
            named = {"level": "confidence", "sd": "sd_difference"}.get(key, key)
            cell[named] = float(f"{getattr(verdict, key):.4g}")
    noisy = {(c["regime"], c["dose"]) for c in found if c["row"] == PLACEBO and c["effect"] in ("helps", "hurts")}
    for cell in found:  # the choice of a setting alone makes such differences
        if (cell["regime"], cell["dose"]) in noisy and cell["versus"] == PLAIN and cell["row"] != PLACEBO:
            cell["effect"] = "cannot tell"
    repairable = {(c["regime"], c["dose"]) for c in found if c["row"] == ORACLE and c["effect"] == "helps"}
    for cell in found:
        gap = cell.pop("gap")
        repaired = (cell["regime"], cell["dose"]) in repairable and cell["row"] not in (ORACLE, PLACEBO)
        cell["recovered"] = round((cell["mean"] - cell["plain"]) / gap, 2) if repaired else None
    return found, len(verdicts)


def heat_map(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of the oracle's gap that each row recovers, where there is a gap."""
    shown = [cell for cell in found if cell["recovered"] is not None]
    if not shown:
        return
    regimes = list(atlas_tables.REGIMES)
    shown.sort(key=lambda c: (DATASETS.index(c["data"]), regimes.index(c["regime"]), c["level"]))
    columns = list(dict.fromkeys((c["data"], c["regime"], c["dose"]) for c in shown))
    names = list(dict.fromkeys(c["row"] for c in shown))
    figure, axis = plt.subplots(
        figsize=(max(7.5, 3 + 0.75 * len(columns)), 2.2 + 0.34 * len(names)), layout="constrained"
    )
    values = [[float("nan")] * len(columns) for _ in names]
    for cell in shown:
        i, j = names.index(cell["row"]), columns.index((cell["data"], cell["regime"], cell["dose"]))
        values[i][j] = cell["recovered"]
        bold = "bold" if cell["effect"] in ("helps", "hurts") and cell["versus"] == PLAIN else "normal"
        dark = abs(cell["recovered"]) > 0.7
        axis.text(
            j,
            i,
            f"{cell['recovered'] + 0.0:.2f}",
            ha="center",
            va="center",
            fontsize=8,
            weight=bold,
            color="w" if dark else "k",
        )
    image = axis.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    axis.set_xticks(range(len(columns)), ["\n".join(column) for column in columns], fontsize=7, rotation=60, ha="right")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    title = "Share of the oracle's gain over InfoNCE on two views that a row recovers (1: all, 0: nothing)\n"
    title += "bold: two-view rows that differ from InfoNCE after Holm; white: not run, or not of this regime"
    figure.suptitle(title, fontsize=9)
    figure.colorbar(image, extend="both")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def dose_curves(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the rows that were run at several doses: their difference to what they are compared with, over the dose."""
    found = [c for c in found if not any(word in c["dose"] for word in ("persistent", "unknown"))]
    found = [c for c in found if c["row"] not in (PLACEBO, ADVERSARIAL)]
    panels: list[tuple[str, str, dict[str, list[dict[str, Any]]]]] = []
    for data, regime in product(DATASETS, AXES):
        curves: dict[str, list[dict[str, Any]]] = {}
        for c in found:
            if (c["data"], c["regime"]) == (data, regime) and not (regime.startswith("views") and "steps" in c["row"]):
                curves.setdefault(re.sub(r", \d views$", ", several views", c["row"]), []).append(c)
        doses = len({c["level"] for curve in curves.values() for c in curve})
        curves = {name: curve for name, curve in curves.items() if len(curve) >= min(doses, 3)}
        if doses > 1:
            panels.append((data, regime, curves))
    names = list(dict.fromkeys(name for _, _, curves in panels for name in curves))
    if not panels:
        return
    height = -(-len(panels) // 2)
    figure, axes = plt.subplots(height, 2, figsize=(13, 0.8 + 3.2 * height), layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (data, regime, curves) in zip(axes.flat, panels, strict=False):
        if regime == "temperature" and PLAIN in curves:  # compared with itself
            curves[PLAIN].append({"level": 1.0, "difference": 0.0, "low": 0.0, "high": 0.0})
        levels = sorted({c["level"] for curve in curves.values() for c in curve})
        step = 0.012 * (levels[-1] - levels[0])
        free, used = [*COLOURS, *COLOURS], list[Any]()
        for i, (name, curve) in enumerate(curves.items()):  # side by side
            curve.sort(key=lambda c: c["level"])
            x = [c["level"] * 1.04**i if regime == "temperature" else c["level"] + step * i for c in curve]
            y = [c["difference"] for c in curve]
            errors = [[c["difference"] - c["low"] for c in curve], [c["high"] - c["difference"] for c in curve]]
            at = names.index(name) % len(COLOURS)  # the same in all panels; the next free colour if taken
            colour = next(colour for colour in free[at:] if colour not in used)
            marker, used = "osD^v"[names.index(name) % 5], [*used, colour]
            axis.errorbar(x, y, errors, markersize=4, capsize=2, label=name, color=colour, marker=marker)
        axis.axhline(0, color="k", linewidth=0.8)
        axis.set_yscale("symlog", linthresh=5)
        low, high = axis.get_ylim()
        ticks = [tick for tick in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20) if low <= tick <= high]
        axis.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        if regime == "temperature":
            axis.set_xscale("log", base=2)
        axis.set_title(f"{data}: {regime}", fontsize=10)
        axis.set_ylabel("points of accuracy")
        axis.set_xticks(levels, [f"{x:.3g}" for x in levels])
        axis.minorticks_off()
        axis.set_xlabel(AXES[regime])
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    title = "Difference to InfoNCE at equal views; InfoNCE on several views: to InfoNCE with as much compute\n"
    title += "bars: intervals that hold together over all comparisons of a data set; logarithmic beyond 5 points"
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    with Image.open(path) as picture:  # lines and text need few colors: a third of the file
        picture.convert("RGB").quantize(128).save(path, optimize=True)
    plt.close(figure)


def overview(path: Path) -> None:
    """Draw the gains and the nulls of the cells that the first screens name."""
    rows = {}
    for title, wanted in reversed(atlas_tables.FIRST_SCREEN.items()):
        for cell in evidence.cells(**wanted):
            verdict = {key: cell[key] for key in ("difference", "low", "high")}
            verdict |= {"margin": MARGIN, "different": cell["effect"] in ("helps", "hurts")}
            rows[title] = SimpleNamespace(**verdict)
    differences.draw({"points of accuracy over tuned InfoNCE": rows}, path)  # type: ignore[dict-item]


def replace_table(path: Path, table: str) -> None:
    """Replace what stands between the two marks of a document."""
    first, last = "<!-- made by `python examples/studies/atlas_report.py` -->", "<!-- end of the table -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(first)
    path.write_text(f"{before}{first}\n{table}\n{last}{rest.partition(last)[2]}", encoding="utf-8")


def folded(title: str, *lines: str) -> str:
    """Markdown that a page shows when its title is clicked."""
    return "\n".join([f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>"])


def fill(text: str) -> str:
    """Write into the third column of the README's table what the atlas found."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        cells = line.split(" | ")
        if len(cells) > 3 and cells[1] in PROPOSED:
            rows, regimes = PROPOSED[cells[1]]
            found = {row: atlas_tables.counted(row, regimes) for row in rows if evidence.cells(row=row)}
            named = [f"{row}: {count}" for row, count in found.items()] if len(rows) > 1 else [*found.values()]
            cells[2] = "; ".join(named) or "not run"
            lines[i] = " | ".join(cells)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "docs" / "atlas", help="folder of the cells (docs/atlas)")
    add("--collect", type=Path, metavar="FOLDER", help="first add the finished cells of this folder")
    add("--docs", type=Path, default=ROOT / "docs", help="folder of the summary and the pictures")
    add("--table", type=Path, default=ROOT / "integrations" / "atlas.json", help="the packaged table")
    args = parser.parse_args(argv)
    if args.collect:
        collect(args.collect, args.out)
    datasets = [dataset for dataset in DATASETS if (args.out / f"{dataset}.jsonl").exists()]
    if not datasets:
        parser.error(f"no cells in {args.out}: run atlas.py first")
    summaries = {dataset: summarize(dataset, args.out) for dataset in datasets}
    found = [cell for some, _ in summaries.values() for cell in some]
    about = {"command": f"python examples/studies/atlas.py {' '.join(datasets)}", "seeds": atlas.SEEDS}
    about |= {"tuning_seeds": atlas.TUNING_SEEDS, "steps": atlas.STEPS, "batch": atlas.BATCH, "margin": MARGIN}
    about["comparisons"] = {dataset: tests for dataset, (_, tests) in summaries.items()}

    def write(path: Path, some: list[dict[str, Any]]) -> None:
        lines = ",\n".join("  " + json.dumps(cell) for cell in some)
        path.write_text(f'{{"about": {json.dumps(about)},\n "cells": [\n{lines}\n ]}}\n', encoding="utf-8")

    write(args.docs / "atlas.json", found)
    write(args.table, [{k: cell[k] for k in PACKAGED} for cell in found])
    heat_map(found, args.docs / "atlas.png")
    dose_curves(found, args.docs / "atlas_doses.png")
    evidence.atlas.cache_clear()
    overview(args.docs / "overview.png")
    state = [
        atlas_tables.counts(),
        "",
        folded("Which cells are finished", *(line for dataset in datasets for line in progress(dataset, args.out))),
        "",
        folded("Every regime, dose and row", atlas_tables.decision_table()),
    ]
    for path, table in (
        (ROOT / "README.md", atlas_tables.benefit()),
        (ROOT / "docs" / "index.md", atlas_tables.benefit()),
        (ROOT / "docs" / "results.md", atlas_tables.benefit()),
        (ROOT / "docs" / "which_loss.md", atlas_tables.summary_table()),
        (ROOT / "docs" / "atlas.md", "\n".join(state)),
    ):
        if args.table.is_relative_to(ROOT):
            replace_table(path, table)
    if args.table.is_relative_to(ROOT):
        (ROOT / "README.md").write_text(fill((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    print(atlas_tables.decision_table())


if __name__ == "__main__":
    main()
