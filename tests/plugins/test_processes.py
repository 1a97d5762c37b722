"""Launchers: processes train as if the loss was edited by hand, also where the script gathers keys."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from processes import PATIENCE

SCRIPT = """
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F

B = 6


def everyone(b):
    keys = torch.cat(torch.distributed.nn.all_gather(b))
    return keys, torch.arange(B) + B * dist.get_rank()


def cross_entropy(a, b):
    keys, at = everyone(b)
    return F.cross_entropy(a @ keys.T / 0.1, at)


def others_as_they_are(a, b):
    keys = [torch.empty_like(b) for _ in range(2)]
    dist.all_gather(keys, b.detach())
    keys[dist.get_rank()] = b
    return F.cross_entropy(a @ torch.cat(keys).T / 0.1, torch.arange(B) + B * dist.get_rank())


def exponentials(a, b):
    keys, at = everyone(b)
    e = torch.exp(a @ keys.T / 0.1)
    return -torch.log(e[torch.arange(B), at] / e.sum(1)).mean()


def apart(a, b):
    keys, _ = everyone(b)
    pos = torch.exp((a * b).sum(1) / 0.1)
    return -torch.log(pos / torch.exp(a @ keys.T / 0.1).sum(1)).mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 5).double())
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(5):
        x = torch.randn(B, 6).double()
        z = F.normalize(net(torch.cat([x, x + 0.3 * torch.randn(B, 6)])), dim=1)
        loss = globals()[sys.argv[1]](z[:B], z[B:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 1:
        torch.save(net.module.weight.data, sys.argv[2])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
BY_HAND = {
    "a @ keys.T / 0.1, at)": "a @ keys.T, at)",
    "a @ torch.cat(keys).T / 0.1,": "a @ torch.cat(keys).T,",
    "F.cross_entropy(": "counterpoint.objective('hcl:t=0.1,beta=1').from_logits(",
    "import sys\n": "import sys\n\nimport counterpoint\n",
}
TRUTH = {"cross_entropy": ("cross_entropy", "exponentials", "apart"), "others_as_they_are": ("others_as_they_are",)}
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.mark.slow
def test_keys_that_the_script_gathers(tmp_path):
    edited = SCRIPT
    for old, new in BY_HAND.items():
        edited = edited.replace(old, new)
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "edited.py").write_text(edited)

    def launch(*words):
        done = subprocess.run(
            [sys.executable, *RANKS, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    for truth, kinds in TRUTH.items():
        launch("edited.py", truth, "edited.pt")
        for kind in kinds:
            end = ["--", "toy.py", kind, f"{kind}.pt"]
            inject = ["-m", "counterpoint.plugins.inject"]
            said = launch(*inject, "auto", "--objective", "hcl:t=0.1,beta=1", *end)
            assert "In all processes: your launcher stands before the script, -- torchrun ..." in said
            (command,) = (line.split()[3:] for line in said.splitlines() if line.startswith("  run "))
            assert "in 5 of them" in launch(*inject, *command[: command.index("--")], *end)
            found, expected = (torch.load(tmp_path / f"{name}.pt") for name in (kind, "edited"))
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


SCORE = """
import torch


def norm(folder):
    return float(torch.load(folder / "0.pt").square().sum())
"""


@pytest.mark.slow
def test_a_comparison_starts_the_launcher(tmp_path):
    """Each run has both processes; ``auto`` finds the loss in them, and its command starts them, too."""
    edited = SCRIPT
    for old, new in BY_HAND.items():
        edited = edited.replace(old, new)
    for name, text in {"toy.py": SCRIPT, "edited.py": edited, "score.py": SCORE}.items():
        (tmp_path / name).write_text(text)

    def run(*words):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done

    script = ["--", "torchrun", *RANKS[2:], "toy.py", "cross_entropy"]
    said = run("-m", "counterpoint", "inject", "auto", "--json", "found.json", *script, "0.pt").stderr
    assert f"--site toy.py:19 --scale 10 --objective hcl:t=0.2 {shlex.join(script)} 0.pt" in said
    assert json.loads((tmp_path / "found.json").read_text())["losses"][0]["processes"] == 2
    rows = ["--objective", "host", "hcl:t=0.1,beta=1", "--metric", "python:score.py:norm", "--seeds", "1", "--json"]
    report = json.loads(run("-m", "counterpoint", "compare", "auto", *rows, *script, "{out}/{seed}.pt").stdout)
    found = {each["row"]: each["mean"] for each in report["columns"][0]["rows"]}
    for name, row in (("toy.py", "host"), ("edited.py", rows[2])):
        run(*RANKS, name, "cross_entropy", "0.pt")
        weight = torch.load(tmp_path / "0.pt")
        assert found[row] == pytest.approx(float(weight.square().sum()), rel=1e-8), report


ACCELERATED = """
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator

B = 6


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 5).double()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.5))
    torch.manual_seed(accelerator.process_index)
    for _ in range(6):
        with accelerator.accumulate(net):
            x = torch.randn(B, 6).double()
            a, b = (F.normalize(net(x + 0.3 * torch.randn(B, 6)), dim=1) for _ in range(2))
            loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(B))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(net).weight.data, sys.argv[1])
    accelerator.end_training()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_launch(processes, tmp_path):
    pytest.importorskip("accelerate")
    edited = ACCELERATED.replace("a @ b.T / 0.1,", "a @ b.T,")
    edited = edited.replace("F.cross_entropy(", "counterpoint.objective('hcl:t=0.1,beta=1').from_logits(")
    (tmp_path / "toy.py").write_text(ACCELERATED)
    (tmp_path / "edited.py").write_text(f"import counterpoint\n{edited}")
    ranks = ["-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"]
    ranks += ["--num_processes", str(processes), "--num_cpu_threads_per_process", "1"]
    inject = ["-m", "counterpoint.plugins.inject"]

    def launch(*words):
        command = [sys.executable, *ranks, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stderr

    launch("edited.py", "edited.pt")
    said = launch(*inject, "auto", "--objective", "hcl:t=0.1,beta=1", "--", "toy.py", "none.pt")
    (command,) = (line.split()[3:] for line in said.splitlines() if line.startswith("  run "))
    said = launch(*inject, *command[:-1], "toy.pt")
    assert said.count("the loss was reached 6 times") == 1
    assert "was that of the host's own loss in 6 of them" in said
    found, expected = (torch.load(tmp_path / f"{name}.pt") for name in ("toy", "edited"))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


HYDRA = """
import hydra
import torch
import torch.nn.functional as F


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    net = torch.nn.Linear(6, 5)
    for _ in range(4):
        a, b = (F.normalize(net(torch.randn(8, 6)), dim=1) for _ in range(2))
        F.cross_entropy(a @ b.T / config.t, torch.arange(8)).backward()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "words", [pytest.param(["toy/train.py"], marks=pytest.mark.slow), ["-m", "toy.train"]], ids=["file", "module"]
)
def test_hydra_finds_its_configs_beside_the_script(words, tmp_path):
    pytest.importorskip("hydra")
    (tmp_path / "toy" / "conf").mkdir(parents=True)
    (tmp_path / "toy" / "train.py").write_text(HYDRA)
    (tmp_path / "toy" / "conf" / "config.yaml").write_text("t: 0.1")
    command = [sys.executable, "-m", "counterpoint.plugins.inject", "auto", "--", *words, "t=0.2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "scale         5 (temperature 0.2), constant" in done.stderr


@pytest.mark.slow
def test_a_launcher_that_is_ended_leaves_its_counts(tmp_path):
    """As ``race`` ends trainings early, to learn what their treatments did."""
    script = SCRIPT.replace("range(5)", "range(10**9)").replace("r.step()", "r.step(); print(flush=True)")
    (tmp_path / "toy.py").write_text(script)
    words = ["logits", "--site", "toy.py:19", "--objective", "host; duplicates", "--counts", "counts.json"]
    command = [sys.executable, "-m", "counterpoint.plugins.inject", *words, "--", "torchrun", *RANKS[2:], "toy.py"]
    pipes = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([*command, "cross_entropy", "0.pt"], cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == "\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "counts.json").read_text())["excluded"] == 0
