"""Time and memory of our objectives beside peers' losses, forward and backward, in one run.

    python -m tests.bench.losses                                   # every peer that is installed, B = 32 to 4096
    python -m tests.bench.losses --peers lightly,pml,st --sizes 256,1024,4096,16384 --out bench
    python -m tests.bench.losses --official ADNCE/image/model.py   # a clone's own ADNCE and HCL as well
    python -m tests.bench.losses --pairing one_way                 # or symmetric, queue: a pairing and its peers
    python -m tests.bench.losses --pairing one_way --peers open_clip --sizes 4096 --losses \
        "siglip:t=learned(T),b=learned(-10,-100,100)"
    python -m tests.bench.losses --pairing one_way --unit --peers none    # of unit vectors, which nobody normalizes
    python -m tests.bench.losses --pairing symmetric --before ../88efa1b  # beside our losses of another checkout
    python -m tests.bench.losses --threads 2                       # wall clock of two threads
    python -m tests.bench.losses --device cuda --dtype bfloat16 --pairing symmetric --width 512 --sizes 16384,65536 \\
        --losses infonce:t=T adnce:t=T infonce:t=T,engine=tiles

``python -m tests.bench.gpu`` runs it on a GPU, with the peers of ``wheels.txt``, most important questions first.

Times are CPU time of one thread (wall clock with several, and on a GPU). A round runs all contestants forwards and then
backwards, and each round begins with another, since the first finds the caches cold; ratios are taken within a round
and their median and quartiles are shown, so that load on the machine cancels. Memory is the most that a fresh process
holds beyond what it held before the call, gradients included (on a GPU: that torch allocates). The roofline is what
the operations and exponentials that :data:`WORK` lists for a pairing take at the rates measured in the same rounds;
``bf16`` is the share of the machine's bfloat16 rate that these operations are done at. ``error`` is that of the
embeddings' gradient, relative to the gradient in float64 of ours that computes the same, up to a factor. Who cannot
compute a batch is left out of its table. Results go to OUT/losses.json and OUT/losses.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoint.experimental import fused

from .contestants import ONE_WAY, OURS, PEERS, SIGLIP, Contestant, Loss, contestants, of_spec, queue_of

# By pairing: the pairs of an anchor and a key, given B and the length of the queue; per pair, the operations divided by
# d and the exponentials. The similarities of views and of both directions are computed again for the gradient; one
# product for the similarities and one for each gradient do for the others.
WORK: dict[str, tuple[Callable[[int, int], int], int, int]] = {
    "views": (lambda size, queue: (2 * size) ** 2, 4, 1),
    "one_way": (lambda size, queue: size**2, 6, 1),
    "symmetric": (lambda size, queue: 2 * size**2, 4, 1),
    "queue": (lambda size, queue: size * queue, 4, 1),
}


# ---- time ----------------------------------------------------------------------------------------


def clock(given: argparse.Namespace) -> float:
    if given.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if given.threads == 1 and given.device == "cpu" else time.perf_counter()


def once(loss: Loss, z: Tensor, given: argparse.Namespace) -> float:
    a, b = (x.clone().requires_grad_() for x in z)
    start = clock(given)
    loss(a, b).backward()
    return clock(given) - start


def rates(given: argparse.Namespace) -> tuple[float, float]:
    """Operations per second of a large product, and exponentials per second in the cache, the faster of two."""
    edge, many = (1024, 2**17) if given.device == "cpu" else (8192, 2**22)
    a = torch.rand(edge, edge, device=given.device, dtype=given.dtype)
    x = torch.rand(many, device=given.device)
    out, y = torch.empty_like(a), torch.empty_like(x)

    def rate(work: float, f: Callable[[], Any]) -> float:
        found = []
        for _ in range(4):
            start = clock(given)
            f()
            found.append(clock(given) - start)
        return work / min(found)

    exp = max(rate(len(x), lambda f=f: f(x, out=y)) for f in (torch.exp, torch.exp2))  # type: ignore[misc]
    return rate(2 * edge**3, lambda: torch.mm(a, a, out=out)), exp


def bf16_rate(given: argparse.Namespace) -> float:
    """Operations per second of a large product in bfloat16."""
    edge = 256 if given.device == "cpu" else 8192
    a = torch.rand(edge, edge, device=given.device, dtype=torch.bfloat16)
    seconds = []
    for _ in range(5):
        start = clock(given)
        torch.mm(a, a)
        seconds.append(clock(given) - start)
    return 2 * edge**3 / min(seconds)


def able(field: list[Contestant], size: int, given: argparse.Namespace) -> list[Contestant]:
    """Return who can compute a batch, and say why the others cannot: the run must not end with them."""
    z, found = embeddings(size, given), []
    for c in field:
        try:
            once(c.make(given.temperature, size), z, given)
            found.append(c)
        except Exception as error:  # of any library
            reason = str(error).strip().partition("\n")[0][:120]
            print(f"B={size}: {c.name} is left out: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)
        if given.device == "cuda":
            torch.cuda.empty_cache()
    return found


def gradient_errors(field: list[Contestant], size: int, given: argparse.Namespace) -> dict[str, float]:
    """Relative errors of the gradients, against those of a matrix in float64, up to a factor."""
    z, exact, errors = embeddings(size, given), {}, {}
    for c in field:
        spec = c.name if c.name in given.losses else c.rival
        if spec not in exact:
            loss = of_spec(spec, given.temperature, queue_of(given.queue), exact=True, normalize=not given.unit)
            exact[spec] = gradient(loss, z.double())
        found, wanted = gradient(c.make(given.temperature, size), z).double(), exact[spec]
        factor = (found * wanted).sum() / wanted.square().sum()
        errors[c.name] = float((found - factor * wanted).norm() / (factor * wanted).norm())
    return errors


def gradient(loss: Loss, z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    loss(z[0], z[1]).backward()
    assert z.grad is not None
    return z.grad


def embeddings(size: int, given: argparse.Namespace) -> Tensor:
    z = torch.randn(2, size, given.width, generator=torch.Generator().manual_seed(0))
    z = torch.nn.functional.normalize(z, dim=2) if given.unit else z
    return z.to(given.device, given.dtype)


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def times(field: list[Contestant], size: int, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    z, losses = embeddings(size, given), {c.name: c.make(given.temperature, size) for c in field}
    for loss in losses.values():
        once(loss, z, given)
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    roof, names, half = [], list(losses), bf16_rate(given)
    pairs, operations, exponentials = WORK[given.pairing]
    for turn in range(given.rounds or max(3, min(100, 12800 // size))):
        products, exps = rates(given)
        roof.append(pairs(size, given.queue) * (operations * given.width / products + exponentials / exps))
        order = names[turn % len(names) :] + names[: turn % len(names)]  # the first finds the caches cold
        there = {name: once(losses[name], z, given) for name in order}
        back = {name: once(losses[name], z, given) for name in reversed(order)}
        for name, column in seconds.items():
            column.append((there[name] + back[name]) / 2)
    rows = {}
    for c in field:
        own = seconds[c.name]
        rival = seconds.get(c.rival, own)
        low, middle, high = quartiles([a / b for a, b in zip(own, rival, strict=True)])
        rows[c.name] = {
            "ms": 1000 * statistics.median(own),
            "best_ms": 1000 * min(own),
            "ratio": middle,
            "quartiles": [low, high],
            "rival": c.rival,
            "of_bf16": pairs(size, given.queue) * operations * given.width / statistics.median(own) / half,
            "of_roofline": statistics.median(a / b for a, b in zip(own, roof, strict=True)),
        }
    return rows


# ---- memory --------------------------------------------------------------------------------------


def status(key: str) -> int:
    """A number of bytes that Linux knows of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def measure(contestant: Contestant, size: int, given: argparse.Namespace) -> int:
    """Bytes that a call takes at most beyond those held before, in this process."""
    loss, z = contestant.make(given.temperature, size), embeddings(size, given)
    once(loss, z, given)  # what is loaded and kept once
    a, b = (x.clone().requires_grad_() for x in z)
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        loss(a, b).backward()
        return torch.cuda.max_memory_allocated() - held
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    loss(a, b).backward()
    return status("VmHWM") - before


