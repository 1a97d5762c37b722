"""GraphCL's augmentations as PyG transforms, for one graph or for a whole batch at once.

Nothing here loops over graphs, nodes or edges. Each augmentation samples ``floor(ratio * n)`` of a graph's ``n`` nodes
(or undirected edges), without replacement, as GraphCL's code does.

Differences from the official code: edges are dropped in both directions or in neither, so that undirected graphs stay
undirected; no self-loops are added (GIN counts the node itself anyway); nodes that lose all their edges stay; and
``Subgraph`` grows over any number of hops, as the paper says. The official function discards the union of the
neighborhoods, so that it never leaves the first node's neighbors: that is ``Subgraph(hops=1)``.

Paper: You et al. 2020, Graph contrastive learning with augmentations, https://arxiv.org/abs/2010.13902
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import cumsum

from counterpoint.checks import is_number

from ..domain import check_choice

Seed = int | torch.Generator | None  # a generator is one on the CPU; None is torch's global one


class View:
    """Graphs to change, a single one as a batch of one.

    An augmentation replaces ``data.x``, and clears the masks ``nodes`` and ``edges`` where they are to be dropped.
    """

    def __init__(self, data: Data) -> None:
        if data.edge_index.device.type != "cpu":
            raise ValueError(f"graphs are augmented on the CPU, not on {data.edge_index.device}: move them later.")
        batched = data.get("batch") is not None
        self.data = data
        self.batch = data.batch if batched else torch.zeros(data.num_nodes, dtype=torch.long)  # the graph of each node
        self.sizes = self.batch.bincount(minlength=data.num_graphs if batched else 1)  # (graphs,)
        self.nodes = torch.ones(len(self.batch), dtype=torch.bool)
        self.edges = torch.ones(data.num_edges, dtype=torch.bool)

    def changed(self) -> Data:
        """Return the data without dropped nodes and edges; a batch's vector and pointers are updated."""
        data = self.data if self.edges.all() else self.data.edge_subgraph(self.edges)
        if self.nodes.all():
            return data
        # PyG takes everything that is as long as there are nodes for an attribute of theirs
        per_graph = {key: data[key] for key in ("y", "ptr") if key in data and "batch" in data}
        data = data.subgraph(self.nodes).update(per_graph)
        if "ptr" in data:
            data.ptr = cumsum(self.batch[self.nodes].bincount(minlength=len(self.sizes)))
        return data


def first(order: Tensor, sizes: Tensor, count: Tensor) -> Tensor:
    """Return a mask of the first ``count[g]`` of the ``sizes[g]`` rows of each graph ``g``.

    ``order`` lists the rows graph by graph.
    """
    rank = torch.arange(len(order)) - cumsum(sizes)[:-1].repeat_interleave(sizes)
    return torch.zeros(len(order), dtype=torch.bool).scatter(0, order, rank < count.repeat_interleave(sizes))


class Augmentation(BaseTransform):  # type: ignore[misc]
    """An augmentation of strength ``ratio``, with its own random generator.

    Args:
        ratio: share of a graph's nodes (edges) to change, in ``[0, 1]``.
        generator: a generator on the CPU, or a seed; by default torch's global generator.
    """

    def __init__(self, ratio: float = 0.1, generator: Seed = None) -> None:
        if not is_number(ratio) or not 0 <= ratio <= 1:
            raise ValueError(f"{type(self).__name__}: ratio must be a number with 0 <= ratio <= 1, got {ratio!r}.")
        self.ratio = float(ratio)
        self.generator = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator

    def edit(self, view: View, on: Tensor) -> None:
        """Change the graphs where ``on`` is true."""
        raise NotImplementedError

    def forward(self, data: Data) -> Data:
        view = View(data)
        self.edit(view, torch.ones(len(view.sizes), dtype=torch.bool))
        return view.changed()

    def random(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator)

    def sample(self, batch: Tensor, sizes: Tensor, count: Tensor) -> Tensor:
        """A mask that is true for ``count[g]`` random rows of the ``sizes[g]`` rows of graph ``g``."""
        return first((batch + self.random(len(batch)).double()).argsort(), sizes, count)

    def share(self, sizes: Tensor, on: Tensor) -> Tensor:
        """``floor(ratio * n)`` where ``on`` is true, else 0."""
        # so that a product such as 0.1 * 30 does not round down to 2
        return (sizes * self.ratio + 1e-6).long() * on

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ratio={self.ratio})"


class DropNodes(Augmentation):
    """Drop ``floor(ratio * n)`` nodes of each graph, with their edges."""

    def edit(self, view: View, on: Tensor) -> None:
        view.nodes &= ~self.sample(view.batch, view.sizes, self.share(view.sizes, on))


