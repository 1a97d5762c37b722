"""MoCo v1 and v2 (facebookresearch/moco): a query, a momentum encoder's key, and a queue of earlier keys.

**Where the loss sits.** ``main_moco.py`` makes ``criterion = nn.CrossEntropyLoss()`` in each process that it spawns and
hands it to ``train``, which calls it with the logits and labels that ``MoCo.forward`` returns.

**Which tensors are there.** Logits ``(N, 1 + K)``, divided by the temperature ``model.T`` (``--moco-t``), the positive
in column 0 and so in the denominator. ``forward`` makes them from the query ``q`` and the key ``k``, ``(N, dim)``, of
unit length, and the queue, ``(dim, K)``, which is the same in every process: keys are gathered when they enter it,
queries are not. Only ``q`` carries gradient. Here ``q`` is taken where its encoder returns it, and ``k`` and the queue
where ``_dequeue_and_enqueue`` is called, after the logits and before the queue changes.

**How an objective gets there.** ``train`` is handed another criterion, in spawned processes too::

    counterpoint inject moco --objective "hcl:t=0.2,prior=0.05" -- main_moco.py --mlp --moco-t 0.2 ...

or, with one line of ``main_moco.py`` changed, below the one that wraps the model::

    criterion = counterpoint.plugins.moco.Criterion("hcl:t=0.2,prior=0.05", model)

The objective owns the temperature: ``--moco-t`` scales the logits from which the host prints its accuracies, no more.

**What cannot be injected.** More than two views: ``TwoCropsTransform`` makes two crops and ``train`` reads two.
Objectives of attacked or mixed images: the criterion sees embeddings, not images.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.objective import Objective, as_objective, objective

from .host import HOST as OWN_LOSS
from .host import Host, Seam, SeamError, Shim, refuse

NAME = "moco"
TWO_VIEWS = (
    "its loader makes two crops of an image and its training loop reads two. A loop of your own can call the objective "
    "with more: loss_fn(q, k, queue=queue), q and k of shape (B, views, dim)"
)


def bare(model: Any) -> Any:
    """The MoCo inside ``DistributedDataParallel``, or the one given."""
    return getattr(model, "module", model)


def own_spec(model: Any) -> str:
    """The host's own loss at the temperature of this model."""
    return f"infonce:t={float(bare(model).T)!r}"


def check(loss_fn: Objective) -> Objective:
    """Refuses objectives that look at more than the host's two crops."""
    return refuse(loss_fn, NAME, inputs="the criterion sees embeddings, not images", two_views=TWO_VIEWS)


class Seen:
    """What a MoCo computes its logits from."""

    def __init__(self, model: Any) -> None:
        moco = bare(model)
        if not hasattr(moco, "_dequeue_and_enqueue"):
            raise SeamError(f"{NAME}: {type(moco).__name__} has no queue; the script that trains MoCo is main_moco.py.")
        self._found: dict[str, Tensor] = {}
        found, enqueue = self._found, moco._dequeue_and_enqueue

        def query(encoder: Any, images: Any, features: Tensor) -> None:
            found["query"] = features

        def key_and_queue(keys: Tensor) -> None:
            found.update(key=keys, queue=moco.queue.clone().T)
            enqueue(keys)

        moco.encoder_q.register_forward_hook(query)
        moco._dequeue_and_enqueue = key_and_queue

    def take(self) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        """Arguments for an objective: query, key and queue of the logits that were computed last, once."""
        if len(self._found) < 3:
            raise SeamError(f"{NAME}: the criterion is called with logits that its model has not made.")
        query, key, queue = (self._found.pop(name) for name in ("query", "key", "queue"))
        # the others have their length already; a queue of 65536 keys is not to be normalised in every step
        return (nn.functional.normalize(query, dim=1), key), {"queue": queue, "normalize": False}


