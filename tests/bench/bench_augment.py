"""Images per second of two views of CIFAR-size images: lightly's per-image loader, and whole batches.

Both feed batches of the same recipe, interleaved A B B A, with as many cores (worker processes there, threads here).
On a machine with other work, the time that the processors spent (all processes together) says more than the clock.

    python tests/bench/bench_augment.py [--images 4096] [--cores 2] [--recipe cifar]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch

from counterpoint.integrations.image import ImageSet, Pretraining, Settings, build, loader, recipe
from counterpoint.integrations.image.augment import RECIPES


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
    data = ImageSet("noise", (255 * x).byte(), torch.zeros(given.images, dtype=torch.long))
    generator = torch.Generator().manual_seed(0)

    def module(**settings: Any) -> Pretraining:
        return Pretraining(build(Settings(backbone="conv4", batch=given.batch, **settings)), made)

    def per_image() -> None:
        workers = given.cores if given.cores > 1 else 0
        for views, _ in loader(data, module(path="per-image", workers=workers)):
            assert len(views) == 2

    def batched() -> None:
        for images, _ in loader(data, module()):
            assert len([made(images, generator) for _ in range(2)]) == 2

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
