"""SimCLR's random views of a whole batch at once.

On few cores, augmentation is the bottleneck of contrastive learning on small images. So :class:`Recipe` has the
distribution of lightly's ``SimCLRViewTransform``, but draws the parameters of all images at once; the pixels are the
same, except that PIL rounds to whole gray levels after each step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..domain import check, check_choice, setting

RATIO = (3 / 4, 4 / 3)  # aspect ratio of a crop, as in torchvision and lightly
ATTEMPTS = 10  # to draw a crop that fits
CACHED = 2**16  # pixels that a CPU processes at a time, so that they stay in its cache
BOXES = 3  # PIL's Gaussian blur is this many box blurs
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray, as in PIL


class Draws(NamedTuple):
    """The random parameters of a batch of views, a row per image."""

    crop: Tensor  # (B, 4) top, left, height, width in pixels
    flip: Tensor  # (B,) bool
    jitter: Tensor  # (B,) bool
    order: Tensor  # (B, 4) of brightness, contrast, saturation and hue
    factors: Tensor  # (B, 4) strength of each
    grey: Tensor  # (B,) bool
    blur: Tensor  # (B,) standard deviation, 0 for none


@dataclass(frozen=True)
class Recipe:
    """A distribution of views: crop, flip, color jitter, gray, blur, in this order. Pixels stay in ``[0, 1]``.

    Args:
        size: of a view in pixels, or its height and width; at least 1.
        min_scale: smallest share of the image's area in a crop, in ``(0, 1]``.
        flip: probability of a horizontal flip.
        jitter: strengths of brightness, contrast, saturation (at least 0) and hue (in ``[0, 0.5]``).
        jitter_prob, grey, blur: probabilities.
        sigmas: range of the blur's standard deviation in pixels.
    """

    size: int | tuple[int, int] = setting(32)
    min_scale: float = setting(0.08, above=0, high=1)
    flip: float = setting(0.5, low=0, high=1)
    jitter: tuple[float, float, float, float] = setting((0.4, 0.4, 0.4, 0.1))
    jitter_prob: float = setting(0.8, low=0, high=1)
    grey: float = setting(0.2, low=0, high=1)
    blur: float = setting(0.0, low=0, high=1)
    sigmas: tuple[float, float] = setting((0.1, 2.0))

    def __post_init__(self) -> None:
        check(Recipe, vars(self))
        if len(self.sides) != 2 or any(not isinstance(side, int) or side < 1 for side in self.sides):
            raise ValueError(f"Recipe: size must be one or two whole numbers of at least 1, got {self.size!r}.")
        if len(self.jitter) != 4 or min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ValueError(f"Recipe: jitter must be four strengths >= 0, hue <= 0.5, got {self.jitter!r}.")
        if not 0 <= self.sigmas[0] <= self.sigmas[1]:
            raise ValueError(f"Recipe: sigmas must be a range of numbers >= 0, got {self.sigmas!r}.")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a view."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw views ``(B, 3, *sides)`` in ``[0, 1]`` of ``uint8`` images ``(B, 3, height, width)``, on their device.

        Small images are enlarged. The generator is on the CPU, so that views do not depend on the device.
        """
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"Recipe: expected uint8 (B, 3, H, W), got {images.dtype} {tuple(images.shape)}.")
        with torch.autocast(images.device.type, enabled=False):  # half precision is coarser than pixels
            return self.apply(images, self.draw(len(images), images.shape[2], images.shape[3], generator))

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None = None) -> Draws:
        """Draw random parameters from the distributions of torchvision and lightly."""

        def uniform(*shape: int, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
            return torch.rand(count, *shape, generator=generator) * (high - low) + low

        strength = torch.tensor(self.jitter)
        low = torch.cat([(1 - strength[:3]).clamp(min=0), -strength[3:]])
        high = torch.cat([1 + strength[:3], strength[3:]])
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
        """Compute the views of these parameters, ``(B, 3, *sides)``."""
        height, width = self.sides
        chunk = max(1, CACHED // (height * width)) if images.device.type == "cpu" else len(images)
        x = _crop(images, draws, height, width, chunk)

        def change(mask: Tensor, step: Callable[..., Tensor], *parameters: Tensor) -> None:
            for rows in mask.nonzero().squeeze(1).split(chunk):  # on the CPU, which avoids synchronizing with a GPU
                index = rows.to(x.device)
                x[index] = step(x.index_select(0, index), *(values[rows].to(x.device) for values in parameters))

        for place in range(len(JITTER)):
            for kind, (step, strength) in enumerate(zip(JITTER, self.jitter, strict=True)):
                if strength:
                    mask = draws.jitter & (draws.order[:, place] == kind)
                    change(mask, step, draws.factors[:, kind, None, None, None])
        change(draws.grey, _luma)
        change(draws.blur > 0, gaussian_blur, draws.blur)
        return x


# s = 0.5 in SimCLR's color distortion, as in the code that DCL, HCL, ADNCE and IntNaCl share for CIFAR
RECIPES = {
    "cifar": Recipe(),
    "cifar-blur": Recipe(blur=0.3),
    "simclr": Recipe(jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5),
    "moco": Recipe(min_scale=0.2, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5),
    "digits": Recipe(min_scale=0.4, flip=0.0, jitter=(0.4, 0.4, 0.0, 0.0), grey=0.0),
    "none": Recipe(min_scale=1.0, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.0), grey=0.0),
}
"""``cifar-blur`` blurs 30 % of the images, the positive noise of the debiased positives' Figure 3."""


def recipe(name: str, size: int | tuple[int, int] = 32) -> Recipe:
    """The recipe of that name, for views of ``size`` pixels."""
    check_choice("augment", name, RECIPES)
    return replace(RECIPES[name], size=size)


def _crops(area: Tensor, shape: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Crop as torchvision does: the first of ten draws of area and ratio that fits, else the largest center crop."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = (shape * (high - low) + low).exp()
    w = (area * height * width * ratio).sqrt().round()
    h = (area * height * width / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    top = (place[:, 0] * (height - h + 1)).floor()
    crops = torch.stack([top, (place[:, 1] * (width - w + 1)).floor(), h, w], 1)
    tall, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    center = torch.tensor([(height - tall) // 2, (width - wide) // 2, tall, wide], dtype=crops.dtype)
    return torch.where(fits.any(1, keepdim=True), crops, center)


def _crop(images: Tensor, draws: Draws, out_height: int, out_width: int, chunk: int) -> Tensor:
    """Crop, resize and flip with two matrix products: each step is linear along one axis."""
    top, left, h, w = draws.crop.unbind(1)
    count, _, height, width = images.shape
    rows = _resampling(top, h, height, out_height, torch.tensor([False])).div_(255).to(images.device)
    columns = _resampling(left, w, width, out_width, draws.flip).to(images.device)
    views = rows.new_empty(count, 3, out_height, out_width)
    for pixels, row, column, view in zip(*(x.split(chunk) for x in (images, rows, columns, views)), strict=True):
        _separable(pixels.float(), row, column, view)
    return views


def _separable(x: Tensor, rows: Tensor, columns: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply the rows and the columns of each image by its matrices."""
    wide = (x.flatten(1, 2) @ columns.mT).unflatten(1, (3, x.shape[2]))
    return torch.matmul(rows.unsqueeze(1), wide, out=out).clamp_(0, 1)


def _resampling(start: Tensor, length: Tensor, full: int, size: int, mirrored: Tensor) -> Tensor:
    """``(B, size, full)`` weights of PIL's bilinear filter, which averages when it shrinks."""
    pixel = torch.arange(full, device=start.device) + 0.5 - start.unsqueeze(1)
    inside = ((pixel > 0) & (pixel < length.unsqueeze(1))).to(pixel.dtype)
    scale = (length / size).unsqueeze(1)
    center = (torch.arange(size, device=start.device) + 0.5) * scale
    center = torch.where(mirrored.unsqueeze(1), length.unsqueeze(1) - center, center)
    away = (pixel.unsqueeze(1) - center.unsqueeze(2)).abs_().div_(scale.clamp(min=1).unsqueeze(2))
    weight = away.neg_().add_(1).clamp_(min=0).mul_(inside.unsqueeze(1))
    return weight / weight.sum(2, keepdim=True)


def _luma(x: Tensor) -> Tensor:
    red, green, blue = x.unsqueeze(2).unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return x.mul_(factor).add_((1 - factor) * other).clamp_(0, 1)


def _hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue by ``turn``, a share of the full circle; value and saturation stay."""
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = value - low
    red, green, blue = x.unsqueeze(2).unbind(1)
    # hue in sixths of the circle: positive from red over yellow to cyan, negative over magenta
    hue = (1 + (green + blue - red - low) / chroma.clamp(min=torch.finfo(x.dtype).tiny)).copysign_(green - blue)
    # the distance of each primary from the hue determines how much of the chroma it lacks
    away = hue / 6 + turn + hue.new_tensor([3 / 6, 1 / 6, -1 / 6]).view(3, 1, 1)
    return value - chroma * away.sub_(away.round()).abs_().mul_(-6).add_(2).clamp_(0, 1)


JITTER: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, factor: x.mul_(factor).clamp_(max=1),
    lambda x, factor: _blend(x, _luma(x).mean((2, 3), keepdim=True), factor),
    lambda x, factor: _blend(x, _luma(x), factor),
    _hue,
)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur as PIL does, by three box blurs of the same variance, with a standard deviation for each image."""
    height, width = x.shape[2:]
    rows = _blurring(sigma, height)
    return _separable(x, rows, rows if width == height else _blurring(sigma, width))


def _blurring(sigma: Tensor, size: int) -> Tensor:
    """``(B, size, size)`` weights of the box blurs, which repeat the image's edges."""
    variance = sigma**2 / BOXES
    whole = ((12 * variance + 1).sqrt() / 2 - 0.5).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    radius = (whole + part).unsqueeze(1)
    pixel = torch.arange(size, device=sigma.device)
    # partially covered pixels count in part
    box = (radius.unsqueeze(1) + 1 - (pixel.unsqueeze(1) - pixel).abs()).clamp_(0, 1)
    box[:, :, 0] += (radius - pixel).clamp_(min=0)
    box[:, :, -1] += (radius - pixel.flip(0)).clamp_(min=0)
    return torch.linalg.matrix_power(box.div_(2 * radius.unsqueeze(1) + 1), BOXES)  # type: ignore[no-any-return]
