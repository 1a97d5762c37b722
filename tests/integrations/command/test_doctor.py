"""``counterpoint doctor`` reports what is installed, missing and broken."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import counterpoint as cp
from counterpoint.install import DISTRIBUTION, install
from counterpoint.integrations.command import doctor
from counterpoint.integrations.command.main import main


@pytest.fixture
def packages(monkeypatch):
    """Packages that look installed; those set to None look missing."""
    real, pretended = metadata.version, {}

    def version(name):
        found = pretended.get(name, "") if name in pretended else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(doctor.metadata, "version", version)
    pretended["dm-control"] = None  # otherwise each test would try its renderers
    return pretended


def looked(capsys, *words):
    code = main(["doctor", "--json", *map(str, words)])
    return code, {(one["about"], one["name"]): one for one in json.loads(capsys.readouterr().out)}


def test_versions_of_what_runs(capsys, packages):
    code, found = looked(capsys)
    assert code == 0
    assert cp.__version__ in found["python", "counterpoint"]["text"]
    assert torch.__version__ in found["python", "torch"]["text"]
    assert found["device", "GPU"]["state"] == ("ok" if torch.cuda.is_available() else "missing")


def test_builds_of_one_version_can_be_told_apart(capsys, packages, tmp_path, monkeypatch):
    shown = looked(capsys)[1]["python", "counterpoint"]["text"]
    copied = shutil.copytree(Path(cp.__file__).parent, tmp_path / "counterpoint")
    monkeypatch.setattr(cp, "__file__", str(copied / "__init__.py"))
    same = looked(capsys)[1]["python", "counterpoint"]["text"]
    with (copied / "values.py").open("a") as file:
        file.write("# a line more\n")
    other = looked(capsys)[1]["python", "counterpoint"]["text"]
    digests = [re.search(r"\(files ([0-9a-f]{8})\)", text)[1] for text in (shown, same, other)]
    assert digests[0] == digests[1] != digests[2]


def test_extras_are_those_of_the_distribution():
    declared = {line.partition("extra == ")[2].strip("\"'") for line in metadata.requires(DISTRIBUTION)}
    assert set(doctor.EXTRAS) == declared - {"", "all"}


def test_a_missing_package_and_how_to_get_it(capsys, packages):
    packages |= {"matplotlib": None, "torch_geometric": "2.8", "scikit-learn": None}
    found = looked(capsys)[1]
    assert found["extra", "plots"] == {
        "about": "extra",
        "name": "plots",
        "state": "missing",
        "text": "needs matplotlib>=3.7",
        "fix": install("plots"),
    }
    assert found["extra", "graph"]["text"].startswith("needs scikit-learn>=1.3; installed: torch_geometric 2.8")


@pytest.mark.parametrize(
    ("version", "state"), [("3.6.9", "missing"), ("3.7", "ok"), ("3.7.0", "ok"), ("3.10.0rc1", "ok"), ("4", "ok")]
)
def test_a_package_that_is_too_old_is_as_good_as_missing(capsys, packages, version, state):
    packages["matplotlib"] = version
    found = looked(capsys)[1]["extra", "plots"]
    assert found["state"] == state
    assert (f"needs matplotlib>=3.7 ({version} is installed)" == found["text"]) == (state == "missing")


def test_every_bound_is_read():
    """What the distribution itself declares is of the kind that is understood."""
    for line in metadata.requires(DISTRIBUTION):
        bounds = re.match(r"[\w.-]+(?:\[[\w,]+\])?([^;]*)", line)[1]
        assert re.fullmatch(r"((>=|<)[\d.]+,?)*", bounds.strip()), line


def test_people_read_lines_with_what_to_do(capsys, packages):
    packages["matplotlib"] = None
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(i for i, line in enumerate(lines) if line.split()[1:3] == ["extra", "plots"])
    assert lines[row].startswith("missing ")
    assert lines[row + 1].strip() == f"-> {install('plots')}"


def test_one_command_installs_all_extras_that_are_missing(capsys, packages):
    packages |= {"matplotlib": None, "tensorboard": None}
    missing = [
        name for (about, name), one in looked(capsys)[1].items() if about == "extra" and one["state"] == "missing"
    ]
    assert {"plots", "track"} <= {*missing}
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"all missing extras: {install(','.join(missing))}"


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_package_that_cannot_be_imported_is_broken(tmp_path, words):
    """As of a wheel without one of its files."""
    shutil.copytree(Path(cp.__file__).parent, tmp_path / "counterpoint", ignore=shutil.ignore_patterns("infonce.py"))
    for folder in ("integrations", "plugins"):
        place = Path(find_spec(f"counterpoint.{folder}").origin).parent
        shutil.copytree(place, tmp_path / "counterpoint" / folder, dirs_exist_ok=True)
    command = ["-c", "import sys; from counterpoint.integrations.command.main import main; sys.exit(main())"]
    done = subprocess.run([sys.executable, *command, "doctor", *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "infonce" in done.stdout, str(tmp_path) in done.stdout) == (1, True, True), done.stderr
    assert "broken" in done.stdout
    assert not done.stderr


def test_a_renderer_is_tried_for_real(capsys):
    pytest.importorskip("dm_control")
    found = looked(capsys)[1]
    assert {name for about, name in found if about == "renderer"} == set(doctor.RENDERERS)


def test_a_renderer_that_draws_nothing(capsys, packages, monkeypatch):
    packages["dm-control"] = "1.0.50"
    monkeypatch.setattr(
        doctor, "RENDER", "import os\nraise SystemExit('black' if os.environ['MUJOCO_GL'] == 'egl' else 0)"
    )
    code, found = looked(capsys)
    assert (code, found["renderer", "osmesa"]["state"]) == (0, "ok")
    assert found["renderer", "egl"]["text"] == "cannot render: black"
    assert found["renderer", "egl"]["fix"] == "apt-get install libegl1"
