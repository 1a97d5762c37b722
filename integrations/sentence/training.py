"""Training on ``SentenceTransformerTrainer`` with any objective, as runs that can be interrupted.

A run's folder contains ``model/``, an ordinary SentenceTransformer with its model card. During training,
``checkpoints/`` contains the trainer's own; ``checkpoint.pt`` says which of them is complete.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State

import counterpoint as cp
from counterpoint.batch.rules import as_rules

from .. import store
from ..domain import defaults
from ..store.run import Run
from . import encode
from .data import prepare
from .evaluation import DevScore, evaluate
from .model import build, make_loss
from .settings import Settings, check_settings

UNTRAINED = "before training"


def cell(file: str, objective: str | None, seed: int, **changes: object) -> dict[str, Any]:
    """Return the arguments of one run: the defaults of :class:`Settings`, changed, and ``label``, its row in tables.

    Args:
        file: the training data, see :func:`counterpoint.integrations.sentence.data.load`.
        objective: a spec; None for a model that is not trained, see :func:`untrained`.
        changes: settings; ``label``. A model that is ``static`` is trained by ``torch.optim.SparseAdam``. The finished
            model keeps its own limit, not ``max_length``. ``keep`` is whether to write ``model/``.
    """
    settings = defaults(Settings)
    store.check_names(changes, (*settings, "label"))
    arguments = {**settings, **changes, "domain": "sentence", "dataset": Path(file).name, "file": file}
    arguments |= {"objective": objective, "seed": seed}
    check_settings(arguments)
    as_rules(arguments["false_negatives"])
    return arguments


def untrained(file: str, seed: int, **changes: object) -> dict[str, object]:
    """Return the cell of the model before training, a baseline."""
    return cell(file, None, seed, **{**changes, "head": "none", "label": UNTRAINED})


@encode.quiet()
def train(run: Run) -> None:
    """Train one cell and finish its run with the dev score, or with the last loss if there is no dev set."""
    arguments = run.arguments
    dev = DevScore(arguments["dev"], arguments["head"] == "training") if arguments["dev"] else None
    details: dict[str, object] = {}
    if arguments["objective"] is None:
        model = build(arguments)
        result = {dev.name: dev.score(model)} if dev else {}
    else:
        samples, dropped, checksum = prepare(arguments)
        run.data(checksum)
        model = build(arguments)
        history, best = fit(run, model, samples, dev)
        details = {"samples": len(samples), "left_out": dropped, "step": best and best["step"], "curve": []}
        if dev and best is not None:
            model.load_state_dict(best["model"])
            result = {dev.name: best["score"]}
            details["curve"] = [(x["step"], x[key]) for x in history if (key := f"eval_{dev.name}") in x]
        else:
            result = {"loss": next((line["loss"] for line in reversed(history) if "loss" in line), math.nan)}
        if arguments["head"] == "training":
            del model[-1]
        if arguments["keep"]:
            model.save_pretrained(str(run.path / "model"))
            _link(run.path / "model", run.path / "encoder.safetensors")
    scores, shares = evaluate(model, arguments["test"] or ())
    run.finish(result | scores, majority=shares, **details)
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def _link(model: Path, encoder: Path) -> None:
    """Give the weights of a model's first module another name, copied only where the disk has no links."""
    weights = min(model.rglob("model.safetensors"), key=lambda path: len(path.parts))
    encoder.unlink(missing_ok=True)
    try:
        encoder.hardlink_to(weights)
    except OSError:
        shutil.copyfile(weights, encoder)


def restore(run: Run | str | Path) -> SentenceTransformer:
    """Return the trained SentenceTransformer of a finished run or of its folder; needs no data."""
    run = Run.read(run)
    if not run.file("model").is_dir():
        raise ValueError(f"{run.address}: it has no model.")
    return encode.load(run.path)


