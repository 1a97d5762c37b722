"""Published encoders are those that were trained: as a folder and through a stand-in for the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from copy import copy
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightly")
pytest.importorskip("huggingface_hub")

from counterpoint.integrations import store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.hub import folder
from counterpoint.integrations.image import published, training
from counterpoint.integrations.report.statistics import mean_interval

SMALL = {"backbone": "conv4", "batch": 32, "subset": 64, "probe": ["knn"], "width": 16, "epochs": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of images, with another seed beside it."""
    cells = [training.cell("digits", "infonce:t=0.5", seed, **SMALL) for seed in (0, 1)]
    return store.run_grid(training.train, cells, tmp_path_factory.mktemp("runs"), progress=False)[0]


def features(encoder):
    with torch.no_grad():
        return encoder(torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


def test_the_folder_that_is_pushed_loads_as_the_trained_encoder(run, tmp_path, capsys):
    out = tmp_path / "published"
    assert main(["push", str(run.path), "me/digits", "--folder", str(out)]) == 0
    assert "nothing was pushed" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"README.md", "config.json", "model.safetensors", "run.json"}
    assert torch.equal(features(published.load(out)), features(training.restore(run).encoder))
    again = store.Run.read(out)
    assert (again.result, again.arguments) == (run.result, run.arguments)
    assert "host" not in again.record
    text = (out / "README.md").read_text()
    assert 'PublishedEncoder.from_pretrained("me/digits")' in text
    assert "objective: `infonce:t=0.5" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| knn |")]
    assert row.endswith("| 2 |")


def test_the_card_names_the_treatment(run, monkeypatch):
    monkeypatch.setattr(folder, "seeds_of", lambda _: [run])
    told = copy(run)
    told.arguments = {**run.arguments, "objective": "infonce:t=0.5; duplicates"}
    lines = folder.card(told, "me/digits").splitlines()
    assert "- objective: `infonce:t=0.5; duplicates`" in lines
    assert "- treatment: the loss is told, or left to find, `duplicates` about each batch" in lines
    assert "treatment" not in folder.card(run, "me/digits")


def test_an_interval_over_seeds_is_students(run):
    runs = folder.seeds_of(run)
    assert [one.arguments["seed"] for one in runs] == [0, 1]
    pytest.importorskip("scipy")
    # t(0.975, 1) = 12.706, of 1 and 3: 2 +- 12.706 * sqrt(2) / sqrt(2)
    assert mean_interval([1.0, 3.0]) == pytest.approx((-10.706, 14.706), abs=1e-3)
    (row,) = folder.results(runs[:1], runs[0])
    assert row[3:] == ["", "1"]


def test_paths_of_the_machine_do_not_get_published():
    value = {
        "a": "/home/me/data/wiki.txt",
        "b": ["counterpoint train sentence --data /x/y.txt --root '~/z/sts'"],
        "c": 1,
    }
    line = "counterpoint train sentence --data y.txt --root 'sts'"
    assert folder.without_folders(value) == {"a": "wiki.txt", "b": [line], "c": 1}
    assert folder.without_folders("owner/name, 1/2, https://a.b/c/d") == "owner/name, 1/2, https://a.b/c/d"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push", "{run}", "name"], "expected owner/name, got 'name'"),
        (["push", "{root}", "me/name", "--folder", "out"], "expected the folder of one run, got 2"),
        (["push", "nowhere", "me/name"], "nowhere: no such folder."),
        (["push", "{unfinished}", "me/name", "--folder", "out"], "not finished"),
        (["push", "{control}", "me/name", "--folder", "out"], "a run of control; expected one of "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = {"unfinished": run.arguments, "control": {**run.arguments, "domain": "control"}}
    places = {"run": run.path, "root": run.folder.root}
    for name, cell in cells.items():
        other = store.Run(tmp_path, cell)
        with other.lock():
            other.begin()
        places[name] = other.path
    with pytest.raises(SystemExit) if said.startswith("expected owner") else nullcontext():
        assert main([word.format(**places) for word in words]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def hub():
    """The address of a stand-in for the hub, which is not the hub itself."""
    script = Path(__file__).resolve().parents[2] / "support" / "hub_server.py"
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.communicate()


@pytest.mark.slow
def test_push_and_evaluation_from_a_stand_in_for_the_hub(run, hub, tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_test"}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

    def counterpoint(*words):
        command = [Path(sys.executable).with_name("counterpoint"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)

    done = counterpoint("push", run.path, "me/digits")
    assert (done.returncode, done.stdout) == (0, f"pushed {run.title} to hf://me/digits\n"), done.stderr
    done = counterpoint("eval", "image", "hf://me/digits", run.path, "--probe", "knn", "--json")
    assert done.returncode == 0, done.stderr
    fetched, trained = json.loads(done.stdout)
    assert fetched["knn"] == trained["knn"]
    done = counterpoint("eval", "image", "hf://me/nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("counterpoint eval image: hf://me/nothing: cannot be fetched")
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # about the damage
def test_a_folder_whose_runs_are_damaged_has_none(tmp_path, capsys):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "run.json").write_text("{")
    assert main(["push", str(tmp_path / "a"), "me/name", "--folder", str(tmp_path / "out")]) == 2
    assert "expected the folder of one run, got 0" in capsys.readouterr().err
