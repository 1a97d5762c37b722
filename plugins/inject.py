"""Run an unmodified training script with another objective in the place of its loss.

    cd SimCSE && counterpoint inject simcse --objective "adnce:mu=0.4,t=0.07" -- train.py --model_name_or_path ...
    counterpoint inject auto --objective hcl -- torchrun --nproc-per-node 2 train.py ...

The clone is not edited. Its folder is put first on the path, shims for today's packages are applied where they are
needed, the seam is installed, and the script runs with its own arguments. At the end you see how many times the seam
was reached; if never, the script trained with its own loss, and the exit code is 3.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.spec import SpecError

from . import registry
from .arguments import Parser, as_flags, split_launcher
from .printing import print_lines

if TYPE_CHECKING:  # both import torch, which the parser must not
    from .host import Host, Seam

# of hosts that list them among their own
_OPTIONS = (
    "scale", "bias", "site", "product", "positives", "way", "weighted", "allow_drift", "replace", "as", "own", "steps",
    "json", "apply",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``counterpoint inject``."""
    parser.add_argument("host", nargs="?", help="the host code base; --list shows them")
    add_options(parser)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- [torchrun] train.py, or -m module, and its words")


def add_options(parser: argparse.ArgumentParser, host: Host | None = None) -> None:
    """Add the options. With a ``host``, hide those of other hosts; without one, say whose they are."""

    def only(option: str, hosts: str, text: str) -> str:
        if host is None:
            return f"{hosts}: {text}"
        return text if option in host.options else argparse.SUPPRESS

    add = parser.add_argument
    add("--objective", default="host", metavar="SPEC", help="what to train with; host is its own loss (%(default)s)")
    scale = "what similarities are multiplied by: a number, a name at the site, or changing (measured at first)"
    add("--scale", metavar="S", help=only("scale", "logits, clip and sentence_transformers only", scale))
    bias = "what is added to binary logits: a number, or a name at the site, self.logit_bias (measured)"
    add("--bias", metavar="B", help=only("bias", "logits only", bias))
    site = "a call of cross entropy to replace, or FILE:FUNCTION for all of a function; may be repeated (none)"
    add("--site", action="append", metavar="FILE:LINE", help=only("site", "logits only", site))
    product = "a product of embeddings, where no call takes its logits, and that of positives; may be repeated (none)"
    add("--product", action="append", metavar="FILE:LINE[,LINE]", help=only("product", "logits only", product))
    positives = "of unlabeled calls: diagonal, half, neighbor, a column's number, or a name at the site, of columns "
    positives += "or soft targets; or one for each site, with commas (none)"
    add("--positives", metavar="P", help=only("positives", "logits only", positives))
    way = "which entries of the logits compete: those of a row, of a column, or the mean of both losses (rows)"
    add("--way", choices=("rows", "columns", "both"), help=only("way", "logits only", way))
    weighted = "anchors have weights of their own, which they keep; else such a gradient is not the host's own loss's"
    add("--weighted", action="store_true", default=None, help=only("weighted", "logits only", weighted))
    drift = "go on where the gradient is no longer that of the host's own loss"
    add("--allow-drift", action="store_true", default=None, help=only("allow_drift", "all but auto", drift))
    part = "a part of the host's loss is meant to stay as it is, or the whole for its first or last steps"
    add("--only", action="store_true", help=part)
    replace = only("replace", "function only", "a function, with its parameters that are embeddings; repeatable (none)")
    add("--replace", action="append", metavar="FILE:FUNCTION(a, b)", help=replace)
    how = "pairing=one_way,normalize=false,cat=2,...: how the function compares embeddings, or each of them (none)"
    add("--as", action="append", metavar="KEY=VALUE,...", help=only("as", "function only", how))
    own = "the host's own loss, or that of each function, to compare with (of labels infonce; else the objective)"
    add("--own", action="append", metavar="SPEC", help=only("own", "logits and function only", own))
    add("--steps", type=int, metavar="N", help=only("steps", "auto only", "number of contrastive steps to watch (3)"))
    written = "write what was found to FILE, since the script prints to standard output (nowhere)"
    add("--json", type=Path, metavar="FILE", help=only("json", "auto only", written))
    apply = only("apply", "auto only", "then run the command that was found, without a launcher, with --verify 3")
    add("--apply", action="store_true", default=None, help=apply)
    verify = "train N calls with the host's own loss first; whether ours equals it is checked always (%(default)s)"
    add("--verify", type=int, default=0, metavar="N", help=verify)
    counts = "write the host's own loss, how often it was called, and the time between, to FILE as JSON (nowhere)"
    add("--counts", type=Path, metavar="FILE", help=counts)
    diagnostics = "append diagnostics of every step to FILE as JSON lines; those of --verify are marked (none)"
    add("--report", type=Path, metavar="FILE", help=diagnostics)
    start = "begin schedules at call N, for a host that resumes its training (%(default)s)"
    add("--start", type=int, default=0, metavar="N", help=start)
    shims = "the changes to today's packages that this host needs, for a fork or another script; cpu: .cuda() does "
    shims += "nothing on a machine without a GPU (the host's own)"
    add("--shims", metavar="HOST[:PACKAGE]", help=shims)
    add("--force", action="store_true", help="the script is a fork of the host, though it does not look like it")
    add("--no-shims", action="store_true", help="leave today's packages as they are")
    add("--list", action="store_true", help="list the hosts, where their losses sit and tested versions")
    add("--explain", action="store_true", help="describe the host, including its shims, and exit")


