"""The files that a script has written in a run, told apart from those of other runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SKIPPED = (".git", "__pycache__")
MOST = 20_000  # files that are looked at to find those that runs share


@dataclass(frozen=True)
class Written:
    """What a run has left.

    Attributes:
        out: the folder ``{out}`` of the run.
        folder: where the script ran.
        log: what it printed.
        began, ended: times in nanoseconds, those of the file system.
        shared: whether other runs may have written to ``folder`` meanwhile.
    """

    out: Path
    folder: Path
    log: Path
    began: int
    ended: int
    shared: bool

    def find(self, pattern: str) -> list[Path]:
        """Return the files that match, all those in a folder that does; copy them to ``out`` if they lie elsewhere."""
        if found := _files(self.out, pattern):
            return found
        if not (found := _files(self.folder, pattern)):
            raise FileNotFoundError(f"no {pattern} in {self.out}, nor in {self.folder}")
        current = [file for file in found if self.began <= file.stat().st_mtime_ns <= self.ended]
        if not current:
            when = "before this run began" if found[-1].stat().st_mtime_ns < self.began else "after this run had ended"
            raise ValueError(f"{found[-1]} was written {when}, so it is not of this run")
        if self.shared:
            raise ValueError(
                f"{current[0]} lies in a folder that runs share, so it may be of another run: let the script write it "
                "to {out}, the folder of each run, or give each run its own copy of the folder with --copy"
            )
        copies = [self.out / file.relative_to(self.folder) for file in current]
        for file, copy in zip(current, copies, strict=True):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        return copies

    def one(self, pattern: str) -> Path:
        """Return the file that matches; raise ``ValueError`` if several do."""
        found = self.find(pattern)
        if len(found) > 1:
            raise ValueError(f"{pattern} may mean {' or '.join(map(str, found[:5]))}")
        return found[0]


def _files(folder: Path, pattern: str) -> list[Path]:
    matches = sorted(folder.glob(pattern))
    return [
        file for path in matches for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()
    ]


def copy_folder(source: Path, target: Path, links: Sequence[str], without: Path) -> None:
    """Copy a folder but for version control and caches, and ``without`` the store; link what ``links`` names."""
    linked = [source / link for link in links]

    def ignored(folder: str, names: list[str]) -> list[str]:
        paths = {name: Path(folder, name) for name in names}
        return [name for name, path in paths.items() if name in SKIPPED or path == without or path in linked]

    shutil.copytree(source, target, symlinks=True, ignore=ignored)
    for path in linked:
        (target / path.relative_to(source)).symlink_to(path)


def changed_files(folder: Path, since: int, without: Path) -> Iterator[Path]:
    """Yield files below a folder that have changed since a time, hidden ones and the store left out."""
    seen = 0
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if name not in SKIPPED and name[0] != "." and Path(root, name) != without
        ]
        for file in (Path(root, name) for name in files):
            seen += 1
            if seen > MOST:
                return
            try:
                if file.stat().st_mtime_ns >= since:
                    yield file.relative_to(folder)
            except OSError:  # a link to nowhere, or deleted meanwhile
                continue