class Batches(DefaultBatchSampler):  # type: ignore[misc]
    """Shuffled batches that depend only on the seed and the epoch, so that a resumed run sees the same ones."""

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        for batch in torch.randperm(len(self.sampler), generator=generator).split(self.batch_size):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch.tolist()


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Log and checkpoint the run while the trainer works, and keep the weights with the best dev score."""

    def __init__(self, run: Run, objective: nn.Module, dev: DevScore | None) -> None:
        self.run, self.objective, self.dev, self.folder = run, objective, dev, run.path / "checkpoints"
        self.best: dict[str, Any] | None = None
        self.ticks: Iterator[int] = iter(())
        self.reports = ExitStack()

    def resume(self) -> str | None:
        """Restore the run's state; returns the trainer's checkpoint to continue from."""
        if (state := self.run.load(self._check)) is None:
            shutil.rmtree(self.folder, ignore_errors=True)  # incomplete checkpoints
            return None
        self.objective.load_state_dict(state["objective"])
        self.best = state["best"]
        return str(self.folder / state["trainer"])

    def _check(self, state: dict[str, Any]) -> None:
        """Raise ``DamagedError`` if the trainer's checkpoint has changed."""
        folder = self.folder / state["trainer"]
        if not folder.is_dir() or store.checksum(folder) != state["checksum"]:
            raise store.DamagedError(f"{folder}: {'damaged' if folder.exists() else 'missing'}")

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        self.ticks = self.run.track(range(state.global_step, state.max_steps), total=state.max_steps)
        next(self.ticks, None)

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        if state.global_step % args.logging_steps == 0:  # counted in steps, which a resumed run continues
            self.reports = cp.log_reports(self.objective, lambda numbers: self.run.log(state.global_step, **numbers))

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        self.reports.close()
        next(self.ticks, None)
        last = state.global_step >= state.max_steps  # even if it is not a multiple of eval_steps
        control.should_evaluate |= last and args.eval_strategy.value != "no"
        # log before each checkpoint: the trainer does not restore the losses since the last line
        control.should_log |= last or control.should_save

    def on_log(self, args: Arguments, state: State, control: Control, logs: dict[str, object], **_: object) -> None:
        if "train_runtime" not in logs:  # the final summary covers only the steps of this process
            numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
            self.run.log(state.global_step, **numbers)

    def on_evaluate(
        self, args: Arguments, state: State, control: Control, metrics: dict[str, float], model: nn.Module, **_: object
    ) -> None:
        assert self.dev is not None
        score = metrics[f"eval_{self.dev.name}"]
        if self.best is None or score > self.best["score"]:
            weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            self.best = {"score": score, "step": state.global_step, "model": weights}

    def on_save(self, args: Arguments, state: State, control: Control, **_: object) -> None:
        name = f"checkpoint-{state.global_step}"
        record = {"trainer": name, "checksum": store.checksum(self.folder / name), "best": self.best}
        self.run.save({**record, "objective": self.objective.state_dict()}, state.global_step)


def fit(
    run: Run, model: SentenceTransformer, samples: Dataset, dev: DevScore | None = None
) -> tuple[list[dict[str, float]], dict[str, Any] | None]:
    """Train by ``SentenceTransformerTrainer``, from the last checkpoint on; return the log and the best state."""
    arguments, loss = run.arguments, make_loss(model, run.arguments)
    callback = RunCallback(run, loss.objective, dev)
    training = Arguments(
        output_dir=str(callback.folder),
        num_train_epochs=arguments["epochs"],
        max_steps=arguments["steps"] or -1,
        per_device_train_batch_size=arguments["batch"],
        batch_sampler=Batches,
        dataloader_drop_last=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        learning_rate=arguments["lr"],
        lr_scheduler_type=arguments["schedule"],
        warmup_steps=arguments["warmup"],
        weight_decay=arguments["weight_decay"],
        fp16=arguments["precision"] == "fp16",
        bf16=arguments["precision"] == "bf16",
        use_cpu=arguments["device"] == "cpu",
        seed=arguments["seed"],
        eval_strategy="steps" if dev else "no",
        eval_steps=arguments["every"],
        save_strategy="steps" if arguments["save"] else "no",
        save_steps=arguments["save"] or 1,
        save_total_limit=2,  # the last, and the one before until the last is complete
        logging_steps=min(arguments["every"], 50),
        disable_tqdm=True,
        report_to="none",
    )
    training._n_gpu = min(training.n_gpu, 1)  # by default it uses all visible GPUs, with a batch for each
    sparse = None
    if arguments["static"]:
        if next(loss.objective.parameters(), None) is not None:
            raise ValueError(f"static: {loss.objective} has learned values, which sparse Adam cannot update.")
        training.max_grad_norm = 0.0  # sparse gradients cannot be clipped
        sparse = torch.optim.SparseAdam(list(model.parameters()), lr=arguments["lr"])
    collator = SentenceTransformerDataCollator(preprocess_fn=model.preprocess, max_length=arguments["max_length"])
    trainer = SentenceTransformerTrainer(
        model=model,
        args=training,
        train_dataset=samples,
        loss=loss,
        evaluator=dev,
        data_collator=collator,
        callbacks=[callback],
        optimizers=(sparse, None),
    )
    trainer.remove_callback(PrinterCallback)
    if not arguments["keep"]:
        trainer.remove_callback(SentenceTransformerModelCardCallback)
    trainer.train(resume_from_checkpoint=callback.resume())
    return trainer.state.log_history, callback.best
