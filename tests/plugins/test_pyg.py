"""The criterion for PyTorch Geometric, with its own modules, transforms and loaders."""

from __future__ import annotations

import functools

import pytest
import torch
from hosts import real_clone
from injected import differences, launch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, GCNConv, global_add_pool
from torch_geometric.utils import dropout_edge, dropout_node, erdos_renyi_graph, mask_feature

import counterpoint as cp
from counterpoint.plugins.pyg import ContrastiveLoss, common_nodes


@pytest.fixture
def graphs():
    torch.manual_seed(0)
    made = [erdos_renyi_graph(9, 0.4) for _ in range(12)]
    return [Data(x=torch.randn(9, 5), edge_index=edges, y=torch.tensor(i % 3)) for i, edges in enumerate(made)]


def encode(model: torch.nn.Module, data: Batch) -> torch.Tensor:
    x, _ = mask_feature(data.x, p=0.2)
    edge_index, _ = dropout_edge(data.edge_index, p=0.2)
    return global_add_pool(model(x, edge_index), data.batch, data.num_graphs)


@pytest.mark.parametrize("spec", ["adnce:t=0.2,mu=0.7", "arcl(hcl)", "nca", "debpos", "infonce + 0.1*dp"])
def test_graphs_train(graphs, spec):
    model, criterion = GIN(5, 16, 2), ContrastiveLoss(spec)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=0.01)
    data = next(iter(DataLoader(graphs, batch_size=12)))
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        torch.manual_seed(1)
        loss = criterion(*(encode(model, data) for _ in range(3)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_is_the_objective(graphs):
    model = GIN(5, 16, 2)
    data = Batch.from_data_list(graphs)
    z1, z2 = encode(model, data), encode(model, data)
    loss_fn = cp.HCL(0.3)
    torch.testing.assert_close(ContrastiveLoss(loss_fn)(z1, z2), loss_fn(z1, z2))
    one_way = ContrastiveLoss("hcl:t=0.3", pairing="one_way")
    torch.testing.assert_close(one_way(z1, z2), loss_fn(z1, z2, pairing="one_way"))
    torch.testing.assert_close(one_way(z1, z2, pairing="views"), loss_fn(z1, z2))
    labels = data.y
    torch.testing.assert_close(ContrastiveLoss(loss_fn)(z1, z2, labels=labels), loss_fn(z1, z2, labels=labels))
    assert "hcl:t=0.3" in repr(one_way)


def test_a_batch_of_one_graph_is_zero(graphs):
    model = GIN(5, 16, 2)
    data = Batch.from_data_list(graphs[:1])
    with pytest.warns(UserWarning, match=r"one sample has no negatives.*DataLoader\(drop_last=True\)"):
        loss = ContrastiveLoss("adnce:t=0.2,mu=0.7")(encode(model, data), encode(model, data))
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


def test_nodes_that_both_views_have(graphs):
    data, model = Batch.from_data_list(graphs), GCNConv(5, 8)
    views, nodes = [], []
    for seed in (0, 1):
        torch.manual_seed(seed)
        edge_index, _, kept = dropout_node(data.edge_index, p=0.3, num_nodes=data.num_nodes, relabel_nodes=True)
        views.append(model(data.x[kept], edge_index))
        nodes.append(kept.nonzero().squeeze(1))
    both = sorted(set(nodes[0].tolist()) & set(nodes[1].tolist()))
    assert 2 < len(both) < data.num_nodes
    rows = [torch.tensor([n.tolist().index(node) for node in both]) for n in nodes]
    z1, z2 = (view[row] for view, row in zip(views, rows, strict=True))
    criterion = ContrastiveLoss("infonce:t=0.2")
    loss = criterion(*views, nodes=nodes)
    torch.testing.assert_close(loss, cp.InfoNCE(0.2)(z1, z2))
    loss.backward()
    assert model.lin.weight.grad.any()

    graph_of = data.batch
    torch.testing.assert_close(
        criterion(*views, nodes=nodes, ids=graph_of), cp.InfoNCE(0.2)(z1, z2, ids=graph_of[torch.tensor(both)])
    )
    assert criterion(*views, nodes=nodes, ids=None) == loss


def test_a_report_is_that_of_the_objective():
    z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    criterion, loss_fn = ContrastiveLoss("hcl:t=0.5", pairing="one_way"), cp.HCL(0.5)
    assert criterion.report(z1, z2) == loss_fn.report(z1, z2, pairing="one_way")
    nodes = (torch.arange(8), torch.arange(2, 10))
    assert criterion.report(z1, z2, nodes=nodes) == loss_fn.report(z1[2:], z2[:6], pairing="one_way")


def test_order_and_repetitions_of_nodes_do_not_matter():
    h = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    n1, n2, n3 = torch.tensor([5, 3, 0, 6]), torch.tensor([3, 2, 5, 3, 6]), torch.tensor([6, 5, 3, 1])
    views, common = common_nodes([h[n1], h[n2], h[n3]], [n1, n2, n3])
    assert common.tolist() == [3, 5, 6]
    assert all(torch.equal(view, h[common]) for view in views)


def test_first_of_a_nodes_rows_is_taken():
    h = torch.arange(4.0).unsqueeze(1)
    (view, _), common = common_nodes([h, h], [torch.tensor([2, 1, 2, 1]), torch.tensor([1, 2, 0, 3])])
    assert common.tolist() == [1, 2]
    assert view.flatten().tolist() == [1.0, 0.0]


def test_values_per_node_of_the_graph():
    """Values per row of a view would be those of other nodes."""
    n1, n2 = torch.tensor([0, 1, 3, 4]), torch.tensor([0, 1, 2, 3, 5])
    h1, h2 = torch.randn(4, 8), torch.randn(5, 8)
    criterion = ContrastiveLoss("hcl:t=0.2")
    prior = torch.rand(6) / 10
    expected = cp.HCL(0.2)(h1[:3], h2[[0, 1, 3]], prior=prior[[0, 1, 3]])
    assert torch.equal(criterion(h1, h2, nodes=(n1, n2), prior=prior), expected)
    for one, error in ((0.02, TypeError), (torch.tensor(0.02), ValueError)):
        with pytest.raises(error, match="prior: expected"):
            criterion(h1, h2, nodes=(n1, n2), prior=one)
    for rows in (3, 4, 5):
        for name, value in (("ids", torch.arange(rows)), ("prior", torch.full((rows,), 0.02))):
            error = f"{name}: expected a value per node of the graph, at least 6, got {rows}"
            with pytest.raises(ValueError, match=error):
                criterion(h1, h2, nodes=(n1, n2), **{name: value})


def test_a_graph_that_lost_all_its_nodes():
    x, batch = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    criterion = ContrastiveLoss("infonce")
    whole, short = global_add_pool(x, batch), global_add_pool(x[:4], batch[:4])
    with pytest.raises(ValueError, match=r"3, 2 rows: pool with the number of graphs"):
        criterion(whole, short)
    assert criterion(whole, global_add_pool(x[:4], batch[:4], 3)).isfinite()


def test_errors_of_nodes():
    h, n = torch.randn(3, 2), torch.arange(3)
    criterion = ContrastiveLoss("infonce")
    with pytest.raises(ValueError, match="one node per row"):
        criterion(h, h, nodes=[n])
    with pytest.raises(ValueError, match="one node per row"):
        criterion(h, h, nodes=[n, n[:2]])
    mask = torch.ones(3, dtype=torch.bool)
    for nodes, got in (
        ((mask, mask), "torch.bool of (3,), torch.bool of (3,)"),
        ((n, [0, 1, 2]), "torch.int64 of (3,), list"),
        ((n, n.float()), "torch.int64 of (3,), torch.float32 of (3,)"),
        ((n, n.unsqueeze(1)), "torch.int64 of (3,), torch.int64 of (3, 1)"),
        (mask, "torch.bool of (3,)"),
    ):
        with pytest.raises(ValueError, match=r"1-D tensor of integers.*mask\.nonzero\(\)\.squeeze\(1\)") as refused:
            criterion(h, h, nodes=nodes)
        assert f"got {got};" in str(refused.value)
    assert criterion(h, h, nodes=[n.int(), mask.nonzero().squeeze(1)]).isfinite()
    with pytest.raises(ValueError, match="1 nodes in common"):
        criterion(h, h, nodes=[n, n + 2])


# ---- GRACE and PyGCL, unmodified -------------------------------------------------------------------

MODEL = """
import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def __init__(self, encoder, hidden, projected, tau):
        super().__init__()
        self.encoder, self.tau, self.fc1 = encoder, tau, torch.nn.Linear(hidden, hidden)

    def projection(self, z):
        return self.fc1(z)

    def semi_loss(self, z1, z2):
        a, b = F.normalize(z1), F.normalize(z2)
        own, other = (a @ a.T / self.tau).exp(), (a @ b.T / self.tau).exp()
        return -torch.log(other.diag() / (own.sum(1) + other.sum(1) - own.diag()))

    def loss(self, z1, z2, mean=True, batch_size=0):
        h1, h2 = self.projection(z1), self.projection(z2)
        each = (self.semi_loss(h1, h2) + self.semi_loss(h2, h1)) / 2
        return each.mean() if mean else each.sum()
"""
GRACE = """
import sys

import torch

sys.path.insert(0, {folder!r})
from model import Model

torch.manual_seed(0)
model = Model(torch.nn.Linear(6, 8), 8, 8, 0.4)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(4):
    z1, z2 = model.encoder(torch.randn(12, 6)), model.encoder(torch.randn(12, 6))
    z1.retain_grad()
    loss = model.loss(z1, z2, mean={mean})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(z1.grad.abs().sum()), float(model.fc1.weight.grad.abs().sum()))
"""
PYGCL = """
import importlib
import sys
import types

import torch

for name in ("GCL", "GCL.losses"):  # without what their __init__ imports
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [{folder!r} + "/" + name.replace(".", "/")]
loss_fn = importlib.import_module("GCL.losses.infonce").{name}(tau=0.2)
torch.manual_seed(0)
encoder = torch.nn.Linear(6, 8)
optimizer = torch.optim.SGD(encoder.parameters(), 0.1)
eye, outside = torch.eye(12), torch.ones(12, 12) - torch.eye(12)
outside[0, 3:] = {left_out}
for step in range(4):
    z1, z2 = encoder(torch.randn(12, 6)), encoder(torch.randn(12, 6))
    z1.retain_grad()
    loss = (loss_fn.compute(z1, z2, eye, outside) + loss_fn.compute(z2, z1, eye, {outside})) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(z1.grad.abs().sum()))
"""


def grace(folder, **names) -> str:
    return GRACE.replace("{folder!r}", repr(str(folder))).replace("{mean}", str(names.get("mean", True)))


def pygcl(name: str) -> str:
    folder = repr(str(real_clone("PyGCL")))
    left_out, outside = ("0", "outside") if name == "InfoNCE" else ("1", "None")
    script = PYGCL.replace("{folder!r}", folder).replace("{name}", name).replace("{left_out}", left_out)
    return script.replace("{outside}", outside)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    return functools.partial(launch, tmp_path, monkeypatch=monkeypatch, capsys=capsys, host="pyg")


def assert_host(run, script: str, calls: int, spec: str) -> None:
    own = run(script)
    assert (own.code, f"reached {calls} times" in own.err) == (0, True), own.err
    same = run(script, words=("--objective", spec))
    for ours, theirs in zip(same.numbers, own.numbers, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert max(differences(run(script, words=("--objective", "hcl:t=0.2", "--verify", "4")).err)) < 1e-4
    other = run(script, words=("--objective", "hcl:t=0.2"))
    assert other.numbers[0] != pytest.approx(own.numbers[0], rel=1e-3)


@pytest.mark.parametrize("mean", [True, False])
def test_grace(run, tmp_path, mean):
    (tmp_path / "model.py").write_text(MODEL)
    assert_host(run, grace(tmp_path, mean=mean), 4, "infonce:t=0.4")
    assert run(grace(tmp_path), words=("--objective", "arcl(hcl):views=2")).code == 0
    found = run(grace(tmp_path), words=("--objective", "arcl(hcl)"))
    assert (found.code, "compares several views, but its models augment a graph twice" in found.err) == (2, True)
    in_one_file = MODEL + grace(tmp_path).replace("from model import Model", "")
    assert_host(run, in_one_file, 4, "infonce:t=0.4")


def test_the_clone_of_grace(run):
    assert_host(run, grace(real_clone("GRACE")), 4, "infonce:t=0.4")


@pytest.mark.parametrize("name", ["InfoNCE", "InfoNCESP"])
def test_the_clone_of_pygcl(run, name):
    assert_host(run, pygcl(name), 8, "infonce:t=0.2")


def test_a_script_of_something_else(run):
    found = run("print(1)", words=("--objective", "hcl"))
    assert (found.code, "never reached" in found.err) == (3, True)
