"""The plugin for lightly, against lightly itself; in two processes too, for which this file is also their script."""

from __future__ import annotations

import functools
import json
import multiprocessing
import re
import runpy
from pathlib import Path

import pytest
import torch
from injected import launch
from processes import PATIENCE
from torch import nn

import counterpoint as cp
from counterpoint.plugins import lightly as plugin
from counterpoint.plugins.host import OWN_LOSS, Seam, SeamError
from counterpoint.vectors import unit

losses = pytest.importorskip("lightly.loss")
from lightly.models.modules import SimCLRProjectionHead  # noqa: E402

EXACT = {torch.float32: 1e-6, torch.float64: 1e-12}
ATTACKED = {"robust", "intcl", "intnacl"}
SPECS = [
    f"{name}(infonce){':views=2' * issubclass(kind, cp.ArCL)}" if issubclass(kind, cp.Wrapper) else name
    for name, kind in cp.registry.items()
]


def projections(views: int = 2, batch: int = 6, width: int = 8, dtype=torch.float64) -> list[torch.Tensor]:
    z = torch.randn(views, batch, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [view.to(dtype).requires_grad_() for view in z]


def value_and_gradients(criterion, views) -> list[torch.Tensor]:
    loss = criterion(*views)
    return [loss.detach(), *torch.autograd.grad(loss, [v for v in views if v.requires_grad])]


def assert_equal(ours, theirs, tolerance) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


# ---- the criterion -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("t", [0.05, 0.1, 0.5])
@pytest.mark.parametrize(
    ("kind", "spec"), [("NTXentLoss", "infonce:t={}"), ("DCLLoss", "infonce:t={},denominator=negatives")]
)
def test_reproduces(kind, spec, t, dtype):
    views = projections(dtype=dtype)
    theirs = value_and_gradients(getattr(losses, kind)(temperature=t), views)
    assert_equal(value_and_gradients(plugin.ContrastiveLoss(spec.format(t)), views), theirs, EXACT[dtype])


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("key_has_gradient", [True, False])
def test_reproduces_with_a_bank(key_has_gradient, dtype):
    """Old bank as negatives; the batch enters it; not in evaluation; over the bank's end."""
    ours, theirs = plugin.ContrastiveLoss("infonce:t=0.1", memory_bank_size=(16, 8)), losses.NTXentLoss(0.1, (16, 8))
    ours.to(dtype), theirs.to(dtype)
    theirs.memory_bank.load_state_dict(ours.memory_bank.state_dict())
    for mine, other in zip(ours.memory_bank.buffers(), theirs.memory_bank.buffers(), strict=True):
        other.copy_(mine)
    for step in range(5):
        query, key = (view.detach() + step for view in projections(dtype=dtype))
        query.requires_grad_(step != 2)
        key.requires_grad_(key_has_gradient)
        if step == 2:
            assert_equal([ours(query, key).detach()], [theirs(query, key).detach()], EXACT[dtype])
        else:
            assert_equal(*(value_and_gradients(criterion, [query, key]) for criterion in (ours, theirs)), EXACT[dtype])
        torch.testing.assert_close(ours.memory_bank.bank, theirs.memory_bank.bank, rtol=0, atol=EXACT[dtype])
        assert ours.memory_bank.bank_ptr == theirs.memory_bank.bank_ptr


def test_treatments():
    """As the objective computes them; the bank's keys are embeddings alone."""
    z0, z1 = (z.detach() for z in projections())
    z1, y = z1[[0, 1, 2, 5, 4, 5]], torch.arange(6) // 2
    guide = z1, z0.flip(0)
    for text, told in {
        "infonce:t=0.5; duplicates": {},
        "hcl:t=0.5; ids=y": {"ids": y},
        "supcon:t=0.5; labels=y": {"labels": y},
        "infonce:t=0.5; guide=g; margin=-0.1": {"guide": guide},
    }.items():
        expected = cp.treatment(text)(z0, z1, **told)
        torch.testing.assert_close(plugin.ContrastiveLoss(text)(z0, z1, **told), expected)
        assert not torch.isclose(expected, cp.objective(text.partition(";")[0])(z0, z1))
        if "margin" not in text:
            with pytest.raises(ValueError, match=r"the memory bank has no (duplicates|ids|labels) of its keys"):
                plugin.ContrastiveLoss(text, (16, 8))
    banked = plugin.ContrastiveLoss("infonce:t=0.5; margin=-0.1", (16, 8))
    for _ in range(2):
        banked(z0.requires_grad_(), z1).backward()
    assert float(banked.objective.counts["anchors"]) == 12


def test_a_bank_takes_two_views():
    criterion = plugin.ContrastiveLoss("infonce", memory_bank_size=(16, 8))
    before = criterion.memory_bank.bank.clone()
    with pytest.raises(ValueError, match="a memory bank goes with two views, query and key, got 3"):
        criterion(*projections(3))
    assert torch.equal(criterion.memory_bank.bank, before)
    for key in projections(1):
        for query in (key, key.clone().requires_grad_()):
            with pytest.raises(
                ValueError, match=r"the memory bank has no labels of its keys; loss_fn\(query, key, queue="
            ):
                criterion(query, key, labels=torch.arange(len(key)))


@pytest.mark.parametrize("spec", ["infonce", "arcl(hcl):views=4", "nca", "debpos", "infonce + 0.1*dp"])
def test_four_views(spec):
    views = projections(4)
    assert plugin.ContrastiveLoss(spec)(*views) == cp.objective(spec)(*views)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("spec", ["infonce:t=0.5", "infonce:denominator=negatives", "infonce:t=learned(0.5,0.1,1)"])
def test_a_batch_of_one_sample_is_zero_as_lightlys(spec, gather):
    """Of all views, and of what is learned, so that every process has a gradient."""
    views = projections(batch=1)
    criterion = plugin.ContrastiveLoss(spec, gather_distributed=gather)
    with pytest.warns(UserWarning, match=r"one sample has no negatives.* DataLoader\(drop_last=True\)"):
        loss = criterion(*views)
    torch.testing.assert_close(loss, losses.NTXentLoss()(*views))
    assert loss.dtype == torch.float64
    loss.backward()
    assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in (*views, *criterion.parameters()))


