"""ContrastiveLoss in the trainers of open_clip, FlagEmbedding and Tevatron, and with transformers' models."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hosts import real_clone
from processes import part, run
from torch import distributed as dist

import counterpoint as cp
from counterpoint.plugins.clip import ContrastiveLoss

BATCH, WIDTH = 8, 5
MODES = [(local, True) for local in (False, True)]
EXCHANGES = ["bidir", "shift", "reduce", "gather"]


def open_clip_losses(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("open_clip_loss", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(loss_fn: Any, rows: slice, bias: float | None, **more: Any) -> list[torch.Tensor]:
    """The loss of some rows, and its gradients by features, scale and bias."""
    draw = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(2, BATCH, WIDTH, generator=draw, dtype=torch.float64), dim=2)[:, rows]
    image, text = (x.clone().requires_grad_() for x in features)
    scale = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    leaves, given = [image, text, scale], {}
    if bias is not None:
        leaves.append(torch.tensor(bias, dtype=torch.float64, requires_grad=True))
        given = {"logit_bias": leaves[-1]}
    loss = loss_fn(image, text, scale, **given, output_dict=True)["contrastive_loss"]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def all_losses(rank: int, file: str, world: int) -> dict[str, list[list[torch.Tensor]]]:
    losses, rows = open_clip_losses(file), part([BATCH // world] * world, rank)
    known = {"rank": rank, "world_size": world}
    found = {}
    for local, grad in MODES:
        theirs = losses.ClipLoss(local_loss=local, gather_with_grad=grad, **known)
        found[f"clip, local {local}"] = [step(theirs, rows, None), step(ours("infonce:t=host", world), rows, None)]
    for exchange in EXCHANGES:
        theirs = losses.SigLipLoss(dist_impl=exchange, **known)
        found[f"siglip, {exchange}"] = [step(theirs, rows, -3.0), step(ours("siglip:t=host", world), rows, -3.0)]
    return found


def ours(spec: str, world: int) -> ContrastiveLoss:
    return ContrastiveLoss(spec, gather=world > 1)


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("world", [1, 2, 4])
def test_open_clips_losses(world, tmp_path):
    file = str(real_clone("open_clip") / "src/open_clip/loss.py")
    found = run(all_losses, tmp_path, world, file, world)
    for name in found[0]:
        theirs, mine = ([process[name][i] for process in found] for i in (0, 1))
        # the mean over processes, as DDP averages: local losses, scale and bias differ from process to process
        for entry in (0, *range(3, len(theirs[0]))):
            mean = [torch.stack([process[entry] for process in each]).mean() for each in (theirs, mine)]
            torch.testing.assert_close(mean[1], mean[0], rtol=1e-9, atol=1e-12, msg=f"{name}, {entry}: {{}}".format)
        for a, b in zip(theirs, mine, strict=True):
            torch.testing.assert_close(b[1:3], a[1:3], rtol=1e-9, atol=1e-12, msg=f"{name}: {{}}".format)


@pytest.mark.parametrize("spec", ["hcl:t=host", "adnce:t=host,mu=0.4", "siglip:t=host", "infonce:t=0.1 + 0.1*dp"])
@pytest.mark.parametrize("kind", ["CLIPTask", "SigLIPTask"])
def test_open_clips_own_task_trains(kind, spec, monkeypatch):
    """Its model, its task, a few steps with another objective."""
    for package in ("timm", "ftfy", "torchvision"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(real_clone("open_clip") / "src"))
    for name in [name for name in sys.modules if name.split(".")[0] == "open_clip"]:
        monkeypatch.delitem(sys.modules, name)
    import open_clip
    from open_clip import task

    torch.manual_seed(0)
    vision = {"image_size": 16, "layers": 1, "width": 32, "patch_size": 8, "head_width": 16}
    text = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
    bias = {"init_logit_bias": -10.0} if kind == "SigLIPTask" else {}
    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text, output_dict=True, **bias)
    training = getattr(task, kind)(model, loss=ContrastiveLoss(spec), verbose=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before = model.logit_scale.detach().clone()
    batch = {"image": torch.randn(6, 3, 16, 16), "text": torch.randint(1, 50, (6, 8))}
    values = []
    for _ in range(8):
        losses, _ = training(batch)
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        values.append(losses["loss"].item())
    assert values[-1] < values[0]
    assert bool(model.logit_scale != before) == ("host" in spec)


CREATE = "    task = create_task(args, model=model, dist_model=dist_model, naflex_data_config=naflex_data_config)\n"
IN_PLACE = (
    "    from counterpoint.plugins.clip import ContrastiveLoss\n"
    "    task.loss = ContrastiveLoss({spec!r}, gather=args.world_size > 1)\n"
)


def open_clips_training(folder: Path, spec: str | None, processes: int, siglip: bool) -> list[list[str]]:
    """Run ``open_clip_train.main`` on 64 pictures, its loss replaced if a spec is given; return scales and losses."""
    source = folder / "src"
    shutil.copytree(real_clone("open_clip") / "src", source)
    bias = {"init_logit_bias": -10, "init_logit_scale": 2.3} if siglip else {}
    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
    model = {"embed_dim": 32, **bias, "vision_cfg": vision, "text_cfg": text}
    (source / "open_clip/model_configs/tiny.json").write_text(json.dumps(model))
    main = source / "open_clip_train/main.py"
    code = main.read_text().replace("device_ids=[device], ", "")  # which DDP refuses without a GPU
    assert CREATE in code
    main.write_text(code if spec is None else code.replace(CREATE, CREATE + IN_PLACE.format(spec=spec)))
    lines = ["filepath\ttitle"]
    draw = torch.Generator().manual_seed(0)
    from torchvision.utils import save_image

    for i in range(64):
        save_image(torch.rand(3, 32, 32, generator=draw), folder / f"{i}.png")
        lines.append(f"{folder / f'{i}.png'}\tpicture number {i}")
    (folder / "train.csv").write_text("\n".join(lines))
    command = [sys.executable]
    command += f"-m torch.distributed.run --standalone --nproc_per_node {processes}".split() if processes > 1 else []
    settings = "--device cpu --precision fp32 --lr 1e-3 --warmup 1 --log-every-n-steps 1 --seed 3 --epochs 2"
    command += f"-m open_clip_train.main --model tiny --batch-size {16 // processes} --workers 0 {settings}".split()
    command += ["--dataset-type", "csv", "--train-data", str(folder / "train.csv"), "--csv-separator", "\t"]
    command += ["--siglip"] if siglip else []
    command += ["--dist-backend", "gloo", "--gather-with-grad", "--local-loss"] if processes > 1 else []
    environment = os.environ | {"PYTHONPATH": str(source)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return re.findall(r"Logit Scale: (\S+) Contrastive_loss: (\S+)", ran.stderr + ran.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "siglip"), [(1, False), (1, True), (2, False)])
def test_open_clips_own_script_trains(processes, siglip, tmp_path):
    """The loss that replaces its own is that loss, step by step; another objective is another."""
    for package in ("timm", "ftfy", "torchvision", "webdataset", "braceexpand", "pandas"):
        pytest.importorskip(package)
    name = "siglip" if siglip else "infonce"
    specs = {"theirs": None, "ours": f"{name}:t=host", "other": "hcl:t=host,prior=0.05"}
    found = {}
    for key, spec in specs.items():
        (tmp_path / key).mkdir()
        found[key] = open_clips_training(tmp_path / key, spec, processes, siglip)
    assert len(found["theirs"]) == 8
    assert found["ours"] == found["theirs"] != found["other"]
    assert float(found["other"][-1][1]) < float(found["other"][0][1])


# ---- transformers --------------------------------------------------------------------------------


def tiny(kind: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model of random weights, and a batch."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    text = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text |= {
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "bos_token_id": 0,
        "eos_token_id": 49,
        "pad_token_id": 1,
    }
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    ids = torch.randint(2, 49, (6, 8))
    batch: dict[str, torch.Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if kind == "Clap":
        audio = {
            "hidden_size": 32, "patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [2, 2],
            "num_mel_bins": 8, "spec_size": 32, "window_size": 4, "num_hidden_layers": 2, "patch_size": 4,
            "patch_stride": [4, 4], "projection_dim": 16,
        }  # fmt: skip
        audio |= {"hidden_size": 16}
        config = transformers.ClapConfig(
            text_config=text | {"projection_dim": 16}, audio_config=audio, projection_dim=16
        )
        batch["input_features"] = torch.randn(6, 1, 32, 8)
        return transformers.ClapModel(config).eval(), batch
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    if kind == "CLIP":
        config.projection_dim = 16
    batch["pixel_values"] = torch.randn(6, 3, 16, 16)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    return model, batch


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", ["CLIP", "Siglip", "Clap"])
def test_transformers_models(kind):
    model, batch = tiny(kind)
    out = model(**batch, return_loss=True)
    theirs = gradients(model, out.loss)
    out = model(**batch)
    if kind == "CLIP":
        mine = ContrastiveLoss("infonce:t=host")(out.image_embeds, out.text_embeds, model.logit_scale.exp())
    elif kind == "Siglip":
        loss_fn = ContrastiveLoss("siglip:t=host")
        mine = loss_fn(out.image_embeds, out.text_embeds, model.logit_scale.exp(), model.logit_bias)
    else:  # both of its cross entropies are of texts, with a scale each
        loss_fn = ContrastiveLoss("infonce:t=host", symmetric=False)
        scales = model.logit_scale_t.exp(), model.logit_scale_a.exp()
        mine = sum(loss_fn(out.text_embeds, out.audio_embeds, scale) for scale in scales) / 2
    for got, want in zip(gradients(model, mine), theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


# ---- grouped passages ----------------------------------------------------------------------------


def grouped(queries: int = 6, group: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    q, p = (
        F.normalize(torch.randn(n, WIDTH, generator=draw, dtype=torch.float64), dim=1)
        for n in (queries, queries * group)
    )
    return q.requires_grad_(), p.requires_grad_()


def same(mine: torch.Tensor, theirs: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> None:
    found = [[x.detach(), *torch.autograd.grad(x, leaves)] for x in (mine, theirs)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def class_of(clone: str, file: str, name: str, monkeypatch) -> type:
    folder = real_clone(clone)
    monkeypatch.syspath_prepend(str(folder))
    try:
        return getattr(importlib.import_module(file), name)
    except ImportError as error:
        pytest.skip(f"{clone} needs {error.name}")


@pytest.mark.parametrize("in_batch", [True, False])
def test_flagembeddings_groups(in_batch, monkeypatch):
    host = class_of("FlagEmbedding", "FlagEmbedding.abc.finetune.embedder.AbsModeling", "AbsEmbedderModel", monkeypatch)
    q, p = grouped()

    class Model(host):  # what its subclasses define
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def compute_score(self, q, p):
            return q @ p.T / 0.02

        def compute_loss(self, scores, target):
            return F.cross_entropy(scores, target)

        encode = save = None

    compute = Model()._compute_in_batch_neg_loss if in_batch else Model()._compute_no_in_batch_neg_loss
    groups = p.view(len(q), -1, WIDTH)
    mine = cp.InfoNCE(0.02)(q, groups[:, 0], negatives=groups[:, 1:], in_batch=in_batch, normalize=False)
    same(mine, compute(q, p)[1], (q, p))


def test_tevatrons_groups(monkeypatch):
    host = class_of("tevatron/src", "tevatron.retriever.modeling.encoder", "EncoderModel", monkeypatch)
    q, p = grouped()

    class Model(host):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.temperature, self.is_ddp, self.cross_entropy = 0.02, False, torch.nn.CrossEntropyLoss()

        def encode_query(self, qry):
            return qry

        def encode_passage(self, psg):
            return psg

    model = Model().train()
    groups = p.view(len(q), -1, WIDTH)
    mine = cp.InfoNCE(0.02)(q, groups[:, 0], negatives=groups[:, 1:], normalize=False)
    # it takes dicts, whose truth is that there is one
    monkeypatch.setattr(Model, "encode_query", lambda self, qry: qry["z"])
    monkeypatch.setattr(Model, "encode_passage", lambda self, psg: psg["z"])
    same(mine, model({"z": q}, {"z": p}).loss, (q, p))
