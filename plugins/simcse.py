"""SimCSE, and the sentence part of ADNCE's code, which is a copy of it.

**Where the loss sits.** In ``cl_forward`` of ``simcse/models.py``: ``nn.CrossEntropyLoss`` of a matrix that the class
``Similarity`` has computed. ADNCE's copy does so with ``--loss_mode easy`` only, and computes other modes in place.

**Which tensors are there.** ``z1`` and ``z2`` ``(B, h)``, for supervised data also hard negatives ``z3``, all of them
gathered from all processes and not normalised. The matrix is cosines divided by ``--temp``, the positive is in the
denominator, one direction only; ``--hard_negative_weight`` is added to the logits of a sample's own hard negative.

**How an objective gets there.** While ``cl_forward`` runs, what ``Similarity`` compares is remembered, and the first
cross entropy of that matrix becomes the objective of what was compared. The same criterion then serves the masked
language model (``--do_mlm``), and is left alone there. Without the launcher, one line in ``train.py``, below the import
of ``simcse.models``, does the same::

    counterpoint.plugins.simcse.use("adnce:mu=0.4,t=0.07")

The objective owns the temperature, ``--temp`` is the host's own. Anchors are the first view, as in the host, unless an
objective's paper compares other pairs (ArCL, debiased positives).

**What cannot be had.** More than two views are made by running ``cl_forward`` again on the same sentences, with other
dropout; not with hard negatives, which are compared one way only. Adversarial and mixed views: sentences are no numbers
that could be moved a little or averaged.

**Several processes.** The host keeps the gradient of its own rows only, so that the average over processes, which DDP
takes, is the whole batch's gradient divided by their number. ``host`` is left like that; any other objective has the
whole batch's gradient.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from counterpoint.objective import objective
from counterpoint.objectives.positives import ArCL

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, Shim, UnreachedError, one_way, refuse

VIEWS = "more than two are further passes over the same sentences; not with hard negatives, which are paired one_way"

_running: ContextVar[_Step | None] = ContextVar("counterpoint_simcse", default=None)


@dataclass
class _Step:
    """One ``cl_forward``: what was compared in it, and what is computed of that (nothing, if only that is wanted)."""

    compute: Callable[[list[tuple[Tensor, Tensor]], Callable[[], Tensor]], Tensor] | None = None
    compared: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    done: bool = False

    def takes(self, logits: Tensor) -> bool:
        """Whether these logits are the comparison, rather than the masked language model's."""
        if self.compute is None or self.done or not self.compared:
            return False
        return logits.shape == (len(self.compared[0][0]), sum(len(keys) for _, keys in self.compared))

    def run(self, forward: Callable[..., Any], *args: Any, **how: Any) -> Any:
        token = _running.set(self)
        try:
            return forward(*args, **how)
        finally:
            _running.reset(token)


