"""Products of embeddings that get another gradient, for losses whose logits no call takes as a whole.

A script may also take the positives from a product of their own: ``exp((a * b).sum(1) / t)`` beside
``exp(a @ b.T / t)``. The two gradients are then proved, and replaced, together: before ``backward`` runs, the part of
the graph between the loss and the products is differentiated by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from counterpoint.base import Objective
from counterpoint.treatments import Treatment

from .calls import OWNERS, Calls, positives_of, put, uses_scale
from .embeddings import Call, Embeddings
from .finder.products import MATRICES, as_rows
from .finder.watch import same_grad
from .gradient import ROUNDING, Logits, Once, own_loss, precision_of
from .host import OWN_LOSS, SeamError, objective_of
from .scales import as_number, number_of
from .sites import Site, caller, is_own, named, names_at, place

_ELEMENTWISE = ("MulBackward0", "DivBackward0")


def replace_products(calls: Calls, apart: dict[Site, Site] | None = None) -> None:
    """Replace the gradient of products at the sites; ``apart`` says where positives are, if not in the product."""
    seam, own, option = calls.seam, calls.seam.options.get("own"), calls.seam.options.get("scale")
    if own is None:
        raise SeamError("logits: --product needs --own, the loss that the script computes from these similarities")
    scales: list[float | str] = [as_number(text) or text for text in (option or "1").split(",")]
    if len(scales) > (2 if apart else 1) or (apart and not all(isinstance(scale, float) for scale in scales)):
        raise SeamError(f"logits: --scale {option}: with --product, expected a number, or one for each line")
    loss_fn = own_loss(own) if seam.spec == OWN_LOSS else objective_of(seam.spec, own)
    if option is None and uses_scale(loss_fn) and not uses_scale(own_loss(own)):
        raise SeamError(
            "logits: --product: t=host of --objective is not known, as the scale comes after the product: give the "
            "objective the temperature of --own"
        )
    pairs = _Pairs(calls, apart, own, [float(scale) for scale in scales * 2]) if apart else None
    torch.jit._state.disable()  # functions that are scripted would not call what is replaced, nor could be
    seam.at_end.append(torch.jit._state.enable)
    for owner in OWNERS:
        for name in MATRICES | {"sum"} if pairs else MATRICES:
            if callable(original := getattr(owner, name, None)):
                put(seam, owner, name, _product(calls, original, own, scales[0], pairs))


def _product(
    calls: Calls, original: Callable[..., Any], own: str, scale: float | str, pairs: _Pairs | None
) -> Callable[..., Any]:
    seam = calls.seam
    keys, both = -2 if seam.options.get("way") == "columns" else -1, seam.options.get("way") == "both"
    temperature = vars(own_loss(own)).get("temperature")
    later = 1 / temperature if isinstance(temperature, float) else 1.0

    @functools.wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        out, frame = original(*args, **kwargs), caller()
        if not isinstance(out, Tensor) or not out.dim() or not out.requires_grad or is_own(frame):
            return out
        if pairs and torch.is_grad_enabled():
            pairs.note(out, frame)
        if pairs or not torch.is_grad_enabled() or out.dim() < 2 or calls.place(frame)[0] is None:
            return out
        site, where = calls.site(frame, out)
        assert site is not None
        positives, targets = positives_of(calls.sites[site] or "diagonal", frame, out.movedim(keys, -1))
        how: dict[str, Any] = {"keys": keys, "both": both, "deduced": positives is None}
        how |= {"told": seam.told(lambda: names_at(frame)), "scaled": not isinstance(scale, str)}
        factor = named(scale, frame) if isinstance(scale, str) else scale
        how["later"] = later if how["scaled"] else number_of(factor)
        return Logits(seam, site, where, own, positives, {"scale": factor}, targets=targets, **how)(out)

    return product


class _Seen:
    """A product of the current step: its values, and the gradient that replaces its own."""

    def __init__(self, site: Site, where: str, out: Tensor) -> None:
        self.site, self.where, self.single = site, where, out.numel() == len(out)
        self.values, self.dtype = as_rows(out.detach().clone()), precision_of([out])
        self.told: dict[str, Any] = {}
        self.found: Tensor | None = None
        self.waits = True  # for backward()
        out.register_hook(self._replaced)

    def _replaced(self, g: Tensor) -> Tensor | None:
        if self.waits:
            raise SeamError(f"the products at {self.where} were differentiated by something else than backward()")
        found = None if self.found is None else self.found.view_as(g)
        return found if found is None or not g.requires_grad else Once.apply(found, g)


class _Pairs:
    """Products of a step, until it is differentiated."""

    def __init__(self, calls: Calls, apart: dict[Site, Site], own: str, scales: Sequence[float]) -> None:
        self.calls, self.apart, self.own, self.scales = calls, apart, own, scales
        self.seen: dict[_Seen, GradientEdge] = {}
        self.masks: dict[object, Tensor] = {}  # the negatives of anchors in the last call
        self.retained: list[Tensor] = []  # by retain_grad()
        self._backward, self._retain_grad = torch.autograd.backward, Tensor.retain_grad
        put(calls.seam, torch.autograd, "backward", self.backward)
        put(calls.seam, Tensor, "retain_grad", self.retain_grad)

    def note(self, out: Tensor, frame: FrameType) -> None:
        """Keep a product of one of the lines."""
        key, single = (frame.f_code.co_filename, frame.f_lineno), out.numel() == len(out)
        sites = self.apart.values() if single else self.apart.keys() if as_rows(out).dim() == 2 else ()
        site = next((site for site in sites if site.covers(*key)), None)
        node: Any = out.grad_fn
        of_rows = not node.name().startswith("Sum") or node.next_functions[0][0].name() in _ELEMENTWISE
        if site is None or (single and not of_rows):  # but a sum of a row's exponentials
            return
        seen = _Seen(site, where := place(frame), out)
        if not single:
            self.calls.seam.saw(where, f"logits {tuple(out.shape)}", replaced=True)
            seen.told = self.calls.seam.told(lambda: names_at(frame))
        self.seen[seen] = get_gradient_edge(out)
        if len(self.seen) > 64:  # of graphs that nothing differentiates
            self.seen.pop(next(iter(self.seen)))

    def retain_grad(self, tensor: Tensor) -> None:
        self.retained.append(tensor)
        self._retain_grad(tensor)

    def backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Find the gradients that replace those of the products, then differentiate as usual."""
        roots, weights = ([x] if isinstance(x, Tensor) else x for x in (tensors, grad_tensors))
        if self.seen and all(root.requires_grad for root in roots):
            seen = {**self.seen}  # a checkpoint multiplies again
            for each in seen:
                each.waits = False
            with same_grad(self.retained):
                found = torch.autograd.grad(roots, [*seen.values()], weights, retain_graph=True, allow_unused=True)
            every = zip(seen, found, strict=True)
            gradients = {each: g.detach().view_as(each.values) for each, g in every if g is not None}
            self.seen = {each: edge for each, edge in seen.items() if each not in gradients}
            for each in self.seen:
                each.waits = True
            self._replace(gradients)
        self.retained.clear()
        return self._backward(tensors, grad_tensors, *args, **kwargs)

    def _replace(self, gradients: dict[_Seen, Tensor]) -> None:
        todo = [each for each in gradients if each.single]
        for matrix in (each for each in gradients if not each.single):
            site, n = self.apart[matrix.site], len(matrix.values)
            several = [each for each in todo if each.site == site and n % len(each.values) == 0]
            apart = len(several) > 1  # a comparison with all keys is for these alone
            positives = min(several, key=lambda each: apart and not self._are_keys(each, matrix), default=None)
            if positives is None:
                raise SeamError(f"{matrix.where}: {site.text} has no positive for each of its {n} rows")
            todo.remove(positives)
            dtype = max(positives.dtype, matrix.dtype, key=ROUNDING.__getitem__)
            g, values = [gradients[positives], gradients[matrix]], [positives.values, matrix.values]
            with torch.no_grad():
                positives.found, matrix.found = _Pair(self, matrix).gradients(dtype, g, values)

    def _are_keys(self, positives: _Seen, matrix: _Seen) -> bool:
        """Whether the positives are in the matrix, too: other losses may call the function that multiplies them."""
        s, p = matrix.values / self.scales[0], positives.values.flatten() / self.scales[1]
        gap = (s - p.repeat(len(s) // len(p)).unsqueeze(1)).abs().amin(1).max()
        return bool(gap <= ROUNDING[matrix.dtype] * s.abs().max())


class _Pair(Embeddings):
    """Similarities of anchors with their positives, and with all keys, among which the positives may be again."""

    kind = "similarities"

    def __init__(self, pairs: _Pairs, matrix: _Seen) -> None:
        super().__init__(pairs.calls.seam, matrix.where, pairs.own, self._scores, matrix.site)
        self._arguments, self._learning = [None, None], [0, 1]
        self.masks, self.scales, self.mask = pairs.masks, pairs.scales, torch.ones_like(matrix.values).bool()
        self.rows = self.mask.any(1)  # anchors that count
        self.told = {{"labels": "classes"}.get(k, k): v for k, v in matrix.told.items()}
        self.precision = matrix.dtype

    def _scaled(self, positives: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        return positives.flatten().repeat(len(matrix) // len(positives)) / self.scales[1], matrix / self.scales[0]

    def _scores(self, positives: Tensor, matrix: Tensor) -> Call:
        scores = [x[self.rows] for x in self._scaled(positives, matrix)]
        return Call(scores, {"mask": self.mask[self.rows]}, "from_scores")

    def _called(self, tensors: Sequence[Tensor], loss_fn: Objective) -> Call:
        """See :class:`Embeddings`. Logits take what is told of keys: each positive is in the column that equals it.

        Other keys that equal it are not negatives: which of them is the positive cannot be told.
        """
        if not (isinstance(loss_fn, Treatment) and loss_fn.told):
            return super()._called(tensors, loss_fn)
        pos, x = self._scaled(*tensors)
        gap = (x - pos.unsqueeze(1)).detach().abs()
        equal, columns = gap <= ROUNDING[self.precision] * x.detach().abs().max(), gap.argmin(1, keepdim=True)
        if not bool((equal.any(1) | ~self.rows).all()):
            raise TypeError("the positives are not among the keys, of which something is told")
        if ROUNDING[self.precision] > ROUNDING[torch.float32] and bool((equal.sum(1) > 1)[self.rows].any()):
            raise TypeError(f"{self.precision} does not tell which keys are the positives; multiply in float32")
        equal &= "duplicates" not in loss_fn.told  # which finds, and counts, them by itself
        logits = x.masked_fill(equal | ~self.mask, -torch.inf).scatter(1, columns, pos.unsqueeze(1))
        return Call([logits, columns.squeeze(1).masked_fill(~self.rows, -100)], {**self._told(loss_fn)}, "from_logits")

    def proved(self, g: Sequence[Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> Callable[..., Any]:
        """See :meth:`Replaced.proved`. The gradient of a positive that is among the keys again is moved to itself."""
        used, pos_counts = g[1] != 0, g[0].flatten() != 0
        rows = used.any(1) | pos_counts.repeat(len(used) // len(pos_counts))
        last = self.masks.get(self.site, used)
        if last.shape == used.shape:  # estimates that are clamped have no gradient
            used = torch.where((used.any(1) | ~rows).unsqueeze(1), used, last)
        self.masks[self.site] = used
        if not bool((used.any(1) | ~rows).all()):
            self.seam.notes[f"{self.where}, at first"] = "its own loss, as some anchors had no gradient yet"
            return lambda _: [*g]
        pos, x = self._scaled(*tensors)
        gap, columns = (x - pos.unsqueeze(1)).abs().masked_fill(~used, torch.inf).min(1, keepdim=True)
        self.rows = rows
        if not bool(rows.all()):
            self.seam.notes[f"{self.where}, anchors"] = "those without a gradient in its own loss do not count"
        tried = [(used, g)]
        if bool((gap <= ROUNDING[dtype] * x.abs().max())[rows].all()):
            again = torch.zeros_like(used).scatter(1, columns, True)
            of_keys = g[1].gather(1, columns).view(-1, len(tensors[0])).sum(0).view_as(tensors[0])
            moved = g[0] + of_keys * (self.scales[0] / self.scales[1])
            tried.append((used & ~again, [moved, g[1].masked_fill(again, 0.0)]))
        fits = []
        for self.mask, each in tried:
            fits.append((self.mask, *self.fit(each, tensors, dtype)))
        self.mask, weight, error, allowed = min(fits, key=lambda fit: fit[2])
        self.conclude(error, dtype, allowed)
        return lambda loss_fn: [weight * each for each in self._gradients(loss_fn, tensors)[1]]
