"""The one interface: an objective is a function of ``pos`` and ``neg``.

A new objective is a subclass with a name, its hyper-parameters and ``per_anchor(pos, neg)``. It then works
with every pairing, wrapper, host and engine, adds up with other objectives, and has a spec string.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial, reduce
from importlib import metadata
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from . import spec
from .batch.pairings import Batch
from .batch.ready_made import scores_from_logits, scores_from_matrices
from .batch.scores import Scores
from .engine import distributed
from .engine.negatives import Negatives
from .hyper import Hyper, Learned, Real, Schedule, Tracked, Value, nearest, text

registry: dict[str, type[Objective]] = {}
INFONCE = ("ntxent", "simclr", "moco", "clip", "crossentropy", "mnrl")  # what others call it


class Objective(nn.Module):
    """A contrastive objective: similarities in, loss out.

    Subclasses name themselves (``class ADNCE(InfoNCE, name="adnce")``), declare hyper-parameters as class
    attributes (``mu = Real("mu")``), hand their values to ``super().__init__`` and implement
    :meth:`per_anchor`, or :meth:`losses` if they need more of a batch than ``pos`` and ``neg``.

    Hyper-parameters are frozen: ``loss_fn.replace(mu=0.5)`` makes a changed objective. What shall change while
    training is given as a :class:`Schedule` or a :class:`Learned` value instead of a number.

    Objectives compare by value, but hash by identity, as all torch modules do.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    hyper: ClassVar[dict[str, Hyper]] = {}
    pairing: ClassVar[str] = "views"

    def __init_subclass__(cls, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.hyper = {k: v for c in reversed(cls.__mro__) for k, v in vars(c).items() if isinstance(v, Hyper)}
        cls.name = name
        if not name:
            return
        if not spec.NAME.fullmatch(name):
            raise ValueError(f"{cls.__name__}: {name!r} is no name for specs; use lower-case letters, digits and _.")
        if name == "sum" or name in spec.CALLS:
            raise ValueError(f"{cls.__name__}: {name!r} has a meaning of its own in specs or as data.")
        known = registry.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"{cls.__name__}: the name {name!r} is taken by {known.__module__}.{known.__qualname__}.")
        registry[name] = cls

    def __init__(self, **values: Any) -> None:
        super().__init__()
        where = type(self).__name__
        for key in values:
            if key not in self.hyper:
                raise TypeError(f"{where}: unknown parameter {key!r}.{nearest(key, self.hyper)}")
        self._hyper: dict[str, Any] = {}
        for key, hyper in self.hyper.items():
            if key not in values:
                raise TypeError(f"{where}: its __init__ must hand {key}= to super().__init__.")
            value = self._hyper[key] = hyper.check(values[key], where)
            if isinstance(value, nn.Module):
                self.add_module("_" + key, value)
            else:
                self.__dict__[key] = value  # found before the class's descriptor, by old compilers too

    def __setattr__(self, key: str, value: Any) -> None:
        if key in self.hyper:
            raise AttributeError(
                f"{type(self).__name__}.{key} is frozen: use .replace({key}=...) for a changed objective, or give "
                "a Schedule or a Learned value for one that changes while training."
            )
        super().__setattr__(key, value)

    # ---- what an objective is ------------------------------------------------------------------

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        """The loss of each anchor with each of its positives.

        Args:
            pos: ``(anchors, P)`` raw similarities of the positives.
            neg: the negatives; their reductions have the shape ``(anchors, 1)``.

        Returns:
            ``(anchors, P)``, averaged over the positives afterwards, or ``(anchors, 1)``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither per_anchor nor losses.")

    def losses(self, scores: Scores) -> Tensor:
        """Like :meth:`per_anchor`, for objectives that need more of a batch than ``pos`` and ``neg``."""
        return self.per_anchor(scores.pos, scores.neg)

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        """Numbers of its own that an objective adds to :meth:`report`."""
        return {}

    @property
    def views(self) -> int | None:
        """The number of views that the objective asks the data side for, if it does."""
        return None

    @property
    def needs(self) -> frozenset[str]:
        """What a call must be given beside views: ``adversarial`` or ``mixed``, made by :mod:`counterpoint.views`."""
        return frozenset()

    @property
    def couples_anchors(self) -> bool:
        """Whether a loss is more than the mean, over its anchors, of what each one's own similarities say.

        That is so where a statistic of all anchors enters: ``mu="auto"``, ``radius=``, a shared ``alpha``, a sum over
        the batch. Then the losses of a batch's parts do not average to its loss. The call with embeddings and
        ``gather=`` sees to it; who hands over scores or logits hands over those of all anchors.
        """
        inner = [part for part in self.modules() if part is not self]
        return any(isinstance(p, Tracked) or (isinstance(p, Objective) and p.couples_anchors) for p in inner)

    if TYPE_CHECKING:  # torch types the call of a module as Any

        def __call__(self, *views: Tensor, **how: Any) -> Tensor: ...

    # ---- how it is called ----------------------------------------------------------------------

    def forward(
        self,
        *views: Tensor,
        pairing: str | None = None,
        symmetric: bool = False,
        queue: Tensor | None = None,
        negatives: Tensor | None = None,
        negative_weight: float = 0.0,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        queue_ids: Tensor | None = None,
        negative_ids: Tensor | None = None,
        prior: Tensor | None = None,
        adversarial: Tensor | None = None,
        mixed: Tensor | None = None,
        normalize: bool = True,
        tile: int | None = None,
        reduction: str = "mean",
        gather: distributed.Gather = False,
    ) -> Tensor:
        """The loss of a batch of embeddings.

        What is given beside the views and no term looks at (``prior`` of an InfoNCE) is ignored, so that one training
        loop serves all objectives.

        Args:
            views: two or more tensors ``(B, d)``, one per view, or one tensor ``(B, views, d)``. They are
                normalised here unless ``normalize=False``.
            pairing: who is compared with whom. By default each objective uses its paper's; see
                :mod:`counterpoint.batch.pairings` for ``views``, ``one_way``, ``symmetric``, ``first_two``, ``pairs``,
                ``arcl`` and ``single``.
            symmetric: ``one_way`` in both directions (CLIP).
            queue: ``(K, d)`` further keys, all negatives (MoCo). The first view is the query, the second the key;
                key and queue are detached.
            negatives: ``(B, d)`` or ``(B, n, d)`` hard negatives of each sample; all samples see all of them. The
                pairing is then ``one_way``.
            negative_weight: SimCSE's weight, added to the logit of a sample's own hard negatives.
            ids: ``(B,)`` integers; samples with the same id are never each other's negatives.
            labels: ``(B,)`` integers; as ``ids``, and samples with the same label are positives (supervised use).
            queue_ids, negative_ids: ids (or labels) of the queue's rows and of the hard negatives.
            prior: ``(B,)`` probability that a sample's negative is a false one; replaces the objective's prior.
            adversarial: ``(B, d)`` embeddings of adversarial views (:mod:`counterpoint.views`).
            mixed: ``(B, d)`` or ``(B, n, d)`` embeddings of mixed views.
            normalize: cosine similarities if true, plain inner products if not.
            tile: 0 keeps the similarities in a matrix, which can be differentiated twice; a larger number streams them
                in tiles of this edge, in memory that grows with the batch and not with its square. None chooses:
                tiles where they are faster or much smaller; a matrix for small batches, in compiled code and under
                ``torch.func``. With ``labels`` there is always a matrix, that of the positives.
            reduction: ``mean`` over anchors, or ``none`` for the loss of each anchor (of this process).
            gather: compare with the samples of all processes: True, a process group, or ``"ring"``; see
                :mod:`counterpoint.engine.distributed`. Everything else is given for this process's samples, except the
                queue, which all processes hold in common.
        """
        if symmetric and pairing not in (None, "one_way", "symmetric"):
            raise ValueError(
                f"symmetric=True is one_way in both directions, and pairing={pairing!r} is another: give one."
            )
        make = partial(
            Batch,
            views,
            pairing="symmetric" if symmetric else pairing,
            queue=queue,
            negatives=negatives,
            negative_weight=negative_weight,
            ids=ids,
            labels=labels,
            queue_ids=queue_ids,
            negative_ids=negative_ids,
            prior=prior,
            adversarial=adversarial,
            mixed=mixed,
            normalize=normalize,
            tile=tile,
        )
        batch = distributed.meet(gather, make) if gather else make()
        return self.from_pairings(batch.scores, batch.device, reduction=reduction)

    def from_scores(
        self,
        pos: Tensor,
        neg: Tensor | Negatives,
        mask: Tensor | None = None,
        *,
        pos_mask: Tensor | None = None,
        v: Tensor | None = None,
        prior: Tensor | None = None,
        adversarial: tuple[Tensor, Tensor] | None = None,
        mixed: tuple[Tensor, Tensor] | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """The loss of ready-made similarities, not yet divided by a temperature.

        Args:
            pos: ``(anchors,)`` or ``(anchors, P)``.
            neg: ``(anchors, N)``, or anything that reduces like :class:`Negatives`.
            mask: ``(anchors, N)``, True where ``neg`` holds a negative.
            pos_mask: ``(anchors, P)``, True where ``pos`` holds a positive.
            v: ``(anchors, P')`` positives that enter the estimators g1 and g2; by default ``pos``.
            prior: ``(anchors,)`` probability of a false negative; replaces the objective's prior.
            adversarial: similarities ``(anchors, 1)`` to the adversarial view and ``(anchors, N)`` to its negatives.
            mixed: similarities ``(anchors, M-1)`` to mixed views and ``(anchors, M-1, N)`` to their negatives.
            reduction: as in the call with embeddings.
        """
        scores = scores_from_matrices(pos, neg, mask, pos_mask, v, prior, adversarial, mixed)
        return self.from_pairings(lambda _: scores, pos.device, reduction=reduction)

    def from_logits(
        self,
        logits: Tensor,
        labels: Tensor | None = None,
        *,
        scale: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Tensor:
        """The loss of what a host would hand to cross entropy.

        Args:
            logits: ``(anchors, keys)``, similarities times ``scale``. Minus infinity, or -1e4 and less, is a mask:
                such a key is no negative of that anchor.
            labels: ``(anchors,)`` column of each positive; ``(anchors, keys)`` booleans for several positives per
                row; by default the diagonal.
            scale: what the host has multiplied the similarities by, usually one over its temperature.
            ignore_index: rows with this label do not count.
            reduction: as in the call with embeddings.
        """
        scores = scores_from_logits(logits, labels, scale, ignore_index)
        return self.from_pairings(lambda _: scores, logits.device, reduction=reduction)

    def from_pairings(
        self, scores: Callable[[str], Scores], device: torch.device, *, reduction: str = "mean"
    ) -> Tensor:
        """The loss of scores that are made on demand, for hosts whose terms look at different similarities.

        Args:
            scores: from the name of a pairing (:mod:`counterpoint.batch.pairings`), which each term asks for,
                to the scores of the batch.
            device: where the scores live.
            reduction: as in the call with embeddings.
        """
        if reduction not in ("mean", "none"):
            hint = nearest(str(reduction), ("mean", "none"))
            raise ValueError(f"{type(self).__name__}: unknown reduction {reduction!r}.{hint}")
        # autocast would round the products of float32 tensors to half precision, too coarse for small temperatures
        with torch.autocast(device.type, enabled=False):
            loss = self._value(scores, reduction)
        if self.training and torch.is_grad_enabled():
            for module in self.modules():
                if isinstance(module, Schedule):
                    module.advance()
        return loss

    def _value(self, scores: Callable[[str], Scores], reduction: str) -> Tensor:
        mine = scores(self.pairing)
        losses = self.losses(mine)
        per_anchor = (mine.positives_mean(losses) if losses.shape[1] > 1 else losses).squeeze(1)
        if reduction == "mean":
            return mine.anchors_mean(per_anchor)
        return per_anchor if mine.anchors is None else per_anchor * mine.anchors

    def report(self, *views: Tensor, **how: Any) -> dict[str, float]:
        """What a batch looks like to this objective; see :func:`counterpoint.diagnose.report`."""
        from .diagnose.report import report

        return report(self, *views, **how)

    # ---- composition ---------------------------------------------------------------------------

    def terms(self) -> list[tuple[Value | Schedule | Learned, Objective]]:
        """The weighted terms that add up to this objective."""
        return [(1.0, self)]

    def __add__(self, other: Objective) -> Objective:
        return Sum([(1.0, self), (1.0, other)]) if isinstance(other, Objective) else NotImplemented

    def __mul__(self, weight: float | Schedule | Learned) -> Objective:
        if not isinstance(weight, (int, float, Schedule, Learned)):
            return NotImplemented
        return Sum([(weight, self)])

    __rmul__ = __mul__

    def __radd__(self, other: object) -> Objective:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # what sum() begins with

    def __neg__(self) -> Objective:
        return self * -1.0

    def __sub__(self, other: Objective) -> Objective:
        return self + -other if isinstance(other, Objective) else NotImplemented

    def __truediv__(self, number: float) -> Objective:
        return self * (1 / number) if isinstance(number, (int, float)) else NotImplemented

    def replace(self, **changes: Any) -> Objective:
        """A copy with other hyper-parameters, and with schedules and learned values of its own."""
        return type(self)(**{**deepcopy(self._hyper), **self._long(changes)})

    def _long(self, changes: dict[str, Any]) -> dict[str, Any]:
        """With full names in the place of a spec's."""
        names = {h.short: k for k, h in self.hyper.items()}
        return {names.get(k, k): v for k, v in changes.items()}

    # ---- text and data -------------------------------------------------------------------------

    @property
    def _called(self) -> str:
        """The name in specs; a class without one is called by its own, which no spec can build."""
        return self.name or type(self).__name__

    def _parameters_text(self) -> str:
        defaults = self._defaults()
        shown = {
            h.short: text(self._hyper[k])
            for k, h in self.hyper.items()
            if h.always or self._hyper[k] != defaults.get(k, inspect.Parameter.empty)
        }
        return "".join((":" if i == 0 else ",") + f"{k}={v}" for i, (k, v) in enumerate(shown.items()))

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {k: p.default for k, p in inspect.signature(cls).parameters.items()}

    def __str__(self) -> str:
        return self._called + self._parameters_text()

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :func:`counterpoint.from_dict` turns back into this objective."""
        plain = {k: v if v is None or isinstance(v, (bool, int, float)) else text(v) for k, v in self._hyper.items()}
        return {"name": self._called, **plain}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Objective:
        return cls(**{k: spec.value(v) if isinstance(v, str) else v for k, v in data.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return id(self)


class Wrapper(Objective):
    """An objective around another one, ``name(inner)`` in specs."""

    def __init__(self, objective: Objective | str, **values: Any) -> None:
        super().__init__(**values)
        self.objective = as_objective(objective)

    @property
    def needs(self) -> frozenset[str]:
        return self.objective.needs

    def replace(self, **changes: Any) -> Objective:
        own = {"objective": deepcopy(self.objective), **deepcopy(self._hyper)}
        return type(self)(**{**own, **self._long(changes)})

    def __str__(self) -> str:
        return f"{self._called}({self.objective}){self._parameters_text()}"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "objective": self.objective.to_dict()}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Objective:
        if "objective" not in data:
            raise ValueError(f'from_dict: {cls.name} wraps an objective; expected "objective" beside its name.')
        return super().from_plain({**data, "objective": from_dict(data["objective"])})


class Sum(Objective):
    """A weighted sum of objectives, written ``a + 0.1 * b``. Each term pairs the batch in its own way.

    Sums within are multiplied out where weights are numbers, so that ``2 * (a + b)`` is ``2 * a + 2 * b`` however it
    was written.
    """

    def __init__(self, terms: Iterable[tuple[Any, Objective]]) -> None:
        super().__init__()
        weight_of = Real("weight")
        weight_of.name = "weight"
        flat: list[tuple[Any, Objective]] = []
        for weight, part in terms:
            w = weight_of.check(weight, "Sum")
            inner = part.terms() if isinstance(part, Sum) else []
            if isinstance(part, Sum) and part.is_plain():
                flat.append((w, inner[0][1]))
            elif inner and w == 1.0:
                flat += inner
            elif inner and all(isinstance(x, float) for x in (w, *(v for v, _ in inner))):
                flat += [(weight_of.check(w * v, "Sum"), one) for v, one in inner]
            else:
                flat.append((w, part))
        self._weights: list[Any] = [w for w, _ in flat]
        self.parts = nn.ModuleList(part for _, part in flat)
        self.moving = nn.ModuleList(w for w in self._weights if isinstance(w, nn.Module))

    def is_plain(self) -> bool:
        """One term with weight 1: as text and as data, it is no more than that term."""
        return len(self._weights) == 1 and self._weights[0] == 1.0

    def terms(self) -> list[tuple[Any, Objective]]:
        return list(zip(self._weights, self.parts, strict=True))  # type: ignore[arg-type]

    @property
    def views(self) -> int | None:
        wanted = [part.views for _, part in self.terms() if part.views is not None]
        return max(wanted) if wanted else None

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for _, part in self.terms()))

    def losses(self, scores: Scores) -> Tensor:
        return reduce(add, (current(w) * part.losses(scores) for w, part in self.terms()))

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        return {f"{k}[{part}]": v for _, part in self.terms() for k, v in part.diagnostics(scores).items()}

    def _value(self, scores: Callable[[str], Scores], reduction: str) -> Tensor:
        values = [current(w) * part._value(scores, reduction) for w, part in self.terms()]
        if len({v.shape for v in values}) > 1:
            raise ValueError(f"{self}: reduction='none' needs the same anchors in every term: give them one pairing=.")
        return reduce(add, values)

    def replace(self, **changes: Any) -> Objective:
        raise TypeError(f"{self}: a sum has no parameters of its own; replace those of its terms.")

    def __str__(self) -> str:
        return " + ".join(
            (f"{text(w)}*" if w != 1.0 else "") + (f"({part})" if isinstance(part, Sum) else str(part))
            for w, part in self.terms()
        )

    def to_dict(self) -> dict[str, Any]:
        if self.is_plain():
            return self.terms()[0][1].to_dict()
        terms = [[w if isinstance(w, float) else text(w), part.to_dict()] for w, part in self.terms()]
        return {"name": "sum", "terms": terms}


def current(value: Any) -> Value:
    """The present value of a number, a Schedule or a Learned value."""
    return value() if isinstance(value, nn.Module) else value  # type: ignore[no-any-return]


def as_objective(given: Objective | str) -> Objective:
    """Passes an objective through, builds one from a spec, refuses anything else."""
    if isinstance(given, Objective):
        return given
    if isinstance(given, str):
        return objective(given)
    raise TypeError(f"expected an objective or a spec string, got {reprlib.repr(given)} ({type(given).__name__}).")


def objective(text: str) -> Objective:
    """Builds an objective from its spec.

    ::

        sum    = term, {" + ", term}                adnce:mu=0.7,t=0.2 + 0.1*dp
        term   = [weight, "*"], (atom | "(" sum ")")
        atom   = name, ["(" sum ")"], [":" key=value, {"," key=value}]

    ``str(objective(text))`` is a spec of the same objective, with the choices that matter most always shown.

    >>> import counterpoint as cp
    >>> cp.objective("arcl(adnce:mu=0.9,t=0.2) + 0.1*dp")
    arcl(adnce:t=0.2,denominator=with_positive,mu=0.9) + 0.1*dp
    """
    return spec.parse(text, kind, Sum)  # type: ignore[no-any-return]


def kind(name: str) -> type[Objective]:
    """The class of that name: built in, defined by you, or registered by an installed package.

    Packages register objectives as entry points of the group ``counterpoint.objectives``, each naming a class.
    """
    if name not in registry:
        for entry in metadata.entry_points(group="counterpoint.objectives"):
            entry.load()
    if name not in registry:
        meant = {c.__name__.lower(): n for n, c in registry.items()} | dict.fromkeys(INFONCE, "infonce")
        hint = nearest(meant.get(re.sub(r"[^a-z0-9]", "", name.lower()), name), registry)
        raise LookupError(f"unknown objective {name!r}.{hint}")
    return registry[name]


def from_dict(data: dict[str, Any]) -> Objective:
    """Builds an objective from what :meth:`Objective.to_dict` returned."""
    if not isinstance(data, dict) or "name" not in data:
        raise ValueError(f'from_dict: expected a dict with "name", got {data!r}.')
    rest = {k: v for k, v in data.items() if k != "name"}
    name = data["name"]
    if name == "sum":
        terms = rest.get("terms")
        if (
            not isinstance(terms, list)
            or not terms
            or not all(isinstance(t, (list, tuple)) and len(t) == 2 for t in terms)
        ):
            raise ValueError(f"from_dict: a sum needs terms, a list of [weight, objective], got {terms!r}.")
        return Sum((spec.value(w) if isinstance(w, str) else w, from_dict(term)) for w, term in terms)
    if not isinstance(name, str):
        raise ValueError(f"from_dict: unknown objective {name!r}.{nearest(str(name), registry)}")
    try:
        return kind(name).from_plain(rest)
    except LookupError as error:
        raise ValueError(f"from_dict: {error}") from None
