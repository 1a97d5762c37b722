"""Time and memory of our objectives beside peers' losses, forward and backward, in one run.

    python -m tests.bench.losses                                   # every peer that is installed, B = 32 to 4096
    python -m tests.bench.losses --peers lightly,pml,st --sizes 256,1024,4096,16384 --out bench
    python -m tests.bench.losses --official ADNCE/image/model.py   # a clone's own ADNCE and HCL as well
    python -m tests.bench.losses --threads 2                       # wall clock of two threads
    python -m tests.bench.losses --device cuda --dtype bfloat16 --peers infcl --width 512 --sizes 16384,65536 \\
        --losses infonce:t=T,pairing=symmetric adnce:t=T,pairing=symmetric

Times are CPU time of one thread (wall clock with several, and on a GPU). A round runs all contestants forwards and then
backwards, and each round begins with another, since the first finds the caches cold; ratios are taken within a round
and their median and quartiles are shown, so that load on the machine cancels. Memory is the most that a fresh process
holds beyond what it held before the call, gradients included (on a GPU: that torch allocates). The roofline is what
the products of a streamed symmetric pass, ``4 n^2 d`` operations, and its ``n^2`` exponentials take at the rates
measured in the same rounds, ``n = 2 B``. Results go to OUT/losses.json and OUT/losses.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import counterpoint as cp

Loss = Callable[[Tensor, Tensor], Tensor]
OURS = "infonce:t=T"
ONE_WAY = f"{OURS},pairing=one_way"


@dataclass(frozen=True)
class Contestant:
    """A loss of two views.

    Args:
        name: as in the table.
        make: the loss for a temperature and a batch size.
        rival: which of ours it computes the same as, roughly.
        matrices: how many n x n matrices it holds at most, for what does not fit.
        largest: batch size up to which it is worth a try.
    """

    name: str
    make: Callable[[float, int], Loss]
    rival: str = OURS
    matrices: float = 0
    largest: int = 2**20


def ours(specs: list[str]) -> list[Contestant]:
    def make(spec: str) -> Contestant:
        # the pairing is no part of a spec, but it is part of what is compared
        objective, _, pairing = spec.partition(",pairing=")

        def of_views(t: float, size: int) -> Loss:
            loss = cp.objective(objective.replace("=T", f"={t}"))
            return lambda a, b: loss(a, b, pairing=pairing or None)  # type: ignore[no-any-return]

        return Contestant(spec, of_views)

    return [make(spec) for spec in specs]


def cross_entropy(t: float, size: int) -> Loss:
    """What one writes by hand: one matrix of logits."""
    labels = torch.arange(2 * size).roll(size)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        nonlocal labels
        labels = labels.to(a.device)
        z = functional.normalize(torch.cat([a, b]))
        return functional.cross_entropy((z @ z.T / t).fill_diagonal_(float("-inf")), labels)

    return loss


def one_way_cross_entropy(t: float, size: int) -> Loss:
    labels = torch.arange(size)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        nonlocal labels
        labels = labels.to(a.device)
        return functional.cross_entropy(functional.normalize(a) @ functional.normalize(b).T / t, labels)

    return loss


def lightly() -> list[Contestant]:
    from lightly.loss import DCLLoss, NTXentLoss

    return [
        Contestant("lightly NTXentLoss", lambda t, size: NTXentLoss(t), matrices=5.2),
        # its loss is ours with the positive left out of the denominator
        Contestant("lightly DCLLoss", lambda t, size: DCLLoss(t), matrices=5.7),
    ]


def pml() -> list[Contestant]:
    from pytorch_metric_learning.losses import NTXentLoss, SupConLoss

    def make(kind: Any) -> Callable[[float, int], Loss]:
        def with_labels(t: float, size: int) -> Loss:
            loss, labels = kind(temperature=t), torch.arange(size).repeat(2)
            return lambda a, b: loss(torch.cat([a, b]), labels)

        return with_labels

    return [
        Contestant("pml SupConLoss", make(SupConLoss), matrices=13.8),
        Contestant("pml NTXentLoss", make(NTXentLoss), largest=64),
    ]


def st() -> list[Contestant]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses as module

    ways = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")

    def make(cached: bool) -> Callable[[float, int], Loss]:
        def of_embeddings(t: float, size: int) -> Loss:
            model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
            if cached:
                kind = module.CachedMultipleNegativesRankingLoss
                loss = kind(model, scale=1 / t, directions=ways, mini_batch_size=256)
                return lambda a, b: loss.calculate_loss([[*a.split(256)], [*b.split(256)]])
            loss = module.MultipleNegativesRankingLoss(model, scale=1 / t, directions=ways)
            return lambda a, b: loss.compute_loss_from_embeddings([a, b], None)

        return of_embeddings

    # B anchors with 4 B keys each: as many pairs as 2 B anchors with 2 B keys
    return [
        Contestant("st MNRL, 4 directions", make(False), matrices=5.1),
        Contestant("st CachedMNRL, 4 directions", make(True), matrices=2.4),
    ]


def official(path: Path) -> list[Contestant]:
    """The losses of a clone of junkangwu/ADNCE, folder image."""
    spec = importlib.util.spec_from_file_location("official_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(estimator: str, tau_plus: float, beta: float) -> Callable[[float, int], Loss]:
        def of_views(t: float, size: int) -> Loss:
            loss = module.DRO_Loss(t, tau_plus, size, beta, estimator)
            return lambda a, b: loss(functional.normalize(a), functional.normalize(b))[0]

        return of_views

    return [
        Contestant("official ADNCE", make("adnce", 0.7, 1.0), "adnce:t=T", 10.7),
        Contestant("official HCL", make("HCL", 0.1, 1.0), "hcl:t=T", 8.6),
    ]


def infcl() -> list[Contestant]:
    """Inf-CL's kernels, which need a GPU: both directions between two views."""
    from inf_cl import cal_flash_loss

    def make(t: float, size: int) -> Loss:
        def loss(a: Tensor, b: Tensor) -> Tensor:
            a, b = (functional.normalize(x, dim=1) for x in (a, b))
            labels, scale = torch.arange(size, device=a.device), torch.tensor(1 / t, device=a.device)
            both = cal_flash_loss(a, b, labels, scale) + cal_flash_loss(b, a, labels, scale)
            return both / 2  # type: ignore[no-any-return]

        return loss

    return [Contestant("infcl cal_flash_loss", make, "infonce:t=T,pairing=symmetric")]


