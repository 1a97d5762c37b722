"""Several processes with a part of the batch each are one process with all of it: values, gradients, state."""

from __future__ import annotations

import pytest
import torch
from gathered import BANK, Case, all_steps, step
from processes import run
from test_contract import SPECS
from torch import distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

# how many samples each process has
SIZES = {"two": [4, 4], "two, uneven": [1, 6], "four": [2, 2, 2, 2], "four, uneven": [3, 1, 4, 2]}
COUPLED = ["adnce:mu=auto,sigma=auto", "infonce:radius=0.1", "dro:shared=true", "dp:reduction=batch_sum"]
PAIRINGS = ["views", "one_way", "symmetric", "first_two", "pairs", "arcl", "single"]
OWN = ("adversarial", "mixed")

CASES: dict[str, Case] = {
    **{f"{spec} as in its paper": (spec.replace("=T", "=0.5"), 2, OWN, {}) for spec in SPECS},
    **{
        f"{spec} of many views": (spec, 4, (), {})
        for spec in ("infonce", "hcl + 0.1*dp", "debpos", "arcl(adnce)", "aal(dcl)", "nca:prior=0.2", "mixnca")
    },
    **{
        f"{spec} paired {pairing}": (spec, 2, ("ids", "prior"), {"pairing": pairing})
        for spec in ("infonce", "hcl", "adnce:denominator=all", "mv", *COUPLED)
        for pairing in PAIRINGS
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
    "adversarial and mixed with ids": ("intnacl:base=both", 3, (*OWN, "ids"), {}),
    "learned": ("learned(0.3,0.1,1)*infonce:t=learned(0.07,0.005,10) + 0.1*dp", 2, (), {"pairing": "symmetric"}),
    "ties for the largest": ("dro:radius=9", 2, ("duplicates",), {}),
}
Job = tuple[str, str, object]
ALL: list[Job] = [
    (case, sizes, gather)
    for sizes in SIZES
    for case in CASES
    for gather in ((True,) if "label" in case else (True, "ring"))
]
# two processes with different numbers of samples show nearly everything
FEW = ["infonce:t=T as in its paper", "infonce:t=T + 0.1*dp as in its paper", "hard negatives with ids", "learned"]


def quick(job: Job) -> bool:
    case, sizes, gather = job
    return case in FEW or (sizes == "two, uneven" and (gather is True or "paper" in case or "with" in case))


@pytest.fixture(scope="module")
def compute(tmp_path_factory, request):
    """Results of all processes by job, for the jobs that are to be tested."""
    slow = any(item.get_closest_marker("slow") for item in request.session.items if item.fspath == request.node.fspath)
    found = {}
    for world in (2, 4):
        jobs = [job for job in ALL if len(SIZES[job[1]]) == world and (slow or quick(job))]
        work = [(CASES[case], SIZES[sizes], gather) for case, sizes, gather in jobs]
        each = run(all_steps, tmp_path_factory.mktemp("gloo"), world, work)
        found |= dict(zip(jobs, zip(*each, strict=True), strict=True))
    return found


@pytest.mark.parametrize(
    "job",
    [pytest.param(job, id="-".join(map(str, job)), marks=[] if quick(job) else [pytest.mark.slow]) for job in ALL],
)
def test_one_process_with_the_whole_batch(compute, job):
    case, sizes, _ = job
    found, world, total = compute[job], len(SIZES[sizes]), sum(SIZES[sizes])
    for name, wanted in step(CASES[case], total, slice(None), False).items():
        each = [process[name] for process in found]
        if name.startswith("gradient"):
            each = [torch.cat(each) / world]  # as if averaged over processes: they hold different rows
        elif name.startswith("slope"):
            each = [torch.stack(each).mean(0)]
        for value in each:
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")
