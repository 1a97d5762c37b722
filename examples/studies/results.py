"""Write docs/results.md and its pictures from the scores in docs/results/, as `counterpoint report` does.

A line of docs/results/STUDY.jsonl is a row of a study: its arguments, its seeds, and every score per seed. No runs and
no data are needed:

  python examples/studies/results.py                   write what stands between the marks of docs/results.md
  python examples/studies/results.py --collect runs    first add the finished runs in this folder, one folder per study:
                                                       runs/simcse_sts, runs/quick_thoughts, runs/graphcl_tu,
                                                       runs/cifar, runs/curl_dmc

Each study is a question, a generated answer, a picture, a table of at most ten rows and the command, the rest folded.
Pictures are drawn if the page has a folder `results` beside it. Runs that only chose a setting are left out. What has
been trained again with another setting replaces the old row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PureWindowsPath
from statistics import mean
from typing import Any

import differences
from graphcl_tu import ALL, GRAPHCL, OFFICIAL, TUNED
from grids import AGAIN

from counterpoint.integrations import report
from counterpoint.integrations.domain import defaults, domain
from counterpoint.integrations.report.statistics import Verdict
from counterpoint.integrations.report.summary import OBJECTIVE, Column, Pooled
from counterpoint.integrations.report.tables import pooled_numbers
from counterpoint.integrations.report.words import pooled_reading, reading, with_interval
from counterpoint.integrations.store import Run, find_runs

ROOT = Path(__file__).parents[2]
# said elsewhere in a table, or nothing that a score depends on
HIDDEN = ("domain", "dataset", "file", "objective", "label", "seed", "length", "purpose", "test", "probe")
HIDDEN += ("save", "keep", "device", "workers")


@dataclass(frozen=True)
class Study:
    """Where the reported runs of a study are, what it asks, how it runs, and what its tables show.

    ``baselines`` has more than one row where the runs belong to several tables, each with its own.
    """

    folder: str
    metrics: Sequence[str]
    baselines: Sequence[str]
    question: str
    command: str


STUDIES = {
    "graphcl_tu": Study(
        "graphcl_tu",
        ["accuracy"],
        [GRAPHCL, ALL + GRAPHCL, OFFICIAL + GRAPHCL],
        "Does another loss train a better encoder of graphs?",
        "graphcl_tu.py --preset paper --jobs 2",
    ),
    "graph_power": Study(
        "graph_power",
        ["accuracy"],
        [TUNED],
        "Does another loss train a better encoder of graphs, with seeds enough to find half a point?",
        "graphcl_tu.py --power --datasets MUTAG --seeds 264 --out runs/graph_power",
    ),
    "simcse_sts": Study(
        "simcse_sts/test",
        ["average"],
        ["SimCSE (InfoNCE)"],
        "Does another loss make better sentence embeddings?",
        "simcse_sts.py --size small --out runs/simcse_sts",
    ),
    "quick_thoughts": Study(
        "quick_thoughts/test",
        ["MRPC", "STSB-test"],
        ["QT"],
        "Does distance polarization help where neighboring sentences are positives?",
        "quick_thoughts.py --size small --out runs/quick_thoughts",
    ),
    "curl_dmc": Study(
        "curl_dmc/runs",
        ["R2"],
        ["infonce:t=1"],
        "Does another loss find more of the state of a robot in its pixels?",
        "curl_dmc.py --size small --out runs/curl_dmc",
    ),
    "lightly_cifar": Study(
        "cifar/lightly_cifar-small",
        ["linear", "knn"],
        ["InfoNCE"],
        "Does another loss classify small images better?",
        "lightly_cifar.py --size small",
    ),
    "early_cifar": Study(
        "cifar/lightly_cifar-resnet",
        ["linear", "knn"],
        ["InfoNCE"],
        "Does ADNCE gain early in a training, as its paper says?",
        'lightly_cifar.py --size resnet --rows InfoNCE "InfoNCE, tuned again" ADNCE',
    ),
    "robust_cifar": Study(
        "cifar/robust_cifar-small",
        ["linear", "fgsm@0.002", "pgd@0.002", "pgd@0.004"],
        ["HCL (M=1)"],
        "Do adversarial views make representations robust?",
        "robust_cifar.py --size small",
    ),
    "shifted_cifar": Study(
        "cifar/shifted_cifar-small",
        ["linear", "shifted"],
        ["SimCLR"],
        "Do aligned worst pairs of views hold up on changed images?",
        "shifted_cifar.py --size small",
    ),
}

Record = dict[str, Any]


# ---- scores ------------------------------------------------------------------------------------


def load(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def records_of(runs: Sequence[Run]) -> list[Record]:
    """Gather the seeds of each row; what chose a setting is left out."""
    found: dict[str, Record] = {}
    for run in sorted(runs, key=lambda run: int(run.arguments["seed"])):
        if not run.done or run.tuning or run.arguments.get("part") == "tune":
            continue
        arguments = {key: _portable(value) for key, value in run.arguments.items() if key != "seed"}
        record = found.setdefault(json.dumps(arguments, sort_keys=True), {"arguments": arguments, "seeds": {}})
        scores = dict(run.record["result"])
        if shifted := [value for metric, value in scores.items() if metric.startswith("aug")]:
            scores["shifted"] = mean(shifted)  # the mean that shifted_cifar.py reports
        record["seeds"][run.arguments["seed"]] = {k: _rounded(x) for k, x in scores.items()}
        record["majority"] = run.details.get("majority") or {}
        record["versions"] = {name: run.record["versions"][name] for name in ("counterpoint", "torch")}
    return [{**record, **_columns(record.pop("seeds"))} for record in found.values()]


def _portable(value: Any) -> Any:
    """A path of this machine becomes a name, or that of a file within a package."""
    if not isinstance(value, str) or not (Path(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        return value
    _, _, inside = value.rpartition("site-packages/")
    return inside if inside != value else Path(value).name


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.7g}")


def _columns(seeds: Mapping[int, Mapping[str, float | None]]) -> Record:
    """The scores of each seed as a list per metric."""
    metrics = dict.fromkeys(metric for scores in seeds.values() for metric in scores)
    return {"seeds": [*seeds], "scores": {m: [scores.get(m) for scores in seeds.values()] for m in metrics}}


def merged(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Add new rows to the old ones, seed by seed where the settings are equal; else the new row replaces the old."""
    rows = {_row(record): record for record in old}
    for record in new:
        before = rows.get(_row(record))
        if before is not None and before["arguments"] == record["arguments"]:
            seeds = {}
            for part in (before, record):
                for i, seed in enumerate(part["seeds"]):
                    seeds[seed] = {metric: values[i] for metric, values in part["scores"].items()}
            record = {**record, **_columns(dict(sorted(seeds.items())))}
        rows[_row(record)] = record
    return [rows[name] for name in sorted(rows)]


