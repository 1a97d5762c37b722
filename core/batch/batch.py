"""A batch: the embeddings of its samples, with their labels, ids and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from .. import checks
from ..engine.distributed import ProcessGroup
from ..names import check_known
from ..vectors import EPS, EPS_HALF, are_ordinary, inverse_norms, largest_entry, unit, warn_of_zeros
from .options import MAX_LOG_WEIGHT, BatchOptions, Keys, Pairing, View, checked_log_q, chosen_directions
from .rules import Rule, as_rules

ENGINES = ("auto", "matrix", "tiles", "chunks", "fused")
BLOCK = 1024  # rows whose gradients are computed together


class Batch:
    """The embeddings of a batch with their labels, ids and weights, validated.

    ``views`` are tensors ``(B, d)``, with a queue also ``(B, m, d)``; or queries, and documents as keys. The other
    arguments are those of :class:`counterpoint.batch.options.BatchOptions`.
    """

    # of a batch of which only the views are known
    directions: tuple[str, ...] = ()  # of the pairing joint
    hardness: tuple[str, float] | None = None
    labels: Tensor | None = None
    ids: Tensor | None = None  # or the labels
    index: Tensor | None = None
    prior: Tensor | None = None
    positive_factor: Tensor | None = None
    queue: Keys | None = None  # normalized, (K, d); documents are a queue with positives
    bank: str = "queue"  # or "documents"
    negatives: Keys | None = None  # normalized, (B, n, d); their ids and log-probabilities have one dimension
    log_q: Tensor | None = None
    adversarial: Tensor | None = None  # normalized, (B, n, d)
    mixed: Tensor | None = None
    rules: tuple[Rule, ...] = ()  # of false_negatives
    empty: str = "error"
    in_batch: bool = True
    guide: Batch | None = None  # the same batch with the guide's embeddings
    group: ProcessGroup | None = None  # the processes that share the batch, if several do
    of_documents: ProcessGroup | None = None
    offset: int = 0  # of this process's samples in the batch of all processes
    largest_norm: float = math.inf  # of a view's rows, once they are checked
    _normalized: list[Tensor] | None = None
    _stack: Tensor | None = None

    def __init__(self, views: Sequence[View], **known: Unpack[BatchOptions]) -> None:
        self.pairing: Pairing | Mapping[str, str] | None = known.pop("pairing", None)
        self.normalize: bool = known.pop("normalize", True)
        if not isinstance(self.normalize, bool):
            raise TypeError(f"normalize: expected True or False, got {self.normalize!r}.")
        engine = known.pop("engine", "auto")
        queue, given = known.get("queue"), any(isinstance(x, Keys) for x in (*views, *known.values()))
        if given and (documents := Keys.documents(views, queue, known.get("negatives"))) is not None:
            views, known["queue"], self.bank = views[:1], documents, "documents"
        self.raw = checks.require_views(views, queue is not None)  # the views as they came
        self.device, self.width = self.raw[0].device, self.raw[0].shape[-1]
        self.size = self.total = self.raw[0].shape[0]  # of this process, and of all
        self.dtype = torch.float64 if torch.float64 in [view.dtype for view in self.raw] else torch.float32
        self.paired: dict[str, Any] = {}  # the scores of each pairing so far
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}
        if known or self.pairing == "joint":
            self._describe(**known)
        self.engine, self.edge = self._requested_engine(engine)
        if known:
            self.guide = self._guide(known.get("guide"))

    def _describe(self, **known: Unpack[BatchOptions]) -> None:
        """Check and store the labels, ids, weights and further keys of the batch."""
        ids, labels, index, hardness = known.get("ids"), known.get("labels"), known.get("index"), known.get("hardness")
        prior, positive_factor, log_q = known.get("prior"), known.get("positive_factor"), known.get("log_q")
        adversarial, mixed = known.get("adversarial"), known.get("mixed")
        if ids is not None and labels is not None:
            raise ValueError("give ids (known duplicates) or labels (classes, which also make positives), not both.")
        self.directions = chosen_directions(self.pairing, known.get("directions"), hardness)
        self.hardness = hardness if hardness and hardness[1] else None
        bank, hard = (None if x is None else Keys.of(x) for x in (known.get("queue"), known.get("negatives")))
        tensors: dict[str, object] = {**known}
        for name, keys in ((self.bank, bank), ("negatives", hard)):
            tensors |= {} if keys is None else {f"{name}: {field}": x for field, x in keys._asdict().items()}
        for name, x in tensors.items():
            if isinstance(x, Tensor) and x.device != self.device:
                raise ValueError(f"{name.removesuffix(': embeddings')}: on {x.device}, but view 1 is on {self.device}.")
        embeddings = (*(keys.embeddings for keys in (bank, hard) if keys is not None), adversarial, mixed)
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in embeddings):
            self.dtype = torch.float64
        self.labels = None if labels is None else checks.require_ids(labels, "labels", self.size)
        self.ids = self.labels if ids is None else checks.require_ids(ids, "ids", self.size)
        self.index = None if index is None else checks.require_ids(index, "index", self.size)
        if prior is not None and checks.require_float(prior, "prior").shape != (self.size,):
            raise ValueError(f"prior: expected one number per sample, shape ({self.size},), got {checks.shape(prior)}.")
        self.prior = None if prior is None else checks.require_prior(prior)
        self.positive_factor = None if positive_factor is None else self._positive_factor(positive_factor)
        self.log_q = None if log_q is None else checked_log_q(log_q, "log_q", self.size, self.dtype)
        self.queue = None if bank is None else self._keys(bank, self.bank, self._bank(bank.embeddings))
        if hard is not None:
            self.negatives = self._keys(hard, "negatives", self._per_sample(hard.embeddings, "negatives"))
        self.adversarial = None if adversarial is None else self._per_sample(adversarial, "adversarial")
        self.mixed = None if mixed is None else self._per_sample(mixed, "mixed")
        self.rules, self.empty = as_rules(known.get("false_negatives")), known.get("empty", "error")
        self.in_batch = known.get("in_batch", True)
        self._check()

    def normalized(self) -> list[Tensor]:
        """Return the views as they are compared: of unit length unless ``normalize=False``; computed once."""
        if self._normalized is not None:
            return self._normalized
        first, *others = self.raw
        alike = all(v.dtype == first.dtype and v.requires_grad == first.requires_grad for v in others)
        if alike and self.normalize and first.dim() == 2 and not checks.traced():
            self._stack, _, *self._normalized = NormalizeViews.apply(self._eps(first), self.dtype, *self.raw)
        else:
            self.check_finite()
            self._normalized = [self._prepared(v, f"view {i}") for i, v in enumerate(self.raw, 1)]
        return self._normalized

    def normalized_view(self, i: int) -> Tensor:
        """Return one of the views as it is compared: the gradients of the others stay None."""
        if self._normalized is not None:
            return self._normalized[i]
        self.check_finite()
        return self._prepared(self.raw[i], f"view {i + 1}")

    def stack(self, views: Sequence[Tensor]) -> Tensor:
        """Stack some views below one another; all of them are one tensor, by which keys are seen to be the anchors."""
        if len(views) == 1:
            return views[0]
        return torch.cat([*views]) if views is not self._normalized or self._stack is None else self._stack

    @property
    def bound(self) -> float | None:
        """Bound of the absolute similarities, if known: unit vectors have length one up to rounding."""
        return 1.0001 if self.normalize else None

    def join(self, group: ProcessGroup, of_documents: ProcessGroup | None = None) -> None:
        """Make this a process's part of a batch that several share; documents have numbers of their own."""
        self.group, self.of_documents, self.offset, self.total = group, of_documents, group.offset, group.total
        if self.guide is not None:
            self.guide.join(group, of_documents)

    def all_documents(self, x: Tensor) -> Tensor:
        """Return the rows of all processes, this one's first, of a tensor with a row for each document."""
        return x if self.of_documents is None else self.of_documents.gather(x).roll(-self.of_documents.offset, 0)

    def everyone(self, x: Tensor) -> Tensor:
        """Return the rows of all processes, this one's first, of a tensor with rows for each sample."""
        if self.group is None:
            return x
        if id(x) not in self._gathered:
            before = self.offset * (len(x) // self.size)
            self._gathered[id(x)] = x, self.group.gather(x).roll(-before, 0)
        return self._gathered[id(x)][1]

    def gather_together(self, *tensors: Tensor | None) -> None:
        """Let :meth:`everyone` have these, ``(B, ...)`` each, after one collective, and their gradients after one."""
        absent = list({id(x): x for x in tensors if x is not None and id(x) not in self._gathered}.values())
        if self.group is None or len(absent) < 2:
            return
        widths = [x[0].numel() for x in absent]
        gathered = self.group.gather(torch.cat([x.flatten(1) for x in absent], 1)).roll(-self.offset, 0)
        for x, rows in zip(absent, gathered.split(widths, 1), strict=True):
            self._gathered[id(x)] = x, rows.unflatten(1, x.shape[1:])

    def _prepared(self, z: Tensor, name: str = "") -> Tensor:
        wide = z if z.dtype == self.dtype else z.to(self.dtype)
        return unit(wide, self._eps(z), name) if self.normalize else wide

    @staticmethod
    def _eps(z: Tensor) -> float:
        return EPS_HALF if z.dtype == torch.float16 else EPS

    def check_finite(self) -> None:
        """Raise if a view contains NaN or infinity; on a CPU, store the largest norm."""
        if self.device.type == "cpu" and not checks.traced():
            norms = [float(torch.linalg.vector_norm(view.detach(), dim=-1).amax()) for view in self.raw]
            if math.isfinite(sum(norms)):
                self.largest_norm = max(norms)
                return
        for i, view in enumerate(self.raw, 1):
            checks.require_finite(view, f"view {i}")

    def _positive_factor(self, weight: Tensor) -> Tensor:
        views, shape = len(self.raw), checks.require_float(weight, "positive_factor").shape
        if shape not in ((self.size,), (views, self.size)):
            expected = f"a number per sample, shape ({self.size}), or per view and sample, ({views}, {self.size})"
            raise ValueError(f"positive_factor: expected {expected}, got {checks.shape(weight)}.")
        return checks.require_finite(weight, "positive_factor")

    def _bank(self, z: Tensor) -> Tensor:
        """Normalize the keys of a queue, or documents, ``(K, d)``."""
        checks.require_matrix(z, name := self.bank, f"(keys, {self.width})")
        if z.shape[1] != self.width or len(z) == 0:
            turned = f" It looks transposed: give {name}.T." if z.shape[0] == self.width else ""
            some = "" if len(z) else " with at least one key"
            raise ValueError(f"{name}: expected shape (keys, {self.width}){some}, got {checks.shape(z)}.{turned}")
        prepared = self._prepared(checks.require_finite(z, name))
        return prepared if name == "documents" else prepared.detach()

    def _per_sample(self, z: Tensor, what: str) -> Tensor:
        """Normalize ``(B, d)`` or ``(B, n, d)``, and return it as ``(B, n, d)``."""
        checks.require_float(z, what)
        full = z.unsqueeze(1) if z.dim() == 2 else z
        if full.dim() != 3 or full.shape[0] != self.size or full.shape[2] != self.width or full.shape[1] == 0:
            expected = f"({self.size}, {self.width}) or ({self.size}, n, {self.width})"
            hint = " Keys that all samples share are a queue=, or documents." if what == "negatives" else ""
            raise ValueError(f"{what}: expected shape {expected}, got {checks.shape(z)}.{hint}")
        return self._prepared(checks.require_finite(full, what))

    def _keys(self, keys: Keys, name: str, z: Tensor) -> Keys:
        """Check the ids, guide and weights of keys, whose normalized embeddings are ``z``."""
        ids, log_q, guide, rows = keys.ids, keys.log_q, keys.guide, z[..., 0].numel()
        if ids is not None:
            if self.ids is None:
                raise ValueError(f"{name}: ids: needs ids= or labels= beside it, those of the batch.")
            if checks.require_tensor(ids, f"{name}: ids").numel() != rows or not checks.is_whole(ids):
                got = f"shape {checks.shape(ids)} of {ids.dtype}"
                raise ValueError(f"{name}: ids: expected one integer per key, {rows} in all, got {got}.")
            ids = ids.reshape(-1).long()
        if guide is not None and checks.require_float(guide, f"{name}: guide").shape[:-1].numel() != rows:
            raise ValueError(f"{name}: guide: expected a row for each key, got shape {checks.shape(guide)}.")
        if name != "negatives" and (keys.own_log_weight or not keys.shared):
            raise ValueError(f"{name}: shared= and own_log_weight= are of negatives=.")
        if not isinstance(keys.shared, bool):
            raise TypeError(f"{name}: shared: expected True or False, got {keys.shared!r}.")
        if not checks.is_number(keys.own_log_weight) or keys.own_log_weight > MAX_LOG_WEIGHT:
            expected = f"expected a number of at most {MAX_LOG_WEIGHT:g}"
            raise ValueError(f"{name}: own_log_weight: {expected}, got {keys.own_log_weight!r}.")
        log_q = None if log_q is None else checked_log_q(log_q, f"{name}: log_q", rows, self.dtype)
        return keys._replace(embeddings=z, ids=ids, log_q=log_q, positives=keys.columns(self.size, rows))

    def _guide(self, views: Tensor | Sequence[Tensor] | None) -> Batch | None:
        """Return the same batch as the guide model sees it: only its similarities are used."""
        for name, keys in ((self.bank, self.queue), ("negatives", self.negatives)):
            exempt = name == "negatives" and any(not rule.hard for rule in self.rules)
            if keys is not None and keys.guide is not None and views is None:
                raise ValueError(f"{name}: guide: needs guide= beside it, that of the views.")
            if keys is not None and keys.guide is None and views is not None and not exempt:
                raise ValueError(f"guide= with {name}: needs the guide's embeddings of these: cp.Keys(..., guide=...).")
        if views is None:
            return None
        if self.adversarial is not None:
            raise ValueError("guide= cannot be combined with adversarial=: the guide has not seen these views.")
        listed = [views] if isinstance(views, Tensor) else [*views]
        listed = [checks.require_float(view, f"guide, view {i}") for i, view in enumerate(listed, 1)]
        if len(listed) == 1 and listed[0].dim() == 3:
            listed = [*listed[0].unbind(1)]
        if [(*x.shape[:-1], listed[0].shape[-1]) for x in self.raw] != [view.shape for view in listed]:
            expected = f"expected {len(self.raw)} views of {self.size} samples, as the model's, all of one width"
            raise ValueError(f"guide: {expected}, got shapes {', '.join(map(checks.shape, listed))}.")
        guide = copy(self)
        guide.raw, guide.width = [view.detach().to(self.dtype) for view in listed], listed[0].shape[-1]
        guide.normalize, guide.mixed, guide.paired, guide._gathered = True, None, {}, {}
        if (bank := self.queue) is not None and bank.guide is not None:
            guide.queue = bank._replace(embeddings=guide._bank(bank.guide.detach().to(self.dtype)), guide=None)
        if (hard := self.negatives) is not None:
            z = listed[0].new_zeros(1).expand(*hard.embeddings.shape[:2], guide.width)
            z = guide._per_sample((z if hard.guide is None else hard.guide).detach().to(self.dtype), "negatives")
            guide.negatives = hard._replace(embeddings=z, guide=None)
        return guide

    def _check(self) -> None:
        """Raise if arguments cannot be combined."""
        if self.queue is not None and self.negatives is not None:
            raise ValueError(f"expected {self.bank} or negatives=, got both: append the hard ones to the {self.bank}.")
        if self.bank == "documents" and self.labels is not None:
            raise ValueError("labels= cannot be combined with documents, whose positives= say the same; ids= can.")
        if self.directions:
            refused = (n for n in ("queue", "labels", "adversarial", "mixed") if getattr(self, n) is not None)
            for name in (*refused, *["in_batch"] * (not self.in_batch)):
                raise ValueError(f"directions= and hardness= cannot be combined with {name}=.")
        if self.queue is not None and self.ids is not None and self.queue.ids is None:
            raise ValueError(f"ids= or labels= with {self.bank}: needs those of the keys, cp.Keys(..., ids=...).")
        for name, value in (("adversarial", self.adversarial), ("mixed", self.mixed)):
            if value is not None and not (self.queue is None and self.negatives is None and self.labels is None):
                raise ValueError(f"{name}= goes with pairings of the batch itself, not queue=, negatives= or labels=.")
        check_known("empty: unknown value", self.empty, ("error", "zero", "keep"))
        if self.empty != "error" and not self.rules:
            raise ValueError(f"empty={self.empty!r}: needs false_negatives= beside it.")
        cosines = self.normalize if self.guide is None else self.guide.normalize
        for rule in (rule for rule in self.rules if rule.kind == "threshold" and cosines and abs(rule.value) > 1):
            raise ValueError(f"false_negatives: {rule} is of cosines here; expected a number from -1 to 1.")
        if not isinstance(self.in_batch, bool):
            raise TypeError(f"in_batch: expected True or False, got {self.in_batch!r}.")
        if not self.in_batch and self.negatives is None:
            raise ValueError("in_batch=False: needs negatives= beside it.")
        if not self.in_batch and any(not rule.hard for rule in self.rules):
            raise ValueError("in_batch=False leaves hard negatives only, and hard=False exempts these: give one.")
        if not self.in_batch and self.labels is not None:
            raise ValueError("in_batch=False cannot be combined with labels=: their positives are in the batch.")
        if self.log_q is not None and self.queue is not None:
            raise ValueError(f"log_q= is of the batch's keys; those of the {self.bank} are cp.Keys(..., log_q=...).")
        if self.negatives is not None and self.log_q is not None and self.negatives.log_q is None:
            hint = "cp.Keys(negatives, log_q=...)"
            raise ValueError(f"log_q= with negatives=: the hard negatives need log-probabilities too: {hint}.")
        if self.negatives is not None and self.log_q is None and self.negatives.log_q is not None:
            self.log_q = self.negatives.log_q.new_zeros(self.size)

    def _requested_engine(self, requested: str) -> tuple[str, int | None]:
        """Return ``engine`` and ``edge``; ``auto`` becomes ``matrix`` where nothing else can be used."""
        name, _, edge = requested.partition(":") if isinstance(requested, str) else (requested, "", "")
        check_known("engine: unknown value", name, ENGINES)
        if edge and (name not in ("tiles", "chunks") or not edge.isdecimal() or int(edge) == 0):
            raise ValueError(f"engine: expected tiles:N or chunks:N with N the edge of the tiles, got {requested!r}.")
        # neither a compiler nor torch.func can trace the reduction of tiles, nor can it be done without values
        if checks.compiling() or torch._C._are_functorch_transforms_active() or checks.is_abstract(self.raw[0]):
            if name not in ("auto", "matrix"):
                raise ValueError(f"engine={name!r}: torch.func needs 'matrix' or 'auto'.")
            return "matrix", None
        return name, int(edge) if edge else None


class NormalizeViews(torch.autograd.Function):
    """Scale the rows of ``m`` views ``(B, d)`` to length one: all below one another, ``(m B, d)``, and view by view.

    The gradients of the stack (of negatives) and of the views (of positives) are added view by view: to join them would
    take longer. The factors of the rows, the second result, are for second derivatives.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, *views: Tensor) -> tuple[Tensor, ...]:
        z = torch.cat([*views])
        z = z if z.dtype == dtype else z.to(dtype)
        norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        if are_ordinary(norms, eps):
            scale = norms.reciprocal()
            z.mul_(scale)
        else:
            for i, view in enumerate(views, 1):
                warn_of_zeros(checks.require_finite(view, f"view {i}"), f"view {i}")
            largest = largest_entry(z)
            scale = inverse_norms(z.div_(largest))
            z.mul_(scale)
            scale = scale / largest.clamp(min=eps)  # of the gradient: one over the lengths
        ctx.dtype, ctx.views = views[0].dtype, len(views)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, scale)
        return z, scale, *z.chunk(len(views))

    @staticmethod
    def backward(ctx: Any, d_stack: Tensor | None, d_scale: Tensor | None, *d_views: Tensor | None) -> Any:
        def of_each(x: Tensor | None) -> Sequence[Any]:
            return [None] * ctx.views if x is None else x.chunk(ctx.views)

        stack, scales = map(of_each, ctx.saved_tensors)
        results, views = [], zip(stack, scales, of_each(d_scale), of_each(d_stack), d_views, strict=True)
        for z, scale, d_factor, *gradients in views:
            known, size = [d for d in gradients if d is not None], BLOCK if z.device.type == "cpu" else len(z)
            # the part perpendicular to the rows, which are unit vectors
            if torch.is_grad_enabled():
                d = reduce(torch.add, known) if known else torch.zeros_like(z)
                d = (d - z * (d * z).sum(1, keepdim=True)) * scale
            else:  # blocks stay in the cache, and need no memory of their own
                d = torch.zeros_like(z)
                for rows in (slice(i, i + size) for i in range(0, len(z) * bool(known), size)):
                    part, x = reduce(torch.add, [gradient[rows] for gradient in known]), z[rows]
                    along = (part * x).sum(1, keepdim=True)
                    torch.addcmul(part, x, along, value=-1, out=d[rows]).mul_(scale[rows])
            if d_factor is not None:  # of a second derivative
                d = d - scale**2 * z * d_factor
            results.append(d.to(ctx.dtype))
        return None, None, *results
