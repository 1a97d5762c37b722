"""Several processes with a part of the batch each are one process with all of it: values, gradients, state."""

from __future__ import annotations

import gathered
import pytest
import torch
import wrapped
from gathered import BANK, UNEVEN, Case, all_steps, embeddings, part, step
from processes import run
from specs import OF_SCORES, REGISTERED, SPECS, at, of_scores, of_tiles
from torch import distributed as dist

import counterpoint as cp
from counterpoint.batch.options import GTE
from counterpoint.engine.distributed import LENGTH

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

# where DTensor and fully_shard are public
FSDP2 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)

# how many samples each process has
SIZES = {"two": [4, 4], "two, uneven": [1, 6], "four": [2, 2, 2, 2], "four, uneven": [3, 1, 4, 2]}
COUPLED = ["adnce:mu=auto,sigma=auto", "infonce:radius=0.1", "dro:shared=true", "dp:reduction=batch_sum"]
PAIRINGS = ["views", "one_way", "symmetric", "first_two", "pairs", "arcl"]
OWN = ("adversarial", "mixed", "index")

CASES: dict[str, Case] = {
    **{f"{spec} as in its paper": (spec.replace("=T", "=0.5"), 2, OWN, {}) for spec in SPECS},
    **{
        f"{spec} of many views": (spec, 4, (), {})
        for spec in ("infonce", "hcl + 0.1*dp", "debpos", "arcl(adnce)", "aal(dcl)", "nca:prior=0.2", "mixnca")
    },
    "supcon of many views": ("supcon", 4, (), {}),
    **{
        f"{spec} paired {pairing}": (spec, 2, ("ids", "prior"), {"pairing": pairing})
        for spec in ("infonce", "hcl", "adnce:denominator=all", "mv", *COUPLED)
        for pairing in PAIRINGS
    },
    **{
        f"{spec} with labels": (spec, 2, ("labels",), {})
        for spec in ("infonce", "dcl", "nca", "supcon", "supcon:average=inside", "dro", *COUPLED)
    },
    **{
        f"{spec} with labels one way": (spec, 3, ("labels", "prior"), {"pairing": "one_way"})
        for spec in ("infonce", "hcl")
    },
    **{f"{spec} with hard negatives": (spec, 2, ("negatives",), {}) for spec in ("infonce", "adnce", "dro", *COUPLED)},
    "weighted hard negatives": ("hcl", 2, ("negatives", "prior"), {"negative_weight": 0.7}),
    "hard negatives and ids": ("infonce", 3, ("negatives", "ids"), {}),
    "hard negatives with ids": ("adnce", 2, ("negatives", "ids", "negative_ids"), {"negative_weight": -0.3}),
    **{f"{spec} with a queue": (spec, 2, (), {"queue": BANK}) for spec in ("infonce", "hcl", "arcl(dcl)", *COUPLED)},
    "a queue with ids": ("dcl", 2, ("ids", "prior"), {"queue": cp.Keys(BANK, ids=torch.arange(7))}),
    "inner products": ("infonce:t=2", 2, ("adversarial",), {"normalize": False}),
    "adversarial and mixed with ids": ("intnacl:base=both", 3, (*OWN, "ids"), {}),
    "learned": ("learned(0.3,0.1,1)*infonce:t=learned(0.07,0.005,10) + 0.1*dp", 2, (), {"pairing": "symmetric"}),
    "ties for the largest": ("dro:radius=9", 2, ("duplicates",), {}),
    **{
        f"tiles: {spec} of {count} views with {' and '.join(names) or 'nothing'}": (
            spec,
            count,
            names,
            {"engine": "tiles:3"},
        )
        for spec, count, names in (
            ("infonce", 3, ()),
            ("hcl + 0.1*dp", 2, ("ids",)),
            ("adnce:mu=auto,denominator=mean", 2, ("negatives", "ids", "negative_ids")),
            ("debpos", 3, ()),
            ("dro", 2, ()),
        )
    },
}
RULES: dict[str, Case] = {
    **{
        f"rules: {spec} {name}": (
            spec.replace("=T", "=0.5"), 2, (*names, "index"), {"pairing": pairing, "engine": engine, **more}
        )
        for spec in (*REGISTERED, *COUPLED)
        if not at(spec).needs & {"adversarial", "mixed"}  # adversarial views have no guide
        for name, names, pairing, engine, more in (
            ("own margin", (), None, "auto", {"false_negatives": cp.margin(0.3), "empty": "zero"}),
            ("own margin in tiles", ("ids", "log_q"), None, "tiles:3",
             {"false_negatives": cp.margin(-0.6), "empty": "zero"}),
            ("guide", ("guide",), "symmetric", "auto", {"false_negatives": cp.margin(-0.2), "empty": "zero"}),
        )
        if "batch_sum" not in spec
    },
    "rules: weights": ("hcl", 2, ("log_q",), {}),
    "rules: hard with a guide": (
        "adnce:mu=auto", 2, ("negatives", "guide", "negative_guide", "log_q", "negative_log_q"),
        {"false_negatives": [cp.margin(-0.4), cp.threshold(0.8)], "empty": "zero", "engine": "tiles:3"},
    ),
    "rules: hard, exempt": (
        "infonce", 3, ("negatives", "ids", "guide"),
        {"false_negatives": cp.margin(0.1, hard=False), "engine": "tiles:4"},
    ),
    "rules: own hard negatives": (
        "dro", 2, ("negatives", "ids", "negative_ids"), {"shared_negatives": False, "negative_weight": 0.3},
    ),
    "rules: own hard negatives alone": (
        "hcl", 2, ("negatives", "negative_log_q"),
        {"in_batch": False, "false_negatives": cp.threshold(0.5), "empty": "zero"},
    ),
    "rules: hard negatives with labels": (
        "infonce", 2, ("negatives", "labels", "negative_ids", "log_q", "negative_log_q"), {},
    ),
    "rules: labels both ways": (
        "dcl", 2, ("labels", "guide"), {"pairing": "symmetric", "false_negatives": cp.margin(0.1), "empty": "zero"},
    ),
    "rules: one view with labels": ("infonce", 1, ("labels",), {}),
    **{
        f"rules: {spec} in all directions{' in tiles' if tile else ''}": (
            spec, 2, ("negatives", "ids", "negative_ids"),
            {"directions": GTE, "hardness": (mode, 1.5), "engine": of_tiles(tile)},
        )
        for spec in ("infonce", "hcl", "adnce:mu=auto")
        for tile, mode in ((None, "in_batch_negatives"), (3, "hard_negatives"))
    },
    "rules: hcl in some directions": (
        "hcl", 2, ("guide",), {"directions": ("query_to_doc", "doc_to_positive"), "false_negatives": cp.margin(-0.2)},
    ),
}  # fmt: skip
CASES |= RULES
Job = tuple[str, str]
ALL: list[Job] = [(case, sizes) for sizes in SIZES for case in CASES]
# two processes with different numbers of samples show nearly everything
FEW = ["infonce:t=T as in its paper", "infonce:t=T + 0.1*dp as in its paper", "hard negatives with ids", "learned"]