def test_a_batch_of_one_sample_has_the_banks_negatives(recwarn):
    for gradient in (True, False):
        query, key = projections(batch=1, dtype=torch.float32)
        assert plugin.ContrastiveLoss("infonce", memory_bank_size=(16, 8))(query, key.requires_grad_(gradient)) > 0
    assert not recwarn.list


def test_views_that_do_not_match_are_no_batch_of_one():
    (view, _), (_, other) = projections(batch=1), projections()
    with pytest.raises(ValueError, match="view 2: expected shape"):
        plugin.ContrastiveLoss("infonce")(view, other)


def test_autocast_changes_nothing():
    criterion = plugin.ContrastiveLoss("infonce:t=0.05", memory_bank_size=(16, 8))
    views = [view.detach().clone().requires_grad_() for view in projections(dtype=torch.float32)]
    with torch.no_grad():
        outside = criterion(*views)
        with torch.autocast("cpu", torch.bfloat16):
            assert criterion(*views) == outside


class Model(nn.Module):
    """A projection head of lightly's on a linear encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(12, 16), SimCLRProjectionHead(16, 16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def train(criterion, views: int = 2, steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for _ in range(steps):
        x = torch.randn(8, 12)
        loss = criterion(*(model(x + 0.1 * torch.randn_like(x)) for _ in range(views)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    return seen


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bank", [0, (16, 8)])
def test_every_objective_trains(spec, bank):
    criterion = plugin.ContrastiveLoss(spec, memory_bank_size=bank)
    if spec in ATTACKED or "sogclr" in spec or (bank and "matryoshka" in spec):
        with pytest.raises((ValueError, TypeError), match=r"needs (adversarial views|embeddings, which)|pass index="):
            train(criterion)
        return
    assert len(train(criterion)) == 3


# ---- injected ------------------------------------------------------------------------------------


@pytest.fixture
def injected(monkeypatch):
    """Installs a seam, and takes it away again."""
    monkeypatch.setattr(losses.NTXentLoss, "forward", losses.NTXentLoss.forward)
    monkeypatch.setattr(losses.DCLLoss, "forward", losses.DCLLoss.forward)

    def install(spec: str, verify: int = 0) -> Seam:
        seam = Seam(spec, verify)
        if spec != OWN_LOSS:
            plugin.HOST.check(spec)
        return plugin.patch(seam)

    return install


CRITERIA = {
    "simclr": lambda: losses.NTXentLoss(temperature=0.2),
    "moco": lambda: losses.NTXentLoss(memory_bank_size=(16, 8)),
    "dcl": lambda: losses.DCLLoss(),
}
if hasattr(losses, "DirectCLRLoss"):  # since 1.5.23; it inherits the method that is replaced
    CRITERIA["directclr"] = lambda: losses.DirectCLRLoss(loss_dim=4)


@pytest.mark.parametrize("name", CRITERIA)
def test_host_reproduces(injected, name):
    torch.manual_seed(0)
    theirs = train(CRITERIA[name]())
    seam = injected(OWN_LOSS, verify=2)
    torch.manual_seed(0)
    assert train(CRITERIA[name]()) == pytest.approx(theirs, rel=1e-6)
    assert seam.proofs == 2
    assert seam.worst < 1e-4


def squared_distance(out0, out1):
    return ((out0 - 2 * out1) ** 2).sum(1)  # another number for each view, and a gradient


WEIGHTS = {
    "dclw": losses.DCLWLoss,
    "dclw, sigma": lambda: losses.DCLWLoss(0.2, sigma=0.1),
    "one's own": lambda: losses.DCLLoss(weight_fn=squared_distance),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # lightly's
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_positives(injected, name):
    theirs = train(WEIGHTS[name]())
    seam = injected(OWN_LOSS, verify=2)
    assert train(WEIGHTS[name]()) == pytest.approx(theirs, rel=1e-6)
    assert (seam.proofs, seam.worst < 1e-4) == (2, True)
    injected("dro")
    with pytest.raises(SeamError, match=r"dro.* has no weights of positives, .*use DCLLoss in place of DCLWLoss"):
        train(WEIGHTS[name]())


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_positives_by_hand(name, dtype):
    theirs = WEIGHTS[name]()
    spec = f"infonce:t={theirs.temperature!r},denominator=negatives"
    ours = plugin.ContrastiveLoss(spec, weight_fn=theirs.weight_fn)
    views = projections(dtype=dtype)
    assert_equal(*(value_and_gradients(criterion, views) for criterion in (ours, theirs)), EXACT[dtype])


def test_weights_go_with_two_views_and_no_bank():
    with pytest.raises(ValueError, match="weight_fn= goes without a memory bank"):
        plugin.ContrastiveLoss("infonce", (16, 8), weight_fn=squared_distance)
    with pytest.raises(ValueError, match="weight_fn= goes with two views, got 3"):
        plugin.ContrastiveLoss("infonce", weight_fn=squared_distance)(*projections(3))


def test_a_negative_temperature_is_refused(injected):
    injected("hcl")
    with pytest.raises(SeamError, match="no objective has a temperature of -1"):
        train(losses.NTXentLoss(temperature=-1))


BY_HAND = {
    "simclr": (lambda: losses.NTXentLoss(0.2), {}),
    "moco": (lambda: losses.NTXentLoss(0.2, (16, 8)), {"memory_bank_size": (16, 8)}),
    "dcl": (lambda: losses.DCLLoss(), {}),
    "dclw": (lambda: losses.DCLLoss(weight_fn=squared_distance), {"weight_fn": squared_distance}),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("key_has_gradient", [True, False])
@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_are_those_of_our_criterion(injected, name, key_has_gradient):
    create, options = BY_HAND[name]
    query, key = projections()
    key.requires_grad_(key_has_gradient or name != "moco")
    theirs, ours = create(), plugin.ContrastiveLoss("hcl:t=0.3,denominator=with_positive", **options).double()
    if name == "moco":
        theirs.double().memory_bank.bank.copy_(ours.memory_bank.bank)
    expected = value_and_gradients(ours, [query, key])[1:]
    seam = injected("hcl:t=0.3,denominator=with_positive")
    assert_equal(value_and_gradients(theirs, [query, key])[1:], expected, 1e-9)
    assert (seam.proofs, seam.worst < 1e-9) == (1, True)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", CRITERIA)
def test_every_objective_is_injected(injected, capsys, spec, name):
    if cp.objective(spec).needs:
        message = "needs (the positions of samples|(adversarial|mixed) views, but the criterion sees projections)"
        with pytest.raises(SeamError, match=message):
            injected(spec)
        return
    seam = injected(spec)
    assert capsys.readouterr().err.count("replacing the gradient of the arguments of") == 2
    criterion = CRITERIA[name]()
    if name == "moco" and "matryoshka" in spec:
        with pytest.raises(SeamError, match="needs embeddings, which scores, logits and other wrappers do not have"):
            train(criterion)
        return
    assert len(train(criterion)) == 3
    assert seam.calls == 3


def test_a_last_batch_of_one_sample_stays_zero(injected):
    injected("hcl")
    views = projections(batch=1)
    losses.NTXentLoss()(*views).backward()
    assert not any(view.grad.any() for view in views)


def test_two_criteria_have_schedules_of_their_own(injected):
    seam = injected("infonce:t=schedule(0.5,0.1,10)")
    first, second = losses.NTXentLoss(), losses.NTXentLoss()
    views = projections()
    for _ in range(3):
        assert_equal(*(value_and_gradients(criterion, views) for criterion in (first, second)), 1e-12)
    assert seam.calls == 6


def test_compiled_code_calls_the_seam_and_is_compiled_once(injected):
    seam, graphs = injected("infonce:t=schedule(0.5,0.1,4)"), []
    encoder, criterion = torch.nn.Linear(6, 4), losses.NTXentLoss()

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    @functools.partial(torch.compile, backend=backend)
    def step(x):
        return criterion(encoder(x), encoder(x + 0.1))

    x, ours = torch.randn(8, 6), cp.objective(seam.spec)
    for _ in range(5):
        pairs = (step(x), ours(encoder(x), encoder(x + 0.1)))
        torch.testing.assert_close(*(torch.autograd.grad(loss, encoder.weight)[0] for loss in pairs))
    assert seam.calls == 5
    assert len(graphs) == 1


@pytest.mark.parametrize("spec", ["arcl(hcl):views=4", "arcl(hcl)", "infonce + 0.1*aal(hcl)"])
def test_more_views_are_refused(injected, spec):
    with pytest.raises(SeamError, match=r"its criteria take two.*plugins\.lightly\.ContrastiveLoss"):
        injected(spec)


SCRIPT = """
import torch
from lightly.loss import NTXentLoss
model = torch.nn.Linear(12, 8)
criterion = NTXentLoss(temperature=0.2, memory_bank_size=(16, 8))
for step in range(3):
    x = torch.randn(8, 12)
    with torch.no_grad():
        key = model(x + 0.1)
    criterion(model(x), key).backward()
