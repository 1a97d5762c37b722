"""``ImageSet``: images in memory, all of one size, with their classes."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import center_crop, resize

from .. import store

MOST_NAMED = 4  # unreadable files in a warning
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # PIL raises each of these


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images of one size, with their classes.

    >>> from counterpoint.integrations import image
    >>> image.ImageSet("mine", torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    ImageSet('mine', 4 images of 8 x 8 pixels, 2 classes)
    """

    name: str  # of the data set
    x: Tensor  # (N, 3, height, width) uint8
    y: Tensor  # (N,) classes, -1 where there is none
    classes: tuple[str, ...] = ()  # their names
    note: str = ""  # what a reader of results on this data must know
    skipped: tuple[str, ...] = ()  # files left out because they could not be read

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"ImageSet(name, x, y): expected a name first, got {type(self.name).__name__}.")
        if not isinstance(self.x, torch.Tensor):
            fix = ": torch.from_numpy(x)." if isinstance(self.x, np.ndarray) else "."
            raise TypeError(f"{self.name}: expected a tensor of images, got {type(self.x).__name__}{fix}")
        if self.x.dtype != torch.uint8 or self.x.dim() != 4 or self.x.shape[1] != 3 or len(self.x) == 0:
            within = self.x.is_floating_point() and len(self.x) > 0 and bool((self.x.min() >= 0) & (self.x.max() <= 1))
            scaled = " Of numbers from 0 to 1: (x * 255).round().byte()." * within
            scaled += " Normalize in the encoder, not before." * (self.x.is_floating_point() and not within)
            scaled += " The colors come second: x.permute(0, 3, 1, 2)." * (self.x.shape[3:] == (3,))
            if self.x.dim() == 2:
                scaled = " Features go to image.knn(z, y, z_test, y_test) or image.linear_probe(z, y, classes)."
            found = f"{self.x.dtype} {tuple(self.x.shape)}"
            raise ValueError(f"{self.name}: expected uint8 (N, 3, H, W), got {found}.{scaled}")
        if not isinstance(self.y, torch.Tensor) or self.y.is_floating_point():
            got = self.y.dtype if isinstance(self.y, torch.Tensor) else f"{type(self.y).__name__}: torch.tensor(y)"
            raise TypeError(f"{self.name}: expected a tensor of classes, of whole numbers, got {got}.")
        object.__setattr__(self, "y", self.y.long())
        if self.y.shape != (len(self.x),):
            raise ValueError(f"{self.name}: expected one class per image, got {tuple(self.y.shape)}.")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        classes = f"{len(self.classes) or len(self.y.unique())} classes" if self.labelled else "not all with a class"
        return f"ImageSet({self.name!r}, {len(self)} images of {self.size[0]} x {self.size[1]} pixels, {classes})"

    def __getitem__(self, rows: Tensor) -> ImageSet:
        return replace(self, x=self.x[rows], y=self.y[rows])

    @property
    def labelled(self) -> bool:
        return bool((self.y >= 0).all())

    def with_classes(self) -> ImageSet:
        """The images that have a class; all of them if none has (STL-10's unlabeled split mixes both)."""
        known = self.y >= 0
        return self if known.all() or not known.any() else self[known]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.x.shape[2], self.x.shape[3]

    @cached_property
    def checksum(self) -> str:
        """Hash of pixels and classes, independent of the files they came from."""
        digest = hashlib.sha256(f"{tuple(self.x.shape)}".encode())
        digest.update(self.x.contiguous().numpy().tobytes())
        digest.update(self.y.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def draw(self, count: int | None, seed: int = 0) -> ImageSet:
        """Draw ``count`` images, balanced over the classes as far as possible; None returns all of them."""
        return self if count is None else self[self._balanced_rows(count, seed, lambda turn, total: turn)]

    def hold_out(self, share: float) -> tuple[ImageSet, ImageSet]:
        """Split off a ``share`` of each class; returns the remaining and the held-out images."""
        if not 0 < share < 1:
            raise ValueError(f"{self.name}: the share that is held out must be in (0, 1), got {share!r}.")
        # rank by the middles of equal parts of each class: a share of .1 takes ten of a hundred images, none of three
        held_out = self._balanced_rows(max(1, round(share * len(self))), 0, lambda turn, total: (turn + 0.5) / total)
        remaining = torch.ones(len(self), dtype=torch.bool)
        remaining[held_out] = False
        return self[remaining.nonzero().squeeze(1)], self[held_out]

    def _balanced_rows(self, count: int, seed: int, rank: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The ``count`` rows that rank first; ``rank`` maps positions in a class of a given size to numbers."""
        if not 0 < count <= len(self):
            raise ValueError(f"{self.name}: cannot draw {count} of {len(self)} images.")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        y = self.y[order]
        ranks = torch.zeros(len(self), dtype=torch.float64)
        for label in y.unique():
            total = int((y == label).sum())
            ranks[y == label] = rank(torch.arange(total, dtype=torch.float64), total)
        return order[ranks.argsort(stable=True)[:count]].sort().values


def from_pictures(
    name: str,
    count: int,
    picture: Callable[[int], tuple[Image.Image, int]],
    size: int,
    classes: Sequence[str] = (),
    note: str = "",
    title: Callable[[int], str] = "image {}".format,
) -> ImageSet:
    """Build an image set from pictures of any size and mode; unreadable ones are skipped, counted and named.

    Args:
        picture: opens the picture of a number, and returns its class too (-1 for none).
        size: side of the square in pixels: the shorter side is scaled to it, and the center is cropped.
        title: the name of a picture, for the warning.
    """
    x, y, skipped = [], [], []
    for number in store.track(range(count), f"reading {name}"):
        try:
            image, label = picture(number)
            x.append(np.array(center_crop(resize(image.convert("RGB"), [size]), [size])))  # without transparency
            y.append(label)
        except UNREADABLE:
            skipped.append(title(number))
    if not x:
        raise ValueError(f"{name}: none of the {count} images can be read.")
    if skipped:
        named = ", ".join(skipped[:MOST_NAMED]) + (", ..." if len(skipped) > MOST_NAMED else "")
        counts = f"{len(skipped)} of {count} images"
        warnings.warn(f"{name}: {counts} cannot be read and are left out: {named}", RuntimeWarning, stacklevel=3)
    stacked = torch.from_numpy(np.stack(x)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(name, stacked, torch.tensor(y), tuple(classes), note, tuple(skipped))
