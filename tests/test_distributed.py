"""Several processes with a part of the batch each are one process with all of it: values, gradients, state.

One set of processes per number of them goes through all cases; each test then compares what they found.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_contract import SPECS, at
from torch import distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

# how many samples each process has
SIZES = {"two": [4, 4], "two, uneven": [1, 6], "four": [2, 2, 2, 2], "four, uneven": [3, 1, 4, 2]}
WIDTH, VIEWS = 5, 4
COUPLED = ["adnce:mu=auto,sigma=auto", "infonce:radius=0.1", "dro:shared=true", "dp:reduction=batch_sum"]


def given(total: int) -> dict[str, torch.Tensor]:
    """Everything that a batch of this size may come with."""
    draw = torch.Generator().manual_seed(total)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(total, *shape, WIDTH, generator=draw, dtype=torch.float64)

    return {
        "views": normal(VIEWS),
        "adversarial": normal(),
        "mixed": normal(2),
        "negatives": normal(3),
        "prior": torch.rand(total, generator=draw, dtype=torch.float64) / 4,
        "ids": torch.arange(total) // 2 * (torch.arange(total) < total - 2),
        "negative_ids": torch.arange(3 * total).view(total, 3) % (total + 5),
        "labels": torch.arange(total) % 3,
    }


BANK = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

# name: objective, number of views, arguments by name, further arguments
CASES: dict[str, tuple[str, int, tuple[str, ...], dict[str, object]]] = {
    **{f"{spec} as in its paper": (spec, 2, ("adversarial", "mixed"), {}) for spec in SPECS},
    **{
        f"{spec} of many views": (spec, 4, (), {})
        for spec in ("infonce", "hcl + 0.1*dp", "debpos", "arcl(adnce)", "aal(dcl)", "nca:prior=0.2", "mixnca")
    },
    **{
        f"{spec} paired {pairing}": (spec, 2, ("ids", "prior"), {"pairing": pairing})
        for spec in ("infonce", "hcl", "adnce:denominator=all", "mv", *COUPLED)
        for pairing in ("views", "one_way", "symmetric", "first_two", "pairs", "arcl", "single")
    },
    **{f"{spec} with labels": (spec, 2, ("labels",), {}) for spec in ("infonce", "dcl", "nca", "dro", *COUPLED)},
    **{
        f"{spec} with labels one way": (spec, 3, ("labels", "prior"), {"pairing": "one_way"})
        for spec in ("infonce", "hcl")
    },
    **{f"{spec} with hard negatives": (spec, 2, ("negatives",), {}) for spec in ("infonce", "adnce", "dro", *COUPLED)},
    "weighted hard negatives": ("hcl", 2, ("negatives", "prior"), {"negative_weight": 0.7}),
    "hard negatives and ids": ("infonce", 3, ("negatives", "ids"), {}),
    "hard negatives with ids": ("adnce", 2, ("negatives", "ids", "negative_ids"), {"negative_weight": -0.3}),
    **{f"{spec} with a queue": (spec, 2, (), {"queue": BANK}) for spec in ("infonce", "hcl", "arcl(dcl)", *COUPLED)},
    "a queue with ids": ("dcl", 2, ("ids", "prior"), {"queue": BANK, "queue_ids": torch.arange(7)}),
    "inner products": ("infonce:t=2", 2, ("adversarial",), {"normalize": False}),
    "adversarial and mixed with ids": ("intnacl:base=both", 3, ("adversarial", "mixed", "ids"), {}),
}


def ways(case: str) -> tuple[object, ...]:
    return (True,) if "labels" in case else (True, "ring")


def rows(x: torch.Tensor, part: slice) -> torch.Tensor:
    return x[part].clone()


def step(case: str, total: int, part: slice, gather: object) -> dict[str, torch.Tensor]:
    """Two training steps: the second one's loss, gradients, learned and tracked values."""
    spec, count, names, more = CASES[case]
    loss_fn, whole = at(spec).double(), given(total)
    how = {name: rows(whole[name], part) for name in names}
    leaves = {k: v.requires_grad_() for k, v in how.items() if k in ("adversarial", "mixed", "negatives")}
    found: dict[str, torch.Tensor] = {}
    for scale in (1.0, 0.7):
        leaves["views"] = (rows(whole["views"], part)[:, :count] + scale).requires_grad_()
        loss = loss_fn(*leaves["views"].unbind(1), gather=gather, **how, **more)
        grads = torch.autograd.grad(loss, [*leaves.values(), *loss_fn.parameters()], allow_unused=True)
    found["loss"] = loss.detach()
    for name, leaf, grad in zip(leaves, leaves.values(), grads, strict=False):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    for (name, _), grad in zip(loss_fn.named_parameters(), grads[len(leaves) :], strict=True):
        found[f"slope of {name}"] = grad
    return found | {f"state {name}": value for name, value in loss_fn.state_dict().items()}


def process(rank: int, world: int, folder: str) -> None:
    """What one of the processes does."""
    torch.set_num_threads(1)
    store = f"file://{folder}/meet"
    dist.init_process_group("gloo", store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    found: dict[str, object] = {}
    for sizes in (s for s in SIZES.values() if len(s) == world):
        first = sum(sizes[:rank])
        part = slice(first, first + sizes[rank])
        for case in CASES:
            for gather in ways(case):
                found[f"{sizes} {gather} {case}"] = step(case, sum(sizes), part, gather)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run(world: int, folder: Path) -> list[dict[str, dict[str, torch.Tensor]]]:
    command = [sys.executable, __file__]
    running = [subprocess.Popen([*command, str(rank), str(world), str(folder)]) for rank in range(world)]
    assert [p.wait(timeout=300) for p in running] == [0] * world
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return {world: run(world, tmp_path_factory.mktemp("gloo")) for world in (2, 4)}


@pytest.mark.parametrize(("case", "gather"), [(case, gather) for case in CASES for gather in ways(case)])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_one_process_with_the_whole_batch(processes, case, sizes, gather):
    world = len(sizes)
    found = [process[f"{sizes} {gather} {case}"] for process in processes[world]]
    for name, wanted in step(case, sum(sizes), slice(None), False).items():
        each = [process[name] for process in found]
        if name.startswith("gradient"):
            each = [torch.cat(each) / world]  # as if averaged over processes: they hold different rows
        elif name.startswith("slope"):
            each = [torch.stack(each).mean(0)]
        for value in each:
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


if __name__ == "__main__":
    process(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
