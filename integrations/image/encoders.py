"""Encoders: backbones of torchvision and timm, a small one for a CPU, and CMC's pair of lightness and color."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from difflib import get_close_matches

import torch
from torch import Tensor, nn
from torchvision import models

from counterpoint.hyper import nearest
from counterpoint.vectors import widen
from counterpoint.views import evaluation_mode

from .settings import check_backbone

SMALL = 64  # pixels; up to this size a ResNet gets the stem of the CIFAR papers
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10


class Encoder(nn.Module):
    """Map images in ``[0, 1]`` to features. Standardization happens inside, so attacks act on pixels.

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
        standard = channels == 3  # LabEncoder standardizes CMC's color spaces itself
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN if standard else (0.0,) * channels).view(-1, 1, 1), False)
        self.register_buffer("std", torch.tensor(STD if standard else (1.0,) * channels).view(-1, 1, 1), False)
        self.network = _network(name, size, channels, width)
        with torch.no_grad(), evaluation_mode(self):
            self.width = self(torch.zeros(1, channels, max(size, 8), max(size, 8))).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """``(B, width)`` features."""
        features: Tensor = self.network((x - self.mean) / self.std)
        return features.flatten(1)


def _network(name: str, size: int, channels: int, width: int) -> nn.Module:
    if name == "conv4":
        return _conv4(channels, width)
    if name.startswith("timm:"):
        return _timm(name.removeprefix("timm:"), size, channels)
    check_backbone(name)
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
        close = get_close_matches(name, timm.list_models(), 5, 0)
        raise ValueError(f"backbone: timm has no model {name!r}.{nearest(name, close)}")
    options = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    try:
        network: nn.Module = timm.create_model(name, **options, img_size=size)
    except TypeError:  # convolutional networks accept any size
        network = timm.create_model(name, **options)
    return network


class LabEncoder(nn.Module):
    """CMC's two encoders, one of lightness and one of color; features are concatenated."""

    def __init__(self, light: Encoder, colour: Encoder) -> None:
        super().__init__()
        self.light, self.colour = light, colour
        self.width = light.width + colour.width

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, width)`` features of lightness, and of color."""
        lab = to_lab(x)
        return self.light(lab[:, :1] / 50 - 1), self.colour(lab[:, 1:] / 50)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.parts(x), 1)


def to_lab(x: Tensor) -> Tensor:
    """Convert sRGB pixels ``(B, 3, H, W)`` in ``[0, 1]`` to CIE L*a*b* (white point D65), with L in ``[0, 100]``."""
    x = widen(x)
    linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055).clamp(min=0) ** 2.4, x / 12.92)
    # rows: X, Y, Z relative to the white point
    matrix = x.new_tensor(
        [[0.412453 / 0.95047, 0.357580 / 0.95047, 0.180423 / 0.95047],
         [0.212671, 0.715160, 0.072169],
         [0.019334 / 1.08883, 0.119193 / 1.08883, 0.950227 / 1.08883]]
    )  # fmt: skip
    xyz = torch.einsum("rc,bchw->brhw", matrix, linear)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-8) ** (1 / 3), 7.787 * xyz + 16 / 116)
    fx, fy, fz = f.unbind(1)
    return torch.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], 1)
