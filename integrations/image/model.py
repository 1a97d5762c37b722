"""Encoders, and the methods that train them with any objective: SimCLR and MoCo v2."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from lightly.models.modules import heads
from lightly.models.utils import batch_shuffle, batch_unshuffle, deactivate_requires_grad, update_momentum
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock
from torchvision.ops import Conv2dNormActivation

import counterpoint as cp
from counterpoint.base import Objective
from counterpoint.plugins.lightly import ContrastiveLoss
from counterpoint.vectors import unit, widen
from counterpoint.views import evaluation_mode

from .settings import Settings, check_backbone

DEFAULTS = Settings()
SMALL = 64  # pixels; up to this size a ResNet gets the stem of the CIFAR papers
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10


class Encoder(nn.Module):
    """Map images in ``[0, 1]`` to features. Standardization happens inside, so attacks act on pixels.

    Args:
        backbone: ``conv4`` or ``resnet8``, small networks for a CPU; ``resnet18``, ``resnet50`` or any other classifier
            of ``torchvision.models``.
        size: of the images in pixels. ResNets for up to 64 pixels begin with a 3 x 3 convolution and no pooling.
        channels: of the first layer of ``conv4`` and ``resnet8``.
    """

    def __init__(self, backbone: str = "resnet18", size: int = 32, channels: int = 32) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN).view(-1, 1, 1), False)
        self.register_buffer("std", torch.tensor(STD).view(-1, 1, 1), False)
        self.network = _network(backbone, size, channels)
        with torch.no_grad(), evaluation_mode(self):
            try:
                self.width = self(torch.zeros(1, 3, max(size, 8), max(size, 8))).shape[1]
            except (RuntimeError, AssertionError, ValueError) as error:
                why = str(error).partition("\n")[0]
                expected = f"takes no images of {size} pixels; try --size 224"
                raise ValueError(f"backbone: {backbone} {expected} ({why})") from error

    def forward(self, x: Tensor) -> Tensor:
        """``(B, width)`` features."""
        return self.network((x - self.mean) / self.std).flatten(1)  # type: ignore[no-any-return]


def _network(name: str, size: int, channels: int) -> nn.Module:
    if name == "conv4":
        widths = pairwise((3, channels, 2 * channels, 4 * channels, 8 * channels))
        return nn.Sequential(*(Conv2dNormActivation(*pair, stride=2) for pair in widths), nn.AdaptiveAvgPool2d(1))
    if name == "resnet8":  # the least of the CIFAR family of He et al. 2016
        stages = (channels, channels, 2 * channels, 4 * channels)
        shrink = partial(Conv2dNormActivation, kernel_size=1, stride=2, activation_layer=None)
        blocks = (BasicBlock(a, b, b // a, shrink(a, b) if a < b else None) for a, b in pairwise(stages))
        return nn.Sequential(Conv2dNormActivation(3, channels), *blocks, nn.AdaptiveAvgPool2d(1))
    check_backbone(name)
    network: nn.Module = models.get_model(name, weights=None)
    if isinstance(network, models.ResNet) and size <= SMALL:
        network.conv1 = nn.Conv2d(3, network.conv1.out_channels, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    linear = [key for key, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError(f"backbone: {name} has no linear classifier to take off; expected another network.")
    parent, _, attribute = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    return network


class Method(nn.Module):
    """Encoder, projection head and criterion, trained together; call it with the views of a batch to get the loss."""

    perturbs = False  # whether it computes the adversarial and mixed views that some objectives need

    def __init__(self, encoder: nn.Module, objective: Objective | str, settings: Settings, bank: int = 0) -> None:
        super().__init__()
        if not hasattr(encoder, "width"):
            raise TypeError(f"encoder: {type(encoder).__name__} has no width, the number of its features; set it.")
        self.encoder, self.settings = encoder, settings  # the encoder is evaluated, from images in [0, 1]
        self.criterion = ContrastiveLoss(objective, (bank, settings.width) if bank else 0)
        self.objective = self.criterion.objective
        self.views = settings.views or self.objective.views or 2
        if self.objective.views not in (None, self.views):
            raise ValueError(f"views: {self.objective} asks for {self.objective.views} views, got {self.views}.")
        missing = sorted(self.objective.needs.intersection(("adversarial", "mixed")))
        if missing and not self.perturbs:
            method, names = type(self).__name__.lower(), " or ".join(missing)
            raise ValueError(f"{method} makes no {names} views, which {self.objective} needs; use simclr.")


class SimCLR(Method):
    """SimCLR (Chen et al. 2020, https://arxiv.org/abs/2002.05709): one encoder and a head of two layers for all views.

    Objectives that need them get an adversarial view, searched around the second view, and mixtures of second views.
    The encoder is a module with an attribute ``width``, the number of its features.
    """

    perturbs = True

    def __init__(
        self, encoder: nn.Module, objective: Objective | str = "infonce", settings: Settings = DEFAULTS
    ) -> None:
        super().__init__(encoder, objective, settings)
        self.head = heads.SimCLRProjectionHead(encoder.width, encoder.width, settings.width)
        self.generator: torch.Generator | None = None

    def forward(self, views: Sequence[Tensor], **options: object) -> Tensor:
        """Compute the loss; keyword arguments are passed to the objective (``ids``, ``labels``, ``prior``)."""
        project = nn.Sequential(self.encoder, self.head)
        z = [project(view) for view in views]
        if needs := self.objective.needs:
            epsilon = self.settings.epsilon if "adversarial" in needs else None
            mixed = min(self.settings.mixed, len(z[0]) - 1) if "mixed" in needs else 0
            perturbed = partial(cp.views.perturbed, project, views[0], views[1], self.objective, clip=(0.0, 1.0))
            options |= perturbed(epsilon=epsilon, mixed=mixed, generator=self.generator)
        return self.criterion(*z, **options)  # type: ignore[no-any-return]


class MoCo(Method):
    """MoCo v2 (Chen et al. 2020, https://arxiv.org/abs/2003.04297): queries, keys of a momentum encoder, and a queue.

    The queue is lightly's memory bank. With two views the first is the query, the second the key. An objective of
    several views (ArCL's Algorithm 2) gets queries and keys of all views, and the keys of the first enter the queue.
    """

    def __init__(
        self, encoder: nn.Module, objective: Objective | str = "infonce:t=0.2", settings: Settings = DEFAULTS
    ) -> None:
        super().__init__(encoder, objective, settings, settings.queue)
        self.several = self.views > 2 or self.objective.views is not None
        self.head = heads.MoCoProjectionHead(encoder.width, encoder.width, settings.width)
        self.key_encoder, self.key_head = copy.deepcopy(self.encoder), copy.deepcopy(self.head)
        deactivate_requires_grad(self.key_encoder)
        deactivate_requires_grad(self.key_head)
        bank = self.criterion.memory_bank
        for name, buffer in list(bank.named_buffers()):  # lightly leaves them out of the state_dict
            bank.register_buffer(name, buffer)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        if self.training:
            update_momentum(self.encoder, self.key_encoder, self.settings.momentum)
            update_momentum(self.head, self.key_head, self.settings.momentum)
        query_views, key_views = (views, views) if self.several else (views[:1], views[1:])
        queries = [self.head(self.encoder(view)) for view in query_views]
        keys = [self.key(view) for view in key_views]
        if not self.several:
            return self.criterion(queries[0], keys[0])  # type: ignore[no-any-return]
        _, queue = self.criterion.memory_bank(unit(widen(keys[0])), update=self.training)
        return self.objective(torch.stack(queries, 1), torch.stack(keys, 1), queue=queue.T)

    @torch.no_grad()
    def key(self, x: Tensor) -> Tensor:
        """Project by the key encoder, in another order, so that batch norms do not reveal the positives."""
        x, order = batch_shuffle(x)
        return batch_unshuffle(self.key_head(self.key_encoder(x)), order)  # type: ignore[no-any-return]


def build(settings: Settings, objective: Objective | str | None = None, size: int = 32) -> Method:
    """Build the method and the encoder of these settings, for images of ``size`` pixels."""
    encoder = Encoder(settings.backbone, size, settings.channels)
    method = {"simclr": SimCLR, "moco": MoCo}[settings.method]
    return method(encoder, "infonce" if objective is None else objective, settings)
