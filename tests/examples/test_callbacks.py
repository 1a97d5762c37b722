"""Lightning, the Trainer of transformers and trackers log what objectives report, by the callbacks of the examples."""

from __future__ import annotations

import ast
import re
import runpy
import textwrap

import pytest
import torch
from documents import ROOT
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import counterpoint as cp

X = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))


def callback(example):
    return runpy.run_path(str(ROOT / "examples" / "existing_repos" / example / "train.py"))["ReportCallback"]


class Bare(ast.NodeTransformer):
    """Leaves out annotations and docstrings."""

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)


@pytest.mark.parametrize("example", ["lightning", "hf_trainer"])
def test_the_page_shows_the_callback(example):
    folder = ROOT / "examples" / "existing_repos" / example
    lines = re.search(
        r"(?:    .*\n|\n)*    class ReportCallback(?:.*\n)(?:    .*\n|\n)*", (folder / "README.md").read_text()
    )[0]
    (shown,) = ast.parse(textwrap.dedent(lines)).body
    code = ast.parse((folder / "train.py").read_text()).body
    (own,) = (node for node in code if getattr(node, "name", "") == "ReportCallback")
    own.body = own.body[1:]
    assert ast.dump(Bare().visit(own)) == ast.dump(shown)


def scalars(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package, tmp_path):
    pl = pytest.importorskip(package)
    pytest.importorskip("tensorboard")
    from importlib import import_module

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.criterion = nn.Linear(8, 4), cp.objective("hcl:t=0.5 + 0.1*dp")
            self.seen = []

        def training_step(self, batch, _):
            z = [self.encoder(batch[0]) for _ in range(2)]
            self.seen.append(self.criterion.report(*z))
            return self.criterion(*z)

        def validation_step(self, batch, _):
            self.criterion(self.encoder(batch[0]), self.encoder(batch[0]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    logger = import_module(f"{package}.loggers").TensorBoardLogger(tmp_path)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback("lightning")()],
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **quiet,
    )
    module = Module()
    batches = DataLoader(TensorDataset(X), batch_size=12)
    trainer.fit(module, batches, batches)
    found = scalars(logger.log_dir)
    for name in ("loss", "negatives", "effective_negatives", "positive_mean"):
        expected = [(step, pytest.approx(module.seen[step][name], rel=1e-6)) for step in (0, 10, 20)]
        assert found[f"report/{name}"] == expected
    assert not module.criterion._forward_hooks


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return {"x": X[i]}


def test_the_trainer_of_transformers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))

    class Trainer(transformers.Trainer):
        loss_fn, seen = cp.InfoNCE(0.2), []

        def compute_loss(self, model, inputs, return_outputs=False, **_):
            z = [model(inputs["x"]) for _ in range(2)]
            self.seen.append(self.loss_fn.report(*z, pairing="one_way"))
            return self.loss_fn(*z, pairing="one_way")

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=21,
        per_device_train_batch_size=12,
        logging_steps=100,
        save_strategy="no",
        report_to="tensorboard",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=nn.Linear(8, 4), args=arguments, train_dataset=Texts())
    trainer.add_callback(callback("hf_trainer")(trainer, trainer.loss_fn))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "report/loss" in line]
    assert [line["step"] for line in logged] == [0, 10, 20]
    assert [line["report/effective_negatives"] for line in logged] == [
        pytest.approx(trainer.seen[step]["effective_negatives"]) for step in (0, 10, 20)
    ]
    found = scalars(tmp_path / "logs")
    assert len([tag for tag in found if tag.endswith("report/negatives")]) == 1
    assert not trainer.loss_fn._forward_hooks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_of_the_user(name, tmp_path, monkeypatch):
    tracker = pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    loss_fn = cp.InfoNCE(0.5)
    tracker.init(project="reports")
    with cp.log_reports(loss_fn, tracker.log, every=1):
        for _ in range(2):
            loss_fn(X.clone().requires_grad_(), X)
    if name == "wandb":
        assert tracker.run.summary["report/negatives"] == loss_fn.report(X, X)["negatives"]
    tracker.finish()