print("trained", type(criterion).__name__)
"""


def test_an_unmodified_script(tmp_path, monkeypatch, capsys):
    for kind in (losses.NTXentLoss, losses.DCLLoss):  # which the launcher replaces in this process
        monkeypatch.setattr(kind, "forward", kind.forward)
    done = launch(tmp_path, SCRIPT, monkeypatch, capsys, "lightly", ("--objective", "hcl", "--verify", "2"))
    assert done.code == 0, done.err
    assert "trained NTXentLoss" in done.out
    assert "the gradient at the embeddings was that of the host's own loss in 3 of them" in done.err


def test_example_of_lightning(capsys):
    pytest.importorskip("lightning")
    script = Path(__file__).parents[2] / "examples" / "existing_repos" / "lightning" / "train.py"
    runpy.run_path(str(script))["main"]("arcl(hcl:t=0.2):views=4")
    before, after = re.findall(r"(\d+)%", capsys.readouterr().out)
    assert int(before) < int(after)


# ---- two processes -------------------------------------------------------------------------------

GATHERED = {
    "infonce:t=0.1": 2,
    "infonce:t=0.1,denominator=negatives": 2,
    "hcl:t=0.2": 3,
    "adnce:t=0.5,mu=auto": 2,
    "dro:shared=true": 2,
    "infonce:t=0.5 + 0.1*dp": 2,
    "arcl(adnce):views=3": 3,
    "debpos": 2,
    "nca": 3,
}


def batch(views: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(views, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def encoder() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(5, 4, dtype=torch.float64)


def extras(spec: str) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([0, 1, 2, 3, 0, 4, 5, 6])} if spec.startswith("hcl") else {}


def step(model, criterion, views, **how) -> tuple[float, list[list[float]]]:
    model.zero_grad()
    loss = criterion(*map(model, views), **how)
    loss.backward()
    return loss.item(), [p.grad.flatten().tolist() for p in model.parameters()]


def one_of_two(rank: int, folder: str | Path) -> None:
    """What each of the two processes does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    own = slice(4 * rank, 4 * rank + 4)
    model = nn.parallel.DistributedDataParallel(encoder())
    found = {}
    for spec, views in GATHERED.items():
        how = {k: v[own] for k, v in extras(spec).items()}
        found[spec] = step(model, plugin.ContrastiveLoss(spec, gather_distributed=True), batch(views)[:, own], **how)
    theirs = {
        "infonce:t=0.1": losses.NTXentLoss(0.1, gather_distributed=True),
        "infonce:t=0.1,denominator=negatives": losses.DCLLoss(0.1, gather_distributed=True),
    }
    found["theirs"] = {spec: step(model, criterion, batch(2)[:, own]) for spec, criterion in theirs.items()}
    one = slice(rank, rank + 1)
    found["one each"] = step(model, plugin.ContrastiveLoss("hcl:t=0.2", gather_distributed=True), batch(2)[:, one])
    banked = plugin.ContrastiveLoss("infonce", memory_bank_size=(16, 4), gather_distributed=True).double()
    banked(*map(model, batch(2)[:, own]))
    found["bank"] = banked.memory_bank.bank[:8].tolist()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    other = multiprocessing.get_context("fork").Process(target=one_of_two, args=(1, folder))
    other.start()  # as this one, where lightly is imported already
    try:
        one_of_two(0, folder)
        other.join(PATIENCE)
        assert other.exitcode == 0
    finally:
        other.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("spec", GATHERED)
