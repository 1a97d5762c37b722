"""``counterpoint train sentence``, and ``counterpoint eval sts``, ``transfer``, ``retrieval`` and ``mteb``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from counterpoint.plugins.printing import print_lines, visible

from .. import flags
from ..domain import defaults
from . import retrieval
from .files import ENVIRONMENT
from .presets import PRESETS, preset
from .settings import POOLING, POOLINGS, SEVEN, STS, TRANSFER, Settings, check_settings

if TYPE_CHECKING:
    from ..report.items import ItemReport
    from . import mteb_tasks, sts, transfer


def train_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, "infonce:t=0.05", Settings, PRESETS)
    data = "training data: .txt, .csv, .tsv, .jsonl, .parquet, or owner/name on the hub (required)"
    # a path, as ./x.txt and x.txt are one run
    parser.add_argument("--data", type=lambda path: str(Path(path)), required=True, metavar="FILE", help=data)
    flags.add_settings(parser.add_argument_group("training"), Settings)
    flags.add_root(parser, f"folder of the STS sets, or hub (${ENVIRONMENT}, else hub)")
    parser.set_defaults(check=_check_train)


def _check_train(arguments: argparse.Namespace) -> None:
    """Raise errors of settings, files and the model's name; called before torch is imported."""
    from . import data
    from .locate import find

    flags.use_root(arguments)
    cell = {**defaults(Settings), **settings(arguments, arguments.data), "device": arguments.device}
    check_settings(cell)
    data.check(arguments.data, cell["positives"])
    find(cell["model"], cell["revision"])
    if cell["guide"] is not None:
        find(cell["guide"])


def settings(arguments: argparse.Namespace, dataset: str) -> dict[str, object]:
    """Return the settings that the preset and the flags give to a cell."""
    changes = {**(preset(arguments.preset).settings if arguments.preset else {}), **flags.chosen(arguments, Settings)}
    if changes.get("test") == []:
        changes["test"] = list(SEVEN)
    if changes.get("dev") == "none":
        changes["dev"] = None
    return changes


def train_command(arguments: argparse.Namespace) -> int:
    """Train every objective with every seed, and print the table."""
    from .. import report
    from .data import prepare

    changes = settings(arguments, arguments.data)
    prepare({**defaults(Settings), **changes, "file": arguments.data})  # before the frameworks, which take longer
    from . import training

    specs = arguments.objective or [preset(arguments.preset).objective if arguments.preset else "infonce:t=0.05"]
    cells = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        cells += [training.cell(arguments.data, spec, seed, **changes) for spec in specs]
        if cells[0]["dev"] or cells[0]["test"]:
            cells.append(training.untrained(arguments.data, seed, **changes))
    runs, code = flags.run_cells(training.train, cells, arguments, "train sentence")
    report.show(runs, arguments.json)
    for run in () if arguments.json else runs:
        if run.arguments["objective"] is not None:
            print_lines(f"{run.title}: {run.address}/model")
    return code


def _add_model(parser: argparse.ArgumentParser, root: str = "", items: str = "") -> Callable[..., argparse.Action]:
    """Add the flags of every evaluation, and return the method that adds further ones.

    ``items`` names the measure of which models are compared by items, if they are.
    """
    add = parser.add_argument
    model = "a SentenceTransformer, a checkpoint of transformers, or the folder of a run"
    model += "; several are compared with the first, item by item" * bool(items)
    add("model", nargs="+" if items else 1, help=model)
    parser.set_defaults(measure=items)
    if items:
        add("--items", type=flags.folder, metavar="FOLDER", help=f"write what {items} is computed of, per item (none)")
    add("--pooling", choices=POOLINGS, help=POOLING)
    add("--max-length", type=flags.whole(1), metavar="N", help="word pieces of a text (the model's limit)")
    add("--revision", metavar="NAME", help="revision of a model on the hub (the newest)")
    if root:
        flags.add_root(parser, root)
    add("--batch", type=flags.whole(1), default=64, metavar="N", help="texts embedded at a time (%(default)s)")
    flags.add_device(parser)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(check=_check_eval)
    return add


def _check_eval(arguments: argparse.Namespace) -> None:
    """Raise errors of the names of data and model; called before torch is imported."""
    from .locate import find

    if "root" in arguments:
        flags.check_root(arguments.root)
    retrieval.check(getattr(arguments, "data", ()), getattr(arguments, "split", ""))
    if len({*arguments.model}) < len(arguments.model):
        raise ValueError(f"model: expected different ones, got {' '.join(arguments.model)}.")
    for model in arguments.model:
        find(model, arguments.revision)


