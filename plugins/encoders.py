"""An encoder that guides its own training: as in the first step (``guide=self``), or its moving average (``ema``).

While the host computes embeddings, each module's result is noted with the module and its arguments. At the loss, the
modules that lead from data to the embeddings are copied, and the copies embed the same data. Embeddings may have been
normalized after the encoder, or cut out of its result; anything else that is computed outside of modules is an error.
"""

import weakref
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import cosine_similarity
from torch.utils._pytree import tree_leaves, tree_map

from counterpoint.checks import compiling

KEPT = 0.99
"""Weight of the moving average's own parameters in each step."""
_AROUND = (nn.DataParallel, nn.parallel.DistributedDataParallel, fx.GraphModule)  # of these, the modules within count


def copy_of(encoder: nn.Module) -> nn.Module:
    """Return a frozen copy, in evaluation mode."""
    return deepcopy(encoder).eval().requires_grad_(False)


@torch.no_grad()
def follow(copy: nn.Module, encoder: nn.Module, tau: float = 1 - KEPT) -> None:
    """Move the parameters of the copy by a share ``tau`` towards those of the encoder; take its statistics."""
    for mean, x in zip(copy.parameters(), encoder.parameters(), strict=True):
        mean.lerp_(x, tau)
    for kept, buffer in zip(copy.buffers(), encoder.buffers(), strict=True):
        kept.copy_(buffer)


class OwnGuide:
    """The embeddings of the same data by the encoder of the first step, or by its moving average if it ``moves``."""

    def __init__(self, moves: bool) -> None:
        self._moves, self._copies, self._embeds = moves, dict[Any, tuple[nn.Module, nn.Module]](), False
        # by the id of a result: it, the module that returned it, its arguments, and its position among the results
        self._made: dict[int, tuple[weakref.ref[Tensor], nn.Module, Any, int]] = {}

    def watch(self) -> Any:
        """Begin to note what modules return; return a function that ends it."""
        call = nn.Module.__call__

        def noted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            out = call(module, *args, **kwargs)
            if not self._embeds and not compiling():
                self.note(module, (args, kwargs), out)
            return out

        nn.Module.__call__ = noted  # type: ignore[method-assign]
        return lambda: setattr(nn.Module, "__call__", call)

    def note(self, module: nn.Module, arguments: Any, out: Any) -> None:
        """Note the results of a module; of several that return the same tensor, the last and outermost counts."""
        module = getattr(module, "_orig_mod", module)  # of compiled modules
        for place, x in enumerate(() if isinstance(module, _AROUND) else _tensors(out)):
            key = id(x)
            self._made[key] = weakref.ref(x, lambda _, key=key: self._made.pop(key, None)), module, arguments, place  # type: ignore[misc]

    @torch.no_grad()
    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the arguments of a loss with the guide's embeddings in the place of those that modules returned."""
        for copy, encoder in self._copies.values() if self._moves else ():
            follow(copy, encoder)
        self._embeds = True
        try:
            are_views = [isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1 for x in arguments]
            return [self._again(x) if again else x for x, again in zip(arguments, are_views, strict=True)]
        finally:
            self._embeds = False
            self._made.clear()

    def _again(self, x: Tensor, embedding: bool = True) -> Tensor:
        whole = x if x._base is None or id(x) in self._made else x._base
        found = self._made.get(id(whole)) or (self._parallel(whole) if embedding else None)
        if found is None and not embedding and (x.is_leaf or not x.requires_grad):
            return x  # data
        if found is None:
            raise ValueError(f"{(*x.shape,)} embeddings are not what a module returned, so the encoder is unknown.")
        _, module, arguments, place = found
        key = type(module), *(map(id, [*module.parameters()] or [module]))  # a slice of a Sequential is new each time
        if key not in self._copies:
            self._copies[key] = copy_of(module), module
        args, kwargs = tree_map(lambda y: self._again(y, False) if isinstance(y, Tensor) else y, arguments)
        made = _tensors(self._copies[key][0](*args, **kwargs))[place]
        if whole is x:
            return made
        return made.contiguous().as_strided(x.shape, x.stride(), x.storage_offset() - whole.storage_offset())

    def _parallel(self, x: Tensor) -> Any:
        """Return the note on rows of the same directions, which the host has only scaled."""
        for entry in reversed([*self._made.values()]):
            y = entry[0]()
            if y is not None and y.shape == x.shape and bool((cosine_similarity(x, y, -1) > 1 - 1e-3).all()):
                return entry
        return None


def _tensors(out: Any) -> list[Tensor]:
    return [x for x in tree_leaves(out) if isinstance(x, Tensor)]
