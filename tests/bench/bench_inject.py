"""What injecting adds to a step of GraphCL's model, beyond the objective itself.

    python tests/bench/bench_inject.py                                            # on the tests' stand-in
    python tests/bench/bench_inject.py --clone GraphCL/unsupervised_TU -- --DS MUTAG --lr 0.01 --num-gc-layers 3

Compares, for the plugin of GraphCL and for the general hosts ``logits`` and ``function`` on the same embeddings: the
objective in one edited line, and the objective injected by the launcher; and the host's own loss while ``counterpoint
inject auto`` watches it. A step is two passes of the encoder, loss,
backward and optimizer, on the first batch of the host's script; loading and augmenting are left out, so a step here is
shorter than a real one. Measures CPU time on one thread; the variants take turns step by step, and the medians of the
ratios within a round are printed, so that load cancels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import counterpoint as cp
from counterpoint.plugins import function, graphcl, launch, logits
from counterpoint.plugins.finder.findings import judge
from counterpoint.plugins.finder.watch import Watch
from counterpoint.plugins.host import Seam

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))


WATCHED = "watched by auto"
WARM = 30  # rounds in which every call is compared


def similarities(x: Tensor, x_aug: Tensor) -> tuple[Tensor, Tensor]:
    return F.normalize(x, dim=1) @ F.normalize(x_aug, dim=1).T / 0.2, torch.arange(len(x))


def loss_of_logits(_: object, x: Tensor, x_aug: Tensor) -> Tensor:
    """A script's loss, at the site of the host ``logits``."""
    return F.cross_entropy(*similarities(x, x_aug))


def loss_of_embeddings(_: object, x: Tensor, x_aug: Tensor) -> Tensor:
    """A script's loss, which the host ``function`` replaces."""
    return F.cross_entropy(*similarities(x, x_aug))


def general_variants(
    forward: Callable[..., Any], spec: str
) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    criterion, loss_fn = logits.ContrastiveLoss(spec, scale=5.0), cp.objective(spec)
    logits.before(Seam(spec, options={"site": ["bench_inject.py:loss_of_logits"]}))
    replaced = {"replace": "bench_inject.py:loss_of_embeddings(x, x_aug)", "as": "pairing=one_way"}
    function.before(Seam(spec, options=replaced))
    return {
        "logits: one edited line": (forward, lambda _, x, x_aug: criterion(*similarities(x, x_aug))),
        "logits: injected": (forward, loss_of_logits),
        "function: one edited line": (forward, lambda _, x, x_aug: loss_fn(x, x_aug, pairing="one_way")),
        "function: injected": (forward, globals()["loss_of_embeddings"]),
    }


class CaughtError(Exception):
    """End the host's script where it would compute its first loss."""


def catch(clone: Path, words: list[str]) -> tuple[ModuleType, Any, tuple[Any, ...], tuple[Any, ...]]:
    """Return the script's module, its model, and both batches of graphs of its first step."""
    calls: list[Any] = []

    def after(seam: Seam, module: Any) -> None:
        encode = module.simclr.forward
        module.simclr.forward = lambda self, *graphs: (calls.append((module, self, graphs)), encode(self, *graphs))[1]

        def stop(*_: Any) -> None:
            module.simclr.forward = encode
            raise CaughtError

        module.simclr.loss_cal, module.simclr.own = stop, module.simclr.loss_cal

    os.chdir(clone)
    with suppress(CaughtError):
        launch.run(replace(graphcl.HOST, after=after), Seam("host"), Path("gsimclr.py"), words)
    (module, model, plain), (_, _, copies) = calls
    module.simclr.loss_cal = module.simclr.own
    return module, model, plain, copies


def variants(module: Any, spec: str) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return ``forward`` and ``loss_cal`` of the class for each variant."""
    own = module.simclr.forward, module.simclr.loss_cal
    loss_fn = cp.objective(graphcl.HOST.spec if spec == "host" else spec)
    graphcl.patch(spec, module)
    return {
        "host's own": own,
        "one edited line": (own[0], lambda self, x, x_aug: loss_fn(x, x_aug, pairing="one_way")),
        "injected": (module.simclr.forward, module.simclr.loss_cal),
        **general_variants(own[0], "infonce:t=0.2" if spec == "host" else spec),
        WATCHED: own,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clone", type=Path, help="a clone's folder with gsimclr.py and its data; else a stand-in")
    parser.add_argument("--objective", default="host")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("script", nargs="*", help="-- the script's own arguments")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        clone, words = args.clone, args.script
        if clone is None:
            from graphcl_clone import write_clone

            clone = write_clone(Path(folder), graphs=128)
            words = ["--DS", "TOY", "--batch", "128", "--hidden-dim", "32"]
        module, model, plain, copies = catch(clone, words)
        os.chdir("/")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    functions = variants(module, args.objective)

    def step(forward: Callable[..., Any], loss_cal: Callable[..., Any]) -> float:
        type(model).forward, type(model).loss_cal = forward, loss_cal
        start = time.process_time()
        optimizer.zero_grad()
        model.loss_cal(model(*plain), model(*copies)).backward()
        optimizer.step()
        return time.process_time() - start

    def watched_step(forward: Callable[..., Any], loss_cal: Callable[..., Any]) -> float:
        watch = Watch(lambda watch, root: found.extend(judge(watch, root)))
        watch.start()
        try:
            return step(forward, loss_cal)
        finally:
            watch.stop()

    found: list[Any] = []

    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(args.rounds + WARM):
        names = list(functions)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            seconds = (watched_step if name == WATCHED else step)(*functions[name])
            if i >= WARM:
                times[name].append(seconds)
    print(f"{plain[3]} graphs, {len(plain[0])} nodes, objective {args.objective}, {args.rounds} rounds")
    for name, column in times.items():
        print(f"{name:26} {1000 * statistics.median(column):8.2f} ms a step")
    pairs = [(f"{kind}injected", f"{kind}one edited line") for kind in ("", "logits: ", "function: ")]
    pairs += [("injected", "host's own"), (WATCHED, "host's own")]
    for name, base in pairs:
        ratio = statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))
        print(f"{name} / {base}: {ratio:.3f}")
    print(f"the loss was found in {len(found)} of {args.rounds + WARM} watched steps")


if __name__ == "__main__":
    main()
