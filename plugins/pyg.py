"""PyTorch Geometric: any objective on the embeddings of graphs or nodes.

**Where the loss sits.** In scripts of GRACE and of its relatives, in ``Model.loss``; in scripts that use PyGCL, in
``InfoNCE`` of ``GCL.losses``: ``counterpoint inject pyg -- train.py`` replaces both. In a loop of your own, after
pooling (graphs) or after the last layer (nodes)::

    criterion = ContrastiveLoss("adnce:t=0.2,mu=0.7")

    z1, z2 = (global_add_pool(encoder(v.x, v.edge_index), v.batch, data.num_graphs) for v in views)
    loss = criterion(z1, z2)                            # graphs: row i of every view is graph i

    loss = criterion(h1, h2, nodes=(kept1, kept2))      # nodes: row j of h1 is node kept1[j] of the graph

**Which tensors are there.** Embeddings ``(rows, width)``, one tensor per view, not normalized and not divided by a
temperature; the objective does both. More than two views are more arguments. PyGCL has two matrices, which pairs are
positives and which are negatives, too; there, objectives get similarities.

**What to watch for.** A graph whose nodes have all been dropped is missing from what ``global_add_pool(x, batch)``
returns, and the views no longer match. Pass the pooling the number of graphs, as above. Objectives with adversarial or
mixed inputs get them as ``adversarial=`` and ``mixed=``, see :mod:`counterpoint.views`.
"""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.base import Objective
from counterpoint.batch.pairings import PAIRINGS
from counterpoint.names import check_known
from counterpoint.vectors import unit, widen

from .call import Call, checked_options, own_temperature
from .embeddings import Embeddings
from .function import for_modules
from .host import Host, Seam
from .sites import is_file

_PER_NODE = ("ids", "labels", "prior", "positive_factor")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class ContrastiveLoss(nn.Module):
    """An objective as a criterion for graph or node embeddings.

    Args:
        objective: an objective or a spec.
        pairing: which pairs of rows are compared, as in the call of an objective; by default those of its paper.
            With ``one_way``, as in GraphCL, anchors are the first view.

    >>> import torch
    >>> criterion = ContrastiveLoss("infonce:t=0.2", pairing="one_way")
    >>> criterion(torch.eye(4), torch.eye(4)).shape
    torch.Size([])
    """

    @checked_options
    def __init__(self, objective: Objective | str, pairing: str | None = None) -> None:
        super().__init__()
        self.objective: Objective = own_temperature(objective, "ContrastiveLoss")
        check_known("unknown pairing", pairing if isinstance(pairing, str) else "views", PAIRINGS)
        self.pairing = pairing

    def report(self, *views: Tensor, **options: Any) -> dict[str, float]:
        """Return the objective's diagnostics of a batch, given as in a call."""
        return self._call(*views, **options).report(self.objective)

    def forward(self, *views: Tensor, nodes: Sequence[Tensor] | None = None, **options: Any) -> Tensor:
        """Compute the loss of a batch.

        Args:
            views: ``(rows, width)``, one tensor per view.
            nodes: for node embeddings: per view, which node of the graph each row is (``n_id`` of a sampled batch,
                the nodes that ``dropout_node`` kept). Nodes that are in all views are compared, each once.
            options: further arguments of the objective. ``ids``, ``labels``, ``prior`` and ``positive_factor`` have a
                value per row or, with ``nodes``, one per node of the graph: with ``ids=data.batch``, nodes of one graph
                are not negatives.
        """
        return self._call(*views, nodes=nodes, **options).loss(self.objective)

    def _call(self, *views: Tensor, nodes: Sequence[Tensor] | None = None, **options: Any) -> Call:
        if nodes is not None:
            views, common = common_nodes(views, nodes)
            last = max(int(n.max()) for n in nodes)
            options = {k: _per_node(k, v, common, last) if k in _PER_NODE else v for k, v in options.items()}
        elif len({len(view) for view in views}) > 1:
            raise ValueError(
                f"the views have {', '.join(str(len(view)) for view in views)} rows: pool with the number of graphs, "
                "global_add_pool(x, batch, data.num_graphs), or pass nodes= if rows are nodes."
            )
        return Call(views, {"pairing": self.pairing, **options})


