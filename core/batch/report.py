"""Report what a batch looks like to an objective: which negatives it trains on, and how similar they are."""

from collections.abc import Callable
from copy import copy, deepcopy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..engine.matrix import MatrixNegatives, matrix_of
from ..values import at_scale
from .chunked import engine_of_training
from .options import Keys
from .scores import Scores


def report(objective: Any, *args: Any, call: str = "forward", **options: Any) -> dict[str, float]:
    """Compute averages over a batch's anchors, without gradient.

    Works on copies, in evaluation mode: no gradient is stored; no schedule, tracked value or training mode changes.
    With ``gather=``, call it in all processes; all get the same numbers.

    * ``loss``; for a sum also ``term[<spec>]``, what each weighted term adds to it
    * ``positive_mean``, ``negative_mean``, ``negative_variance`` (of an anchor's negatives): of the similarities
    * ``negatives``: how many; ``effective_negatives``: ``e^H`` of an anchor's training weights ``|dL/ds_j|``, which is
      ``negatives`` if they are equal, 1 if one dominates, 0 if all are zero
    * ``negatives_above_positive``: share of (positive, negative) pairs in which the negative is more similar
    * ``removed[<rule>]``, ``removed_similarity[<rule>]``: how many negatives of an anchor each of ``false_negatives``
      excludes, and their mean similarity; ``without_negatives``: how many anchors have none left
    * ``engine[<name>]``: 1 for the engine with which a training step reduces these negatives: ``matrix``, ``tiles``,
      ``chunks`` or ``fused``; only without ``gather=``
    * ``without_direction``: how many rows of the views are zero; their similarities and gradients are zero
    * the objective's own :meth:`Objective.diagnostics`, such as ``clamp_rate``

    The pairs are those of a sum's first term that has positives. Terms that compare other pairs, as regularizers and
    adversarial terms do, count in ``loss`` only. Without positives, their statistics are NaN.

    Args:
        objective: the objective.
        call: the method that computes the loss, for instance ``from_logits``.
        args, options: its arguments.

    >>> numbers = cp.InfoNCE(0.5).report(torch.eye(4), torch.eye(4))
    >>> numbers["negatives"], round(numbers["effective_negatives"], 4), numbers["negatives_above_positive"]
    (6.0, 6.0, 0.0)
    """
    with torch.inference_mode(False), torch.no_grad():
        objective = deepcopy(objective).eval()
        parts, engine = _parts(objective), None
        shown = next((p for p in parts if p.pairing != "single"), parts[0])
        if call == "forward" and not options.get("gather"):
            with torch.enable_grad():
                scores, _ = _collected(objective, call, args, options, _leaf)
                engine = engine_of_training(shown, scores(shown.pairing))
        if call == "forward":
            options["engine"] = "matrix"  # the weight of every single negative needs a matrix
        by_host = (options.get("scale", 1.0), options.get("bias", 0.0)) if call == "from_logits" else (None, None)
        with at_scale(*by_host):
            scores, device = _collected(objective, call, args, options, _copy)
            if not isinstance(scores, partial):  # of scores_of, which keeps them: the loss must use the same matrix
                scores = cache(scores)
            scores = partial(_with_gradient, scores)
            with torch.autocast(device.type, enabled=False):
                main = scores(shown.pairing)
                with torch.enable_grad():
                    loss = objective.compute_loss(scores, device)
                    weights = derivative(loss, matrix_of(main.neg))
                numbers = {"loss": loss, **_similarities(main, weights)}
                totals = _removed(main)
                for weight, part in objective.terms() if parts[0] is not objective else []:
                    term = part * weight
                    numbers[f"term[{term}]"] = term.compute_loss(scores, device)
                for part in parts:
                    for key, value in part.diagnostics(scores(part.pairing)).items():
                        numbers[f"{key}[{part}]" if key in numbers else key] = value
        across = main.neg.across
        anchors = torch.tensor(float(len(main.pos)), device=device)
        means = torch.stack([value.detach().mean().to(loss.dtype) for value in numbers.values()])
        if main.neg.group is not None:  # over the anchors of all processes
            means = across(means * anchors) / across(anchors)
        report: dict[str, float] = dict(zip(numbers, means.tolist(), strict=True))
        summed, rows = {name: float(across(value)) for name, value in totals.items()}, float(across(anchors))
        for rule in main.removed:
            count = summed[rule]
            report[f"removed[{rule}]"] = count / rows
            report[f"removed_similarity[{rule}]"] = summed[f"similarity {rule}"] / count if count else float("nan")
        if main.removed:
            report["without_negatives"] = summed["without negatives"]
        if engine is not None:
            report[f"engine[{engine}]"] = 1.0
        if call == "forward" and options.get("normalize", True):
            zeros = sum((~Keys.of(z).embeddings.any(-1)).sum() for z in args)
            report["without_direction"] = float(across(torch.as_tensor(zeros)))
        return report


