"""MoCo v1 (https://arxiv.org/abs/1911.05722) and v2 (https://arxiv.org/abs/2003.04297), facebookresearch/moco.

**The loss and its tensors.** See :data:`HOST`. Only ``q`` carries gradient, and the queue is the same in every
process. The plugin takes ``q`` where its encoder returns it, and ``k`` and the queue where ``_dequeue_and_enqueue`` is
called, after the logits and before the queue changes.

**How to put an objective there.** ``q`` gets the gradient of the objective, in spawned processes too, see
:mod:`counterpoint.plugins.embeddings`. By hand, change one line of ``main_moco.py``, below the one that wraps the
model::

    criterion = counterpoint.plugins.moco.ContrastiveLoss("hcl:t=0.4,prior=0.05", model)

The objective owns the temperature: ``--moco-t`` is for the host's own loss, which it prints.
"""

import functools
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from counterpoint.base import Objective

from .call import Call, checked_options
from .embeddings import Embeddings
from .host import Host, Seam, SeamError
from .shims.moco import SHIMS

NAME = "moco"


class ContrastiveLoss(nn.Module):
    """An objective in place of ``nn.CrossEntropyLoss`` in ``main_moco.py``.

    Args:
        objective: an objective or a spec, at its own temperature.
        model: the MoCo whose logits this is called with, bare or inside ``DistributedDataParallel``.
    """

    @checked_options
    def __init__(self, objective: Objective | str, model: Any) -> None:
        super().__init__()
        self.objective: Objective = HOST.check(objective)
        self._inputs = _Inputs(model)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self._inputs.take().loss(self.objective)


class _Inputs:
    """Record the query, keys and queue of a MoCo, and, with a ``seam``, replace the gradient of the query."""

    def __init__(self, model: Any, seam: Seam | None = None) -> None:
        moco = getattr(model, "module", model)  # inside DistributedDataParallel, or bare
        if not hasattr(moco, "_dequeue_and_enqueue"):
            raise SeamError(f"{NAME}: {type(moco).__name__} has no queue; the script that trains MoCo is main_moco.py.")
        self._recorded: dict[str, Tensor] = {}
        enqueue = moco._dequeue_and_enqueue

        def query(encoder: Any, images: Any, features: Tensor) -> Tensor:
            recorded = self._recorded = {"query": features}
            if seam is None:
                return features
            own = f"infonce:t={float(moco.T)!r}"
            # key and queue are recorded before the backward pass
            embeddings = Embeddings(seam, "MoCo.forward", own, lambda query: _call(**{**recorded, "query": query}))
            return embeddings(features)[0]  # type: ignore[no-any-return]

        def key_and_queue(keys: Tensor) -> None:
            self._recorded.update(key=keys, queue=moco.queue.clone().T)
            enqueue(keys)

        moco.encoder_q.register_forward_hook(query)
        moco._dequeue_and_enqueue = key_and_queue

    def take(self) -> Call:
        """Return, once, the call of an objective with query, key and queue of the last logits."""
        if len(self._recorded) < 3:
            raise SeamError(f"{NAME}: the criterion was called with logits that its model did not compute.")
        call, self._recorded = _call(**self._recorded), {}
        return call


def _call(query: Tensor, key: Tensor, queue: Tensor) -> Call:
    # keys have unit length already; normalizing a queue of 65536 keys in every step would be slow
    return Call((nn.functional.normalize(query, dim=1), key), {"queue": queue, "normalize": False})


def after(seam: Seam, module: ModuleType) -> None:
    """Replace the gradient of the queries of the model that the script's ``train`` gets."""
    host_train: Any = getattr(module, "train", None)
    if host_train is None:
        raise SeamError(f"{NAME}: {module.__file__} has no train(); the script that trains MoCo is main_moco.py.")
    inputs: list[_Inputs] = []

    @functools.wraps(host_train)
    def train(loader: Any, model: Any, *rest: Any) -> Any:
        if not inputs:  # train is called in every epoch
            inputs.append(_Inputs(model, seam))
        return host_train(loader, model, *rest)

    module.train = train  # type: ignore[attr-defined]
    seam.say(f"replacing the gradient of the queries in train() of {module.__file__}")


HOST = Host(
    name=NAME,
    title="MoCo v1 and v2 (facebookresearch/moco)",
    seam="q, where encoder_q of the model returns it in train() of main_moco.py",
    tensors="q, k (N, dim), of unit length, and the queue (dim, K) before the batch enters it; logits (N, 1 + K), "
    "divided by --moco-t, positive in column 0 and in the denominator; keys gathered for the queue, the loss is local",
    spec="infonce:t=0.07",
    tested="commits 3b42c2a and 132aea9 with torch 2.15, torchvision 0.29; November 2026",
    markers=(("moco/builder.py", "_dequeue_and_enqueue"),),
    views="its loader makes two crops of an image and its training loop reads two. A loop of your own can call the "
    "objective with more: loss_fn(q, k, queue=queue), q and k of shape (B, views, dim)",
    inputs="the criterion sees embeddings, not images",
    shims=SHIMS,
    after=after,
)
