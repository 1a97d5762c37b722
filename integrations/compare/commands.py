"""``counterpoint compare``; the parser needs no torch."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from counterpoint.plugins import inject, registry
from counterpoint.plugins.arguments import Parser, no_script, split_launcher

from .. import flags
from .metrics import FILES
from .settings import HOST, Settings, row

# of inject: what compare does itself, and what is not for comparing
NOT_HERE = ("objective", "json", "counts", "report", "verify", "start", "steps", "apply", "list", "explain")
DESCRIPTION = """\
An A/B test of objectives in a training script of your own, which is not edited.

The script runs through `counterpoint inject` once for each objective and seed. HOST says where its loss is;
`counterpoint inject --list` shows the hosts, and `auto` finds the loss. Add `host` to the objectives for the script's
own loss. The others have its temperature and denominator unless they name their own, so that one thing changes at a
time. A treatment also says what is not a negative: "host; duplicates", "hcl:beta=1; ids=batch['doc']". What you see at
the end is the report, with a verdict on each objective, and how long its steps took. A run in which the loss was not
reached, or less often than with the other objectives, is an error and left out.

seeds      --seed-flag --seed, the script's own flag; or {seed} among its arguments; or --set-seed for a script without
metrics    json:FILE:KEY          results.json:test.accuracy; of JSON lines the last one
           csv:FILE:COLUMN        the last row that has a value
           tensorboard:FOLDER:TAG the last step
           text:FILE:REGEX        the last match, with one group around the number
           output:REGEX           the same, in what the script prints
           python:FILE:FUNCTION   your function of the folder {out}, called when the script has ended
           script:FILE:FUNCTION   your function of the script's module, called in its process, if it stores nothing;
                                  both return a number or a dict of numbers
           npy:FILE               the mean of an array of scores per item, or Spearman's correlation of (n, 2)
           jsonl:FILE:ID:SCORE    the mean of a field of JSON lines; ID:SIMILARITY:GOLD for Spearman's correlation
           NAME=json:...          names it. FILE is looked up in {out}, then in the folder where the script runs, where
                                  it must have been written during the run; * stands for any characters
{out}      among the script's arguments: the folder of the run, -- train.py --output_dir {out}
--items    npy:FILE or jsonl:FILE:ID:SCORE: verdicts over the items of the test set, even with one seed
launchers  -- torchrun --nproc-per-node 2 train.py, accelerate launch or deepspeed; with --jobs, torchrun --standalone
--jobs 2   needs {out}, or --copy, where numbers are read from files: no run may read those of another
--tune 6   tries 6 settings of each objective, by a validation metric and with two seeds of its own: 12 runs each. The
           script's own loss stays as it is, and infonce, which is tuned, stands beside it. The row placebo is infonce
           tuned once more by other seeds: where the two differ, so do other rows by the luck of tuning
--fresh    The same command continues after Ctrl-C or a kill: finished runs are kept, and others begin anew. An edited
           script is another one; after changes to what it imports, begin with --fresh.
"""
OBJECTIVES = "what to compare: specs, treatments, and host for the script's own loss (required)"


def add_arguments(
    parser: argparse.ArgumentParser,
    description: str = DESCRIPTION,
    kind: type[Settings] = Settings,
    objectives: str = OBJECTIVES,
) -> None:
    """Add the arguments of ``counterpoint compare``, or of another command that runs a script of the user's."""
    parser.description = description
    parser.add_argument("host", nargs="?", help="the code base of the script, as for inject; auto finds its loss")
    _add_flags(parser, kind, objectives)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- [torchrun] train.py, or -m module, and its words")
    parser.set_defaults(check=_check)


def _add_flags(parser: argparse.ArgumentParser, kind: type[Settings], objectives: str) -> None:
    parser.take_flags = ("--seed-flag", "--steps-flag")  # type: ignore[attr-defined]
    flags.add_objective(parser, objectives, row)
    flags.add_settings(parser, kind)
    flags.add_runs(parser)
    parser.set_defaults(seeds=5)
    group = parser.add_argument_group("where the loss is")
    for action in (action for action in inject.options() if action.dest not in NOT_HERE):
        group._add_action(action)


def _check(arguments: argparse.Namespace) -> None:
    read(arguments, "compare", Settings)
    for fault in faults(arguments, arguments.settings, arguments.script):
        raise ValueError(fault)


