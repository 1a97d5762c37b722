"""Treatments: an objective, and what it is told of the data: which keys are not negatives.

.. code-block:: text

    treatment = objective, {";" item}
    item      = "duplicates" ["=" PATH] | ("ids" | "labels" | "guide") "=" PATH
              | "margin=" number ["," kind] | "threshold=" number

A ``PATH`` such as ``batch["doc_id"]`` or ``self.labels[0]`` says where ``counterpoint inject`` finds the values: among
the names of the function that computes the loss. It is looked up, never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial, reduce
from hashlib import blake2b
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from . import checks
from .batch.batch import Batch
from .batch.options import Reduction
from .batch.pairings import scores_of
from .batch.ready_made import MASKED
from .batch.rules import Rule, as_rules, limits
from .batch.scores import Scores
from .engine.distributed import Gather, gather, resolve
from .engine.matrix import MatrixNegatives
from .names import check_known, closest
from .objective import Objective, Wrapper, as_objective
from .vectors import unit, widen

TOLD = ("duplicates", "ids", "labels", "guide")
RULES = ("margin", "threshold")
PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*|\[(-?\d+|\"[^\"\[\];]*\"|'[^'\[\];]*')\])*")
_STEP = re.compile(r"\.?([A-Za-z]\w*)|\[(?:(-?\d+)|[\"']([^\"']*)[\"'])\]")
_EQUAL = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


class Treatment(Wrapper):
    """An objective, and what it is told of the data; :func:`treatment` reads one from its text.

    It is called as its objective is. Anchors that its rules leave without negatives have no loss, and :attr:`counts`
    says how many there were; a step of nothing else is an error.

    Args:
        objective: an objective or its spec.
        false_negatives: rules by which keys are too similar to be negatives.
        duplicates: whether samples of which any view is the same are not each other's negatives: embeddings that are
            equal but for rounding or, given a path, rows of that tensor (``input_ids``) or texts of that list.
        ids, labels, guide: paths of what the argument of this name says of the samples.

    >>> import torch, counterpoint as cp
    >>> told = cp.treatment("infonce:t=0.5; duplicates")
    >>> z1, z2 = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    >>> z2[3] = z2[0]
    >>> torch.equal(told(z1, z2), cp.InfoNCE(0.5)(z1, z2, ids=torch.tensor([0, 1, 2, 0])))
    True
    """

    def __init__(
        self,
        objective: Objective | str,
        *,
        false_negatives: Rule | str | Sequence[Rule | str] | None = None,
        duplicates: bool | str = False,
        ids: str | None = None,
        labels: str | None = None,
        guide: str | None = None,
    ) -> None:
        super().__init__(objective)
        if isinstance(self.objective, Treatment):
            raise TypeError(f"treatment: {self.objective} is one already; expected an objective.")
        self.rules: tuple[Rule, ...] = as_rules(false_negatives)
        told = {"duplicates": duplicates, "ids": ids, "labels": labels, "guide": guide}
        self.told: dict[str, Any] = {name: value for name, value in told.items() if value}
        for name, path in self.told.items():
            if isinstance(path, str) and not PATH.fullmatch(path):
                raise ValueError(f'treatment: {name}: expected a path such as batch["doc_id"], got {path!r}.')
        if ids and labels:
            raise ValueError("treatment: expected ids= or labels=, got both: labels are ids, too.")
        if guide and not self.rules:
            raise ValueError(f"treatment: guide={guide} decides nothing without a rule; add margin=0 or threshold=0.9.")
        self.counts: dict[str, Tensor | float] = dict.fromkeys(("anchors", "excluded", "without_negatives"), 0.0)
        """Sums over calls: anchors, excluded keys, and anchors left without negatives."""

    @property
    def paths(self) -> dict[str, str]:
        """What has to be looked up, by the name of the argument."""
        return {name: path for name, path in self.told.items() if isinstance(path, str)}

    def look_up(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values at the paths, given the names of a function."""
        values = {name: _at(path, names, name) for name, path in self.paths.items()}
        for name in (name for name, value in values.items() if value is None):
            raise ValueError(f"{name}={self.told[name]}: it is None.")
        return values

    @property
    def views(self) -> int | None:
        return self.objective.views

    def forward(self, *views: Tensor, gather: Gather = False, reduction: Reduction = "mean", **options: Any) -> Tensor:
        """Compute the loss of embeddings; ``duplicates=`` takes rows or texts, one per sample."""
        options = self._options(views, gather, options)
        call = self.objective if checks.compiling() else super().forward
        return call(*views, gather=gather, reduction=reduction, **options)

    def from_scores(self, *args: Any, **options: Any) -> Tensor:
        raise TypeError(f"{self}: scores do not say which keys these are; pass mask= to its objective alone.")

    def from_pairings(self, scores: Any, *args: Any, **options: Any) -> Tensor:
        if not (isinstance(scores, partial) and scores.func is scores_of):
            return self.from_scores()
        self._count_embeddings(scores.args[0], scores(self.objective.terms()[0][1].pairing))
        return self.objective.from_pairings(scores, *args, **options)

    def from_logits(
        self,
        logits: Tensor,
        labels: Tensor | None = None,
        *,
        scale: float | Tensor = 1.0,
        bias: float | Tensor = 0.0,
        ignore_index: int = -100,
        empty: Literal["error", "warn", "zero"] = "error",
        reduction: Reduction = "mean",
        **known: Any,
    ) -> Tensor:
        """Compute the loss of logits; ``ids``, ``classes``, ``guide`` and ``duplicates`` are those of anchors or keys.

        Args:
            logits, labels, scale, bias, ignore_index, empty, reduction: see :meth:`Objective.from_logits`.
            known: what :attr:`paths` ask for; class labels are ``classes``. A guide is a matrix like the logits, or
                embeddings of the keys.
        """
        logits, labels = self._masked(logits, labels, scale, bias, ignore_index, known)
        options: dict[str, Any] = {"scale": scale, "bias": bias, "ignore_index": ignore_index, "reduction": reduction}
        return self.objective.from_logits(logits, labels, empty="zero" if self.told or self.rules else empty, **options)

    def report(self, *args: Any, call: str = "forward", **options: Any) -> dict[str, float]:
        """Report as the objective does, of the negatives that are left."""
        if call == "forward":
            options = self._options(args, options.get("gather", False), options)
        elif call == "from_logits":
            names = ("ids", "classes", "guide", "duplicates")
            known: dict[str, Any] = {name: options.pop(name) for name in names if name in options}
            logits, *labels = *args, *([options.pop("labels")] if "labels" in options else [])
            scale, bias = options.get("scale", 1.0), options.get("bias", 0.0)
            ignored, first = options.get("ignore_index", -100), labels[0] if labels else None
            args = self._masked(logits, first, scale, bias, ignored, known, count=False)
        return self.objective.report(*args, call=call, **options)

    def _options(self, views: Sequence[Tensor], group: Gather, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the objective's call with embeddings."""
        options = dict(options)
        for name in ("ids", "labels", "guide"):
            if name in self.told and options.get(name) is None:
                raise TypeError(f"{self}: pass {name}=; only `counterpoint inject` looks up {self.told[name]}.")
            if name in self.told and name != "guide" and not isinstance(options[name], Tensor):
                options[name] = _numbered(options[name], False).to(views[0].device)
        if self.rules:
            options["false_negatives"] = [*self.rules, *as_rules(options.get("false_negatives"))]
            options.setdefault("empty", "zero")
        else:
            options.pop("empty", None)  # without a rule, an anchor is empty only where all are
        if "duplicates" in self.told:
            given = options.pop("duplicates", None)
            if given is None and self.told["duplicates"] is not True:
                raise TypeError(f"{self}: pass duplicates=; only `counterpoint inject` looks it up.")
            stacked = options.get("stacked", False)
            told = [*views[0].unbind(1)] if stacked else [*views]
            numbers = [_numbered(rows, group) for rows in (told if given is None else [given])]
            known = options.get("ids") if options.get("labels") is None else options["labels"]
            if known is not None:
                numbers.append(_numbered(known, False).to(numbers[0].device))
            options["ids"] = _merged_of_all(numbers, group)
        return options

    def _masked(
        self,
        logits: Tensor,
        labels: Tensor | None,
        scale: float | Tensor,
        bias: float | Tensor,
        ignore_index: int,
        known: Mapping[str, Any],
        count: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Mask the keys that are not negatives; return the labels, several positives per row if classes are told."""
        for name in self.paths:
            if known.get({"labels": "classes"}.get(name, name)) is None:
                raise TypeError(f"{self}: pass {name}=; only `counterpoint inject` looks up {self.told[name]}.")
        if not (self.told or self.rules):
            return logits, labels
        with torch.no_grad():
            s = widen(logits.detach())
            out = s <= MASKED
            s = (s - bias) / scale
            positive = _positives(s, labels, ignore_index) & ~out
            columns = positive.long().argmax(-1)
            drop = self._same(s, out, columns, known, logits.dtype)
            if "labels" in self.told:
                labels = positive = positive | (drop & ~out & positive.any(-1, keepdim=True))
            if self.rules:
                judge = s if known.get("guide") is None else _guided(known["guide"], s, columns)
                first = positive.flatten(0, -2)
                judge, pos = judge.expand_as(s).flatten(0, -2), judge.expand_as(s).flatten(0, -2)
                for most in limits(self.rules, pos.masked_fill(~first, torch.inf), first):
                    drop |= (judge > most).view_as(drop)
            drop &= ~positive & ~out
            if count and not checks.compiling():
                rows = positive.any(-1) & ~(out | positive).all(-1)
                empty = rows & (drop | out | positive).all(-1)
                self._count(rows.sum(), drop.sum(), empty.sum(), rows.any() & (empty == rows).all())
        return logits.masked_fill(drop, -torch.inf), labels

    def _named(self, name: str) -> str:
        return f"treatment: {name}={self.told[name]}".removesuffix("=True")

    def _same(self, s: Tensor, out: Tensor, columns: Tensor, known: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
        """Return which keys are the same as an anchor's positive, by all that is told."""
        if s.dim() > 2:
            if len(s) == 2 and s.shape[-1] == s.shape[-2] and torch.equal(s[0], s[1].mT):  # both ways of the same pairs
                return self._same(s[0], out[0], columns[0], known, dtype).expand_as(out).clone()
            return torch.stack([self._same(*each, known, dtype) for each in zip(s, out, columns, strict=True)])
        numbers = [self._of_keys(name, s, out, columns, known, dtype) for name in self.told if name != "guide"]
        if not numbers:
            return torch.zeros_like(out)
        number = reduce(_merged, numbers)
        return number[columns].unsqueeze(-1) == number

    def _of_keys(
        self, name: str, s: Tensor, out: Tensor, columns: Tensor, known: Mapping[str, Any], dtype: torch.dtype
    ) -> Tensor:
        """Return a number for each key, the same for those that ``name`` says are the same."""
        anchors, keys = s.shape
        if anchors > 1 and bool((columns == columns[0]).all()):
            raise ValueError(f"{self._named(name)}: these logits do not say which keys anchors have in common.")
        values = known.get({"labels": "classes"}.get(name, name))
        if values is None:
            fill = s.masked_fill(out, -torch.inf).amax(0, keepdim=True).expand_as(s)  # the masked similarity to itself
            number = _numbered(torch.where(out, fill, s).mT, False, dtype)
            if not bool(out.any()) and len(columns.unique()) == anchors:  # equal anchors are the same sample, too
                rows = _numbered(s, False, dtype)
                number = _merged(number, (len(rows) + torch.arange(keys).to(rows)).scatter(0, columns, rows))
        else:
            gathered = isinstance(values, Tensor) and _is_part(values, keys)
            number = _spread(_numbered(values, gathered).to(s.device), columns, keys, self._named(name))
        if anchors == keys and bool(out.diagonal().all()):  # the anchors are keys, too
            number = _merged(number, torch.minimum(columns, torch.arange(anchors, device=s.device)))
        return number

    def _count(self, anchors: Tensor, excluded: Tensor, empty: Tensor, ended: Tensor) -> None:
        if bool(ended):
            raise ValueError(f"{self}: every anchor of this step is left without negatives.")
        for name, value in zip(self.counts, (anchors, excluded, empty), strict=True):
            self.counts[name] = self.counts[name] + value

    def _count_embeddings(self, batch: Batch, scores: Scores) -> None:
        """Count anchors, and excluded keys where similarities are a matrix: in tiles, that would take another pass."""
        share, factor = torch.as_tensor(scores.share), scores.anchor_factor  # the share is that of all processes
        anchors = torch.as_tensor(len(scores.pos)) if factor is None else (factor.sum() / share).round()
        excluded = torch.zeros(())
        if isinstance(scores.neg, MatrixNegatives) and (batch.queue, batch.negatives, batch.labels) == (None,) * 3:
            others = (keys := scores.neg.scores.shape[1]) - keys // batch.total - scores.neg.count  # not its own
            excluded = torch.as_tensor(others).expand(len(scores.pos), 1).sum()
        self._count(anchors, excluded, (anchors * (1 - share)).round(), share <= 0)

    def terms(self) -> list[Any]:
        raise TypeError(f"{self}: a treatment cannot be a term; write the sum before its first semicolon.")

    def replace(self, **changes: Any) -> Treatment:
        """Return the same treatment of a changed objective."""
        return Treatment(self.objective.replace(**changes), false_negatives=self.rules or None, **self.told)

    def _text(self, detail: str) -> str:
        told = [name if path is True else f"{name}={path}" for name, path in self.told.items()]
        rules = [f"{str(rule).partition('(')[0]}={str(rule).partition('(')[2][:-1]}" for rule in self.rules]
        return "; ".join([self.objective._text(detail), *told, *rules])

    def to_dict(self) -> dict[str, Any]:
        told = {**self.told, "false_negatives": [*map(str, self.rules)] or None}
        return {"name": "treatment", "objective": self.objective.to_dict(), "told": told}


def treatment(text: str, like: Objective | str | None = None) -> Treatment:
    """Build a treatment from its text; ``cp.treatment(str(t)) == t``.

    Args:
        text: an objective's spec and, behind semicolons, what it is told.
        like: the loss of the script. Its temperature and denominator are those of ``text`` where that names none, and
            ``host`` is this loss.

    >>> import counterpoint as cp
    >>> cp.treatment("hcl:t=0.05; ids=batch['doc']; margin=-0.1")
    hcl:t=0.05,denominator=with_positive,prior=0.1,beta=1; ids=batch['doc']; margin=-0.1
    """
    head, *items = text.split(";")
    options: dict[str, Any] = {}
    rules: list[str] = []
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        check_known("treatment: unknown item", name, (*TOLD, *RULES))
        if name in RULES:
            rules.append(f"{name}({value})")
        elif name in options:
            raise ValueError(f"treatment: {name!r} is given twice in {text!r}.")
        elif not value and (name != "duplicates" or equals):
            raise ValueError(f'treatment: {name}: expected a path, as in {name}=batch["{name}"], got {item.strip()!r}.')
        else:
            options[name] = value or True
    return Treatment(as_objective(head, like), false_negatives=rules or None, **options)


def _at(path: str, names: Mapping[str, Any], what: str) -> Any:
    """Look up a path."""
    first, *steps = _STEP.finditer(path)
    if first[1] not in names:
        raise ValueError(f"{what}={path}: no such name here or in the callers.{closest(first[1], names)}")
    value = names[first[1]]
    for step in steps:
        name, number, key = step.groups()
        try:
            value = getattr(value, name) if name else value[int(number) if number else key]
        except Exception as error:
            raise ValueError(f"{what}={path}: {path[: step.start()]} has no {step[0]}: {error}") from None
    return value


def _numbered(values: Any, group: Gather, dtype: torch.dtype | None = None) -> Tensor:
    """Return an integer for each row or value, the same for equal ones: of floats, for those equal but for rounding.

    Integers and texts have the same numbers in all processes; embeddings are compared with those of ``group``.
    """
    if not isinstance(values, Tensor):
        listed = isinstance(values, Collection) and not isinstance(values, (str, bytes, Mapping, Set))
        if not listed or not all(isinstance(value, (str, bytes, Integral)) for value in values):
            expected = "a tensor, or a list of texts or whole numbers"
            raise TypeError(f"treatment: expected {expected}, got {type(values).__name__}.")
        texts = (repr(value).encode() for value in values)
        return torch.tensor([int.from_bytes(blake2b(x, digest_size=8).digest(), "little", signed=True) for x in texts])
    if values.dim() < (2 if values.is_floating_point() else 1):
        raise TypeError(f"treatment: expected whole numbers or rows, got {values.dtype} of shape {(*values.shape,)}.")
    if values.is_floating_point():
        values = values.detach()
        handle = resolve(group) if group else None
        every = _equal_rows(gather(values, handle) if handle else values, _EQUAL[dtype or values.dtype])
        return _own(every, len(values), handle)
    if values.dim() == 1:
        return values
    rows = values.flatten(1).long()
    odd = torch.randint(2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    return (rows * odd.to(rows.device)).sum(1)  # a hash of 64 bits: it overflows


def _equal_rows(x: Tensor, rounding: float) -> Tensor:
    """Number the rows ``(n, d)`` so that those equal but for ``rounding``, relative to the largest entry, are one."""
    x = widen(x)
    direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0)).to(x)
    order = (x @ direction).argsort()  # equal rows are neighbors
    ordered = x[order]
    differs = (ordered[1:] - ordered[:-1]).abs().amax(1) > rounding * x.abs().amax()
    return torch.zeros_like(order).scatter(0, order[1:], differs.long().cumsum(0))


def _merged(a: Tensor, b: Tensor) -> Tensor:
    """Number samples so that those with one number in ``a``, or in ``b``, have one number, also through others."""
    number = torch.arange(len(a), device=a.device)
    groups = [torch.unique(x.to(a.device), return_inverse=True)[1] for x in (a, b)]
    while True:
        before = number
        for group in groups:
            least = torch.full_like(number, len(a)).scatter_reduce(0, group, number, "amin")
            number = least[group]
        if torch.equal(before, number):
            return number


def _merged_of_all(numbers: Sequence[Tensor], group: Gather) -> Tensor:
    """Merge the numbers of this process's samples with those of all processes; return this process's."""
    handle = resolve(group) if group else None
    every = [gather(x, handle) for x in numbers] if handle else numbers
    return _own(reduce(_merged, every), len(numbers[0]), handle)


def _own(every: Tensor, count: int, handle: Any) -> Tensor:
    """Return the rows of this process, ``count`` of them."""
    sizes: Any = gather(torch.tensor([count], device=every.device), handle) if handle else []
    return every[int(sum(sizes[: distributed.get_rank(handle) if handle else 0])) :][:count]


def _is_part(values: Tensor, keys: int) -> bool:
    """Return whether the values are those of this process, and the keys those of all."""
    return distributed.is_initialized() and len(values) < keys == len(values) * distributed.get_world_size()


def _spread(values: Tensor, columns: Tensor, keys: int, what: str) -> Tensor:
    """Return a number for each key; keys of which nothing is known have their own.

    Args:
        values: one per key, per anchor, or per sample of two views.
        columns: the positive of each anchor.
        keys: how many there are.
    """
    anchors = len(columns)
    if _is_part(values, keys):
        values = gather(values)
    if 2 * len(values) == anchors:
        both = [values.repeat(2), values.repeat_interleave(2)]
        fits = [two for two in both if keys != anchors or torch.equal(two[columns], two)]
        if not fits:
            raise ValueError(f"{what}: the {len(values)} values fit neither order of two views.")
        values = fits[0]
    if len(values) == keys:
        return values
    if len(values) != anchors:
        raise ValueError(f"{what}: expected one value for each of {anchors} anchors or {keys} keys, got {len(values)}.")
    groups = torch.unique(values, return_inverse=True)[1]
    return (anchors + torch.arange(keys, device=values.device)).scatter(0, columns, groups)


def _positives(s: Tensor, labels: Tensor | None, ignore_index: int) -> Tensor:
    """Return booleans of the shape of the logits."""
    if labels is None:
        return torch.eye(*s.shape[-2:], dtype=torch.bool, device=s.device).expand(s.shape)
    if labels.shape == s.shape:
        return labels > 0 if labels.is_floating_point() else labels
    counted = labels != ignore_index
    columns = labels.where(counted, 0).long().unsqueeze(-1)
    return torch.zeros_like(s, dtype=torch.bool).scatter(-1, columns, True) & counted.unsqueeze(-1)


def _guided(guide: Any, s: Tensor, columns: Tensor) -> Tensor:
    """Return the guide's similarities of anchors and keys: those of each anchor's positive, if it embeds keys alone."""
    if isinstance(guide, Tensor) and guide.shape[-2:] == s.shape[-2:]:
        return widen(guide.detach()).to(s)
    pair = guide if isinstance(guide, (list, tuple)) else (None, guide)
    if len(pair) != 2 or not isinstance(pair[1], Tensor) or len(pair[1]) != s.shape[-1]:
        raise ValueError(
            f"treatment: guide: expected similarities {tuple(s.shape)} or embeddings of {s.shape[-1]} keys."
        )
    keys = unit(widen(pair[1].detach()).to(s))
    anchors = keys[columns] if pair[0] is None else unit(widen(pair[0].detach()).to(s))
    return anchors @ keys.T