def _collected(
    objective: Any, call: str, args: tuple[Any, ...], options: dict[str, Any], prepared: Callable[[Any], Any]
) -> tuple[Callable[[str], Scores], torch.device]:
    """Return a function from a pairing to the scores of a call with prepared arguments, and their device."""
    collector = copy(objective)
    collector.compute_loss = lambda scores, device, reduction="mean": (scores, device)
    return getattr(collector, call)(*map(prepared, args), **{k: _copy(v) for k, v in options.items()})  # type: ignore[no-any-return]


def _with_gradient(scores: Callable[[str], Scores], pairing: str) -> Scores:
    with torch.no_grad():
        computed = scores(pairing)
    matrix_of(computed.neg).requires_grad_()
    return computed


def _leaf(x: Any) -> Any:
    return x._replace(embeddings=_leaf(x.embeddings)) if isinstance(x, Keys) else _copy(x).detach().requires_grad_()


def _similarities(scores: Scores, weights: Tensor) -> dict[str, Tensor]:
    """Compute statistics per anchor of similarities and of the negatives' training ``weights``."""
    neg: Any = scores.neg
    allowed = neg.masked(torch.ones_like(weights), 0.0)
    share = normalize(weights * allowed, p=1, eps=torch.finfo(weights.dtype).tiny).abs()
    order = neg.masked(neg.matrix, float("-inf")).sort(1).values
    above = order.shape[1] - torch.searchsorted(order, scores.pos.contiguous(), right=True)
    numbers = {
        "positive_mean": scores.positives_mean(scores.pos),
        "negative_mean": neg.mean(lambda s: s),
        "negative_variance": neg.variance(),
        "negatives": allowed.sum(1),
        "effective_negatives": torch.special.entr(share).sum(1).exp() * share.any(1),
        "negatives_above_positive": scores.positives_mean(above / allowed.sum(1, keepdim=True)),
    }
    if scores.pairing == "single":
        numbers |= dict.fromkeys(("positive_mean", "negatives_above_positive"), torch.tensor(float("nan")))
    if scores.anchor_factor is not None:  # without rows that the loss leaves out
        numbers = {key: value[scores.anchor_factor > 0] if value.dim() else value for key, value in numbers.items()}
    return numbers


def _removed(scores: Scores) -> dict[str, Tensor]:
    """Count the negatives that each rule excludes from those that ids and positions leave, and add up similarities."""
    if scores.unfiltered is None:
        return {}
    before: Any = scores.unfiltered
    s = matrix_of(before).detach()
    compared = s if scores.judge is None else matrix_of(scores.judge)
    allowed, totals = before.masked(torch.ones_like(s), 0.0).bool(), {}
    left = allowed
    for rule, most in scores.removed.items():
        removed = allowed & (compared > most)
        removed[:, removed.shape[1] - scores.exempt :] = False
        totals[rule], totals[f"similarity {rule}"] = removed.sum().to(s.dtype), s[removed].sum()
        left = left & ~removed
    return {**totals, "without negatives": (~left.any(1)).sum().to(s.dtype)}


def _parts(objective: Any) -> list[Any]:
    """Return the objectives that a sum, or a sum of sums, adds up."""
    terms = [part for _, part in objective.terms()]
    return terms if terms[0] is objective else [p for part in terms for p in _parts(part)]


def _copy(x: Any) -> Any:
    """Copy scores, so that requiring their gradient leaves the caller's unchanged."""
    if isinstance(x, MatrixNegatives):
        return MatrixNegatives(x.matrix.clone(), x.skip, x.drop, x.log_weight)
    return x.clone() if isinstance(x, Tensor) else x


def derivative(loss: Tensor, by: Tensor) -> Tensor:
    """Compute ``dL/d by``, zero where the loss does not depend on it."""
    return torch.autograd.grad(loss + 0 * by.sum(), by)[0]
