"""Shims apart from their host: what a fork of a known code base uses."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from counterpoint.plugins import shims
from counterpoint.plugins.host import Shim
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
