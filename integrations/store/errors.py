"""What can go wrong with a grid; importable without torch."""

from typing import Any


class BusyError(Exception):
    """Another process is training the run."""


class DamagedError(ValueError):
    """A file of a run cannot be read; the message names it."""


class StoreError(OSError):
    """A store that is a URL cannot be reached, read or written; the message is one line."""


class GridError(RuntimeError):
    """Some runs of a grid failed; :attr:`runs` holds all of them, with the results of those that did not."""

    def __init__(self, message: str, runs: list[Any]) -> None:
        super().__init__(message)
        self.runs = runs