def quick(job: Job) -> bool:
    case, sizes = job
    if case in RULES:
        few = "hcl" in case or "auto" in case or not case.endswith(("margin", "tiles", "guide"))
        return (few and sizes == "two, uneven") or case == "rules: hard with a guide"
    if case in FEW:
        return sizes.endswith("uneven")
    return sizes == "two, uneven"


@pytest.fixture(scope="module")
def compute(tmp_path_factory, request):
    """Results of all processes by job, for the jobs that are to be tested."""
    slow = any(item.get_closest_marker("slow") for item in request.session.items if item.fspath == request.node.fspath)
    found = {}
    for world in (2, 4):
        jobs = [job for job in ALL if len(SIZES[job[1]]) == world and (slow or quick(job))]
        work = [(CASES[case], SIZES[sizes], True) for case, sizes in jobs]
        each = run(all_steps, tmp_path_factory.mktemp("gloo"), world, work)
        found |= dict(zip(jobs, zip(*each, strict=True), strict=True))
    return found


def jobs() -> list[object]:
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(job, id="-".join(map(str, job)), marks=marks[quick(job)]) for job in ALL]


@pytest.mark.parametrize("job", jobs())
def test_one_process_with_the_whole_batch(compute, job):
    case, sizes = job
    found, world, total = compute[job], len(SIZES[sizes]), sum(SIZES[sizes])
    for name, wanted in step(CASES[case], total, slice(None), False).items():
        each = [process[name] for process in found]
        if name.startswith("gradient"):
            each = [torch.cat(each) / world]  # as if averaged over processes: they hold different rows
        elif name.startswith("slope"):
            each = [torch.stack(each).mean(0)]
        for value in each:
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12, msg=f"{name}: {{}}".format)


# ---- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gather", [True, False])
def test_without_other_processes_gather_changes_nothing(gather):
    z, _ = embeddings()
    torch.testing.assert_close(cp.HCL()(*z, gather=gather), cp.HCL()(*z), rtol=0, atol=0)
    assert cp.gather(z) is z