def test_gathered_is_one_process_with_the_whole_batch(two_processes, spec):
    loss, gradients = step(encoder(), plugin.ContrastiveLoss(spec), batch(GATHERED[spec]), **extras(spec))
    found = [process[spec] for process in two_processes]
    for value, mine in found:
        assert value == pytest.approx(loss, rel=1e-12)
        for parameter, whole in zip(mine, gradients, strict=True):
            assert parameter == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_one_sample_in_each_process_has_the_others_negatives(two_processes):
    loss, gradients = step(encoder(), plugin.ContrastiveLoss("hcl:t=0.2"), batch(2)[:, :2])
    for process in two_processes:
        value, mine = process["one each"]
        assert value == pytest.approx(loss, rel=1e-12)
        for parameter, whole in zip(mine, gradients, strict=True):
            assert parameter == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_gathered_is_what_lightly_computes(two_processes):
    """Its loss is of a process's own anchors; ours is the mean over processes, in each."""
    for process in two_processes:
        for spec, (_, gradients) in process["theirs"].items():
            mean = sum(each["theirs"][spec][0] for each in two_processes) / 2
            assert process[spec][0] == pytest.approx(mean, rel=1e-12)
            for mine, other in zip(process[spec][1], gradients, strict=True):
                assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)


def test_every_process_has_the_same_bank(two_processes):
    key = unit(encoder()(batch(2)[1]))
    for process in two_processes:
        torch.testing.assert_close(torch.tensor(process["bank"], dtype=torch.float64), key.detach())
