"""Shims apart from their host: what a fork of a known code base uses."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from dataclasses import replace
from types import ModuleType

import pytest
import tiny_bert
import torch

from counterpoint.plugins import registry, shims
from counterpoint.plugins.host import Seam, Shim
from counterpoint.plugins.launch import install
from counterpoint.plugins.shims import simcse


def test_apply_returns_the_shims_that_were_needed():
    needed, obsolete = Shim("needed", "", lambda: True), Shim("obsolete", "", lambda: False)
    assert shims.apply([needed, obsolete]) == [needed]


def test_a_fork_of_simcse_has_the_same_shims_for_its_own_package(monkeypatch):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.Trainer, "create_accelerator_and_postprocess"):
        pytest.skip("transformers with the training loop that SimCSE copied")

    class CLTrainer(transformers.Trainer):
        def train(self, model_path=None):
            raise NotImplementedError

        def _save_checkpoint(self, model, trial):
            raise NotImplementedError

    trainers = ModuleType("prompt_bert.trainers")
    trainers.CLTrainer = CLTrainer
    monkeypatch.setitem(sys.modules, "prompt_bert", ModuleType("prompt_bert"))
    monkeypatch.setitem(sys.modules, "prompt_bert.trainers", trainers)
    resumed = []
    monkeypatch.setattr(transformers.Trainer, "train", lambda self, **options: resumed.append(options))
    fork = [shim for shim in simcse.shims("prompt_bert") if shim.name in ("loop", "checkpoint")]
    assert shims.apply(fork) == fork
    CLTrainer.train(CLTrainer.__new__(CLTrainer), "a folder without a training state")
    assert resumed == [{"resume_from_checkpoint": None}]
    assert "_save_checkpoint" not in vars(CLTrainer)
    assert [shim.name for shim in simcse.shims("prompt_bert")] == [shim.name for shim in simcse.shims()]


@pytest.mark.parametrize(
    ("files", "script", "proposed"),
    [
        ({"fork/models.py": "def cl_forward("}, "raise ImportError(\"no 'cached_property' here\")", "simcse:fork"),
        ({"simcse/models.py": "def cl_forward("}, "raise ImportError(\"no 'cached_property' here\")", "simcse"),
        ({}, "raise ImportError(\"no 'cached_property' here\")", None),
        ({}, "read_tu_data = lambda: (1, 2, 3)\na, b = read_tu_data()", "graphcl"),
        ({"fork/models.py": "def cl_forward("}, "raise ValueError('of something else')", None),
        ({}, "def _lazy_init():\n    raise RuntimeError('no GPU')\n_lazy_init()", "cpu"),
    ],
)
def test_auto_proposes_the_shims_that_an_error_names(files, script, proposed, find, tmp_path, capsys):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with pytest.raises((ImportError, RuntimeError, ValueError)):
        find(script)
    said = capsys.readouterr().err
    assert said.count("--shims") == bool(proposed)
    assert proposed is None or f"--shims {proposed} may help: " in said


GPU_ONLY = """
import torch
import torch.nn.functional as F

encoder = torch.nn.Linear(6, 4).cuda()
for step in range(4):
    a, b = (F.normalize(encoder(torch.randn(8, 6).cuda(non_blocking=True))) for _ in range(2))
    F.cross_entropy(a @ b.T / 0.2, torch.arange(8).cuda(0)).backward()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_script_for_gpus_alone_trains_on_a_cpu(find, monkeypatch, capsys):
    """SELFRec calls ``.cuda()`` whatever there is; the shims of a named host are applied beside it."""
    with pytest.raises((AssertionError, RuntimeError)):  # builds of torch differ
        find(GPU_ONLY)
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.cuda)  # undone after the test
    found = find(GPU_ONLY, "--shims", "cpu")
    assert [loss["ours"] for loss in found.losses] == [True]
    assert "shim _lazy_init: torch finds no GPU" in found.err
    seam = Seam("host", options={"shims": "cpu", "only": True})
    install(replace(registry.load("auto"), shims=(Shim("own", "", lambda: True),), before=None), seam)
    assert "shim own" in capsys.readouterr().err


FORK = """
import transformers
from transformers import BertModel, BertPreTrainedModel


def cl_init(cls, config):
    cls.generator = transformers.AutoModelForMaskedLM.from_pretrained(cls.model_args.generator_name)


class BertForCL(BertPreTrainedModel):
    def __init__(self, config, model_args):
        super().__init__(config)
        self.model_args = model_args
        self.discriminator = BertModel(config, add_pooling_layer=False)
        cl_init(self, config)
        self.post_init()


class RobertaForCL(BertForCL):
    pass
"""


def test_a_second_encoder_as_diffcse_has_it(tmp_path, monkeypatch):
    """Another model that the constructor loads has its weights, and the first token is what ``cls_input`` says."""
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("before transformers 5, the constructor itself can load its second encoder")
    (tmp_path / "fork_of_simcse").mkdir()
    (tmp_path / "fork_of_simcse" / "models.py").write_text(FORK)
    monkeypatch.syspath_prepend(tmp_path)
    tiny_bert.build(tmp_path / "bert", dropout=0.0)
    tiny_bert.build(tmp_path / "mlm", mlm=True)
    (shim,) = (shim for shim in simcse.shims("fork_of_simcse") if shim.name == "second_encoder")
    assert shim.apply()
    models = importlib.import_module("fork_of_simcse.models")
    arguments = Namespace(generator_name=str(tmp_path / "mlm"))
    model = models.BertForCL.from_pretrained(tmp_path / "bert", model_args=arguments).eval()
    expected = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "mlm").state_dict()
    torch.testing.assert_close(model.generator.state_dict(), expected, rtol=0, atol=0)
    assert models.transformers is sys.modules["transformers"]  # which may replace itself after its first import
    ids, first, encoder = torch.randint(5, 60, (3, 4)), torch.randn(3, 16), model.discriminator
    words = encoder.embeddings(ids)
    for _ in range(2):
        found = encoder(ids, cls_input=first).last_hidden_state
        by_hand = encoder.encoder(torch.cat([first.unsqueeze(1), words[:, 1:]], 1)).last_hidden_state
        torch.testing.assert_close(found, by_hand)
    torch.testing.assert_close(encoder.embeddings(ids), words)
    for name in ("fork_of_simcse.models", "fork_of_simcse"):
        sys.modules.pop(name)
