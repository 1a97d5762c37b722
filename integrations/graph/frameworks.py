"""PyTorch Geometric and scikit-learn, imported first so that the error names the extra if one is missing."""

import warnings

from counterpoint.install import install

try:
    import sklearn  # noqa: F401

    with warnings.catch_warnings():  # PyG calls an API that torch has deprecated
        warnings.filterwarnings("ignore", category=FutureWarning)
        import torch_geometric.nn  # noqa: F401
except ImportError as error:
    raise ImportError(f"graphs need PyTorch Geometric and scikit-learn: {install('graph')}") from error
