"""Grids on real clusters: whatever a worker dies of, the runs are those of an undisturbed local grid."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import slurm
import toy_grid
from dask_cluster import dask
from documents import ROOT

from counterpoint.integrations import store
from counterpoint.integrations.store import remote

pytestmark = pytest.mark.slow

KILLS = 10
SEEDS = 12  # two objectives: a grid of 24 cells
PAUSE = 0.5  # seconds after each of the six steps of a run
quietly = partial(store.run_grid, progress=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    quietly(toy_grid.train, toy_grid.cells(SEEDS), root)
    return toy_grid.contents(root)


@contextmanager
def killing(record):
    """Kill one of the two workers that took a run last, at random moments, ten times; yields the killed processes."""
    rng, stop, killed = random.Random(0), threading.Event(), []

    def loop():
        while len(killed) < KILLS and not stop.wait(rng.uniform(0.5, 6)):
            with suppress(FileNotFoundError, ProcessLookupError):
                started = [int(line) for line in Path(f"{record}.started").read_text().split()]
                pid = rng.choice(started[-2:])
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def check(place, tmp_path, undisturbed, monkeypatch):
    """A grid whose workers are killed ends as an undisturbed one, and no run is trained twice to its end."""
    monkeypatch.setattr(remote, "ATTEMPTS", KILLS + 1)  # several kills may hit a run before its first checkpoint
    root, record = tmp_path / "runs", tmp_path / "record"
    train = partial(toy_grid.train_recorded, record=record, pause=PAUSE)
    with killing(record) as killed:
        runs = quietly(train, toy_grid.cells(SEEDS), root, executor=place)
    count(record, runs)
    assert len(killed) == KILLS
    assert toy_grid.contents(root) == undisturbed


def count(record, runs):
    """Some runs were trained in several parts, and none twice to its end."""
    starts, ended = (Path(f"{record}.{what}").read_text().splitlines() for what in ("started", "ended"))
    print(f"{len(starts)} starts and {len(ended)} ends of {len(runs)} runs")
    assert len(starts) > len(runs)  # some kills hit a run in progress
    assert max(Counter(ended).values()) == 1
    assert len(ended) >= len(runs) - 1  # a kill may hit the instant between the end of a run and its line


def test_dask(tmp_path, undisturbed, monkeypatch):
    with dask(tmp_path) as place:
        check(place, tmp_path, undisturbed, monkeypatch)


def test_a_study_on_dask(tmp_path):
    """A script outside the package, two grids of which the second depends on the first."""
    script = [sys.executable, str(ROOT / "examples/studies/lightly_cifar.py"), "--size", "smoke", "--rows", "InfoNCE"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def study(name, *words):
        done = subprocess.run([*script, "--out", name, *words], capture_output=True, cwd=tmp_path, env=environment)
        assert not done.returncode, done.stderr.decode()
        return json.loads((tmp_path / name / "lightly_cifar-smoke" / "results.json").read_text())

    with dask(tmp_path) as place:
        there = study("there", "--on", place)
    assert there == study("here")
    assert toy_grid.contents(tmp_path / "there").keys() == toy_grid.contents(tmp_path / "here").keys()


SCRIPT = """
import torch
from torch.nn.functional import cross_entropy
x, layer = torch.randn(64, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(8):
    z = torch.nn.functional.normalize(layer(x), dim=1)
    loss = cross_entropy(z @ z.T * 10, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


@pytest.mark.parametrize("command", ["train", "tune", "compare", "race"])
def test_commands_on_dask(command, tmp_path):
    """Each command that runs a grid ends with what it prints without a cluster."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    site = ["--site", f"{script}:8", "--scale", "10", "--objective", "host", "hcl:t=0.1", "--set-seed"]
    small, few = ["graph", "--epochs", "1", "--folds", "2"], ["--seeds", "3", "--tune-seeds", "1", "--budget", "2"]
    words, last = {
        "train": ([*small, "--objective", "dcl:t=0.2"], []),
        "tune": ([*small, "--objective", "adnce", "--budget", "3"], []),
        "compare": (["logits", *site, "--seeds", "2", "--metric", "output:loss (.+)"], ["--", str(script)]),
        "race": (["logits", *site, *few, "--metric", "output:loss (.+)", "--lower"], ["--", str(script)]),
    }[command]

    def run(*place):
        folder = tmp_path / "runs"
        full = [sys.executable, "-m", "counterpoint", command, *words, "--out", str(folder), *place, "--json", *last]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(full, capture_output=True, text=True, env=environment)
        assert not done.returncode, done.stderr
        results = {run.title: run.result for run in store.find_runs(folder)}
        folder.rename(tmp_path / f"runs{len(place)}")
        return results

    with dask(tmp_path) as place:
        there = run("--on", place)
    assert len(there) > 1
    assert there == run()


def test_dask_workers_that_do_not_see_the_folder(tmp_path):
    """The workers have a file system of their own where the runs are."""
    root = tmp_path / "runs"
    root.mkdir()
    hidden = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(root)]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and permission for mounts")
    with dask(tmp_path, hidden) as place, pytest.raises(store.GridError, match="does not see the folder") as caught:
        quietly(toy_grid.train, toy_grid.cells(1), root, executor=place)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [run for run in store.find_runs(root) if run.done]


def test_ray(tmp_path, undisturbed, monkeypatch):
    pytest.importorskip("ray", reason="needs counterpoint-losses[cluster]")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        check(f"ray:{cluster.address}", tmp_path, undisturbed, monkeypatch)
    finally:
        cluster.shutdown()


def test_submitit_on_this_machine(tmp_path, undisturbed, monkeypatch):
    submitit = pytest.importorskip("submitit", reason="needs counterpoint-losses[cluster]")
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=30)

    class TwoAtATime:
        """LocalExecutor starts every job at once."""

        def submit(self, function, /, *args):
            self.jobs = [job for job in getattr(self, "jobs", []) if not job.done()]
            while len(self.jobs) > 1:
                time.sleep(0.2)
                self.jobs = [job for job in self.jobs if not job.done()]
            self.jobs.append(executor.submit(function, *args))
            return self.jobs[-1]

    check(TwoAtATime(), tmp_path, undisturbed, monkeypatch)


# ---- Slurm -------------------------------------------------------------------------------------

COMMAND = "train graph --objective infonce:t=0.2 dcl:t=0.2 hcl:t=0.2 adnce:t=0.2 --seeds 4 --epochs 60 --folds 2"
SIGNALS = 8


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    pytest.importorskip("submitit", reason="needs counterpoint-losses[cluster]")
    if missing := slurm.missing():
        pytest.skip(f"not installed here: {missing} (Debian's slurm-wlm and munge)")
    with slurm.cluster(tmp_path_factory.mktemp("cluster") / "slurm") as started:
        yield started


@contextmanager
def disturbing(nodes):
    """Signal running jobs at random moments, and kill a node's daemon until Slurm calls the node down; yields both.

    The last jobs are left alone: a run that is lost three times before its first checkpoint has failed.
    """
    rng, stop, events, began = random.Random(0), threading.Event(), [], time.monotonic()

    def loop():
        while len(events) <= SIGNALS and not stop.wait(rng.uniform(3, 9)):
            running = nodes.command("squeue", "-h", "-t", "R", "-o", "%i").split()
            if len(events) == SIGNALS // 2:
                nodes.kill("node1")
                while not stop.wait(1) and "down" not in nodes.command("sinfo", "-h", "-n", "node1", "-o", "%t"):
                    pass
                nodes.start_node("node1")
                event = "node1 was down, with its jobs"
            elif running and len(nodes.command("squeue", "-h", "--array", "-o", "%i").split()) > 4:
                name, job = rng.choice(("KILL", "USR2")), rng.choice(running)  # USR2: a pre-emption, to submitit
                # a job that is starting cannot be signalled yet: scancel would try again for 100 seconds
                nodes.command("timeout", "5", "scancel", f"--signal={name}", job)
                event = f"{name} to job {job}"
            else:
                continue
            events.append(f"{time.monotonic() - began:.0f} s: {event}")

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield events
    finally:
        stop.set()
        thread.join()
        print("\n".join(events))


def train(tmp_path, name, *words, **environment):
    """Run the command; returns its table, its runs and what it printed to stderr."""
    command = [sys.executable, "-m", "counterpoint", *COMMAND.split(), "--out", str(tmp_path / name), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    assert not done.returncode, done.stderr
    return done.stdout, toy_grid.contents(tmp_path / name) if (tmp_path / name).exists() else {}, done.stderr


def test_slurm(tmp_path, nodes):
    with disturbing(nodes) as events:
        table, runs, log = train(tmp_path, "runs", "--on", "slurm:time=30,cpus=1", **nodes.environment)
    print(*(line for line in log.splitlines() if "again" in line), sep="\n")
    assert len(events) == SIGNALS + 1
    assert "submitted again" in log
    local, undisturbed, _ = train(tmp_path, "local")
    assert table == local
    assert runs == undisturbed
    assert len(runs) == 24


def test_slurm_trains_nothing_twice(tmp_path, nodes, undisturbed, monkeypatch):
    """A job goes on after its node's daemon was killed, and Slurm calls it lost: no other may train its run."""
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "ATTEMPTS", SIGNALS + 1)
    record, root = tmp_path / "record", tmp_path / "runs"
    train = partial(toy_grid.train_recorded, record=record, pause=PAUSE)
    with disturbing(nodes) as events:
        runs = quietly(train, toy_grid.cells(SEEDS), root, executor="slurm:time=30,cpus=1")
    count(record, runs)
    assert len(events) == SIGNALS + 1
    assert toy_grid.contents(root) == undisturbed


def refused(tmp_path, place):
    """Submit to a place that cannot take it; returns the only line."""
    with pytest.raises(ValueError, match=r"^--on slurm: .+") as caught:
        quietly(toy_grid.train, toy_grid.cells(1), tmp_path, executor=place)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_slurm_refuses(tmp_path, nodes, monkeypatch, capfd):
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    assert "invalid partition specified: nowhere" in refused(tmp_path, "slurm:partition=nowhere")
    assert "Invalid feature" in refused(tmp_path, "slurm:constraint=moon")
    elsewhere = tmp_path / "slurm.conf"
    text = Path(nodes.environment["SLURM_CONF"]).read_text()
    elsewhere.write_text(re.sub(r"(SlurmctldPort)=\d+", rf"\1={slurm.free_ports(1)[0]}", text))
    monkeypatch.setenv("SLURM_CONF", str(elsewhere))
    assert "Unable to contact slurm controller" in refused(tmp_path, "slurm")
    assert "sbatch" not in capfd.readouterr().err
