"""A batch: the embeddings of its samples, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from .. import checks
from ..engine.distributed import ProcessGroup
from ..engine.tiles import pays_to_tile
from ..hyper import is_number
from ..names import check_known
from ..vectors import EPS, EPS_HALF, UnitViews, unit
from .directions import chosen_directions
from .keys import Keys
from .options import BatchOptions, KnownOptions, Pairing, checked_views
from .rules import Rule, as_rules
from .scores import Scores

# Largest log-weight of a hard negative whose float32 sum does not overflow.
MAX_LOG_WEIGHT = 80.0
EMPTY = ("error", "zero")
ENGINES = ("auto", "matrix", "tiles", "chunks", "fused")


class Batch:
    """The embeddings of a batch and what is known of them, validated.

    Args:
        views: tensors ``(B, d)``, one per view; with a queue also ``(B, m, d)``.

    The other arguments are those of :class:`counterpoint.batch.options.BatchOptions`.

    Attributes:
        raw: the views as they came.
        views: the views normalized and in ``dtype``, computed on first use.
        size, width, device: ``B``, ``d`` and where the embeddings are.
        ids: ``ids``, or the labels.
        negatives, adversarial, mixed: ``(B, n, d)``, normalized.
        rules: those of ``false_negatives``; ``guide`` is the same batch with the guide's embeddings.
        shared: whether hard negatives are those of all samples.
        directions, hardness: those of the pairing ``joint``; without it no directions.
        log_weight, queue_log_weight, negative_log_weight: minus the log-probabilities, a number per key.
        engine: how to reduce the negatives, one of :data:`ENGINES`; ``auto`` chooses for each pairing.
        edge: edge of the tiles, None to choose.
        group: the processes that share the batch, if several do.
        offset, total: position of this process's samples in the batch of all processes, and its size.
        scores: the scores of each pairing computed so far, see :func:`counterpoint.batch.pairings.scores_of`.
    """

    # of a batch of which only the views are known
    directions: tuple[str, ...] = ()
    hardness: tuple[str, float] | None = None
    negative_weight: float = 0.0
    labels: Tensor | None = None
    ids: Tensor | None = None
    prior: Tensor | None = None
    positive_weight: Tensor | None = None
    queue: Tensor | None = None
    negatives: Tensor | None = None
    adversarial: Tensor | None = None
    mixed: Tensor | None = None
    queue_ids: Tensor | None = None
    negative_ids: Tensor | None = None
    log_weight: Tensor | None = None
    queue_log_weight: Tensor | None = None
    negative_log_weight: Tensor | None = None
    rules: tuple[Rule, ...] = ()
    empty: str = "error"
    in_batch: bool = True
    shared: bool = True
    guide: Batch | None = None
    group: ProcessGroup | None = None
    offset: int = 0
    _views: list[Tensor] | None = None
    _stack: Tensor | None = None

    def __init__(
        self,
        views: Sequence[Tensor],
        *,
        pairing: Pairing | Mapping[str, str] | None = None,
        stacked: bool = False,
        normalize: bool = True,
        engine: str = "auto",
        **known: Unpack[KnownOptions],
    ) -> None:
        self.pairing: Pairing | Mapping[str, str] | None = pairing
        self.normalize, self._requested_engine = normalize, engine
        self.raw = checked_views(views, known.get("queue") is not None, stacked)
        first = self.raw[0]
        self.device, self.size, self.width = first.device, first.shape[0], first.shape[-1]
        self.total = self.size
        self.dtype = torch.float64 if torch.float64 in [view.dtype for view in self.raw] else torch.float32
        self.scores: dict[str, Scores] = {}
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}
        if known or pairing == "joint":
            self._describe(**known)
        self._choose_engine()
        if known:
            self.guide = self._guide(known.get("guide"), known.get("queue"), known.get("negatives"))

    def _describe(
        self,
        *,
        directions: Sequence[str] | None = None,
        hardness: tuple[str, float] | None = None,
        queue: Tensor | Keys | None = None,
        negatives: Tensor | Keys | None = None,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        false_negatives: Rule | str | Sequence[Rule | str] | None = None,
        guide: Tensor | Sequence[Tensor] | None = None,
        empty: str = "error",
        in_batch: bool = True,
        log_q: Tensor | None = None,
        prior: Tensor | None = None,
        positive_weight: Tensor | None = None,
        adversarial: Tensor | None = None,
        mixed: Tensor | None = None,
    ) -> None:
        """Check and take what is known of the batch beside its views."""
        if ids is not None and labels is not None:
            raise ValueError("give ids (known duplicates) or labels (classes, which also make positives), not both.")
        self.directions = chosen_directions(self.pairing, directions, hardness)
        self.hardness = hardness if hardness and hardness[1] else None
        keys = {name: Keys.of(x) for name, x in (("queue", queue), ("negatives", negatives)) if x is not None}
        tensors = {
            "ids": ids, "labels": labels, "prior": prior, "positive_weight": positive_weight,
            "adversarial": adversarial, "mixed": mixed, "log_q": log_q,
        } | {f"{name}: {field}": x for name, one in keys.items() for field, x in one._asdict().items()}  # fmt: skip
        for name, x in tensors.items():
            if isinstance(x, Tensor) and x.device != self.device:
                raise ValueError(f"{name.removesuffix(': embeddings')}: on {x.device}, but view 1 is on {self.device}.")
        bank, hard = keys.get("queue"), keys.get("negatives")
        if hard is not None:
            self.negative_weight, self.shared = hard.own_log_weight, hard.shared
            if not is_number(self.negative_weight) or self.negative_weight > MAX_LOG_WEIGHT:
                raise ValueError(
                    f"negatives: own_log_weight: expected a number of at most {MAX_LOG_WEIGHT:g}, got "
                    f"{self.negative_weight!r}."
                )
        elif bank is not None and (bank.own_log_weight or not bank.shared):
            raise ValueError("queue: shared= and own_log_weight= are of negatives=, not of a queue.")
        embeddings = (*(one.embeddings for one in keys.values()), adversarial, mixed)
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in embeddings):
            self.dtype = torch.float64
        self.labels = None if labels is None else checks.is_ids(labels, "labels", self.size)
        self.ids = self.labels if ids is None else checks.is_ids(ids, "ids", self.size)
        self.prior = None if prior is None else self._prior(prior)
        self.positive_weight = None if positive_weight is None else self._positive_weight(positive_weight)
        self.queue = None if bank is None else self._keys(bank.embeddings, "queue")
        self.negatives = None if hard is None else self._per_sample(hard.embeddings, "negatives")
        self.adversarial = None if adversarial is None else self._per_sample(adversarial, "adversarial")
        self.mixed = None if mixed is None else self._per_sample(mixed, "mixed")
        self.queue_ids, self.queue_log_weight = self._known_of("queue", bank)
        self.negative_ids, self.negative_log_weight = self._known_of("negatives", hard)
        self.log_weight = None if log_q is None else self._log_weight(log_q, "log_q", self.size)
        self.rules, self.empty, self.in_batch = as_rules(false_negatives), empty, in_batch
        self._check_combinations()
        self._check_choices()

    # ---- embeddings ----------------------------------------------------------------------------

    @property
    def views(self) -> list[Tensor]:
        if self._views is None:
            self._normalize_views()
        return cast("list[Tensor]", self._views)

    def _normalize_views(self, others: bool = False) -> Tensor | None:
        """Compute :attr:`views`; with ``others`` return :meth:`other_views` if it can be computed with them."""
        if not self._stackable():
            self.check_finite()
            self._views = [self._prepared(v) for v in self.raw]
            return None
        pos: Tensor
        self._stack, _, pos = UnitViews.apply(self._eps(self.raw[0]), self.dtype, others, *self.raw)
        self._views = [*self._stack.chunk(len(self.raw))]
        return pos

    def view(self, i: int) -> Tensor:
        """Return one of the views: the gradients of the others stay None."""
        if self._views is not None:
            return self.views[i]
        self.check_finite()
        return self._prepared(self.raw[i])

    def stacked(self) -> Tensor:
        """Stack all views below one another, ``(m B, d)``."""
        views = self.views
        if self._stack is None:
            self._stack = torch.cat(views)
        return self._stack

    def other_views(self) -> Tensor:
        """Return the similarities of each view to the sample's others, ``(m B, m - 1)``, view by view."""
        pos = self._normalize_views(others=True) if self._views is None else None
        if pos is not None:
            return pos
        others = [[(x * y).sum(-1) for j, y in enumerate(self.views) if i != j] for i, x in enumerate(self.views)]
        return torch.cat([torch.stack(x, 1) for x in others])

    def _stackable(self) -> bool:
        """Whether the views can be normalized together."""
        first, *others = self.raw
        alike = all(v.dtype == first.dtype and v.requires_grad == first.requires_grad for v in others)
        return self.normalize and alike and first.dim() == 2 and not checks.traced()

    def stack(self, views: Sequence[Tensor]) -> Tensor:
        """Stack some views below one another."""
        if len(views) == 1:
            return views[0]
        return self.stacked() if views is self._views else torch.cat([*views])

    @property
    def half(self) -> torch.dtype | None:
        """bfloat16 if embeddings came in it: unit vectors, and gradients of any size, can be multiplied in it."""
        return torch.bfloat16 if self.normalize and self.raw[0].dtype == torch.bfloat16 else None

    @property
    def bound(self) -> float | None:
        """Bound of the absolute similarities, if known: unit vectors have length one up to rounding."""
        return 1.0001 if self.normalize else None

    # ---- other processes -----------------------------------------------------------------------

    def join(self, group: ProcessGroup) -> None:
        """Make this a process's part of a batch that several share."""
        self.group, self.offset, self.total = group, group.offset, group.total
        self._choose_engine()
        if self.guide is not None:
            self.guide.join(group)
            self.guide.engine, self.guide.edge = self.engine, self.edge

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

    # ---- validation ----------------------------------------------------------------------------

    def _prepared(self, z: Tensor) -> Tensor:
        wide = z.to(self.dtype)
        return unit(wide, self._eps(z)) if self.normalize else wide

    @staticmethod
    def _eps(z: Tensor) -> float:
        return EPS_HALF if z.dtype == torch.float16 else EPS

    def check_finite(self) -> None:
        """Raise if a view contains NaN or infinity."""
        for i, view in enumerate(self.raw, 1):
            checks.is_finite(view, f"view {i}")

    def _prior(self, prior: Tensor) -> Tensor:
        if checks.is_float(prior, "prior").shape != (self.size,):
            raise ValueError(f"prior: expected one number per sample, shape ({self.size},), got {checks.shape(prior)}.")
        return checks.is_prior(prior)

    def _positive_weight(self, weight: Tensor) -> Tensor:
        shape = checks.is_float(weight, "positive_weight").shape
        if shape not in ((self.size,), (len(self.raw), self.size)):
            raise ValueError(
                f"positive_weight: expected a number per sample, shape ({self.size}), or per view and sample, "
                f"({len(self.raw)}, {self.size}), got {checks.shape(weight)}."
            )
        return checks.is_finite(weight, "positive_weight")

    def _keys(self, keys: Tensor, what: str) -> Tensor:
        checks.is_matrix(keys, what, f"(keys, {self.width})")
        if keys.shape[1] != self.width or len(keys) == 0:
            turned = " It looks transposed: give queue.T." if keys.shape[0] == self.width else ""
            raise ValueError(f"{what}: expected shape (keys, {self.width}), got {checks.shape(keys)}.{turned}")
        return self._prepared(checks.is_finite(keys, what))

    def _per_sample(self, z: Tensor, what: str) -> Tensor:
        """Normalize ``(B, d)`` or ``(B, n, d)``, and return it as ``(B, n, d)``."""
        checks.is_float(z, what)
        full = z.unsqueeze(1) if z.dim() == 2 else z
        if full.dim() != 3 or full.shape[0] != self.size or full.shape[2] != self.width or full.shape[1] == 0:
            raise ValueError(
                f"{what}: expected shape ({self.size}, {self.width}) or ({self.size}, n, {self.width}), "
                f"got {checks.shape(z)}."
            )
        return self._prepared(checks.is_finite(full, what))

    def _log_weight(self, log_q: Tensor, what: str, rows: int) -> Tensor:
        """Return the log-weights of keys that were drawn with these log-probabilities."""
        if checks.is_float(log_q, what).numel() != rows or (what == "log_q" and log_q.dim() != 1):
            raise ValueError(f"{what}: expected a number per key, {rows} in all, got shape {checks.shape(log_q)}.")
        if checks.wanted(log_q) and not bool((log_q >= -MAX_LOG_WEIGHT).all()):
            raise ValueError(f"{what}: expected log-probabilities of at least -{MAX_LOG_WEIGHT:g}, not probabilities.")
        return -log_q.detach().to(self.dtype).reshape(-1)

    def _guide(
        self, views: Tensor | Sequence[Tensor] | None, queue: Tensor | Keys | None, negatives: Tensor | Keys | None
    ) -> Batch | None:
        """Return the same batch as the guide model sees it: only its similarities are used."""
        found: dict[str, Tensor | None] = {}
        for name, given, keys in (("queue", queue, self.queue), ("negatives", negatives, self.negatives)):
            x = found[name] = None if given is None else Keys.of(given).guide
            exempt = name == "negatives" and any(not rule.hard for rule in self.rules)
            if x is not None and views is None:
                raise ValueError(f"{name}: guide: needs guide= beside it, that of the views.")
            if views is not None and keys is not None and x is None and not exempt:
                raise ValueError(
                    f"guide= with {name}=: needs the guide's embeddings of these: cp.Keys(..., guide=...)."
                )
            if x is not None and checks.is_float(x, f"{name}: guide").shape[:-1].numel() != keys[..., 0].numel():  # type: ignore[index]
                raise ValueError(f"{name}: guide: expected a row for each key, got shape {checks.shape(x)}.")
        if views is None:
            return None
        if not self.rules:
            raise ValueError("guide=: needs false_negatives= beside it; cp.margin(0) is GISTEmbed's rule.")
        if self.adversarial is not None:
            raise ValueError("guide= cannot be combined with adversarial=: the guide has not seen these views.")
        listed = [views] if isinstance(views, Tensor) else [*views]
        for i, view in enumerate(listed, 1):
            checks.is_float(view, f"guide, view {i}")
        if len(listed) == 1 and listed[0].dim() == 3:
            listed = [*listed[0].unbind(1)]
        shapes = [view.shape[:-1] for view in listed]
        if shapes != [view.shape[:-1] for view in self.raw]:
            raise ValueError(
                f"guide: expected {len(self.raw)} views of {self.size} samples, as the model's, got shapes "
                f"{', '.join(map(checks.shape, listed))}."
            )
        of_hard, of_queue = found["negatives"], found["queue"]
        if self.negatives is not None and of_hard is None:
            of_hard = listed[0].new_zeros(1).expand(*self.negatives.shape[:2], listed[0].shape[-1])
        engine = f"{self.engine}:{self.edge}" if self.edge else self.engine
        known: BatchOptions = {"labels": self.labels, "hardness": self.hardness, "in_batch": self.in_batch}
        known |= {"directions": self.directions or None, "pairing": self.pairing, "engine": engine}
        if of_queue is not None:
            of_labels = self.queue_ids if self.labels is not None else None
            known["queue"] = Keys(of_queue.detach().to(self.dtype), ids=of_labels)
        if of_hard is not None:
            known["negatives"] = Keys(of_hard.detach().to(self.dtype), shared=self.shared)
        with torch.no_grad():
            return Batch([view.detach().to(self.dtype) for view in listed], **known)

    def _known_of(self, name: str, keys: Keys | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the ids and the log-weights of keys, one per key."""
        if keys is None:
            return None, None
        ids, rows = keys.ids, keys.embeddings[..., 0].numel()
        if ids is not None:
            if self.ids is None:
                raise ValueError(f"{name}: ids: needs ids= or labels= beside it, those of the batch.")
            if checks.is_tensor(ids, f"{name}: ids").numel() != rows or not checks.is_whole(ids):
                got = f"shape {checks.shape(ids)} of {ids.dtype}"
                raise ValueError(f"{name}: ids: expected one integer per key, {rows} in all, got {got}.")
            ids = ids.reshape(-1).long()
        return ids, None if keys.log_q is None else self._log_weight(keys.log_q, f"{name}: log_q", rows)

    def _check_combinations(self) -> None:
        if self.queue is not None and self.negatives is not None:
            raise ValueError("give queue= or negatives=, not both: append the hard negatives to the queue.")
        if self.directions:
            refused = {
                "queue=": self.queue is not None, "labels=": self.labels is not None,
                "in_batch=False": not self.in_batch,
                "adversarial=": self.adversarial is not None, "mixed=": self.mixed is not None,
            }  # fmt: skip
            for name in (name for name, given in refused.items() if given):
                raise ValueError(f"directions= and hardness= cannot be combined with {name}.")
        if self.queue is not None and self.ids is not None and self.queue_ids is None:
            raise ValueError("ids= or labels= with queue=: needs those of the queue: queue=cp.Keys(queue, ids=...).")
        for name, value in (("adversarial", self.adversarial), ("mixed", self.mixed)):
            if value is not None and not (self.queue is None and self.negatives is None and self.labels is None):
                raise ValueError(
                    f"{name}= goes with pairings of the batch itself, not with queue=, negatives= or labels=."
                )

    def _check_choices(self) -> None:
        check_known("empty: unknown value", self.empty, EMPTY)
        if self.empty != "error" and not self.rules:
            raise ValueError(f"empty={self.empty!r}: needs false_negatives= beside it.")
        for name, value in (("in_batch", self.in_batch), ("negatives: shared", self.shared)):
            if not isinstance(value, bool):
                raise TypeError(f"{name}: expected True or False, got {value!r}.")
        if not self.in_batch and self.negatives is None:
            raise ValueError("in_batch=False: needs negatives= beside it.")
        if not self.in_batch and any(not rule.hard for rule in self.rules):
            raise ValueError("in_batch=False leaves hard negatives only, and hard=False exempts these: give one.")
        if not self.in_batch and self.labels is not None:
            raise ValueError("in_batch=False cannot be combined with labels=: their positives are in the batch.")
        if self.log_weight is not None and self.queue is not None:
            raise ValueError("log_q= is of the batch's keys; the negatives are the queue's: cp.Keys(queue, log_q=...).")
        if self.log_weight is not None and self.negatives is not None and self.negative_log_weight is None:
            raise ValueError(
                "log_q= with negatives=: the hard negatives need log-probabilities too: cp.Keys(negatives, log_q=...)."
            )
        if self.negatives is not None and self.log_weight is None and self.negative_log_weight is not None:
            self.log_weight = self.negative_log_weight.new_zeros(self.size)

    def _choose_engine(self) -> None:
        """Set ``engine`` and ``edge``; ``auto`` becomes ``matrix`` where every pairing of the batch is a small one."""
        requested = self._requested_engine
        name, _, edge = requested.partition(":") if isinstance(requested, str) else (requested, "", "")
        check_known("engine: unknown value", name, ENGINES)
        if edge and (name not in ("tiles", "chunks") or not edge.isdecimal() or int(edge) == 0):
            raise ValueError(f"engine: expected tiles:N or chunks:N with N the edge of the tiles, got {requested!r}.")
        self.engine, self.edge = name, int(edge) if edge else None
        # neither a compiler nor torch.func can trace the reduction of tiles, nor can it be done without values
        if checks.compiling() or torch._C._are_functorch_transforms_active() or checks.is_abstract(self.raw[0]):
            if name not in ("auto", "matrix"):
                raise ValueError(
                    f"engine={name!r}: torch.func needs 'matrix' or 'auto', and so does reduction='none' in "
                    "compiled code."
                )
            self.engine = "matrix"
        elif name == "auto":
            views = 1 if self.queue is not None else len(self.raw)
            keys = self.total * (views if self.negatives is None else views + self.negatives.shape[1])
            pairs = self.size * views * (keys if self.queue is None else len(self.queue))
            self.engine = "auto" if pays_to_tile(pairs, self.device) else "matrix"
