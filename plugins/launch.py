"""Run an unmodified training script with the seam in place, also in the processes that the script starts."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import itertools
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import registry, shims
from .arguments import as_flags, no_script, split_launcher
from .host import OWN_LOSS, PATIENCE, WHOLE, DifferenceError, Host, Seam, SeamError, Shim, UnreachedError

_GUARDS = ("__name__ == '__main__'", "'__main__' == __name__")
LAUNCHER = "COUNTERPOINT_LAUNCHER"  # in the processes that a launcher starts: its words


@dataclass(frozen=True)
class Script:
    """The script to run: ``train.py``, or with ``-m`` the module ``package.train``."""

    path: Path
    name: str
    package: str = ""

    @classmethod
    def of(cls, words: Sequence[str]) -> tuple[Script, list[str]]:
        """Return the script and its arguments from the words behind ``--``."""
        launcher, words = split_launcher(words)
        if not words:
            raise SeamError(f"which script? Put it behind the launcher: -- {shlex.join(launcher)} train.py")
        if words[0] != "-m":
            path = Path(words[0])
            if not path.is_file():
                raise SeamError(no_script(words))
            return cls(path, path.stem), [*words[1:]]
        if len(words) < 2:
            raise SeamError("-m: which module? -- -m package.train --epochs 1")
        sys.path.insert(0, os.getcwd())  # python -m puts it there
        try:
            spec = importlib.util.find_spec(words[1])
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{words[1]}.__main__")
        except ImportError as error:
            if not isinstance(error, ModuleNotFoundError) or not words[1].startswith(error.name or words[1]):
                raise SeamError(f"-m {words[1]}: its package cannot be imported: {error}") from error
            spec = None
        if spec is None or not spec.has_location or spec.origin is None:
            raise SeamError(f"-m {words[1]}: no such module here, or nothing in it that can be run")
        return cls(Path(spec.origin), spec.name, spec.parent or ""), [*words[2:]]


def start(launcher: Sequence[str], command: Sequence[str], script: Sequence[str]) -> int:
    """Start a launcher, ``torchrun --nproc-per-node 2``, whose processes run a script with the seam in place.

    ``command`` are the arguments of ``counterpoint inject`` before ``--``. Returns the launcher's exit code.
    """
    name, *options = launcher if launcher[0] != "-m" else ["python", *launcher]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = sys.executable if Path(name).name.startswith("python") else shutil.which(name, path=beside)
    if program is None:
        raise SeamError(f"{name}: not found; is it installed in this environment?")
    module = "--module" if Path(name).name == "deepspeed" else "-m"
    words = [program, *options, module, "counterpoint.plugins.inject", *command, "--", *script]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # to end what was started
    with subprocess.Popen(words, env=os.environ | {LAUNCHER: shlex.join(launcher)}) as process:
        try:
            return process.wait()
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)  # a signal to the whole group has reached it: a second one would disturb its end
            process.terminate()


def run(host: Host, seam: Seam, script: Script | Path, arguments: Sequence[str], use_shims: bool = True) -> None:
    """Run ``script`` as ``python script arguments`` would, with the seam in place."""
    script = Script(script, script.stem) if isinstance(script, Path) else script
    sys.argv = [str(script.path), *arguments]
    os.environ.setdefault("HYDRA_MAIN_MODULE", "__main__")  # its configs are beside the file, in no package
    if not script.package:
        sys.path.insert(0, str(script.path.resolve().parent))
    try:
        finish = install(host, seam, use_shims)
        module = ModuleType(script.name)
        module.__file__, module.__package__ = str(script.path.absolute()), script.package
        definitions, main = _split(script.path.read_text(), module.__file__, seam.behind)
        # under its own name too, so that other processes can unpickle what it defines
        sys.modules[script.name] = sys.modules["__main__"] = module
        exec(definitions, module.__dict__)
        finish(module)
        module.__name__ = "__main__"
        _patch_popen(seam, script.path.resolve(), _command_line(host, seam, use_shims))
        with _patched_spawn(host, seam, use_shims):
            exec(main, module.__dict__)
    finally:
        seam.end()


def install(host: Host, seam: Seam, use_shims: bool = True) -> Callable[[ModuleType], None]:
    """Apply the shims, check the objective, and install the hooks that need no loaded script.

    Returns:
        A function that installs the rest; call it with the script's module when its definitions are loaded.
    """
    like = seam.options.get("shims")
    try:
        needed = [*(shims_of(like) if like else ()), *(host.shims if like in (None, "cpu") else ())]
        applied = shims.apply(needed) if use_shims else []
    except ModuleNotFoundError as error:
        raise SeamError(
            f"the shims of {like or host.name} change the package {error.name!r}, which cannot be imported: a fork's "
            "package is named with --shims HOST:PACKAGE, and --no-shims leaves all packages as they are"
        ) from error
    for shim in applied:
        seam.say(f"shim {shim.name}: {shim.why}")
    if seam.spec != OWN_LOSS:
        host.check(seam.spec)
    if host.before is not None:
        host.before(seam)
    if host.name != "auto" and not seam.options.get("only"):
        _watch_steps(host, seam)

    def finish(module: ModuleType) -> None:
        for patch in seam.patches:
            patch(module)
        if host.after is not None:
            host.after(seam, module)
        for shim in applied:
            if shim.script is not None:
                shim.script(module)

    return finish


def _watch_steps(host: Host, seam: Seam) -> None:
    """Stop a script whose loss was not reached in its first steps, not when a training of days has ended.

    Of an optimizer that has trained with it, note that it goes on without it.
    """
    steps, calls = itertools.count(1), 0
    without: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()  # steps, and the most in between

    def step(optimizer: object, *_: object) -> None:
        nonlocal calls
        if not seam.calls and next(steps) == PATIENCE:
            raise UnreachedError(
                f"the host trains with its own loss: in {PATIENCE} steps of an optimizer, the seam was never reached "
                f"({host.seam}){'; seen: ' * bool(seam.seen)}{', '.join(seam.seen)}. `counterpoint inject auto` "
                "watches a script and says where its loss is. If it comes to this loss later, say --only."
            )
        now, most = without.get(optimizer, (0, 0))
        if seam.calls > calls:
            without[optimizer], calls = (0, max(now, most)), seam.calls
            seam.notes.pop("afterwards", None)
        elif optimizer in without:
            without[optimizer] = now + 1, most
            if now + 1 >= max(WHOLE, 3 * most):
                seam.notes["afterwards"] = (
                    f"its optimizer took {now + 1} more steps without this loss: the script trained with another one "
                    "there, which was not replaced"
                )

    uncompiled: Any = torch.compiler.disable(step)  # with which an optimizer would be compiled anew in each step
    seam.at_end.append(register_optimizer_step_post_hook(uncompiled).remove)


def shims_of(text: str) -> tuple[Shim, ...]:
    """Return the shims of ``HOST`` or ``cpu``, or of ``HOST:PACKAGE`` for a fork whose package has another name."""
    name, _, package = text.partition(":")
    own = shims.of(name)
    if not package:
        return own
    changes = sys.modules.get(f"{shims.__name__}.{name}")
    if not hasattr(changes, "shims"):
        raise SeamError(f"--shims {text}: the shims of {name} are the same for every package")
    return tuple(changes.shims(package))  # type: ignore[union-attr]


def _split(source: str, path: str, behind: Sequence[str]) -> tuple[CodeType, CodeType]:
    """Split a script at its last ``if __name__ == "__main__"``; without one, behind these definitions, else the last.

    Earlier guards stay among the definitions, which may depend on them.
    """
    body = ast.parse(source, path).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {i + 1: node.name for i, node in enumerate(body) if isinstance(node, kinds)}
    last = max((i for i in defined if defined[i] in behind), default=max(defined, default=0))
    guards = (i for i, node in enumerate(body) if isinstance(node, ast.If) and ast.unparse(node.test) in _GUARDS)
    cut = max(guards, default=last)
    definitions, main = body[:cut], body[cut:]
    for node in definitions:
        if isinstance(node, ast.If):
            node.test = _NameIsMain().visit(node.test)
    future = [node for node in definitions if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return _compile(definitions, path), _compile([*future, *main], path)


class _NameIsMain(ast.NodeTransformer):
    """Replace ``__name__`` by its value in a main script: the definitions run under the script's own name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant("__main__"), node) if node.id == "__name__" else node


