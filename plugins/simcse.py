"""SimCSE (https://arxiv.org/abs/2104.08821), and the sentence part of ADNCE's code, which is a copy of it.

**The loss and its tensors.** See :data:`HOST`; ``--hard_negative_weight`` is added to the logits of a sample's own
hard negative.

**How to put an objective there.** While ``cl_forward`` runs, the embeddings that the pooler (``--pooler_type cls``: the
MLP behind it) returns get the gradient of the objective, see :mod:`counterpoint.plugins.embeddings`. The masked
language model (``--do_mlm``) has its own. Without the launcher, one line in ``train.py``, below the import of
``simcse.models``, does the same::

    counterpoint.plugins.simcse.patch("adnce:mu=0.4,t=0.07")

The objective owns the temperature; ``--temp`` is for the host's own loss, which is logged. Anchors are the first view,
as in the host, unless an objective's paper compares other pairs (debiased positives). With several processes the
objective compares the sentences of all of them, and its weight is that of the host's loss.
"""

import functools
import importlib
from typing import Any

from torch import Tensor, distributed

from counterpoint.batch.options import Keys

from .embeddings import Call, Embeddings
from .host import ONE_WAY, Host, Seam, SeamError, UnreachedError
from .shims import simcse as shims


def patch(objective: str | Seam) -> Seam:
    """Put an objective into ``simcse.models``, which must come from a clone of SimCSE or of ADNCE's ``sentence``.

    A fork's package has the name that ``--shims simcse:PACKAGE`` says.
    """
    seam = HOST.as_seam(objective)
    package = (seam.options.get("shims") or "").partition(":")[2] or "simcse"
    try:
        models: Any = importlib.import_module(f"{package}.models")
    except ModuleNotFoundError as error:
        raise SeamError(f"simcse: {error}; --shims simcse:PACKAGE names a fork's package") from error
    if not hasattr(models, "cl_forward"):
        raise SeamError(f"simcse: {models.__file__} has no cl_forward; is another package of that name in the way?")
    forward = getattr(models.cl_forward, "__wrapped__", models.cl_forward)  # the host's own, also if patched before

    @functools.wraps(forward)
    def cl_forward(model: Any, encoder: Any, **inputs: Any) -> Any:
        mode = getattr(model.model_args, "loss_mode", "easy")
        if mode != "easy":
            raise UnreachedError(f"simcse: --loss_mode {mode} computes its loss in place: run with --loss_mode easy")
        sentences = inputs["input_ids"].shape[1]
        gathers = model.training and distributed.is_available() and distributed.is_initialized()

        def call(pooled: Tensor) -> Call:
            z1, z2, *hard = pooled.reshape(-1, sentences, pooled.shape[-1]).unbind(1)
            options: dict[str, Any] = {"pairing": ONE_WAY, "gather": gathers}
            if hard:
                options["negatives"] = Keys(hard[0], own_log_weight=model.model_args.hard_negative_weight)
            return Call((z1, z2), options)

        own = f"infonce:t={float(model.sim.temp)!r}"
        pooler = model.mlp if model.pooler_type == "cls" else model.pooler
        found: list[Embeddings] = []  # the host's, then those of a guide, whose pooler is a copy
        outputs: list[Tensor] = []

        def pooled(module: Any, arguments: Any, out: Tensor) -> Tensor:
            outputs.append(out)
            if seam.own_guide is not None:
                seam.own_guide.note(module, (arguments, {}), out)
            found.append(embeddings := Embeddings(seam, models.__file__, own, call))
            return embeddings(out)[0]  # type: ignore[no-any-return]

        def conditioned(_: Any, arguments: Any, options: dict[str, Any]) -> Any:
            if outputs:
                options["cls_input"] = outputs[0].view_as(options["cls_input"])
            return arguments, options

        hooks = [pooler.register_forward_hook(pooled)]
        if hasattr(model, "discriminator"):  # DiffCSE's, whose loss brings the embeddings another gradient
            hooks.append(model.discriminator.register_forward_pre_hook(conditioned, prepend=True, with_kwargs=True))
        try:
            output = forward(model, encoder, **inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if found and getattr(output, "loss", None) is not None:
            output.loss = found[0].returned(output.loss)
        return output

    models.cl_forward = cl_forward
    seam.say(f"replacing the gradient of the embeddings in cl_forward of {models.__file__}")
    return seam


HOST = Host(
    name="simcse",
    title="SimCSE (princeton-nlp/SimCSE), and the folder sentence of junkangwu/ADNCE",
    seam="the cross entropy in cl_forward of simcse/models.py (ADNCE: with --loss_mode easy only)",
    tensors="z1, z2 and hard negatives z3 (B, h), not normalized, gathered from all processes with gradient for "
    "the own rows only; logits are cosines / --temp, positive in the denominator, one direction",
    spec="infonce:t=0.05",
    tested="transformers 4.30.2, 4.44.2, 4.57.6 and 5.23.0 with torch 2.15; November 2026",
    markers=(("simcse/models.py", "def cl_forward("),),
    views="its data sets have a sentence twice, or pairs. `counterpoint train sentence` has more views",
    inputs="sentences cannot be moved a little, or averaged",
    shims=shims.shims(),
    before=patch,
)
