"""Run an unmodified training script with another objective in the place of its loss.

    cd SimCSE && counterpoint inject simcse --objective "adnce:mu=0.4,t=0.07" -- train.py --model_name_or_path ...
    torchrun --nproc_per_node 2 -m counterpoint.plugins.inject simcse --objective hcl -- train.py ...

The clone is not edited. Its folder is put first on the path, shims for today's packages are applied where they are
needed, the seam is installed, and the script runs with its own arguments. At the end it is said how often the seam was
reached; if never, the exit code is 3, since then the host has trained with its own loss.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from importlib.machinery import ModuleSpec
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.multiprocessing

from counterpoint.hyper import nearest
from counterpoint.objective import objective

from .host import HOST, Host, Seam, SeamError, UnreachedError, first_process

BUILT_IN = ("simcse", "graphcl", "adnce_image", "curl", "moco", "lightly", "logits")
GROUP = "counterpoint.hosts"
OPTIONS = ("scale", "site", "scores")  # for those hosts that name them among their own
WIDTH = 100
USAGE, UNREACHED = SeamError.code, UnreachedError.code


def names() -> list[str]:
    """Built-in hosts, and those that installed packages register as entry points ``counterpoint.hosts``."""
    return [*BUILT_IN, *(entry.name for entry in metadata.entry_points(group=GROUP) if entry.name not in BUILT_IN)]


def load(name: str) -> Host:
    """The host of that name. No other is imported, so none that is broken gets in the way."""
    if name not in names():
        raise SeamError(f"unknown host {name!r}.{nearest(name, names())}")
    found: Host
    if name in BUILT_IN:
        found = importlib.import_module(f"counterpoint.plugins.{name}").HOST
    else:
        (entry, *_) = metadata.entry_points(group=GROUP, name=name)
        found = entry.load()
    return found


def find(name: str, folder: Path) -> Host:
    """The host of that name; refuses a clone that is another one."""
    host = load(name)
    if host.package and importlib.util.find_spec(host.package) is None:
        raise SeamError(f"{name}: the package {host.package} is not installed: pip install {host.package}")
    if host.markers and not host.recognises(folder):
        like = [other for other in names() if load(other).recognises(folder)]
        looks = f"it looks like {' or '.join(like)}" if like else "it looks like none of the hosts known here"
        raise SeamError(f"{folder} is no clone of {host.title}: {looks}. Run this in the clone's folder.")
    return host


def split(source: str, path: str) -> tuple[CodeType, CodeType]:
    """A script's definitions, and what it does from its last ``if __name__ == "__main__"`` on (all, without such).

    Earlier ones of these stay where they are, among the definitions, which may build on them.
    """
    body = ast.parse(source, path).body
    cut = max((i for i, node in enumerate(body) if _is_guard(node)), default=0)
    definitions, main = body[:cut], body[cut:]
    for node in definitions:
        if isinstance(node, ast.If):
            node.test = _AsMain().visit(node.test)
    future = [node for node in definitions if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return _compile(definitions, path), _compile([*future, *main], path)


class _AsMain(ast.NodeTransformer):
    """``__name__`` as the main script has it, while definitions are made under the script's own name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant("__main__"), node) if node.id == "__name__" else node


def _compile(body: list[ast.stmt], path: str) -> CodeType:
    # the script's own __future__ imports hold, those of this file do not
    return compile(ast.Module(body, []), path, "exec", dont_inherit=True)


