"""The call of an objective with a host's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from counterpoint.base import Objective, as_objective
from counterpoint.batch.options import Keys
from counterpoint.batch.same import numbered
from counterpoint.checks import is_number
from counterpoint.names import OBJECTIVES, check_known
from counterpoint.values import FromHost, at_scale
from counterpoint.vectors import unit, widen

from .host import SeamError, loss_of

Init = TypeVar("Init")


@dataclass
class Call:
    """A call of an objective.

    Attributes:
        args: the embeddings of the views, or the arguments of another method.
        options: further arguments.
        method: ``forward``, ``from_logits`` or ``compute_loss``.
        scale, bias: the host's, which ``t=host`` and ``b=host`` stand for.
        first: of all anchors, only the samples of the first view count.
        epsilon: the host adds it to the probability in its own loss, ``-log(p + epsilon)``.
    """

    args: Sequence[Any]
    options: dict[str, Any] = field(default_factory=dict)
    method: str = "forward"
    scale: Any = None
    bias: Any = None
    first: bool = False
    epsilon: float = 0.0

    def loss(self, loss_fn: Objective, own: bool = False) -> Tensor:
        """Compute the loss of an objective, or the host's ``own``."""
        with at_scale(self.scale, self.bias):
            if not self.first and not (own and self.epsilon):
                return loss_of(loss_fn, *self.args, call=self.method, **self.options)
            losses = loss_of(loss_fn, *self.args, reduction="none", **self.options)
            losses = losses[: len(self.args[0])] if self.first else losses
            if own and self.epsilon:
                losses = -torch.logaddexp(-losses, losses.new_tensor(self.epsilon).log())
            return losses.mean()

    def report(self, loss_fn: Objective) -> dict[str, float]:
        with at_scale(self.scale, self.bias):
            return loss_fn.report(*self.args, call=self.method, **self.options)

    def take_guide(self, by_guide: Call) -> None:
        """Let the embeddings of another call judge which keys of this one are negatives."""
        if self.method != "forward" or self.options.get("queue") is not None:
            raise SeamError("guide: an encoder cannot guide a loss with keys of earlier steps, not embedded again")
        self.options["guide"] = [*by_guide.args]
        if isinstance(keys := self.options.get("negatives"), Keys):
            self.options["negatives"] = keys._replace(guide=by_guide.options["negatives"].embeddings)

    def largest_logit(self, own: Objective) -> float:
        """Return the host's largest logit, where its embeddings are compared with each other."""
        z = [widen(x) for x in self.args if isinstance(x, Tensor) and x.dim() == 2]
        z = z if self.options.get("normalize") is False else [unit(x) for x in z]
        largest = float((z[0] @ z[-1].mT).abs().max()) if self.method == "forward" and z else 1.0
        temperature = getattr(own, "temperature", 1.0)
        return largest / temperature if isinstance(temperature, float) else largest * float(self.scale or 1)


def call_of(views: Sequence[Tensor], options: Mapping[str, Any]) -> Call:
    """Return the call of an objective for embeddings; options are those of ``--as``, and arguments of the objective."""
    options = dict(options)
    cat, first = options.pop("cat", 1), options.pop("anchors", "all") == "first"
    scale, bias, epsilon = options.pop("scale", None), options.pop("bias", None), options.pop("epsilon", 0.0)
    for view in views:
        if len(view) % cat:
            raise SeamError(f"--as cat={cat}: expected a multiple of {cat} rows, got {len(view)}")
    parts = views if cat == 1 else [part for view in views for part in view.chunk(cat)]
    parts = parts[0].unbind(1) if len(parts) == 1 and parts[0].dim() == 3 else parts
    return Call(parts, options, scale=scale, bias=0.0 if bias is None else bias, first=first, epsilon=float(epsilon))


def of_keys(name: str, values: Any, columns: Tensor, keys: int) -> Any:
    """Return a number per key where values are of a whole batch, whose anchors a cached loss takes in parts."""
    listed = isinstance(values, (list, tuple)) or (isinstance(values, Tensor) and values.dim() > 0)
    count = len(values) if listed and name in ("ids", "labels", "duplicates") else 0
    is_part = columns.dim() == 1 and len(columns) < count < keys and keys % count == 0
    if not is_part or int(columns[-1]) >= count or not bool((columns.diff() == 1).all()):
        return values
    numbers = torch.unique(numbered(values, False), return_inverse=True)[1]
    return torch.cat([numbers, count + torch.arange(keys - count, device=numbers.device)])


def own_temperature(objective: Objective | str, where: str) -> Objective:
    """Return the objective, which has a temperature of its own, as criteria of embeddings need."""
    found = as_objective(objective)
    if any(isinstance(part, FromHost) for part in found.modules()):
        number = "here give a number, one over the host's scale: t=0.05."
        raise ValueError(f"{where}: {found}: t=host is for `counterpoint inject`; {number}")
    return found


def checked_options(init: Init) -> Init:
    """Let an ``__init__`` name the closest option for one of the host's, and say where a temperature goes."""
    call: Any = init
    code = call.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @wraps(call)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in options.keys() - set(known):
            hint = ""
            if name in ("temperature", "t", "tau", "scale"):
                x = options[name] if is_number(options[name]) and options[name] > 0 else 20 if name == "scale" else 0.05
                t = f'{1 / x:g}" for a scale of {x:g}' if name == "scale" else f'{x:g}"'
                texts = (x for x in (*args, options.get("objective")) if isinstance(x, str))
                named = next((x for x in texts if x in OBJECTIVES), "infonce")
                hint = f' Give it to the objective: "{named}:t={t}.'
            elif name == "queue" and "labels" in known:
                hint = " Earlier keys cannot be kept; CachedContrastiveLoss trains with larger batches instead."
            elif name in ("margin", "threshold") and "false_negatives" in known:
                hint = f" A rule: false_negatives=cp.{name}(...)."
            elif "id" in name.split("_") or "ids" in name.split("_"):
                hint = ' Ids are a column "label" of the dataset: labels="ids".' * ("labels" in known)
            check_known(f"{type(self).__name__}: unknown argument", name, known, TypeError, hint)
        call(self, *args, **options)

    return checked  # type: ignore[return-value]
