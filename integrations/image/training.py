"""Pre-training with Lightning, in a code base of your own or as a run that can be interrupted."""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning
import torch
from lightly.models.utils import get_weight_decay_parameters
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import counterpoint as cp
from counterpoint.hyper import nearest

from .. import store
from ..store.run import Run
from . import data as datasets
from . import evaluation
from .augment import Recipe, recipe
from .data import ImageSet
from .model import CMC, Method, SimCLR, build

UNTRAINED = "untrained encoder"
SAVE_EVERY = 10.0  # seconds between checkpoints
OPTIMIZERS = ("adam", "sgd", "lars")
PATHS = ("batched", "per-image")
PARTS = ("tune", "report")
KEEP = ("last", "best")
BEST = "best.pt"
CHECKPOINT = "checkpoint.pt"  # what Lightning calls it; a run knows where it is

DEFAULTS: dict[str, Any] = {
    "method": "simclr",
    "backbone": "resnet18",
    "channels": 32,
    "size": None,
    "classes": None,
    "augment": None,
    "path": "batched",
    "views": None,
    "epochs": 100,
    "batch": 256,
    "lr": 1e-3,
    "optimizer": "adam",
    "weight_decay": 1e-6,
    "cosine": False,
    "warmup": 0,
    "width": 128,
    "queue": 4096,
    "momentum": 0.999,
    "epsilon": 0.03,
    "mixed": 4,
    "false_negatives": 1.0,
    "subset": None,
    "validation": 0.1,
    "watch": 0,
    "keep": "last",
    "part": "report",
    "probe": ["knn", "linear"],
    "evaluation": {},
    "precision": "32-true",
    "devices": 1,
    "workers": 0,
    "device": "cpu",
}
"""What a cell's arguments are if it does not say otherwise: SimCLR as the code of DCL, HCL and ADNCE has it."""


# ---- what lightning trains ---------------------------------------------------------------------


