"""For scripts that call ``.cuda()`` whatever there is, on a machine without a GPU."""

import torch

from ..host import Shim


def _lazy_init() -> bool:
    if not (found := torch.cuda.is_available()):
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]  # modules call it, too
    return not found


SHIMS = (Shim("_lazy_init", 'torch finds no GPU: .cuda() does nothing, .to("cuda") still fails', _lazy_init),)
