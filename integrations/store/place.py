"""Names of stores: folders of this machine, and URLs of object stores. Nothing here connects or imports fsspec."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def is_url(place: object) -> bool:
    """Return whether this names a store that is not a folder of this machine, such as ``s3://bucket/runs``."""
    return isinstance(place, str) and "://" in place and not place.startswith(("hf://", "file://"))


def plain(place: str | Path) -> str | Path:
    """Return a URL without a slash at its end, and everything else as a path; ``file://`` is a folder as any other."""
    if is_url(place):
        scheme, _, rest = str(place).partition("://")
        return f"{scheme}://{rest.rstrip('/')}"
    if isinstance(place, str) and place.startswith("file://"):
        return Path(url2pathname(urlsplit(place).path))
    return Path(place)


def local(place: str | Path) -> Path:
    """Return the folder of this machine for a store that is a URL; a folder is its own."""
    place = plain(place)
    if isinstance(place, Path):
        return place
    root = os.environ.get("COUNTERPOINT_CACHE") or Path.home() / ".cache" / "counterpoint"
    return Path(root).absolute() / "stores" / hashlib.sha256(place.encode()).hexdigest()[:16]
