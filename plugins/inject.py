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
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.multiprocessing

from counterpoint.hyper import nearest
from counterpoint.objective import objective
from counterpoint.plugins.host import HOST, Host, Seam, SeamError

BUILT_IN = ("simcse", "graphcl", "adnce_image", "curl", "moco", "lightly", "logits")
USAGE, UNREACHED = 2, 3


def hosts() -> dict[str, Host]:
    """Built-in hosts, and those that installed packages register as entry points ``counterpoint.hosts``."""
    found = [importlib.import_module(f"counterpoint.plugins.{name}").HOST for name in BUILT_IN]
    found += [entry.load() for entry in metadata.entry_points(group="counterpoint.hosts")]
    return {host.name: host for host in found}


def find(name: str, folder: Path) -> Host:
    """The host of that name; refuses a clone that is another one."""
    known = hosts()
    if name not in known:
        raise SeamError(f"unknown host {name!r}.{nearest(name, known)}")
    host = known[name]
    if host.package and importlib.util.find_spec(host.package) is None:
        raise SeamError(f"{name}: the package {host.package} is not installed: pip install {host.package}")
    if host.markers and not host.recognises(folder):
        like = [other.name for other in known.values() if other.recognises(folder)]
        looks = f"it looks like {' or '.join(like)}" if like else "it looks like none of the hosts known here"
        raise SeamError(f"{folder} is no clone of {host.title}: {looks}. Run this in the clone's folder.")
    return host


def split(source: str, path: str) -> tuple[CodeType, CodeType]:
    """A script's definitions, and what it does under ``if __name__ == "__main__"`` (all of it if there is no such)."""
    tree = ast.parse(source, path)
    guarded = [node for node in tree.body if _is_guard(node)]
    empty = ast.Module([], [])
    if not guarded:
        return compile(empty, path, "exec"), compile(tree, path, "exec")
    body = ast.Module([node for node in tree.body if node not in guarded], [])
    return compile(body, path, "exec"), compile(ast.Module(list(guarded), []), path, "exec")


def _is_guard(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    values = {side.value for side in sides if isinstance(side, ast.Constant)}
    return names == {"__name__"} and values == {"__main__"}


def install(host: Host, seam: Seam, shims: bool = True) -> None:
    """Shims and everything of the seam that can be installed before the script is loaded."""
    for shim in host.shims if shims else ():
        if shim.apply():
            seam.say(f"shim {shim.name}: {shim.why}")
    if host.before is not None:
        host.before(seam)


def run(host: Host, seam: Seam, script: Path, arguments: Sequence[str], shims: bool = True) -> None:
    """Runs ``script`` as ``python script arguments`` would, with the seam in place."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    install(host, seam, shims)
    module = ModuleType(script.stem)
    module.__file__ = str(script.resolve())
    definitions, main = split(script.read_text(), str(script))
    # under its own name too, so that what it defines can be pickled and found again by other processes
    sys.modules[script.stem] = sys.modules["__main__"] = module
    exec(definitions, module.__dict__)
    if host.after is not None:
        host.after(seam, module)
    module.__name__ = "__main__"
    with _spawned_too(host, seam, shims):
        exec(main, module.__dict__)


class _Child:
    """A spawned process's function, with the seam installed in that process before it is called."""

    def __init__(self, function: Any, host: str, seam: Seam, shims: bool, counts: Path) -> None:
        self.module, self.function = function.__module__, function.__qualname__
        self.host, self.seam, self.shims, self.counts = host, seam, shims, counts

    def __call__(self, *args: Any) -> Any:
        host, seam = hosts()[self.host], replace(self.seam, calls=0, replaced=[], differences=[], _made={})
        install(host, seam, self.shims)
        module = importlib.import_module(self.module)
        if host.after is not None:
            host.after(seam, module)
        function: Any = module
        for name in self.function.split("."):
            function = getattr(function, name)
        try:
            return function(*args)
        finally:
            line = {"calls": seam.calls, "differences": seam.differences}
            (self.counts / str(os.getpid())).write_text(json.dumps(line))


@contextmanager
def _spawned_too(host: Host, seam: Seam, shims: bool) -> Iterator[None]:
    """Processes started by ``torch.multiprocessing.spawn`` get the seam too, and what they count is added up here."""
    original = torch.multiprocessing.spawn
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder)

        def spawn(fn: Any, *args: Any, **how: Any) -> Any:
            return original(_Child(fn, host.name, seam, shims, counts), *args, **how)

        torch.multiprocessing.spawn = spawn
        try:
            yield
        finally:
            torch.multiprocessing.spawn = original
            for file in counts.iterdir():
                line = json.loads(file.read_text())
                seam.calls += line["calls"]
                seam.differences += [tuple(pair) for pair in line["differences"]]


