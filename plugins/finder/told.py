"""Data in the script's frames that a treatment could use: ids, texts, and rows of tokens."""

from collections import UserDict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from counterpoint.treatment import PATH

from ..sites import is_installed, names_at


def told(stack: Sequence[FrameType], lengths: Collection[int], labels: Tensor | None) -> dict[str, dict[str, Any]]:
    """Return the objects of one of the lengths, but for the labels, by path. Nothing of the script is called."""
    found, seen, names = {}, {id(labels)}, names_at(stack[0])
    of_loss = _package(stack[0])  # sentence-transformers hands the tokens to its losses
    for frame in (each for each in stack if not is_installed(each.f_code.co_filename) or _package(each) == of_loss):
        for name, value in [(k, v) for k, v in frame.f_locals.items() if not isinstance(v, ModuleType)]:
            for step, x in (("", value), *_inside(value)) if names.get(name) is value else ():
                path, about = name + step, _about(x, lengths) if id(x) not in seen else None
                if about and PATH.fullmatch(path):
                    seen.add(id(x))
                    found[path] = about
    return found


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items or attributes of a value, with the steps that lead to them."""
    items = vars(value).get("data") if isinstance(value, UserDict) else value
    items = dict(enumerate(items[:100])) if isinstance(items, (list, tuple)) else items
    step = "[{!r}]" if isinstance(items, dict) else ".{}"
    if not isinstance(items, dict):
        items = dict(vars(value)) if type(value).__dictoffset__ else {}
    for key, x in islice(dict.items(items), 100):
        yield step.format(key), x
        if isinstance(value, (list, tuple)) and isinstance(x, (dict, UserDict)):
            yield from ((step.format(key) + more, inner) for more, inner in _inside(x))


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _about(x: Any, lengths: Collection[int]) -> dict[str, Any] | None:
    if isinstance(x, Tensor) and (x.dim() == 0 or x.layout != torch.strided):
        return None
    if not isinstance(x, (Tensor, list, tuple)) or len(x) not in lengths:
        return None
    kind, distinct = "duplicates", 0
    if isinstance(x, Tensor):
        says = x.dim() == 1 or (x.dim() == 2 and x.amax() > 1)  # no mask
        if "int" in str(x.dtype) and says and not torch.equal(x, torch.arange(len(x)).to(x)):
            kind, distinct = "ids" if x.dim() == 1 else kind, len(x.unique(dim=0))
    elif all(isinstance(each, str) for each in x):
        distinct = len({*x})
    return {"kind": kind, "length": len(x), "distinct": distinct} if distinct > 1 else None
