"""Places of ``--on``: how they are read, and what is said of those that cannot be reached."""

from __future__ import annotations

import socket
import sys

import pytest

from counterpoint.install import install
from counterpoint.integrations.command.main import main
from counterpoint.integrations.store import executors

SLURM = "partition, account, qos, constraint, gpus, cpus, mem, time, most"


def unused():
    """A port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_place_and_what_a_run_needs_of_it():
    assert executors.parse("local") == ("local", "", {})
    assert executors.parse("slurm:partition=gpu,gpus=1,time=60,mem=7.5") == (
        "slurm",
        "",
        {"slurm_partition": "gpu", "gpus_per_node": 1, "timeout_min": 60, "mem_gb": 7.5},
    )
    assert executors.parse("dask:tcp://node1:8786") == ("dask", "tcp://node1:8786", {})
    assert executors.parse("ray:10.0.0.1:6379,gpus=0.5") == ("ray", "10.0.0.1:6379", {"num_gpus": 0.5})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("slrum", "unknown place 'slrum'. Did you mean 'slurm'? Known: local, slurm, ray, dask."),
        ("slurm:partiton=gpu", f"unknown key 'partiton'. Did you mean 'partition'? Known: {SLURM}."),
        ("slurm:gpus=one", "gpus must be a number, got 'one'."),
        ("slurm:gpu", f"takes {SLURM}, as KEY=VALUE, got 'gpu'."),
        ("local:4", "takes no keys, as KEY=VALUE, got '4'."),
        ("dask:tcp://node1:8786,gpus=1", "takes no keys, as KEY=VALUE, got 'gpus=1'."),
        ("slurm:partition=a\n#SBATCH --wrap=b", r"--on: '\n' is not allowed in a place, got 'slurm:partition=a\n#SB"),
        ("slurm:partition=a --uid=0", "--on: ' ' is not allowed in a place"),
        ("slurm:account=$(id)", "--on: '$' is not allowed in a place"),
        ("dask:tcp://node1:8786\x00", r"--on: '\x00' is not allowed in a place"),
    ],
)
def test_a_place_that_no_cluster_takes(capsys, place, message):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "graph", "--on", place])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("place", "package"), [("slurm", "submitit"), ("dask:a:1", "distributed"), ("ray", "ray")])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, place, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package}") as caught, executors.opened(place, tmp_path):
        pass
    assert install("cluster") in str(caught.value)


def test_no_slurm_here(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"^--on slurm: no Slurm here"), executors.opened("slurm", tmp_path):
        pass


@pytest.mark.slow
def test_no_dask_scheduler(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(ValueError, match=r"^--on dask: which scheduler"), executors.opened("dask", tmp_path):
        pass
    monkeypatch.setattr(executors, "PATIENCE", 0.3)
    address = f"tcp://127.0.0.1:{unused()}"
    with (
        pytest.raises(ValueError, match=f"^--on dask: no scheduler at {address}: .+") as caught,
        executors.opened(f"dask:{address}", tmp_path),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_no_ray_cluster(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs counterpoint-losses[cluster]")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    there = f"127.0.0.1:{unused()}"
    for address, reason in ((there, "refused"), (f"ray://{there}", "refused"), ("somewhere", "Invalid address format")):
        with (
            pytest.raises(ValueError, match=f"^--on ray: no cluster at {address}: .*{reason}") as caught,
            executors.opened(f"ray:{address}", tmp_path),
        ):
            pass
        assert "\n" not in str(caught.value)


def test_a_file_of_settings_cannot_write_lines_of_a_batch_script(tmp_path, capsys):
    (tmp_path / "train.yaml").write_text('on: "slurm:partition=a\\n#SBATCH --wrap=b"\n')
    with pytest.raises(SystemExit, match="2"):
        main(["train", "graph", "--config", str(tmp_path / "train.yaml")])
    assert r"--on: '\n' is not allowed in a place" in capsys.readouterr().err


def test_a_folder_of_runs_cannot_write_lines_of_a_batch_script(tmp_path):
    with (
        pytest.raises(ValueError, match="control characters are not allowed in the folder of runs"),
        executors.opened("slurm", tmp_path / "a\n#SBATCH --wrap=b"),
    ):
        pass
