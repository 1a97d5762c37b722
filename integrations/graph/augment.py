"""GraphCL's augmentations as PyG transforms, for one graph or for a whole batch at once.

Nothing here loops over graphs, nodes or edges. Each augmentation samples ``floor(ratio * n)`` of a graph's ``n`` nodes
(or undirected edges), without replacement, as GraphCL's code does.

Differences from the official code: edges are dropped in both directions or in neither, so that undirected graphs stay
undirected; no self-loops are added (GIN counts the node itself anyway); nodes that lose all their edges stay; and
``Subgraph`` grows over any number of hops, as the paper says. The official function computes the union of the
neighborhoods and discards it, so that it never leaves the first node's neighbors: that is ``Subgraph(hops=1)``.

Paper: You et al. 2020, Graph contrastive learning with augmentations, https://arxiv.org/abs/2010.13902
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import cumsum

from counterpoint.hyper import is_number

from ..domain import check_choice


@dataclass(frozen=True)
class Graphs:
    """A batch as the augmentations see it; a single graph is a batch of one."""

    x: Tensor | None
    edge_index: Tensor
    batch: Tensor
    nodes: Tensor

    @classmethod
    def of(cls, data: Data) -> Graphs:
        batch = data.batch if data.get("batch") is not None else torch.zeros(data.num_nodes, dtype=torch.long)
        graphs = data.num_graphs if data.get("batch") is not None else 1
        if data.edge_index.device.type != "cpu":
            raise ValueError(f"graphs are augmented on the CPU, not on {data.edge_index.device}: move them later.")
        return cls(data.x, data.edge_index, batch, batch.bincount(minlength=graphs))


@dataclass(frozen=True)
class Edit:
    """What an augmentation changes: masks of nodes and edges to keep, new edges, new features. None: no change."""

    nodes: Tensor | None = None
    edges: Tensor | None = None
    new_edges: Tensor | None = None
    x: Tensor | None = None


class Augmentation(BaseTransform):  # type: ignore[misc]
    """An augmentation of strength ``ratio``, with its own random generator.

    Args:
        ratio: share of a graph's nodes (edges) to change, in ``[0, 1]``.
        generator: a generator on the CPU, or a seed; by default torch's global generator.
    """

    def __init__(self, ratio: float = 0.1, generator: int | torch.Generator | None = None) -> None:
        if not is_number(ratio) or not 0 <= ratio <= 1:
            raise ValueError(f"{type(self).__name__}: ratio must be a number with 0 <= ratio <= 1, got {ratio!r}.")
        self.ratio = float(ratio)
        self.generator = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        """The changes to the graphs where ``on`` is true."""
        raise NotImplementedError

    def forward(self, data: Data) -> Data:
        graphs = Graphs.of(data)
        return apply(data, self.edit(graphs, torch.ones(len(graphs.nodes), dtype=torch.bool)))

    def random(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator)

    def sample(self, batch: Tensor, sizes: Tensor, count: Tensor) -> Tensor:
        """A mask that is true for ``count[g]`` random rows of the ``sizes[g]`` rows of graph ``g``."""
        order = (batch + self.random(len(batch)).double()).argsort()
        # the rows of a graph are now adjacent, in random order
        rank = torch.arange(len(batch)) - cumsum(sizes)[:-1].repeat_interleave(sizes)
        return torch.zeros(len(batch), dtype=torch.bool).scatter(0, order, rank < count.repeat_interleave(sizes))

    def share(self, sizes: Tensor, on: Tensor) -> Tensor:
        """``floor(ratio * n)`` where ``on`` is true, else 0."""
        # so that a product such as 0.1 * 30 does not round down to 2
        return (sizes * self.ratio + 1e-6).long() * on

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ratio={self.ratio})"


class DropNodes(Augmentation):
    """Drop ``floor(ratio * n)`` nodes of each graph, with their edges."""

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        return Edit(nodes=~self.sample(graphs.batch, graphs.nodes, self.share(graphs.nodes, on)))


class MaskAttributes(Augmentation):
    """Replace the features of ``floor(ratio * n)`` nodes of each graph by normal noise of mean and deviation 1/2."""

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        if graphs.x is None:
            return Edit()
        masked = self.sample(graphs.batch, graphs.nodes, self.share(graphs.nodes, on))
        noise = torch.empty(int(masked.sum()), *graphs.x.shape[1:]).normal_(0.5, 0.5, generator=self.generator)
        return Edit(x=graphs.x.index_put((masked,), noise.to(graphs.x.dtype)))


class PerturbEdges(Augmentation):
    """Drop ``floor(ratio * e)`` of the ``e`` undirected edges of each graph.

    Args:
        ratio: in ``[0, 1]``.
        add: also connect as many random pairs of the graph's nodes, in both directions, as in the paper; the official
            code only drops. Pairs that are connected already and self-loops are skipped. Not for graphs with edge
            attributes, which new edges would lack.
    """

    def __init__(self, ratio: float = 0.1, add: bool = False, generator: int | torch.Generator | None = None) -> None:
        super().__init__(ratio, generator)
        self.add = add

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        low, high = graphs.edge_index.aminmax(dim=0)
        pairs, pair_of = torch.unique(low * len(graphs.batch) + high, return_inverse=True)
        owner = graphs.batch[pairs // max(1, len(graphs.batch))]
        sizes = owner.bincount(minlength=len(graphs.nodes))
        count = self.share(sizes, on)
        dropped = self.sample(owner, sizes, count)
        if not self.add:
            return Edit(edges=~dropped[pair_of])
        graph = torch.arange(len(count)).repeat_interleave(count)
        ends = (torch.rand(2, len(graph), generator=self.generator) * graphs.nodes[graph]).long()
        ends += cumsum(graphs.nodes)[graph]
        ends = ends.sort(dim=0).values
        known = torch.isin(ends[0] * len(graphs.batch) + ends[1], pairs[~dropped])
        ends = ends[:, ~known & (ends[0] != ends[1])].unique(dim=1)
        return Edit(edges=~dropped[pair_of], new_edges=torch.cat([ends, ends.flip(0)], 1))


class Subgraph(Augmentation):
    """Keep ``floor(ratio * n) + 1`` nodes: a random one, then repeatedly a random neighbor of those kept so far.

    Fewer, if the first node's component is smaller. Growing a graph node by node is a loop; waiting times give the same
    distribution without one. Let every node wait ``w ~ Exp(1)`` from when its first neighbor joins until it joins
    itself: the exponential distribution is memoryless, so each neighbor is equally likely to join next. Joining times
    are shortest paths with lengths ``w``, which are computed for all graphs of a batch at once.

    Args:
        ratio: in ``[0, 1]``.
        hops: largest distance from the first node, at least 1; None for any. 1 is the official code's.
    """

    def __init__(
        self, ratio: float = 0.2, hops: int | None = None, generator: int | torch.Generator | None = None
    ) -> None:
        super().__init__(ratio, generator)
        if hops is not None and (not is_number(hops) or hops < 1):
            raise ValueError(f"Subgraph: hops must be a whole number of at least 1 or None, got {hops!r}.")
        self.hops = hops

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        total, on = len(graphs.batch), on & (graphs.nodes > 0)
        start = cumsum(graphs.nodes)[:-1] + (self.random(len(graphs.nodes)) * graphs.nodes).long()
        wait = -(1 - self.random(total)).log()
        joined = torch.full((total,), torch.inf).index_fill(0, start[on], 0.0)
        used = on[graphs.batch[graphs.edge_index[0]]]
        source, target = graphs.edge_index[:, used]
        share = self.share(graphs.nodes, on)
        # a shortest path to one of the k nearest nodes leads through these only, so it has fewer than k steps
        for _ in range(int(self.hops or share.max())):
            before, first = joined, torch.full_like(joined, torch.inf).scatter_reduce(0, target, joined[source], "amin")
            joined = joined.minimum(first + wait)
            if torch.equal(joined, before):
                break
        order = joined.argsort(stable=True)
        order = order[graphs.batch[order].argsort(stable=True)]
        rank = torch.arange(total) - cumsum(graphs.nodes)[:-1].repeat_interleave(graphs.nodes)
        near = torch.zeros(total, dtype=torch.bool)
        near[order] = rank <= share.repeat_interleave(graphs.nodes)
        return Edit(nodes=(near & joined.isfinite()) | ~on[graphs.batch])


class RandomChoice(Augmentation):
    """Apply one of several augmentations, all equally likely, to each graph."""

    def __init__(self, options: Sequence[Augmentation], generator: int | torch.Generator | None = None) -> None:
        super().__init__(0.0, generator)
        if not options:
            raise ValueError("RandomChoice: expected at least one augmentation.")
        self.options = list(options)

    def edit(self, graphs: Graphs, on: Tensor) -> Edit:
        chosen = torch.randint(len(self.options), graphs.nodes.shape, generator=self.generator)
        merged = Edit()
        for number, option in enumerate(self.options):
            edit = option.edit(graphs, on & (chosen == number))
            # options edit disjoint graphs, so masks combine with &, and each option starts from the features so far
            graphs = graphs if edit.x is None else replace(graphs, x=edit.x)
            merged = Edit(
                _both(merged.nodes, edit.nodes),
                _both(merged.edges, edit.edges),
                _joined(merged.new_edges, edit.new_edges),
                merged.x if edit.x is None else edit.x,
            )
        return merged

    def __repr__(self) -> str:
        return f"RandomChoice({', '.join(map(repr, self.options))})"


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b


def _joined(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else torch.cat([a, b], 1)


def apply(data: Data, edit: Edit) -> Data:
    """Apply an edit. Other attributes of ``data`` are kept, and a batch's vector and pointers are updated."""
    graphs = Graphs.of(data)
    if edit.x is not None:
        data.x = edit.x
    if edit.edges is not None and not bool(edit.edges.all()):
        data = data.edge_subgraph(edit.edges)
    if edit.new_edges is not None and edit.new_edges.shape[1]:
        if extra := [key for key in data.edge_attrs() if key != "edge_index"]:
            raise ValueError(f"PerturbEdges(add=True): {', '.join(extra)} of the new edges are unknown.")
        data.edge_index = torch.cat([data.edge_index, edit.new_edges], 1)
    if edit.nodes is None or bool(edit.nodes.all()):
        return data
    # PyG takes what is as long as there are nodes for an attribute of theirs
    per_graph = {key: data[key] for key in ("y", "ptr") if key in data and "batch" in data}
    data = data.subgraph(edit.nodes)
    for key, value in per_graph.items():
        data[key] = value
    if "ptr" in data:
        data.ptr = cumsum(graphs.batch[edit.nodes].bincount(minlength=len(graphs.nodes)))
    return data


