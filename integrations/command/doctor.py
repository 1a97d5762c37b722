"""``counterpoint doctor``: what this installation can run, and what to install for the rest."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import counterpoint as cp
from counterpoint.install import install

from .. import flags

DOMAINS = ("sentence", "graph", "image", "control")
EXTRAS = (*DOMAINS, "plots", "report", "cli", "hub", "export", "track", "tune", "cluster", "s3", "gcs")
UNTESTED = "counterpoint has been tested on CPUs only; its GPU kernels run only with engine='fused'"
RENDERERS = {"egl": "libegl1", "osmesa": "libosmesa6"}  # and the Debian and Ubuntu packages that provide them
# run in processes of their own, since dm_control chooses its renderer once, when it is imported
LOAD = """
from dm_control import suite
physics = suite.load("cartpole", "balance").physics
"""
RENDER = """
frame = physics.render(8, 8, camera_id=0)
raise SystemExit(0 if frame.any() else "the picture is black")
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    about: str  # python, extra, device, renderer, data or conflict
    name: str  # what was checked
    state: str  # ok; missing, which is not an error; or bad, which is one
    text: str
    fix: str = ""


# packages that do not work together: one from this version on with another that is older than this; why, and the fix
CONFLICTS = (
    ("mujoco", "4", "dm-control", "1.0.51", "its Python bindings changed", 'pip install "mujoco<4"'),
    ("numpy", "2", "torch", "2.3", "this torch was built for numpy 1", 'pip install "numpy<2"'),
    ("huggingface-hub", "1", "transformers", "5", "it imports removed names", 'pip install "transformers>=5"'),
)