def _evaluate(
    arguments: argparse.Namespace, module: str, text: Callable[[Any], str], names: Sequence[str], **options: Any
) -> int:
    """Evaluate the models on the named sets or tasks by ``evaluate`` of a module, and print the reports."""
    from ..store.files import finite
    from ..store.progress import print_line
    from . import encode

    options |= {"batch_size": arguments.batch, "progress": not arguments.json}
    load = {name: getattr(arguments, name) for name in ("device", "revision", "max_length")}
    reports: dict[str, Any] = {}
    lengths: dict[str, int | None] = {}
    for name in arguments.model:
        if not arguments.json:
            print_line(f"loading {name}")
        model = encode.load(name, arguments.pooling, **load)
        lengths[name] = model.max_seq_length
        reports[name] = import_module(f".{module}", __package__).evaluate(model, names, **options)
        if not arguments.json:
            print_lines(*[f"{name}:"] * (len(arguments.model) > 1), *text(reports[name]).split("\n"))
    compared = _by_items(arguments, reports) if arguments.measure else []
    if len({*lengths.values()}) > 1:
        shown = ", ".join(f"{name} to {length}" for name, length in lengths.items())
        print_line(f"the models cut texts to different lengths, {shown} tokens: --max-length N makes them one")
    if arguments.json:
        fields = partial(asdict, dict_factory=lambda pairs: {name: value for name, value in pairs if name != "items"})
        plain = {name: fields(report) for name, report in reports.items()}
        several = {"models": plain, "items": [one.plain() for one in compared]}
        print(json.dumps(finite(several if len(reports) > 1 else plain.popitem()[1]), indent=1))
    else:
        for one in compared:
            print_lines(*(line for sentence in one.sentences() for line in wrap(sentence, 100)))
    return 0


def _by_items(arguments: argparse.Namespace, reports: dict[str, Any]) -> list[ItemReport]:
    """Write the items of each model and set, where that was asked for; compare the models on each set."""
    from ..items import of_rows, write
    from ..report.items import compare_items

    compared, shown = [], dict(zip(reports, reports if arguments.json else _distinct([*reports]), strict=True))
    sets = {name: getattr(report, "collections", None) or report.sets for name, report in reports.items()}
    fields = arguments.measure.split(":")
    measured = "Spearman" if len(fields) > 1 else fields[0]
    for part in next(iter(sets.values())):
        rows = {name: scores[part].items for name, scores in sets.items()}
        if arguments.items is not None:
            write(arguments.items, part, rows)
        if len(reports) > 1:
            models = {shown[x]: {0: of_rows(f"{x}, {part}", some, ["item", *fields])} for x, some in rows.items()}
            compared.append(compare_items(f"{part}, {measured}", next(iter(models)), models, seeds=False))
    return compared


