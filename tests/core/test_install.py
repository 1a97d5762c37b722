"""The command that installs an extra works where counterpoint came from."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from documents import ROOT

from counterpoint.install import install


class Installed:
    """A distribution that an installer took from somewhere."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def hint(monkeypatch, origin):
    monkeypatch.setattr(metadata, "distributions", lambda name: [Installed(None), Installed(origin)])
    return as_pip()


def as_pip():
    """The words of the hint, beginning with pip: an environment of uv has none, and another pip would be found."""
    words = shlex.split(install("graph"))
    return words[words[0] == "uv" :]


@pytest.mark.parametrize("pip", [True, False])
def test_an_environment_without_pip_is_told_of_uv(monkeypatch, pip):
    """Nothing looks for the module: setuptools then takes the standard library's distutils, and cannot be imported."""
    found = {"pip": [Installed(None)] * pip, "counterpoint-losses": []}
    monkeypatch.setattr(metadata, "distributions", lambda name: found[name])
    assert install("graph").startswith("pip install " if pip else "uv pip install ")


def test_a_clone_is_installed_from_its_folder(monkeypatch, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert "%20" in origin["url"]
    assert hint(monkeypatch, origin) == ["pip", "install", "-e", f"{clone}[graph]"]
    assert hint(monkeypatch, {**origin, "dir_info": {}}) == ["pip", "install", f"{clone}[graph]"]
    clone.rmdir()  # nothing can be installed from a folder that is gone
    assert hint(monkeypatch, origin) == ["pip", "install", "counterpoint-losses[graph]"]


@pytest.mark.parametrize(
    "origin", [None, {"url": "file:///x/counterpoint_losses-0.1.0-py3-none-any.whl", "archive_info": {}}]
)
def test_a_wheel_is_found_by_its_name(monkeypatch, origin):
    assert hint(monkeypatch, origin) == ["pip", "install", "counterpoint-losses[graph]"]


def test_a_repository_is_installed_at_the_same_commit(monkeypatch):
    origin = {"url": "https://example.org/counterpoint", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    place = "counterpoint-losses[graph] @ git+https://example.org/counterpoint@abc"
    assert hint(monkeypatch, origin) == ["pip", "install", place]


def test_a_package_that_no_installer_knows(monkeypatch):
    monkeypatch.setattr(metadata, "distributions", lambda name: [])
    assert as_pip() == ["pip", "install", "counterpoint-losses[graph]"]


def test_every_hint_comes_from_this_function():
    files = [path for folder in ("core", "plugins", "integrations") for path in (ROOT / folder).rglob("*.py")]
    name = re.compile(r"counterpoint-losses|counterpoint\[")
    written = [path for path in files if name.search(path.read_text(encoding="utf-8"))]
    assert written == [ROOT / "core" / "install.py"]


def test_it_is_quick():
    code = "import sys; from counterpoint.install import install; install('graph'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=sys.prefix).returncode == 0