def test_processes_without_a_group_are_warned_of(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match=r"gather: there are 2 processes \(WORLD_SIZE\), but no process group"):
        cp.HCL()(*embeddings()[0], gather=True)


def test_a_group_of_one(tmp_path):
    z, _ = embeddings()
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        for gather in (True, dist.group.WORLD):
            torch.testing.assert_close(cp.HCL()(*z, gather=gather), cp.HCL()(*z), rtol=0, atol=0)
        assert cp.gather(z, dist.group.WORLD) is z
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("wrong", ["rings", 3, (True,), "group"])
def test_a_wrong_gather(wrong):
    with pytest.raises(ValueError, match="gather: expected True or a process group, got"):
        cp.InfoNCE()(*embeddings()[0], gather=wrong)


@pytest.mark.parametrize(("wrong", "error"), [([1, 2], TypeError), (torch.tensor(1.0), ValueError)])
def test_what_has_no_rows_cannot_be_gathered(wrong, error):
    with pytest.raises(error, match="gather: expected a tensor"):
        cp.gather(wrong)


@pytest.mark.parametrize("spec", [s for s in OF_SCORES if "arcl" not in s and "aal" not in s])
def test_couples_anchors_says_whether_parts_average_to_the_whole(spec):
    """Only then may a host hand over some of the anchors' scores, and average."""
    spec = spec.replace("=T", "=0.5")
    draw = torch.Generator().manual_seed(0)
    pos, neg = torch.rand(6, 1, generator=draw), 2 * torch.rand(6, 9, generator=draw) - 1
    extra = {"adversarial": (pos / 2, neg.flip(1))}

    def loss(rows: slice) -> torch.Tensor:
        own = {k: (a[rows], b[rows]) for k, (a, b) in extra.items()}
        return of_scores(cp.objective(spec).eval().double(), pos[rows].double(), neg[rows].double(), **own)

    parts = (loss(slice(3)) + loss(slice(3, 6))) / 2
    same = torch.allclose(parts, loss(slice(None)), rtol=1e-9)
    assert same is not cp.objective(spec).couples_anchors


# ---- several processes ---------------------------------------------------------------------------


