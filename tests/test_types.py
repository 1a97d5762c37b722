"""mypy --strict over the package, on a tree of links that has its import names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    package = tmp_path / "counterpoint"
    package.mkdir()
    for path in (ROOT / "core").iterdir():
        if path.suffix == ".py" or path.name == "py.typed":
            (package / path.name).symlink_to(path)
    for folder in ("plugins", "integrations"):
        (package / folder).symlink_to(ROOT / folder)
    (tmp_path / "counterpoint_command.py").symlink_to(ROOT / "counterpoint_command.py")
    what = ["-p", "counterpoint", "-m", "counterpoint_command"]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *what]
    result = subprocess.run(command, cwd=tmp_path, env={"MYPYPATH": str(tmp_path)}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