def findings(data: Path | None = None) -> Iterator[Finding]:
    """Run all checks, the most basic first; ``data`` is a folder as ``COUNTERPOINT_DATA`` names it."""
    import torch  # not at the top: the parser must not need it

    yield Finding("python", "counterpoint", "ok", f"{cp.__version__}, {Path(cp.__file__).parent}")
    yield Finding("python", "python", "ok", f"{platform.python_version()}, {platform.platform()}")
    yield Finding("python", "torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield _device()
    yield from map(_extra, EXTRAS)
    yield from _conflicts()
    yield from _renderers()
    yield from _data(data)


# ---- packages ----------------------------------------------------------------------------------


def _extra(extra: str) -> Finding:
    """Check the packages of an extra against the bounds that this distribution declares."""
    try:
        declared = metadata.requires("counterpoint") or []
    except metadata.PackageNotFoundError:
        return Finding("extra", extra, "missing", "counterpoint itself is not installed", "pip install .")
    pattern = re.compile(rf"""([\w.-]+)([^;]*);.*extra == ['"]{extra}['"]""")
    installed, lacking = [], []
    for name, bounds in (match.groups() for line in declared if (match := pattern.match(line))):
        version = _version(name)
        if version and _within(version, bounds):
            installed.append(f"{name} {version}")
        else:
            lacking.append(f"{name}{bounds}".strip() + (f" ({version} is installed)" if version else ""))
    if not lacking:
        return Finding("extra", extra, "ok", ", ".join(installed))
    text = f"needs {', '.join(lacking)}" + (f"; installed: {', '.join(installed)}" if installed else "")
    return Finding("extra", extra, "missing", text, install(extra))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    return (*parts, *[0] * (3 - len(parts)))


def _within(version: str, bounds: str) -> bool:
    """Whether a version satisfies bounds such as ``>=2.4,<4``, the only kinds that this project declares."""
    limits = re.findall(r"(>=|<)\s*([\d.]+)", bounds)
    return all((_numbers(version) >= _numbers(limit)) == (sign == ">=") for sign, limit in limits)


def _conflicts() -> Iterator[Finding]:
    for package, first, other, below, why, fix in CONFLICTS:
        version, old = _version(package), _version(other)
        if version and old and _numbers(version) >= _numbers(first) and _numbers(old) < _numbers(below):
            yield Finding("conflict", f"{package} {version}", "bad", f"with {other} {old}: {why}", fix)


# ---- the machine -------------------------------------------------------------------------------


def _device() -> Finding:
    from torch import cuda

    if not cuda.is_available():
        return Finding("device", "GPU", "missing", "torch finds none; everything runs on the CPU")
    devices = [cuda.get_device_properties(i) for i in range(cuda.device_count())]
    names = ", ".join(f"{d.name} ({d.total_memory / 2**30:.0f} GiB)" for d in devices)
    return Finding("device", "GPU", "ok", f"{names}; {UNTESTED}")


def _renderers() -> Iterator[Finding]:
    if _version("dm-control") is None:
        return
    if error := _error(LOAD, "disabled"):
        fix = 'pip install --force-reinstall --no-deps dm-control "mujoco<4"'
        yield Finding("renderer", "dm-control", "bad", f"cannot load a task: {error}", fix)
        return
    for name, package in RENDERERS.items():
        if error := _error(LOAD + RENDER, name):
            yield Finding("renderer", name, "missing", f"cannot render: {error}", f"apt-get install {package}")
        else:
            yield Finding("renderer", name, "ok", f"renders without a screen, MUJOCO_GL={name}")


def _error(script: str, renderer: str) -> str:
    """The last line that a script prints if it fails with a renderer; empty if it succeeds."""
    command, environment = [sys.executable, "-c", script], {**os.environ, "MUJOCO_GL": renderer}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no answer within two minutes"
    return (done.stderr.strip().splitlines() or ["no message"])[-1].strip() if done.returncode else ""


# ---- data --------------------------------------------------------------------------------------


def _data(folder: Path | None) -> Iterator[Finding]:
    from ..store.reproduce import file_digest

    if folder is None:
        yield Finding("data", "COUNTERPOINT_DATA", "missing", "not set: data sets are downloaded if possible")
        return
    if not folder.is_dir():
        text = f"{folder} is not a folder"
        yield Finding("data", "COUNTERPOINT_DATA", "bad", text, "set it to the folder of the data sets")
        return
    sums: dict[Path, str] = {}
    if (listing := folder / "SHA256SUMS").is_file():
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
        if all(len(pair) == 2 for pair in pairs):
            sums = {(folder / name.lstrip("*")).resolve(): digest for digest, name in pairs}
        else:
            yield Finding("data", "SHA256SUMS", "bad", "is not in the format of sha256sum", "copy this file again")
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in part.rglob("*") if path.is_file())
        listed = [path for path in files if path in sums]
        wrong = [path for path in listed if file_digest(path).hexdigest() != sums[path]]
        wrong += [path for path in sums if path.is_relative_to(part) and not path.exists()]
        size = sum(path.stat().st_size for path in files) / 2**20
        text = f"{len(files)} file{'s' * (len(files) != 1)}, {size:.1f} MB"
        if wrong:
            text += f"; damaged or missing: {', '.join(str(path.relative_to(folder)) for path in wrong[:4])}"
            yield Finding("data", part.name, "bad", text, "copy these files again")
        else:
            checked = f"{len(listed)} match SHA256SUMS" if sums else "not checked: there is no SHA256SUMS"
            yield Finding("data", part.name, "ok", f"{text}, {checked}")


# ---- the command -------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_root(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace) -> int:
    """Run ``counterpoint doctor``; the exit code is 1 if something is bad."""
    results = []
    root = options.root or os.environ.get("COUNTERPOINT_DATA")
    for finding in findings(Path(root).resolve() if root else None):
        results.append(finding)
        if not options.json:
            print(f"{finding.state:8}{finding.about:10}{finding.name:18}{finding.text}", flush=True)
            if finding.fix:
                print(f"{'':36}-> {finding.fix}", flush=True)
    if options.json:
        print(json.dumps([asdict(finding) for finding in results], indent=1))
    return int(any(finding.state == "bad" for finding in results))
