"""``pretrain``: train with Lightning, and store checkpoints and losses in a run that can be interrupted."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy
import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from .. import store
from ..domain import check_whole
from ..store.progress import in_notebook
from ..store.run import Run
from .batches import loader
from .image_set import ImageSet
from .lightning_module import Pretraining
from .model import Method

SAVE_EVERY = 10.0  # seconds between checkpoints
BEST = "best.pt"
CHECKPOINT = "checkpoint.pt"  # the path that Lightning sees; the run decides where the file is
# lightly imports the other distribution of Lightning, which takes over where both log
LOGGERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")


class RunCheckpoints(TorchCheckpointIO):  # type: ignore[misc]
    """Store Lightning's checkpoints in a run; files through which its processes exchange weights stay files."""

    def __init__(self, run: Run, state: dict[str, Any] | None) -> None:
        self.run, self.state, self.epoch = run, state, 0  # state: the run's last checkpoint, to resume from

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if path == CHECKPOINT:
            self.run.save(checkpoint, self.epoch)
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if path == CHECKPOINT:
            assert self.state is not None
            return copy.deepcopy(self.state)  # processes share its memory
        return super().load_checkpoint(path, weights_only=True)  # type: ignore[no-any-return]


class RunLogger(lightning.Callback):  # type: ignore[misc]
    """Log each epoch to a run, save checkpoints, and keep the encoder that is best by ``watch``."""

    def __init__(self, run: Run, epochs: int, every: int, watch: Callable[[Method], float] | None) -> None:
        self.run, self.epochs, self.every, self.watch = run, epochs, every, watch
        self.last_save, self.best = time.monotonic(), -math.inf

    @property
    def state_key(self) -> str:
        return "Keeper"  # the key in checkpoints of version 0.1.0

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        epoch = trainer.current_epoch + 1
        last = epoch == self.epochs
        if trainer.is_global_zero:
            metrics = {"loss": module.mean_loss, **module.statistics}
            if self.watch and self.every and (last or epoch % self.every == 0):
                metrics["validation_knn"] = accuracy = self.watch(module.method)
                if accuracy > self.best:
                    self.best = accuracy
                    with store.atomic(self.run.path / BEST) as file:
                        torch.save({"encoder": module.method.encoder.state_dict(), "epoch": epoch}, file)
            self.run.log(epoch, **metrics)
        due = trainer.strategy.broadcast(last or time.monotonic() - self.last_save >= SAVE_EVERY)
        if due:
            trainer.strategy.checkpoint_io.epoch = epoch
            trainer.save_checkpoint(CHECKPOINT)
            self.last_save = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


def pretrain(
    module: Pretraining,
    data: ImageSet,
    epochs: int,
    batch: int = 256,
    path: str = "batched",
    workers: int = 0,
    device: str = "cpu",
    devices: int = 1,
    precision: str = "32-true",
    run: Run | None = None,
    watch: Callable[[Method], float] | None = None,
    every: int = 0,
    progress: bool = False,
) -> None:
    """Train with a Lightning ``Trainer``.

    Args:
        epochs: passes over the images, at least 0.
        path, workers, batch: as in :func:`~counterpoint.integrations.image.batches.loader`.
        device, devices: kind and number of devices. With several, each process imports the main script: guard it with
            ``if __name__ == "__main__"``.
        precision: Lightning's, e.g. ``bf16-mixed``. The objective always computes in float32.
        run: stores losses and checkpoints, and resumes after an interruption.
        watch, every: an accuracy to compute every so many epochs; the run's ``best.pt`` keeps the best encoder. With
            several devices it must be importable.
    """
    check_whole("epochs must be", epochs, 0)
    options: dict[str, Any] = {"path": path, "seed": module.seed, "workers": workers, "views": module.method.views}
    loader(data, batch, module.recipe, processes=devices, **options)  # raise now what the processes would raise
    if epochs == 0:
        return
    callbacks: list[Any] = []
    plugins: list[Any] = []
    state = None
    if run is not None:
        callbacks = [RunLogger(run, epochs, every, watch)]
        plugins = [RunCheckpoints(run, state := run.load())]
    batches = _Batches(partial(loader, data, batch, module.recipe, **options))
    kind, _, number = device.partition(":")
    with _quiet():
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator=kind,
            devices=[int(number)] if number and kind != "cpu" and devices == 1 else devices,
            # not ddp: its processes rerun the script and would wait for the run's lock; not ddp_fork: CUDA and OpenMP
            # do not survive a fork once they are in use
            strategy="ddp_spawn" if devices > 1 else "auto",
            precision=precision,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress and (sys.stderr.isatty() or in_notebook()),
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            callbacks=callbacks,
            plugins=plugins,
        )
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, datamodule=batches, ckpt_path=None if state is None else CHECKPOINT)
        except SystemExit as stopped:  # Lightning turns Ctrl-C into an exit, and ignores the signal afterwards
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, interrupt)
            raise KeyboardInterrupt from stopped


class _Batches(lightning.LightningDataModule):  # type: ignore[misc]
    """Build the loader in the process that uses it."""

    def __init__(self, build: Callable[..., Any]) -> None:
        super().__init__()
        self.build = build

    def setup(self, stage: str) -> None:
        _silence()  # spawned processes start with Lightning's levels

    def train_dataloader(self) -> Any:
        batches = self.build(processes=self.trainer.world_size, rank=self.trainer.global_rank)
        batches.sampler.set_epoch(self.trainer.current_epoch)  # Lightning sets only the later epochs of this process
        return batches


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            _silence()
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _silence() -> None:
    """Hide Lightning's advice on loaders and logging, which does not apply here."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