def _distinct(names: list[str]) -> list[str]:
    """Return names without the folders at both ends that all share."""
    parts = [name.split("/") for name in names]
    for end in (0, -1):
        while min(map(len, parts)) > 1 == len({part[end] for part in parts}):
            parts = [part[1:] if end == 0 else part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def sts_arguments(parser: argparse.ArgumentParser) -> None:
    add = _add_model(parser, f"sts/, or SentEval's data, or hub (${ENVIRONMENT}, else hub)", "similarity:gold")
    names, default = f"{', '.join(STS)} (the first eight)", [*SEVEN, "SICKR-all"]
    add("--sets", nargs="+", choices=STS, default=default, metavar="SET", help=names)


def sts_command(arguments: argparse.Namespace) -> int:
    return _evaluate(arguments, "sts", sts_text, arguments.sets, data=arguments.root)


def transfer_arguments(parser: argparse.ArgumentParser) -> None:
    add = _add_model(parser, f"transfer/, or SentEval's data (${ENVIRONMENT})")
    names = f"{', '.join(TRANSFER)} (all)"
    add("--tasks", nargs="+", choices=TRANSFER, default=list(TRANSFER), metavar="TASK", help=names)
    add("--jobs", type=flags.whole(1), default=1, metavar="N", help="processes that fit classifiers (%(default)s)")


def transfer_command(arguments: argparse.Namespace) -> int:
    return _evaluate(arguments, "transfer", transfer_text, arguments.tasks, data=arguments.root, jobs=arguments.jobs)


def retrieval_arguments(parser: argparse.ArgumentParser) -> None:
    names = f"BEIR folders, names in ${ENVIRONMENT}/retrieval, nano or nano:NAME (all of the latter, else nano)"
    add = _add_model(parser, items=retrieval.HEADLINE)
    add("--data", nargs="+", default=[], metavar="DATA", help=names)
    add("--split", default="test", metavar="NAME", help="queries of qrels/NAME.tsv, such as dev (%(default)s)")


def retrieval_command(arguments: argparse.Namespace) -> int:
    return _evaluate(arguments, "retrieval", retrieval_text, arguments.data, split=arguments.split)


def mteb_arguments(parser: argparse.ArgumentParser) -> None:
    add = _add_model(parser)
    names = "mteb's names of tasks (Banking77Classification) or benchmarks ('MTEB(eng, v2)')"
    add("--tasks", nargs="+", required=True, metavar="NAME", help=names)
    add("--out", type=flags.folder, metavar="FOLDER", help="keep mteb's results here, and go on from them (none)")


def mteb_command(arguments: argparse.Namespace) -> int:
    from .mteb_tasks import find

    find(arguments.tasks)  # before the model
    return _evaluate(arguments, "mteb_tasks", mteb_text, arguments.tasks, out=arguments.out)


Cell = str | int | float | None

# the columns of SimCSE's own table
COLUMNS = {name: name for name in SEVEN} | {"STSB-test": "STSBenchmark", "SICKR-test": "SICKRelatedness"}


def sts_text(report: sts.Report) -> str:
    """Return SimCSE's table, and below it the other sets and remarks on the scores."""
    scores = {name: one.spearman for name, one in report.sets.items()}
    parts = []
    if scores.keys() & set(SEVEN):
        parts.append(grid([*COLUMNS.values(), "Avg."], [[*map(scores.get, SEVEN), report.average]]))
    if others := {name: value for name, value in scores.items() if name not in SEVEN}:
        parts.append(grid(others, [others.values()]))
    if g := report.geometry:
        parts.append(f"{g.of}: alignment {g.alignment:.3f}, uniformity {g.uniformity:.3f} (both: lower is better)")
    parts.append(f"{report.texts} distinct texts, each embedded once")
    dropped = {name: one.dropped for name, one in report.sets.items() if one.dropped}
    parts += [f"{name}: {count} pairs without a gold score left out" for name, count in dropped.items()]
    why = "undefined, as the model gives all its pairs the same similarity"
    parts += [f"{name}: {why}" for name, value in scores.items() if math.isnan(value)]
    return "\n".join(parts)


def transfer_text(report: transfer.Report) -> str:
    """Return a table like SimCSE's, whose average also includes SST2."""
    scores = {name: report.tasks[name].accuracy for name in TRANSFER if name in report.tasks}
    table = grid([*scores, "Avg."], [[*scores.values(), report.average]])
    return table + "".join(f"\n{name}: F1 {s.f1:.2f}" for name, s in report.tasks.items() if s.f1 is not None)


def retrieval_text(report: retrieval.Report) -> str:
    """Return the table of the collections, and their mean below."""
    scores = report.collections.items()
    rows: list[list[Cell]] = [[name, one.queries, one.documents, *one.metrics.values()] for name, one in scores]
    rows += [["mean", "", "", *report.mean.values()]] if report.mean else []
    return grid(["collection", "queries", "documents", *retrieval.METRICS], rows)


def mteb_text(report: mteb_tasks.Report) -> str:
    """Return the table of the tasks, and their mean below."""
    rows: list[list[Cell]] = [[name, one.kind, one.metric, one.score] for name, one in report.tasks.items()]
    rows += [["mean", "", "", report.mean]] if report.mean is not None else []
    return grid(["task", "type", "metric", "score"], rows)


def grid(header: Iterable[str], rows: Iterable[Iterable[Cell]]) -> str:
    """Draw a table with centered cells: words, counts, and scores, which are NaN if undefined, None if not computed."""
    table = [list(header), *(list(map(_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = ["|" + "|".join(c.center(w + 2) for c, w in zip(row, widths, strict=True)) + "|" for row in table]
    return "\n".join([rule, drawn[0], rule, *drawn[1:], rule])


def _cell(value: Cell) -> str:
    if isinstance(value, float):
        return "undef." if math.isnan(value) else f"{value:.2f}"
    return "-" if value is None else visible(str(value))
