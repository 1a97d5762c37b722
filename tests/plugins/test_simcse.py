"""SimCSE: on a stand-in of its files, in one process and in two, and on a clone where COUNTERPOINT_HOSTS has one."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from hosts import real_clone
from injected import differences
from processes import PATIENCE

import counterpoint as cp
from counterpoint.base import Wrapper
from counterpoint.plugins import inject, simcse
from counterpoint.plugins.host import ONE_WAY, DifferenceError, Seam, SeamError, UnreachedError

# The names, shapes and order of calls of the host's simcse/models.py, around an encoder of two layers.
MODELS = """
import torch
from torch import distributed, nn


class Similarity(nn.Module):
    def __init__(self, temp):
        super().__init__()
        self.temp = temp

    def forward(self, x, y):
        return nn.functional.cosine_similarity(x, y, dim=-1) / self.temp


def gather(rows):
    parts = [torch.zeros_like(rows) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, rows.contiguous())
    parts[distributed.get_rank()] = rows
    return torch.cat(parts)


def cl_forward(cls, encoder, input_ids=None, mlm_input_ids=None, mlm_labels=None):
    batch, sentences, length = input_ids.shape
    pooled = cls.pooler(encoder(input_ids.view(-1, length))).view(batch, sentences, -1)
    if cls.pooler_type == "cls":
        pooled = cls.mlp(pooled)
    hidden = None if mlm_input_ids is None else encoder(mlm_input_ids.view(-1, length))
    z = [pooled[:, i] for i in range(sentences)]
    if distributed.is_initialized() and cls.training:
        z = [gather(rows) for rows in z]
    logits = torch.cat([cls.sim(z[0].unsqueeze(1), other.unsqueeze(0)) for other in z[1:]], 1)
    labels = torch.arange(len(logits))
    criterion = nn.CrossEntropyLoss()
    if sentences == 3:
        weight = cls.model_args.hard_negative_weight * torch.eye(len(logits), dtype=logits.dtype)
        logits = logits + torch.cat([torch.zeros_like(weight), weight], 1)
    if getattr(cls.model_args, "loss_mode", "easy") == "easy":
        loss = criterion(logits, labels)
    else:
        loss = logits.logsumexp(1).mean() - logits.diagonal().mean()
    if hidden is not None:
        loss = loss + cls.model_args.mlm_weight * criterion(cls.lm_head(hidden).flatten(0, 1), mlm_labels.view(-1))
    return loss


class Pooler(nn.Module):
    def forward(self, hidden):
        return hidden.mean(1)


class BertForCL(nn.Module):
    def __init__(self, model_args):
        super().__init__()
        self.model_args, self.sim = model_args, Similarity(model_args.temp)
        self.bert = nn.Sequential(nn.Embedding(20, 8), nn.Dropout(model_args.dropout), nn.Linear(8, 8), nn.Tanh())
        self.lm_head = nn.Linear(8, 20)
        self.pooler, self.pooler_type = Pooler(), getattr(model_args, "pooler_type", "cls")
        self.mlp = nn.Linear(8, 8)

    def forward(self, **inputs):
        return cl_forward(self, self.bert, **inputs)
"""
TRAIN = """
import sys
from argparse import Namespace

import torch
from simcse.models import BertForCL