class Pretraining(lightning.LightningModule):  # type: ignore[misc]
    """A method with its augmentation and optimizer, for a Lightning ``Trainer``.

    Batches are ``(images, classes)``, ``uint8`` images that are augmented here, on the device, or a list of views.
    Views depend on the seed, epoch, step and process alone: every objective sees the same ones, and so does a run that
    goes on after an interruption.

    Args:
        method: see :func:`counterpoint.integrations.image.build`.
        recipe: the distribution of views.
        lr: learning rate, > 0.
        optimizer: ``adam``, ``sgd`` (momentum .9) or ``lars``, which as in SimCLR neither scales nor decays biases and
            the parameters of normalisation.
        weight_decay: at least 0; above 0 for ``lars``, since lightly's scales only what decays.
        cosine: whether the learning rate falls to a thousandth as a cosine, each step, after ``warmup`` epochs of
            rising.
        false_negatives: share of the pairs of images of one class that remain negatives, in ``[0, 1]`` (ADNCE's
            Figure 1, debiased positives' Figure 2). Below 1 it needs classes, and looks at them. An image keeps its
            class with probability ``sqrt(1 - share)``; images that have kept the same one are not compared, so 0 and 1
            are exact, and what lies between holds on average.
        seed: of all that is random here.
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
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer: unknown {optimizer!r}.{nearest(str(optimizer), OPTIMIZERS)}")
        if not lr > 0 or not weight_decay >= 0 or warmup < 0:
            raise ValueError(
                f"Pretraining: expected lr > 0, weight_decay >= 0, warmup >= 0, got {lr!r}, "
                f"{weight_decay!r}, {warmup!r}."
            )
        if optimizer == "lars" and weight_decay == 0:
            raise ValueError("weight_decay: expected more than 0 with lars, which scales only what decays.")
        if not 0 <= false_negatives <= 1:
            raise ValueError(f"false_negatives: expected a share in [0, 1], got {false_negatives!r}.")
        if false_negatives < 1 and not isinstance(method, (SimCLR, CMC)):
            raise ValueError("false_negatives: only simclr and cmc know the classes of all that they compare.")
        self.method, self.recipe = method, recipe
        self.lr, self.optimizer, self.weight_decay = lr, optimizer, weight_decay
        self.cosine, self.warmup, self.false_negatives, self.seed = cosine, warmup, false_negatives, seed
        self.numbers: dict[str, float] = {}
        self._total: Tensor | float = 0.0
        self._steps = 0
        self._rng: dict[str, Any] | None = None

    def training_step(self, batch: tuple[Any, Tensor], step: int) -> Tensor:
        images, y = batch
        views = images
        if isinstance(images, Tensor):
            views = [self.recipe(images, self._generator(step, view)) for view in range(self.method.views)]
        if isinstance(self.method, SimCLR):
            self.method.generator = self._generator(step, -1, self.device)
        loss: Tensor = self.method(views, **self._ids(y, step))
        if step == 0:
            similar = cp.InfoNCE().report(*self.method.projections)
            self.numbers = {k: similar[k] for k in ("positive_mean", "negative_mean", "negative_variance")}
        self._total = self._total + loss.detach()  # which does not wait for the device
        self._steps += 1
        return loss

    def _generator(self, step: int, stream: int, device: Any = "cpu") -> torch.Generator:
        where = f"{self.seed} {self.current_epoch} {step} {stream} {self.global_rank}"
        return torch.Generator(device).manual_seed(int(store.checksum(where)[:15], 16))

    def _ids(self, y: Tensor, step: int) -> dict[str, Tensor]:
        if self.false_negatives == 1:
            return {}
        if bool((y < 0).any()):
            raise ValueError("false_negatives: below 1 every image needs a class.")
        draw = torch.rand(len(y), generator=self._generator(step, -2)).to(y.device)
        kept = draw < math.sqrt(1 - self.false_negatives)
        return {"ids": torch.where(kept, y, -1 - torch.arange(len(y), device=y.device))}

    def on_train_epoch_start(self) -> None:
        self._total, self._steps = 0.0, 0

    @property
    def mean_loss(self) -> float:
        """Of the epoch so far."""
        return float(self._total) / max(1, self._steps)

    def configure_optimizers(self) -> Any:
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        made: torch.optim.Optimizer
        if self.optimizer == "adam":
            made = torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        elif self.optimizer == "sgd":
            made = torch.optim.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=self.weight_decay)
        else:
            decayed, others = get_weight_decay_parameters([self.method])
            groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
            groups = [group | {"params": [p for p in group["params"] if p.requires_grad]} for group in groups]
            made = LARS(groups, lr=self.lr, momentum=0.9, weight_decay=self.weight_decay)
        if not self.cosine:
            return made
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = round(self.warmup * steps / max(1, self.trainer.max_epochs or 1))
        return [made], [{"scheduler": CosineWarmupScheduler(made, warmup, steps), "interval": "step"}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = store.rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._rng = checkpoint.get("rng")

    def on_train_start(self) -> None:
        if self._rng is not None:
            store.set_rng_state(self._rng)
            self._rng = None


class _Pixels(Dataset[Any]):
    """Whole batches of ``uint8`` images by their rows, or views of single ones by lightly's transforms."""

    def __init__(self, data: ImageSet, transform: Callable[[Any], Tensor] | None, views: int) -> None:
        self.data, self.transform, self.views = data, transform, views

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Any:
        assert self.transform is not None
        picture = self.data.pil(row)
        return [self.transform(picture) for _ in range(self.views)], self.data.y[row]

    def __getitems__(self, rows: list[int]) -> Any:
        if self.transform is not None:
            return [self[row] for row in rows]
        index = torch.tensor(rows)
        return self.data.x[index], self.data.y[index]


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
    """Batches in an order that depends on seed and epoch alone; the last, smaller one of an epoch is left out.

    Args:
        batch: images per step and process, at least 2.
        path: ``batched`` hands on ``uint8`` images for :class:`Pretraining` to augment, ``per-image`` views that
            lightly's transforms have made.
        workers: processes that load, 0 for none; more than 0 only help ``per-image``.
        processes, rank: how many train together, and which this one is.
    """
    if path not in PATHS:
        raise ValueError(f"path: unknown path {path!r}.{nearest(str(path), PATHS)}")
    if not isinstance(batch, int) or batch < 2:
        raise ValueError(f"batch: at least 2 images are needed to compare, got {batch!r}.")
    if batch * processes > len(data):
        raise ValueError(f"batch: {batch * processes} images do not fit into {data.name} with {len(data)} to train on.")
    batched = path == "batched"
    dataset = _Pixels(data, None if batched else recipe.per_image(), views)
    order = _Order(dataset, processes, rank, seed=seed, drop_last=True)
    return DataLoader(
        dataset,
        batch,
        sampler=order,
        drop_last=True,
        num_workers=0 if batched else workers,
        collate_fn=_as_it_is if batched else None,
        generator=order.generator,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


class _Order(DistributedSampler[Any]):
    """The order of an epoch; and where the seeds of its worker processes come from, which depend on it alone too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generator = torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.generator.manual_seed(self.seed + epoch)


# ---- with a store of runs ----------------------------------------------------------------------


class RunCheckpoints(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning's checkpoints in a :class:`Run`; other files, with which its processes exchange weights, are files.

    Args:
        state: what the run has saved, to go on from.
    """

    def __init__(self, run: Run, state: dict[str, Any] | None) -> None:
        self.run, self.state = run, state
        self.epoch = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if path == CHECKPOINT:
            self.run.save(checkpoint, self.epoch)
        else:
            super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if path == CHECKPOINT:
            assert self.state is not None
            return copy.deepcopy(self.state)  # several processes share its memory
        return super().load_checkpoint(path, weights_only=True)  # type: ignore[no-any-return]


class Keeper(lightning.Callback):  # type: ignore[misc]
    """After each epoch: a line of numbers, a checkpoint now and then, and the weights that are best by ``watch``."""

    def __init__(self, run: Run, epochs: int, every: int, watch: Callable[[Method], float] | None) -> None:
        self.run, self.epochs, self.every, self.watch = run, epochs, every, watch
        self.saved, self.best = time.monotonic(), -math.inf

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        epoch = trainer.current_epoch + 1
        last = epoch == self.epochs
        if trainer.is_global_zero:
            numbers = {"loss": module.mean_loss, **module.numbers}
            if self.watch and self.every and (last or epoch % self.every == 0):
                numbers["validation_knn"] = found = self.watch(module.method)
                if found > self.best:
                    self.best = found
                    with store.atomic(self.run.path / BEST) as file:
                        torch.save({"encoder": module.method.encoder.state_dict(), "epoch": epoch}, file)
            self.run.log(epoch, **numbers)
        due = trainer.strategy.broadcast(last or time.monotonic() - self.saved >= SAVE_EVERY)
        if due:
            trainer.strategy.checkpoint_io.epoch = epoch
            trainer.save_checkpoint(CHECKPOINT)
            self.saved = time.monotonic()

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
    """Trains with a Lightning ``Trainer``.

    Args:
        epochs: times that each image is seen, at least 0.
        path, workers, batch: as in :func:`loader`.
        device, devices: where, and how many of them. Several are processes that import the main script once more: what
            it does belongs under ``if __name__ == "__main__"``.
        precision: Lightning's, e.g. ``bf16-mixed``. The objective computes in float32 in any case.
        run: where losses and checkpoints go, and where training goes on after an interruption.
        watch, every: an accuracy that is computed every so many epochs; the best encoder is kept in the run's
            ``best.pt``. With several devices it must be importable.
    """
    if not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"epochs must be a whole number of at least 0, got {epochs!r}.")
    given: dict[str, Any] = {"path": path, "seed": module.seed, "workers": workers, "views": module.method.views}
    loader(data, batch, module.recipe, processes=devices, **given)  # says what is wrong
    if epochs == 0:
        return
    callbacks: list[Any] = []
    plugins: list[Any] = []
    state = None
    if run is not None:
        callbacks = [Keeper(run, epochs, every, watch)]
        plugins = [RunCheckpoints(run, state := run.load())]
    batches = _Batches(partial(loader, data, batch, module.recipe, **given))
    with _quiet():
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator=device.partition(":")[0],
            devices=_devices(device, devices),
            # not as scripts of their own, which would ask for the run that this process holds; and not forked, which
            # neither CUDA nor OpenMP survive once they are in use
            strategy="ddp_spawn" if devices > 1 else "auto",
            precision=precision,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress and sys.stderr.isatty(),
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            callbacks=callbacks,
            plugins=plugins,
        )
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, datamodule=batches, ckpt_path=None if state is None else CHECKPOINT)
        except SystemExit as stopped:  # what Lightning makes of Ctrl-C, to which it is deaf from then on
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, interrupt)
            raise KeyboardInterrupt from stopped


