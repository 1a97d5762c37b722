"""Pre-training: batches, a method with its augmentation and optimizer, and a loop on Lightning Fabric that resumes."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import torch
from lightly.models.utils import get_weight_decay_parameters
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms.functional import to_pil_image

import counterpoint as cp

from .. import store
from ..store.run import Run
from .augment import Recipe
from .image_set import ImageSet
from .model import Method, SimCLR
from .settings import check_fits

SAVE_EVERY = 10.0  # seconds between checkpoints
BEST = "best.pt"
Watch = Callable[[nn.Module], dict[str, float]]


class Pretraining(nn.Module):
    """A method with its augmentation: maps batches to losses.

    Batches are ``(images, classes)``: ``uint8`` images, which the module augments on their device, or a list of views.
    Views depend on seed, epoch, step and process alone, so every objective sees the same ones, and so does a resumed
    run.

    Args:
        seed: of views, shuffling and everything else that is random.
    """

    def __init__(self, method: Method, recipe: Recipe, seed: int = 0) -> None:
        super().__init__()
        self.method, self.recipe, self.settings, self.seed = method, recipe, method.settings, seed

    def forward(self, batch: tuple[Any, Tensor], epoch: int = 0, step: int = 0, rank: int = 0) -> Tensor:
        """Compute the loss of a batch."""

        def generator(stream: int, device: Any = "cpu") -> torch.Generator:
            key = f"{self.seed} {epoch} {step} {stream} {rank}"
            return torch.Generator(device).manual_seed(int(store.checksum(key)[:15], 16))

        views, y = batch
        if isinstance(views, Tensor):
            views = [self.recipe(views, generator(view)) for view in range(self.method.views)]
        if isinstance(self.method, SimCLR):
            self.method.generator = generator(-1, views[0].device)
        return self.method(views, **self.ids(y, generator(-2)))  # type: ignore[no-any-return]

    def ids(self, y: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the ids of images, so that a share of the false negatives is left out; nothing to keep them all."""
        if self.settings.false_negatives == 1:
            return {}
        if bool((y < 0).any()):
            raise ValueError("false_negatives: below 1 every image needs a class.")
        uniform = torch.rand(len(y), generator=generator).to(y.device)
        keeps_class = uniform < math.sqrt(1 - self.settings.false_negatives)
        return {"ids": torch.where(keeps_class, y, -1 - torch.arange(len(y), device=y.device))}

    def optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer of the settings.

        As in SimCLR, ``lars`` neither scales nor decays biases and the parameters of normalization.
        """
        settings = self.settings
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        options: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
        if settings.optimizer == "adam":
            return torch.optim.Adam(parameters, **options)
        if settings.optimizer == "sgd":
            return torch.optim.SGD(parameters, momentum=0.9, **options)
        decayed, others = ([p for p in g if p.requires_grad] for g in get_weight_decay_parameters([self.method]))
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return LARS(groups, momentum=0.9, **options)  # type: ignore[no-any-return]


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


def loader(data: ImageSet, module: Pretraining, epoch: int = 0, processes: int = 1, rank: int = 0) -> Any:
    """Load the batches of an epoch in an order that seed and epoch alone determine; an incomplete last one is dropped.

    Batches are ``uint8`` images, which the module augments, or with ``path="per-image"`` views by lightly's transforms.

    Args:
        processes, rank: the number of processes that train together, and the index of this one.
    """
    settings = module.settings
    check_fits(data.name, settings.batch, processes, len(data))
    batched = settings.path == "batched"
    images = _Images(data, None if batched else module.recipe.per_image(), module.method.views)
    order: DistributedSampler[Any] = DistributedSampler(images, processes, rank, seed=module.seed, drop_last=True)
    order.set_epoch(epoch)
    return DataLoader(
        images,
        settings.batch,
        sampler=order,
        drop_last=True,
        num_workers=0 if batched else settings.workers,
        collate_fn=tuple,  # _Images has collated
        generator=torch.Generator().manual_seed(module.seed + epoch),  # seeds the worker processes
    )


# ---- training ----------------------------------------------------------------------------------


def pretrain(
    module: Pretraining, data: ImageSet, run: Run | None = None, watch: Watch | None = None, progress: bool = False
) -> float:
    """Train as the settings of the method say, and return the mean loss of the last epoch.

    With several devices, each process imports the main script: guard it with ``if __name__ == "__main__"``. The
    objective always computes in float32. ``cosine`` decays the learning rate to a thousandth, step by step, after
    ``warmup`` epochs of linear increase.

    Args:
        run: stores losses and checkpoints, and resumes after an interruption.
        watch: evaluates the encoder after every ``settings.watch`` epochs; the run logs the numbers as
            ``validation_NAME``, and its ``best.pt`` keeps the encoder with the highest first one. With several devices
            it must be importable.
        progress: show the epochs, where no run does.
    """
    settings = module.settings
    loader(data, module, processes=settings.devices)  # raise now what the processes would raise
    if settings.epochs == 0:
        return math.nan
    kind, _, number = settings.device.partition(":")
    one = [int(number)] if number and kind != "cpu" else 1
    fabric = lightning.Fabric(
        accelerator=kind,
        devices=one if settings.devices == 1 else settings.devices,
        # not ddp: its processes rerun the script and would wait for the run's lock; not ddp_fork: CUDA and OpenMP do
        # not survive a fork once they are in use
        strategy="auto" if settings.devices == 1 else "ddp_spawn",
        precision=settings.precision,
    )
    state = None if run is None else run.load()
    with TemporaryDirectory() as folder:
        weights = Path(folder, "weights.pt")  # of processes; a queue could only take what fits into a pipe
        train = partial(_train, data=data, run=run, watch=watch, progress=progress, state=state, weights=weights)
        loss = fabric.launch(train, module)  # as an argument of its own: each process gets a copy
        module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return float(loss)


def _train(
    fabric: Any,
    module: Pretraining,
    data: ImageSet,
    run: Run | None,
    watch: Watch | None,
    progress: bool,
    state: dict[str, Any] | None,
    weights: Path,
) -> float:
    """Train in one of the processes, write the weights to a file, and return the loss."""
    settings, main = module.settings, fabric.global_rank == 0
    where = {"processes": fabric.world_size, "rank": fabric.global_rank}
    steps = len(loader(data, module, **where))
    optimizer, schedule = module.optimizer(), None
    if settings.cosine:
        schedule = CosineWarmupScheduler(optimizer, settings.warmup * steps, settings.epochs * steps)
    model, optimizer = fabric.setup(module, optimizer)
    model.train()
    start, best, loss = 0, -math.inf, math.nan
    if state is not None:
        start, best = state["step"], state["best"]
        module.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # processes share its memory
        fabric.strategy.precision.load_state_dict(state["precision"])
        if schedule is not None:
            schedule.load_state_dict(state["schedule"])
        store.set_rng_state(state["rng"])
    epochs: Any = range(start, settings.epochs)
    if main and run is not None:
        epochs = run.track(epochs, settings.epochs)
    elif main and progress:
        epochs = store.track(epochs, "epochs", settings.epochs, start)
    saved = time.monotonic()
    for epoch in epochs:
        total: Tensor | float = 0.0
        numbers: dict[str, float] = {}
        for step, batch in enumerate(loader(data, module, epoch, **where)):
            optimizer.zero_grad()
            value = model(fabric.to_device(batch), epoch, step, fabric.global_rank)
            fabric.backward(value)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if step == 0:
                report = cp.InfoNCE().report(*module.method.projections)
                numbers = {name: report[name] for name in ("positive_mean", "negative_mean", "negative_variance")}
            total = total + value.detach()  # without synchronizing
        loss = float(total) / steps
        last = epoch + 1 == settings.epochs
        if not main or run is None:
            continue
        if watch is not None and settings.watch and (last or (epoch + 1) % settings.watch == 0):
            watched = watch(module.method.encoder)
            numbers |= {f"validation_{name}": number for name, number in watched.items()}
            if (first := next(iter(watched.values()))) > best:
                best = first
                with store.atomic(run.path / BEST) as file:
                    torch.save({"encoder": module.method.encoder.state_dict(), "epoch": epoch + 1}, file)
        run.log(epoch + 1, loss=loss, **numbers)
        if last or time.monotonic() - saved >= SAVE_EVERY:
            state = {"state_dict": module.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
            state |= {"schedule": schedule and schedule.state_dict(), "rng": store.rng_state()}
            run.save({**state, "precision": fabric.strategy.precision.state_dict()}, epoch + 1)
            saved = time.monotonic()
    if main:
        torch.save(module.state_dict(), weights)
    return loss
