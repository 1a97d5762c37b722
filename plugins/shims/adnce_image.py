"""Shims for the image part of ADNCE."""

from pathlib import Path

from ..host import Shim


def _logs() -> bool:
    if Path("logs").is_dir():
        return False
    Path("logs").mkdir()
    return True


SHIMS = (Shim("logs", "main.py logs to a file in ./logs, a folder that the repository does not contain", _logs),)
