"""GraphCL (https://arxiv.org/abs/2010.13902) on TU data sets, ``unsupervised_TU/gsimclr.py``, and ADNCE's fork of it.

**Where the loss sits.** In ``simclr.loss_cal(x, x_aug)``, a method of the script's own class. The fork's
(``graph/gsimclr_robust.py``) also takes ``mode`` and the script's arguments.

**Which tensors are there.** Those of :data:`HOST`. The fork divides by ``--temp`` and has the mean over the negatives
in the denominator, plain with ``--mode easy``, weighted with ``--mode adnce`` (``--w1`` is ``mu``, ``--w2`` ``sigma``).

**How to put an objective there.** The method becomes the objective of the same tensors. Without the launcher, one line
of the script does the same, where its model is defined::

    counterpoint.plugins.graphcl.patch("adnce:t=0.05,mu=1.5", sys.modules[__name__])

The objective owns the temperature. Anchors are the first view, as in the host, unless an objective's paper compares
other pairs (ArCL, debiased positives).

**What is not possible.** More than two views with ``--aug none``. The fork's ``--mode reweight_only`` is not an
objective of this library: it can be replaced, but not compared with.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .host import ONE_WAY, Host, Seam, SeamError
from .shims.graphcl import SHIMS

# what each value of the script's --aug chooses from: names of functions in the clone's aug.py
AUGMENTATIONS = {
    "dnodes": ("drop_nodes",),
    "pedges": ("permute_edges",),
    "subgraph": ("subgraph",),
    "mask_nodes": ("mask_nodes",),
    "random2": ("drop_nodes", "subgraph"),
    "random3": ("drop_nodes", "permute_edges", "subgraph"),
    "random4": ("drop_nodes", "permute_edges", "subgraph", "mask_nodes"),
}
KEEP_ISOLATED = ("pedges", "mask_nodes")  # with these the script also encodes nodes without edges


def patch(objective: str | Seam, module: ModuleType) -> Seam:
    """Put an objective into the class ``simclr`` of the script ``module``."""
    seam = HOST.as_seam(objective)
    model: Any = getattr(module, "simclr", None)
    if not hasattr(model, "loss_cal"):
        raise SeamError(f"{module.__file__} has no simclr.loss_cal: run gsimclr.py, or gsimclr_robust.py of the fork.")
    host_loss, encode = model.loss_cal, model.forward
    encoded: deque[tuple[Any, ...]] = deque(maxlen=2)  # the graphs of a step, then their augmented copies

    def forward(self: Any, *graphs: Any) -> Any:
        encoded.append(graphs)
        return encode(self, *graphs)

    def loss_cal(self: Any, x: Tensor, x_aug: Tensor, *settings: Any) -> Tensor:
        loss_fn, graphs = seam.objective(own_spec(seam, *settings)), encoded[0]
        more = [self(*augmented(module, *graphs)) for _ in range(2, seam.views(loss_fn))]
        return seam.loss(loss_fn, lambda: host_loss(self, x, x_aug, *settings), x, x_aug, *more, pairing=ONE_WAY)

    model.forward, model.loss_cal = forward, loss_cal
    seam.say(f"replaced simclr.loss_cal in {module.__file__}")
    return seam


def own_spec(seam: Seam, mode: str | None = None, args: Any = None) -> str:
    """Return the host's own loss: GraphCL's, or the fork's with this mode and these arguments."""
    if args is None:
        return HOST.spec
    if mode == "easy":
        return f"infonce:t={args.temp},denominator=mean"
    if mode == "adnce":
        return f"adnce:t={args.temp},mu={args.w1},sigma={args.w2},denominator=mean"
    if seam.uses_own_loss:
        raise SeamError(f"graphcl: --mode {mode} is not an objective of this library; the fork's easy and adnce are.")
    return seam.spec


def augmented(module: ModuleType, x: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> tuple[Any, ...]:
    """Return another augmented copy of a batch of graphs, as the script would pass it to the model."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.utils import unbatch, unbatch_edge_index

    args = module.args
    if args.aug not in AUGMENTATIONS:
        raise SeamError(f"graphcl: --aug {args.aug} gives no further views; {', '.join(AUGMENTATIONS)} do.")
    functions = sys.modules[module.TUDataset.__module__]
    # the fork passes its --noise_ratio with this choice only
    strength = (args.noise_ratio,) if args.aug == "random2" and hasattr(args, "noise_ratio") else ()
    copies = []
    device, x, edge_index, batch = x.device, x.cpu(), edge_index.cpu(), batch.cpu()
    features, edge_indices = unbatch(x, batch, 0, graphs), unbatch_edge_index(edge_index, batch, graphs)
    for nodes, edges in zip(features, edge_indices, strict=True):
        augment = getattr(functions, random.choice(AUGMENTATIONS[args.aug]))
        copies.append(augment(Data(x=nodes.clone(), edge_index=edges), *strength))
    copy = Batch.from_data_list(copies)
    tensors = (copy.x, copy.edge_index, copy.batch)
    if args.aug not in KEEP_ISOLATED:
        tensors = _without_isolated(*tensors)
    return (*(tensor.to(device) for tensor in tensors), graphs)


def _without_isolated(x: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Drop nodes without any edge, then, as the script does, self-loops; a node with a loop alone stays."""
    keep = torch.zeros(len(x), dtype=torch.bool)
    keep[edge_index.flatten()] = True
    index = keep.cumsum(0) - 1
    return x[keep], index[edge_index[:, edge_index[0] != edge_index[1]]], batch[keep]


HOST = Host(
    name="graphcl",
    title="GraphCL on TU data sets (Shen-Lab/GraphCL, unsupervised_TU) and the graph part of junkangwu/ADNCE",
    seam="simclr.loss_cal(x, x_aug) in gsimclr.py; simclr.loss_cal(x, x_aug, mode, args) in gsimclr_robust.py",
    tensors="projections of the graphs and of their augmented copies, not normalized, no temperature; one way; the "
    "positive is not in the denominator (fork: mean over negatives); one process",
    spec="infonce:t=0.2,denominator=negatives",
    tested="torch 2.15 with torch_geometric 2.8.1; November 2026",
    evidence="the clones of GraphCL and ADNCE's graph/, unmodified, train on generated graphs; 9 steps of "
    "--verify: value within 3e-7",
    markers=(
        ("gsimclr.py", "def loss_cal(self, x, x_aug)"),
        ("gsimclr_robust.py", "def loss_cal(self, x, x_aug, mode, args)"),
    ),
    max_views=None,
    views="more than two are further copies by the clone's own augmentations; the first is the graph as it is",
    inputs="graphs cannot be mixed, nor edges moved a little",
    shims=SHIMS,
    after=patch,
)
