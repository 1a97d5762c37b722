"""The interface of all objectives, their sums and wrappers, and how specs and data become objectives."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial, reduce
from importlib import import_module
from inspect import Parameter
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack, dataclass_transform

from . import checks, spec
from .batch.batch import Batch
from .batch.chunked import chunked_loss, suits_chunks
from .batch.gathered import gathered_batch
from .batch.options import OPTIONS, REDUCTIONS, BatchOptions, Reduction, View
from .batch.pairings import check_guide, check_use, guide_of_targets, scores_of, uses_guide
from .batch.ready_made import scores_from_logits, scores_from_matrices
from .batch.report import report
from .batch.scores import Negatives, Scores
from .engine.distributed import Gather
from .hyper import Choice, Flag, Hyper, Numbers, Parametrized, Real, warn_of_scale, warn_of_scales
from .names import check_known, kind
from .values import FromHost, Learned, Schedule, Tracked, Value, at_scale, current, text


class Inner(Hyper["Objective | str", "Objective"]):
    """The objective inside a :class:`Wrapper`: an objective or its spec."""


@dataclass_transform(field_specifiers=(Real, Choice, Flag, Numbers, Inner))
class Objective(Parametrized):
    """A contrastive objective: it turns similarities into a loss.

    Subclasses declare hyper-parameters as class attributes, and implement :meth:`per_anchor`, or :meth:`losses` to see
    more of a batch than ``pos`` and ``neg``. They then work with every pairing, wrapper, host and engine; with a name
    (``class ADNCE(InfoNCE, name="adnce")``), also in specs. Objectives are frozen, but :meth:`replace` returns changed
    ones, and a :class:`Schedule` or :class:`Learned` value moves; they compare by value but hash by identity.

    >>> isinstance(cp.InfoNCE(), cp.Objective), cp.InfoNCE().replace(t=0.1)
    (True, infonce:t=0.1,denominator=with_positive)
    """

    use: ClassVar[str] = ""  # when to use it
    tune_first: ClassVar[str] = ""  # the parameters to tune first, in order
    cost: ClassVar[str] = ""  # compared with InfoNCE
    pairing: ClassVar[str] = "views"
    on_cosines: ClassVar[bool] = False  # whether its parameters or bounds assume similarities between -1 and 1
    of_calls: ClassVar[tuple[str, ...]] = OPTIONS

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        """Return the loss of each anchor with each of its positives, ``(anchors, P)``, or of each anchor, one column.

        Args:
            pos: ``(anchors, P)`` similarities of the positives, not divided by a temperature.
            neg: The negatives; their reductions have the shape ``(anchors, 1)``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither per_anchor nor losses.")

    def losses(self, scores: Scores) -> Tensor:
        """Return the losses as :meth:`per_anchor` does, from all that is known of a batch."""
        return self.per_anchor(scores.pos, scores.neg)

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        """Return this objective's own entries of :meth:`report`."""
        return {}

    def _inner(self) -> list[Objective]:
        """Return the objectives inside this one, without those inside them."""
        parts = [*self.children()]
        for part in parts:
            parts += [] if isinstance(part, Objective) else part.children()
        return [part for part in parts if isinstance(part, Objective)]

    @property
    def views(self) -> int | None:
        """The number of views that the objective requires, or None."""
        return max((part.views for part in self._inner() if part.views is not None), default=None)

    @property
    def needs(self) -> frozenset[str]:
        """Arguments that a call requires besides the views: views that are ``adversarial``, ``mixed``, ``indexed``."""
        return frozenset().union(*(part.needs for part in self._inner()))

    @property
    def couples_anchors(self) -> bool:
        """Whether the loss is not a mean of terms that depend on one anchor's similarities each.

        That is so if a statistic of all anchors enters: ``mu="auto"``, ``radius=``, a shared ``alpha``, a sum over the
        batch. When you pass scores or logits yourself, then pass those of every anchor; ``gather=`` does so.
        """
        tracks = any(isinstance(part, Tracked) for part in self.modules())
        return tracks or any(part.couples_anchors for part in self._inner())

    def forward(
        self, *views: View, gather: Gather = False, reduction: Reduction = "mean", **options: Unpack[BatchOptions]
    ) -> Tensor:
        """Compute the loss of a batch of embeddings.

        Unused ``index``, ``prior``, ``positive_factor``, ``adversarial`` and ``mixed`` are ignored.

        Args:
            views: tensors ``(B, d)``, one per view: of ``(B, views, d)``, ``*z.unbind(1)``. Or queries ``(Q, d)`` and
                documents, a :class:`counterpoint.Keys` with ``positives=``. They are normalized unless
                ``normalize=False``.
            pairing: who is compared with whom, by default as in each objective's paper: see
                :mod:`counterpoint.batch.pairings`. A mapping such as ``{"views": "one_way"}`` replaces one of them.
            directions, hardness: what the pairing ``joint`` compares, in one denominator (GTE's loss), and which
                negatives count more the more similar they are: :mod:`counterpoint.batch.joint`.
            queue: ``(K, d)`` further keys, all negatives (MoCo), or :class:`counterpoint.Keys`. The first view is the
                query, the second the key; key and queue are detached.
            negatives: ``(B, d)`` or ``(B, n, d)`` hard negatives of each sample, which all samples see, or
                :class:`counterpoint.Keys`. The pairing is then ``one_way``.
            in_batch: False to compare with the sample's own hard negatives only.
            ids: ``(B,)`` integers; samples with the same id are never each other's negatives.
            index: ``(B,)`` position of each sample in the data set, from 0: ``sogclr`` keeps an average for each.
            labels: ``(B,)`` integers; as ``ids``, and samples with the same label are positives, rows of the queue
                included, hard negatives not. Samples without a positive, as of a single view, do not count.
            false_negatives: which keys are too similar to be negatives: :func:`counterpoint.margin`,
                :func:`counterpoint.threshold`, or a list of these. Similarities are the model's own or ``guide``'s.
            guide: another model's embeddings of the same views, ``(B, w)`` each or ``(B, views, w)``, whose cosines
                decide what ``false_negatives`` excludes (GISTEmbed), or are soft targets. They get no gradient.
            empty: what to do with anchors that ``false_negatives`` leaves without negatives: raise an ``error``,
                ``keep`` the least similar one, or count their loss as ``zero``; ``mu="auto"`` includes theirs.
            log_q: ``(B,)`` log-probability with which each sample was drawn; as a negative it counts ``1/q`` times (the
                correction of the sampled softmax). For any weights ``w`` pass ``-log(w)``; infinity excludes.
            prior: ``(B,)`` probability that a sample's negative is a false one; replaces the objective's prior.
            positive_factor: ``(B,)`` or ``(views, B)`` factors of ``p / t`` in the numerator of the family of InfoNCE.
                DCLW is ``InfoNCE(t, denominator="negatives")`` with ``2 - B * softmax((z1 * z2).sum(1) / sigma, 0)``,
                of normalized views and detached.
            adversarial, mixed: embeddings ``(B, d)``, of mixed views also ``(B, n, d)``; see :mod:`counterpoint.views`.
            normalize: cosine similarities if true, plain inner products if not.
            engine: how to reduce the negatives. ``auto`` chooses the fastest that fits; the others raise where they
                cannot be used. ``matrix`` computes all similarities at once, as second derivatives, ``torch.func`` and
                compiled code without graph breaks need; ``tiles`` computes them tile by tile, and in the backward pass
                again, if they are many; ``chunks`` computes loss and gradient a chunk of anchors at a time, in the
                forward pass; ``tiles:N`` and ``chunks:N`` set the size. ``fused``: kernels that no GPU has run yet.
            gather: compare with the samples of all processes: True or a process group. Pass everything else for this
                process's samples, except the queue, which all have in common.
            reduction: ``mean`` over anchors, or ``none`` for the loss of each anchor (of this process).
        """
        for name in options:
            hint = " Weights of keys: negatives=cp.Keys(z, log_q=..., own_log_weight=...)." if "weight" in name else ""
            check_known(f"{type(self).__name__}: unknown argument", name, OPTIONS, TypeError, hint)
        if checks.compiling():
            from . import compiled

            call = {"gather": gather, "reduction": reduction, **options}
            if compiled.breaks_graph(views, call):
                return compiled.uncompiled(self, views, call)  # type: ignore[no-any-return]
        batch = gathered_batch(views, gather, self, **options) if gather else Batch(views, **options)
        check_guide(batch, self)
        if batch.normalize and not checks.compiling():
            warn_of_scales(self)
        return self.compute_loss(partial(scores_of, batch), batch.device, reduction=reduction)

    if TYPE_CHECKING:  # torch types the call of a module as Any

        def __call__(
            self, *views: View, gather: Gather = False, reduction: Reduction = "mean", **options: Unpack[BatchOptions]
        ) -> Tensor: ...

    def from_scores(
        self,
        pos: Tensor,
        neg: Tensor | Negatives,
        mask: Tensor | None = None,
        *,
        pos_mask: Tensor | None = None,
        guide: tuple[Tensor, Tensor] | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Compute the loss of similarities, not yet divided by a temperature; :class:`Scores` can say more of them.

        Args:
            pos: ``(anchors,)`` or ``(anchors, P)``.
            neg: ``(anchors, N)``, or anything that reduces like :class:`Negatives`.
            mask: ``(anchors, N)``, True where ``neg`` holds a negative.
            pos_mask: ``(anchors, P)``, True where ``pos`` holds a positive.
            guide: another model's similarities, of the shapes of ``pos`` and ``neg``: soft targets.
        """
        check_use(guide, self)
        scores = scores_from_matrices(pos, neg, mask, pos_mask, guide)
        return self.compute_loss(lambda _: scores, pos.device, reduction=reduction)

    def from_logits(
        self,
        logits: Tensor,
        labels: Tensor | None = None,
        *,
        scale: float | Tensor = 1.0,
        bias: float | Tensor = 0.0,
        ignore_index: int = -100,
        empty: Literal["error", "warn", "zero"] = "error",
        log_q: Tensor | None = None,
        guide: Tensor | None = None,
        targets: Tensor | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Compute the loss of logits, as cross entropy takes them.

        Args:
            logits: ``(..., anchors, keys)``, similarities times ``scale``; -1e4 and less masks a key for that anchor.
            labels: ``(..., anchors)`` column of each positive, by default the diagonal; or of the shape of ``logits``,
                True, or not zero, at each positive. Rows without one do not count.
            scale: factor of the similarities, usually one over the host's temperature. A temperature of ``"host"`` is
                one over it, without which a trained scale (CLIP's ``logit_scale.exp()``) gets no gradient.
            bias: added to the similarities times ``scale``, as SigLIP does. A bias of ``"host"`` is this one.
            ignore_index: rows with this label do not count, whatever is in them.
            empty: what rows whose keys are all masked are, and a batch without positives: an ``error``, or ``zero``.
            log_q: ``(keys,)`` log-probability with which each key was drawn, as in the call with embeddings.
            guide: another model's similarities, of the shape of ``logits``: soft targets of ``cp.SoftTargets``.
            targets: soft targets like ``logits``, for any objective: the similarity of a positive is the mean of all
                keys' by these. ``labels``, by default of the largest, name the key that is in the denominator and not a
                negative; rows of zeros do not count. Their logarithms are the guide of ``cp.SoftTargets``.
            reduction: as in the call with embeddings; ``none`` has the shape ``(..., anchors)``.
        """
        check_use(guide, self)
        if targets is not None and guide is None and uses_guide(self):
            guide = guide_of_targets(self, targets)
        follows = any(isinstance(part, FromHost) and part.name == "temperature" for part in self.modules())
        if isinstance(scale, Tensor) and scale.requires_grad and not follows:
            own = "scale= is trained, but has no gradient beside a temperature of the objective's own"
            warnings.warn(f'{self}: {own}: temperature="host" (t=host) is one over the scale.', stacklevel=2)
        batch = scores_from_logits(logits, labels, scale, bias, ignore_index, empty, log_q, guide, targets)
        warn_of_scale(self, batch, scale)
        with at_scale(scale, bias):
            loss = self.compute_loss(lambda _: batch, logits.device, reduction=reduction)
        return loss.unflatten(0, logits.shape[:-1]) if reduction == "none" and logits.dim() > 2 else loss

    def compute_loss(
        self, scores_for: Callable[[str], Scores], device: torch.device, *, reduction: Reduction = "mean"
    ) -> Tensor:
        """Compute the loss of the scores on this device that ``scores_for`` returns for each term's pairing."""
        check_known(f"{type(self).__name__}: unknown reduction", reduction, REDUCTIONS)
        # autocast would round the products of float32 tensors to half precision, too coarse for small temperatures
        with checks.exact(device):
            loss = self._loss(scores_for, reduction)
        for module in self.modules() if self._modules and self.training and torch.is_grad_enabled() else ():
            if isinstance(module, Schedule):
                module.advance()
        return loss

    def _loss(self, scores_for: Callable[[str], Scores], reduction: Reduction) -> Tensor:
        scores = scores_for(self.pairing)
        if suits_chunks(self, scores.neg) and (loss := chunked_loss(self, scores, reduction)) is not None:
            return loss
        losses = scores.mark_invalid(self.losses(scores))  # (anchors, P) or (anchors, 1)
        if reduction == "mean" and scores.uniform:
            return losses.mean()
        per_anchor = (scores.positives_mean(losses) if losses.shape[1] > 1 else losses).squeeze(1)
        return scores.anchors_mean(per_anchor) if reduction == "mean" else scores.by_row(per_anchor)

    report = report

    def terms(self) -> list[tuple[Value | Schedule | Learned, Objective]]:
        """Return the weighted terms whose sum is this objective."""
        return [(1.0, self)]

    def __add__(self, other: Objective) -> Objective:
        return weighted_sum([(1.0, self), (1.0, other)]) if isinstance(other, Objective) else NotImplemented

    def __mul__(self, weight: float | Schedule | Learned) -> Objective:
        is_weight = isinstance(weight, (int, float, Schedule, Learned))
        return weighted_sum([(weight, self)]) if is_weight else NotImplemented

    __rmul__ = __mul__

    def __radd__(self, other: object) -> Objective:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum() starts with 0


class Wrapper(Objective):
    """An objective that changes another one, ``name(inner)`` in specs.

    >>> isinstance(cp.ArCL("dp"), cp.Wrapper), cp.ArCL("dp").objective
    (True, dp:low=0.1,high=0.5)
    """

    if TYPE_CHECKING:  # at run time it is a submodule
        objective: Inner = Inner(default="infonce")

    @classmethod
    def _call_order(cls) -> list[Parameter]:
        return [Parameter("objective", Parameter.POSITIONAL_OR_KEYWORD, default="infonce"), *super()._call_order()]

    def _assign(self, values: dict[str, Any]) -> None:
        super()._assign(values)
        self.objective = as_objective(values["objective"])

    def _own(self) -> dict[str, Any]:
        return {"objective": deepcopy(self.objective), **super()._own()}

    def _text(self, detail: str) -> str:
        return f"{self._spec_name}({self.objective._text(detail)}){self._parameters_text(detail)}"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "objective": self.objective.to_dict()}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        if "objective" not in data:
            raise ValueError(f'from_dict: {cls.name} wraps an objective; expected "objective" beside its name.')
        return super().from_plain({**data, "objective": from_dict(data["objective"])})


