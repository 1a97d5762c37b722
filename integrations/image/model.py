"""The methods that train an encoder: SimCLR, MoCo v2 and CMC with any objective, SwAV with its own loss."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightly.loss import SwaVLoss
from lightly.models.modules import heads
from lightly.models.utils import batch_shuffle, batch_unshuffle, deactivate_requires_grad, update_momentum
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.objective import Objective, as_objective
from counterpoint.plugins.lightly import ContrastiveLoss
from counterpoint.vectors import unit, widen

from ..domain import check_choice, check_whole
from .encoders import Encoder, LabEncoder
from .settings import METHODS


class Method(nn.Module):
    """Encoder, projection head and criterion, trained together; call it with the views of a batch to get the loss."""

    views = 2  # of each image that it expects
    projections: tuple[Tensor, Tensor]  # of the first two views in the last call, for statistics

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder  # the part that is evaluated, from images in [0, 1]


class _Contrastive(Method):
    """A method with any objective."""

    def __init__(
        self, encoder: nn.Module, objective: Objective | str, views: int | None, bank: int, width: int, gather: bool
    ) -> None:
        super().__init__(encoder)
        self.criterion = ContrastiveLoss(objective, (bank, width) if bank else 0, gather_distributed=gather)
        self.objective = self.criterion.objective
        self.views = views if views is not None else self.objective.views or 2
        if not isinstance(self.views, int) or self.views < 2:
            raise ValueError(f"views: {self.objective} needs at least 2 views of an image, got {self.views!r}.")
        if self.objective.views is not None and self.objective.views != self.views:
            raise ValueError(f"views: {self.objective} asks for {self.objective.views} views, got {self.views}.")

    def _refuse_perturbed_views(self, method: str) -> None:
        if missing := sorted(self.objective.needs.intersection(("adversarial", "mixed"))):
            names = " or ".join(missing)
            raise ValueError(f"{method} makes no {names} views, which {self.objective} needs; use simclr.")


class SimCLR(_Contrastive):
    """SimCLR (Chen et al. 2020, https://arxiv.org/abs/2002.05709): one encoder and a head of two layers for all views.

    Objectives that need them get an adversarial view, searched around the second view, and mixtures of second views.

    Args:
        views: of each image, at least 2; by default what the objective asks for, or 2.
        width: of the projection.
        epsilon: size of the attack on pixels in ``[0, 1]``, > 0.
        mixed: mixed views per image, ``M - 1`` in the paper, at least 1.
        gather: compare with the views of all processes.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective | str = "infonce",
        views: int | None = None,
        width: int = 128,
        epsilon: float = 0.03,
        mixed: int = 4,
        gather: bool = False,
    ) -> None:
        super().__init__(encoder, objective, views, 0, width, gather)
        self.head = heads.SimCLRProjectionHead(encoder.width, encoder.width, width)
        if not epsilon > 0 or mixed < 1:
            raise ValueError(f"SimCLR: expected epsilon > 0 and mixed >= 1, got {epsilon!r} and {mixed!r}.")
        self.epsilon, self.mixed = epsilon, mixed
        self.generator: torch.Generator | None = None

    def project(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))  # type: ignore[no-any-return]

    def forward(self, views: Sequence[Tensor], **options: Any) -> Tensor:
        """Compute the loss; keyword arguments are passed to the objective (``ids``, ``labels``, ``prior``)."""
        z = [self.project(view) for view in views]
        self.projections = z[0].detach(), z[1].detach()
        if needs := self.objective.needs:
            encoder = nn.Sequential(self.encoder, self.head)
            options |= cp.views.perturbed(
                encoder,
                views[0],
                views[1],
                self.objective,
                epsilon=self.epsilon if "adversarial" in needs else None,
                mixed=min(self.mixed, len(z[0]) - 1) if "mixed" in needs else 0,
                clip=(0.0, 1.0),
                generator=self.generator,
            )
        return self.criterion(*z, **options)  # type: ignore[no-any-return]


