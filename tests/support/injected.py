"""Run a script with ``counterpoint inject``, in this process, and leave no trace."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from counterpoint.plugins import inject


def launch(
    folder: Path, script: str, monkeypatch: Any, capsys: Any, host: str, words: Sequence[str] = ()
) -> SimpleNamespace:
    """Return exit code, what was said, and the numbers that ``script`` has printed, line by line."""
    loaded = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        for name in ("argv", "path", "meta_path"):
            patch.setattr(sys, name, [*getattr(sys, name)])
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        patch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
        (folder / "toy.py").write_text(script)
        try:
            code = inject.main([host, *words, "--", "toy.py"])
        finally:
            places = (str(folder), os.environ.get("COUNTERPOINT_HOSTS", str(folder)))
            for name in set(sys.modules) - loaded:  # those of the script's folder and of clones are loaded anew
                if str(getattr(sys.modules[name], "__file__", "")).startswith(places):
                    del sys.modules[name]
    out, err = capsys.readouterr()
    numbers = [[float(word) for word in line.split()] for line in out.splitlines() if re.fullmatch(r"[-.e\d\s]+", line)]
    return SimpleNamespace(code=code, err=err, out=out, numbers=numbers)


def differences(said: str) -> tuple[float, ...]:
    """Return the largest relative difference of gradients that was found."""
    match = re.search(r"that of the host's own loss in .+?, within (\S+), relative", said)
    assert match, said
    return (float(match[1]),)
