"""What injecting adds to whole training steps of unmodified clones, against an edited line of theirs.

    python tests/bench/bench_steps.py graphcl GraphCL/unsupervised_TU -- gsimclr.py --DS NCI1 --aug random2 ...
    python tests/bench/bench_steps.py simcse simcse -- train.py --model_name_or_path BERT --train_file TEXT ...
    python tests/bench/bench_steps.py simcse simcse --bert 12x768 --seconds 300 --ratios FILE -- train.py ...

The script trains, and takes turns between the objective in one edited line and the objective injected, in the order of
``ABBA``. A step lasts from the call of the loss to the next one, so that loading, augmenting, the encoder and the
optimizer are in it; steps before or behind a batch of another size are left out. Measures CPU time on one thread, after
``--warm`` steps, in which every call is compared. Prints the median of the ratios within a pair, and an interval of
95 % for it from their ranks.

``--bert 12x768`` gives SimCSE's script a BERT of that many layers and that width, with random weights. ``--seconds``
ends a run that is not complete, and ``--ratios`` adds up the ratios of several runs.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import counterpoint as cp
from counterpoint.plugins import graphcl, launch, simcse
from counterpoint.plugins.host import Seam


class EnoughError(Exception):
    """End the host's script."""


class Turns:
    """Takes turns between two functions, and notes how long the step of each call is."""

    ends = float("inf")

    def __init__(
        self, edited: Callable[..., Any], injected: Callable[..., Any], size: Any, warm: int, pairs: int
    ) -> None:
        self.functions, self.size, self.warm, self.pairs = (edited, injected), size, warm, pairs
        self.steps: list[tuple[int, int, float]] = []  # variant, batch size and start

    def ratios(self) -> list[float]:
        found = []
        for i in range(self.warm, len(self.steps) - 2, 2):
            (a, *_), (b, *_), _ = three = self.steps[i : i + 3]
            if len({size for _, size, _ in three}) == 1:
                seconds = {a: three[1][2] - three[0][2], b: three[2][2] - three[1][2]}
                found.append(seconds[1] / seconds[0])
        return found

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        if time.time() > self.ends or (len(self.steps) % 20 == 0 and len(self.ratios()) >= self.pairs):
            raise EnoughError
        turn = (0, 1, 1, 0)[len(self.steps) % 4]
        self.steps.append((turn, self.size(*args, **inputs), time.process_time()))
        return self.functions[turn](*args, **inputs)


def of_graphcl(seam: Seam, *counts: int) -> tuple[Any, list[Turns]]:
    loss_fn, turns = cp.objective(seam.spec), []

    def after(seam: Seam, module: Any) -> None:
        graphcl.patch(seam, module)
        injected = module.simclr.loss_cal
        edited = lambda self, x, x_aug: loss_fn(x, x_aug, pairing="one_way")  # noqa: E731
        turns.append(Turns(edited, injected, lambda self, x, x_aug: len(x), *counts))
        module.simclr.loss_cal = lambda *args: turns[0](*args)

    return replace(graphcl.HOST, after=after), turns


def of_simcse(seam: Seam, *counts: int) -> tuple[Any, list[Turns]]:
    turns: list[Turns] = []

    def before(seam: Seam) -> None:
        models: Any = importlib.import_module("simcse.models")
        text, line = inspect.getsource(models.cl_forward), "loss = loss_fct(cos_sim, labels)"
        assert text.count(line) == 1
        names = vars(ModuleType("edited")) | vars(models) | {"objective": cp.objective(seam.spec)}
        exec(text.replace(line, 'loss = objective(z1, z2, pairing="one_way")'), names)
        simcse.patch(seam)
        turns.append(Turns(names["cl_forward"], models.cl_forward, lambda *_, input_ids, **__: len(input_ids), *counts))
        models.cl_forward = lambda *args, **inputs: turns[0](*args, **inputs)

    return replace(simcse.HOST, before=before), turns


def bert(size: str, folder: Path) -> Path:
    """Write a BERT of random weights, with the vocabulary size of the real one."""
    import transformers

    sys.path.append(str(Path(__file__).parents[1] / "support"))
    import tiny_bert

    layers, width = map(int, size.split("x"))
    tiny_bert.build(folder)
    shape = {"num_hidden_layers": layers, "num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width}
    config = transformers.BertConfig(vocab_size=30522, hidden_size=width, **shape)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host", choices=("graphcl", "simcse"))
    parser.add_argument("clone", type=Path)
    parser.add_argument("--objective", default="hcl")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--warm", type=int, default=60, metavar="STEPS")
    parser.add_argument("--bert", metavar="LAYERSxWIDTH", help="of SimCSE's script, with random weights")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--ratios", type=Path, metavar="FILE", help="add these ratios to those of FILE")
    parser.add_argument("script", nargs="+", metavar="-- SCRIPT", help="and its arguments")
    args = parser.parse_args()
    torch.set_num_threads(1)
    temperature = {"graphcl": "t=0.2", "simcse": "t=0.05"}[args.host]
    seam = Seam(f"{args.objective}:{temperature}")
    host, turns = {"graphcl": of_graphcl, "simcse": of_simcse}[args.host](seam, args.warm, args.pairs)
    file = args.ratios.resolve() if args.ratios else None
    os.chdir(args.clone)
    with tempfile.TemporaryDirectory(prefix="bert") as folder, suppress(EnoughError):  # which the script reads
        more = ["--model_name_or_path", str(bert(args.bert, Path(folder)))] if args.bert else []
        Turns.ends = time.time() + args.seconds
        launch.run(host, seam, Path(args.script[0]), [*args.script[1:], *more])
    ratios = sorted(turns[0].ratios()[: args.pairs])
    if file is not None:
        ratios = sorted([*ratios, *(json.loads(file.read_text()) if file.exists() else [])])
        file.write_text(json.dumps(ratios))
    half = round(1.96 * len(ratios) ** 0.5 / 2)
    middle = len(ratios) // 2
    low, high = ratios[max(0, middle - half)], ratios[min(len(ratios) - 1, middle + half)]
    starts = [at for _, _, at in turns[0].steps[args.warm :]]
    step = 1000 * statistics.median(b - a for a, b in pairwise(starts))
    print(
        f"{args.host}, {seam.spec}: injected / edited {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}), "
        f"{len(ratios)} pairs of steps of {step:.0f} ms; {seam.proofs} of {seam.calls} calls compared",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