def use(objective: str | Seam) -> Seam:
    """Puts an objective into ``simcse.models``, which must come from a clone of SimCSE or of ADNCE's ``sentence``."""
    seam = objective if isinstance(objective, Seam) else Seam(objective)
    models: Any = importlib.import_module("simcse.models")
    if not hasattr(models, "cl_forward"):
        raise SeamError(f"simcse: {models.__file__} has no cl_forward; is another package of that name in the way?")
    # the host's own, also where an objective has been put before
    forward, compare = (getattr(f, "__wrapped__", f) for f in (models.cl_forward, models.Similarity.forward))

    @functools.wraps(compare)
    def similarity(self: Any, x: Tensor, y: Tensor) -> Any:
        step = _running.get()
        if step is not None:
            step.compared.append((x[:, 0], y[0]))
        return compare(self, x, y)

    class CrossEntropyLoss(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            step, theirs = _running.get(), super().forward
            if step is None or step.compute is None or not step.takes(input):
                return theirs(input, target)
            step.done = True
            return step.compute(step.compared, lambda: theirs(input, target))

    @functools.wraps(forward)
    def cl_forward(model: Any, encoder: Any, **inputs: Any) -> Any:
        mode = getattr(model.model_args, "loss_mode", "easy")
        if mode != "easy":
            raise UnreachedError(f"simcse: --loss_mode {mode} computes its loss in place: run with --loss_mode easy")
        loss_fn = one_way(seam.objective(f"infonce:t={float(model.sim.temp)!r}"))
        more: list[Tensor] = []
        for _ in range(2, seam.views(loss_fn), 2):
            again = _Step()
            again.run(forward, model, encoder, **{**inputs, "mlm_input_ids": None, "mlm_labels": None})
            more += again.compared[0]
        more = more[: seam.views(loss_fn) - 2]

        def compute(compared: list[tuple[Tensor, Tensor]], theirs: Callable[[], Tensor]) -> Tensor:
            (z1, z2), *hard = compared
            if hard and more:
                raise SeamError(f"simcse: {VIEWS}")
            how = {"negatives": hard[0][1], "negative_weight": model.model_args.hard_negative_weight} if hard else {}
            loss = seam.loss(loss_fn, theirs, z1, z2, *more, **how)
            return loss if seam.spec == OWN_LOSS or seam.calls <= seam.verify else _of_whole_batch(loss, model.training)

        step = _Step(compute)
        found = step.run(forward, model, encoder, **inputs)
        if not step.done:
            raise UnreachedError(f"simcse: cl_forward of {models.__file__} has compared nothing by nn.CrossEntropyLoss")
        return found

    models.Similarity.forward, models.cl_forward = similarity, cl_forward
    models.nn = SimpleNamespace(**{**vars(nn), "CrossEntropyLoss": CrossEntropyLoss})
    seam.say(f"replaced the cross entropy of cl_forward in {models.__file__}")
    return seam


def _of_whole_batch(loss: Tensor, gathered: bool) -> Tensor:
    """The same value, with a gradient whose average over processes is that of all rows together."""
    if not (gathered and distributed.is_available() and distributed.is_initialized()):
        return loss
    return loss + (distributed.get_world_size() - 1) * (loss - loss.detach())


def before(seam: Seam) -> None:
    """Checks what can be checked before a model is loaded, then :func:`use`."""
    if seam.spec != OWN_LOSS:
        wanted = refuse(objective(seam.spec), "simcse", inputs="sentences cannot be moved a little, or averaged")
        if seam.views(wanted) == 2 and any(isinstance(part, ArCL) for part in wanted.modules()):
            seam.say("two views are a single pair of positives; --views M makes more")
    use(seam)


# ---- shims -----------------------------------------------------------------------------------------


def _gone(module: str, name: str, make: Callable[[], Any], why: str = "it is imported and not used") -> Shim:
    """Puts a name that the host imports back into one of the library's modules."""

    def apply() -> bool:
        place = importlib.import_module(f"transformers.{module}")
        if hasattr(place, name):
            return False
        setattr(place, name, make())
        return True

    return Shim(name, f"transformers.{module} no longer has it; {why}", apply)


def _setup_devices() -> Any:
    """A decorator that the host puts on one method only: hands back the library's own version of that method."""
    own: Any = vars(importlib.import_module("transformers.training_args").TrainingArguments)["_setup_devices"]
    return lambda _: getattr(own, "func", None) or own.fget


def _trainer() -> Any:
    return importlib.import_module("transformers.trainer").Trainer


def _host_trainer() -> Any:
    return importlib.import_module("simcse.trainers").CLTrainer


def _accelerated() -> bool:
    """Whether the library's trainer is too new for the host's copy of an old training loop."""
    return hasattr(_trainer(), "create_accelerator_and_postprocess")


def _unwrap_model() -> Any:
    return importlib.import_module("transformers.modeling_utils").unwrap_model


def _attribute(name: str, get: Callable[[Any], Any]) -> Callable[[], bool]:
    """Gives the trainer of the old loop an attribute under the name that the host knows."""

    def apply() -> bool:
        if _accelerated() or f"self.{name} = " in inspect.getsource(_trainer().__init__):
            return False
        setattr(_trainer(), name, property(get))
        return True

    return apply


_sharded_dpp = _attribute("sharded_dpp", lambda trainer: trainer.sharded_ddp is not None)
_use_amp = _attribute("use_amp", lambda trainer: trainer.do_grad_scaling)


def _log_signature() -> bool:
    trainer = _trainer()
    log = trainer._maybe_log_save_evaluate
    if _accelerated() or "ignore_keys_for_eval" not in inspect.signature(log).parameters:
        return False

    def with_default(self: Any, tr_loss: Any, model: Any, trial: Any, epoch: Any, ignore: Any = None) -> Any:
        return log(self, tr_loss, model, trial, epoch, ignore)

    trainer._maybe_log_save_evaluate = with_default
    return True


def _loop() -> bool:
    if not _accelerated():
        return False

    def train(self: Any, model_path: str | None = None, **how: Any) -> Any:
        # the host passes the pretrained model's folder, which holds no training state unless a run is to be resumed
        resumed = model_path is not None and (Path(model_path) / "trainer_state.json").is_file()
        return super(kind, self).train(resume_from_checkpoint=model_path if resumed else None, **how)

    kind = _host_trainer()
    kind.train = train
    return True


def _checkpoint() -> bool:
    if not _accelerated():
        return False
    del _host_trainer()._save_checkpoint
    return True


def _fifth() -> bool:
    return int(importlib.import_module("transformers").__version__.split(".")[0]) >= 5


def _tokenizer() -> bool:
    if not _fifth():
        return False
    kind = _host_trainer()

    def init(self: Any, *args: Any, tokenizer: Any = None, **how: Any) -> None:
        super(kind, self).__init__(*args, processing_class=tokenizer, **how)
        self.tokenizer = tokenizer

    kind.__init__ = init
    return True


def _post_init() -> bool:
    if not _fifth():
        return False
    models: Any = importlib.import_module("simcse.models")
    cl_init = models.cl_init

    def init(model: Any, config: Any) -> None:
        cl_init(model, config)
        model.post_init()

    models.cl_init = init
    return True


def _lm_head() -> bool:
    models: Any = importlib.import_module("simcse.models")
    kinds = [models.BertForCL, models.RobertaForCL]
    if "lm_head" not in inspect.getsource(kinds[0].get_output_embeddings):
        return False
    for kind in kinds:
        kind.get_output_embeddings = lambda _: None
        if not _fifth():  # the head holds its bias twice, which is saved only if it is known
            kind._tied_weights_keys = ["lm_head.decoder.bias"]
    return True


def _eval_dataset() -> bool:
    if "didn't pass an `eval_dataset`" not in inspect.getsource(importlib.import_module("transformers.trainer")):
        return False
    kind = _host_trainer()
    theirs = kind.__init__

    def init(self: Any, *args: Any, **how: Any) -> None:
        theirs(self, *args, **{"eval_dataset": [], **how})

    kind.__init__ = init
    return True


def _batch_encode_plus() -> bool:
    kind: Any = importlib.import_module("transformers.tokenization_utils_base").PreTrainedTokenizerBase
    if hasattr(kind, "batch_encode_plus"):
        return False
    kind.batch_encode_plus = kind.__call__
    return True


def _arguments() -> Any:
    return importlib.import_module("transformers.training_args").TrainingArguments


def _evaluation_strategy() -> bool:
    former, now = "--evaluation_strategy", "--eval_strategy"
    if hasattr(_arguments(), former[2:]) or not any(word.split("=")[0] == former for word in sys.argv):
        return False
    sys.argv[:] = [now + word.removeprefix(former) if word.split("=")[0] == former else word for word in sys.argv]
    return True


def _overwrite() -> bool:
    if hasattr(_arguments(), "overwrite_output_dir"):
        return False
    flag = "--overwrite_output_dir"
    _arguments().overwrite_output_dir = flag in sys.argv
    sys.argv[:] = [word for word in sys.argv if word != flag]
    return True


HOST = Host(
    name="simcse",
    title="SimCSE (princeton-nlp/SimCSE), and the folder sentence of junkangwu/ADNCE",
    seam="the cross entropy in cl_forward of simcse/models.py (ADNCE: with --loss_mode easy only)",
    tensors="z1, z2 and hard negatives z3 (B, h), not normalised, gathered from all processes with gradient for "
    "the own rows only; logits are cosines / --temp, positive in the denominator, one direction",
    spec="infonce:t=0.05",
    tested="transformers 4.16.2, 4.25.1, 4.30.2, 4.44.2, 4.57.6 and 5.23.0 with torch 2.15",
    markers=(("simcse/models.py", "def cl_forward("),),
    views=VIEWS,
    many=True,
    shims=(
        _gone("file_utils", "cached_property", lambda: functools.cached_property, "Python's own does"),
        _gone("file_utils", "torch_required", _setup_devices, "the library's newer way to set up devices is used"),
        _gone("file_utils", "is_torch_tpu_available", lambda: lambda *_: False, "no TPU"),
        _gone("trainer_utils", "default_hp_space", dict),
        _gone("optimization", "AdamW", lambda: torch.optim.AdamW),
        _gone("trainer", "_model_unwrap", _unwrap_model, "it is unwrap_model of transformers.modeling_utils"),
        Shim("sharded_dpp", "an attribute of the trainer, since spelt sharded_ddp", _sharded_dpp),
        Shim("use_amp", "an attribute of the trainer, since called do_grad_scaling", _use_amp),
        Shim("log_signature", "Trainer._maybe_log_save_evaluate wants one argument more", _log_signature),
        Shim("loop", "the host's training loop is a copy of a too old one; the library's takes its place", _loop),
        Shim("checkpoint", "the host's checkpoints belong to its loop; the library's take their place", _checkpoint),
        Shim("lm_head", "an attribute of that name, the head of --do_mlm, would pass for output embeddings", _lm_head),
        Shim(
            "post_init", "without it, which the host does not call, models of transformers 5 are incomplete", _post_init
        ),
        Shim("tokenizer", "the trainer of transformers 5 calls this argument processing_class", _tokenizer),
        Shim(
            "eval_dataset", "the library's trainer wants one, but the host evaluates on SentEval's files", _eval_dataset
        ),
        Shim(
            "batch_encode_plus", "a tokenizer's method, now its call; the host's evaluation uses it", _batch_encode_plus
        ),
        Shim(
            "evaluation_strategy", "a flag of the host's own scripts, now spelt --eval_strategy", _evaluation_strategy
        ),
        Shim("overwrite_output_dir", "transformers 5 has no such flag; the host reads it", _overwrite),
    ),
    before=before,
)
