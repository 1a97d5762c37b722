"""``counterpoint doctor``: what this installation can run, and what to install for the rest."""

import argparse
import hashlib
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
from counterpoint.install import DISTRIBUTION, install
from counterpoint.plugins.printing import print_lines

from ..domain import NAMES as DOMAINS

EXTRAS = (*DOMAINS, "plots", "report", "race", "cli", "hub", "track", "cluster", "s3", "gcs")
UNTESTED = "counterpoint has been tested on CPUs only; its GPU kernels run only with engine='fused'"
RENDERERS = {"egl": "libegl1", "osmesa": "libosmesa6"}  # and the Debian and Ubuntu packages that provide them
# run in a process of its own, since dm_control chooses its renderer once, when it is imported
RENDER = """
from dm_control import suite
frame = suite.load("cartpole", "balance").physics.render(8, 8, camera_id=0)
raise SystemExit(0 if frame.any() else "the picture is black")
"""


@dataclass(frozen=True)
class Finding:
    about: str  # what was checked: python, extra, device or renderer
    name: str
    state: str  # ok, missing or broken
    text: str
    fix: str = ""


def findings() -> Iterator[Finding]:
    """Run all checks, the most basic first."""
    import torch  # not at the top: the parser must not need it

    try:
        cp.InfoNCE  # noqa: B018  (it needs most of the package's files)
        state, why, fix = "ok", "", ""
    except Exception as error:
        state, why, fix = "broken", f": cannot import InfoNCE: {error!r}", f"uninstall {DISTRIBUTION}, install it again"
    where = Path(cp.__file__).parent
    files = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(where.rglob("*.py")))).hexdigest()
    version = f"{cp.__version__} (files {files[:8]}), {where}"  # builds of one version differ in their files
    yield Finding("python", "counterpoint", state, version + why, fix)
    yield Finding("python", "python", "ok", f"{platform.python_version()}, {platform.platform()}")
    yield Finding("python", "torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield _device()
    yield from map(_extra, EXTRAS)
    if _version("dm-control") is not None:
        yield from (_renderer(name, package) for name, package in RENDERERS.items())


def _extra(extra: str) -> Finding:
    """Check the packages of an extra against the bounds that this distribution declares."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return Finding("extra", extra, "missing", f"{DISTRIBUTION} is not installed", "pip install .")
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


def _within(version: str, bounds: str) -> bool:
    """Whether a version satisfies bounds such as ``>=2.4,<4``, the only kinds that this project declares."""
    from torch.torch_version import TorchVersion  # compares as pip does

    limits = re.findall(r"(>=|<)\s*([\d.]+)", bounds)
    return all((TorchVersion(version) >= limit) == (sign == ">=") for sign, limit in limits)


def _device() -> Finding:
    from torch import cuda

    if not cuda.is_available():
        return Finding("device", "GPU", "missing", "torch finds none; everything runs on the CPU")
    devices = [cuda.get_device_properties(i) for i in range(cuda.device_count())]
    names = ", ".join(f"{d.name} ({d.total_memory / 2**30:.0f} GiB)" for d in devices)
    return Finding("device", "GPU", "ok", f"{names}; {UNTESTED}")


def _renderer(name: str, package: str) -> Finding:
    """Draw a picture without a screen; the last line of an error says why it fails."""
    command, environment = [sys.executable, "-c", RENDER], {**os.environ, "MUJOCO_GL": name}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Finding("renderer", name, "missing", "no answer within two minutes")
    if done.returncode == 0:
        return Finding("renderer", name, "ok", f"renders without a screen, MUJOCO_GL={name}")
    error = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
    return Finding("renderer", name, "missing", f"cannot render: {error}", f"apt-get install {package}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace) -> int:
    """Print each finding as it is made, or all as JSON; return 1 if the package itself is broken."""
    if options.json:
        print(json.dumps(every := [asdict(finding) for finding in findings()], indent=1))
        return int("broken" in [finding["state"] for finding in every])
    lacking, code = [], 0
    for finding in findings():
        code |= finding.state == "broken"
        lacking += [finding.name] * (finding.about == "extra" and finding.state == "missing")
        print_lines(f"{finding.state:8}{finding.about:10}{finding.name:18}{finding.text}")
        if finding.fix:
            print_lines(f"{'':36}-> {finding.fix}")
    print_lines(f"all missing extras: {install(','.join(lacking)) if lacking else 'none'}")
    return code
