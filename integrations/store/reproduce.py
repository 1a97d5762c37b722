"""To reproduce a run: random states, checksums and versions."""

import hashlib
import os
import platform
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp
from counterpoint.names import IMPORT

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

# run.json records the versions of those that are installed
FRAMEWORKS = (
    "numpy", "scipy", "scikit-learn", "torch_geometric", "torchvision", "lightly", "lightning", "transformers",
    "sentence-transformers", "datasets", "gymnasium", "dm-control", "mujoco",
)  # fmt: skip


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), Python, and numpy if it is installed; ``0 <= seed < 2**32``."""
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


def rng_state() -> dict[str, object]:
    """Return the state of every generator that :func:`seed_everything` seeds, for :meth:`Run.save`.

    Save the states of your own generators beside it: ``generator.get_state()`` for torch,
    ``generator.bit_generator.state`` for numpy.
    """
    state: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, list(map(int, keys)), *rest)
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the states of :func:`rng_state`, for the devices and packages that this machine has."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for device, cuda_state in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(cuda_state, device)
    if "numpy" in state and numpy is not None:
        numpy.random.set_state(state["numpy"])


def checksum(*parts: Path | str | bytes | memoryview) -> str:
    """Return the SHA-256 of data in hexadecimal: files and folders by their content, texts, bytes.

    >>> checksum("a", b"b") == checksum("a", b"b") != checksum("ab")
    True
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for path in sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]:
                total.update(path.relative_to(part).as_posix().encode())
                digest = hashlib.sha256()
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                total.update(digest.digest())
        else:
            total.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return total.hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, this package, torch and the installed frameworks."""
    by_name = {"python": platform.python_version(), "counterpoint": cp.__version__, "torch": str(torch.__version__)}
    for distribution in FRAMEWORKS:
        with suppress(metadata.PackageNotFoundError):
            by_name[distribution] = metadata.version(distribution)
    return by_name | ({IMPORT: os.environ[IMPORT]} if IMPORT in os.environ else {})
