"""``Pretraining``: a method with its augmentation and optimizer, for a Lightning ``Trainer``."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
from typing import Any

import lightning
import torch
from lightly.models.utils import get_weight_decay_parameters
from lightly.utils.lars import LARS
from lightly.utils.scheduler import CosineWarmupScheduler
from torch import Tensor

import counterpoint as cp

from .. import store
from ..domain import check_choice
from .augment import Recipe
from .model import CMC, Method, SimCLR
from .settings import OPTIMIZERS


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
        check_choice("optimizer", optimizer, OPTIMIZERS)
        if not lr > 0 or not weight_decay >= 0 or warmup < 0:
            numbers = f"{lr!r}, {weight_decay!r}, {warmup!r}"
            raise ValueError(f"Pretraining: expected lr > 0, weight_decay >= 0, warmup >= 0, got {numbers}.")
        if optimizer == "lars" and weight_decay == 0:
            raise ValueError("weight_decay: expected more than 0 with lars, which scales only parameters that decay.")
        if not 0 <= false_negatives <= 1:
            raise ValueError(f"false_negatives: expected a share in [0, 1], got {false_negatives!r}.")
        if false_negatives < 1 and not isinstance(method, (SimCLR, CMC)):
            raise ValueError("false_negatives: only simclr and cmc know the classes of all keys.")
        self.method, self.recipe = method, recipe
        self.lr, self.optimizer, self.weight_decay = lr, optimizer, weight_decay
        self.cosine, self.warmup, self.false_negatives, self.seed = cosine, warmup, false_negatives, seed
        self.statistics: dict[str, float] = {}
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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = store.rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._rng = checkpoint.get("rng")

    def on_train_start(self) -> None:
        if self._rng is not None:
            store.set_rng_state(self._rng)
            self._rng = None
