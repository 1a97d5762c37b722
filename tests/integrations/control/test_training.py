"""Runs: what they write, how they survive a kill and a full disk, evaluation, the command line."""

import json
import os
import resource
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

if find_spec("dm_control") is None or find_spec("gymnasium") is None:
    pytest.skip("dm_control is not installed", allow_module_level=True)

from control_runs import TASK, TINY, cell
from documents import run_blocks
from safetensors.torch import load_file

from counterpoint.integrations import store
from counterpoint.integrations.command import main
from counterpoint.integrations.control import evaluation, training
from counterpoint.integrations.store.grid import run_grid
from counterpoint.integrations.store.run import Run

pytestmark = pytest.mark.usefixtures("frames")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """One run that nothing happens to: 40 decisions, two episodes of 25."""
    (run,) = run_grid(training.train, [cell()], tmp_path_factory.mktemp("runs"), progress=False)
    return run


def test_a_run_leaves_curve_checkpoint_and_result(undisturbed):
    lines = undisturbed.metrics()
    assert [line["step"] for line in lines if "score" in line] == [800, 1600]
    assert [line["step"] for line in lines if "return" in line] == [1000]
    (update,) = (line for line in lines if "contrast" in line)
    assert {"critic", "actor", "alpha", "entropy"} <= set(update)
    assert update["report/loss"] == pytest.approx(update["contrast"], rel=1e-5)
    assert 0 < update["report/effective_negatives"] <= update["report/negatives"]
    result = undisturbed.result
    assert result == {"final score": [line["score"] for line in lines if "score" in line][-1]}
    assert not (undisturbed.path / "replay").exists()  # gigabytes that nobody needs any more
    assert undisturbed.arguments["scores"] == "bilinear"
    assert undisturbed.arguments["settings"]["discount"] == 0.99


@pytest.mark.slow
def test_scores_at_marks_are_of_these_moments(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MARKS", (1000, 5000))
    (run,) = run_grid(training.train, [cell(eval_every=1600)], tmp_path, progress=False)
    looks = {line["step"]: line["score"] for line in run.metrics() if "score" in line}
    assert list(looks) == [1000, 1600]
    assert run.result == {"final score": looks[1600], "score at 1k": looks[1000]}


KILLED = """
import os, signal, sys
from counterpoint.integrations import store
from counterpoint.integrations.control import training
from control_runs import cell

training.SAVE_EVERY = 0.0
times = int(sys.argv[2])
save = store.Run.save

def save_and_die(self, state, step):
    global times
    times -= 1
    if times == 0 and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, state, step)
    if times == 0:
        os.kill(os.getpid(), signal.SIGKILL)

store.Run.save = save_and_die
store.run_grid(training.train, [cell()], sys.argv[1], progress=False)
"""


def killed(root, saves, moment):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "support"), "OMP_NUM_THREADS": "1"}
    code = [sys.executable, "-c", KILLED, str(root), str(saves), moment]
    return subprocess.run(code, env=env, capture_output=True, text=True)


def numbers(run):
    weights = run.load()["agent"]["networks"]
    return run.metrics(), run.result, {k: v.tolist() for k, v in weights.items() if k.startswith("critic.")}