if __name__ == "__main__":
    torch.manual_seed(0)
    mode, steps = sys.argv[1:]
    model = BertForCL(Namespace(temp=0.05, dropout=0.1, loss_mode=mode))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(steps)):
        loss = model(input_ids=torch.randint(0, 20, (4, 1, 5)).repeat(1, 2, 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print("loss", float(loss))
"""
# What each process has after DDP's average, for several objectives, beside what one process has of the whole batch.
TWO = """
import sys
from argparse import Namespace

import torch
from counterpoint.plugins import simcse
from simcse import models
from torch import distributed, multiprocessing

CASES = {"host": 2, "adnce:t=0.07,mu=0.4": 2, "infonce:t=0.1 + 0.1*dp": 3, "dcl:t=0.2": 2}


def run(spec, sentences, rows, wrap):
    seam = simcse.patch(spec)
    torch.manual_seed(0)
    model = models.BertForCL(Namespace(temp=0.05, dropout=0.0, hard_negative_weight=0.5)).double()
    ids = torch.randint(0, 20, (6, sentences, 5))[rows]
    wrapped = wrap(model)
    loss = wrapped(input_ids=ids)
    loss.backward()
    assert seam.calls == 1
    gradient = torch.cat([p.grad.flatten() for p in (*model.bert.parameters(), *model.mlp.parameters())])
    if wrap is average:
        distributed.all_reduce(gradient)
        gradient = gradient / distributed.get_world_size()
    return loss.detach(), gradient


def average(model):
    return model


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def work(rank, folder, wrap):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    half = slice(3 * rank, 3 * rank + 3)
    found = {spec: run(spec, n, half, globals()[wrap]) for spec, n in CASES.items()}
    distributed.destroy_process_group()
    whole = {spec: run(spec, n, slice(None), lambda m: m) for spec, n in CASES.items()}
    torch.save((found, whole), f"{folder}/found{rank}.pt")


if __name__ == "__main__":
    multiprocessing.spawn(work, tuple(sys.argv[1:]), nprocs=2)
"""


@pytest.fixture
def folder(tmp_path):
    clone = tmp_path / "clone"
    (clone / "simcse").mkdir(parents=True)
    (clone / "simcse" / "__init__.py").write_text("")
    (clone / "simcse" / "models.py").write_text(MODELS)
    (clone / "train.py").write_text(TRAIN)
    (clone / "two.py").write_text(TWO)
    return clone


@pytest.fixture
def models(folder, monkeypatch):
    """The stand-in's ``simcse.models``, fresh."""
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("simcse.models")
    for name in ("simcse.models", "simcse"):
        sys.modules.pop(name, None)


def batch(sentences=2, rows=6, mlm=False, same=False):
    ids = torch.randint(0, 20, (rows, 1 if same else sentences, 5)).expand(-1, sentences, -1).contiguous()
    if not mlm:
        return {"input_ids": ids}
    labels = torch.where(torch.rand(ids.shape) < 0.3, ids, -100)
    return {"input_ids": ids, "mlm_input_ids": torch.randint(0, 20, ids.shape), "mlm_labels": labels}


def model(models, dropout=0.0, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    given = {"temp": 0.05, "hard_negative_weight": 0.7, "mlm_weight": 0.1, **settings}
    return models.BertForCL(Namespace(dropout=dropout, **given)).to(dtype)


def embeddings(net, ids):
    return net.mlp(net.bert(ids).mean(2)).unbind(1)


def assert_gradient(net, inputs, loss, found):
    """Assert that the gradient of the encoder is that of ``loss``."""
    net.zero_grad()
    loss.backward()
    for name, p in net.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[name], p.grad, rtol=1e-6, atol=1e-8 * float(p.grad.abs().max() + 1e-6))


def injected(net, inputs):
    net.zero_grad()
    net(**inputs).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def loss_and_gradient(net, inputs):
    net.zero_grad()
    torch.manual_seed(1)
    loss = net(**inputs)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


# ---- the host's own loss ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairs", "hard negatives", "weighted hard negatives", "mlm"])
def test_host_is_reproduced_in_float64(models, kind):
    net = model(models, dropout=0.1, hard_negative_weight=0.7 if kind.startswith("weighted") else 0.0)
    inputs = batch(3 if kind.endswith("negatives") else 2, mlm=kind == "mlm")
    loss, gradient = loss_and_gradient(net, inputs)
    seam = simcse.patch("host")
    ours = loss_and_gradient(net, inputs)
    assert seam.spec == "host"
    torch.testing.assert_close(ours[0], loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours[1], gradient, rtol=1e-12, atol=1e-12 * float(gradient.abs().max()))


@pytest.mark.parametrize("temp", [0.05, 0.21])
@pytest.mark.parametrize("pooler_type", ["cls", "avg"])
def test_the_gradient_is_that_of_the_hosts_loss(models, temp, pooler_type):
    seam = simcse.patch(Seam("adnce", verify=5))
    net = model(models, dropout=0.1, dtype=torch.float32, temp=temp, pooler_type=pooler_type)
    for sentences in (2, 3, 2, 3, 2, 2):
        net(**batch(sentences)).backward()
    assert seam.calls == seam.proofs == 6
    assert seam.worst <= 1e-4


# ---- objectives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["adnce:mu=0.4,t=0.07", "infonce:t=0.1 + 0.1*dp", "debpos:t=0.5"])
def test_an_objective_gets_what_the_host_compares(models, spec):
    net, inputs = model(models), batch()
    simcse.patch(spec)
    found = injected(net, inputs)
    loss = cp.objective(spec)(*embeddings(net, inputs["input_ids"]), pairing=ONE_WAY)
    assert_gradient(net, inputs, loss, found)


def test_most_steps_leave_out_the_backward_pass_of_the_host(models, monkeypatch):
    """Where it returns its loss in an output, as SimCSE does; the gradient is the same in all steps."""
    host, reached = models.cl_forward, []
    monkeypatch.setattr(models, "cl_forward", lambda *args, **inputs: Namespace(loss=host(*args, **inputs)))
    simcse.patch("hcl:t=0.1")
    net, inputs, steps = model(models), batch(), 80
    net.sim.register_full_backward_hook(lambda *_: reached.append(True))
    loss = cp.objective("hcl:t=0.1")(*embeddings(net, inputs["input_ids"]), pairing=ONE_WAY)
    net.zero_grad()
    loss.backward()
    wanted = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    for step in range(steps):
        net.zero_grad()
        (net(**inputs).loss * (step + 1)).backward()  # as a scaler that grows
        for name, gradient in wanted.items():
            found = net.get_parameter(name).grad / (step + 1)
            torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-8 * float(gradient.abs().max()))
    assert 20 <= len(reached) < steps / 2


@pytest.mark.parametrize("pooler_type", ["cls", "avg"])
def test_the_encoder_guides_with_hard_negatives(models, pooler_type):
    net, inputs = model(models, dropout=0.2, pooler_type=pooler_type, temp=0.3), batch(3)
    spec = "infonce:t=0.3; guide=self; margin=-0.1"
    seam = simcse.patch(spec)
    net(**inputs).backward()  # the guide is as it was here, without dropout
    twin = copy.deepcopy(net).eval()
    for p in net.eval().parameters():
        p.data += 0.3 * torch.randn_like(p)
    z = [each.bert(inputs["input_ids"]).mean(2) for each in (net, twin)]
    z = [each.mlp(x) if pooler_type == "cls" else x for each, x in zip((net, twin), z, strict=True)]
    net.zero_grad()
    net(**inputs).backward()
    seam.end()
    (z1, z2, z3), (g1, g2, g3) = z[0].unbind(1), z[1].unbind(1)
    hard = cp.Keys(z3, own_log_weight=0.7, guide=g3)
    loss = cp.InfoNCE(0.3)(z1, z2, negatives=hard, guide=[g1, g2], false_negatives="margin(-0.1)", empty="keep")
    found = {name: p.grad for name, p in net.named_parameters()}
    assert_gradient(net, inputs, loss, found)
    assert float(seam.objective(None).counts["anchors"]) == 12


def test_hard_negatives_and_their_weight(models):
    net, inputs = model(models), batch(3)
    simcse.patch("hcl:t=0.07,prior=0.1")
    found = injected(net, inputs)
    z1, z2, z3 = embeddings(net, inputs["input_ids"])
    loss = cp.HCL(0.07, prior=0.1)(z1, z2, negatives=cp.Keys(z3, own_log_weight=0.7))
    assert_gradient(net, inputs, loss, found)


def test_the_language_models_loss_is_left_alone(models):
    net, inputs = model(models), batch(mlm=True)
    seam = simcse.patch("dcl:t=0.1")
    found = injected(net, inputs)
    scores = net.lm_head(net.bert(inputs["mlm_input_ids"])).flatten(0, 2)
    language = torch.nn.functional.cross_entropy(scores, inputs["mlm_labels"].flatten())
    loss = cp.DCL(0.1)(*embeddings(net, inputs["input_ids"]), pairing=ONE_WAY) + 0.1 * language
    assert_gradient(net, inputs, loss, found)
    assert seam.calls == 1


def test_a_last_batch_of_one_sentence_is_left_to_the_host(models):
    simcse.patch("infonce:t=0.05")
    net = model(models)
    loss = net(**batch(rows=1))
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective_takes_three_steps(models, name):
    spec = f"{name}(infonce)" if issubclass(cp.registry[name], Wrapper) else name
    spec += ":views=2" if issubclass(cp.registry[name], cp.ArCL) else ""
    net = model(models, dropout=0.1, dtype=torch.float32)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)

    def train():
        seam = simcse.patch(spec)
        for _ in range(3):
            loss = net(**batch())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            assert loss.isfinite()
        assert seam.calls == 3

    if name in ("robust", "intcl", "intnacl", "mixnca", "sogclr", "isogclr"):
        message = r"needs ((adversarial|mixed) views, but sentences cannot be|the positions of samples)"
        with pytest.raises(SeamError, match=message):
            train()
    else:
        train()