def command(args: argparse.Namespace) -> int:
    script = _script(args)
    from .host import OWN_LOSS, HalfError, Seam, SeamError, UnreachedError, is_first_process
    from .launch import LAUNCHER, Script, run, start

    if LAUNCHER in os.environ:  # which leaves its processes alive if it is killed
        end_with(os.getppid())
        if args.counts is not None:  # of a run that is stopped early, too
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        if sys.path[0] in ("", os.getcwd()):  # which -m puts there, but not torchrun train.py
            del sys.path[0]

    try:
        if args.list:
            print("\n\n".join(explain(registry.load(name)) for name in registry.names()))
            return 0
        if args.host is None:
            raise SeamError(f"which host? Known: {', '.join(registry.names())}.")
        registry.load(args.host)  # a wrong name before a wrong script
        if args.explain:
            folder = Path(script[0]).resolve().parent if (script := split_launcher(script)[1]) else None
            print(explain(registry.find(args.host, folder) if folder else registry.load(args.host)))
            return 0
        if not script:
            raise SeamError("which script? Put it behind --, with its own arguments: -- train.py --epochs 1")
        path, arguments = Script.of(script)
        is_fork = args.force or (args.shims or "").startswith(f"{args.host}:")
        host = registry.find(args.host, path.path.resolve().parent, is_fork)
        check(args, host)
        launcher, words = split_launcher(script)
        if launcher and args.apply:
            raise SeamError("--apply starts one process: leave it out, and start the command that auto prints")
        if launcher:
            return start(launcher, [args.host, *typed(args)], words)
    except (SeamError, ValueError) as error:
        print_lines(*f"counterpoint: {error}".rsplit("\n", 2 * isinstance(error, SpecError)), file=sys.stderr)
        return SeamError.code
    if host.name == "auto":
        from . import auto

        return auto.run_and_conclude(host, args, path, arguments, script)
    options = {name: getattr(args, name) for name in ("shims", *_OPTIONS)} | {"only": args.only or None}
    options["own"] = args.own if "replace" in host.options else (args.own or [None])[-1]
    # resolved now, since the script may change its working directory
    report, counts = (None if file is None else file.resolve() for file in (args.report, args.counts))
    # is_first_process() now, since process groups may be gone at the end
    seam = Seam(args.objective, args.verify, report, options, args.start, quiet=not is_first_process())
    failure, failed = None, False
    try:
        try:
            run(host, seam, path, arguments, use_shims=not args.no_shims)
        except SystemExit as stop:  # sys.exit(main()) may also be a success
            if stop.code:
                raise
        if not seam.calls:
            raise UnreachedError(
                f"nothing was replaced: the script never reached the seam ({host.seam}). "
                "`counterpoint inject auto` watches a script and says where its loss is."
            )
        seam.raise_if_half(ended=True)
    except SeamError as error:
        print_lines(f"counterpoint: {error}", file=sys.stderr)
        failure, failed = str(error), not isinstance(error, HalfError)
        return error.code
    finally:
        if counts is not None and not seam.quiet:
            own = " + ".join(sorted({*seam.owns.values()} - {OWN_LOSS})) or OWN_LOSS
            about = {"host": host.name, "objective": seam.spec, "own": own, "calls": seam.calls, "error": failure}
            excluded = [each["excluded"] for each in seam.counts()]
            about["excluded"] = max(excluded) if excluded and all(x >= 0 for x in excluded) else None  # NaN: unknown
            about |= {"first_gradient": seam.first, "notes": seam.notes}
            about |= {"step_seconds": seam.step_seconds, "training_seconds": sum(seam.gaps)}
            counts.write_text(json.dumps(about))
        if not seam.quiet and (seam.calls > 1 or seam.seen or not failed):  # else the error says all
            print_lines(*summary(host, seam, failed), file=sys.stderr)
    return 0


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words after the host into options, and the script with its arguments.

    argparse leaves out a ``--`` that comes first.
    """
    end = 0
    if words and words[0].startswith("-") and words[0] not in ("--", "-m"):
        end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:]


def _script(args: argparse.Namespace) -> list[str]:
    """Return the script and its arguments; parse options that stand between the host and ``--`` into ``args``."""
    words, script = split(args.script)
    if words:
        host = registry.load(args.host) if {"-h", "--help"} & {*words} and args.host in registry.names() else None
        parser = Parser(f"counterpoint inject {args.host}", "%(prog)s [options] -- train.py ...")
        if host:
            says = "says where the loss sits, and which tensors are there"
            parser.epilog = f"{parser.prog} --explain {says}. {host.hint}"
        add_options(parser, host)
        parser.parse_args(words, args)
    return script


def options() -> list[argparse.Action]:
    """Return the options of ``counterpoint inject``."""
    parser = Parser(add_help=False)
    add_options(parser)
    return parser._actions


def typed(args: argparse.Namespace, without: Sequence[str] = ()) -> list[str]:
    """Return the options that were typed, but for some."""
    actions = (action for action in options() if action.dest not in without)
    return as_flags({each.dest: x for each in actions if (x := getattr(args, each.dest)) != each.default})


def end_with(parent: int, every: float = 0.5) -> None:
    """End this process, and the group that it leads, when its ``parent`` has died."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        os.kill(-os.getpid() if os.getpgrp() == os.getpid() else os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def check(args: argparse.Namespace, host: Host) -> None:
    """Raise an error for options that would only fail, or have no effect, once the script runs."""
    from counterpoint.base import objective

    from .host import OWN_LOSS, SeamError
    from .launch import shims_of

    for name in _OPTIONS:
        if getattr(args, name) is not None and name not in host.options:
            have = [other for other in registry.names() if name in registry.load(other).options]
            flag = f"--{name.replace('_', '-')}"
            hint = f"; a flag of the script stands behind --: -- train.py {flag} ..."
            raise SeamError(f"{flag}: {host.name} has no such option, but {', '.join(have)}{hint}")
    for name in ("counts", "report", "json"):
        if (file := getattr(args, name)) is not None and not file.resolve().parent.is_dir():
            raise SeamError(f"--{name} {file}: its folder does not exist")
    numbers = {"verify": "calls to compare", "start": "calls so far", "steps": "contrastive steps to watch"}
    for name, what in numbers.items():
        least = 1 if name == "steps" else 0
        if (value := getattr(args, name)) is not None and value < least:
            raise SeamError(f"--{name} {value}: expected the number of {what}, {least} or more")
    if host.name == "auto":
        for name in ("verify", "counts", "report", "start"):
            if getattr(args, name):
                raise SeamError(f"--{name}: auto replaces nothing; give it to the command that auto prints")
    if args.shims is not None:
        if args.no_shims:
            raise SeamError("--shims and --no-shims exclude each other")
        shims_of(args.shims)
    for own in args.own or ():
        objective(own)
    if args.objective != OWN_LOSS and any(True for _ in objective(args.objective, like="infonce").parameters()):
        raise SeamError(
            f"{args.objective}: the host's optimizer does not update learned values, so they would keep their initial "
            "value; use a number or schedule(...)."
        )


