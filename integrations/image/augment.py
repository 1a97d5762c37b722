"""SimCLR's random views, image by image with lightly's transforms, or for a whole batch at once.

On few cores the augmentation is the bottleneck of contrastive learning on small images. :class:`Recipe` therefore has
two forms of one distribution: :meth:`Recipe.per_image` is lightly's ``SimCLRViewTransform``, and calling the recipe
with a batch of ``uint8`` images draws the same parameters for all of them at once and computes the same pixels, up to
the rounding to whole grey levels that PIL does after each of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoint.hyper import nearest

RATIO = (3 / 4, 4 / 3)  # of a crop's sides, in torchvision and so in lightly
ATTEMPTS = 10  # to find a crop that fits
BOXES = 3  # PIL's Gaussian blur is this many box blurs
LUMA = (0.299, 0.587, 0.114)  # grey, as PIL has it


class Draws(NamedTuple):
    """The random parameters of a batch of views, a row per image."""

    crop: Tensor  # (B, 4) top, left, height, width in pixels
    flip: Tensor  # (B,) bool
    jitter: Tensor  # (B,) bool
    order: Tensor  # (B, 4) of brightness, contrast, saturation and hue
    factors: Tensor  # (B, 4) how much of each
    grey: Tensor  # (B,) bool
    blur: Tensor  # (B,) standard deviation, 0 for none


@dataclass(frozen=True)
class Recipe:
    """A distribution of views: crop, flip, colour jitter, grey, blur, in this order. The pixels stay in ``[0, 1]``.

    Args:
        size: of a view in pixels, or its height and width; at least 1.
        min_scale: smallest share of the image's area that a crop keeps, in ``(0, 1]``.
        flip: probability of a horizontal flip.
        jitter: strengths of brightness, contrast, saturation (at least 0) and hue (in ``[0, 0.5]``).
        jitter_prob, grey, blur: probabilities.
        sigmas: range of the blur's standard deviation in pixels.
    """

    size: int | tuple[int, int] = 32
    min_scale: float = 0.08
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_prob: float = 0.8
    grey: float = 0.2
    blur: float = 0.0
    sigmas: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        if len(self.sides) != 2 or any(not isinstance(side, int) or side < 1 for side in self.sides):
            raise ValueError(f"Recipe: size must be one or two whole numbers of at least 1, got {self.size!r}.")
        if not 0 < self.min_scale <= 1:
            raise ValueError(f"Recipe: min_scale must be in (0, 1], got {self.min_scale!r}.")
        for name in ("flip", "jitter_prob", "grey", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Recipe: {name} is a probability, got {getattr(self, name)!r}.")
        if len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ValueError(f"Recipe: jitter must be four strengths >= 0, hue <= 0.5, got {self.jitter!r}.")
        if not 0 <= self.sigmas[0] <= self.sigmas[1]:
            raise ValueError(f"Recipe: sigmas must be a range of numbers >= 0, got {self.sigmas!r}.")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a view."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def per_image(self) -> Callable[[Any], Tensor]:
        """lightly's transform, from a PIL image to one view."""
        from lightly.transforms.simclr_transform import SimCLRViewTransform

        names = ("cj_bright", "cj_contrast", "cj_sat", "cj_hue")
        return SimCLRViewTransform(  # type: ignore[no-any-return]
            input_size=self.sides,
            min_scale=self.min_scale,
            hf_prob=self.flip,
            cj_prob=self.jitter_prob,
            **dict(zip(names, self.jitter, strict=True)),
            random_gray_scale=self.grey,
            gaussian_blur=self.blur,
            sigmas=self.sigmas,
            normalize=None,
        )

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """``(B, 3, *sides)`` views in ``[0, 1]`` of ``uint8`` images ``(B, 3, height, width)``, on their device.

        Args:
            images: any height and width; crops of images that are smaller than ``size`` are enlarged.
            generator: of the CPU, so that views do not depend on the device.
        """
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"Recipe: expected uint8 (B, 3, H, W), got {images.dtype} {tuple(images.shape)}.")
        with torch.autocast(images.device.type, enabled=False):  # pixels are finer than half precision is
            return self.apply(images, self.draw(len(images), images.shape[2], images.shape[3], generator))

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None = None) -> Draws:
        """Random parameters, distributed as torchvision's and lightly's are."""

        def uniform(*shape: int, low: Any = 0.0, high: Any = 1.0) -> Tensor:
            drawn: Tensor = torch.rand(count, *shape, generator=generator) * (high - low) + low
            return drawn

        strength = torch.tensor(self.jitter)
        low, high = (
            torch.cat([(1 - strength[:3]).clamp(min=0), -strength[3:]]),
            torch.cat([1 + strength[:3], strength[3:]]),
        )
        return Draws(
            crop=_crops(uniform(ATTEMPTS, low=self.min_scale), uniform(ATTEMPTS), uniform(2), height, width),
            flip=uniform() < self.flip,
            jitter=uniform() < self.jitter_prob,
            order=uniform(4).argsort(1),
            factors=uniform(4, low=low, high=high),
            grey=uniform() < self.grey,
            blur=(uniform() < self.blur) * uniform(low=self.sigmas[0], high=self.sigmas[1]),
        )

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The views that these parameters make."""
        device = images.device  # rows are found on the CPU: looking for them on a GPU would make it wait
        x = _crop(images.float() / 255, draws, *self.sides)
        steps = [(op, strength) for op, strength in zip(JITTER, self.jitter, strict=True)]
        for place in range(len(steps)):
            for kind, (op, strength) in enumerate(steps):
                rows = (draws.jitter & (draws.order[:, place] == kind)).nonzero().squeeze(1)
                if strength and len(rows):
                    factors = draws.factors[rows, kind].view(-1, 1, 1, 1).to(device)
                    rows = rows.to(device)
                    x[rows] = op(x[rows], factors)
        rows = draws.grey.nonzero().squeeze(1).to(device)
        x[rows] = _luma(x[rows]).expand(-1, 3, -1, -1)
        rows = (draws.blur > 0).nonzero().squeeze(1)
        if len(rows):
            sigmas, rows = draws.blur[rows], rows.to(device)
            x[rows] = gaussian_blur(x[rows], sigmas)
        return x


# s = 0.5 in SimCLR's colour distortion, as the code that DCL, HCL, ADNCE and IntNaCl share has it for CIFAR
CIFAR = Recipe()
RECIPES = {
    "cifar": CIFAR,
    "cifar-blur": replace(CIFAR, blur=0.3),
    "simclr": Recipe(jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5),
    "moco": Recipe(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5),
    "digits": Recipe(min_scale=0.4, flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
    "none": Recipe(min_scale=1.0, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.0), grey=0.0),
}
"""``cifar-blur`` blurs 30 % of the images, the positive noise of the debiased positives' Figure 3."""