class _Batches(lightning.LightningDataModule):  # type: ignore[misc]
    """Makes its loader where it is used, which may be one of several processes."""

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self.make = make

    def setup(self, stage: str) -> None:
        _hush()  # several processes begin with Lightning's levels

    def train_dataloader(self) -> Any:
        made = self.make(processes=self.trainer.world_size, rank=self.trainer.global_rank)
        made.sampler.set_epoch(self.trainer.current_epoch)  # the first of this process; Lightning sets the others
        return made


def _devices(device: str, count: int) -> Any:
    kind, _, number = device.partition(":")
    return [int(number)] if number and kind != "cpu" and count == 1 else count


# lightly imports the other distribution of Lightning, which takes over where both log
LOGGERS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            _hush()
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _hush() -> None:
    """No advice of Lightning's on loaders and logging, which this module has decided."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")


# ---- a cell of a grid --------------------------------------------------------------------------


def cell(dataset: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run; what is not changed is as in :data:`DEFAULTS`."""
    for name in changes:
        if name not in DEFAULTS and name != "label":
            raise TypeError(f"cell: unknown argument {name!r}.{nearest(name, DEFAULTS)}")
    given = {**DEFAULTS, **changes}
    if given["method"] == "swav" and objective is None:
        given.setdefault("label", "SwAV")
    given["augment"] = given["augment"] or ("digits" if dataset == "digits" else "cifar")
    return {"domain": "image", "dataset": dataset, "objective": objective, "seed": seed, **given}