# ---- what cannot be had ----------------------------------------------------------------------------


def test_more_views_are_refused(models):
    with pytest.raises(SeamError, match="asks for 4 views, but its data sets have a sentence twice"):
        simcse.patch("arcl(infonce):views=4")


def test_the_package_of_a_fork(models, folder):
    (folder / "simcse").rename(folder / "fork")
    sys.modules.pop("simcse.models"), sys.modules.pop("simcse")
    with pytest.raises(SeamError, match=r"simcse: No module named 'simcse'; --shims simcse:PACKAGE names"):
        simcse.patch("adnce")
    seam = simcse.patch(Seam("adnce", options={"shims": "simcse:fork"}))
    net = model(sys.modules["fork.models"])
    net(**batch()).backward()
    assert seam.proofs == 1
    sys.modules.pop("fork.models"), sys.modules.pop("fork")


def test_another_mode_of_the_fork_is_refused(models):
    simcse.patch("adnce")
    with pytest.raises(UnreachedError, match="run with --loss_mode easy"):
        model(models, loss_mode="adnce")(**batch())
    assert model(models, loss_mode="easy")(**batch()).isfinite()


def test_a_loss_that_is_computed_otherwise_is_noticed(models):
    models.Similarity.forward = lambda self, x, y: (x * y).sum(-1)
    simcse.patch("adnce")
    with pytest.raises(DifferenceError, match="is not that of infonce"):
        model(models)(**batch()).backward()