def summary(host: Host, seam: Seam, failed: bool = False) -> list[str]:
    """Describe a run that has ended, in its last call if it has failed: calls, differences, and other places."""
    text = f"counterpoint: {host.name}: the loss was reached {seam.calls} time{'s' * (seam.calls != 1)}"
    replaced = seam.calls > 0 and not seam.uses_own_loss
    if replaced:
        full = {str(loss_fn) for loss_fn in seam._objectives.values()}
        meant = f" ({full.pop()})" if len(full) == 1 and "t=" not in seam.spec else ""
        text += f"; {seam.spec!r}{meant} trained in {max(seam.calls - seam.verify - failed, 0)} of them"
        text += f", after {seam.verify} of its own loss" * bool(seam.verify)
        text += "; the loss that the script prints is still its own"
    checked = []
    if seam.proofs:
        some = "all {} calls that were checked" if seam.proofs < seam.calls - failed else "{} of them"
        some += ", those of --verify among these" * bool(replaced and seam.verify)
        where = f"  checked: before replacing, the gradient at the {seam.proved_at} was that of the host's own loss in "
        checked = [f"{where}{some.format(seam.proofs)}, within {seam.worst:.2g}, relative"]
    seen = [] if seam.calls else [(place, *each) for place, calls in seam.seen.items() for each in calls.items()]
    text += "; seen instead:" * bool(seen)
    for counts in {str(each): each for each in seam.counts()}.values():  # several losses may leave out the same keys
        if counts["excluded"] >= 0:  # NaN where they were not counted
            text += "; for an anchor, its treatment left out {:.3g} keys on average".format(counts["excluded"])
        if not counts["excluded"] and re.search(r";\s*duplicates\s*(;|$)", seam.spec):
            text += ": it did nothing; with dropout or augmentation, equal samples do not embed equally"
            text += ": name them, duplicates=PATH"
        elif not counts["excluded"] and not re.search(r";\s*(labels|log_q|index|guide)\s*=", seam.spec):
            text += ": it did nothing"
        if empty := counts["without_negatives"]:
            text += f"; {empty:.2%} of the anchors had no negatives left but the least similar one"
    places = ["  {} with {}, {} times".format(*each) for each in seen]
    return [text, *checked, *places, *(f"  {place}: {note}" for place, note in seam.notes.items())]


def explain(host: Host) -> str:
    """Describe a host: where its loss is, which tensors are there, and which packages it needs."""
    lines = [
        f"{host.name}: {host.title}",
        f"  seam       {host.seam}",
        f"  tensors    {host.tensors}",
        f"  own loss   {host.spec}",
        f"  views      { {None: '', 1: 'none: ', 2: 'two: '}[host.max_views] }{host.views}",
        *([f"  hint       {host.hint}"] if host.hint else []),
        f"  tested     {host.tested}",
        *(f"  shim       {shim.name}: {shim.why}" for shim in host.shims),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m counterpoint.plugins.inject``, for launchers such as torchrun."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m counterpoint.plugins.inject", description=__doc__, formatter_class=layout)
    add_arguments(parser)
    return command(parser.parse_args(argv))


if __name__ == "__main__":
    # by its import name, so that there is one copy of this module and of its classes
    sys.exit(importlib.import_module("counterpoint.plugins.inject").main())