class MoCo(_Contrastive):
    """MoCo v2 (Chen et al. 2020, https://arxiv.org/abs/2003.04297): queries, keys of a momentum encoder, and a queue.

    The queue is lightly's memory bank. With two views the first is the query, the second the key. An objective of
    several views (ArCL's Algorithm 2) gets queries and keys of all views, and the keys of the first enter the queue.

    Args:
        queue: keys in the queue, preferably a multiple of the batch.
        momentum: of the key encoder, in ``[0, 1]``.
        encoder, objective, views, width, gather: as in :class:`SimCLR`.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective | str = "infonce:t=0.2",
        views: int | None = None,
        width: int = 128,
        queue: int = 4096,
        momentum: float = 0.999,
        gather: bool = False,
    ) -> None:
        check_whole("MoCo: queue must be", queue, 1)
        if not 0 <= momentum <= 1:
            raise ValueError(f"MoCo: momentum must be in [0, 1], got {momentum!r}.")
        super().__init__(encoder, objective, views, queue, width, gather)
        self._refuse_perturbed_views("moco")
        self.several = self.views > 2 or self.objective.views is not None
        self.head = heads.MoCoProjectionHead(encoder.width, encoder.width, width)
        self.momentum = momentum
        self.key_encoder, self.key_head = copy.deepcopy(self.encoder), copy.deepcopy(self.head)
        deactivate_requires_grad(self.key_encoder)
        deactivate_requires_grad(self.key_head)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        if self.training:
            update_momentum(self.encoder, self.key_encoder, self.momentum)
            update_momentum(self.head, self.key_head, self.momentum)
        queries = [self.head(self.encoder(view)) for view in (views if self.several else views[:1])]
        keys = [self.key(view) for view in (views if self.several else views[1:])]
        self.projections = queries[0].detach(), keys[-1]
        if not self.several:
            return self.criterion(queries[0], keys[0])  # type: ignore[no-any-return]
        _, queue = self.criterion.memory_bank(unit(widen(keys[0])), update=self.training)
        return self.objective(torch.stack(queries, 1), torch.stack(keys, 1), queue=queue.T)

    @torch.no_grad()
    def key(self, x: Tensor) -> Tensor:
        """Project by the key encoder; several processes shuffle their batches among each other."""
        distributed = self.criterion.gather_distributed
        x, order = batch_shuffle(x, distributed=distributed)
        z: Tensor = batch_unshuffle(self.key_head(self.key_encoder(x)), order, distributed=distributed)
        return z

    # lightly excludes the memory bank from state_dict
    def get_extra_state(self) -> dict[str, Tensor]:
        bank = self.criterion.memory_bank
        return {"bank": bank.bank, "bank_ptr": bank.bank_ptr}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        bank = self.criterion.memory_bank
        bank.bank.copy_(state["bank"])
        bank.bank_ptr.copy_(state["bank_ptr"])


class CMC(_Contrastive):
    """CMC (Tian et al. 2020, https://arxiv.org/abs/1906.05849): lightness against color of one view, an encoder each.

    Each view is split in the color space Lab; the features of both encoders are concatenated. Negatives are the other
    images of the batch, in both directions.

    Args:
        light, colour: encoders of 1 and 2 channels.
        objective, width, gather: as in :class:`SimCLR`; objectives of more than two views are rejected.
    """

    def __init__(
        self,
        light: Encoder,
        colour: Encoder,
        objective: Objective | str = "infonce:t=0.07",
        width: int = 128,
        gather: bool = False,
    ) -> None:
        encoder = LabEncoder(light, colour)
        super().__init__(encoder, objective, 2, 0, width, gather)
        self._refuse_perturbed_views("cmc")
        self.views = 1  # of pixels, then split in two
        widths = light.width, colour.width
        self.heads = nn.ModuleList(heads.SimCLRProjectionHead(each, each, width) for each in widths)

    def forward(self, views: Sequence[Tensor], **options: Any) -> Tensor:
        parts = self.encoder.parts(views[0])  # type: ignore[operator]
        z = [head(features) for head, features in zip(self.heads, parts, strict=True)]
        self.projections = z[0].detach(), z[1].detach()
        return self.criterion(*z, pairing="symmetric", **options)  # type: ignore[no-any-return]


class SwAV(Method):
    """SwAV (Caron et al. 2020, https://arxiv.org/abs/2006.09882) with two full-size crops, on lightly's parts.

    The baseline in LMCL's Table 2 that is not contrastive: it takes no objective. ``prototypes`` are clusters.
    """

    def __init__(self, encoder: Encoder, width: int = 128, prototypes: int = 512) -> None:
        super().__init__(encoder)
        self.head = heads.SwaVProjectionHead(encoder.width, encoder.width, width)
        self.prototypes = heads.SwaVPrototypes(width, prototypes)
        self.criterion = SwaVLoss()

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        self.prototypes.normalize()
        z = [nn.functional.normalize(self.head(self.encoder(view))) for view in views]
        self.projections = z[0].detach(), z[1].detach()
        return self.criterion([self.prototypes(projection) for projection in z], [])  # type: ignore[no-any-return]


def build(
    method: str,
    objective: Objective | str | None,
    backbone: str = "resnet18",
    size: int = 32,
    views: int | None = None,
    width: int = 128,
    queue: int = 4096,
    momentum: float = 0.999,
    epsilon: float = 0.03,
    mixed: int = 4,
    prototypes: int = 512,
    gather: bool = False,
    channels: int = 32,
) -> Method:
    """Build the method of that name with an encoder of that name; ``channels`` are of the first layer of ``conv4``."""
    check_whole("channels must be", channels, 1)
    check_choice("method", method, METHODS)
    if method == "swav":
        return SwAV(Encoder(backbone, size, 3, channels), width, prototypes)
    objective = as_objective("infonce" if objective is None else objective)
    if method == "cmc":
        if views not in (None, 2) or (objective.views or 2) > 2:
            raise ValueError("views: cmc has two, lightness and color.")
        light, colour = (Encoder(backbone, size, inputs, channels) for inputs in (1, 2))
        return CMC(light, colour, objective, width, gather)
    if method == "moco":
        return MoCo(Encoder(backbone, size, 3, channels), objective, views, width, queue, momentum, gather)
    return SimCLR(Encoder(backbone, size, 3, channels), objective, views, width, epsilon, mixed, gather)
