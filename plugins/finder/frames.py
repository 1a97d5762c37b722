"""Where in the user's code a call is made, and what its variables are called."""

import functools
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType

from torch import Tensor, nn

from ..sites import is_of_torch, is_own, short


@dataclass(frozen=True)
class Place:
    """A call in the user's code."""

    file: str
    line: int
    function: str
    call: str

    @property
    def short(self) -> str:
        return f"{short(self.file)}:{self.line}"


def frames() -> Iterator[FrameType]:
    """The frames outside torch and this library, from the innermost outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (is_own(frame) or is_of_torch(file) or file.startswith("<")):
            yield frame
        frame = frame.f_back


def place(frame: FrameType) -> Place:
    """Where a frame is now, with the text of the call."""
    code = frame.f_code
    return Place(code.co_filename, frame.f_lineno, function_name(code), _call_text(code, frame.f_lasti, frame.f_lineno))


@functools.lru_cache(4096)
def _call_text(code: CodeType, instruction: int, line: int) -> str:
    if hasattr(code, "co_positions"):  # Python 3.11
        first, last, start, end = list(code.co_positions())[instruction // 2]
        if first is not None and last is not None and start is not None:
            lines = [linecache.getline(code.co_filename, i) for i in range(first, last + 1)]
            lines[-1] = lines[-1].encode()[:end].decode()
            lines[0] = lines[0].encode()[start:].decode()
            return " ".join(part.strip() for part in lines)
    return linecache.getline(code.co_filename, line).strip()


def function_name(code: CodeType) -> str:
    """The qualified name of a function, without the functions that it is defined in."""
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]


def arguments(frame: FrameType) -> dict[str, Tensor]:
    """The arguments of a frame that are tensors, as they are now."""
    return {n: x for n in parameters(frame.f_code) if isinstance(x := frame.f_locals.get(n), Tensor)}


def parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def labels(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that may be labels: a whole number per row."""
    whole = {n: x for n, x in tensors.items() if not (x.is_floating_point() or x.is_complex()) and x.dim() > 0}
    return {n: x for n, x in whole.items() if x.numel() == len(x) > 1}


def parameter_name(parameter: Tensor, stack: list[FrameType]) -> str:
    """How the script can reach a parameter from the innermost frame, or ""."""
    hidden: set[str] = set()
    for frame in stack:
        for name, value in [(k, v) for k, v in frame.f_locals.items() if k not in hidden]:
            attributes = {} if isinstance(value, ModuleType) else getattr(value, "__dict__", {})  # a trainer's model
            for path, each in {name: value, **{f"{name}.{k}": v for k, v in attributes.items()}}.items():
                if each is parameter:
                    return path
                for inner, other in each.named_parameters(path) if isinstance(each, nn.Module) else ():
                    if other is parameter:
                        return inner
        hidden |= frame.f_locals.keys()
    return ""
