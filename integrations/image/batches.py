"""Batches in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from ..domain import check_choice
from .augment import Recipe
from .image_set import ImageSet
from .settings import PATHS, check_fits


class _Pixels(Dataset[Any]):
    """Batches of ``uint8`` images, or, with a transform of lightly's, views of single images."""

    def __init__(self, data: ImageSet, transform: Callable[[Any], Tensor] | None, views: int) -> None:
        self.data, self.transform, self.views = data, transform, views

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> Any:
        if (transform := self.transform) is None:
            return self.data.x[rows], self.data.y[rows]
        images = ((self.data.pil(row), self.data.y[row]) for row in rows)
        return [([transform(image) for _ in range(self.views)], y) for image, y in images]


def loader(
    data: ImageSet,
    batch: int,
    recipe: Recipe,
    views: int = 2,
    path: str = "batched",
    seed: int = 0,
    workers: int = 0,
    processes: int = 1,
    rank: int = 0,
) -> Any:
    """Load batches in an order that depends on seed and epoch alone; an incomplete last batch is dropped.

    Args:
        batch: images per step and process, at least 2.
        path: ``batched`` yields ``uint8`` images for :class:`~.lightning_module.Pretraining` to augment, ``per-image``
            views from lightly's transforms.
        workers: processes that load; more than 0 only help ``per-image``.
        processes, rank: the number of processes that train together, and the index of this one.
    """
    check_choice("path", path, PATHS)
    if not isinstance(batch, int) or batch < 2:
        raise ValueError(f"batch: at least 2 images are needed to compare, got {batch!r}.")
    check_fits(data.name, batch, processes, len(data))
    batched = path == "batched"
    dataset = _Pixels(data, None if batched else recipe.per_image(), views)
    sampler = _Sampler(dataset, processes, rank, seed=seed, drop_last=True)
    return DataLoader(
        dataset,
        batch,
        sampler=sampler,
        drop_last=True,
        num_workers=0 if batched else workers,
        collate_fn=_identity if batched else None,
        generator=sampler.generator,
    )


def _identity(batch: Any) -> Any:
    return batch


class _Sampler(DistributedSampler[Any]):
    """The order of an epoch, and the generator that seeds its worker processes; both depend on seed and epoch alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generator = torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.generator.manual_seed(self.seed + epoch)