def test_groups(tmp_path):
    found = run(gathered.halves, tmp_path, 4)
    z, _ = embeddings()
    for rank, process in enumerate(found):
        wanted = cp.HCL()(*(z + rank // 2)).item()
        assert process["all"] == pytest.approx(wanted, rel=1e-12)
        assert process["no member"] == "gather: this process is not a member of the group."


def test_compiled_code(tmp_path):
    for process in run(gathered.compiled, tmp_path, 2):
        torch.testing.assert_close(process["compiled"], process["plain"], rtol=1e-12, atol=0)


@pytest.fixture(scope="module")
def helpers(tmp_path_factory):
    return run(gathered.helpers, tmp_path_factory.mktemp("gloo"), 2)


def test_gather_of_any_tensor(helpers):
    z, ids = embeddings()
    for rank, process in enumerate(helpers):
        torch.testing.assert_close(process["rows"], z[0], rtol=0, atol=0)
        torch.testing.assert_close(process["gradient"], torch.full_like(z[0, part(UNEVEN, rank)], 3.0))
        assert process["ids"].tolist() == ids.tolist()
        assert process["flags"].tolist() == (ids > 0).tolist()
        assert process["nothing on one"].tolist() == ids[1:].tolist()


def test_losses_of_the_own_anchors(helpers):
    """Without reduction each process has its own anchors, view by view."""
    z, _ = embeddings()
    whole = cp.InfoNCE()(*z, reduction="none").view(2, 7)
    for rank, process in enumerate(helpers):
        torch.testing.assert_close(process["each"], whole[:, part(UNEVEN, rank)].flatten())


def test_every_process_reports_the_same(helpers):
    z, _ = embeddings()
    for name in (n for n in helpers[0] if n.startswith("report")):
        wanted = cp.objective(name.removeprefix("report ")).report(*z)
        assert wanted.pop("engine[matrix]") == 1  # that of one process
        for process in helpers:
            assert process[name] == pytest.approx(wanted, rel=1e-10, nan_ok=True)


def test_second_derivatives(helpers):
    wanted = gathered.penalty(embeddings()[0])
    # the loss is taken times the number of processes, and its gradient is squared
    found = torch.cat([process["second derivative"] for process in helpers], 1) / 2**2
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_sizes_are_exchanged_on_the_cpu_where_the_group_is_for_accelerators_only(helpers):
    assert all(process["control"].tolist() == [0, 1] for process in helpers)


def assert_like_one(found, wanted):
    for process in found:
        assert process.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(process[name], value, rtol=1e-10, atol=1e-12, msg=f"{name}: {{}}".format)


def test_training_in_ddp(tmp_path):
    found = run(gathered.trained, tmp_path, 2, UNEVEN)
    assert_like_one(found, gathered.trained(0, [7], gather=False))


LAST_SIZES = {2: ([1, 6], [3, 4]), 4: ([2, 2, 2, 1], [1, 3, 1, 2])}


@pytest.mark.skipif(not FSDP2, reason="this PyTorch has no fully_shard")
@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_accumulated_gradients_in_ddp_and_fsdp(tmp_path, world):
    found = run(wrapped.wrapped_both_ways, tmp_path, world, *LAST_SIZES[world])
    for each in zip(*found, strict=True):
        assert_like_one(each, wrapped.accumulated(0, [7], [7]))


@pytest.mark.skipif(not FSDP2, reason="this PyTorch has no public DTensor")
def test_dtensors_are_refused(tmp_path):
    found = run(wrapped.of_dtensors, tmp_path, 2)[0]
    assert float(found["loss"]) == pytest.approx(cp.InfoNCE(0.3)(*embeddings()[0]).item(), rel=1e-12)
    assert found["view"] == "view 1: expected a plain tensor, got a DTensor: call to_local(), or full_tensor()."
    assert found["queue"] == "queue: expected a plain tensor, got a DTensor: call to_local(), or full_tensor()."


def test_gather_is_one_collective_in_each_direction(tmp_path):
    """Besides, processes exchange sizes, and sum their losses."""
    keys = {"views": 2, "one_way": 1, "symmetric": 2, "one_way with negatives": 4}
    new = hasattr(torch.distributed, "all_gather_single")  # which PyTorch 2.13 asks for
    gather = "all_gather_single" if new else "all_gather_into_tensor"
    scatter = "reduce_scatter_single" if new else "reduce_scatter_tensor"
    for process in run(wrapped.collectives, tmp_path, 2, UNEVEN):
        for name, per_sample in keys.items():
            forward, backward = process[name]
            rows = 6 * per_sample * 5  # padded to the larger process
            assert forward == [(gather, LENGTH), (gather, rows), ("all_reduce", 2)]
            assert backward == [(scatter, 2 * rows)]


def test_a_queue_of_everyones_keys(tmp_path):
    assert_like_one(run(gathered.enqueued, tmp_path, 2, UNEVEN), gathered.enqueued(0, [7]))


# ---- failures ------------------------------------------------------------------------------------


def test_a_killed_process_ends_the_others(tmp_path):
    survivor, dead = run(gathered.killed, tmp_path, 2, fails=True)
    assert dead is None
    assert survivor["error"] in LOST


LOST = ("RuntimeError", "DistBackendError", "DistNetworkError")


def test_a_process_that_hangs_ends_the_others_at_the_timeout(tmp_path):
    waiting, _ = run(gathered.stuck, tmp_path, 2, str(tmp_path), fails=True)
    assert waiting["error"] in LOST


@pytest.mark.parametrize(
    ("what", "texts"),
    [
        ("nan", ("the batch of rank 1 was refused", "view 1: 1 of 30 values are NaN")),
        ("empty", ("the batch of rank 1 was refused", "view 1: empty, shape")),
        ("width", ("the width of embeddings, got 5 on rank 0, 3 on rank 1",) * 2),
        ("ids", ("must agree on ids=, got 0 on rank 0, 1 on rank 1",) * 2),
        ("classes", ("must agree on labels=, got 0 on rank 0, 1 on rank 1",) * 2),
        ("gradient", ("which embeddings have a gradient, got 0 on rank 0, 3 on rank 1",) * 2),
        ("settings", ("processes must agree on the objective and its learned numbers (let Distributed",) * 2),
        ("settings", ("; here it is infonce:t=0.5,", "; here it is infonce:t=1.5,")),
        ("learned", ("processes must agree on the objective and its learned numbers (let Distributed",) * 2),
        ("positives", ("labels: expected a label that at least 2 samples share, got 7 different ones",) * 2),
    ],
)
def test_what_one_process_cannot_do_all_hear_of(tmp_path, what, texts):
    for process, text in zip(run(gathered.refused, tmp_path, 2, what, fails=True), texts, strict=True):
        assert process["error"] in ("ValueError", "RuntimeError")
        assert text in process["text"]
