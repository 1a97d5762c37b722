"""Rules by which negatives are false: too similar to the anchor, by the model or by a guide model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from ..checks import is_number
from ..names import check_known
from ..vectors import unit, widen

Kind = Literal["absolute", "relative", "percentage"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_RULE = re.compile(r"\s*(margin|threshold)\(\s*([^,()]+?)\s*(?:,\s*(\w+)\s*)?(?:,\s*hard\s*=\s*(True|False)\s*)?\)\s*")


@dataclass(frozen=True)
class Rule:
    """A rule for ``false_negatives=``; build it with :func:`margin` or :func:`threshold`."""

    value: float
    kind: str
    hard: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.hard, bool):
            name = "threshold" if self.kind == "threshold" else "margin"
            raise TypeError(f"{name}: hard is True or False, got {self.hard!r}.")

    def limits(self, pos: Tensor) -> Tensor:
        """Return the largest similarity that a negative may have, ``(anchors, 1)``, given that of the positive."""
        if self.kind == "absolute":
            return pos - self.value
        if self.kind == "relative":
            return pos - pos.abs() * self.value
        return pos * self.value if self.kind == "percentage" else torch.full_like(pos, self.value)

    def __str__(self) -> str:
        name = "threshold" if self.kind == "threshold" else "margin"
        kind = "" if self.kind in ("threshold", "absolute") else f",{self.kind}"
        return f"{name}({self.value}{kind}{'' if self.hard else ',hard=False'})"


def margin(value: float, kind: Kind = "absolute", *, hard: bool = True) -> Rule:
    """Exclude negatives that are about as similar to the anchor as its own positive ``p``, or more.

    =============  ===============================  =============================================================
    ``kind``       excluded if similarity exceeds   also known as
    =============  ===============================  =============================================================
    ``absolute``   ``p - value``                    NV-Retriever's TopK-MarginPos; GISTEmbed with ``value=0``
    ``relative``   ``p - value |p|``                sentence-transformers' ``margin_strategy="relative"``
    ``percentage`` ``value p``                      NV-Retriever's TopK-PercPos, with ``value=0.95``
    =============  ===============================  =============================================================

    Of several positives, the least similar one counts, as in sentence-transformers' ``mine_hard_negatives``.
    Similarities that equal the limit up to rounding are not excluded.

    Papers:
    Moreira et al. 2024 (NV-Retriever), https://arxiv.org/abs/2407.15831;
    Solatorio 2024 (GISTEmbed), https://arxiv.org/abs/2402.16829.

    Args:
        value: the margin.
        kind: see the table.
        hard: whether it also excludes hard negatives (``negatives=``); False if these are curated.

    >>> z1, z2 = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> round(cp.InfoNCE(0.5)(z1, z2, false_negatives=cp.margin(-0.5)).item(), 4)
    2.5755
    """
    check_known("margin: unknown kind", kind, KINDS)
    if not is_number(value):
        raise ValueError(f"margin: expected a number, got {value!r}.")
    if kind != "absolute" and not 0 <= value <= 1:
        raise ValueError(f"margin: a {kind} margin is a share from 0 to 1, got {value!r}.")
    return Rule(float(value), kind, hard)


def threshold(value: float, *, hard: bool = True) -> Rule:
    """Exclude negatives whose similarity to the anchor exceeds ``value``; ``hard`` as for :func:`margin`.

    >>> cp.InfoNCE(0.5)(torch.eye(4), torch.eye(4), false_negatives=cp.threshold(0.9))
    tensor(0.5944)
    """
    if not is_number(value):
        raise ValueError(f"threshold: expected a number, got {value!r}.")
    return Rule(float(value), "threshold", hard)


def parse(text: str) -> Rule:
    """Read a rule as it prints: ``margin(0.1)``, ``margin(0.05,relative)`` or ``threshold(0.9,hard=False)``."""
    found = _RULE.fullmatch(text)
    try:
        if found is not None and (found[1] == "margin" or found[3] is None):
            value, kind, hard = float(found[2]), cast("Kind", found[3] or KINDS[0]), found[4] != "False"
            return margin(value, kind, hard=hard) if found[1] == "margin" else threshold(value, hard=hard)
    except ValueError as error:
        if str(error).startswith("margin:"):
            raise
    expected = "margin(0.1), margin(0.05,relative), margin(0.95,percentage) or threshold(0.9,hard=False)"
    raise ValueError(f"false_negatives: expected {expected}, got {text!r}.")


def as_rules(value: object) -> tuple[Rule, ...]:
    """Return the rules of ``false_negatives=``; texts are parsed."""
    rules: tuple[Any, ...] = tuple(value) if isinstance(value, (list, tuple)) else () if value is None else (value,)
    rules = tuple(parse(rule) if isinstance(rule, str) else rule for rule in rules)
    wrong = [rule for rule in rules if not isinstance(rule, Rule)]
    if wrong or (value is not None and not rules):
        what = f"{wrong[0]!r} ({type(wrong[0]).__name__})" if wrong else repr(value)
        expected = "expected a rule, cp.margin(0.1) or cp.threshold(0.9), or a list of rules"
        raise TypeError(f"false_negatives: {expected}, got {what}.")
    if len({rule.hard for rule in rules}) > 1:
        raise ValueError("false_negatives: all rules need the same hard=, got True and False.")
    return rules


def limits(rules: Sequence[Rule], pos: Tensor, pos_mask: Tensor | None) -> list[Tensor]:
    """Return the largest similarities that negatives may have by each rule, ``(..., 1)``, given the positives'."""
    with torch.no_grad():
        if pos_mask is not None:
            pos = pos.masked_fill(~pos_mask, torch.inf)
        least = pos.detach().amin(-1, keepdim=True)
        return [rounded_up(rule.limits(least)) for rule in rules]


def rounded_up(most: Tensor) -> Tensor:
    """Return limits under which similarities that differ by rounding alone are equal in every engine."""
    return most + 32 * torch.finfo(most.dtype).eps * most.abs().clamp(min=1)


def guided(guide: Any, s: Tensor, columns: Tensor) -> Tensor:
    """Return the guide's similarities of anchors and keys: those of each anchor's positive, if it embeds keys alone."""
    if isinstance(guide, Tensor) and guide.shape[-2:] == s.shape[-2:]:
        return widen(guide.detach()).to(s)
    pair = guide if isinstance(guide, (list, tuple)) else (None, guide)
    if len(pair) != 2 or not isinstance(pair[1], Tensor) or len(pair[1]) != s.shape[-1]:
        expected = f"expected similarities {tuple(s.shape)} or embeddings of {s.shape[-1]} keys, not the model of these"
        raise ValueError(f"treatment: guide: {expected}; got {getattr(guide, 'shape', type(guide).__name__)}.")
    keys = unit(widen(pair[1].detach()).to(s))
    anchors = keys[columns] if pair[0] is None else unit(widen(pair[0].detach()).to(s))
    return anchors @ keys.T
