"""Compiles the Triton kernels for several GPUs, which needs none: python tests/support/compile_triton.py [--all].

Prints a table of what each kernel takes, by width and dtype: registers of a thread, bytes that a thread has to keep in
memory instead of registers (spilled), and shared memory of a program. Fails if that is more than the chip has, or if
more than ``SPILLED`` bytes are spilled. ``--all``: with every switch on, too.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton as package
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from counterpoint.experimental import kernels, triton

# compute capability, KiB of shared memory
CHIPS = {"H100, H200": (90, 227), "A100": (80, 163), "RTX 30 and 40, L4, L40": (86, 99)}
PRECISIONS = {
    "bfloat16": (torch.bfloat16, "ieee"),
    "float32, highest": (torch.float32, "ieee"),
    "float32, high": (torch.float32, "tf32x3"),
    "float32, medium": (torch.float32, "tf32"),
}
WIDTHS = (128, 256, 512, 768, 1024)
KERNELS = (kernels.forward, kernels.backward_anchors, kernels.backward_keys)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
OFF: dict[str, Any] = {"SOFTPLUS": False, "PER_ANCHOR": False, "LEARNED": False, "IDS": True, "WEIGHTS": False}
# what is switched on, and how many bytes may be spilled
SWITCHES: dict[str, tuple[dict[str, Any], int]] = {
    "infonce": ({}, 256),
    "siglip": ({"SOFTPLUS": True, "LEARNED": True}, 512),
    "every switch": ({"PER_ANCHOR": True, "LEARNED": True, "WEIGHTS": True}, 512),
}


class Taken(NamedTuple):
    registers: int
    spilled: int
    shared: int


def taken(
    kernel: Any, switches: dict[str, Any], width: int, dtype: torch.dtype, precision: str, capability: int, room: int
) -> Taken:
    """Compile a kernel, and read what it takes."""
    size = triton.blocks(kernel is not kernels.forward, width, dtype, precision, room * 1024)
    constants = OFF | switches | {"PRECISION": precision}
    constants |= {"OWNED": size.owned, "ITERATED": size.iterated, "BLOCK_D": size.columns, "STEP": size.step}
    names = kernel.arg_names
    kinds = {"anchors": TYPES[dtype], "keys": TYPES[dtype], "row_ids": "*i64", "key_ids": "*i64"}
    kinds |= dict.fromkeys(("M", "N", "d"), "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "*fp32") for name in names}
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name == "d"]
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items() if name in names},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},  # as PyTorch allocates them
    )
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": size.warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [Path(package.__path__[0], "backends/nvidia/bin/cuobjdump"), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", printed)
    assert usage is not None, printed
    return Taken(int(usage[1]), int(usage[2]), made.metadata.shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="with each of the switches")
    parser.add_argument("--switches", nargs="+", choices=SWITCHES, default=["infonce"])
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=list(CHIPS))
    given = parser.parse_args()
    wrong = []
    print("registers / bytes spilled / KiB of shared memory")
    for chip, switches in itertools.product(given.chips, SWITCHES if given.all else given.switches):
        (capability, room), (on, most) = CHIPS[chip], SWITCHES[switches]
        print(f"\n{chip}, {switches}: {'':{max(0, 34 - len(chip + switches))}}", end="")
        print("".join(f"{kernel.fn.__name__:>18}" for kernel in KERNELS))
        for (name, (dtype, precision)), width in itertools.product(PRECISIONS.items(), given.widths):
            row = [taken(kernel, on, width, dtype, precision, capability, room) for kernel in KERNELS]
            cells = (f"{t.registers}/{t.spilled}/{t.shared // 1024}" for t in row)
            print(f"{name:24} d={width:<5}{'':6}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
            for kernel, t in zip(KERNELS, row, strict=True):
                if t.shared > room * 1024 or t.spilled > most:
                    wrong.append(f"{chip}, {switches}, {name}, d={width}: {kernel.fn.__name__} takes {t}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