@pytest.mark.parametrize(("saves", "moment"), [(29, "after"), (20, "before")])
@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(undisturbed, tmp_path, saves, moment):
    """In the middle of an episode, behind a checkpoint, and where the replay buffer was written but not that."""
    done = killed(tmp_path, saves, moment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = Run(tmp_path, cell())
    assert not run.done
    assert run.load()["step"] == 40 * (saves - (moment == "before"))
    (run,) = run_grid(training.train, [cell()], tmp_path, progress=False)
    assert numbers(run) == numbers(undisturbed)


@pytest.mark.parametrize("file", [-1, 0])
@pytest.mark.slow
def test_a_damaged_part_of_the_replay_buffer_costs_its_checkpoint(undisturbed, tmp_path, file):
    assert killed(tmp_path, 20, "after").returncode == -signal.SIGKILL
    part = sorted(Run(tmp_path, cell()).path.glob("replay/*"))[file]
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.warns(RuntimeWarning) as said:
        (run,) = run_grid(training.train, [cell()], tmp_path, progress=False)
    messages = [str(one.message) for one in said if one.category is RuntimeWarning]
    assert messages[0].startswith(f"{part}: damaged")
    assert messages[0].endswith("not used, the run begins anew")
    assert numbers(run) == numbers(undisturbed)


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_good_checkpoint(undisturbed, tmp_path):
    assert killed(tmp_path, 18, "after").returncode == -signal.SIGKILL
    before = Run(tmp_path, cell()).load()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # python sees an error of the disk
    try:
        with pytest.raises(store.GridError, match="File too large"):
            run_grid(training.train, [cell()], tmp_path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run = Run(tmp_path, cell())
    assert run.load()["step"] == before["step"] == 720
    assert not list(run.path.rglob("*.tmp"))
    (run,) = run_grid(training.train, [cell()], tmp_path, progress=False)
    assert numbers(run) == numbers(undisturbed)


def test_the_documents_own_encoder_and_the_encoder_of_a_run(undisturbed, monkeypatch):
    monkeypatch.setattr(training, "prepare", None)  # needs no simulator
    names = run_blocks("docs/own_models.md", "Control", undisturbed.path)
    encoder = names["encoder"].state_dict()
    exported = load_file(undisturbed.path / "encoder.safetensors")
    assert exported.keys() == encoder.keys()
    assert all(torch.equal(exported[name], value) for name, value in encoder.items())


def test_evaluation_is_the_same_for_all_and_without_chance(undisturbed):
    returns = evaluation.evaluate(training.restore(undisturbed), undisturbed.arguments, 3)
    assert len(set(returns)) == 3
    assert np.mean(returns[:2]) == undisturbed.result["final score"]


@pytest.mark.slow
def test_the_command_line_trains_and_evaluates(tmp_path, capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "features"]
    flags += ["--steps=1000", "--repeat=40", "--eval-every=1000", "--episodes=1", f"--out={tmp_path}", f"--task={TASK}"]
    assert main.main(["train", "control", "--objective", "adnce:t=0.2", "--json", *flags]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["scores"], found["seed"]) == ("cosine", 1)
    assert main.main(["eval", "control", found["folder"], "--episodes", "1", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["score"] == found["final score"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--task", "walker-wolk"], "unknown task 'walker-wolk'. Did you mean 'walker-walk'?"),
        (["--batch", "4000"], "batch: 4000 transitions, but the buffer holds 1000 at the first update"),
        (["--steps", "2000"], "2000 are 250 actions, each repeated 8 times, but the first 1000 are random"),
        (["--objective", "intnacl"], "needs adversarial views"),
    ],
)
def test_wrong_arguments_are_one_clear_line(capsys, tmp_path, argv, says):
    assert main.main(["train", "control", "--out", str(tmp_path), *argv]) == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--batch=0", "--repeat=0"])
def test_wrong_numbers_are_refused_before_anything_is_trained(tmp_path, capsys, flag):
    with pytest.raises(SystemExit) as stopped:
        main.main(["train", "control", "--out", str(tmp_path / "runs"), flag])
    assert stopped.value.code == 2
    assert f"{flag.partition('=')[0]}: expected a whole number of at least 1, got '0'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_evaluation_of_nothing_is_said(capsys, tmp_path):
    assert main.main(["eval", "control", str(tmp_path)]) == 2
    assert "counterpoint eval control: no runs in" in capsys.readouterr().err


def test_numbers_that_diverge_end_the_run(tmp_path, monkeypatch):
    def update(self, *_):
        self.updates += 1
        return {"critic": torch.tensor(float("nan"))}

    monkeypatch.setattr(training.Agent, "update", update)
    with pytest.raises(store.GridError, match="critic is nan after 1 updates: training diverged"):
        run_grid(training.train, [cell()], tmp_path, progress=False)
