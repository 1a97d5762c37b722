"""Images per second of two views of CIFAR-size images: lightly's per-image loader, and whole batches.

Both feed batches of the same recipe, interleaved A B B A, with as many cores (worker processes there, threads here).
On a machine with other work, the time that the processors spent (all processes together) says more than the clock.

    python tests/bench/bench_augment.py [--images 4096] [--cores 2] [--recipe cifar]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_pil_image

from counterpoint.integrations.image import recipe
from counterpoint.integrations.image.augment import RECIPES

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from lightly_views import lightlys


class Views(Dataset[Any]):
    """Two views of each image by lightly's transform."""

    def __init__(self, images: torch.Tensor, transform: Any) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> list[torch.Tensor]:
        image = to_pil_image(self.images[row])
        return [self.transform(image) for _ in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--recipe", choices=RECIPES, default="cifar")
    parser.add_argument("--size", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.cores)
    made = recipe(given.recipe, given.size)
    x = torch.nn.functional.interpolate(torch.rand(given.images, 3, 8, 8), given.size, mode="bicubic").clamp(0, 1)
    images = (255 * x).byte()
    generator = torch.Generator().manual_seed(0)

    def per_image() -> None:
        workers = given.cores if given.cores > 1 else 0
        for views in DataLoader(Views(images, lightlys(made)), given.batch, num_workers=workers):
            assert len(views) == 2

    def batched() -> None:
        for part in images.split(given.batch):
            assert len([made(part, generator) for _ in range(2)]) == 2

    spent: dict[str, list[float]] = {"per-image": [], "batched": []}
    worked: dict[str, list[float]] = {"per-image": [], "batched": []}
    batched()
    for name in ("per-image", "batched", "batched", "per-image"):
        start, before = time.perf_counter(), sum(os.times()[:4])
        (per_image if name == "per-image" else batched)()
        spent[name].append(time.perf_counter() - start)
        worked[name].append(sum(os.times()[:4]) - before)
    print(f"{given.images} images, two views each, recipe {given.recipe}, {given.cores} cores")
    for what, seconds in (("second", spent), ("CPU second", worked)):
        for name, each in seconds.items():
            speeds = ", ".join(f"{given.images / one:.0f}" for one in each)
            print(f"{name:10}  {speeds} images per {what}")
        print(f"batched / per-image, by {what}s: {sum(seconds['per-image']) / sum(seconds['batched']):.1f}")


if __name__ == "__main__":
    main()
