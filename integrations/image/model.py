"""Encoders, and the methods that train them: SimCLR, MoCo v2, CMC with any objective; SwAV with its own loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from lightly.loss import SwaVLoss
from lightly.models.modules import heads
from lightly.models.utils import batch_shuffle, batch_unshuffle, deactivate_requires_grad, update_momentum
from torch import Tensor, nn
from torchvision import models

import counterpoint as cp
from counterpoint.hyper import nearest
from counterpoint.objective import Objective, as_objective
from counterpoint.plugins.lightly import Loss
from counterpoint.vectors import unit, widen

SMALL = 64  # pixels; up to here a ResNet gets the stem that CIFAR papers give it
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10


class Encoder(nn.Module):
    """From images in ``[0, 1]`` to features. The standardisation is inside, so attacks see the pixels.

    Args:
        name: ``conv4``, a small network for a CPU; ``resnet18``, ``resnet50`` or any other classifier of
            ``torchvision.models``; or any of ``timm``, as ``timm:NAME``.
        size: of the images in pixels. ResNets for up to 64 pixels begin with a 3 x 3 convolution and no pooling.
        channels: of the images.
        width: channels of the first layer of ``conv4``.
    """

    def __init__(self, name: str = "resnet18", size: int = 32, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.name = name
        standard = channels == 3  # CMC's colour spaces are standardised where they are made
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN if standard else (0.0,) * channels).view(-1, 1, 1), False)
        self.register_buffer("std", torch.tensor(STD if standard else (1.0,) * channels).view(-1, 1, 1), False)
        self.network = _network(name, size, channels, width)
        with torch.no_grad():
            state = self.training
            self.eval()
            self.width = self(torch.zeros(1, channels, max(size, 8), max(size, 8))).shape[1]
            self.train(state)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, width)`` features."""
        features: Tensor = self.network((x - self.mean) / self.std)
        return features.flatten(1)


def _network(name: str, size: int, channels: int, width: int) -> nn.Module:
    if name == "conv4":
        return _conv4(channels, width)
    if name.startswith("timm:"):
        return _timm(name.removeprefix("timm:"), size, channels)
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(
            f"backbone: unknown {name!r}.{nearest(str(name), ('conv4', *get_close_matches(str(name), known, 5, 0)))}"
        )
    network: nn.Module = models.get_model(name, weights=None)
    if isinstance(network, models.ResNet):
        if size <= SMALL:
            network.conv1 = nn.Conv2d(channels, network.conv1.out_channels, 3, padding=1, bias=False)
            network.maxpool = nn.Identity()
        elif channels != 3:
            network.conv1 = nn.Conv2d(channels, network.conv1.out_channels, 7, stride=2, padding=3, bias=False)
    elif channels != 3:
        raise ValueError(f"backbone: {name} takes images of 3 channels; use conv4, a ResNet or timm:NAME.")
    last = [key for key, part in network.named_modules() if isinstance(part, nn.Linear)][-1]  # the classifier
    parent, _, attribute = last.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    return network


def _conv4(channels: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for out in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))


def _timm(name: str, size: int, channels: int) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"backbone timm:{name} needs timm: pip install timm") from error
    if name not in timm.list_models():
        raise ValueError(
            f"backbone: timm has no model {name!r}.{nearest(name, get_close_matches(name, timm.list_models(), 5, 0))}"
        )
    given = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    try:
        network: nn.Module = timm.create_model(name, **given, img_size=size)
    except TypeError:  # convolutional ones take any size
        network = timm.create_model(name, **given)
    return network


# ---- methods -----------------------------------------------------------------------------------


class Method(nn.Module):
    """What is trained: encoder, projection head and criterion; called with the views of a batch, it returns the loss.

    Attributes:
        encoder: what is evaluated, from images in ``[0, 1]``.
        views: how many views of each image it is called with.
        projections: of the first two views in the last call, for statistics.
    """

    views = 2
    projections: tuple[Tensor, Tensor]

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder


