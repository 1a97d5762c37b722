"""Compiles the Triton kernels for several GPUs, which needs none: python tests/support/compile_triton.py.

Prints, per GPU, kernel, width and dtype, how much of the chip's memory it takes; fails if that is more than there is.
"""

from __future__ import annotations

import itertools
import sys

import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from counterpoint.engine import kernels, triton

# compute capability, KiB on the chip
CHIPS = {"H100, H200": (90, 227), "A100": (80, 163), "RTX 30 and 40, L4, L40": (86, 99)}
WAYS = ((torch.bfloat16, "ieee"), (torch.float32, "ieee"), (torch.float32, "tf32x3"))
KERNELS = (kernels.forward, kernels.backward_anchors, kernels.backward_keys)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


def on_chip(kernel, width: int, dtype: torch.dtype, precision: str, capability: int, room: int) -> int:
    owned, iterated, block_d = triton._block_sizes(width, dtype, precision, room * 1024)
    constants = {"TWO": True, "SUM": False, "RELU": False, "PER_ANCHOR": True, "LEARNED": True, "SQUARES": False}
    constants |= {"IDS": True, "LIMITED": True, "WEIGHTS": "both", "HARD": "own"}
    constants |= {"BLOCK_D": block_d, "PRECISION": precision}
    own, other = ("BLOCK_N", "BLOCK_M") if kernel is kernels.backward_keys else ("BLOCK_M", "BLOCK_N")
    constants |= {own: owned, other: iterated}
    kinds = {"anchors": TYPES[dtype], "keys": TYPES[dtype], "row_ids": "*i64", "key_ids": "*i64"}
    kinds |= dict.fromkeys(("M", "N", "d", *kernels.COUNTS), "i32") | dict.fromkeys(constants, "constexpr")
    kinds["own_weight"] = "fp32"
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: kinds.get(name, "*fp32") for name in names},
        {(names.index(name),): value for name, value in constants.items() if name in names},
    )
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    return made.metadata.shared // 1024


def main() -> None:
    for chip, (capability, room) in CHIPS.items():
        for width, (dtype, precision) in itertools.product((128, 256, 512, 1024), WAYS):
            if width > triton.max_width(dtype, room * 1024):
                continue
            if precision == "tf32x3" and width > triton.MAX_WIDTH // 2:
                continue  # multiplied exactly instead
            for kernel in KERNELS:
                size = on_chip(kernel, width, dtype, precision, capability, room)
                print(
                    f"{chip:24} {kernel.fn.__name__:18} d={width:5} {dtype!s:15} {precision:7} {size:4} KiB", flush=True
                )
                if size > room:
                    sys.exit(f"more than the {room} KiB that there are")


if __name__ == "__main__":
    main()
