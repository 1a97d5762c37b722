"""A batch: the embeddings of its samples, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from .. import checks
from ..engine.cosines import CosineNegatives, Layout
from ..engine.distributed import ProcessGroup
from ..engine.embeddings import OtherViews, SeparateUnit, StackedUnit
from ..engine.streamed import pays_to_stream
from ..hyper import is_number
from ..names import check_known
from ..vectors import EPS, EPS_HALF, unit
from .directions import chosen_directions
from .options import KnownOptions, checked_views
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
        directions, hardness, hardness_mode: those of the pairing ``joint``; without it no directions.
        log_weight, queue_log_weight, negative_log_weight: minus the log-probabilities, a number per key.
        engine: how to reduce the negatives, one of :data:`ENGINES`.
        tile: edge of the tiles; 0 for a matrix, None to choose for each pairing.
        group: the processes that share the batch, if several do.
        offset, total: position of this process's samples in the batch of all processes, and its size.
        scores: the scores of each pairing computed so far, see :func:`counterpoint.batch.pairings.scores_of`.
    """

    # of a batch of which only the views are known
    directions: tuple[str, ...] = ()
    hardness: float = 0.0
    hardness_mode: str | None = None
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
    _only_views: bool = True
    _views_ready: list[Tensor] | None = None
    _stack: Tensor | None = None
    _cosines: CosineNegatives | None = None

    def __init__(
        self,
        views: Sequence[Tensor],
        *,
        pairing: str | Mapping[str, str] | None = None,
        symmetric: bool = False,
        stacked: bool = False,
        normalize: bool = True,
        engine: str = "auto",
        tile: int | None = None,
        **known: Unpack[KnownOptions],
    ) -> None:
        if symmetric and pairing not in (None, "one_way", "symmetric"):
            raise ValueError(
                f"symmetric=True is one_way in both directions, and pairing={pairing!r} is another: give one."
            )
        self.pairing = "symmetric" if symmetric else pairing
        self.normalize, self.engine, self._requested_tile = normalize, engine, tile
        self.raw = checked_views(views, known.get("queue") is not None, stacked)
        first = self.raw[0]
        self.device, self.size, self.width = first.device, first.shape[0], first.shape[-1]
        self.total = self.size
        self.dtype = torch.float64 if torch.float64 in [view.dtype for view in self.raw] else torch.float32
        self.scores: dict[str, Scores] = {}
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}
        if known or pairing == "joint":
            self._describe(**known)
        self.tile = self._tile()
        if known:
            self.guide = self._guide(known.get("guide"), known.get("queue_guide"), known.get("negative_guide"))

    def _describe(
        self,
        *,
        directions: Sequence[str] | None = None,
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        queue: Tensor | None = None,
        negatives: Tensor | None = None,
        negative_weight: float = 0.0,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        queue_ids: Tensor | None = None,
        negative_ids: Tensor | None = None,
        false_negatives: Rule | str | Sequence[Rule | str] | None = None,
        guide: Tensor | Sequence[Tensor] | None = None,
        queue_guide: Tensor | None = None,
        negative_guide: Tensor | None = None,
        empty: str = "error",
        in_batch: bool = True,
        shared_negatives: bool = True,
        log_q: Tensor | None = None,
        queue_log_q: Tensor | None = None,
        negative_log_q: Tensor | None = None,
        prior: Tensor | None = None,
        positive_weight: Tensor | None = None,
        adversarial: Tensor | None = None,
        mixed: Tensor | None = None,
    ) -> None:
        """Check and take what is known of the batch beside its views."""
        if ids is not None and labels is not None:
            raise ValueError("give ids (known duplicates) or labels (classes, which also make positives), not both.")
        if not is_number(negative_weight) or negative_weight > MAX_LOG_WEIGHT:
            raise ValueError(
                f"negative_weight: expected a number of at most {MAX_LOG_WEIGHT:g}, got {negative_weight!r}."
            )
        if negative_weight and negatives is None:
            raise ValueError("negative_weight: needs negatives= beside it.")
        self.directions, self.hardness = chosen_directions(self.pairing, directions, hardness_mode, hardness_strength)
        self.hardness_mode = hardness_mode
        self.negative_weight = float(negative_weight)
        tensors = {
            "queue": queue, "negatives": negatives, "ids": ids, "labels": labels, "queue_ids": queue_ids,
            "negative_ids": negative_ids, "prior": prior, "positive_weight": positive_weight,
            "adversarial": adversarial, "mixed": mixed,
            "queue_guide": queue_guide, "negative_guide": negative_guide, "log_q": log_q, "queue_log_q": queue_log_q,
            "negative_log_q": negative_log_q,
        }  # fmt: skip
        given = {name: x for name, x in tensors.items() if x is not None}
        for name, x in given.items():
            if isinstance(x, Tensor) and x.device != self.device:
                raise ValueError(f"{name}: on {x.device}, but view 1 is on {self.device}.")
        embeddings = (queue, negatives, adversarial, mixed)
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in embeddings):
            self.dtype = torch.float64
        self.labels = None if labels is None else checks.is_ids(labels, "labels", self.size)
        self.ids = self.labels if ids is None else checks.is_ids(ids, "ids", self.size)
        self.prior = None if prior is None else self._prior(prior)
        self.positive_weight = None if positive_weight is None else self._positive_weight(positive_weight)
        self.queue = None if queue is None else self._keys(queue, "queue")
        self.negatives = None if negatives is None else self._per_sample(negatives, "negatives")
        self.adversarial = None if adversarial is None else self._per_sample(adversarial, "adversarial")
        self.mixed = None if mixed is None else self._per_sample(mixed, "mixed")
        self.queue_ids = self._key_ids(queue_ids, "queue_ids", "queue", self.queue)
        self.negative_ids = self._key_ids(negative_ids, "negative_ids", "negatives", self.negatives)
        self.log_weight = None if log_q is None else self._log_weight(log_q, "log_q", self.size)
        self.queue_log_weight = self._of_keys(queue_log_q, "queue_log_q", "queue", self.queue)
        self.negative_log_weight = self._of_keys(negative_log_q, "negative_log_q", "negatives", self.negatives)
        self.rules, self.empty, self.in_batch, self.shared = (
            as_rules(false_negatives),
            empty,
            in_batch,
            shared_negatives,
        )
        self._check_combinations()
        self._check_choices()
        self._only_views = not given

    # ---- embeddings ----------------------------------------------------------------------------

    @property
    def views(self) -> list[Tensor]:
        if self._views_ready is None:
            if self._stacked is not None:
                self._views_ready = [*self._stacked.split(self.size)]
            elif self._stackable():
                _, _, *self._views_ready = self._unit(SeparateUnit)
            else:
                self.check_finite()
                self._views_ready = [self._prepared(v) for v in self.raw]
        return self._views_ready

    def view(self, i: int) -> Tensor:
        """Return one of the views: the gradients of the others stay None."""
        if self._views_ready is not None or self._stacked is not None:
            return self.views[i]
        self.check_finite()
        return self._prepared(self.raw[i])

    @property
    def _stacked(self) -> Tensor | None:
        """All views below one another, if they are normalized already."""
        if self._stack is None and self._cosines is not None:
            self._stack = self._cosines.z
        return self._stack

    def stacked(self) -> Tensor:
        """Stack all views below one another, ``(m B, d)``."""
        if self._stacked is None:
            alone = self._views_ready is None and self._stackable()
            stacked: Tensor = self._unit(StackedUnit)[0] if alone else torch.cat(self.views)
            self._stack = stacked
            return stacked
        return self._stacked

    def other_views(self, stacked: bool) -> Tensor:
        """Return the similarities of each view to the sample's others, ``(m B, m - 1)``, view by view.

        Args:
            stacked: whether what follows needs the views below one another, or each.
        """
        if self._stacked is None and self._views_ready is None and self._stackable():
            pos: Tensor
            if stacked:
                self._stack, _, pos = self._unit(StackedUnit, others=True)
            else:
                _, pos, *self._views_ready = self._unit(SeparateUnit, others=True)
            return pos
        if stacked and self.tile != 0:
            return OtherViews.apply(self.stacked(), len(self.raw))  # type: ignore[no-any-return]
        others = [[(x * y).sum(-1) for j, y in enumerate(self.views) if i != j] for i, x in enumerate(self.views)]
        return torch.cat([torch.stack(x, 1) for x in others])

    def _unit(self, function: type[StackedUnit | SeparateUnit], others: bool = False) -> Any:
        return function.apply(self._eps(self.raw[0]), self.dtype, others, *self.raw)

    def is_plain(self, anchors: int, keys: int) -> bool:
        """Whether to compute a matrix, of so many views as anchors and keys, and nothing but the views is known."""
        plain = self._only_views and self.group is None and self._stacked is None
        if not plain or not self._stackable():
            return False
        if self.tile == 0:
            return True
        pairs, separate = anchors * keys * self.size**2, keys < len(self.raw)
        return self.tile is None and self.engine == "auto" and not pays_to_stream(pairs, self.device, separate)

    def cosines(self, layout: Layout) -> CosineNegatives:
        """Return the negatives of a batch that :meth:`is_plain`, and its positives with them."""
        self._cosines = CosineNegatives(self.raw, self._eps(self.raw[0]), self.dtype, layout, self.bound)
        return self._cosines

    def _stackable(self) -> bool:
        """Whether the views can be normalized together."""
        first, *others = self.raw
        alike = all(v.dtype == first.dtype and v.requires_grad == first.requires_grad for v in others)
        return self.normalize and alike and first.dim() == 2 and not checks.traced()

    def stack(self, views: Sequence[Tensor]) -> Tensor:
        """Stack some views below one another."""
        if len(views) == 1:
            return views[0]
        return self.stacked() if views is self._views_ready else torch.cat([*views])

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
        self.tile = self._tile()
        if self.guide is not None:
            self.guide.join(group)
            self.guide.tile = self.tile

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
        if checks.wanted(log_q) and not bool((log_q.abs() <= MAX_LOG_WEIGHT).all()):
            raise ValueError(f"{what}: expected log-probabilities of at least -{MAX_LOG_WEIGHT:g}, not probabilities.")
        return -log_q.detach().to(self.dtype).reshape(-1)

    def _of_keys(self, log_q: Tensor | None, what: str, of: str, keys: Tensor | None) -> Tensor | None:
        if log_q is None:
            return None
        if keys is None:
            raise ValueError(f"{what}: needs {of}= beside it.")
        return self._log_weight(log_q, what, keys[..., 0].numel())

    def _guide(
        self, views: Tensor | Sequence[Tensor] | None, queue: Tensor | None, negatives: Tensor | None
    ) -> Batch | None:
        """Return the same batch as the guide model sees it: only its similarities are used."""
        for name, x, of, keys in (
            ("queue_guide", queue, "queue", self.queue), ("negative_guide", negatives, "negatives", self.negatives),
        ):  # fmt: skip
            exempt = of == "negatives" and any(not rule.hard for rule in self.rules)
            if x is not None and (views is None or keys is None):
                raise ValueError(f"{name}: needs {of}= and guide= beside it.")
            if views is not None and keys is not None and x is None and not exempt:
                raise ValueError(f"guide= with {of}=: needs {name}= too, the guide's embeddings of {of}.")
            if isinstance(x, Tensor) and keys is not None and x[..., 0].numel() != keys[..., 0].numel():
                raise ValueError(f"{name}: expected a row for each of {of}, got shape {checks.shape(x)}.")
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
        if self.negatives is not None and negatives is None:
            negatives = listed[0].new_zeros(1).expand(*self.negatives.shape[:2], listed[0].shape[-1])
        with torch.no_grad():
            return Batch(
                [view.detach().to(self.dtype) for view in listed], pairing=self.pairing, labels=self.labels,
                directions=self.directions or None, hardness_mode=self.hardness_mode, hardness_strength=self.hardness,
                queue=None if queue is None else queue.detach().to(self.dtype), in_batch=self.in_batch,
                shared_negatives=self.shared,
                negatives=None if negatives is None else negatives.detach().to(self.dtype),
                queue_ids=self.queue_ids if self.labels is not None else None, engine=self.engine, tile=self.tile,
            )  # fmt: skip

    def _key_ids(self, ids: Tensor | None, what: str, of: str, keys: Tensor | None) -> Tensor | None:
        if ids is None:
            return None
        if keys is None or self.ids is None:
            raise ValueError(f"{what}: needs {of}= and ids= or labels= beside it.")
        if checks.is_tensor(ids, what).numel() != keys[..., 0].numel() or not checks.is_whole(ids):
            raise ValueError(f"{what}: expected one id per row of {of}, got shape {checks.shape(ids)} of {ids.dtype}.")
        return ids.reshape(-1).long()

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
                raise ValueError(f"directions= and hardness_mode= cannot be combined with {name}.")
        if self.queue is not None and self.ids is not None and self.queue_ids is None:
            raise ValueError("ids= or labels= with queue=: needs queue_ids= to know what the queue holds.")
        for name, value in (("adversarial", self.adversarial), ("mixed", self.mixed)):
            if value is not None and not (self.queue is None and self.negatives is None and self.labels is None):
                raise ValueError(
                    f"{name}= goes with pairings of the batch itself, not with queue=, negatives= or labels=."
                )

    def _check_choices(self) -> None:
        check_known("empty: unknown value", self.empty, EMPTY)
        if self.empty != "error" and not self.rules:
            raise ValueError(f"empty={self.empty!r}: needs false_negatives= beside it.")
        for name, value in (("in_batch", self.in_batch), ("shared_negatives", self.shared)):
            if not isinstance(value, bool):
                raise TypeError(f"{name}: expected True or False, got {value!r}.")
            if not value and self.negatives is None:
                raise ValueError(f"{name}=False: needs negatives= beside it.")
        if not self.in_batch and any(not rule.hard for rule in self.rules):
            raise ValueError("in_batch=False leaves hard negatives only, and hard=False exempts these: give one.")
        if not self.in_batch and self.labels is not None:
            raise ValueError("in_batch=False cannot be combined with labels=: their positives are in the batch.")
        if self.log_weight is not None and self.queue is not None:
            raise ValueError("log_q= is of the batch's keys; the negatives are the queue's: give queue_log_q=.")
        if self.log_weight is not None and self.negatives is not None and self.negative_log_weight is None:
            raise ValueError("log_q= with negatives=: needs negative_log_q= for those.")
        if self.negatives is not None and self.log_weight is None and self.negative_log_weight is not None:
            self.log_weight = self.negative_log_weight.new_zeros(self.size)

    def _tile(self) -> int | None:
        tile = self._requested_tile
        if tile is not None and (not is_number(tile) or tile != int(tile) or tile < 0):
            raise ValueError(f"tile: expected a whole number, 0 for a matrix, or None, got {tile!r}.")
        check_known("engine: unknown value", self.engine, ENGINES)
        streamed = self.engine in ("tiles", "chunks", "fused")
        if tile is not None and (streamed if tile == 0 else self.engine in ("matrix", "fused")):
            raise ValueError(f"engine={self.engine!r} contradicts tile={tile}: give one.")
        # neither a compiler nor torch.func can trace the reduction of tiles, nor can it be done without values
        if checks.compiling() or torch._C._are_functorch_transforms_active() or checks.is_abstract(self.raw[0]):
            if streamed:
                raise ValueError(
                    f"engine={self.engine!r}: torch.func needs 'matrix' or 'auto', and so does reduction='none' in "
                    "compiled code."
                )
            return 0
        if self.engine == "matrix":
            return 0
        if tile is not None:
            return int(tile)
        if streamed:
            return None
        views = 1 if self.queue is not None else len(self.raw)
        keys = self.total * (views if self.negatives is None else views + self.negatives.shape[1])
        pairs = self.size * views * (keys if self.queue is None else len(self.queue))
        return None if pays_to_stream(pairs, self.device) else 0