def _compile(body: list[ast.stmt], path: str) -> CodeType:
    # with the script's own __future__ imports, without those of this file
    return compile(ast.Module(body, []), path, "exec", dont_inherit=True)


_COUNTS = ("gaps", "calls", "proofs", "worst", "proved_at", "first", "seen", "replaced", "notes")


class _Child:
    """The function of a spawned process; installs the seam in that process before it calls the script's function."""

    def __init__(self, function: Any, arguments: Any, host: str, seam: Seam, use_shims: bool, results: Path) -> None:
        self.module, self.function, self.arguments = function.__module__, function.__qualname__, arguments
        self.host, self.use_shims, self.results = host, use_shims, results
        self.seam = Seam(seam.spec, seam.verify, seam.report, seam.options, seam.start, quiet=True)

    def __getstate__(self) -> dict[str, Any]:
        # bytes: unpickling the script's own classes imports the script, which must find the seam in place
        return {**vars(self), "arguments": bytes(ForkingPickler.dumps(self.arguments))}

    def __call__(self, rank: int) -> Any:
        result: dict[str, Any] = {}
        try:
            finish = install(registry.load(self.host), self.seam, self.use_shims)
            module = importlib.import_module(self.module)
            finish(module)
            function: Any = functools.reduce(getattr, self.function.split("."), module)
            return function(rank, *pickle.loads(self.arguments))
        except SeamError as error:
            result = {"error": str(error), "code": error.code}
            raise
        finally:
            result |= {name: getattr(self.seam, name) for name in _COUNTS} | {"counts": [*self.seam.counts()]}
            (self.results / str(os.getpid())).write_text(json.dumps(result))


