"""The interface of all objectives, their sums and wrappers, and how specs and data become objectives."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial, reduce
from inspect import Parameter
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack, dataclass_transform

from . import checks, compiled, spec
from .batch.batch import Batch
from .batch.chunked import chunked_loss
from .batch.gathered import gathered_batch
from .batch.options import BatchOptions
from .batch.pairings import scores_of
from .batch.ready_made import scores_from_logits, scores_from_matrices
from .batch.report import report
from .batch.scores import Negatives, Scores
from .engine.distributed import Gather, is_dtensor, local_views
from .hyper import (
    Choice,
    Flag,
    FromBias,
    FromScale,
    Hyper,
    Learned,
    Real,
    Schedule,
    Tracked,
    Value,
    Whole,
    at_scale,
    current,
    nearest,
    number,
    text,
)
from .parameters import Parametrized
from .registry import kind, known

MAX_TEMPERATURE = 5.0
"""Divided by more than this, any two cosines differ by less than 0.4."""


class Inner(Hyper["Objective | str", "Objective"]):
    """The objective inside a :class:`Wrapper`: an objective or its spec."""


@dataclass_transform(field_specifiers=(Real, Whole, Choice, Flag, Inner))
class Objective(Parametrized):
    """A contrastive objective: it turns similarities into a loss.

    Subclasses pass their name (``class ADNCE(InfoNCE, name="adnce")``), declare hyper-parameters as class attributes
    (``mu: Real = Real("mu", default=0.7)``), and implement :meth:`per_anchor`, or :meth:`losses` if they need more of
    a batch than ``pos`` and ``neg``. They then work with every pairing, wrapper, host and engine.

    Hyper-parameters are frozen: ``loss_fn.replace(mu=0.5)`` returns a changed objective. For a value that changes
    during training, pass a :class:`Schedule` or a :class:`Learned` value instead of a number.

    Objectives compare by value but hash by identity, like all torch modules.
    """

    formula: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    use: ClassVar[str] = ""
    """When to use it."""
    tune_first: ClassVar[str] = ""
    """The parameters to tune first, in order."""
    cost: ClassVar[str] = ""
    """What it costs compared with InfoNCE."""
    pairing: ClassVar[str] = "views"
    on_cosines: ClassVar[bool] = False
    """Whether its parameters or its bounds assume similarities between -1 and 1."""

    # ---- what an objective is ------------------------------------------------------------------

    def per_anchor(self, pos: Tensor, neg: Negatives) -> Tensor:
        """Return the loss of each anchor with each of its positives.

        Args:
            pos: ``(anchors, P)`` similarities of the positives, not divided by a temperature.
            neg: The negatives; their reductions have the shape ``(anchors, 1)``.

        Returns:
            ``(anchors, P)``, which the caller averages over the positives, or ``(anchors, 1)``.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither per_anchor nor losses.")

    def losses(self, scores: Scores) -> Tensor:
        """Return the losses as :meth:`per_anchor` does, from everything that is known of a batch."""
        return self.per_anchor(scores.pos, scores.neg)

    def diagnostics(self, scores: Scores) -> dict[str, Tensor]:
        """Return what this objective adds to :meth:`report`."""
        return {}

    @property
    def views(self) -> int | None:
        """The number of views that the objective requires, or None."""
        return None

    @property
    def needs(self) -> frozenset[str]:
        """Arguments that a call requires besides the views: ``adversarial``, ``mixed`` (:mod:`counterpoint.views`)."""
        return frozenset()

    @property
    def couples_anchors(self) -> bool:
        """Whether the loss is not a mean of terms that depend on one anchor's similarities each.

        That is the case if a statistic of all anchors enters: ``mu="auto"``, ``radius=``, a shared ``alpha``, a sum
        over the batch. The losses of a batch's parts then do not average to its loss. The call with embeddings and
        ``gather=`` takes care of that; when you pass scores or logits yourself, pass those of every anchor.
        """
        inner = [part for part in self.modules() if part is not self]
        return any(isinstance(p, Tracked) or (isinstance(p, Objective) and p.couples_anchors) for p in inner)

    # ---- how it is called ----------------------------------------------------------------------

    if TYPE_CHECKING:  # torch types the call of a module as Any

        def __call__(
            self, *views: Tensor, gather: Gather = False, reduction: str = "mean", **options: Unpack[BatchOptions]
        ) -> Tensor: ...

    def forward(
        self, *views: Tensor, gather: Gather = False, reduction: str = "mean", **options: Unpack[BatchOptions]
    ) -> Tensor:
        """Compute the loss of a batch of embeddings.

        Arguments that no term uses are ignored (``prior`` of an InfoNCE), so that one training loop serves all
        objectives.

        Args:
            views: tensors ``(B, d)``, one per view. They are normalized here unless ``normalize=False``.
            stacked: the views are one tensor ``(B, views, d)``. For ``(views, B, d)``, call ``loss_fn(*z)``.
            pairing: who is compared with whom. By default each objective uses its paper's pairing; see
                :mod:`counterpoint.batch.pairings` for ``views``, ``one_way``, ``symmetric``, ``first_two``, ``pairs``,
                ``arcl``, ``joint`` and ``single``. A mapping replaces some pairings and leaves the others: with
                ``{"views": "one_way"}``, anchors are the first view only, unless an objective's paper compares other
                pairs.
            directions: what the pairing ``joint`` compares, in one denominator: ``query_to_doc`` and any of
                ``query_to_query``, ``doc_to_query``, ``doc_to_doc`` and ``doc_to_positive``; see
                :mod:`counterpoint.batch.joint`. The first four are GTE's loss.
            hardness: which negatives count more, and how much: ``("hard_negatives", 5.0)`` adds 5 times the similarity,
                as a constant, to the exponents of a sample's own hard negatives; ``in_batch_negatives`` and
                ``all_negatives`` are the others.
            queue: ``(K, d)`` further keys, all negatives (MoCo). The first view is the query, the second the key;
                key and queue are detached. :class:`counterpoint.Keys` adds what is known of them.
            negatives: ``(B, d)`` or ``(B, n, d)`` hard negatives of each sample; all samples see all of them. The
                pairing is then ``one_way``. :class:`counterpoint.Keys` adds their ids, weights and guide, and says
                whether they are shared.
            in_batch: False to compare with the sample's own hard negatives only.
            ids: ``(B,)`` integers; samples with the same id are never each other's negatives.
            labels: ``(B,)`` integers; as ``ids``, and samples with the same label are positives (supervised use), rows
                of the queue included. One view is enough; a sample that is the only one of its class then has no
                positive, and does not count; a batch without any positive is an error. Hard negatives are never
                positives.
            false_negatives: which keys are too similar to be negatives: :func:`counterpoint.margin`,
                :func:`counterpoint.threshold`, or a list of these. Similarities are the model's own, as constants, or
                those of ``guide``. In pairings without positives (``single``) a margin refers to the sample's other
                views.
            guide: another model's embeddings of the same views, ``(B, w)`` each or ``(B, views, w)``, whose cosines
                decide what ``false_negatives`` excludes (GISTEmbed). They get no gradient.
            empty: what anchors are that ``false_negatives`` leaves without negatives: an ``error``, or of loss
                ``zero``. Statistics of the batch (``mu="auto"``) then include their negatives, as if none were false.
                In tiles, ``zero`` costs a pass that counts.
            log_q: ``(B,)`` log-probability with which each sample was drawn; as a negative it counts ``1/q`` times (the
                sampling correction of recommenders and of the sampled softmax: logit minus ``log_q``). Positives are
                not drawn, and stay. For any weights ``w`` pass ``-log(w)``.
            prior: ``(B,)`` probability that a sample's negative is a false one; replaces the objective's prior.
            positive_weight: ``(B,)`` or ``(views, B)`` factors of ``p / t`` in the numerator of the family of InfoNCE
                (``infonce``, ``dcl``, ``hcl``, ``adnce``, ``supcon``), which pull some positives more than others.
                Decoupled contrastive learning's DCLW is ``InfoNCE(t, denominator="negatives")`` with
                ``2 - B * softmax((z1 * z2).sum(1) / sigma, 0)``, of normalized views and detached.
            adversarial: ``(B, d)`` embeddings of adversarial views (:mod:`counterpoint.views`).
            mixed: ``(B, d)`` or ``(B, n, d)`` embeddings of mixed views.
            normalize: cosine similarities if true, plain inner products if not.
            engine: how to reduce the negatives. ``auto`` chooses what is fastest, or what fits; the others raise where
                they cannot be used. ``matrix`` computes all similarities at once, and can be differentiated twice
                (weights that an objective treats as constants, those of ADNCE and alpha-CL for instance, stay
                constants). ``tiles`` computes them tile by tile, and again in the backward pass. ``chunks`` computes
                the loss and its gradient a chunk of anchors at a time, in the forward pass. ``fused`` uses GPU kernels,
                which ``auto`` does not choose: they have not run on a GPU yet. ``tiles:N`` and ``chunks:N`` have tiles
                of ``N`` rows and columns.
                ``torch.func`` needs a matrix, and so does ``reduction="none"`` in compiled code; with ``labels`` there
                is always one, that of the positives. :meth:`report` names the engine.
            gather: compare with the samples of all processes: True or a process group; see
                :mod:`counterpoint.engine.distributed`. Pass everything else for this process's samples, except the
                queue, which all processes have in common.
            reduction: ``mean`` over anchors, or ``none`` for the loss of each anchor (of this process).
        """
        for name in options:
            if name not in BatchOptions.__annotations__:
                hint = nearest(name, (*BatchOptions.__annotations__, "gather", "reduction"))
                raise TypeError(f"{type(self).__name__}: unknown argument {name!r}.{hint}")
        if any(map(is_dtensor, views)):
            local, gather = local_views(views, gather)
            views = (*local,)
        for name, value in options.items():
            if is_dtensor(value):
                raise TypeError(f"{name}: expected a plain tensor, got a DTensor; call to_local() or full_tensor().")
        if checks.compiling() and reduction == "mean" and compiled.takes(self, views, {"gather": gather, **options}):
            return compiled.loss_of(self, views, {"gather": gather, **options})
        batch = gathered_batch(views, gather, **options) if gather else Batch(views, **options)
        if batch.normalize and not checks.compiling():
            self._warn_of_scales()
        return self.from_pairings(partial(scores_of, batch), batch.device, reduction=reduction)

    def _warn_of_scales(self) -> None:
        """Warn of temperatures that start so high that cosines hardly differ: most likely they are scales of logits."""
        for part in self.modules():
            temperature = vars(part).get("_hyper", {}).get("temperature")
            start = getattr(temperature, "start", temperature)
            if isinstance(start, float) and start > MAX_TEMPERATURE:
                scale = number(start)
                warnings.warn(
                    f"{type(part).__name__}: expected a temperature of at most {MAX_TEMPERATURE:g} for cosines, got "
                    f"{scale}. If this is a scale of logits, the temperature is 1/{scale}.",
                    stacklevel=5,  # where the objective is called
                )

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
        """Compute the loss of similarities, not yet divided by a temperature.

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
        scale: float | Tensor = 1.0,
        bias: float | Tensor = 0.0,
        ignore_index: int = -100,
        empty: str = "error",
        reduction: str = "mean",
    ) -> Tensor:
        """Compute the loss of logits, as cross entropy takes them.

        Args:
            logits: ``(..., anchors, keys)``, similarities times ``scale``. Minus infinity, or -1e4 and less, is a
                mask: such a key is not a negative of that anchor.
            labels: ``(..., anchors)`` column of each positive; booleans of the shape of ``logits`` for several
                positives per row, or numbers that are zero elsewhere (one-hot); by default the diagonal. Rows
                without a positive do not count.
            scale: factor of the similarities in the logits, usually one over the host's temperature. A temperature
                of ``"host"`` is one over it; if the scale is a tensor that is trained (CLIP's ``logit_scale.exp()``),
                the gradient reaches it only by such a temperature.
            bias: what was added to the similarities times ``scale``, as SigLIP does; a number or a tensor that is
                trained. A bias of ``"host"`` is this one.
            ignore_index: rows with this label do not count, whatever is in them.
            empty: what rows are whose keys are all masked, and a batch without any positive: an ``error``, or of
                loss ``zero``, as for cross entropy.
            reduction: as in the call with embeddings; ``none`` has the shape ``(..., anchors)``.
        """
        parts = [*self.modules()]
        temperatures = [part for part in parts if isinstance(part, FromScale) and not isinstance(part, FromBias)]
        if isinstance(scale, Tensor) and scale.requires_grad and not temperatures:
            warnings.warn(
                f"{self}: scale= is trained, but has no gradient beside a temperature of the objective's own: "
                'temperature="host" (t=host) is one over the scale.',
                stacklevel=2,
            )
        batch = scores_from_logits(logits, labels, scale, bias, ignore_index, empty)
        with at_scale(self, scale, bias):
            loss = self.from_pairings(lambda _: batch, logits.device, reduction=reduction)
        return loss.unflatten(0, logits.shape[:-1]) if reduction == "none" and logits.dim() > 2 else loss

    def from_pairings(
        self, scores: Callable[[str], Scores], device: torch.device, *, reduction: str = "mean"
    ) -> Tensor:
        """Compute the loss of scores that each term asks for, by the pairing it compares.

        Args:
            scores: from the name of a pairing (:mod:`counterpoint.batch.pairings`) to the scores of the batch.
            device: where the scores live.
            reduction: as in the call with embeddings.
        """
        if reduction not in ("mean", "none"):
            hint = nearest(str(reduction), ("mean", "none"))
            raise ValueError(f"{type(self).__name__}: unknown reduction {reduction!r}.{hint}")
        # autocast would round the products of float32 tensors to half precision, too coarse for small temperatures
        with checks.exact(device):
            loss = self._value(scores, reduction)
        if self._modules and self.training and torch.is_grad_enabled():
            for module in self.modules():
                if isinstance(module, Schedule):
                    module.advance()
        return loss

    def _value(self, scores: Callable[[str], Scores], reduction: str) -> Tensor:
        own = scores(self.pairing)
        if (in_chunks := chunked_loss(self, own, reduction)) is not None:
            return in_chunks
        losses = own.checked(self.losses(own))  # (anchors, P) or (anchors, 1)
        if reduction == "mean" and own.uniform:
            return losses.mean()
        per_anchor = (own.positives_mean(losses) if losses.shape[1] > 1 else losses).squeeze(1)
        return own.anchors_mean(per_anchor) if reduction == "mean" else own.by_row(per_anchor)

    def report(self, *args: Any, call: str = "forward", **options: Any) -> dict[str, float]:
        """Report what a batch looks like to this objective; see :func:`counterpoint.diagnose.report`.

        The arguments are those of the method ``call``: ``loss_fn.report(z1, z2)``.
        """
        return report(self, *args, call=call, **options)

    # ---- composition ---------------------------------------------------------------------------

    def terms(self) -> list[tuple[Value | Schedule | Learned, Objective]]:
        """Return the weighted terms whose sum is this objective."""
        return [(1.0, self)]

    def __add__(self, other: Objective) -> Objective:
        return Sum([(1.0, self), (1.0, other)]) if isinstance(other, Objective) else NotImplemented

    def __mul__(self, weight: float | Schedule | Learned) -> Objective:
        if not isinstance(weight, (int, float, Schedule, Learned)):
            return NotImplemented
        return Sum([(weight, self)])

    __rmul__ = __mul__

    def __radd__(self, other: object) -> Objective:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum() starts with 0

    def __neg__(self) -> Objective:
        return self * -1.0

    def __sub__(self, other: Objective) -> Objective:
        return self + -other if isinstance(other, Objective) else NotImplemented

    def __truediv__(self, number: float) -> Objective:
        return self * (1 / number) if isinstance(number, (int, float)) else NotImplemented


class Wrapper(Objective):
    """An objective that changes another one, ``name(inner)`` in specs."""

    objective: Inner = Inner(default="infonce")
    _leading = (Parameter("objective", Parameter.POSITIONAL_OR_KEYWORD, default=objective.default),)
    if not TYPE_CHECKING:
        del objective  # at run time it is a submodule

    def _assign(self, values: dict[str, Any]) -> None:
        super()._assign(values)
        self.objective = as_objective(values["objective"])

    @property
    def needs(self) -> frozenset[str]:
        return self.objective.needs

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
    """A weighted sum of objectives, written ``a + 0.1 * b``. Each term uses its own pairing.

    Constant weights of nested sums are multiplied out, so that ``2 * (a + b)`` equals ``2 * a + 2 * b``.
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
                flat += [(weight_of.check(w * v, "Sum"), term) for v, term in inner]
            else:
                flat.append((w, part))
        self._weights: list[Any] = [w for w, _ in flat]
        self.parts = nn.ModuleList(part for _, part in flat)
        self.moving = nn.ModuleList(w for w in self._weights if isinstance(w, nn.Module))

    def is_plain(self) -> bool:
        """Return whether this is one term with weight 1, which has the same text and data as the term itself."""
        return len(self._weights) == 1 and self._weights[0] == 1.0

    def terms(self) -> list[tuple[Any, Objective]]:
        return list(zip(self._weights, self.parts, strict=True))  # type: ignore[arg-type]

    @property
    def views(self) -> int | None:
        required = [part.views for _, part in self.terms() if part.views is not None]
        return max(required, default=None)

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

    def replace(self, **changes: Any) -> Self:
        raise TypeError(f"{self}: a sum has no parameters of its own; replace those of its terms.")

    def _text(self, detail: str) -> str:
        return " + ".join(
            (f"{text(w)}*" if w != 1.0 else "") + ("({})" if isinstance(part, Sum) else "{}").format(part._text(detail))
            for w, part in self.terms()
        )

    def to_dict(self) -> dict[str, Any]:
        if self.is_plain():
            return self.terms()[0][1].to_dict()
        terms = [[w if isinstance(w, float) else text(w), part.to_dict()] for w, part in self.terms()]
        return {"name": "sum", "terms": terms}


def as_objective(value: Objective | str) -> Objective:
    """Return an objective as it is, or build it from its spec."""
    if isinstance(value, Objective):
        return value
    if isinstance(value, str):
        return objective(value)
    raise TypeError(f"expected an objective or a spec string, got {reprlib.repr(value)} ({type(value).__name__}).")


def objective(text: str) -> Objective:
    """Build an objective from its spec.

    ::

        sum    = term, {" + ", term}                adnce:mu=0.7,t=0.2 + 0.1*dp
        term   = [weight, "*"], (atom | "(" sum ")")
        atom   = name, ["(" sum ")"], [":" key=value, {"," key=value}]

    ``str(objective(text))`` is a spec of the same objective that always shows the parameters that matter most.

    >>> import counterpoint as cp
    >>> cp.objective("arcl(adnce:mu=0.9,t=0.2) + 0.1*dp")
    arcl(adnce:t=0.2,denominator=with_positive,mu=0.9,sigma=1,quantile=0.9) + 0.1*dp:low=0.1,high=0.5
    """
    return spec.parse(text, kind, Sum)  # type: ignore[no-any-return]


def from_dict(data: dict[str, Any]) -> Objective:
    """Build an objective from the value of :meth:`Objective.to_dict`."""
    if not isinstance(data, dict) or "name" not in data:
        raise ValueError(f'from_dict: expected a dict with "name", got {data!r}.')
    rest = {k: v for k, v in data.items() if k != "name"}
    name = data["name"]
    if name == "sum":
        terms = rest.get("terms")
        pairs = terms if isinstance(terms, list) else []
        if not pairs or not all(isinstance(t, (list, tuple)) and len(t) == 2 for t in pairs):
            raise ValueError(f"from_dict: a sum needs terms, a list of [weight, objective], got {terms!r}.")
        return Sum((spec.value(w) if isinstance(w, str) else w, from_dict(term)) for w, term in pairs)
    if not isinstance(name, str):
        raise ValueError(f"from_dict: unknown objective {name!r}.{nearest(str(name), known())}")
    try:
        return kind(name).from_plain(rest)  # type: ignore[no-any-return]
    except LookupError as error:
        raise ValueError(f"from_dict: {error}") from None