PEERS = {"lightly": lightly, "pml": pml, "st": st, "infcl": infcl}


def contestants(given: argparse.Namespace) -> list[Contestant]:
    found = [*ours(given.losses), Contestant("F.cross_entropy", cross_entropy, matrices=3.2)]
    found.append(Contestant("F.cross_entropy, one_way", one_way_cross_entropy, ONE_WAY, matrices=0.8))
    for name in given.peers:
        try:
            found += PEERS[name]()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found + (official(given.official) if given.official else [])


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


def embeddings(size: int, given: argparse.Namespace) -> Tensor:
    z = torch.randn(2, size, given.width, generator=torch.Generator().manual_seed(0))
    return z.to(given.device, given.dtype)


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def times(field: list[Contestant], size: int, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    z, losses = embeddings(size, given), {c.name: c.make(given.temperature, size) for c in field}
    for loss in losses.values():
        once(loss, z, given)
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    roof = []
    names = list(losses)
    for turn in range(given.rounds or max(3, min(100, 12800 // size))):
        products, exps = rates(given)
        roof.append(4 * (2 * size) ** 2 * given.width / products + (2 * size) ** 2 / exps)
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
    """Megabytes, from a process of its own."""
    command = [sys.executable, "-m", "tests.bench.losses", "--memory-of", contestant.name, "--sizes", str(size)]
    command += ["--width", str(given.width), "--temperature", str(given.temperature), "--losses", *given.losses]
    command += ["--device", given.device, "--dtype", str(given.dtype).removeprefix("torch.")]
    peer = contestant.name.split()[0]
    command += ["--peers", peer if peer in PEERS else "none"]
    command += ["--official", str(given.official)] if peer == "official" else []
    returned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}  # what is freed is no longer held
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | returned).stdout
    return int(found.split()[-1]) / 1e6


# ---- what is shown -------------------------------------------------------------------------------


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':34}{'ms':>10}{'ratio':>8}  {'quartiles':15}{'/ roofline':>11}{'MB':>9}"]
    for name, row in rows.items():
        spread = "{:.2f} to {:.2f}".format(*row["quartiles"])
        megabytes = f"{row['mb']:9.1f}" if "mb" in row else ""
        lines.append(f"{name:34}{row['ms']:10.2f}{row['ratio']:8.2f}  {spread:15}{row['of_roofline']:11.2f}{megabytes}")
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
            own = name == OURS
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
    specs = [OURS, ONE_WAY, "dcl:t=T", "adnce:t=T", "hcl:t=T", f"{OURS} + 0.1*dp", "infonce:t=0.01", "infonce:t=0.005"]
    parser.add_argument("--losses", nargs="+", default=specs, help="ours; T stands for the temperature")
    parser.add_argument("--rounds", type=int, help="by default fewer for larger sizes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.peers = [p for p in given.peers.split(",") if p and p != "none"]
    unknown = [p for p in given.peers if p not in PEERS]
    if unknown:
        parser.error(f"unknown peers {', '.join(unknown)}; known: {', '.join(PEERS)}")
    sizes = [int(size) for size in given.sizes.split(",")]
    torch.set_num_threads(given.threads)
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
    for size in sizes:
        able = [c for c in field if size <= c.largest and c.matrices * 4 * (2 * size) ** 2 < free / 2]
        rows = results[str(size)] = times(able, size, given)
        if not given.no_memory:
            for c in able:
                rows[c.name]["mb"] = memory(c, size, given)
        if not given.json:
            print(
                f"\nB={size} d={given.width} t={given.temperature} {str(given.dtype).removeprefix('torch.')}, {where}"
            )
            print(table(rows), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "where": where, "width": given.width, "t": given.temperature}
    about["dtype"] = dtype
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
