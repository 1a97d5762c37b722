"""Write frames as a film."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.install import install

from .. import store

SUFFIXES = (".gif", ".mp4")


def check_video(path: Path) -> None:
    """Raise the errors of :func:`write_video` before an evaluation rather than after it."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"video: expected a name that ends in {' or '.join(SUFFIXES)}, got {str(path)!r}.")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no such folder.")
    _encode(path.suffix, np.zeros((2, 16, 16, 3), np.uint8), 0.1)


def write_video(path: Path, frames: Sequence[Any], seconds: float) -> None:
    """Write frames ``(height, width, 3)`` of bytes, ``seconds`` apart, as ``.gif`` or ``.mp4``, as the name ends."""
    film = _encode(path.suffix, np.stack(frames), seconds)
    with store.atomic(path) as file:
        file.write(film)


def _encode(suffix: str, frames: NDArray[np.uint8], seconds: float) -> bytes:
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError(f"videos need imageio: {install('control')}") from error
    options: dict[str, Any] = {"duration": 1000 * seconds, "loop": 0} if suffix == ".gif" else {"fps": 1 / seconds}
    return imageio.imwrite("<bytes>", frames, extension=suffix, **options)  # type: ignore[no-any-return]