def summary(host: Host, seam: Seam) -> str:
    """What is said at the end."""
    text = f"counterpoint: {host.name}: the seam was reached {seam.calls} times"
    if seam.differences:
        absolute, relative = (max(column) for column in zip(*seam.differences, strict=True))
        text += f"; the host's loss and ours differ by at most {absolute:.2g}, relative {relative:.2g}, "
        text += f"in {len(seam.differences)} steps"
    return text


def explain(host: Host) -> str:
    """All that is known of a host, for people."""
    lines = [
        f"{host.name}: {host.title}",
        f"  seam       {host.seam}",
        f"  tensors    {host.tensors}",
        f"  own loss   {host.spec}",
        f"  views      {host.views or 'as many as the objective asks for'}",
        f"  tested     {host.tested}",
    ]
    lines += [f"  shim       {shim.name}: {shim.why}" for shim in host.shims]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``counterpoint inject``."""
    parser.add_argument("host", nargs="?", help="the host code base; --list shows them")
    parser.add_argument("--objective", default=HOST, metavar="SPEC", help="what to train with; 'host': its own loss")
    parser.add_argument("--scale", type=float, metavar="S", help="logits only: what similarities were multiplied by")
    parser.add_argument(
        "--site", metavar="FILE:LINE", help="logits only: the call of cross entropy to replace"
    )
    parser.add_argument("--verify", type=int, default=0, metavar="N", help="compare with the host's loss in N steps")
    parser.add_argument("--report", type=Path, metavar="FILE", help="append diagnostics of every step as JSON lines")
    parser.add_argument("--no-shims", action="store_true", help="leave today's packages as they are")
    parser.add_argument("--list", action="store_true", help="list the hosts, their seams and tested versions")
    parser.add_argument("--explain", action="store_true", help="say all about the host, its shims included, and stop")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- train.py and its own arguments")


def command(given: argparse.Namespace) -> int:
    """Carries out ``counterpoint inject``; returns the exit code."""
    try:
        if given.list:
            print("\n\n".join(explain(host) for host in hosts().values()))
            return 0
        if given.host is None:
            raise SeamError(f"which host? Known: {', '.join(hosts())}.")
        if given.explain:
            print(explain(find(given.host, Path.cwd()) if given.script else hosts()[given.host]))
            return 0
        script = [word for i, word in enumerate(given.script) if i or word != "--"]
        if not script:
            raise SeamError("which script? Put it behind --, with its own arguments: -- train.py --epochs 1")
        path = Path(script[0])
        if not path.is_file():
            raise SeamError(f"no script {path}")
        host = find(given.host, path.resolve().parent)
        if given.objective != HOST:
            objective(given.objective)
    except (SeamError, ValueError, KeyError) as error:
        print(f"counterpoint: {error}", file=sys.stderr)
        return USAGE
    seam = Seam(given.objective, given.verify, given.report, {"scale": given.scale, "site": given.site})
    try:
        run(host, seam, path, script[1:], shims=not given.no_shims)
    except SeamError as error:
        print(f"counterpoint: {error}", file=sys.stderr)
        return USAGE
    finally:
        print(summary(host, seam), file=sys.stderr)
    if not seam.calls:
        print(f"counterpoint: the host has trained with its own loss: {host.seam} was never reached", file=sys.stderr)
        return UNREACHED
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