DROP, EDGES, MASK, GROW = "dnodes", "pedges", "mask_nodes", "subgraph"
AUGMENTATIONS = {
    DROP: (DROP,),
    EDGES: (EDGES,),
    MASK: (MASK,),
    GROW: (GROW,),
    "random2": (DROP, GROW),
    "random3": (DROP, GROW, EDGES),
    "random4": (DROP, GROW, EDGES, MASK),
}
"""GraphCL's names, and the options of each."""


def augmentation(
    name: str, generator: int | torch.Generator | None = None, ratio: float | None = None, hops: int | None = None
) -> Augmentation:
    """Create GraphCL's augmentation of this name, one of :data:`AUGMENTATIONS`.

    The ratio is that of every option; by default GraphCL's 0.1, and 0.2 for subgraphs, whose reach is ``hops``.
    """
    check_choice("augment", name, AUGMENTATIONS)
    source = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
    given = {} if ratio is None else {"ratio": ratio}
    classes: dict[str, Callable[..., Augmentation]] = {DROP: DropNodes, EDGES: PerturbEdges, MASK: MaskAttributes}
    classes[GROW] = partial(Subgraph, hops=hops)
    options = [classes[kind](**given, generator=source) for kind in AUGMENTATIONS[name]]
    return options[0] if len(options) == 1 else RandomChoice(options, source)