class Sum(Objective):
    """A weighted sum of objectives, written ``a + 0.1 * b``; each term uses its own pairing."""

    def __init__(self, terms: Iterable[tuple[Any, Objective]]) -> None:
        super().__init__()
        flat: list[tuple[Any, Objective]] = []  # constant weights of nested sums are multiplied out
        weight_of: Real = Real()
        weight_of.name = "weight"
        for weight, part in terms:
            w, inner = weight_of.check(weight, "Sum"), list[tuple[Any, Objective]](part.terms())
            if w == 1.0:
                flat += inner
            elif isinstance(w, float) and all(isinstance(v, float) for v, _ in inner):
                flat += [(weight_of.check(w * v, "Sum"), term) for v, term in inner]
            else:
                flat.append((w, part))
        self._weights: list[Any] = [w for w, _ in flat]
        self.parts: nn.ModuleList = nn.ModuleList(part for _, part in flat)
        self.moving: nn.ModuleList = nn.ModuleList(w for w in self._weights if isinstance(w, nn.Module))

    def terms(self) -> list[tuple[Any, Objective]]:
        return list(zip(self._weights, self.parts, strict=True))  # type: ignore[arg-type]

    def losses(self, scores: Scores) -> Tensor:
        return reduce(add, (current(w) * part.losses(scores) for w, part in self.terms()))

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        return {f"{k}[{part}]": v for _, part in self.terms() for k, v in part.diagnostics(scores).items()}

    def _loss(self, scores_for: Callable[[str], Scores], reduction: Reduction) -> Tensor:
        values = [current(w) * part._loss(scores_for, reduction) for w, part in self.terms()]
        if len({v.shape for v in values}) > 1:
            raise ValueError(f"{self}: reduction='none' needs the same anchors in every term: give them one pairing=.")
        return reduce(add, values)

    def replace(self, **changes: Any) -> Self:
        raise TypeError(f"{self}: a sum has no parameters of its own; replace those of its terms.")

    def _text(self, detail: str) -> str:
        terms = [(w, "({})" if isinstance(part, Sum) else "{}", part._text(detail)) for w, part in self.terms()]
        return " + ".join(("" if w == 1.0 else f"{text(w)}*") + form.format(of_part) for w, form, of_part in terms)

    def to_dict(self) -> dict[str, Any]:
        terms = [[w if isinstance(w, float) else text(w), part.to_dict()] for w, part in self.terms()]
        return {"name": "sum", "terms": terms}


