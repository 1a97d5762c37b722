"""Half an hour on a GPU, in the order of what is most worth knowing: does it run, is it right, how fast is it?

    python -m tests.bench.gpu                 # every step, into bench/gpu: one folder each, and steps.json
    python -m tests.bench.gpu --steps kernels one_way-768
    python -m tests.bench.gpu --dry-run       # the same commands on a CPU, of tiny sizes, kernels interpreted
    python -m tests.bench.gpu --list

``wheels.txt`` names the peers that the machine may lack. A step that fails or takes too long does not end the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A command.

    Args:
        name: of the step, and of its folder.
        minutes: after which it is stopped.
        arguments: those of ``python -m``.
        tiny: arguments that replace those of the same name, or are added, in a dry run.
    """

    name: str
    minutes: float
    arguments: tuple[str, ...]
    tiny: tuple[str, ...] = ()

    def command(self, out: Path, dry: bool) -> list[str]:
        """Return the command line; in a dry run, with the sizes of one."""
        arguments = [*self.arguments]
        for option in self.tiny if dry else ():
            name, _, values = option.partition(" ")
            if name in arguments:
                first = arguments.index(name)
                last = first + 1
                while last < len(arguments) and not arguments[last].startswith("--"):
                    last += 1
                del arguments[first:last]
            arguments += [name, *values.split()]
        out_folder = ["--out", str(out / self.name)] if "tests.bench.losses" in arguments else []
        return [sys.executable, "-W", "ignore", "-m", *arguments, *out_folder]


# no memory: each is measured in a process of its own on a CPU
TINY = ("--device cpu", "--width 32", "--sizes 64", "--rounds 1", "--interpret", "--no-memory", "--queue 128")
AUTO = "infonce:t=T"
OURS = tuple(f"{spec},engine={engine}" for spec, engine in (
    (AUTO, "fused"), ("adnce:t=T", "fused"), (AUTO, "chunks"), (AUTO, "tiles"),
))  # fmt: skip


def timed(name: str, minutes: float, sizes: str, width: int, *further: str) -> Step:
    arguments = ["tests.bench.losses", "--device", "cuda", "--sizes", sizes, "--width", str(width), *further]
    arguments += ["--errors-to", "4096"]  # a matrix in float64
    return Step(name, minutes, tuple(arguments), TINY)


def tested(name: str, minutes: float, *arguments: str, tiny: tuple[str, ...]) -> Step:
    return Step(name, minutes, ("pytest", "-q", "-m", "not slow", "--maxfail", "20", *arguments), tiny)


HALF = ("--dtype", "bfloat16")
SIGLIP = ("infonce:t=T", "siglip:t=learned(T),b=learned(-10,-100,100)")
STEPS = (
    # 1. does it run at all, and is it right?
    tested("kernels", 5, "tests/experimental/test_fused.py", tiny=("-k softplus_keeps",)),
    # 2. the goals: InfoNCE and ADNCE at 65,536, and who else computes them
    timed("one_way-768", 4, "4096,16384,65536", 768, *HALF, "--pairing", "one_way", "--losses", *OURS, SIGLIP[1]),
    timed("symmetric-768", 4, "4096,16384,65536", 768, *HALF, "--pairing", "symmetric", "--losses", *OURS[:2], OURS[3]),
    timed("views-128", 2, "4096,16384,32768", 128, *HALF, "--losses", *OURS[:2], OURS[3]),
    # 3. embeddings that no block holds
    timed("one_way-2560", 2, "4096,16384", 2560, *HALF, "--pairing", "one_way", "--losses", AUTO, OURS[3]),
    timed("one_way-4096", 2, "4096,16384", 4096, *HALF, "--pairing", "one_way", "--losses", AUTO, OURS[3]),
    # 4. float32
    timed("one_way-high", 2, "4096,16384", 768, "--precision", "high", "--pairing", "one_way", "--losses", *OURS),
    timed("one_way-highest", 2, "4096,16384", 768, "--pairing", "one_way", "--losses", *OURS),
    timed("one_way-float16", 2, "16384", 768, "--dtype", "float16", "--pairing", "one_way", "--losses", OURS[0]),
    # 5. the largest batches
    timed(
        "large", 4, "131072,262144,1048576", 768, *HALF, "--pairing", "one_way", "--losses", OURS[0], "--rounds", "1",
        "--peers", "infcl,cce",
    ),
    timed("queue-128", 1, "1024,4096", 128, *HALF, "--pairing", "queue", "--losses", OURS[0], "--peers", "none"),
    timed("one_way-128", 2, "1024,4096,16384,65536", 128, *HALF, "--pairing", "one_way", "--losses", *OURS),
    timed("one_way-1024", 2, "4096,16384,65536", 1024, *HALF, "--pairing", "one_way", "--losses", *OURS),
    # 6. everything else of the engine that tests know
    tested("engine", 5, "tests/core/engine/test_tiles.py", "tests/core/engine/test_chunks.py",
           tiny=("-k rows_of_a_chunk",)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS], help="by default all")
    parser.add_argument("--out", type=Path, default=Path("bench/gpu"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the commands")
    given = parser.parse_args()
    steps = [step for step in STEPS if given.steps is None or step.name in given.steps]
    done = {}
    for step in steps:
        command = step.command(given.out, given.dry_run)
        if given.list:
            print(" ".join(["python", *command[1:]]))
            continue
        print(f"\n==== {step.name}, at most {step.minutes:g} minutes", flush=True)
        start = time.monotonic()
        try:
            ended = str(subprocess.run(command, timeout=60 * step.minutes, check=False).returncode)
        except subprocess.TimeoutExpired:
            ended = "out of time"
        done[step.name] = {"ended": ended, "seconds": round(time.monotonic() - start)}
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "steps.json").write_text(json.dumps(done, indent=1))
    failed = [name for name, how in done.items() if how["ended"] != "0"]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