class MaskAttributes(Augmentation):
    """Replace the features of ``floor(ratio * n)`` nodes of each graph by normal noise of mean and deviation 1/2."""

    def edit(self, view: View, on: Tensor) -> None:
        if (x := view.data.x) is not None:
            masked = self.sample(view.batch, view.sizes, self.share(view.sizes, on))
            noise = torch.empty(int(masked.sum()), *x.shape[1:]).normal_(0.5, 0.5, generator=self.generator)
            view.data.x = x.index_put((masked,), noise.to(x.dtype))


class PerturbEdges(Augmentation):
    """Drop ``floor(ratio * e)`` of the ``e`` undirected edges of each graph; adds none, like the official code."""

    def edit(self, view: View, on: Tensor) -> None:
        total, (low, high) = len(view.batch), view.data.edge_index.aminmax(dim=0)
        pairs, pair_of = torch.unique(low * total + high, return_inverse=True)
        owner = view.batch[pairs // max(1, total)]
        sizes = owner.bincount(minlength=len(view.sizes))
        view.edges &= ~self.sample(owner, sizes, self.share(sizes, on))[pair_of]


class Subgraph(Augmentation):
    """Keep ``floor(ratio * n) + 1`` nodes: a random one, then repeatedly a random neighbor of those kept so far.

    Fewer, if the first node's component is smaller. Growing a graph node by node is a loop; waiting times give the same
    distribution without one. Let every node wait ``w ~ Exp(1)`` from when its first neighbor joins until it joins
    itself: the exponential distribution is memoryless, so each neighbor is equally likely to join next. Joining times
    are shortest paths with lengths ``w``, which are computed for all graphs of a batch at once.

    ``hops`` is the largest distance from the first node, at least 1, or None for any; 1 is the official code's.
    """

    def __init__(self, ratio: float = 0.2, hops: int | None = None, generator: Seed = None) -> None:
        super().__init__(ratio, generator)
        if hops is not None and (not is_number(hops) or hops < 1):
            raise ValueError(f"Subgraph: hops must be a whole number of at least 1 or None, got {hops!r}.")
        self.hops = hops

    def edit(self, view: View, on: Tensor) -> None:
        sizes, total, on = view.sizes, len(view.batch), on & (view.sizes > 0)
        start = cumsum(sizes)[:-1] + (self.random(len(sizes)) * sizes).long()
        wait = -(1 - self.random(total)).log()
        joined = torch.full((total,), torch.inf).index_fill(0, start[on], 0.0)
        source, target = view.data.edge_index[:, on[view.batch[view.data.edge_index[0]]]]
        share = self.share(sizes, on)
        # a shortest path to one of the k nearest nodes leads through these only, so it has fewer than k steps
        for _ in range(int(self.hops or share.max())):
            before, neighbor = joined, torch.full_like(joined, torch.inf)
            joined = joined.minimum(neighbor.scatter_reduce(0, target, joined[source], "amin") + wait)
            if torch.equal(joined, before):
                break
        order = joined.argsort(stable=True)
        near = first(order[view.batch[order].argsort(stable=True)], sizes, share + 1)
        view.nodes &= (near & joined.isfinite()) | ~on[view.batch]


class RandomChoice(Augmentation):
    """Apply one of several augmentations, all equally likely, to each graph."""

    def __init__(self, options: Sequence[Augmentation], generator: Seed = None) -> None:
        super().__init__(0.0, generator)
        if not options:
            raise ValueError("RandomChoice: expected at least one augmentation.")
        self.options = list(options)

    def edit(self, view: View, on: Tensor) -> None:
        chosen = torch.randint(len(self.options), view.sizes.shape, generator=self.generator)
        for number, option in enumerate(self.options):
            option.edit(view, on & (chosen == number))

    def __repr__(self) -> str:
        return f"RandomChoice({', '.join(map(repr, self.options))})"


AUGMENTATIONS: dict[str, tuple[type[Augmentation], ...]] = {
    "dnodes": (DropNodes,),
    "pedges": (PerturbEdges,),
    "mask_nodes": (MaskAttributes,),
    "subgraph": (Subgraph,),
    "random2": (DropNodes, Subgraph),
    "random3": (DropNodes, Subgraph, PerturbEdges),
    "random4": (DropNodes, Subgraph, PerturbEdges, MaskAttributes),
}
"""GraphCL's names, and the options of each."""


def augmentation(
    name: str, generator: Seed = None, ratio: float | None = None, hops: int | None = None
) -> Augmentation:
    """Create GraphCL's augmentation of this name, one of :data:`AUGMENTATIONS`.

    The ratio is that of every option; by default GraphCL's 0.1, and 0.2 for subgraphs, whose reach is ``hops``.
    """
    check_choice("augment", name, AUGMENTATIONS)
    source = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
    own: dict[str, Any] = {"generator": source} if ratio is None else {"generator": source, "ratio": ratio}
    options = [Subgraph(hops=hops, **own) if kind is Subgraph else kind(**own) for kind in AUGMENTATIONS[name]]
    return options[0] if len(options) == 1 else RandomChoice(options, source)