class Criterion(nn.Module):
    """Takes the place of ``nn.CrossEntropyLoss`` in ``main_moco.py``.

    Args:
        objective: an objective or a spec, at its own temperature.
        model: the MoCo whose logits this is called with, bare or inside ``DistributedDataParallel``.
    """

    def __init__(self, objective: Objective | str, model: Any) -> None:
        super().__init__()
        self.objective = check(as_objective(objective))
        self._seen = Seen(model)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        args, how = self._seen.take()
        loss: Tensor = self.objective(*args, **how)
        return loss


def after(seam: Seam, module: ModuleType) -> None:
    """Hands the script's ``train`` another criterion."""
    theirs: Any = getattr(module, "train", None)
    if theirs is None:
        raise SeamError(f"{NAME}: {module.__file__} has no train(); the script that trains MoCo is main_moco.py.")
    if seam.spec != OWN_LOSS:
        check(objective(seam.spec))  # now, rather than in the processes that are spawned
    seen: list[Seen] = []

    @functools.wraps(theirs)
    def train(loader: Any, model: Any, criterion: Any, *rest: Any) -> Any:
        if not seen:  # called in every epoch
            seen.append(Seen(model))

        def ours(output: Tensor, target: Tensor) -> Tensor:
            args, how = seen[0].take()
            return seam.loss(seam.objective(own_spec(model)), lambda: criterion(output, target), *args, **how)

        return theirs(loader, model, ours, *rest)

    module.train = train  # type: ignore[attr-defined]
    seam.say(f"replaced the criterion of train() in {module.__file__}")


# ---- shims -----------------------------------------------------------------------------------------

_links: list[tempfile.TemporaryDirectory[str]] = []


class _Viewed(torch.Tensor):
    """A tensor whose ``view`` copies where it has to, as ``reshape`` does."""

    def view(self, *shape: Any) -> Tensor:
        return self.reshape(*shape)


def _reshaping(accuracy: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """``accuracy`` with what it computes from its logits allowed to be viewed."""

    @functools.wraps(accuracy)
    def wrapped(output: Tensor, *args: Any, **how: Any) -> list[Tensor]:
        found = accuracy(output.detach().as_subclass(_Viewed), *args, **how)
        return [x.as_subclass(torch.Tensor) for x in found]

    return wrapped


def _orders_kept() -> bool:
    """Whether comparisons keep the memory order of their operands, as they do in today's torch."""
    turned = torch.zeros(2, 3, dtype=torch.long).T
    return not turned.eq(turned).is_contiguous()


def _accuracy(module: ModuleType) -> None:
    module.accuracy = _reshaping(module.accuracy)  # type: ignore[attr-defined]


def _internal_name() -> bool:
    """A package ``deeplearning.cross_image_ssl`` that holds the clone's ``moco``, on disk for spawned processes."""
    script = Path(sys.argv[0])
    inside = "deeplearning.cross_image_ssl"
    if not script.is_file() or f"import {inside}" not in script.read_text():
        return False
    if importlib.util.find_spec("deeplearning") is not None:
        return False
    _links.append(tempfile.TemporaryDirectory())
    package = Path(_links[-1].name, *inside.split("."))
    package.mkdir(parents=True)
    (package / "moco").symlink_to(script.resolve().parent / "moco", target_is_directory=True)
    sys.path.insert(1, _links[-1].name)
    return True


HOST = Host(
    name=NAME,
    title="MoCo v1 and v2 (facebookresearch/moco)",
    seam="the criterion that main_moco.py hands to train()",
    tensors="q, k (N, dim), of unit length, and the queue (dim, K) before the batch enters it; logits (N, 1 + K), "
    "divided by --moco-t, positive in column 0 and in the denominator; keys gathered for the queue, the loss is local",
    spec="infonce:t=0.07",
    tested="commits 3b42c2a and 132aea9 with torch 2.15, torchvision 0.29",
    markers=(("moco/builder.py", "_dequeue_and_enqueue"),),
    views=f"two: {TWO_VIEWS}",
    shims=(
        Shim(
            "accuracy",
            "accuracy() takes a view where today's torch needs a copy",
            _orders_kept,
            _accuracy,
        ),
        Shim(
            "internal_name",
            "commits since 2024-12 import the package by a name of the authors' company",
            _internal_name,
        ),
    ),
    after=after,
)