def memory(contestant: Contestant, size: int, given: argparse.Namespace) -> float:
    """Megabytes, on a CPU from a process of its own."""
    if given.device == "cuda":
        return measure(contestant, size, given) / 1e6
    command = [sys.executable, "-m", "tests.bench.losses", "--memory-of", contestant.name, "--sizes", str(size)]
    command += ["--pairing", given.pairing, "--queue", str(given.queue)]
    command += ["--width", str(given.width), "--temperature", str(given.temperature), "--losses", *given.losses]
    command += ["--device", given.device, "--dtype", str(given.dtype).removeprefix("torch.")]
    command += ["--precision", given.precision, *(["--interpret"] if given.interpret else [])]
    command += [*(["--unit"] if given.unit else []), *(["--before", str(given.before)] if given.before else [])]
    peer = contestant.name.split()[0]
    command += ["--peers", peer if peer in PEERS else "none"]
    command += ["--official", str(given.official)] if peer == "official" else []
    returned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}  # what is freed is no longer held
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | returned).stdout
    return int(found.split()[-1]) / 1e6


# ---- what is shown -------------------------------------------------------------------------------


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':40}{'ms':>10}{'ratio':>8}  {'quartiles':15}{'/ roofline':>11}{'bf16':>7}{'error':>9}{'MB':>10}"]
    for name, row in rows.items():
        spread = "{:.2f} to {:.2f}".format(*row["quartiles"])
        error = f"{row['error']:9.1e}" if "error" in row else f"{'':9}"
        megabytes = f"{row['mb']:10.1f}" if "mb" in row else ""
        of = f"{row['of_roofline']:11.2f}{row['of_bf16']:7.2f}"
        lines.append(f"{name:40}{row['ms']:10.2f}{row['ratio']:8.2f}  {spread:15}{of}{error}{megabytes}")
    return "\n".join(lines)


