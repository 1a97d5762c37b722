"""What ``SentenceTransformerTrainer`` needs beside a model and a loss: batches, dev score, checkpoints of the run."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler

from counterpoint.plugins.sentence_transformers import ContrastiveLoss

from .. import store
from ..store.run import Run
from .beir import Collection
from .data import Pairs
from .evaluation import dev_metric, dev_score
from .frameworks import framework
from .model import without_head

_Callback: Any = framework("transformers").TrainerCallback
_Evaluator: Any = framework("sentence_transformers.sentence_transformer.evaluation").SentenceEvaluator

COLLAPSED = -100.0  # the dev score where Spearman's correlation is undefined, below every other score


class Batches(BatchSampler):
    """Shuffled batches that depend only on the seed and the epoch, so that a resumed run sees the same ones."""

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool, seed: int = 0, **_: Any) -> None:
        super().__init__(range(len(dataset)), batch_size, drop_last)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        order = torch.randperm(len(self.sampler), generator=generator)  # type: ignore[arg-type]
        for batch in order.split(self.batch_size):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch.tolist()


class DevScore(_Evaluator):  # type: ignore[misc]
    """The score on the development data, with ``drop_head`` of the model without its last module."""

    def __init__(self, name: str, dev: Pairs | Collection, drop_head: bool) -> None:
        super().__init__()
        self.dev, self.drop_head, self.name, self.primary_metric = dev, drop_head, name, name

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        score = dev_score(without_head(model) if self.drop_head else model, self.dev)
        metrics = {self.name: COLLAPSED if score is None else score}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        return "Retrieval" if isinstance(self.dev, Collection) else "Semantic Similarity"


class RunCallback(_Callback):  # type: ignore[misc]
    """Logs and checkpoints the run while the trainer works, and keeps the weights with the best dev score."""

    def __init__(self, run: Run, objective: nn.Module) -> None:
        self.run, self.objective, self.folder = run, objective, run.path / "checkpoints"
        self.best: dict[str, Any] | None = None
        self.ticks: Iterator[int] = iter(())

    def resume(self) -> str | None:
        """Restore the run's state; returns the trainer's checkpoint to continue from."""
        if (state := self.run.load(self._check_files)) is None:
            shutil.rmtree(self.folder, ignore_errors=True)  # incomplete checkpoints
            return None
        self.objective.load_state_dict(state["objective"])
        self.best = state["best"]
        return str(self.folder / state["trainer"])

    def _check_files(self, state: dict[str, Any]) -> None:
        """Raise if a file of the trainer's checkpoint is not what it was."""
        for name, checksum in state.get("files", {}).items():
            path = self.folder / state["trainer"] / name
            if not path.is_file() or _checksum(path) != checksum:
                raise store.DamagedError(f"{path}: {'damaged' if path.exists() else 'missing'}")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ticks = self.run.track(range(state.global_step, state.max_steps), total=state.max_steps)
        next(self.ticks, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        next(self.ticks, None)
        last = state.global_step >= state.max_steps  # even if it is not a multiple of eval_steps
        control.should_evaluate |= last and args.eval_strategy.value != "no"
        # log before each checkpoint: the trainer does not restore the losses since the last line
        control.should_log |= last or control.should_save

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "train_runtime" in logs:  # the final summary covers only the steps of this process
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        self.run.log(state.global_step, **numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], model: Any, **_: Any) -> None:
        score = metrics[f"eval_{dev_metric(self.run.arguments['dev'])}"]
        if self.best is None or score > self.best["score"]:
            weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            self.best = {"score": score, "step": state.global_step, "model": weights}

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        name = f"checkpoint-{state.global_step}"
        paths = [path for path in (self.folder / name).rglob("*") if path.is_file()]
        files = {path.relative_to(self.folder / name).as_posix(): _checksum(path) for path in paths}
        record = {"trainer": name, "files": files, "objective": self.objective.state_dict(), "best": self.best}
        self.run.save(record, state.global_step)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def make_trainer(
    model: Any,
    loss: ContrastiveLoss,
    samples: Any,
    dev: Pairs | Collection | None,
    arguments: Mapping[str, Any],
    callback: RunCallback,
) -> Any:
    """The ``SentenceTransformerTrainer`` of a cell."""
    st = framework("sentence_transformers")
    training = st.SentenceTransformerTrainingArguments(
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
    collator = framework("sentence_transformers.sentence_transformer.data_collator").SentenceTransformerDataCollator
    sparse = None
    if arguments["static"]:
        if next(loss.objective.parameters(), None) is not None:
            raise ValueError(f"static: {loss.objective} has learned values, which sparse Adam cannot update.")
        training.max_grad_norm = 0.0  # sparse gradients cannot be clipped
        sparse = torch.optim.SparseAdam(list(model.parameters()), lr=arguments["lr"])
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=training,
        train_dataset=samples,
        loss=loss,
        evaluator=DevScore(dev_metric(arguments["dev"]), dev, arguments["head"] == "training") if dev else None,
        data_collator=collator(preprocess_fn=model.preprocess, max_length=arguments["max_length"]),
        callbacks=[callback],
        optimizers=(sparse, None),
    )
    trainer.remove_callback(framework("transformers").PrinterCallback)
    if not arguments["keep"]:
        card = framework("sentence_transformers.sentence_transformer.model_card").SentenceTransformerModelCardCallback
        trainer.remove_callback(card)
    return trainer