def untrained(dataset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell of the encoder as it starts."""
    return cell(dataset, None, seed, **{**changes, "label": UNTRAINED, "epochs": 0, "views": None})


class Data(NamedTuple):
    """What a cell is trained on, what its probes are fitted on, the validation images, and what is reported about."""

    train: ImageSet
    labelled: ImageSet
    validation: ImageSet
    test: ImageSet


def prepare(arguments: Mapping[str, Any]) -> Data:
    """The data of a cell. With ``part="tune"`` the validation images are reported about, and none of the test split."""
    given = arguments
    if given["part"] not in PARTS:
        raise ValueError(f"part: unknown part {given['part']!r}.{nearest(str(given['part']), PARTS)}")
    if given["keep"] not in KEEP:
        raise ValueError(f"keep: unknown {given['keep']!r}.{nearest(str(given['keep']), KEEP)}")
    which = (given["size"], None, given["classes"])
    train, validation = datasets.load(given["dataset"], "train", *which).hold_out(given["validation"])
    if given["subset"] is not None:
        train = train.draw(given["subset"])
    labelled, validation = train.with_classes(), validation.with_classes()
    test = validation
    if given["dataset"] == "mnist-cifar":  # what the digits say about the class must not be learned by the probe
        labelled = datasets.mnist_cifar("ood-train")
        if given["part"] == "tune":
            labelled, test = labelled.hold_out(given["validation"])
    if given["part"] == "report":
        test = datasets.load(given["dataset"], "test", *which)
    return Data(train, labelled, validation, test)


def make(arguments: Mapping[str, Any], size: tuple[int, int]) -> Pretraining:
    """The module of a cell as it starts. The seed fixes the encoder, whatever the objective."""
    given = arguments
    torch.manual_seed(given["seed"])
    of_method = ("backbone", "channels", "views", "width", "queue", "momentum", "epsilon", "mixed")
    method = build(
        given["method"],
        given["objective"],
        size=max(size),
        gather=given["devices"] > 1,
        **{name: given[name] for name in of_method},
    )
    names = ("lr", "optimizer", "weight_decay", "cosine", "warmup", "false_negatives", "seed")
    return Pretraining(method, recipe(given["augment"], size), **{name: given[name] for name in names})


def probes_of(arguments: Mapping[str, Any], data: Data) -> list[str]:
    """The probes of a cell that its data allow: most need classes."""
    settings = evaluation.Settings(**arguments["evaluation"])
    return evaluation.checked(arguments["probe"], data.labelled, data.test, settings)


def check(cells: Iterable[Mapping[str, Any]]) -> None:
    """Raises what each of these cells would raise before it trains, so that it is known before the first one does."""
    seen = []
    for given in cells:
        if (rest := {**given, "seed": 0}) in seen:
            continue
        seen.append(rest)
        data = prepare(given)
        probes_of(given, data)
        module = make(given, data.train.size)
        loader(data.train, given["batch"], module.recipe, path=given["path"], processes=given["devices"])


def train(run: Run) -> None:
    """Trains and evaluates one cell; the training function for :func:`~counterpoint.integrations.store.run_grid`."""
    given = run.arguments
    pixels, labelled, validation, test = data = prepare(given)
    run.data(store.checksum(*(one.checksum for one in data)))
    run.counts("epoch")
    settings = evaluation.Settings(**given["evaluation"])
    probes = probes_of(given, data)
    module = make(given, pixels.size)

    names = ("epochs", "batch", "path", "workers", "device", "devices", "precision")
    pretrain(
        module,
        pixels,
        **{name: given[name] for name in names},
        run=run,
        watch=partial(validation_knn, train=pixels.with_classes(), validation=validation, settings=settings),
        every=given["watch"] if validation.labelled else 0,
        progress=run.progress,
    )
    if given["epochs"] == 0:
        run.save({"state_dict": module.state_dict()}, 0)
    module.to(given["device"])
    if given["keep"] == "best" and (best := best_encoder(run)) is not None:
        module.method.encoder.load_state_dict(best["encoder"])
    found = evaluation.evaluate(module.method.encoder, labelled, test, probes, settings, given["seed"])
    loss = [line["loss"] for line in run.metrics() if "loss" in line]
    run.finish(found or {"loss": loss[-1] if loss else math.nan}, note=test.note)


def validation_knn(method: Method, train: ImageSet, validation: ImageSet, settings: evaluation.Settings) -> float:
    return evaluation.evaluate(method.encoder, train, validation, ["knn"], settings)["knn"]


def best_encoder(run: Run) -> dict[str, Any] | None:
    """The weights that were best by validation, if a run has watched."""
    path = Path(run.path) / BEST
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def restore(run: Run) -> Method:
    """The trained method of a run, from its last checkpoint, or with ``keep="best"`` from its best."""
    state = run.load()
    if state is None:
        raise ValueError(f"{run.path}: it has no checkpoint.")
    module = make({**run.arguments, "devices": 1}, prepare(run.arguments).train.size)
    module.load_state_dict(state["state_dict"])
    if run.arguments["keep"] == "best" and (best := best_encoder(run)) is not None:
        module.method.encoder.load_state_dict(best["encoder"])
    return module.method.eval()