def chart(results: dict[str, dict[str, dict[str, Any]]], width: int, where: str, path: Path) -> None:
    """Time and memory over the batch size, on light and on dark pages."""
    from matplotlib.figure import Figure

    grey = "#7f7f7f"
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.patch.set_alpha(0)
    names = list(dict.fromkeys(name for rows in results.values() for name in rows))
    for axes, key, label in zip(figure.subplots(1, 2), ("ms", "mb"), (f"ms, {where}", "MB at most"), strict=True):
        axes.set_facecolor("none")
        for k, name in enumerate(names):
            points = [(int(size), rows[name][key]) for size, rows in results.items() if key in rows.get(name, {})]
            own = name.partition(",")[0] == OURS
            colour = f"C{k % 10}"
            axes.plot(*zip(*points, strict=True), marker="o" if own else "s", color=colour, label=name,
                      linewidth=2.5 if own else 1.2, linestyle="-" if k < 5 else "--") if points else None  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="B, two views each")
        axes.set_title(f"{label}, d = {width}", color=grey)
        axes.set_xticks([int(size) for size in results], [str(size) for size in results], minor=False)
        axes.minorticks_off()
        axes.grid(color=grey, alpha=0.3)
        axes.tick_params(colors=grey)
        axes.xaxis.label.set_color(grey)
        for spine in axes.spines.values():
            spine.set_color(grey)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", labelcolor=grey, frameon=False)
    figure.savefig(path, dpi=144)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS) + "; or none")
    parser.add_argument("--official", type=Path, help="model.py of a clone of ADNCE's image code")
    parser.add_argument("--sizes", default="32,64,128,256,1024,4096")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--pairing", choices=WORK, default="views", help="who is compared with whom")
    parser.add_argument("--queue", type=int, default=65536, help="keys of --pairing queue")
    parser.add_argument("--unit", action="store_true", help="unit vectors; no loss normalizes them, peers' excepted")
    parser.add_argument("--before", type=Path, help="another checkout, whose losses run too")
    parser.add_argument("--losses", nargs="+", help="ours; T stands for the temperature")
    parser.add_argument("--rounds", type=int, help="by default fewer for larger sizes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--precision", choices=["highest", "high", "medium"], default="highest", help="of float32")
    parser.add_argument("--errors-to", type=int, default=1024, help="largest batch whose gradients are compared")
    parser.add_argument("--interpret", action="store_true", help="GPU kernels on a CPU, interpreted: a dry run")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    specs = [OURS, "dcl:t=T", "adnce:t=T", "hcl:t=T", f"{OURS} + 0.1*dp", "infonce:t=0.01", "infonce:t=0.005"]
    if given.pairing == "views":
        specs.insert(1, ONE_WAY)
    elif given.losses is None or given.memory_of is None:  # the parent has added it
        siglip = [SIGLIP.partition(",pairing=")[0]] if given.pairing == "one_way" else []
        given.losses = [f"{spec},pairing={given.pairing}" for spec in given.losses or specs + siglip]
    given.losses = given.losses or specs
    given.peers = [p for p in given.peers.split(",") if p and p != "none"]
    unknown = [p for p in given.peers if p not in PEERS]
    if unknown:
        parser.error(f"unknown peers {', '.join(unknown)}; known: {', '.join(PEERS)}")
    sizes = [int(size) for size in given.sizes.split(",")]
    torch.set_num_threads(given.threads)
    torch.set_float32_matmul_precision(given.precision)
    if given.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        fused.DEVICES = {"cpu"}
    given.dtype = getattr(torch, given.dtype)
    field = contestants(given)
    if given.memory_of:
        one = next(c for c in field if c.name == given.memory_of)
        print(measure(one, sizes[0], given))
        return
    results: dict[str, dict[str, dict[str, Any]]] = {}
    on_cpu = given.device == "cpu"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if on_cpu else torch.cuda.mem_get_info()[0]
    where = f"{given.threads} thread(s)" if on_cpu else torch.cuda.get_device_name()
    dtype = str(given.dtype).removeprefix("torch.")
    pairs = WORK[given.pairing][0]
    for size in sizes:
        fitting = [c for c in field if size <= c.largest and c.matrices * 4 * pairs(size, given.queue) < free / 2]
        running = able(fitting, size, given)
        if not running:
            continue
        rows = results[str(size)] = times(running, size, given)
        for name, error in gradient_errors(running, size, given).items() if size <= given.errors_to else ():
            rows[name]["error"] = error
        if not given.no_memory:
            for c in running:
                rows[c.name]["mb"] = memory(c, size, given)
        if not given.json:
            print(
                f"\nB={size} d={given.width} t={given.temperature} {str(given.dtype).removeprefix('torch.')}, {where}"
            )
            print(table(rows), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "where": where, "width": given.width, "t": given.temperature}
    about["pairing"] = given.pairing
    about |= {"dtype": dtype, "precision": given.precision, "interpreted": given.interpret}
    text = json.dumps({"about": about, "results": results}, indent=1)
    (given.out / "losses.json").write_text(text)
    if given.json:
        print(text)
    try:
        chart(results, given.width, where, given.out / "losses.png")
    except ImportError:
        print("no chart: matplotlib is not installed", file=sys.stderr)


if __name__ == "__main__":
    main()
