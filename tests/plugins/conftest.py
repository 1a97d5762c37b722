"""What tests of the finder share."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from counterpoint.plugins import inject


@pytest.fixture
def find(tmp_path, monkeypatch, capsys):
    """Runs the finder on a script, in this process; returns what it found and said."""

    def run(script: str, *words: str, name: str = "toy.py") -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / name).write_text(script)
        backward = torch.autograd.backward
        try:
            code = inject.main(["auto", *words, "--json", "found.json", "--", name])
        finally:
            for imported, module in list(sys.modules.items()):  # another test may have a module of the same name
                if str(getattr(module, "__file__", None)).startswith(str(tmp_path)) and imported != "__main__":
                    del sys.modules[imported]
        assert torch.autograd.backward is backward
        data = json.loads((tmp_path / "found.json").read_text())
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, losses=data["losses"], data=data)

    return run