@contextmanager
def _patched_spawn(host: Host, seam: Seam, use_shims: bool) -> Iterator[None]:
    """Install the seam in processes that ``torch.multiprocessing.spawn`` starts, and add up their counts here."""
    processes: Any = torch.multiprocessing
    original = processes.spawn
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)

        def spawn(fn: Any, args: Sequence[Any] = (), *rest: Any, **options: Any) -> Any:
            # a child loads the parent's main script by its path, without shims, unless it has this module spec
            main = sys.modules["__main__"]
            main.__spec__, spec = ModuleSpec("__main__", None), main.__spec__
            try:
                return original(_Child(fn, args, host.name, seam, use_shims, results), (), *rest, **options)
            except processes.ProcessRaisedException:
                for result in _read(results):
                    if "error" in result:
                        kinds = {kind.code: kind for kind in (UnreachedError, DifferenceError)}
                        raise kinds.get(result["code"], SeamError)(result["error"]) from None
                raise
            finally:
                main.__spec__ = spec

        seam.put(processes, "spawn", spawn)
        try:
            yield
        finally:
            for result in _read(results):
                seam.gaps += result["gaps"]
                seam.calls += result["calls"]
                seam.proofs, seam.worst = seam.proofs + result["proofs"], max(seam.worst, result["worst"])
                seam.proved_at = seam.proved_at or result["proved_at"]
                seam.first = max(seam.first, result["first"])
                seam.notes |= result["notes"]
                seam.in_processes = result["counts"] or seam.in_processes
                for name, places in (("seen", seam.seen), ("replaced", seam.replaced)):
                    for place, calls in result[name].items():
                        total = places.setdefault(place, {})
                        total |= {shape: total.get(shape, 0) + n for shape, n in calls.items()}


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in results.iterdir()]


def _patch_popen(seam: Seam, script: Path, command_line: Sequence[str]) -> None:
    """Install the seam in processes that run the script again, as Lightning does for each device.

    ``command_line`` are arguments of ``counterpoint inject`` that ask for this seam.
    """

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
            program, *words = args if isinstance(args, (list, tuple)) and args else [""]
            if program == sys.executable and words and Path(words[0]).is_file() and script.samefile(words[0]):
                args = [sys.executable, "-m", "counterpoint.plugins.inject", *command_line, "--", *words]
            super().__init__(args, *rest, **options)

    seam.put(subprocess, "Popen", Popen)


def _command_line(host: Host, seam: Seam, use_shims: bool) -> list[str]:
    options = {"objective": seam.spec, "verify": seam.verify, "start": seam.start, "report": seam.report}
    return [host.name, *as_flags({**options, **seam.options, "no_shims": not use_shims})]