class _Contrastive(Method):
    """A method with any objective."""

    def __init__(
        self, encoder: nn.Module, objective: Objective | str, views: int | None, bank: int, width: int, gather: bool
    ) -> None:
        super().__init__(encoder)
        self.criterion = Loss(objective, (bank, width) if bank else 0, gather_distributed=gather)
        self.objective = self.criterion.objective
        self.views = views if views is not None else self.objective.views or 2
        if not isinstance(self.views, int) or self.views < 2:
            raise ValueError(f"views: {self.objective} needs at least 2 views of an image, got {self.views!r}.")
        if self.objective.views is not None and self.objective.views != self.views:
            raise ValueError(f"views: {self.objective} asks for {self.objective.views} views, got {self.views}.")

    def refuse(self, method: str, *needs: str) -> None:
        if missing := sorted(self.objective.needs.intersection(needs)):
            raise ValueError(
                f"{method} makes no {' or '.join(missing)} views, which {self.objective} needs; use simclr."
            )


class SimCLR(_Contrastive):
    """SimCLR (Chen et al. 2020): all views through one encoder and a head of two layers.

    Objectives that need them get an adversarial view, sought around the second view, and mixtures of the second views.

    Args:
        encoder: with a ``width``.
        objective: an objective or a spec.
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
        projected: Tensor = self.head(self.encoder(x))
        return projected

    def forward(self, views: Sequence[Tensor], **how: Any) -> Tensor:
        """The loss; ``how`` goes on to the objective (``ids``, ``labels``, ``prior``)."""
        z = [self.project(view) for view in views]
        self.projections = z[0].detach(), z[1].detach()
        if needs := self.objective.needs:
            encoder = nn.Sequential(self.encoder, self.head)
            how |= cp.views.perturbed(
                encoder,
                views[0],
                views[1],
                self.objective,
                epsilon=self.epsilon if "adversarial" in needs else None,
                mixed=min(self.mixed, len(z[0]) - 1) if "mixed" in needs else 0,
                clip=(0.0, 1.0),
                generator=self.generator,
            )
        loss: Tensor = self.criterion(*z, **how)
        return loss


class MoCo(_Contrastive):
    """MoCo v2 (Chen et al. 2020): queries, keys of a slowly following encoder, and a queue of earlier keys.

    The queue is lightly's memory bank. With two views the first is the query, the second the key. An objective of
    several views (ArCL's Algorithm 2) gets queries and keys of all views, and the keys of the first enter the queue.

    Args:
        queue: keys in the queue, a multiple of the batch is best.
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
        if not isinstance(queue, int) or queue < 1:
            raise ValueError(f"MoCo: queue must be a whole number of at least 1, got {queue!r}.")
        if not 0 <= momentum <= 1:
            raise ValueError(f"MoCo: momentum must be in [0, 1], got {momentum!r}.")
        super().__init__(encoder, objective, views, queue, width, gather)
        self.refuse("moco", "adversarial", "mixed")
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
            loss: Tensor = self.criterion(queries[0], keys[0])
            return loss
        _, queue = self.criterion.memory_bank(unit(widen(keys[0])), update=self.training)
        return self.objective(torch.stack(queries, 1), torch.stack(keys, 1), queue=queue.T)

    @torch.no_grad()
    def key(self, x: Tensor) -> Tensor:
        """Projections of the key encoder; in several processes its batches are shuffled between them."""
        x, order = batch_shuffle(x, distributed=self.criterion.gather_distributed)
        z: Tensor = batch_unshuffle(
            self.key_head(self.key_encoder(x)), order, distributed=self.criterion.gather_distributed
        )
        return z

    # lightly keeps its bank out of state_dict
    def get_extra_state(self) -> dict[str, Tensor]:
        bank = self.criterion.memory_bank
        return {"bank": bank.bank, "bank_ptr": bank.bank_ptr}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        bank = self.criterion.memory_bank
        bank.bank.copy_(state["bank"])
        bank.bank_ptr.copy_(state["bank_ptr"])


class CMC(_Contrastive):
    """CMC (Tian et al. 2020): lightness and colour of the same view of an image, an encoder for each.

    Each view is split in the colour space Lab; the features are those of both encoders side by side. Negatives are the
    other images of the batch, in both directions.

    Args:
        light, colour: encoders of 1 and 2 channels.
        objective, width, gather: as in :class:`SimCLR`; objectives of more than these two views cannot be used.
    """

    def __init__(
        self,
        light: Encoder,
        colour: Encoder,
        objective: Objective | str = "infonce:t=0.07",
        width: int = 128,
        gather: bool = False,
    ) -> None:
        encoder = _LabEncoder(light, colour)
        super().__init__(encoder, objective, 2, 0, width, gather)
        self.refuse("cmc", "adversarial", "mixed")
        self.views = 1  # of pixels; it is split in two
        self.heads = nn.ModuleList(heads.SimCLRProjectionHead(one.width, one.width, width) for one in (light, colour))

    def forward(self, views: Sequence[Tensor], **how: Any) -> Tensor:
        parts = zip(self.heads, self.encoder.parts(views[0]), strict=True)  # type: ignore[operator]
        z = [head(features) for head, features in parts]
        self.projections = z[0].detach(), z[1].detach()
        return self.criterion(*z, pairing="symmetric", **how)  # type: ignore[no-any-return]


class _LabEncoder(nn.Module):
    def __init__(self, light: Encoder, colour: Encoder) -> None:
        super().__init__()
        self.light, self.colour = light, colour
        self.width = light.width + colour.width

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lab = to_lab(x)
        return self.light(lab[:, :1] / 50 - 1), self.colour(lab[:, 1:] / 50)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.parts(x), 1)


