"""GraphCL on TU data sets (``unsupervised_TU/gsimclr.py``), and ADNCE's fork of it (``graph/gsimclr_robust.py``).

**Where the loss sits.** In ``simclr.loss_cal(x, x_aug)``, a method of the script's own class; the fork's takes ``mode``
and the script's arguments too.

**Which tensors are there.** ``x``, the projections of the graphs as they are, and ``x_aug``, those of their augmented
copies, both ``(B, d)`` and not normalised. Anchors are ``x`` only. GraphCL divides by a fixed temperature of 0.2 and
leaves the positive out of the denominator. The fork divides by ``--temp`` and has the mean over the negatives there,
plain with ``--mode easy``, weighted with ``--mode adnce`` (``--w1`` is ``mu``, ``--w2`` is ``sigma``).

**How an objective gets there.** The method becomes the objective of the same tensors. Without the launcher, one line of
the script does the same::

    loss = loss_fn(x, x_aug, pairing="one_way")         # was: loss = model.loss_cal(x, x_aug)

The objective owns the temperature. Anchors are the first view, as in the host, unless an objective's paper compares
other pairs (ArCL, debiased positives).

**What cannot be had.** More than two views are further copies, made by the clone's own augmentations at the seam and
encoded by its model; not with ``--aug none``. Adversarial and mixed views: graphs of different shape have no mixture,
and edges cannot be moved a little. The fork's ``--mode reweight_only`` is no objective known here, so that it can be
replaced, but not be compared with.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections import deque
from types import ModuleType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from counterpoint.objective import objective

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, Shim, one_way, refuse

# what each value of the script's --aug chooses from, by the names of the functions in the clone's aug.py
AUGMENTATIONS = {
    "dnodes": ("drop_nodes",),
    "pedges": ("permute_edges",),
    "subgraph": ("subgraph",),
    "mask_nodes": ("mask_nodes",),
    "random2": ("drop_nodes", "subgraph"),
    "random3": ("drop_nodes", "permute_edges", "subgraph"),
    "random4": ("drop_nodes", "permute_edges", "subgraph", "mask_nodes"),
}
KEEP_NODES = ("pedges", "mask_nodes")  # with these the script encodes nodes without edges too


def install(seam: Seam, module: ModuleType) -> None:
    """Puts the seam into the class ``simclr`` of the script ``module``."""
    model: Any = getattr(module, "simclr", None)
    if not hasattr(model, "loss_cal"):
        raise SeamError(f"{module.__file__} has no simclr.loss_cal: run gsimclr.py, or gsimclr_robust.py of the fork.")
    if seam.spec != OWN_LOSS:
        refuse(objective(seam.spec), "graphcl", inputs="graphs cannot be mixed, nor edges moved a little")
    theirs, encode = model.loss_cal, model.forward
    encoded: deque[tuple[Any, ...]] = deque(maxlen=2)  # the graphs of a step: as they are, then augmented

    def forward(self: Any, *graphs: Any) -> Any:
        encoded.append(graphs)
        return encode(self, *graphs)

    def loss_cal(self: Any, x: Tensor, x_aug: Tensor, *settings: Any) -> Tensor:
        loss_fn, graphs = one_way(seam.objective(own_spec(seam, *settings))), encoded[0]
        more = [self(*augmented(module, *graphs)) for _ in range(2, seam.views(loss_fn))]
        return seam.loss(loss_fn, lambda: theirs(self, x, x_aug, *settings), x, x_aug, *more)

    model.forward, model.loss_cal = forward, loss_cal
    seam.say(f"replaced simclr.loss_cal in {module.__file__}")


def own_spec(seam: Seam, mode: str | None = None, args: Any = None) -> str:
    """The host's own loss: GraphCL's, or the fork's in this mode and with these arguments."""
    if args is None:
        return HOST.spec
    if mode == "easy":
        return f"infonce:t={args.temp},denominator=mean"
    if mode == "adnce":
        return f"adnce:t={args.temp},mu={args.w1},sigma={args.w2},denominator=mean"
    if seam.calls < seam.verify or seam.spec == OWN_LOSS:
        raise SeamError(f"graphcl: --mode {mode} is no objective known here; the fork's easy and adnce are.")
    return seam.spec


