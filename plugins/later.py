"""Gradients that are added to leaves, such as a learned scale, by a backward pass that already runs."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.weak import WeakIdKeyDictionary


def add_later(x: Tensor, more: Tensor) -> None:
    """Add the gradient of ``x`` times ``more`` to those that its leaves get in the backward pass that runs."""
    nodes: list[Any] = [get_gradient_edge(x).node]
    for node in nodes:  # which grows
        nodes += [above for above, _ in node.next_functions if above is not None and above not in nodes]
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    hooks = [leaf._backward_hooks for leaf in leaves]  # the script's own, which shall see the sum
    try:
        for leaf in leaves:
            leaf._backward_hooks = None
        found = torch.autograd.grad(x, leaves, more.view_as(x), retain_graph=True)
    finally:
        for leaf, each in zip(leaves, hooks, strict=True):
            leaf._backward_hooks = each
    task = torch._C._current_graph_task_id()
    for leaf, g in zip(leaves, found, strict=True):
        if leaf not in _LATER:
            _LATER[leaf] = {}
            before = [*(leaf._backward_hooks or ())]
            leaf.register_hook(functools.partial(_with_more, _LATER[leaf]))
            for key in before:  # run after ours
                leaf._backward_hooks[key] = leaf._backward_hooks.pop(key)
        (waiting := _LATER[leaf])[task] = _LATER[leaf].get(task, 0) + g
        if len(waiting) > 64:  # of passes that did not come to the leaf
            del waiting[next(iter(waiting))]


def _with_more(waiting: dict[int, Tensor], g: Tensor) -> Tensor:
    """Add the gradients of this pass, and of passes within it, which a checkpoint starts and ends at its arguments."""
    task = torch._C._current_graph_task_id()
    return g + sum(waiting.pop(each) for each in [*waiting] if each >= task)


_LATER = WeakIdKeyDictionary()  # leaves, with what is added to their gradient in a pass
