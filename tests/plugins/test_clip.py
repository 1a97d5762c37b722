"""CLIP's losses where they are: a learned scale, two directions, gathered embeddings; those of transformers anyway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bed_images import CLIP_MODEL
from hosts import real_clone
from injected import differences, launch
from processes import PATIENCE

import counterpoint as cp

LOSS = """
import importlib.util

import torch
import torch.nn.functional as F

spec = importlib.util.spec_from_file_location("loss", {file!r})
module = importlib.util.module_from_spec(spec)
{before}
spec.loader.exec_module(module)
criterion = module.{name}()
torch.manual_seed(0)
images, texts, scale = torch.nn.Linear(6, 4), torch.nn.Linear(5, 4), torch.nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.SGD([*images.parameters(), *texts.parameters(), scale], lr=1.0)
for _ in range(6):
    a, b = F.normalize(images(torch.randn(7, 6)), dim=1), F.normalize(texts(torch.randn(7, 5)), dim=1)
    loss = {call}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()), float(scale.detach()))
"""
UTILS = """
import sys, types
sys.modules["utils"] = types.SimpleNamespace(get_rank=lambda: 0, all_gather_batch=lambda tensors: tensors)
"""


def script_of(name: str) -> str:
    if name == "transformers":
        pytest.importorskip("transformers")
        return CLIP_MODEL
    if name == "open_clip":
        file, class_ = real_clone("open_clip") / "src/open_clip/loss.py", "ClipLoss"
        call, before = "criterion(a, b, scale.exp())", ""
    else:
        file, class_ = real_clone("SLIP") / "losses.py", "CLIPLoss"
        call = "criterion({'image_embed': a, 'text_embed': b, 'logit_scale': scale.exp()})['loss']"
        before = UTILS
    return (
        LOSS.replace("{file!r}", repr(str(file)))
        .replace("{before}", before)
        .replace("{name}", class_)
        .replace("{call}", call)
    )


@pytest.mark.parametrize("name", ["transformers", "open_clip", "SLIP"])
def test_the_hosts_loss_and_its_learned_scale(name, tmp_path, monkeypatch, capsys):
    script = script_of(name)

    def run(*words):
        return launch(tmp_path, script, monkeypatch, capsys, "clip", words)

    own = run()
    assert (own.code, "reached 12 times" in own.err) == (0, True)
    same = run("--objective", "infonce:t=host")
    for ours, theirs in zip(same.numbers, own.numbers, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert len({scale for _, scale in same.numbers}) == 6
    other = run("--objective", "adnce:t=host,mu=0.4", "--verify", "4")
    assert max(differences(other.err)) < 1e-4
    assert "learned, measured in 3 calls" in other.err
    trained = run("--objective", "adnce:t=host,mu=0.4")
    assert trained.code == 0
    assert trained.numbers[-1] != pytest.approx(own.numbers[-1], rel=1e-4)
    wrong = run("--objective", "adnce:t=host,mu=0.4", "--scale", "3")
    assert (wrong.code, "is learned, so a number is soon wrong: --scale" in wrong.err) == (2, True)


def test_objectives_that_logits_cannot_have(tmp_path, monkeypatch, capsys):
    for spec, why in (("arcl(infonce)", "compares several views"), ("mixnca", "needs mixed views")):
        found = launch(tmp_path, "", monkeypatch, capsys, "clip", ("--objective", spec))
        assert (found.code, why in found.err) == (2, True)
    assert launch(tmp_path, "print(1)", monkeypatch, capsys, "clip", ("--objective", "hcl")).code == 3


# ---- two processes ---------------------------------------------------------------------------------

GATHERED = """
import importlib.util
import os
import sys

import torch
import torch.nn.functional as F

spec = importlib.util.spec_from_file_location("loss", {file!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


def work(rank, world, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.manual_seed(0)
    images, texts = torch.nn.Linear(6, 4), torch.nn.Linear(5, 4)
    scale = torch.nn.Parameter(torch.tensor(2.0))
    parameters = [*images.parameters(), *texts.parameters(), scale]
    criterion = module.ClipLoss({settings}, rank=rank, world_size=world)
    own = slice(4 * rank, 4 * rank + 4)
    for step in range(2):
        x, y = torch.randn(8, 6), torch.randn(8, 5)
        a, b = F.normalize(images(x[own]), dim=1), F.normalize(texts(y[own]), dim=1)
        loss = criterion(a, b, scale.exp())
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in parameters)]
    for each in found:
        torch.distributed.all_reduce(each)
    torch.save([each / world for each in found], f"{folder}/{rank}.pt")


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(2, os.getcwd()), nprocs=2)
"""


def whole_batch(loss_fn) -> list[torch.Tensor]:
    """The second step of the script in one process."""
    torch.manual_seed(0)
    images, texts = torch.nn.Linear(6, 4), torch.nn.Linear(5, 4)
    scale = torch.nn.Parameter(torch.tensor(2.0))
    for _ in range(2):
        x, y = torch.randn(8, 6), torch.randn(8, 5)
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (images(x), texts(y)))
    logits = scale.exp() * a @ b.T
    loss = sum(loss_fn.from_logits(x, scale=scale.exp()) for x in (logits, logits.T)) / 2
    parameters = [*images.parameters(), *texts.parameters(), scale]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["local_loss=True, gather_with_grad=True", "gather_with_grad=True"])
def test_gathered_embeddings_are_the_whole_batch(settings, tmp_path):
    """The script's own value and our gradient, averaged over processes as DistributedDataParallel does."""
    script = GATHERED.replace("{file!r}", repr(str(real_clone("open_clip") / "src/open_clip/loss.py")))
    (tmp_path / "toy.py").write_text(script.replace("{settings}", settings))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for spec in ("infonce:t=host", "hcl:t=host"):
        for verify in ([], ["--verify", "2"] * (spec == "infonce:t=host")):
            (tmp_path / "store").unlink(missing_ok=True)
            words = ["clip", "--objective", spec, *verify, "--", "toy.py"]
            command = [sys.executable, "-m", "counterpoint.plugins.inject", *words]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stderr
            assert "reached 8 times" in done.stderr
            expected = [whole_batch(cp.objective("infonce:t=host"))[0], *whole_batch(cp.objective(spec))[1:]]
            for rank in range(2):
                found = torch.load(Path(tmp_path, f"{rank}.pt"))
                for ours, whole in zip(found, expected, strict=True):
                    torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-6)
