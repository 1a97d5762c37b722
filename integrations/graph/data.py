"""Sets of graphs in memory: a TU data set by name, the embedded demo, or your own list of graphs.

Offline, put the set's text files into ``$COUNTERPOINT_DATA/tu/NAME/raw``; they are read there, and nothing is written.
Otherwise PyG downloads the set once, into ``$XDG_CACHE_HOME/counterpoint/tu`` (``~/.cache/counterpoint/tu``).
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedShuffleSplit
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.io import read_tu_data
from torch_geometric.utils import cumsum, degree, one_hot, to_undirected

from counterpoint import checks
from counterpoint.names import nearest

from ..domain import check_choice
from .evaluation import checked
from .settings import DEMO, FEATURES, KNOWN, PARTS, check_dataset

MAX_DEGREE = 100  # larger degrees share the last column
HELD_OUT = 0.3  # share of the graphs to tune on


@dataclass(frozen=True, eq=False, repr=False)
class GraphSet:
    """A set of labeled graphs as a few large tensors; batches are slices of them, without a loop over graphs.

    Features, nodes and edges are in the order of the graphs.
    """

    name: str
    x: Tensor  # (nodes, width) features of all nodes
    edge_index: Tensor  # (2, edges); node numbers start at 0 in each graph
    y: Tensor  # (graphs,) classes
    nodes: Tensor  # (graphs,) number of nodes of each graph
    edges: Tensor  # (graphs,) number of directed edges of each graph

    def __post_init__(self) -> None:
        checks.require_finite(self.x, f"{self.name}: node features")
        expected = {"nodes": int(self.nodes.sum()), "edges": int(self.edges.sum()), "graphs": len(self.nodes)}
        actual = {"nodes": len(self.x), "edges": self.edge_index.shape[1], "graphs": len(self.y)}
        if expected != actual or len(self.edges) != len(self.y):
            raise ValueError(f"{self.name}: the graphs' sizes say {expected}, the tensors hold {actual}.")
        inside = (self.edge_index >= 0) & (self.edge_index < self.nodes.repeat_interleave(self.edges))
        if not bool(inside.all()):
            raise ValueError(f"{self.name}: {int((~inside).any(0).sum())} edges leave their graph.")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        sizes = f"{len(self.x)} nodes of {self.x.shape[1]} features, {self.edge_index.shape[1]} edges"
        return f"GraphSet({self.name!r}, {len(self)} graphs of {len(self.y.unique())} classes, {sizes})"

    @classmethod
    def from_list(cls, graphs: Iterable[Data], name: str = "graphs", features: str = "auto") -> GraphSet:
        """Collect a PyG data set or a list of ``Data`` with ``edge_index``, ``y`` and optionally ``x``."""
        if not (data_list := list(graphs)):
            raise ValueError(f"{name}: no graphs.")
        if missing := [i for i, data in enumerate(data_list) if data.edge_index is None or data.y is None]:
            raise ValueError(f"{name}: graph {missing[0]} has no edge_index or no y.")
        batch = Batch.from_data_list(data_list)
        nodes, edges = batch.ptr.diff(), torch.tensor([data.num_edges for data in data_list])
        local = batch.edge_index - batch.ptr[:-1].repeat_interleave(edges)
        return cls._featured(name, batch.x, local, batch.y.flatten(), nodes, edges, features)

    @classmethod
    def _featured(
        cls, name: str, x: Tensor | None, edge_index: Tensor, y: Tensor, nodes: Tensor, edges: Tensor, features: str
    ) -> GraphSet:
        check_choice("features", features, FEATURES)
        labels = x if x is not None and x.shape[1] > 0 else None
        if features == "labels" and labels is None:
            raise ValueError(f"{name}: its nodes have no labels; features can be degree or constant.")
        constant = torch.ones(int(nodes.sum()), 1)
        x = constant if labels is None or features in ("degree", "constant") else labels.float()
        data = cls(name, x, edge_index, y, nodes, edges)
        return replace(data, x=data.degrees()) if features == "degree" else data

    @cached_property
    def starts(self) -> tuple[Tensor, Tensor]:
        """The index of each graph's first node and of its first edge."""
        return cumsum(self.nodes), cumsum(self.edges)

    def degrees(self) -> Tensor:
        """The one-hot degree of each node, ``(nodes, largest degree + 1)``."""
        offset = self.starts[0][:-1].repeat_interleave(self.edges)
        degrees = degree(self.edge_index[0] + offset, len(self.x), torch.long)
        return one_hot(degrees.clamp(max=MAX_DEGREE), dtype=torch.float)  # type: ignore[no-any-return]

    @cached_property
    def checksum(self) -> str:
        """Of the tensors, whatever files they came from."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.edge_index, self.y, self.nodes, self.edges):
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def batch(self, index: Tensor) -> Batch:
        """The graphs ``index`` as a PyG batch."""
        first_node, first_edge = self.starts
        nodes, edges = self.nodes[index], self.edges[index]
        ptr = cumsum(nodes)
        row, column = _spans(first_node[index], nodes), _spans(first_edge[index], edges)
        edge_index = self.edge_index[:, column] + ptr[:-1].repeat_interleave(edges)
        graph = torch.arange(len(index)).repeat_interleave(nodes)  # of each node
        return Batch(x=self.x[row], edge_index=edge_index, y=self.y[index], number=index, batch=graph, ptr=ptr)


def _spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """Concatenate ``[s, s + 1, ..., s + length - 1]`` of each start."""
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) + (starts - ends + lengths).repeat_interleave(lengths)


def load(name: str, features: str = "auto", seed: int = 0) -> GraphSet:
    """Load a TU data set by its name, or ``demo``.

    Args:
        name: of :class:`torch_geometric.datasets.TUDataset`, or ``demo`` for :func:`demo`.
        features: ``labels`` are one-hot node labels (node attributes are left out, as is usual in this field);
            ``constant`` is a 1 for each node, which GIN's first sum turns into the degree: GraphCL's unsupervised code
            does so for sets without node labels; ``degree`` is the one-hot degree, at most 100, of its semi-supervised
            code. ``auto`` takes labels if there are any, else the constant.
        seed: of the demo's graphs.
    """
    if name == DEMO:
        return demo(seed=seed, features=features)
    check_dataset(name)
    raw = Path(os.environ.get("COUNTERPOINT_DATA") or os.devnull, "tu", name, "raw")
    try:
        if raw.is_dir():
            for file in raw.glob("*.txt"):
                if file.stat().st_size and not file.read_bytes().endswith(b"\n"):
                    raise ValueError(f"{file.name} has no newline at its end, and PyG drops such a last line")
            data, slices, sizes = read_tu_data(str(raw), name)
        else:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "counterpoint", "tu")
            downloaded = TUDataset(str(cache), name, use_node_attr=True)
            data, slices, sizes = downloaded._data, downloaded.slices, downloaded.sizes
    except Exception as error:  # of the file system, the parser or the network
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        if raw.is_dir():
            raise ValueError(f"dataset {name!r}: the files in {raw} cannot be read ({why}).") from error
        hint = " Offline, --root or $COUNTERPOINT_DATA names the folder that has tu/."
        hint = hint if name in KNOWN else nearest(name, KNOWN)
        raise ValueError(f"dataset {name!r}: it cannot be downloaded ({why}).{hint}") from error
    if data.y is None or data.y.dim() != 1 or data.y.is_floating_point():
        raise ValueError(f"dataset {name!r}: its graphs have no classes.")
    x = None if data.x is None else data.x[:, sizes["num_node_attributes"] :]
    nodes = slices["x"].diff() if "x" in slices else torch.tensor(data._num_nodes)
    # PyG's reader counts edges up to the last graph that has one
    edges = torch.nn.functional.pad(slices["edge_index"].diff(), (0, len(nodes) + 1 - len(slices["edge_index"])))
    return GraphSet._featured(name, x, data.edge_index, data.y, nodes, edges, features)


load_cached = lru_cache(maxsize=2)(load)


def bag_of_nodes(data: GraphSet) -> NDArray[np.float32]:
    """Count each node label and each degree in a graph: a baseline without a network, ``(graphs, width)``."""
    graph = torch.arange(len(data)).repeat_interleave(data.nodes)
    bag = torch.cat([data.x, data.degrees()], 1)
    return torch.zeros(len(data), bag.shape[1]).index_add_(0, graph, bag).numpy()


def demo(graphs: int = 300, seed: int = 0, features: str = "auto") -> GraphSet:
    """Random graphs of six kinds, of similar size and density, from networkx; a tenth of their edges are then swapped.

    Uniform (Erdős–Rényi), preferential attachment (Barabási–Albert), the same with triangles (Holme–Kim), small world
    (Watts–Strogatz), communities (stochastic blocks), and random geometric graphs; as many of each kind.
    """
    if graphs < 6:
        raise ValueError(f"demo: graphs must be at least 6, got {graphs!r}.")
    random = np.random.default_rng(seed)
    data, generators = [], list(KINDS.values())
    for number in range(graphs):
        kind, n, state = number % len(KINDS), int(random.integers(20, 41)), int(random.integers(2**31))
        graph = generators[kind](n, state)
        edges = graph.number_of_edges()
        networkx.double_edge_swap(graph, edges // 10, 100 * edges, seed=state)
        edge_index = to_undirected(torch.tensor(list(graph.edges)).T)
        data.append(Data(edge_index=edge_index, num_nodes=n, y=torch.tensor([kind])))
    return GraphSet.from_list(data, DEMO, features)


KINDS: dict[str, Callable[[int, int], networkx.Graph]] = {
    "uniform": lambda n, seed: networkx.gnm_random_graph(n, 2 * n - 4, seed),
    "preferential": lambda n, seed: networkx.barabasi_albert_graph(n, 2, seed),
    "triangles": lambda n, seed: networkx.powerlaw_cluster_graph(n, 2, 0.9, seed),
    "small world": lambda n, seed: networkx.connected_watts_strogatz_graph(n, 4, 0.1, seed=seed),
    "communities": lambda n, seed: networkx.random_partition_graph(
        [n // 3, n // 3, n - 2 * (n // 3)], 9 / n, 1.2 / n, seed
    ),
    "geometric": lambda n, seed: networkx.random_geometric_graph(n, (1.35 / n) ** 0.5, seed=seed),
}
"""The classes of :func:`demo`, in the order of their numbers."""


def prepare(arguments: Mapping[str, Any]) -> tuple[GraphSet, NDArray[np.int64], NDArray[np.int64]]:
    """Load and check the data of a cell: its graphs, the numbers of those whose classes are used, and these classes."""
    graphs = load_cached(arguments["dataset"], arguments["features"])
    rows = part(graphs, arguments["part"])
    y = graphs.y[rows].numpy()
    checked(y.reshape(-1, 1), y, arguments["folds"])
    return graphs, rows, y


def part(graphs: GraphSet, name: str) -> NDArray[np.int64]:
    """The numbers of the graphs of a part: ``all``, a stratified 30 % to ``tune`` on, or the rest to ``report``."""
    check_choice("part", name, PARTS)
    rows = np.arange(len(graphs))
    if name == "all":
        return rows
    report, tune = next(StratifiedShuffleSplit(1, test_size=HELD_OUT, random_state=0).split(rows, graphs.y.numpy()))
    return np.sort(tune if name == "tune" else report)
