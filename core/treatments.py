"""Treatments: an objective and its knowledge of the data: which keys are not negatives.

.. code-block:: text

    treatment = objective, {";" item}
    item      = "duplicates" ["=" PATH] | ("ids" | "labels" | "guide" | "log_q" | "index") "=" PATH
              | "margin=" number ["," kind] | "threshold=" number

A ``PATH`` such as ``batch["doc_id"]`` or ``self.labels[0]`` says where ``counterpoint inject`` finds the values: among
the names of the function that computes the loss. It is looked up, never evaluated.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from . import checks, spec
from .base import Objective, Wrapper, as_objective
from .batch.batch import Batch
from .batch.options import Keys, Reduction, View
from .batch.pairings import scores_of, uses_guide
from .batch.ready_made import MASKED, columns_of, similarity_columns
from .batch.rules import Rule, as_rules, guided, limits, parse, rounded_up
from .batch.same import equal_pairs, is_part, merged, merged_of_all, numbered, positives_of, spread
from .batch.scores import Scores
from .engine.distributed import Gather
from .engine.matrix import MatrixNegatives
from .engine.tiles import TileNegatives
from .names import RULES, TOLD, check_known
from .vectors import unit, widen

Tally = tuple[Tensor, Tensor, Tensor]  # anchors, excluded keys, and anchors that are left without negatives
Told = tuple[tuple[Any, ...], dict[str, Any], Tally | None]  # arguments of the objective's call, and counts if told
OWN_GUIDES = ("self", "ema")
PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*|\[(-?\d+|\"[^\"\[\];]*\"|'[^'\[\];]*')\])*")


class Treatment(Wrapper):
    """An objective and its knowledge of the data; :func:`treatment` reads one from its text.

    It is called as its objective is. Anchors that its rules leave without negatives keep the least similar one, and
    :attr:`counts` says how many there were; a step of nothing else is an error.

    Args:
        objective: an objective or its spec.
        false_negatives: rules by which keys are too similar to be negatives.
        duplicates: whether samples of which any view is the same are not each other's negatives: embeddings that are
            equal but for rounding or, given a path, rows of that tensor (``input_ids``) or texts of that list.
        ids, labels, guide, log_q, index: paths of what the argument of this name says of the samples; at logits,
            ``log_q`` is of the keys. A guide may also be the encoder itself, as it was in the first step (``self``) or
            as a moving average (``ema``), where the encoder is known: :mod:`counterpoint.plugins.encoders`.

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
        log_q: str | None = None,
        index: str | None = None,
    ) -> None:
        super().__init__(objective)
        if isinstance(self.objective, Treatment):
            raise TypeError(f"treatment: {self.objective} is one already; expected an objective.")
        self.rules: tuple[Rule, ...] = as_rules(false_negatives)
        told = {"duplicates": duplicates, "ids": ids, "labels": labels, "guide": guide, "log_q": log_q, "index": index}
        self.told: dict[str, Any] = {name: value for name, value in told.items() if value}
        for name, path in self.told.items():
            if isinstance(path, str) and not PATH.fullmatch(path):
                expected = f"expected a path that is looked up, batch['id']; got {path!r}"
                raise ValueError(f"treatment: {name}: {expected}. Give these values a name in the script.")
        if ids and labels:
            raise ValueError("treatment: expected ids= or labels=, got both: labels are ids, too.")
        if guide and not self.rules and not uses_guide(self.objective):
            raise ValueError(f"treatment: guide={guide} decides nothing without a rule; add margin=0 or threshold=0.9.")
        self.counts: dict[str, Tensor | float] = dict.fromkeys(("anchors", "excluded", "without_negatives"), 0.0)

    @property
    def paths(self) -> dict[str, str]:
        """The paths to look up in the host, by the name of the argument."""
        return {k: path for k, path in self.told.items() if isinstance(path, str) and path not in OWN_GUIDES}

    @property
    def own_guide(self) -> str | None:
        """``self`` or ``ema`` if the encoder itself is the guide."""
        return guide if (guide := self.told.get("guide")) in OWN_GUIDES else None

    def forward(self, *views: View, gather: Gather = False, reduction: Reduction = "mean", **options: Any) -> Tensor:
        """Compute the loss of embeddings; ``duplicates=`` takes rows or texts, one per sample."""
        options = self._options(views, gather, options)
        call = self.objective if checks.compiling() else super().forward
        return call(*views, gather=gather, reduction=reduction, **options)

    def from_scores(self, pos: Tensor, neg: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Compute the loss of similarities, ``neg`` a matrix, with the options of :meth:`Objective.from_scores`.

        ``ids`` and ``duplicates`` are pairs, ``(anchors,)`` and ``(keys,)``, or rows and texts; ``guide`` is one of
        similarities, of the shapes of ``pos`` and ``neg``.
        """
        args, options, tally = self._allowed(pos, neg, mask, **options)
        self._count(tally)
        return self.objective.from_scores(*args, **options)

    def compute_loss(self, scores_for: Any, *args: Any, **options: Any) -> Tensor:
        if not (isinstance(scores_for, partial) and scores_for.func is scores_of):
            raise TypeError(f"{self}: the scores of a pairing do not say which keys these are; call from_scores.")
        batch, pairing = scores_for.args[0], self.objective.terms()[0][1].pairing
        with checks.exact(batch.device):
            self._count_embeddings(batch, scores_for(pairing))
        return self.objective.compute_loss(scores_for, *args, **options)

    def from_logits(self, logits: Tensor, labels: Tensor | None = None, **options: Any) -> Tensor:
        """Compute the loss of logits, with the options of :meth:`Objective.from_logits` and those of :attr:`paths`.

        ``ids``, ``classes``, ``duplicates`` are of anchors or keys, and ``guide`` is like the logits, or embeds keys.
        """
        args, options, tally = self._masked(logits, labels, **options)
        self._count(tally)
        return self.objective.from_logits(*args, **options)

    def report(self, *args: Any, call: str = "forward", **options: Any) -> dict[str, float]:
        """Report of the negatives that are left; of logits and scores also how many are ``excluded`` per anchor."""
        tally = None
        if call == "forward":
            options = self._options(args, options.get("gather", False), options)
        elif call in ("from_scores", "from_logits"):
            args, options, tally = (self._allowed if call == "from_scores" else self._masked)(*args, **options)
        found = self.objective.report(*args, call=call, **options)
        if tally is not None:
            anchors, excluded, empty = map(float, tally)
            found |= {"excluded": excluded / max(anchors, 1.0), "without_negatives": empty}
        return found

    def _options(self, views: Sequence[Any], group: Gather, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the objective's call with embeddings."""
        options = dict(options)
        for name in (name for name in self.told if name != "duplicates"):
            if options.get(name) is None:
                raise self._missing(name)
            if name in ("ids", "labels") and not isinstance(options[name], Tensor):
                options[name] = numbered(options[name], False).to(views[0].device)
            elif name == "index":
                options[name] = torch.as_tensor(options[name], device=views[0].device)
        if self.rules:
            options["false_negatives"] = [*self.rules, *as_rules(options.get("false_negatives"))]
        options.pop("empty", None)
        if options.get("false_negatives") is not None:
            options["empty"] = "keep"
        if "duplicates" in self.told:
            given = options.pop("duplicates", None)
            if given is None and self.told["duplicates"] is not True:
                raise self._missing("duplicates")
            if isinstance(views[-1], Keys):
                raise TypeError(f"{self}: duplicates: of documents, give ids= and cp.Keys(..., ids=...) instead.")
            options |= _same_samples(views, options, "ids" if options.get("labels") is None else "labels", given, group)
        return options

    def _masked(self, logits: Tensor, labels: Tensor | None = None, **options: Any) -> Told:
        """Mask the keys that are not negatives; labels become several positives per row if classes are told."""
        known = {name: options.pop("classes" if name == "labels" else name, None) for name in (*TOLD, "targets")}
        for name, value in self.told.items():
            if value is not True and known[name] is None:
                raise self._missing(name)
        if "index" in self.told:
            where = "counterpoint inject function --replace passes embeddings"
            raise TypeError(f"{self._named('index')}: expected embeddings; logits do not say whose they are. {where}.")
        guides = uses_guide(self.objective) and ("guide" in self.told or known["targets"] is None)
        ignored, tally = options.get("ignore_index", -100), None
        if labels is None and known["targets"] is not None:
            labels = columns_of(known["targets"], ignored)
        if self.told or self.rules:
            options["empty"] = "zero"
            with torch.no_grad():
                out = logits <= MASKED
                s = (widen(logits.detach()) - options.get("bias", 0.0)) / options.get("scale", 1.0)
                positive = positives_of(s, labels, ignored) & ~out
                drop = self._same(s, out, positive, known, logits.dtype)
                guide = known["guide"]
                judge = s if guide is None else guided(guide, s, positive.long().argmax(-1)).expand_as(s)
                if "labels" in self.told:
                    labels = positive = positive | (drop & ~out & positive.any(-1, keepdim=True))
                known["guide"] = judge
                left, tally = self._left(~(out | positive), drop, judge, judge, positive)
            logits = logits.masked_fill(~(left | out | positive), -torch.inf)
        options |= {name: known[name] for name in ("log_q", "targets", *(["guide"] * guides))}
        return (logits, labels), options, tally

    def _allowed(self, pos: Tensor, neg: Any, mask: Tensor | None = None, **options: Any) -> Told:
        """Mask the scores that are not of negatives."""
        known: dict[str, Any] = {name: options.pop(name, None) for name in self.told}
        if not (self.told or self.rules):
            return (pos, neg, mask), options, None
        if not isinstance(neg, Tensor):
            raise TypeError(f"{self}: neg: expected a matrix of similarities, got {type(neg).__name__}.")
        if "labels" in self.told:
            raise TypeError(f"{self._named('labels')}: scores do not say which keys are positives, too; use ids=.")
        if "log_q" in self.told:
            raise TypeError(f"{self._named('log_q')}: expected logits or embeddings, got scores.")
        with torch.no_grad():
            p, s = similarity_columns(pos.detach(), "pos"), widen(neg.detach())
            drop = torch.zeros_like(s, dtype=torch.bool)
            for name in self.told:
                pair = known[name]
                if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                    got = "nothing" if pair is None else type(pair).__name__
                    raise TypeError(f"{self._named(name)}: of scores, expected a pair, anchors' and keys', got {got}.")
                if name != "guide":
                    drop |= equal_pairs(pair[0], pair[1], drop.shape, self._named(name)).to(drop.device)
            judges = known.get("guide") or (p, s)
            if judges[1].shape != s.shape:
                raise ValueError(f"treatment: guide: expected scores {(*s.shape,)}, got {(*judges[1].shape,)}.")
            before = torch.ones_like(drop) if mask is None else mask
            of_positives = similarity_columns(judges[0], "guide[0]", len(p))
            left, tally = self._left(before, drop, judges[1], of_positives, options.get("pos_mask"))
        options |= {"guide": known["guide"]} if uses_guide(self.objective) else {}
        return (pos, neg, left), options, tally

    def _left(
        self, keys: Tensor, drop: Tensor, judge: Tensor, pos: Tensor, pos_mask: Tensor | None
    ) -> tuple[Tensor, Tally]:
        """Return which ``keys`` are negatives, and count: not ``drop``, nor those that ``judge`` finds too similar."""
        left = within = keys & ~drop
        rows = keys.any(-1) if pos_mask is None else keys.any(-1) & pos_mask.any(-1)
        if self.rules:
            most = torch.cat(limits(self.rules, pos, pos_mask), -1).amin(-1, keepdim=True)
            within = left & (judge <= most)
            least = rounded_up(judge.masked_fill(~left, torch.inf).amin(-1, keepdim=True))
            left = left & (judge <= torch.maximum(most, least))
        empty = rows & ~within.any(-1)
        return left, (rows.sum(), (keys & ~left & rows.unsqueeze(-1)).sum(), empty.sum())

    def _missing(self, name: str) -> TypeError:
        if name == "guide" and self.own_guide:
            return TypeError(f"{self}: pass guide=; this loss does not know its encoder.")
        return TypeError(f"{self}: pass {name}=; only `counterpoint inject` looks up {self.told[name]}.")

    def _named(self, name: str) -> str:
        return f"treatment: {name}={self.told[name]}".removesuffix("=True")

    def _same(self, s: Tensor, out: Tensor, positive: Tensor, known: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
        """Return which keys are the same as an anchor's positive, by all that is told of anchors that have one."""
        if s.dim() > 2:
            if len(s) == 2 and s.shape[-1] == s.shape[-2] and torch.equal(s[0], s[1].mT):  # both ways of the same pairs
                return self._same(s[0], out[0], positive[0], known, dtype).expand_as(out).clone()
            return torch.stack([self._same(*each, known, dtype) for each in zip(s, out, positive, strict=True)])
        names = [name for name in self.told if name not in ("guide", "log_q", "index")]
        if not names:
            return torch.zeros_like(out)
        columns, counted = positive.long().argmax(-1), positive.any(-1)
        number = reduce(merged, (self._of_keys(name, known[name], s, out, columns, counted, dtype) for name in names))
        return number[columns].unsqueeze(-1) == number

    def _of_keys(
        self, name: str, values: Any, s: Tensor, out: Tensor, columns: Tensor, counted: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return a number for each key, the same for those that ``name`` says are the same."""
        anchors, keys = s.shape
        own = columns[counted]
        if len(own) > 1 and bool((own == own[0]).all()):
            raise ValueError(f"{self._named(name)}: these logits do not say which keys anchors have in common.")
        if values is None:
            fill = s.masked_fill(out, -torch.inf).amax(0, keepdim=True)  # the masked similarity to itself
            number = numbered(torch.where(out, fill.masked_fill(out.all(0), 0.0), s).mT, False, dtype)
            if not bool(out.any()) and len(own.unique()) == anchors:  # equal anchors are the same sample, too
                rows = numbered(s, False, dtype)
                number = merged(number, (len(rows) + torch.arange(keys).to(rows)).scatter(0, columns, rows))
        else:
            gathered = isinstance(values, Tensor) and is_part(values, keys)
            number = spread(numbered(values, gathered).to(s.device), columns, counted, keys, self._named(name))
        if anchors == keys and bool(out.diagonal().all()):  # the anchors are keys, too
            itself = torch.arange(anchors, device=s.device)
            number = merged(number, torch.minimum(columns.where(counted, itself), itself))
        return number

    def _count(self, tally: Tally | None, across: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        """Add up what a call has counted; raise if no anchor, of all processes by ``across``, has a negative."""
        if tally is None or checks.compiling():
            return
        anchors, empty = across(tally[0]), across(tally[2])
        if bool((anchors > 1) & (empty == anchors)):  # a call may be of one anchor, and a step of many calls
            same = {*self.told} & {"duplicates", "ids", "labels"}
            hint = " An anchor and its positive are one sample: are values in the order of the keys?" if same else ""
            hint += " A lower margin=, or a higher threshold=, excludes fewer keys." * bool(self.rules)
            raise ValueError(f"{self}: every anchor of this step is left without negatives.{hint}")
        for name, value in zip(self.counts, tally, strict=True):
            self.counts[name] = self.counts[name] + value

    def _count_embeddings(self, batch: Batch, scores: Scores) -> None:
        """Count anchors, and excluded keys, else NaN: those of a rule in tiles would take another pass."""
        factor, excluded, neg = scores.anchor_factor, torch.tensor(torch.nan), scores.neg
        zero = scores.pos.new_zeros(())  # sums over processes need the same type in all of them
        anchors = zero + (len(scores.pos) if factor is None else factor.sum())
        empty = zero if scores.emptied is None else zero + scores.emptied.sum()
        keys = neg.matrix.shape[1] if isinstance(neg, MatrixNegatives) else 0
        if isinstance(neg, TileNegatives) and neg.mask.limits is None:
            keys = len(neg.pairs[0][1])
        if keys and (batch.queue, batch.negatives, batch.labels) == (None,) * 3:
            excluded = torch.as_tensor(keys - keys // batch.total - neg.count).expand(len(scores.pos), 1).sum()
        self._count((anchors, excluded, empty), neg.across)

    def terms(self) -> list[Any]:
        raise TypeError(f"{self}: a treatment cannot be a term; write the sum before its first semicolon.")

    def replace(self, **changes: Any) -> "Treatment":
        """Return the same treatment of a changed objective."""
        return Treatment(self.objective.replace(**changes), false_negatives=self.rules or None, **self.told)

    def _text(self, detail: str) -> str:
        told = [name if path is True else f"{name}={path}" for name, path in self.told.items()]
        rules = [str(rule).replace("(", "=").rstrip(")") for rule in self.rules]
        return "; ".join([self.objective._text(detail), *told, *rules])

    def to_dict(self) -> dict[str, Any]:
        told = {**self.told, "false_negatives": [*map(str, self.rules)] or None}
        return {"name": "treatment", "objective": self.objective.to_dict(), "told": told}


def _same_samples(
    views: Sequence[Tensor], options: Mapping[str, Any], name: str, given: Any, group: Gather
) -> dict[str, Any]:
    """Return the ids, or labels, of samples and of hard negatives, merged where ``given``, or embeddings, are the same.

    What of the negatives does not fit is left to the objective, which refuses it.
    """
    keys, known, width = options.get("negatives"), options.get(name), views[0].shape[-1:]
    hard, ids, *_ = (views[0][:0], None) if keys is None else Keys.of(keys)
    refused = not isinstance(hard, Tensor) or not hard.is_floating_point() or hard.shape[-1:] != width
    if refused or (ids is not None and (known is None or ids.shape.numel() != hard.shape[:-1].numel())):
        return {}
    hard, process = hard.reshape(-1, hard.shape[-1]), torch.distributed.get_rank() if group else 0
    apart = torch.arange(len(hard)) + process * 2**32 - 2**62  # nothing is known of them
    if given is None:
        coarse = [max(view.dtype, hard.dtype, key=lambda dtype: torch.finfo(dtype).eps) for view in views]
        scaled = unit if options.get("normalize", True) else torch.clone  # as they are compared
        rows = [scaled(widen(torch.cat([view, hard.to(view)]))) for view in views]
        numbers = [[numbered(x, group, dtype)] for x, dtype in zip(rows, coarse, strict=True)]
    else:
        numbers = [[numbered(given, group), apart]]
    if known is not None:
        numbers.append([numbered(known, False), apart if ids is None else ids.flatten()])
    same = merged_of_all([torch.cat([x.to(views[0].device) for x in each]) for each in numbers], group)
    own, of_hard = same.split([len(same) - len(hard), len(hard)])
    return {name: own} if keys is None else {name: own, "negatives": Keys.of(keys)._replace(ids=of_hard)}


def treatment(text: str, like: Objective | str | None = None) -> Treatment:
    """Build a treatment from its text; ``cp.treatment(str(t)) == t``.

    Args:
        text: an objective's spec and, behind semicolons, what it is told.
        like: the loss of the script, ``host`` in ``text``, and the default of its temperature and denominator.

    >>> cp.treatment("hcl:t=0.05; ids=batch['doc']; margin=-0.1")
    hcl:t=0.05,denominator=with_positive,prior=0.1,beta=1; ids=batch['doc']; margin=-0.1
    """
    spec.refuse_list(text)
    head, *items = text.split(";")
    options: dict[str, Any] = {}
    rules: list[Rule] = []
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        hyper = {} if not equals or name in (*TOLD, *RULES) else getattr(as_objective(head, like), "hyper", {})
        if name in (*hyper, *(parameter.short for parameter in hyper.values())):
            whole = f"{head.strip()}{',' if ':' in head else ':'}{name}={value}"
            raise ValueError(f"treatment: {name} is the objective's, as in {whole}.")
        check_known("treatment: unknown item", name, (*TOLD, *RULES))
        if not value and (name != "duplicates" or equals):
            example = "-0.1" if name in RULES else f'batch["{name}"]'
            raise ValueError(f"treatment: {name}: expected a value, as in {name}={example}, got {item.strip()!r}.")
        if name in RULES:
            try:
                rules.append(parse(f"{name}({value})"))
            except ValueError as error:
                written = re.sub(r"\b(margin|threshold)\((.*?)\)", r"\1=\2", str(error))
                raise ValueError(written.replace("false_negatives:", "treatment:")) from None
        elif name in options:
            raise ValueError(f"treatment: {name!r} is given twice in {text!r}; ids= takes texts, too, beside it.")
        else:
            options[name] = value or True
    return Treatment(as_objective(head, like), false_negatives=rules or None, **options)
