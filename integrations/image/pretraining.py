"""Pre-training: a method with its augmentation and optimizer, and a loop on Lightning Fabric that resumes."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import lightning
import torch
from lightly.models.utils import get_weight_decay_parameters
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler
from torch import Tensor, nn

import counterpoint as cp

from .. import store
from ..store.progress import print_line
from ..store.run import Run
from .augment import Recipe
from .image_set import ImageSet
from .model import Method, SimCLR
from .settings import check_fits

FEW = 50  # steps of a training in which little can be learned
SAVE_EVERY = 10.0  # seconds between checkpoints
Watch = Callable[[nn.Module], dict[str, float]]


class Pretraining(nn.Module):
    """A method with its augmentation: maps batches to losses.

    Batches are ``(images, classes)``, or with the images' positions in the data set: ``uint8`` images, which the module
    augments on their device. Views depend on seed, epoch and step alone, for every objective and in a resumed run. The
    seed is also that of shuffling and everything else that is random.
    """

    def __init__(self, method: Method, recipe: Recipe, seed: int = 0) -> None:
        super().__init__()
        self.method, self.recipe, self.settings, self.seed = method, recipe, method.settings, seed

    def forward(self, batch: Sequence[Tensor], epoch: int = 0, step: int = 0) -> Tensor:
        """Compute the loss of a batch."""

        def generator(stream: int, device: torch.device | str = "cpu") -> torch.Generator:
            key = f"{self.seed} {epoch} {step} {stream} 0"  # the 0 repeats the views of stored runs
            return torch.Generator(device).manual_seed(int(store.checksum(key)[:15], 16))

        images, y, *positions = batch
        views = [self.recipe(images, generator(view)) for view in range(self.method.views)]
        known = self.ids(y, generator(-2))
        if isinstance(self.method, SimCLR):
            self.method.generator = generator(-1, views[0].device)
            known |= dict(zip(["index"], positions, strict=False))
        return self.method(views, **known)  # type: ignore[no-any-return]

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
        if settings.optimizer == "adam":
            return torch.optim.Adam(parameters, settings.lr, weight_decay=settings.weight_decay)
        if settings.optimizer == "sgd":
            return torch.optim.SGD(parameters, settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
        decayed, others = ([p for p in g if p.requires_grad] for g in get_weight_decay_parameters([self.method]))
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return LARS(groups, settings.lr, momentum=0.9, weight_decay=settings.weight_decay)  # type: ignore[no-any-return]


def batches(data: ImageSet, module: Pretraining, epoch: int = 0) -> list[Tensor]:
    """The rows of each batch of an epoch, in the order of seed and epoch; an incomplete last batch is dropped."""
    batch = module.settings.batch
    check_fits(data.name, batch, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(module.seed + epoch))
    return [rows for rows in order.split(batch) if len(rows) == batch]


def pretrain(module: Pretraining, data: ImageSet, run: Run | None = None, watch: Watch | None = None) -> float:
    """Train as the settings of the method say, and return the mean loss of the last epoch.

    The objective always computes in float32. ``cosine`` decays the learning rate to a thousandth, step by step, after
    ``warmup`` epochs of linear increase.

    Args:
        run: stores losses and checkpoints, and resumes after an interruption.
        watch: evaluates the encoder after every ``settings.watch`` epochs; the run logs the numbers as
            ``validation_NAME``.
    """
    settings = module.settings
    steps = len(batches(data, module))
    if settings.epochs == 0:
        return math.nan
    kind, _, number = settings.device.partition(":")
    one = [int(number)] if number and kind != "cpu" else 1
    fabric = lightning.Fabric(accelerator=kind, devices=one, precision=settings.precision)
    schedule = None
    optimizer = module.optimizer()
    if settings.cosine:
        schedule = CosineWarmupScheduler(optimizer, settings.warmup * steps, settings.epochs * steps)
    model, optimizer = fabric.setup(module, optimizer)
    model.train()
    start, loss = 0, math.nan
    if run is not None and (state := run.load()) is not None:
        start = state["step"]
        module.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
        fabric.strategy.precision.load_state_dict(state["precision"])
        if schedule is not None:
            schedule.load_state_dict(state["schedule"])
        store.set_rng_state(state["rng"])
    if run is not None and (every := steps * settings.epochs) < FEW:
        print_line(f"{run.title}: {every} steps in all, of {settings.batch} images each, of {len(data)}")
    left = range(start, settings.epochs)
    saved = time.monotonic()
    for epoch in store.track(left, "epochs") if run is None else run.track(left, settings.epochs):
        total: Tensor | float = 0.0
        numbers: dict[str, float] = {}
        for step, rows in enumerate(batches(data, module, epoch)):
            optimizer.zero_grad()
            with nullcontext() if run is None or step else cp.log_reports(module, numbers.update):
                value = model(fabric.to_device((data.x[rows], data.y[rows], rows)), epoch, step)
            fabric.backward(value)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total = total + value.detach()  # without synchronizing
        loss = float(total) / steps
        if run is None:
            continue
        last = epoch + 1 == settings.epochs
        if watch is not None and settings.watch and (last or (epoch + 1) % settings.watch == 0):
            numbers |= {f"validation_{name}": value for name, value in watch(module.method.encoder).items()}
        run.log(epoch + 1, loss=loss, **numbers)
        if last or time.monotonic() - saved >= SAVE_EVERY:
            state = {"state_dict": module.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"schedule": schedule and schedule.state_dict(), "rng": store.rng_state()}
            run.save({**state, "precision": fabric.strategy.precision.state_dict()}, epoch + 1)
            saved = time.monotonic()
    return loss
