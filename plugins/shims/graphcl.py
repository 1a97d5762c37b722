"""Shims for GraphCL on today's torch and PyTorch Geometric."""

import inspect
from typing import Any, get_args, get_type_hints

import torch

from ..host import Shim


def _read_tu_data() -> bool:
    from torch_geometric import io

    read: Any = io.read_tu_data
    if len(get_args(get_type_hints(read).get("return"))) != 3:
        return False

    def read_tu_data(*args: Any, **options: Any) -> tuple[Any, Any]:
        data, slices = read(*args, **options)[:2]
        return data, slices

    io.read_tu_data = read_tu_data
    return True


def _safe_globals() -> bool:
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    missing = {DataEdgeAttr, DataTensorAttr, GlobalStorage} - set(torch.serialization.get_safe_globals())
    if torch.__version__ < "2.6" or not missing:
        return False
    torch.serialization.add_safe_globals(list(missing))
    return True


class _Keys(list[str]):
    """A list of names that can also be called, since PyG itself calls it."""

    def __call__(self) -> list[str]:
        return self


def _data_keys() -> bool:
    from torch_geometric.data import Data

    if isinstance(inspect.getattr_static(Data, "keys"), property):
        return False
    keys: Any = Data.keys
    Data.keys = property(lambda data: _Keys(keys(data)))
    return True


SHIMS = (
    Shim("read_tu_data", "PyG 2.1 and later return three results, GraphCL unpacks two", _read_tu_data),
    Shim("safe_globals", "torch 2.6 and later load PyG graphs only if their classes are listed as safe", _safe_globals),
    Shim("data_keys", "PyG 2.4 and later have Data.keys(), the script reads Data.keys", _data_keys),
)