def weighted_sum(terms: Iterable[tuple[Any, Objective]]) -> Objective:
    """Return the sum of weighted terms; a single term of weight 1 is the term itself."""
    total = Sum(terms)
    return total.terms()[0][1] if total._weights == [1.0] else total


def as_objective(value: Objective | str, like: Objective | str | None = None) -> Objective:
    """Return an objective as it is, or build it from its spec, or from a treatment's text; see there for ``like``."""
    if isinstance(value, Objective):
        return value
    if isinstance(value, str):
        return objective(value, like)
    got = type(value).__name__ if isinstance(value, nn.Module) else f"{reprlib.repr(value)} ({type(value).__name__})"
    raise TypeError(f'expected an objective or a spec such as "infonce:t=0.05", got {got}.')


def objective(text: str, like: Objective | str | None = None) -> Objective:
    """Build an objective from its spec; with semicolons it is a :func:`treatment`, which explains ``like``.

    ::

        sum    = term, {" + ", term}                adnce:mu=0.7,t=0.2 + 0.1*dp
        term   = [weight, "*"], (atom | "(" sum ")")
        atom   = name, ["(" sum ")"], [":" key=value, {"," key=value}]

    ``str(objective(text))`` is a spec of the same objective that always shows the parameters that matter most.

    >>> cp.objective("arcl(adnce:mu=0.9,t=0.2) + 0.1*dp")
    arcl(adnce:t=0.2,denominator=with_positive,mu=0.9,sigma=1,quantile=0.9) + 0.1*dp:low=0.1,high=0.5
    """
    if isinstance(text, str) and ";" in text:
        return import_module(f"{__package__}.treatments").treatment(text, like)  # type: ignore[no-any-return]
    own = None if like is None else as_objective(like)
    if own is not None and isinstance(text, str) and text.strip() == "host":
        return own
    hyper = getattr(own, "_hyper", {})  # of the loss in whose place this one is
    # "with_positive" is everybody's default but SupCon's, which without labels is the same, and with labels is not
    defaults = {k: hyper[k] for k in ("temperature", "denominator") if hyper.get(k, "with_positive") != "with_positive"}
    return spec.parse(text, kind, weighted_sum, defaults)  # type: ignore[no-any-return]


def from_dict(data: dict[str, Any]) -> Objective:
    """Build an objective from the value of :meth:`Objective.to_dict`.

    >>> cp.from_dict(cp.DCL(0.2).to_dict()) == cp.DCL(0.2)
    True
    """
    if not isinstance(data, dict) or not isinstance(name := data.get("name"), str):
        raise ValueError(f'from_dict: expected a dict with "name", got {data!r}.')
    if name == "treatment":
        built = import_module(f"{__package__}.treatments").Treatment
        return built(from_dict(data["objective"]), **data["told"])  # type: ignore[no-any-return]
    if name != "sum":
        return kind(name).from_plain({k: v for k, v in data.items() if k != "name"})  # type: ignore[no-any-return]
    terms = data.get("terms")
    if not terms or not isinstance(terms, list) or not all(isinstance(t, (list, tuple)) and len(t) == 2 for t in terms):
        raise ValueError(f"from_dict: a sum needs terms, a list of [weight, objective], got {terms!r}.")
    return weighted_sum((spec.value(w) if isinstance(w, str) else w, from_dict(term)) for w, term in terms)
