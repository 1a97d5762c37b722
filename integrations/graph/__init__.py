"""Graphs: GraphCL with any objective, on TU data sets and on your own, through PyTorch Geometric's own parts.

In a PyG code base the parts can be had one by one::

    from .. import graph

    data = graph.load("PROTEINS")                                   # or graph.GraphSet.from_list(your_dataset)
    model = graph.Pretraining(graph.Encoder(data.x.shape[1]), "adnce:t=0.05,mu=1.5", graph.augmentation("random4"))
    graph.pretrain(model, data, epochs=20, seed=0)
    print(graph.evaluate(graph.embed(model.encoder, data), data.y))
"""

import warnings

try:
    import sklearn  # noqa: F401

    with warnings.catch_warnings():  # PyG compiles parts of itself in a way that torch wants to see no more
        warnings.filterwarnings("ignore", category=FutureWarning)
        import torch_geometric.nn  # noqa: F401
except ImportError as error:
    raise ImportError('graphs need PyTorch Geometric and scikit-learn: pip install "counterpoint[graph]"') from error

from .augment import (
    AUGMENTATIONS,
    DropNodes,
    MaskAttributes,
    PerturbEdges,
    RandomChoice,
    Subgraph,
    augmentation,
)
from .data import GraphSet, bag_of_nodes, demo, load
from .evaluation import PROBES, Evaluation, evaluate
from .model import Encoder, Pooled, Pretraining, embed
from .training import pretrain, train

__all__ = [
    "AUGMENTATIONS",
    "PROBES",
    "DropNodes",
    "Encoder",
    "Evaluation",
    "GraphSet",
    "MaskAttributes",
    "PerturbEdges",
    "Pooled",
    "Pretraining",
    "RandomChoice",
    "Subgraph",
    "augmentation",
    "bag_of_nodes",
    "demo",
    "embed",
    "evaluate",
    "load",
    "pretrain",
    "train",
]