def _is_guard(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    values = {side.value for side in sides if isinstance(side, ast.Constant)}
    return isinstance(node.test.ops[0], ast.Eq) and names == {"__name__"} and values == {"__main__"}


def install(host: Host, seam: Seam, shims: bool = True) -> Callable[[ModuleType], None]:
    """Shims and everything of the seam that can be installed before the script is loaded.

    Returns:
        What is left to be done once the script's definitions are there.
    """
    applied = [shim for shim in host.shims if shims and shim.apply()]
    for shim in applied:
        seam.say(f"shim {shim.name}: {shim.why}")
    if host.before is not None:
        host.before(seam)

    def finish(module: ModuleType) -> None:
        if host.after is not None:
            host.after(seam, module)
        for shim in applied:
            if shim.script is not None:
                shim.script(module)

    return finish


def run(host: Host, seam: Seam, script: Path, arguments: Sequence[str], shims: bool = True) -> None:
    """Runs ``script`` as ``python script arguments`` would, with the seam in place."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    finish = install(host, seam, shims)
    module = ModuleType(script.stem)
    module.__file__ = str(script.absolute())
    definitions, main = split(script.read_text(), module.__file__)
    # under its own name too, so that what it defines can be pickled and found again by other processes
    sys.modules[script.stem] = sys.modules["__main__"] = module
    exec(definitions, module.__dict__)
    finish(module)
    module.__name__ = "__main__"
    with _spawned_too(host, seam, shims), _started_again_too(script.resolve(), _words(host, seam, shims)):
        exec(main, module.__dict__)


class _Child:
    """A spawned process's function, with the seam installed in that process before it is called."""

    def __init__(
        self, function: Any, arguments: Sequence[Any], host: str, seam: Seam, shims: bool, counts: Path
    ) -> None:
        self.module, self.function = function.__module__, function.__qualname__
        self.arguments: Any = arguments
        self.host, self.seam, self.shims, self.counts = host, seam, shims, counts

    def __getstate__(self) -> dict[str, Any]:
        # bytes, since to read the script's own classes is to import the script, which must find the seam in place
        return {**vars(self), "arguments": bytes(ForkingPickler.dumps(self.arguments))}

    def __call__(self, rank: int) -> Any:
        seam = replace(self.seam, quiet=True, calls=0, replaced=[], differences=[], seen={}, _made={})
        line: dict[str, Any] = {}
        try:
            function = self._patched(load(self.host), seam)
            return function(rank, *pickle.loads(self.arguments))
        except SeamError as error:
            line = {"error": str(error), "code": error.code}
            raise
        finally:
            line |= {"calls": seam.calls, "differences": seam.differences, "seen": seam.seen}
            (self.counts / str(os.getpid())).write_text(json.dumps(line))

    def _patched(self, host: Host, seam: Seam) -> Any:
        finish = install(host, seam, self.shims)
        module = importlib.import_module(self.module)
        finish(module)
        return functools.reduce(getattr, self.function.split("."), module)


@contextmanager
def _spawned_too(host: Host, seam: Seam, shims: bool) -> Iterator[None]:
    """Processes started by ``torch.multiprocessing.spawn`` get the seam too, and what they count is added up here."""
    processes: Any = torch.multiprocessing
    original = processes.spawn
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder)

        def spawn(fn: Any, args: Sequence[Any] = (), *rest: Any, **how: Any) -> Any:
            # a child would first load the script by its path, without shims; a main module of that name it leaves alone
            main = sys.modules["__main__"]
            main.__spec__, spec = ModuleSpec("__main__", None), main.__spec__
            try:
                return original(_Child(fn, args, host.name, seam, shims, counts), (), *rest, **how)
            except processes.ProcessRaisedException:
                for line in map(_read, counts.iterdir()):
                    if "error" in line:
                        kind = UnreachedError if line["code"] == UnreachedError.code else SeamError
                        raise kind(line["error"]) from None
                raise
            finally:
                main.__spec__ = spec

        processes.spawn = spawn
        try:
            yield
        finally:
            processes.spawn = original
            for line in map(_read, counts.iterdir()):
                seam.calls += line["calls"]
                seam.differences += [tuple(pair) for pair in line["differences"]]
                for place, times in line["seen"].items():
                    seam.seen[place] = seam.seen.get(place, 0) + times


