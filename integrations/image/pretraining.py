"""Pre-training: batches, a method with its augmentation and optimizer, and a Lightning ``Trainer`` that can stop."""

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
from lightly.models.utils import get_weight_decay_parameters
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms.functional import to_pil_image

import counterpoint as cp

from .. import store
from ..store.progress import in_notebook
from ..store.run import Run
from .augment import Recipe
from .image_set import ImageSet
from .model import CMC, Method, SimCLR
from .settings import check_fits, check_settings

SAVE_EVERY = 10.0  # seconds between checkpoints
BEST = "best.pt"
CHECKPOINT = "checkpoint.pt"  # the path that Lightning sees; the run decides where the file is
Watch = Callable[[nn.Module], dict[str, float]]
# lightly imports the other distribution of Lightning, which takes over where both log
LOGGERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")


# ---- batches -----------------------------------------------------------------------------------


class _Images(Dataset[Any]):
    """Batches of ``uint8`` images, or, with a transform of lightly's, of views of single images."""

    def __init__(self, data: ImageSet, transform: Callable[[Any], Tensor] | None, views: int) -> None:
        self.data, self.transform, self.views = data, transform, views

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> tuple[Any, Tensor]:
        x, y, transform = self.data.x[rows], self.data.y[rows], self.transform
        if transform is None:
            return x, y
        single = ([transform(image) for _ in range(self.views)] for image in map(to_pil_image, x))
        return [torch.stack(view) for view in zip(*single, strict=True)], y