def augmented(module: ModuleType, x: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> tuple[Any, ...]:
    """Another augmented copy of a batch of graphs, as the script would have handed it to the model."""
    from torch_geometric.data import Batch, Data

    args = module.args
    if args.aug not in AUGMENTATIONS:
        raise SeamError(f"graphcl: --aug {args.aug} makes no further views; {', '.join(AUGMENTATIONS)} do.")
    functions = sys.modules[module.TUDataset.__module__]
    # the fork hands its --noise_ratio on with this choice only
    strength = (args.noise_ratio,) if args.aug == "random2" and hasattr(args, "noise_ratio") else ()
    copies = []
    for nodes, edges in _each(x.cpu(), edge_index.cpu(), batch.cpu(), graphs):
        augment = getattr(functions, random.choice(AUGMENTATIONS[args.aug]))
        copies.append(augment(Data(x=nodes.clone(), edge_index=edges), *strength))
    copy = Batch.from_data_list(copies)
    found = (copy.x, copy.edge_index, copy.batch)
    if args.aug not in KEEP_NODES:
        found = _connected(*found)
    return (*(tensor.to(x.device) for tensor in found), graphs)


def _each(x: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> list[tuple[Tensor, Tensor]]:
    """Features and edges of each graph of a batch."""
    sizes = batch.bincount(minlength=graphs)
    edges = edge_index.split(batch[edge_index[0]].bincount(minlength=graphs).tolist(), dim=1)
    starts = (sizes.cumsum(0) - sizes).tolist()
    nodes = x.split(sizes.tolist())
    return [(each, edge - start) for each, edge, start in zip(nodes, edges, starts, strict=True)]


def _connected(x: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without the nodes that have no edge at all and, as in the script, without loops, which kept theirs."""
    kept = torch.zeros(len(x), dtype=torch.bool)
    kept[edge_index.flatten()] = True
    number = kept.cumsum(0) - 1
    return x[kept], number[edge_index[:, edge_index[0] != edge_index[1]]], batch[kept]


def _two_results() -> bool:
    from torch_geometric import io

    read: Any = io.read_tu_data
    if len(get_args(get_type_hints(read).get("return"))) != 3:
        return False

    def read_tu_data(*args: Any, **how: Any) -> tuple[Any, Any]:
        data, slices = read(*args, **how)[:2]
        return data, slices

    io.read_tu_data = read_tu_data
    return True


def _loads_graphs() -> bool:
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    missing = {DataEdgeAttr, DataTensorAttr, GlobalStorage} - set(torch.serialization.get_safe_globals())
    if torch.__version__ < "2.6" or not missing:
        return False
    torch.serialization.add_safe_globals(list(missing))
    return True


class _Keys(list[str]):
    """A list of names that answers a call as well, for PyG itself calls it."""

    def __call__(self) -> list[str]:
        return self


def _keys_uncalled() -> bool:
    from torch_geometric.data import Data

    if isinstance(inspect.getattr_static(Data, "keys"), property):
        return False
    keys: Any = Data.keys
    Data.keys = property(lambda data: _Keys(keys(data)))
    return True


HOST = Host(
    name="graphcl",
    title="GraphCL on TU data sets (Shen-Lab/GraphCL, unsupervised_TU) and the graph part of junkangwu/ADNCE",
    seam="simclr.loss_cal(x, x_aug) in gsimclr.py; simclr.loss_cal(x, x_aug, mode, args) in gsimclr_robust.py",
    tensors="projections of the graphs and of their augmented copies, not normalised, no temperature; one way; the "
    "positive is not in the denominator (fork: mean over negatives); one process",
    spec="infonce:t=0.2,denominator=negatives",
    tested="torch 2.15 with torch_geometric 2.8.1",
    markers=(
        ("gsimclr.py", "def loss_cal(self, x, x_aug)"),
        ("gsimclr_robust.py", "def loss_cal(self, x, x_aug, mode, args)"),
    ),
    views="more than two are further copies by the clone's own augmentations; the first is the graph as it is",
    many=True,
    shims=(
        Shim("read_tu_data", "PyG 2.1 and later return three results, GraphCL unpacks two", _two_results),
        Shim("safe_globals", "torch 2.6 and later load no PyG graphs unless their classes are listed", _loads_graphs),
        Shim("data_keys", "PyG 2.4 and later have Data.keys(), the script reads Data.keys", _keys_uncalled),
    ),
    after=install,
)