def _per_node(name: str, value: Any, common: Tensor, last: int) -> Any:
    """Return the values of the common nodes; the objective refuses what has none."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.shape[-1] <= last:
        raise ValueError(f"{name}: expected a value per node of the graph, at least {last + 1}, got {value.shape[-1]}.")
    return value[..., common]


def common_nodes(views: Sequence[Tensor], nodes: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the rows of the nodes that are in all views, in the same order, and these nodes.

    If a node has several rows in a view, the first one counts.
    """
    nodes = (nodes,) if isinstance(nodes, Tensor) else nodes
    if not all(isinstance(n, Tensor) and n.dim() == 1 and n.dtype in _INTEGERS for n in nodes):
        got = ", ".join(f"{n.dtype} of {tuple(n.shape)}" if isinstance(n, Tensor) else type(n).__name__ for n in nodes)
        raise ValueError(
            f"nodes: expected a 1-D tensor of integers for each view, got {got}; for a mask: mask.nonzero().squeeze(1)."
        )
    if len(nodes) != len(views) or any(n.shape != v.shape[:1] for n, v in zip(nodes, views, strict=False)):
        shapes = [tuple(n.shape) for n in nodes], [tuple(v.shape) for v in views]
        raise ValueError(f"nodes: expected one node per row of each view, got shapes {shapes[0]} for {shapes[1]}.")
    common = nodes[0].unique()
    for other in nodes[1:]:
        common = common[torch.isin(common, other)]
    if len(common) < 2:
        raise ValueError(f"the views have {len(common)} nodes in common; at least 2 are needed.")
    rows = []
    for node in nodes:
        ordered, order = node.sort(stable=True)
        rows.append(order[torch.searchsorted(ordered, common)])
    return tuple(view[row] for view, row in zip(views, rows, strict=True)), common


PYGCL = "GCL/losses/infonce.py"


def patch(objective: str | Seam) -> Seam:
    """Put an objective into GRACE's models and PyGCL's losses, also in modules that are loaded later."""
    seam = HOST.as_seam(objective)
    for_modules(seam, functools.partial(patch_module, seam))
    return seam


def patch_module(seam: Seam, module: ModuleType) -> None:
    """Put an objective into the classes that a module defines."""
    known = is_file(getattr(module, "__file__", None) or "", PYGCL)
    for class_ in [value for value in vars(module).values() if issubclass(type(value), type)]:
        own = vars(class_)
        if class_.__module__ != module.__name__ or own.get("is_replaced"):
            continue
        if {"semi_loss", "projection", "loss"} <= own.keys():
            _patch_grace(seam, class_)
        elif known and class_.__name__ in ("InfoNCE", "InfoNCESP"):
            _patch_pygcl(seam, class_)
        else:
            continue
        class_.is_replaced = True
        seam.say(f"replacing the gradient at the loss of {class_.__name__} in {module.__file__}")


def _patch_grace(seam: Seam, class_: Any) -> None:
    host_loss = class_.loss

    @functools.wraps(host_loss)
    def loss(self: Any, z1: Tensor, z2: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        own, where = f"infonce:t={self.tau!r}", f"{class_.__name__}.loss"
        embeddings = Embeddings(seam, where, own, lambda *views: Call(views), self)
        projected = iter(embeddings(self.projection(z1), self.projection(z2)))
        self.projection = lambda _: next(projected)
        try:
            return embeddings.returned(host_loss(self, z1, z2, *args, **kwargs))  # type: ignore[no-any-return]
        finally:
            del self.projection

    class_.loss = torch.compiler.disable(loss)


def _patch_pygcl(seam: Seam, class_: Any) -> None:
    host_compute = class_.compute

    @functools.wraps(host_compute)
    def compute(
        self: Any, anchor: Tensor, sample: Tensor, pos_mask: Tensor, neg_mask: Tensor | None = None, *rest: Any
    ) -> Tensor:
        def call(anchor: Tensor, sample: Tensor) -> Call:
            positives, cosines = pos_mask.bool(), unit(widen(anchor)) @ unit(widen(sample)).T
            if neg_mask is not None and class_.__name__ != "InfoNCESP":  # which takes all others as negatives
                cosines = cosines.masked_fill(~(positives | neg_mask.bool()), -torch.inf)
            return Call((cosines, positives), method="from_logits")

        embeddings = Embeddings(seam, f"{class_.__name__}.compute", f"infonce:t={self.tau!r}", call, self)
        loss = host_compute(self, *embeddings(anchor, sample), pos_mask, neg_mask, *rest)
        return embeddings.returned(loss)  # type: ignore[no-any-return]

    class_.compute = torch.compiler.disable(compute)


HOST = Host(
    name="pyg",
    title="GRACE (CRIPAC-DIG/GRACE), GCA and forks of them, and scripts that train with PyGCL's InfoNCE",
    seam="loss() of a model with projection() and semi_loss(), GRACE's; InfoNCE and InfoNCESP of GCL.losses (PyGCL)",
    tensors="projected embeddings of nodes (N, d), not normalized, divided by tau, 2N anchors (GRACE); anchors, "
    "samples and two masks (PyGCL); the positive is in the denominator",
    spec="infonce:t=0.4",
    tested="GRACE and PyGCL of November 2026, torch-geometric 2.8, torch 2.15",
    sites={f"{PYGCL}:InfoNCE.compute": None, f"{PYGCL}:InfoNCESP.compute": None, "model.py:*.semi_loss": None},
    views="its models augment a graph twice. A loop of your own can call the objective with more views",
    inputs="the loss sees embeddings, not graphs",
    before=patch,
)