def read(arguments: argparse.Namespace, command: str, kind: type[Settings]) -> None:
    """Read the flags between the host and ``--``; raise errors of names and files before torch is imported."""
    own = f"counterpoint {command} {arguments.host}"
    words, arguments.script = inject.split(arguments.script)
    parser = Parser(own, f"{own} [options] -- train.py ...")
    _add_flags(parser, kind, OBJECTIVES)
    for word in (word for word in words if word.endswith(".py") and not arguments.script):
        parser.refuse(word)  # which --objective or --metric would take for one of its own
    parser.parse_args(words, arguments)
    arguments.settings = kind(**flags.chosen(arguments, kind))
    if arguments.host is not None:
        registry.check(arguments.host)


def faults(arguments: argparse.Namespace, settings: Settings, script: Sequence[str]) -> Iterator[str]:
    if arguments.host is None:
        yield f"which host? Known: {', '.join(registry.names())}"
    launcher, script = split_launcher(script)
    if not script:
        yield "which script? Put it behind --, with its own arguments: -- train.py --epochs 1"
    if script[0] != "-m" and not Path(script[0]).is_file():
        yield no_script(script)
    if len(set(settings.objective)) < 2:
        rows = " ".join(settings.objective) or "none"
        own = "; behind the script, --objective is its own flag: put it before --" * ("--objective" in script)
        yield f"--objective: expected two or more, such as {HOST} hcl:t=0.1, got {rows}{own}"
    if settings.baseline is not None and settings.baseline not in settings.objective:
        yield f"--baseline {settings.baseline}: expected one of the objectives: {', '.join(settings.objective)}"
    if settings.margin is not None and not settings.margin >= 0:
        yield f"--margin: expected a number of at least 0, got {settings.margin}"
    if not settings.metric and not settings.items:
        yield "--metric: which number is compared? Such as json:results.json:accuracy"
    names = [metric.name for metric in (*settings.metric, settings.items) if metric]
    if twice := [name for name in names if names.count(name) > 1]:
        yield f"--metric: two are named {twice[0]!r}; name one of them, as in other=json:..."
    if (flag := settings.seed_flag or "-")[0] != "-":
        yield f"--seed-flag: expected a flag of the script, got {flag!r}. Did you mean '--{flag}'?"
    ways = settings.set_seed + (settings.seed_flag is not None) + any("{seed}" in word for word in script)
    if ways != 1:
        yield (
            f"how does the script get its seed? Expected one way, got {ways}: --seed-flag --seed for a flag of its "
            "own, {seed} among its arguments, or --set-seed, which seeds Python, numpy and torch before it starts"
        )
    if launcher and (settings.set_seed or "script" in [x.kind for x in (*settings.metric, settings.tune_metric) if x]):
        flag = "--set-seed" if settings.set_seed else "script:FILE:FUNCTION"
        yield f"{flag}: {launcher[0]} starts the script in further processes; expected a flag or a file of the script"
    yield from _file_faults(settings, script, flags.concurrent(arguments))
    if not settings.tune:
        for flag, value in (("--tune-metric", settings.tune_metric), ("--grid", settings.grid)):
            if value is not None:
                yield f"{flag}: has no effect without --tune N, the runs per objective"
    elif settings.tune_metric is None:
        yield "--tune: by which number? --tune-metric names one on validation data, such as json:FILE:KEY"
    elif settings.tune_metric[:3] in [metric[:3] for metric in settings.metric]:
        yield "--tune-metric: the number that is compared must not choose settings; name one of other data"


def _file_faults(settings: Settings, script: Sequence[str], jobs: int) -> Iterator[str]:
    here, file = Path.cwd(), Path(script[0])
    if settings.copy and (file.is_absolute() or not file.resolve().is_relative_to(here.resolve())):
        yield f"--copy: copies this folder; expected a script in it, relative to it, got {file}"
    for link in settings.link:
        if not settings.copy:
            yield f"--link {link}: has no effect without --copy"
        if Path(link).is_absolute() or not (here / link).exists():
            yield f"--link {link}: expected a file or folder in this one"
    metrics = (*settings.metric, settings.items, settings.tune_metric)
    read = [metric.text for metric in metrics if metric and metric.kind in FILES]
    if jobs > 1 and read and not settings.copy and not any("{out}" in word for word in script):
        yield (
            f"--jobs {jobs}: runs at the same time would overwrite what {read[0]} reads: let the script write to "
            "{out}, the folder of each run, as in -- train.py --output_dir {out}, or give each its own copy with --copy"
        )


def command(arguments: argparse.Namespace) -> int:
    """Run every objective with every seed, and print the report."""
    from counterpoint.plugins.host import SeamError

    from .comparison import Comparison

    try:
        return Comparison(arguments, inject.typed(arguments, NOT_HERE)).run()
    except SeamError as error:  # from checks; those of a run are stored with it
        raise ValueError(str(error)) from error