def _row(record: Record) -> str:
    """What stays the same when a row has been tuned again: all but its objective and that one's arguments."""
    arguments = record["arguments"]
    kept = {
        k: v for k, v in arguments.items() if k not in OBJECTIVE or (k == "objective" and not arguments.get("label"))
    }
    return json.dumps([arguments.get("label"), kept], sort_keys=True)


def collect(source: Path, scores: Path) -> Iterator[Path]:
    """Add the finished runs of a folder to the scores of each study; yield the files that were written."""
    scores.mkdir(parents=True, exist_ok=True)
    for name, study in STUDIES.items():
        if (source / study.folder).is_dir() and (new := records_of(find_runs(source / study.folder))):
            path = scores / f"{name}.jsonl"
            lines = [json.dumps(record) for record in merged(load(path), new)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            yield path


def runs_of(records: Sequence[Record]) -> list[Run]:
    """Turn rows back into runs, without a folder, for the report."""
    runs = []
    for record in records:
        for i, seed in enumerate(record["seeds"]):
            run = Run("docs/results", {**record["arguments"], "seed": seed})
            result = {metric: values[i] for metric, values in record["scores"].items()}
            run.record = {"status": "done", "arguments": run.arguments, "result": result}
            run.record |= {"details": {"majority": record["majority"]}, "versions": record["versions"]}
            runs.append(run)
    return runs


# ---- tables ------------------------------------------------------------------------------------


def tables(study: Study, records: Sequence[Record], name: str, pictures: Path | None = None) -> str:
    """Return the findings of a study in short, and folded the sentences, table and settings of each data set."""
    parts: list[str] = []
    first: list[Column] = []
    runs = runs_of(records)
    for baseline in study.baselines:
        if not any(run.name == baseline for run in runs):
            continue
        summary = report.summarise(runs, baseline=baseline, metrics=study.metrics)
        shown = [column for column in summary.columns if column.baseline is not None]
        first = first or [column for column in shown if column.compared]
        for _, columns in groupby(shown, lambda column: (column.dataset, column.setting)):
            parts += table([*columns])
        for pooled in summary.pooled:
            parts += together(pooled)
    if not first:
        return "\n".join(parts)
    if pictures is not None:
        placebo = f"{first[0].baseline}{AGAIN}"
        shown_placebo = placebo if any(placebo in column.compared for column in first) else ""
        differences.draw(panels(first), pictures / f"{name}.png", placebo=shown_placebo)
    head = [f"**{study.question}** {answer(first)}\n", f"![Differences with intervals](results/{name}.png)\n"]
    command = f"COUNTERPOINT_DATA=... python examples/studies/{study.command}"
    head += [
        *short_table(first),
        f"    {command}\n",
        '<details markdown="1"><summary>All rows and settings</summary>\n',
    ]
    return "\n".join([*head, *parts, "</details>"])


def panels(columns: Sequence[Column]) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts of each row by data set and metric, of at most six."""
    several = len({column.dataset for column in columns}) > 1
    return {column.dataset if several else column.metric: column.compared for column in columns[:6]}


def answer(columns: Sequence[Column]) -> str:
    """Return the verdicts of a study in a sentence or two, with the largest gain."""
    placebo = f"{columns[0].baseline}{AGAIN}"
    found = [(row, column, one) for column in columns for row, one in column.compared.items() if row != placebo]
    higher = [item for item in found if item[2].different and item[2].difference > 0]
    lower = sum(item[2].different for item in found) - len(higher)
    place = f" on {len({c.dataset for c in columns})} data sets" if len({c.dataset for c in columns}) > 1 else ""
    text = f"Of {len(found)} comparisons with {_plain(str(columns[0].baseline))}{place}, {len(higher) or 'none'} "
    text += f"{'is' if len(higher) < 2 else 'are'} higher and {lower or 'none'} lower."
    if higher:
        row, column, one = max(higher, key=lambda item: item[2].difference)
        shown = with_interval(one.difference, one.low, one.high, column.digits)
        text += f" The largest gain is that of {_plain(row)} on {column.metric}, {shown}."
    unclear = [one.detectable for *_, one in found if one.kind == "cannot tell" and one.detectable == one.detectable]
    if unclear:
        least, most = (f"{value:.2g}" for value in (min(unclear), max(unclear)))
        found = f"a difference of {least}" if least == most else f"differences of {least} to {most}, by the column,"
        text += f" For {len(unclear)} nothing can be told; {found} would have been found."
    tuned_again = [(column.metric, column.compared[placebo]) for column in columns if placebo in column.compared]
    if not tuned_again:
        return text + " No placebo was run."
    noisy = [metric for metric, one in tuned_again if one.different]
    if noisy:
        return f"{text} The placebo differs too, on {' and '.join(noisy)}: verdicts there may be noise of tuning."
    again = f"The placebo, {_plain(str(columns[0].baseline))} tuned again,"
    if not any(one.difference or one.low or one.high for _, one in tuned_again):
        return f"{text} {again} chose the same setting, so its difference is 0."
    return f"{text} {again} differs nowhere."


def short_table(columns: Sequence[Column]) -> Iterator[str]:
    """Yield the differences of at most ten rows, the largest first."""
    columns = columns[:6]
    rows = {row: [column.compared.get(row) for column in columns] for column in columns for row in column.compared}
    order = sorted(rows, key=lambda row: -sum(one.difference for one in rows[row] if one is not None))
    yield f"| minus {_plain(str(columns[0].baseline))} | {' | '.join(panels(columns))} |"
    yield "|---" * (1 + len(columns)) + "|"
    for row in order[:10]:
        cells = []
        for column, one in zip(columns, rows[row], strict=True):
            text = "" if one is None else with_interval(one.difference, one.low, one.high, column.digits)
            cells.append(f"**{text}**" if one is not None and one.different else text)
        yield f"| {' | '.join([_plain(row), *cells])} |"
    more = f"; {len(order) - 10} more below" if len(order) > 10 else ""
    yield f"\nBold: higher or lower after correction{more}.\n"


def together(pooled: Pooled) -> Iterator[str]:
    """Yield what several data sets say together, and a table of its numbers."""
    yield f"{_plain(pooled_reading(pooled))}\n"
    head, texts = pooled_numbers(pooled)
    yield f"| all data sets | {head} |"
    yield "|---|---|"
    for row, text in texts.items():
        yield f"| {_plain(row)} | {text} |"
    yield ""


def table(columns: Sequence[Column]) -> Iterator[str]:
    """Yield what the metrics of one data set say, their table, and the settings that all of its rows have."""
    for column in columns:
        yield f"{_plain(reading(column))}\n"
    first = columns[0]
    assert first.baseline is not None
    base = _flat(first.cells[first.baseline].runs[0].arguments)
    papers = any(cell.paper for column in columns for cell in column.cells.values())
    head = [first.dataset, *(column.metric for column in columns), *["paper"] * papers, "setting"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in first.cells:
        cells = [_cell(column, row) for column in columns]
        if papers:
            cells.append(", ".join(c.cells[row].paper.printed for c in columns if c.cells[row].paper))  # type: ignore[union-attr]
        yield f"| {' | '.join([_plain(row), *cells, _setting(_flat(first.cells[row].runs[0].arguments), base)])} |"
    usual = defaults(_settings(base["domain"])) | dict.fromkeys((*HIDDEN, *OBJECTIVE), None)
    # settings that no longer exist are left out
    settings = {k: v for k, v in base.items() if k not in (*HIDDEN, *OBJECTIVE) and v != usual.get(k, v)}
    shown = [_shown(key, value) for key, value in settings.items()]
    yield f"\nAll rows: {', '.join(shown)}; the rest as by default.\n" if shown else "\nAll rows: as by default.\n"


def _cell(column: Column, row: str) -> str:
    """Return mean and deviation, bold if the row is the best, and the difference to the baseline."""
    cell, places = column.cells[row], column.digits
    text = f"{cell.mean:.{places}f} ± {cell.sd:.{places}f}"
    text = f"**{text}**" if cell.best else text
    if (one := cell.difference) is None:
        return text
    return f"{text} ({with_interval(one.difference, one.low, one.high, places)})"


def _settings(domain_name: str) -> type:
    """The settings of the cells of a domain, or of its representations."""
    name, _, part = domain_name.partition("-")
    return domain(name).module("settings").RepresentationSettings if part else domain(name).settings  # type: ignore[no-any-return]


def _flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a cell, with those that control keeps one level deeper."""
    return {k: v for k, v in arguments.items() if k != "settings"} | arguments.get("settings", {})


def _setting(arguments: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the spec of a row and the settings in which it differs from the baseline."""
    if arguments["objective"] is None:
        return ""
    others = [_shown(k, v) for k, v in arguments.items() if k not in HIDDEN and v != base.get(k)]
    # without a label, the spec is the row's name
    spec = [f"`{arguments['objective']}`"] if arguments.get("label") else []
    return ", ".join([*spec, *others])


def _plain(text: str) -> str:
    """Keep Markdown from reading the product in ``0.1*dp`` as emphasis."""
    return text.replace("*", r"\*")


def _shown(key: str, value: Any) -> str:
    value = " ".join(map(str, value)) if isinstance(value, list) else value
    return f"`{key}={value}`"


# ---- the page ----------------------------------------------------------------------------------


def replaced(text: str, name: str, content: str) -> str:
    """Put the content between the marks of this name."""
    first, last = f"<!-- {name}: made by `python examples/studies/results.py` -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(first)
    if not found or last not in rest:
        raise ValueError(f"{name}: the page has no marks; replace its old table by {first} and {last}.")
    return f"{before}{first}\n{content}\n{last}{rest.partition(last)[2]}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--collect", type=Path, metavar="RUNS", help="first add the finished runs of this folder")
    add("--scores", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of the scores (docs/results)")
    add("--page", type=Path, default=ROOT / "docs" / "results.md", metavar="FILE", help="docs/results.md")
    args = parser.parse_args(argv)
    try:
        for path in collect(args.collect, args.scores) if args.collect else ():
            print(f"wrote {path}")
        text = args.page.read_text(encoding="utf-8")
        folder = args.page.parent / "results"
        pictures = folder if folder.is_dir() else None
        for name, study in STUDIES.items():
            if records := load(args.scores / f"{name}.jsonl"):
                text = replaced(text, name, tables(study, records, name, pictures))
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    args.page.write_text(text, encoding="utf-8")
    print(f"wrote {args.page}")


if __name__ == "__main__":
    main()