@contextmanager
def _started_again_too(script: Path, words: Sequence[str]) -> Iterator[None]:
    """Where the script starts itself again, as Lightning does for each device, that process gets the seam too.

    Args:
        words: of the command line, up to the script.
    """

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: Any, *rest: Any, **how: Any) -> None:
            if isinstance(args, (list, tuple)) and [*args[:1]] == [sys.executable] and _is(script, *args[1:2]):
                args = [sys.executable, "-m", "counterpoint.plugins.inject", *words, "--", *args[1:]]
            super().__init__(args, *rest, **how)

    original, processes = subprocess.Popen, vars(subprocess)
    processes["Popen"] = Popen
    try:
        yield
    finally:
        processes["Popen"] = original


def _is(script: Path, named: Any = "") -> bool:
    return Path(named).is_file() and script.samefile(named)


def _words(host: Host, seam: Seam, shims: bool) -> list[str]:
    """The command line that asks for this seam."""
    given = {"objective": seam.spec, "verify": seam.verify, "start": seam.start, "report": seam.report, **seam.options}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [host.name, *words, *([] if shims else ["--no-shims"])]


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def summary(host: Host, seam: Seam) -> str:
    """What is said at the end."""
    text = f"counterpoint: {host.name}: the seam was reached {seam.calls} times"
    if seam.differences:
        absolute, relative = (max(column) for column in zip(*seam.differences, strict=True))
        text += f"; the host's loss and ours differ by at most {absolute:.2g}, relative {relative:.2g}, "
        text += f"in {len(seam.differences)} steps"
    if not seam.calls and seam.seen:
        text += "; seen instead:" + "".join(f"\n  {place}, {times} times" for place, times in seam.seen.items())
    return text


def explain(host: Host) -> str:
    """All that is known of a host, for people."""
    lines = [
        f"{host.name}: {host.title}",
        f"  seam       {host.seam}",
        f"  tensors    {host.tensors}",
        f"  own loss   {host.spec}",
        f"  views      {host.views or 'as many as the objective asks for'}",
        *([f"  hint       {host.hint}"] if host.hint else []),
        f"  tested     {host.tested}",
    ]
    lines += [f"  shim       {shim.name}: {shim.why}" for shim in host.shims]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``counterpoint inject``."""
    parser.add_argument("host", nargs="?", help="the host code base; --list shows them")
    _add_options(parser)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- train.py and its own arguments")


def _add_options(parser: argparse.ArgumentParser, host: Host | None = None) -> None:
    """The options; of those that not all hosts have, only this ``host``'s are shown."""

    def only(option: str, who: str, text: str) -> str:
        if host is None:
            return f"{who}: {text}"
        return text if option in host.options or (option == "views" and host.many) else argparse.SUPPRESS

    scores = only("scores", "curl only", "what is compared; by default what the objective needs")
    parser.add_argument("--objective", default=HOST, metavar="SPEC", help="what to train with; 'host': its own loss")
    parser.add_argument("--views", type=int, metavar="M", help=only("views", "where it can be had", "views per sample"))
    parser.add_argument(
        "--scale", type=float, metavar="S", help=only("scale", "logits only", "what similarities were multiplied by")
    )
    parser.add_argument(
        "--site",
        metavar="FILE:LINE",
        help=only("site", "logits only", "the one call of cross entropy that is replaced"),
    )
    parser.add_argument("--scores", choices=("bilinear", "cosine"), help=scores)
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="take the first N steps with the host's loss, and compare"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="append diagnostics of every step as JSON lines")
    parser.add_argument(
        "--start",
        type=int,
        default=0,
        metavar="N",
        help="begin schedules at call N, where the host resumes its training",
    )
    parser.add_argument("--no-shims", action="store_true", help="leave today's packages as they are")
    parser.add_argument("--list", action="store_true", help="list the hosts, their seams and tested versions")
    parser.add_argument("--explain", action="store_true", help="say all about the host, its shims included, and stop")


