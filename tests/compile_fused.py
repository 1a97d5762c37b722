"""Compiles the kernels of counterpoint.fused for an H100 or H200, which needs no GPU: python tests/compile_fused.py.

Prints, per kernel, width and dtype, how much of the chip's memory it takes; fails if that is more than there is.
"""

from __future__ import annotations

import sys

import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from counterpoint import fused

ON_CHIP = 227  # KiB
KERNELS = (fused._forward, fused._backward_anchors, fused._backward_keys)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


def on_chip(kernel, width: int, dtype: torch.dtype, how: str) -> int:
    held, passing, bd = fused._blocks(width, dtype, how)
    constants = {"two": True, "summed": False, "wide": True, "masked": True, "bd": bd, "how": how, "learned": True}
    constants |= {"bn": passing, "bm": held} if kernel is fused._backward_keys else {"bn": held, "bm": passing}
    kinds = {"anchors": TYPES[dtype], "keys": TYPES[dtype], "row_ids": "*i64", "key_ids": "*i64"}
    kinds |= dict.fromkeys(("n", "m", "d"), "i32") | dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: kinds.get(name, "*fp32") for name in names},
        {(names.index(name),): value for name, value in constants.items() if name in names},
    )
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    return made.metadata.shared // 1024


def main() -> None:
    for width in (128, 512, 1024):
        for dtype, how in ((torch.bfloat16, "ieee"), (torch.float32, "ieee"), (torch.float32, "tf32x3")):
            if how == "tf32x3" and width > fused.WIDEST // 2:
                continue  # multiplied exactly instead
            for kernel in KERNELS:
                size = on_chip(kernel, width, dtype, how)
                print(f"{kernel.fn.__name__:18} d={width:5} {dtype!s:15} {how:7} {size:4} KiB", flush=True)
                if size > ON_CHIP:
                    sys.exit(f"more than the {ON_CHIP} KiB that there are")


if __name__ == "__main__":
    main()
