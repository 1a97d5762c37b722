"""Augmentations of graphs: what they pick, what they leave alone, and that batches stay consistent."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce, is_undirected, to_undirected

from counterpoint.integrations import graph
from counterpoint.integrations.graph.augment import AUGMENTATIONS

SIZES = [1, 2, 9, 10, 30, 57]  # some whose tenth is 0


def random_graph(n: int, seed: int, density: float = 0.2) -> Data:
    generator = torch.Generator().manual_seed(seed)
    joined = (torch.rand(n, n, generator=generator) < density).triu(1).nonzero().T
    x = torch.cat([torch.full((n, 1), float(n)), torch.arange(n).float().unsqueeze(1)], 1)
    return Data(x=x, edge_index=to_undirected(joined, num_nodes=n), y=torch.tensor([n]))


def batch_of(sizes: list[int]) -> Batch:
    return Batch.from_data_list([random_graph(n, seed) for seed, n in enumerate(sizes)])


def check(batch: Batch, graphs: int) -> None:
    """No dangling edges, none between graphs, none twice; vector, pointers and features agree."""
    assert batch.num_graphs == graphs
    assert len(batch.x) == len(batch.batch) == int(batch.ptr[-1])
    assert batch.ptr.diff().tolist() == batch.batch.bincount(minlength=graphs).tolist()
    assert bool((batch.batch.diff() >= 0).all())
    if batch.edge_index.numel():
        assert 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < len(batch.x)
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        assert coalesce(batch.edge_index).shape == batch.edge_index.shape
        assert is_undirected(batch.edge_index, num_nodes=len(batch.x))


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_a_batch_stays_consistent(name, ratio):
    original = batch_of(SIZES)
    before = original.clone()
    view = graph.augmentation(name, 0, ratio)(original)
    check(view, len(SIZES))
    assert view.y.tolist() == SIZES
    # what is left of a graph is part of it: its nodes, in order, and its edges
    owners = torch.tensor(SIZES)[view.batch].float()
    masked = (view.x[:, 0] != owners) | (view.x[:, 1] != view.x[:, 1].round())
    assert not masked.any() or name in ("mask_nodes", "random4")
    if not masked.any():
        number = view.x[:, 1].long() + before.ptr[view.batch]
        assert bool((number.diff() > 0).all())
        known = set(map(tuple, before.edge_index.T.tolist()))
        assert set(map(tuple, number[view.edge_index].T.tolist())) <= known
    for key in before.keys():  # noqa: SIM118
        assert torch.equal(original[key], before[key]), f"{key} was changed in place"


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_seed_decides_and_a_single_graph_works(name):
    one = random_graph(40, 3)
    views = [graph.augmentation(name, seed)(one) for seed in (5, 5, 6)]
    for key in ("x", "edge_index"):
        assert torch.equal(views[0][key], views[1][key])
    assert not all(torch.equal(views[0][key], views[2][key]) for key in ("x", "edge_index"))
    assert "ptr" not in views[0]
    assert views[0].y.tolist() == [40]
    stream = graph.augmentation(name, 5)
    assert not all(torch.equal(*(stream(one)[key] for _ in range(2))) for key in ("x", "edge_index"))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 1.0])
def test_exactly_the_share_is_picked(ratio):
    batch = batch_of(SIZES)
    share = [int(n * ratio + 1e-9) for n in SIZES]
    dropped = graph.DropNodes(ratio, 0)(batch)
    assert (batch.ptr.diff() - dropped.ptr.diff()).tolist() == share
    masked = graph.MaskAttributes(ratio, generator=0)(batch)
    changed = (masked.x != batch.x).any(1).long()
    assert torch.zeros(len(SIZES), dtype=torch.long).index_add(0, batch.batch, changed).tolist() == share
    assert torch.equal(masked.edge_index, batch.edge_index)
    cut = graph.PerturbEdges(ratio, generator=0)(batch)
    pairs, left = (b.batch[b.edge_index[0]].bincount(minlength=len(SIZES)) // 2 for b in (batch, cut))
    assert (pairs - left).tolist() == [int(e * ratio + 1e-9) for e in pairs.tolist()]
    assert torch.equal(cut.x, batch.x)


def test_every_node_and_edge_is_picked_equally_often():
    one, times = random_graph(20, 1), 2000
    drop, cut = graph.DropNodes(0.3, 0), graph.PerturbEdges(0.3, generator=0)
    seen, kept = torch.zeros(20), Counter()
    for _ in range(times):
        seen[drop(one).x[:, 1].long()] += 1
        kept.update(map(tuple, cut(one).edge_index.T.tolist()))
    sd = (0.7 * 0.3 / times) ** 0.5
    assert (seen / times - 0.7).abs().max() < 4.5 * sd
    share = 1 - int(0.3 * one.num_edges / 2) / (one.num_edges / 2)
    assert len(kept) == one.num_edges
    assert max(abs(n / times - share) for n in kept.values()) < 4.5 * sd


def test_dropped_edges_take_their_attributes_along():
    batch = batch_of(SIZES)
    batch.edge_attr = batch.edge_index.T.clone()
    view = graph.PerturbEdges(0.5, generator=0)(batch)
    assert len(view.edge_attr) < batch.num_edges
    assert torch.equal(view.edge_attr.T, view.edge_index)


def test_noise_has_graphcls_mean_and_deviation():
    one = random_graph(400, 0, density=0.01)
    noise = graph.MaskAttributes(1.0, generator=0)(one).x
    assert noise.mean().item() == pytest.approx(0.5, abs=0.08)
    assert noise.std().item() == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("hops", [None, 1, 2])
def test_subgraphs_are_connected_and_as_large_as_they_can_be(hops):
    batch = batch_of(SIZES)
    view = graph.Subgraph(0.3, hops, 0)(batch)
    for i in range(len(SIZES)):
        rows = view.ptr[i], view.ptr[i + 1]
        nodes = int(rows[1] - rows[0])
        assert 1 <= nodes <= int(0.3 * SIZES[i] + 1e-9) + 1
        inside = view.edge_index[:, view.batch[view.edge_index[0]] == i] - rows[0]
        adjacency = torch.eye(nodes)
        adjacency[inside[0], inside[1]] = 1
        assert bool((torch.linalg.matrix_power(adjacency, nodes) > 0).all())
        if hops is None and SIZES[i] == 57:
            assert nodes == 18
        if hops == 1:  # all are neighbours of one of them
            assert bool(adjacency.bool().all(1).any())


def grown(neighbours: list[set[int]], size: int, hops: int | None, random: torch.Generator) -> frozenset[int]:
    """A subgraph, node by node: the process that Subgraph finds by waiting times."""

    def pick(options: list[int]) -> int:
        return options[int(torch.randint(len(options), (1,), generator=random))]

    start = pick(list(range(len(neighbours))))
    kept, near = {start}, set(neighbours[start])
    while len(kept) < size and near - kept:
        new = pick(sorted(near - kept))
        kept.add(new)
        near |= neighbours[new] if hops is None else set()
    return frozenset(kept)


@pytest.mark.parametrize("hops", [None, 1])
def test_subgraphs_have_the_distribution_of_growing_node_by_node(hops):
    edges = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 2, 4, 5, 5, 6]])
    one = Data(x=torch.arange(8.0).unsqueeze(1), edge_index=to_undirected(edges, num_nodes=8))
    neighbours = [set(one.edge_index[1][one.edge_index[0] == n].tolist()) for n in range(8)]
    times, many = 20_000, Batch.from_data_list([one] * 20_000)
    random = torch.Generator().manual_seed(0)
    expected = Counter(grown(neighbours, 4, hops, random) for _ in range(times))
    view = graph.Subgraph(0.4, hops, 1)(many)
    found = Counter(frozenset(x.flatten().int().tolist()) for x in view.x.split(view.ptr.diff().tolist()))
    assert found.keys() == expected.keys()
    for kept, count in expected.items():
        assert abs(found[kept] - count) < 4.5 * (2 * count) ** 0.5 + 3, kept


def test_random_choices_are_equally_probable_and_whole():
    many = Batch.from_data_list([random_graph(30, 0)] * 3000)
    view = graph.augmentation("random4", 0)(many)
    nodes, pairs = view.ptr.diff(), view.batch[view.edge_index[0]].bincount(minlength=3000)
    masked = torch.zeros(3000).index_add(0, view.batch, (view.x[:, 0] != 30).float())
    grew, dropped = nodes <= 7, nodes == 27
    cut = (nodes == 30) & (pairs < many.num_edges // 3000)
    kinds = torch.stack([grew, dropped, cut, masked == 3])
    assert bool((kinds.sum(0) == 1).all())
    assert (kinds.float().mean(1) - 0.25).abs().max() < 0.03


def test_graphs_without_edges_or_with_one_node_survive():
    lonely = [Data(x=torch.ones(n, 2), edge_index=torch.empty(2, 0, dtype=torch.long)) for n in (1, 5, 12)]
    for name in AUGMENTATIONS:
        for sample in (Batch.from_data_list(lonely), Batch.from_data_list(lonely[:1] * 4)):
            sample.y = torch.arange(sample.num_graphs)
            view = graph.augmentation(name, 0)(sample)
            check(view, sample.num_graphs)
            assert view.y.tolist() == list(range(sample.num_graphs))
            assert bool((view.ptr.diff() > 0).all())
    everything = graph.DropNodes(1.0, 0)(batch_of(SIZES))
    check(everything, len(SIZES))
    assert len(everything.x) == 0


def test_isolated_nodes_are_nodes():
    one = random_graph(10, 0)
    one.x = torch.cat([one.x, one.x[:5]])
    assert sum(len(graph.DropNodes(0.2, seed)(one).x) for seed in range(20)) == 20 * 12


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: graph.DropNodes(1.5), "ratio must be a number with 0 <= ratio <= 1, got 1.5"),
        (lambda: graph.Subgraph(0.2, hops=0), "hops must be a whole number of at least 1"),
        (lambda: graph.augmentation("dnode"), "unknown augment 'dnode'. Did you mean 'dnodes'?"),
        (lambda: graph.RandomChoice([]), "at least one"),
    ],
)
def test_wrong_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(").replace("?", r"\?")):
        make()
