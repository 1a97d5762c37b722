"""Check that the packages of the extra are installed, also those that a run needs last; the error names the extra."""

import warnings

from ..domain import require

require("graphs need", "graph", "torch_geometric", "sklearn", "networkx", "safetensors")
with warnings.catch_warnings():  # PyG calls an API that torch has deprecated
    warnings.filterwarnings("ignore", category=FutureWarning)
    import torch_geometric.nn  # noqa: F401