def recipe(name: str, size: int | tuple[int, int] = 32) -> Recipe:
    """The recipe of that name, for views of ``size`` pixels."""
    if name not in RECIPES:
        raise ValueError(f"augment: unknown recipe {name!r}.{nearest(str(name), RECIPES)}")
    return replace(RECIPES[name], size=size)


# ---- crop --------------------------------------------------------------------------------------


def _crops(area: Tensor, shape: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """torchvision's rule: the first of ten draws of area and ratio that fits, or else the largest centre crop."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = (shape * (high - low) + low).exp()
    w = (area * height * width * ratio).sqrt().round()
    h = (area * height * width / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    top = (place[:, 0] * (height - h + 1)).floor()
    left = (place[:, 1] * (width - w + 1)).floor()
    found = torch.stack([top, left, h, w], 1)
    tall, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    centre = torch.tensor([(height - tall) // 2, (width - wide) // 2, tall, wide], dtype=found.dtype)
    return torch.where(fits.any(1, keepdim=True), found, centre)


def _crop(images: Tensor, draws: Draws, out_height: int, out_width: int) -> Tensor:
    """Crop, resize and flip in one: each is linear along one axis, so two products of matrices do it."""
    top, left, h, w = draws.crop.unbind(1)
    rows = _resampling(top, h, images.shape[2], out_height).to(images.device)
    columns = _resampling(left, w, images.shape[3], out_width)
    columns = torch.where(draws.flip.view(-1, 1, 1), columns.flip(1), columns).to(images.device)
    count, _, height, width = images.shape
    wide = images.reshape(count, 3 * height, width) @ columns.mT
    return (rows.unsqueeze(1) @ wide.view(count, 3, height, out_width)).clamp_(0, 1)


def _resampling(start: Tensor, length: Tensor, full: int, size: int) -> Tensor:
    """``(B, size, full)`` weights of PIL's bilinear filter, which averages where it makes smaller."""
    pixel = torch.arange(full, device=start.device) - start.unsqueeze(1)
    inside = (pixel >= 0) & (pixel < length.unsqueeze(1))
    scale = (length / size).view(-1, 1, 1)
    centre = (torch.arange(size, device=start.device).view(1, -1, 1) + 0.5) * scale
    weight = (1 - (pixel.unsqueeze(1) + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0) * inside.unsqueeze(1)
    return weight / weight.sum(2, keepdim=True)


# ---- colour ------------------------------------------------------------------------------------


def _luma(x: Tensor) -> Tensor:
    return (x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    return (factor * x + (1 - factor) * other).clamp_(0, 1)


def _hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turns the hue by ``turn``, a share of the full circle; value and saturation stay."""
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    red, green, blue = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(
        red == value,
        (green - blue) / safe,
        torch.where(green == value, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue + 6 * turn.squeeze(1)).unsqueeze(1)
    # how far each primary is from the hue, in sixths of the circle, says how much of the chroma it lacks
    away = (hue + hue.new_tensor([5.0, 3.0, 1.0]).view(3, 1, 1)).remainder_(6)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(away, 4 - away).clamp_(0, 1)


JITTER: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, factor: _blend(x, 0.0, factor),
    lambda x, factor: _blend(x, _luma(x).mean((2, 3), keepdim=True), factor),
    lambda x, factor: _blend(x, _luma(x), factor),
    _hue,
)


# ---- blur --------------------------------------------------------------------------------------


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """PIL's Gaussian blur, three box blurs of the same variance, with a standard deviation for each image."""
    rows, columns = _blurring(sigma, x.shape[2]).to(x.device), _blurring(sigma, x.shape[3]).to(x.device)
    count, _, height, width = x.shape
    wide = (x.reshape(count, 3 * height, width) @ columns.mT).view(count, 3, height, width)
    return (rows.unsqueeze(1) @ wide).clamp_(0, 1)


def _blurring(sigma: Tensor, size: int) -> Tensor:
    """``(B, size, size)`` weights of the box blurs; beyond its edges the image goes on as at the edge."""
    variance = sigma.double() ** 2 / BOXES
    whole = ((12 * variance + 1).sqrt() / 2 - 0.5).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    reach = int(whole.max()) + 1
    offset = torch.arange(-reach, reach + 1, device=sigma.device)
    radius = (whole + part).unsqueeze(1)
    # a pixel that the box covers in part counts in part
    kernel = (radius + 1 - offset.abs()).clamp(0, 1) / (2 * radius + 1)
    target = (torch.arange(size, device=sigma.device).unsqueeze(1) + offset).clamp(0, size - 1)
    box = torch.zeros(len(sigma), size, size, dtype=kernel.dtype, device=sigma.device)
    box.scatter_add_(2, target.expand(len(sigma), -1, -1), kernel.unsqueeze(1).expand(-1, size, -1).contiguous())
    blurring: Tensor = torch.linalg.matrix_power(box, BOXES).float()
    return blurring