def to_lab(x: Tensor) -> Tensor:
    """CIE L*a*b* (white point D65) of sRGB pixels in ``[0, 1]``, ``(B, 3, H, W)``; L is in ``[0, 100]``."""
    x = widen(x)
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055).clamp(min=0) ** 2.4, x / 12.92)
    # rows are X, Y, Z of the white point's share
    matrix = x.new_tensor(
        [[0.412453 / 0.95047, 0.357580 / 0.95047, 0.180423 / 0.95047],
         [0.212671, 0.715160, 0.072169],
         [0.019334 / 1.08883, 0.119193 / 1.08883, 0.950227 / 1.08883]]
    )  # fmt: skip
    xyz = torch.einsum("rc,bchw->brhw", matrix, linear)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-8) ** (1 / 3), 7.787 * xyz + 16 / 116)
    fx, fy, fz = f.unbind(1)
    return torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], 1)


class SwAV(Method):
    """SwAV (Caron et al. 2020) with two full-size crops and lightly's own head, prototypes and loss: the baseline from
    outside of the contrastive family in LMCL's Table 2. It has no objective.

    Args:
        encoder: with a ``width``.
        width: of the projection.
        prototypes: number of clusters.
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
        loss: Tensor = self.criterion([self.prototypes(one) for one in z], [])
        return loss


METHODS = ("simclr", "moco", "cmc", "swav")


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
    """The method of that name with an encoder of that name; see the classes.

    Args:
        channels: of the first layer of the backbone ``conv4``, at least 1.
    """
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"channels must be a whole number of at least 1, got {channels!r}.")
    if method not in METHODS:
        raise ValueError(f"method: unknown method {method!r}.{nearest(str(method), METHODS)}")
    if method == "swav":
        return SwAV(Encoder(backbone, size, 3, channels), width, prototypes)
    objective = as_objective("infonce" if objective is None else objective)
    if method == "cmc":
        if views not in (None, 2) or (objective.views or 2) > 2:
            raise ValueError("views: cmc has two, lightness and colour.")
        light, colour = (Encoder(backbone, size, of, channels) for of in (1, 2))
        return CMC(light, colour, objective, width, gather)
    if method == "moco":
        return MoCo(Encoder(backbone, size, 3, channels), objective, views, width, queue, momentum, gather)
    return SimCLR(Encoder(backbone, size, 3, channels), objective, views, width, epsilon, mixed, gather)
