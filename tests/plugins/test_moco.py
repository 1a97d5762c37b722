"""MoCo: on a stand-in of its files, in one process and in two, and on a clone where COUNTERPOINT_HOSTS has one."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hosts import SGD, real_clone
from injected import differences
from torch import nn

import counterpoint as cp
from counterpoint.plugins import inject, launch, moco
from counterpoint.plugins.host import Seam, SeamError
from counterpoint.plugins.shims import moco as shims

BUILDER = '''
import torch
import torch.distributed as dist
import torch.nn as nn


class MoCo(nn.Module):
    """The host's names, shapes and order of calls."""

    def __init__(self, base_encoder, dim=128, K=65536, m=0.999, T=0.07, mlp=False):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q, self.encoder_k = base_encoder(num_classes=dim), base_encoder(num_classes=dim)
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())
        self.encoder_k.requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.lerp_(q, 1 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        if dist.is_initialized():
            everyone = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, keys)
            keys = torch.cat(everyone)
        start = int(self.queue_ptr)
        self.queue[:, start : start + len(keys)] = keys.T
        self.queue_ptr[0] = (start + len(keys)) % self.K

    def forward(self, im_q, im_k):
        q = nn.functional.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = nn.functional.normalize(self.encoder_k(im_k), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / self.T
        labels = torch.zeros(len(logits), dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels
'''

MAIN = (
    SGD
    + """
import argparse

import moco.builder
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


class Encoder(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(12, num_classes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--moco-t", default=0.07, type=float)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--dist-url", default="")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--multiprocessing-distributed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.multiprocessing_distributed:
        mp.spawn(main_worker, nprocs=2, args=(2, args))
    else:
        main_worker(0, 1, args)


def main_worker(gpu, ngpus_per_node, args):
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    if args.multiprocessing_distributed:
        dist.init_process_group("gloo", init_method=args.dist_url, world_size=ngpus_per_node, rank=gpu)
    torch.manual_seed(0)
    model = moco.builder.MoCo(Encoder, 8, 24, 0.99, args.moco_t).to(dtype)
    if args.multiprocessing_distributed:
        model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.5)
    torch.manual_seed(gpu)
    loader = [([torch.randn(6, 12, dtype=dtype), torch.randn(6, 12, dtype=dtype)], None) for _ in range(3)]
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, epoch, args)
    if gpu == 0:
        torch.save(model.state_dict(), "checkpoint.pth.tar")


def train(train_loader, model, criterion, optimizer, epoch, args):
    model.train()
    for images, _ in train_loader:
        output, target = model(im_q=images[0], im_k=images[1])
        loss = criterion(output, target)
        accuracy(output, target, topk=(1, 5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accuracy(output, target, topk=(1,)):
    found = output.topk(max(topk), 1).indices.t()
    hits = found.eq(target.view(1, -1).expand_as(found))
    return [hits[:k].view(-1).float().sum(0, keepdim=True) for k in topk]


if __name__ == "__main__":
    main()
"""
)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the stand-in, and this process as it was afterwards."""
    (tmp_path / "moco").mkdir()
    (tmp_path / "moco" / "__init__.py").write_text("")
    (tmp_path / "moco" / "builder.py").write_text(BUILDER)
    (tmp_path / "main_moco.py").write_text(MAIN)
    (tmp_path / "main_lincls.py").write_text("def main(): ...\n\n\nif __name__ == '__main__':\n    main()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield tmp_path
    forget("main_moco", "main_lincls", "moco", "moco.builder", "deeplearning")


def forget(*names):
    for name in [name for name in sys.modules if name in names or name.startswith("deeplearning.")]:
        del sys.modules[name]


def train(clone, seam, *args):
    launch.run(moco.HOST, seam, clone / "main_moco.py", ["data", *args])
    return torch.load(clone / "checkpoint.pth.tar")


def test_host_trains_to_the_same_weights(clone, monkeypatch):
    # what the accuracy shim is for: without it, the script stops here
    monkeypatch.syspath_prepend(clone)
    monkeypatch.setattr(sys, "argv", ["main_moco.py", "data", "--moco-t", "0.2"])
    lenient = shims.lenient(runpy.run_path("main_moco.py")["accuracy"])
    source = (clone / "main_moco.py").read_text()
    (clone / "plain.py").write_text(source.replace("        accuracy(", "        0 and accuracy("))
    runpy.run_path("plain.py", run_name="__main__")
    untouched = torch.load("checkpoint.pth.tar")
    forget("moco", "moco.builder")
    ours = train(clone, Seam("host"), "--moco-t", "0.2")
    torch.testing.assert_close(ours, untouched, rtol=0, atol=1e-12)
    top1, top5 = lenient(torch.eye(6), torch.tensor([0, 1, 2, 3, 4, 0]), topk=(1, 5))
    assert type(top1) is type(top5) is torch.Tensor
    assert top1.item() == 5


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-5)])
@pytest.mark.parametrize("t", ["0.07", "0.2"])
def test_verify(clone, dtype, tolerance, t):
    seam = Seam("hcl", verify=4)
    train(clone, seam, "--moco-t", t, "--dtype", dtype)  # its keys were normalized in float32
    assert seam.calls == seam.proofs == 6
    assert seam.worst <= tolerance


def test_injected_is_what_is_written_by_hand(clone):
    images = torch.randn(2, 6, 12, dtype=torch.float64)
    found = []
    for injects in (True, False):
        forget("moco", "moco.builder")
        model = made(clone, T=0.2)
        if injects:
            module = SimpleNamespace(__file__="main_moco.py")
            module.train = lambda loader, model: nn.functional.cross_entropy(*model(*loader)).backward()
            moco.after(Seam("hcl:t=0.3"), module)
            module.train(images, model)
        else:
            criterion = moco.ContrastiveLoss("hcl:t=0.3", model)
            criterion(*model(*images)).backward()
        found.append(model.encoder_q.weight.grad)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_two_spawned_processes(clone, capfd):
    words = ["data", "--multiprocessing-distributed", "--dist-url", f"file://{clone}/rendezvous"]
    objective = ["--objective", "adnce:t=0.2,mu=0.4", "--verify", "2"]
    assert inject.main(["moco", *objective, "--", "main_moco.py", *words]) == 0
    said = capfd.readouterr().err
    assert "the loss was reached 12 times" in said
    assert max(differences(said)) <= 1e-6
    assert all(x.isfinite().all() for x in torch.load("checkpoint.pth.tar").values())


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective(clone, name):
    spec = f"{name}(infonce)" if "objective" in cp.registry[name]._defaults() else name
    if name in ("arcl", "aal"):
        with pytest.raises(SeamError, match="its loader makes two crops"):
            train(clone, Seam(spec))
        spec += ":views=2"
    if name in ("robust", "intcl", "intnacl", "mixnca"):
        with pytest.raises(SeamError, match=r"needs (adversarial|mixed) views"):
            train(clone, Seam(spec))
        return
    if name in ("sogclr", "isogclr"):
        with pytest.raises(SeamError, match="needs the positions of samples"):
            train(clone, Seam(spec))
        return
    seam = Seam(spec, report=clone / "report.jsonl")
    found = train(clone, seam)
    assert seam.calls == 6
    assert all(x.isfinite().all() for x in found.values())
    assert len((clone / "report.jsonl").read_text().splitlines()) == 6


class Encoder(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(12, num_classes)


def made(clone, **how):
    sys.path.insert(0, str(clone))
    torch.manual_seed(0)
    return importlib.import_module("moco.builder").MoCo(Encoder, 8, 24, **how).double()


def test_by_hand(clone):
    model = made(clone, T=0.2)
    images = torch.randn(2, 6, 12, dtype=torch.float64)
    criterion = moco.ContrastiveLoss("infonce:t=0.2", model)
    output, target = model(*images)
    ours, theirs = criterion(output, target), nn.functional.cross_entropy(output, target)
    weight = model.encoder_q.weight
    gradients = [torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_regularisers_look_at_the_queries(clone):
    model = made(clone, m=1.0)
    images = torch.randn(2, 6, 12, dtype=torch.float64)
    queue = model.queue.clone()
    criterion = moco.ContrastiveLoss("hcl:t=0.2 + 0.1*dp", model)
    loss = criterion(*model(*images))
    q, k = model.encoder_q(images[0]), model.encoder_k(images[1])
    expected = cp.HCL(0.2)(q, k, queue=queue.T) + 0.1 * cp.DistancePolarization()(q)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)  # the queue was normalized in float32
    assert not torch.equal(model.queue, queue)


def test_a_criterion_without_its_model(clone):
    model = made(clone)
    criterion = moco.ContrastiveLoss("hcl", model)
    output, target = model(*torch.randn(2, 6, 12, dtype=torch.float64))
    criterion(output, target)
    with pytest.raises(SeamError, match="logits that its model did not compute"):
        criterion(output, target)
    with pytest.raises(SeamError, match="Linear has no queue; the script that trains MoCo is"):
        moco.ContrastiveLoss("hcl", nn.Linear(2, 2))


def test_the_name_inside_the_company(clone, capsys):
    source = (clone / "main_moco.py").read_text()
    (clone / "main_moco.py").write_text(source.replace("moco.builder", "deeplearning.cross_image_ssl.moco.builder"))
    assert inject.main(["moco", "--objective", "hcl", "--", "main_moco.py", "data"]) == 0
    assert "shim internal_name" in capsys.readouterr().err
    found = sys.modules["deeplearning.cross_image_ssl.moco.builder"].__file__
    assert Path(found).resolve() == (clone / "moco" / "builder.py").resolve()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--objective", "arcl(hcl)", "--", "main_moco.py", "data"], 2, "compares several views, but its loader makes"),
        (["--objective", "arcl(hcl):views=4", "--", "main_moco.py", "data"], 2, "asks for 4 views, but its loader"),
        (["--objective", "hcl", "--", "main_lincls.py"], 2, "the script that trains MoCo is main_moco.py"),
        (["--objective", "hcl", "--", "main_moco.py", "data", "--epochs", "0"], 3, "never reached"),
    ],
)
def test_the_launcher(clone, capsys, words, code, says):
    assert inject.main(["moco", *words]) == code
    assert says in capsys.readouterr().err


def test_no_shims(clone):
    words = ["--objective", "hcl", "--no-shims", "--", "main_moco.py", "data"]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        inject.main(["moco", *words])


def test_recognises_its_clone(clone):
    assert moco.HOST.recognises(clone)
    (clone / "moco" / "builder.py").write_text("class MoCo_ResNet: ...")
    assert not moco.HOST.recognises(clone)


def test_the_real_host(monkeypatch, tmp_path):
    folder = real_clone("moco")
    pytest.importorskip("torchvision")
    assert moco.HOST.recognises(folder)
    # the host is for CUDA and for process groups only
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_: self)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "argv", [str(folder / "main_moco.py")])
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", world_size=1, rank=0)
    try:
        seam = Seam("hcl:t=0.3", verify=4)
        finish = launch.install(moco.HOST, seam)
        script = importlib.import_module("main_moco")
        finish(script)
        torch.manual_seed(0)
        package = "moco" if "moco" in vars(script) else "deeplearning.cross_image_ssl.moco"  # since 2024-12
        model = sys.modules[f"{package}.builder"].MoCo(Encoder, 8, 24, 0.99, 0.2).double()
        loader = [(list(torch.randn(2, 6, 12, dtype=torch.float64)), None) for _ in range(6)]
        optimizer = torch.optim.SGD(model.encoder_q.parameters(), 0.5)
        args = script.parser.parse_args(["data"])
        script.train(loader, model, nn.CrossEntropyLoss(), optimizer, 0, args)
    finally:
        torch.distributed.destroy_process_group()
        forget("main_moco", "moco", "moco.builder", "moco.loader", "deeplearning")
    assert seam.calls == 6
    assert (seam.proofs, seam.worst < 1e-6) == (6, True)