def test_another_package_of_that_name_is_noticed(folder, models):
    del models.cl_forward
    with pytest.raises(SeamError, match="is another package of that name in the way"):
        simcse.patch("adnce")


# ---- with the launcher -----------------------------------------------------------------------------


def launch(folder, *words, python=sys.executable, **env):
    command = [python, "-m", "counterpoint.plugins.inject", "simcse", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_launcher(folder):
    found = launch(folder, "--no-shims", "--objective", "adnce:t=0.07", "--verify", "2", "--", "train.py", "easy", "3")
    assert found.returncode == 0, found.stderr
    assert f"replacing the gradient of the embeddings in cl_forward of {folder}/simcse/models.py" in found.stderr
    assert "the loss was reached 3 times" in found.stderr


def test_launcher_in_another_mode_of_the_fork(folder, models, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setitem(sys.modules, "train", None)
    assert inject.main(["simcse", "--no-shims", "--objective", "adnce", "--", "train.py", "adnce", "3"]) == 3
    assert "--loss_mode adnce computes its loss in place: run with --loss_mode easy" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["average", "ddp"])
@pytest.mark.slow
def test_two_processes_have_the_whole_batchs_loss_and_gradient(folder, tmp_path, how):
    command = [sys.executable, "two.py", str(tmp_path), how]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found, whole = torch.load(tmp_path / f"found{rank}.pt")
        for spec, (loss, gradient) in found.items():
            torch.testing.assert_close(loss, whole[spec][0], rtol=1e-12, atol=0)
            # the host keeps the gradient of each process's own rows, of which DDP then takes the mean; so do all others
            expected = whole[spec][1] / 2
            torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-8 * float(expected.abs().max()))


# ---- the real host ---------------------------------------------------------------------------------

WORDS = [*"abcdefghijklmnopqrstuvwxyz"]


def clone(tmp_path, names):
    found = real_clone(*names)
    for package in ("transformers", "datasets", "sklearn", "filelock"):
        pytest.importorskip(package)
    assert simcse.HOST.recognises(found)
    # a copy, since the host writes into its folder
    shutil.copytree(found, tmp_path / "host", ignore=shutil.ignore_patterns("data", "figure", "demo"))
    return tmp_path / "host"


def arguments(tmp_path, *more, width=16):
    """A tiny random BERT and a few sentences, and how today's transformers is told to use them."""
    import transformers

    bert = tmp_path / "bert"
    bert.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"[unused{i}]" for i in range(80))]
    (bert / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizer(str(bert / "vocab.txt")).save_pretrained(bert)
    size = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=20, **size)
    transformers.BertForPreTraining(config).save_pretrained(bert)
    text = "".join(" ".join(WORDS[(i * j) % 26] for j in range(1, 7)) + "\n" for i in range(1, 65))
    (tmp_path / "text.txt").write_text(text)
    words = f"train.py --model_name_or_path {bert} --train_file {tmp_path / 'text.txt'} --output_dir {tmp_path / 'out'}"
    words += " --max_steps 6 --per_device_train_batch_size 8 --max_seq_length 12 --pooler_type cls --do_train"
    old = int(transformers.__version__.split(".")[1]) < 30 and transformers.__version__.startswith("4.")
    words += " --no_cuda" if old else " --use_cpu"
    return [*words.split(), "--report_to", "none", *more]