class _Order(DistributedSampler[Any]):
    """The order of an epoch, and the generator that seeds its worker processes; both depend on seed and epoch alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generator = torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.generator.manual_seed(self.seed + epoch)


def loader(
    data: ImageSet,
    batch: int,
    recipe: Recipe,
    views: int = 2,
    path: str = "batched",
    seed: int = 0,
    workers: int = 0,
    processes: int = 1,
    rank: int = 0,
) -> Any:
    """Load batches in an order that depends on seed and epoch alone; an incomplete last batch is dropped.

    Args:
        batch: images per step and process, at least 2.
        path: ``batched`` yields ``uint8`` images for :class:`Pretraining` to augment, ``per-image`` views from
            lightly's transforms.
        workers: processes that load, for ``per-image``.
        processes, rank: the number of processes that train together, and the index of this one.
    """
    check_settings(path=path, batch=batch)
    check_fits(data.name, batch, processes, len(data))
    images = _Images(data, None if path == "batched" else recipe.per_image(), views)
    order = _Order(images, processes, rank, seed=seed, drop_last=True)
    return DataLoader(
        images,
        batch,
        sampler=order,
        drop_last=True,
        num_workers=0 if path == "batched" else workers,
        collate_fn=tuple,  # _Images has collated
        generator=order.generator,
    )


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


# ---- method, augmentation, optimizer -----------------------------------------------------------


class Pretraining(lightning.LightningModule):  # type: ignore[misc]
    """A method with its augmentation and optimizer, for a Lightning ``Trainer``.

    Batches are ``(images, classes)``: ``uint8`` images, which the module augments on the device, or a list of views.
    Views depend on seed, epoch, step and process alone, so every objective sees the same ones, and so does a resumed
    run.

    Args:
        lr: learning rate, > 0.
        optimizer: ``adam``, ``sgd`` (momentum .9) or ``lars``, which as in SimCLR neither scales nor decays biases and
            the parameters of normalization.
        weight_decay: at least 0; above 0 for ``lars``, because lightly's scales only parameters that decay.
        cosine: decay the learning rate to a thousandth with a cosine, step by step, after ``warmup`` epochs of linear
            increase.
        false_negatives: share of the pairs of images of one class that remain negatives, in ``[0, 1]`` (ADNCE's
            Figure 1, debiased positives' Figure 2). Below 1 it requires and uses classes: an image keeps its class
            with probability ``sqrt(1 - share)``, and images that keep the same class are not compared. So 0 and 1 are
            exact, and values between hold on average.
        seed: of views, shuffling and everything else that is random.
    """

    def __init__(
        self,
        method: Method,
        recipe: Recipe,
        lr: float = 1e-3,
        optimizer: str = "adam",
        weight_decay: float = 1e-6,
        cosine: bool = False,
        warmup: int = 0,
        false_negatives: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_settings(lr=lr, optimizer=optimizer, weight_decay=weight_decay, warmup=warmup)
        check_settings(false_negatives=false_negatives)
        if optimizer == "lars" and weight_decay == 0:
            raise ValueError("weight_decay: expected more than 0 with lars, which scales only parameters that decay.")
        if false_negatives < 1 and not isinstance(method, (SimCLR, CMC)):
            raise ValueError("false_negatives: only simclr and cmc know the classes of all keys.")
        self.method, self.recipe = method, recipe
        self.lr, self.optimizer, self.weight_decay = lr, optimizer, weight_decay
        self.cosine, self.warmup, self.false_negatives, self.seed = cosine, warmup, false_negatives, seed
        self.statistics: dict[str, float] = {}
        self._total: Tensor | float = 0.0
        self._steps = 0

    def training_step(self, batch: tuple[Any, Tensor], step: int) -> Tensor:
        images, y = batch
        views = images
        if isinstance(images, Tensor):
            views = [self.recipe(images, self._generator(step, view)) for view in range(self.method.views)]
        if isinstance(self.method, SimCLR):
            self.method.generator = self._generator(step, -1, self.device)
        loss: Tensor = self.method(views, **self._ids(y, step))
        if step == 0:
            report = cp.InfoNCE().report(*self.method.projections)
            self.statistics = {name: report[name] for name in ("positive_mean", "negative_mean", "negative_variance")}
        self._total = self._total + loss.detach()  # without synchronizing
        self._steps += 1
        return loss

    def _generator(self, step: int, stream: int, device: Any = "cpu") -> torch.Generator:
        key = f"{self.seed} {self.current_epoch} {step} {stream} {self.global_rank}"
        return torch.Generator(device).manual_seed(int(store.checksum(key)[:15], 16))

    def _ids(self, y: Tensor, step: int) -> dict[str, Tensor]:
        if self.false_negatives == 1:
            return {}
        if bool((y < 0).any()):
            raise ValueError("false_negatives: below 1 every image needs a class.")
        uniform = torch.rand(len(y), generator=self._generator(step, -2)).to(y.device)
        keeps_class = uniform < math.sqrt(1 - self.false_negatives)
        return {"ids": torch.where(keeps_class, y, -1 - torch.arange(len(y), device=y.device))}

    def on_train_epoch_start(self) -> None:
        self._total, self._steps = 0.0, 0

    @property
    def mean_loss(self) -> float:
        """The mean loss of the current epoch so far."""
        return float(self._total) / max(1, self._steps)

    def configure_optimizers(self) -> Any:
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, **options)
        elif self.optimizer == "sgd":
            optimizer = torch.optim.SGD(parameters, momentum=0.9, **options)
        else:
            decayed, others = ([p for p in g if p.requires_grad] for g in get_weight_decay_parameters([self.method]))
            groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
            optimizer = LARS(groups, momentum=0.9, **options)
        if not self.cosine:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = round(self.warmup * steps / max(1, self.trainer.max_epochs or 1))
        return [optimizer], [{"scheduler": CosineWarmupScheduler(optimizer, warmup, steps), "interval": "step"}]


# ---- training ----------------------------------------------------------------------------------


class RunCheckpoints(TorchCheckpointIO):  # type: ignore[misc]
    """Store Lightning's checkpoints in a run; files through which its processes exchange weights stay files."""

    def __init__(self, run: Run, state: dict[str, Any] | None) -> None:
        self.run, self.state = run, state  # the run's last checkpoint, to resume from

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if path == CHECKPOINT:
            self.run.save(checkpoint, checkpoint["epoch"] + 1)
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if path == CHECKPOINT and self.state is not None:
            return copy.deepcopy(self.state)  # processes share its memory
        return super().load_checkpoint(path, weights_only=True)  # type: ignore[no-any-return]


class RunLogger(lightning.Callback):  # type: ignore[misc]
    """Log each epoch to a run, save checkpoints, and keep the encoder that is best by ``watch``."""

    def __init__(self, run: Run, epochs: int, every: int, watch: Watch | None) -> None:
        self.run, self.epochs, self.every, self.watch = run, epochs, every, watch
        self.last_save, self.best = time.monotonic(), -math.inf

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        epoch = trainer.current_epoch + 1
        last = epoch == self.epochs
        if trainer.is_global_zero:
            metrics = {"loss": module.mean_loss, **module.statistics}
            if self.watch and self.every and (last or epoch % self.every == 0):
                numbers = self.watch(module.method.encoder)
                metrics |= {f"validation_{name}": number for name, number in numbers.items()}
                if (first := next(iter(numbers.values()))) > self.best:
                    self.best = first
                    with store.atomic(self.run.path / BEST) as file:
                        torch.save({"encoder": module.method.encoder.state_dict(), "epoch": epoch}, file)
            self.run.log(epoch, **metrics)
        if trainer.strategy.broadcast(last or time.monotonic() - self.last_save >= SAVE_EVERY):
            trainer.save_checkpoint(CHECKPOINT)
            self.last_save = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "rng": store.rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]
        store.set_rng_state(state["rng"])


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
    watch: Watch | None = None,
    every: int = 0,
    progress: bool = False,
) -> None:
    """Train with a Lightning ``Trainer``.

    Args:
        epochs: passes over the images, at least 0.
        path, workers, batch: as in :func:`loader`.
        device, devices: kind and number of devices. With several, each process imports the main script: guard it with
            ``if __name__ == "__main__"``.
        precision: Lightning's, e.g. ``bf16-mixed``. The objective always computes in float32.
        run: stores losses and checkpoints, and resumes after an interruption.
        watch, every: evaluates the encoder every so many epochs; the run logs the numbers as ``validation_NAME``, and
            its ``best.pt`` keeps the encoder with the highest first one. With several devices it must be importable.
    """
    check_settings(epochs=epochs)
    options: dict[str, Any] = {"path": path, "seed": module.seed, "workers": workers, "views": module.method.views}
    loader(data, batch, module.recipe, processes=devices, **options)  # raise now what the processes would raise
    if epochs == 0:
        return
    state = None if run is None else run.load()
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
            callbacks=None if run is None else [RunLogger(run, epochs, every, watch)],
            plugins=None if run is None else [RunCheckpoints(run, state)],
        )
        batches = _Batches(partial(loader, data, batch, module.recipe, **options))
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, datamodule=batches, ckpt_path=None if state is None else CHECKPOINT)
        except SystemExit as stopped:  # Lightning turns Ctrl-C into an exit, and ignores the signal afterwards
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, interrupt)
            raise KeyboardInterrupt from stopped


@contextmanager
def _quiet() -> Iterator[None]:
    levels = [logging.getLogger(name).level for name in LOGGERS]
    try:
        with warnings.catch_warnings():
            _silence()
            yield
    finally:
        for name, level in zip(LOGGERS, levels, strict=True):
            logging.getLogger(name).setLevel(level)


def _silence() -> None:
    """Hide Lightning's advice on loaders and logging, which does not apply here."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
