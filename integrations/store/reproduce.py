"""Random numbers, checksums and versions: what a run needs to be reproduced."""

from __future__ import annotations

import hashlib
import platform
import random
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp

# whose versions run.json names, if the run has loaded them: module -> distribution
FRAMEWORKS = {
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch_geometric": "torch_geometric",
    "torchvision": "torchvision",
    "lightly": "lightly",
    "lightning": "lightning",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "datasets": "datasets",
    "gymnasium": "gymnasium",
    "dm_control": "dm-control",
    "mujoco": "mujoco",
}


def seed_everything(seed: int) -> None:
    """Seeds torch (all devices), numpy if it is installed, and Python; ``0 <= seed < 2**32``."""
    random.seed(seed)
    torch.manual_seed(seed)
    if (numpy := _numpy()) is not None:
        numpy.random.seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of all that :func:`seed_everything` seeds, for :meth:`Run.save`.

    Generators of one's own have states that can be saved beside it: ``generator.get_state()`` of torch's,
    ``generator.bit_generator.state`` of numpy's.
    """
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := _numpy()) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Goes back to what :func:`rng_state` returned, for those devices and packages that are here."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for device, one in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(one, device)
    if "numpy" in state and (numpy := _numpy()) is not None:
        numpy.random.set_state(state["numpy"])


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def checksum(*parts: Path | str | bytes | memoryview) -> str:
    """SHA-256 of data, in hexadecimal: of the content of a file, of all files in a folder, of a text, of bytes.

    >>> checksum("a", b"b") == checksum("a", b"b") != checksum("ab")
    True
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
            for path in files:
                total.update(path.relative_to(part).as_posix().encode())
                with path.open("rb") as file:
                    total.update(_digest(iter(lambda: file.read(1 << 20), b"")))
        else:
            total.update(_digest([part.encode() if isinstance(part, str) else part]))
    return total.hexdigest()


def _digest(blocks: Iterable[bytes | memoryview]) -> bytes:
    one = hashlib.sha256()
    for block in blocks:
        one.update(block)
    return one.digest()


def versions() -> dict[str, str]:
    """Versions of Python, this package, torch and the frameworks that are loaded."""
    found = {"python": platform.python_version(), "counterpoint": cp.__version__, "torch": str(torch.__version__)}
    for module, distribution in FRAMEWORKS.items():
        if module in sys.modules:
            with suppress(metadata.PackageNotFoundError):
                found[distribution] = metadata.version(distribution)
    return found


def _devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