def _epilog(host: Host) -> str:
    told = f"counterpoint inject {host.name} --explain says where the loss sits, and which tensors are there"
    return textwrap.fill(f"{told}; {host.hint}" if host.hint else told, WIDTH)


def _separate(given: argparse.Namespace) -> list[str]:
    """The script and its arguments; options that stand between the host and ``--`` are read into ``given``.

    argparse hands over all that follows the host as it is.
    """
    words: list[str] = given.script
    if words and words[0].startswith("-") and words[0] != "--":
        end = words.index("--") if "--" in words else len(words)
        host = load(given.host) if given.host in names() else None
        late = argparse.ArgumentParser(
            f"counterpoint inject {given.host}",
            usage="%(prog)s [options] -- train.py ...",
            epilog=_epilog(host) if host else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_options(late, host)
        late.parse_args(words[:end], given)
        words = words[end:]
    return words[1:] if words[:1] == ["--"] else words


def _check(given: argparse.Namespace, host: Host) -> None:
    """Refuses what could only fail, or do nothing, once the script runs."""
    if given.views is not None and given.views < 2:
        raise SeamError(f"--views {given.views}: a contrastive objective needs two views or more")
    if given.views is not None and not host.many:
        raise SeamError(f"--views: {host.name} has two. {host.views}")
    for name in OPTIONS:
        if getattr(given, name) is not None and name not in host.options:
            raise SeamError(f"--{name}: {host.name} has no such option")
    for option, what in (("verify", "the number of steps to compare"), ("start", "the number of calls so far")):
        if getattr(given, option) < 0:
            raise SeamError(f"--{option} {getattr(given, option)}: expected {what}, 0 or more")
    if given.report is not None and not given.report.resolve().parent.is_dir():
        raise SeamError(f"--report {given.report}: there is no such folder")
    if given.objective != HOST and any(True for _ in objective(given.objective).parameters()):
        raise SeamError(
            f"{given.objective}: the host's optimiser does not know what is learned here, so that it would stay as it "
            "is; give a number or schedule(...)."
        )


def command(given: argparse.Namespace) -> int:
    """Carries out ``counterpoint inject``; returns the exit code."""
    script = _separate(given)
    try:
        if given.list:
            print("\n\n".join(explain(load(name)) for name in names()))
            return 0
        if given.host is None:
            raise SeamError(f"which host? Known: {', '.join(names())}.")
        if given.explain:
            print(explain(find(given.host, Path(script[0]).resolve().parent) if script else load(given.host)))
            return 0
        if not script:
            raise SeamError("which script? Put it behind --, with its own arguments: -- train.py --epochs 1")
        path = Path(script[0])
        if not path.is_file():
            raise SeamError(f"no script {path}")
        host = find(given.host, path.resolve().parent)
        _check(given, host)
    except (SeamError, ValueError) as error:
        print(f"counterpoint: {error}", file=sys.stderr)
        return USAGE
    options = {name: getattr(given, name) for name in ("views", *OPTIONS)}
    # as seen from here, whatever folder the script works in
    report = None if given.report is None else given.report.resolve()
    # who speaks is settled now: at the end, the processes may have parted already
    seam = Seam(given.objective, given.verify, report, options, given.start, quiet=not first_process())
    try:
        try:
            run(host, seam, path, script[1:], shims=not given.no_shims)
        except SystemExit as stop:  # scripts also end well by sys.exit(main())
            if stop.code:
                raise
        if not seam.calls:
            raise UnreachedError(f"the host has trained with its own loss: {host.seam} was never reached")
    except SeamError as error:
        print(f"counterpoint: {error}", file=sys.stderr)
        return error.code
    finally:
        if not seam.quiet:
            print(summary(host, seam), file=sys.stderr)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m counterpoint.plugins.inject",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return command(parser.parse_args(argv))


if __name__ == "__main__":
    # by its import name, so that there is one copy of this module and of its classes
    sys.exit(importlib.import_module("counterpoint.plugins.inject").main())
