"""SimCSE (https://arxiv.org/abs/2104.08821), and the sentence part of ADNCE's code, which is a copy of it.

**Where the loss sits.** In ``cl_forward`` of ``simcse/models.py``: ``nn.CrossEntropyLoss`` of a matrix that the class
``Similarity`` computes. ADNCE's copy does so with ``--loss_mode easy`` only, and computes other modes in place.

**Which tensors are there.** Those of :data:`HOST`; ``--hard_negative_weight`` is added to the logits of a sample's own
hard negative.

**How to put an objective there.** While ``cl_forward`` runs, the plugin records what ``Similarity`` compares, and the
first cross entropy of that matrix becomes the objective of the recorded embeddings. The same criterion then serves the
masked language model (``--do_mlm``), and is left alone there. Without the launcher, one line in ``train.py``, below the
import of ``simcse.models``, does the same::

    counterpoint.plugins.simcse.patch("adnce:mu=0.4,t=0.07")

The objective owns the temperature; ``--temp`` is for the host's own loss. Anchors are the first view, as in the host,
unless an objective's paper compares other pairs (ArCL, debiased positives).

**Several processes.** The host keeps the gradient of its own rows only, so that DDP's average over processes is the
whole batch's gradient divided by the number of processes. ``host`` keeps that; any other objective has the whole
batch's gradient.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor, distributed, nn

from counterpoint.batch.options import Keys
from counterpoint.objective import as_objective
from counterpoint.objectives.positives import ArCL

from .host import ONE_WAY, OWN_LOSS, Host, Seam, SeamError, UnreachedError
from .shims import simcse as shims

VIEWS = "more than two are further passes over the same sentences; not with hard negatives, which are paired one_way"

_running: ContextVar[_Step | None] = ContextVar("counterpoint_simcse", default=None)


@dataclass
class _Step:
    """One ``cl_forward``: what it compares, and, unless only that is wanted, what to compute instead of its loss."""

    compute: Callable[[list[tuple[Tensor, Tensor]], Callable[[], Tensor]], Tensor] | None = None
    compared: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    done: bool = False

    def replaces(self, logits: Tensor) -> bool:
        """Whether these logits are the comparison, rather than the masked language model's."""
        if self.compute is None or self.done or not self.compared:
            return False
        return logits.shape == (len(self.compared[0][0]), sum(len(keys) for _, keys in self.compared))

    def run(self, forward: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
        token = _running.set(self)
        try:
            return forward(*args, **inputs)
        finally:
            _running.reset(token)


def patch(objective: str | Seam) -> Seam:
    """Put an objective into ``simcse.models``, which must come from a clone of SimCSE or of ADNCE's ``sentence``."""
    seam = HOST.as_seam(objective)
    models: Any = importlib.import_module("simcse.models")
    if not hasattr(models, "cl_forward"):
        raise SeamError(f"simcse: {models.__file__} has no cl_forward; is another package of that name in the way?")
    # the host's own functions, also if patch was called before
    forward, compare = (getattr(f, "__wrapped__", f) for f in (models.cl_forward, models.Similarity.forward))

    @functools.wraps(compare)
    def similarity(self: Any, x: Tensor, y: Tensor) -> Any:
        if (step := _running.get()) is not None:
            step.compared.append((x[:, 0], y[0]))
        return compare(self, x, y)

    class CrossEntropyLoss(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            step, cross_entropy = _running.get(), super().forward
            if step is None or step.compute is None or not step.replaces(input):
                return cross_entropy(input, target)
            step.done = True
            return step.compute(step.compared, lambda: cross_entropy(input, target))

    @functools.wraps(forward)
    def cl_forward(model: Any, encoder: Any, **inputs: Any) -> Any:
        mode = getattr(model.model_args, "loss_mode", "easy")
        if mode != "easy":
            raise UnreachedError(f"simcse: --loss_mode {mode} computes its loss in place: run with --loss_mode easy")
        loss_fn = seam.objective(f"infonce:t={float(model.sim.temp)!r}")
        more: list[Tensor] = []
        for _ in range(2, seam.views(loss_fn), 2):
            further = _Step()
            further.run(forward, model, encoder, **{**inputs, "mlm_input_ids": None, "mlm_labels": None})
            more += further.compared[0]
        more = more[: seam.views(loss_fn) - 2]

        def compute(compared: list[tuple[Tensor, Tensor]], host_loss: Callable[[], Tensor]) -> Tensor:
            (z1, z2), *hard = compared
            if hard and more:
                raise SeamError(f"simcse: {VIEWS}")
            options: dict[str, Any] = {}
            if hard:
                options["negatives"] = Keys(hard[0][1], own_log_weight=model.model_args.hard_negative_weight)
            own = seam.uses_own_loss
            loss = seam.loss(loss_fn, host_loss, z1, z2, *more, pairing=ONE_WAY, **options)
            return loss if own else _with_gradient_of_all(loss, model.training)

        step = _Step(compute)
        output = step.run(forward, model, encoder, **inputs)
        if not step.done:
            raise UnreachedError(f"simcse: cl_forward of {models.__file__} compares nothing with nn.CrossEntropyLoss")
        return output

    models.Similarity.forward, models.cl_forward = similarity, cl_forward
    models.nn = SimpleNamespace(**{**vars(nn), "CrossEntropyLoss": CrossEntropyLoss})
    seam.say(f"replaced the cross entropy of cl_forward in {models.__file__}")
    return seam


def _with_gradient_of_all(loss: Tensor, gathered: bool) -> Tensor:
    """The same value, with a gradient whose average over processes is that of all rows together."""
    if not (gathered and distributed.is_available() and distributed.is_initialized()):
        return loss
    return loss + (distributed.get_world_size() - 1) * (loss - loss.detach())


def before(seam: Seam) -> None:
    """Patch the host, and hint at views that the objective lacks."""
    if seam.spec != OWN_LOSS:
        loss_fn = as_objective(seam.spec)
        if seam.views(loss_fn) == 2 and any(isinstance(part, ArCL) for part in loss_fn.modules()):
            seam.say("two views are a single pair of positives; --views M adds more")
    patch(seam)


HOST = Host(
    name="simcse",
    title="SimCSE (princeton-nlp/SimCSE), and the folder sentence of junkangwu/ADNCE",
    seam="the cross entropy in cl_forward of simcse/models.py (ADNCE: with --loss_mode easy only)",
    tensors="z1, z2 and hard negatives z3 (B, h), not normalized, gathered from all processes with gradient for "
    "the own rows only; logits are cosines / --temp, positive in the denominator, one direction",
    spec="infonce:t=0.05",
    tested="transformers 4.16.2, 4.25.1, 4.30.2, 4.44.2, 4.57.6 and 5.23.0 with torch 2.15; November 2026",
    evidence="the clones of SimCSE and ADNCE's sentence/, unmodified, train on generated text; 5 steps of "
    "--verify: value within 5e-7",
    markers=(("simcse/models.py", "def cl_forward("),),
    max_views=None,
    views=VIEWS,
    inputs="sentences cannot be moved a little, or averaged",
    shims=shims.shims(),
    before=before,
)
