"""What a member of the test bed is: a small script that runs a code base unedited, and what the finder should say."""

from __future__ import annotations

from dataclasses import dataclass

PRELUDE = '''
import importlib.util
import os
import sys
import types

import torch
import torch.nn as nn
import torch.nn.functional as F

CLONE = {clone!r}
sys.path.insert(0, CLONE)


def package(name, folder):
    """A package of the clone, without its __init__, which would import what is not installed."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [os.path.join(CLONE, folder)]
    return module


def stub(name, **values):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(values)
    return module


def absent(*names):
    """Names that a clone imports, and that its loss does not use."""
    from unittest.mock import MagicMock
    sys.modules.update((name, MagicMock()) for name in names)


def load(path, name):
    """A file of the clone by itself, as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(CLONE, path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learned(value, name="logit_scale"):
    module = nn.Module()
    setattr(module, name, nn.Parameter(torch.tensor(value)))
    return module


def train(loss_of, width=16, batch=12, modules=(), steps=6):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, width))
    optimizer = torch.optim.SGD([*net.parameters(), *(p for m in modules for p in m.parameters())], lr=0.05)
    for _ in range(steps):
        a, b = net(torch.randn(batch, 10)), net(torch.randn(batch, 10))
        loss = loss_of(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def norm(x):
    return F.normalize(x, dim=-1)


'''


@dataclass
class Member:
    """A code base of the test bed.

    Attributes:
        folder: of the clone; empty for packages, which are then in ``needs``.
        code: a script that runs the unmodified code.
        losses: for each contrastive loss: end of its file, form, scale, a word of its positives.
        command: what the first ready command contains, or "" where there is none.
        needs: packages that it imports.
        words: further options of ``counterpoint inject``.
    """

    folder: str
    code: str
    losses: list[tuple[str, str, float, str]]
    command: str = ""
    needs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


IN, OUT = "infonce", "infonce:denominator=negatives"
SITE, REPLACE, CLIP, PYG, SENTENCES = "--site", "--replace", "inject clip", "inject pyg", "inject sentence_transformers"
UNKNOWN = "a form that the finder does not find"

ALONE = """
import tempfile
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
"""

LOOP = """
def loop(loss_of, parameters, steps=6, lr=0.05):
    optimizer = torch.optim.SGD(list(parameters), lr=lr)
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

HIDDEN = """
class Hidden(nn.Module):  # what a transformer returns, of features as its tokens
    def __init__(self):
        super().__init__()
        self.layer, self.config = nn.Linear(10, 16), types.SimpleNamespace(hidden_size=16)

    def forward(self, input_ids, attention_mask=None, **_):
        return types.SimpleNamespace(last_hidden_state=self.layer(input_ids).unsqueeze(1))


def tokens(n):
    return {"input_ids": torch.randn(n, 10), "attention_mask": torch.ones(n, 1)}
"""

LIGHTNING = """
import lightning.pytorch as pl

def fit(task, batches, **options):
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(batches, batch_size=None)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet, **options).fit(task, data)
"""
