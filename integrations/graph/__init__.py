"""Graphs: GraphCL with any objective, on TU data sets and on your own, with PyTorch Geometric.

Use the parts in your own PyG code::

    from counterpoint.integrations import graph

    data = graph.load("PROTEINS")                                   # or graph.GraphSet.from_list(your_dataset)
    model = graph.Pretraining(graph.Encoder(data.x.shape[1]), "adnce:t=0.05,mu=1.5", graph.augmentation("random4"))
    graph.pretrain(model, data, epochs=20, seed=0)
    print(graph.evaluate(graph.embed(model.encoder, data), data.y))
"""

from typing import TYPE_CHECKING

from counterpoint.names import lazy

if TYPE_CHECKING:
    from .augment import AUGMENTATIONS, DropNodes, MaskAttributes, PerturbEdges, RandomChoice, Subgraph, augmentation
    from .data import GraphSet, bag_of_nodes, demo, load
    from .evaluation import PROBES, Evaluation, evaluate
    from .model import Encoder, Pretraining, embed
    from .training import pretrain, restore, train

__all__ = [
    "AUGMENTATIONS", "PROBES", "DropNodes", "Encoder", "Evaluation", "GraphSet", "MaskAttributes", "PerturbEdges",
    "Pretraining", "RandomChoice", "Subgraph", "augmentation", "bag_of_nodes", "demo", "embed", "evaluate",
    "load", "pretrain", "restore", "train",
]  # fmt: skip

__getattr__ = lazy(__name__, ("augment", "data", "evaluation", "model", "training"), __all__)
