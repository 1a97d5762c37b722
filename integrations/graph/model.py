"""GraphCL's encoder and the module that is pre-trained."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from collections.abc import Sequence
from copy import copy
from inspect import signature

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import MLP, GINConv, global_add_pool

from counterpoint.base import Objective, as_objective
from counterpoint.plugins.pyg import ContrastiveLoss
from counterpoint.views import evaluation_mode

from ..domain import check_whole
from .augment import Augmentation, augmentation
from .data import GraphSet


class Encoder(nn.Module):
    """GIN as in GraphCL: ``layers`` times convolution, ReLU, batch norm; concatenates all layers' sums over nodes.

    Node features have ``width`` columns, each layer's output ``hidden``, the encoder's output ``hidden * layers``.
    """

    def __init__(self, width: int, hidden: int = 32, layers: int = 3) -> None:
        super().__init__()
        for name, value in (("width", width), ("hidden", hidden), ("layers", layers)):
            check_whole(f"Encoder: {name} must be", value, 1)
        widths = [width] + [hidden] * layers
        self.convolutions = nn.ModuleList(GINConv(MLP([w, hidden, hidden], norm=None)) for w in widths[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.out_channels = hidden * layers
        _initialize(self)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int | None = None) -> Tensor:
        """``(graphs, hidden * layers)`` embeddings of the graphs of a batch."""
        pooled = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, edge_index).relu())
            pooled.append(global_add_pool(x, batch, batch_size))
        return torch.cat(pooled, 1)


def _initialize(module: nn.Module) -> None:
    """Initialize as GraphCL does: Glorot for weights, zero for biases."""
    for layer in module.modules():
        if isinstance(getattr(layer, "weight", None), Tensor) and layer.weight.dim() == 2:  # type: ignore[operator]
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


class Pretraining(nn.Module):
    """Encoder, projection head and objective, trained without labels on several views of each graph.

    Views are augmented on the CPU and then moved to the model's device. The first view is the graph itself, the others
    are augmented, as in GraphCL's code; its paper augments both, ``original=False``. The objective chooses the number
    of views, by default 2.

    Args:
        encoder: called with ``(x, edge_index, batch, batch_size)``, or the first three if it takes no more;
            :class:`Encoder` or your own.
        augment: a transform, a list of one per augmented view, or a name for :func:`augmentation`.
        pairing: which views are compared; ``one_way`` is GraphCL's. None: as in the objective's paper.
        original: whether the first view is the graph itself.
        out_channels: columns of the encoder's output; by default its attribute of that name.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective | str = "infonce:t=0.2,denominator=negatives",
        augment: str | Augmentation | Sequence[Augmentation] = "random2",
        pairing: str | None = "one_way",
        original: bool = True,
        out_channels: int | None = None,
    ) -> None:
        super().__init__()
        width = getattr(encoder, "out_channels", None) if out_channels is None else out_channels
        if not isinstance(width, int) or width < 1:
            expected = f"expected the number of columns of {type(encoder).__name__}'s output, got {width!r}"
            hint = "pass out_channels=, or give the model an attribute of that name"
            raise ValueError(f"out_channels: {expected}; {hint}.")
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        _initialize(self.head)
        self.criterion = ContrastiveLoss(as_objective(objective), pairing)
        if missing := sorted(self.criterion.objective.needs & {"adversarial", "mixed"}):
            raise ValueError(f"objective: {self.criterion.objective} needs {' and '.join(missing)} views of images.")
        self.original = original
        self.views = max(2, self.criterion.objective.views or 2)
        augmented = self.views - bool(original)
        augment = augmentation(augment) if isinstance(augment, str) else augment
        self.augment = [augment] * augmented if isinstance(augment, Augmentation) else list(augment)
        if len(self.augment) != augmented:
            raise ValueError(f"augment: {self.views} views need {augmented} augmentations, got {len(self.augment)}.")

    def project(self, batch: Batch) -> Tensor:
        """Projections of the graphs of a batch, ``(graphs, width)``."""
        if (encoded := _encoded(self.encoder, batch)).shape[-1] != (width := self.head[0].in_features):
            raise ValueError(f"out_channels: expected {encoded.shape[-1]}, the encoder's columns, got {width}.")
        return self.head(encoded)  # type: ignore[no-any-return]

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch of graphs."""
        if batch.num_graphs < 2:
            raise ValueError(f"a batch of {batch.num_graphs} graph has nothing to compare with: at least 2 are needed.")
        device = self.head[0].weight.device
        views = [batch] * self.original + [augment(batch) for augment in self.augment]
        views = [copy(view).to(device) for view in views]  # PyG moves a batch in place
        known = {"index": batch.number.to(device)} if "number" in batch else {}
        return self.criterion(*map(self.project, views), **known)  # type: ignore[no-any-return]


def _encoded(encoder: nn.Module, batch: Batch) -> Tensor:
    arguments = [batch.x, batch.edge_index, batch.batch, batch.num_graphs]
    try:
        signature(encoder.forward).bind(*arguments)
    except TypeError:  # without the number of graphs, a last one that has no nodes left gets no row
        arguments.pop()
    try:
        signature(encoder.forward).bind(*arguments)
    except TypeError as error:
        name = type(encoder).__name__
        raise TypeError(f"encoder: expected forward(x, edge_index, batch), but that of {name}: {error}.") from None
    z = encoder(*arguments)
    if not isinstance(z, Tensor) or z.dim() != 2:
        got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise TypeError(f"encoder: expected one tensor (graphs, width), got {got}; wrap it in a module that does.")
    return z


@torch.no_grad()
def embed(encoder: nn.Module, data: GraphSet, batch: int = 512) -> NDArray[np.float32]:
    """Embed all graphs with the encoder, without the projection head; a numpy array ``(graphs, width)``."""
    if not isinstance(data, GraphSet):
        raise TypeError(f"data: expected a GraphSet, got {type(data).__name__}: graph.GraphSet.from_list(dataset).")
    device = next(encoder.parameters()).device
    with evaluation_mode(encoder):
        batches = (data.batch(index).to(device) for index in torch.arange(len(data)).split(batch))
        embeddings = torch.cat([_encoded(encoder, each).cpu() for each in batches])
    if (rows := len(embeddings)) != len(data):
        raise ValueError(f"encoder: expected a row for each of {len(data)} graphs, got {rows}: pool its nodes.")
    return embeddings.numpy()