@pytest.mark.parametrize(
    ("names", "more"),
    [(("simcse", "SimCSE"), []), (("adnce_sentence", "ADNCE/sentence"), ["--loss_mode", "easy"])],
    ids=["SimCSE", "ADNCE"],
)
def test_the_unmodified_host(tmp_path, names, more):
    host = clone(tmp_path, names)
    words = ["--objective", "adnce:mu=0.4,t=0.07", "--verify", "5", "--report", str(tmp_path / "steps.jsonl")]
    found = launch(host, *words, "--", *arguments(tmp_path, *more), HF_HUB_OFFLINE="1")
    assert found.returncode == 0, found.stderr[-3000:]
    assert "the loss was reached 6 times" in found.stderr
    assert max(differences(found.stderr)) <= 1e-3
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["negatives"] for line in lines] == [7] * 6


def test_an_unmodified_fork_whose_embeddings_go_into_another_loss(tmp_path):
    """DiffCSE's second encoder learns what was replaced in a sentence, given its embedding."""
    shutil.copytree(real_clone("DiffCSE"), tmp_path / "host", ignore=shutil.ignore_patterns("data", "transformers-*"))
    flags = f"--generator_name {tmp_path / 'bert'} --lambda_weight 1 --batchnorm --mlp_only_train --masking_ratio 0.3"
    words = ["--shims", "simcse:diffcse", "--objective", "adnce:mu=0.4,t=0.07", "--verify", "3"]
    words += ["--", *arguments(tmp_path, *flags.split(), width=768)]
    found = launch(tmp_path / "host", *words, HF_HUB_OFFLINE="1")
    assert found.returncode == 0, found.stderr[-3000:]
    assert "the loss was reached 6 times" in found.stderr
    assert max(differences(found.stderr)) <= 1e-5


def test_flags_of_the_hosts_own_scripts(monkeypatch):
    kind = pytest.importorskip("transformers.training_args").TrainingArguments
    if hasattr(kind, "evaluation_strategy") or hasattr(kind, "overwrite_output_dir"):
        pytest.skip("transformers still has these flags")
    shims = {shim.name: shim for shim in simcse.HOST.shims}
    monkeypatch.setattr(kind, "overwrite_output_dir", None, raising=False)  # put back afterwards
    for words, expected, overwrites in (
        (["--evaluation_strategy=steps", "--seed", "1"], ["--eval_strategy=steps", "--seed", "1"], False),
        (["--evaluation_strategy", "no", "--overwrite_output_dir"], ["--eval_strategy", "no"], True),
    ):
        del kind.overwrite_output_dir
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        assert shims["evaluation_strategy"].apply()
        assert not shims["evaluation_strategy"].apply()
        assert shims["overwrite_output_dir"].apply()
        assert sys.argv == ["train.py", *expected]
        assert kind.overwrite_output_dir is overwrites


def test_the_unmodified_host_evaluates_as_its_own_scripts_do(tmp_path):
    host = clone(tmp_path, ("simcse", "SimCSE"))
    sets = host / "SentEval" / "data" / "downstream"
    for folder in ("STS/STSBenchmark", "SICK"):
        (sets / folder).mkdir(parents=True)
    for part in ("train", "dev", "test"):
        rows = [f"x\t\t\t\t{i}\ta {w}\tb {w}\n" for i, w in enumerate(WORDS)]
        (sets / "STS" / "STSBenchmark" / f"sts-{part}.csv").write_text("".join(rows))
    for part in ("train", "trial", "test_annotated"):
        rows = ["header\n", *(f"x\ta {w}\tb {w}\t{i}\n" for i, w in enumerate(WORDS))]
        (sets / "SICK" / f"SICK_{part}.txt").write_text("".join(rows))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "of_an_earlier_run").touch()
    flags = "--evaluation_strategy steps --eval_steps 2 --save_steps 2 --metric_for_best_model stsb_spearman"
    flags += " --load_best_model_at_end --overwrite_output_dir --mlp_only_train --gradient_accumulation_steps 2 --bf16"
    words = ["--objective", "adnce:mu=0.4,t=0.07", "--", *arguments(tmp_path, *flags.split())]
    found = launch(host, *words, HF_HUB_OFFLINE="1")
    # at last, the host evaluates on further sets, which are not here
    assert "MR/rt-polarity.pos" in found.stderr.splitlines()[-1], found.stderr[-3000:]
    assert "the loss was reached 12 times" in found.stderr
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert {line["step"] for line in state["log_history"] if "eval_stsb_spearman" in line} == {2, 4, 6}
    assert state["best_model_checkpoint"].startswith(str(tmp_path / "out" / "checkpoint-"))
