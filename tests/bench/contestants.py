"""The losses that :mod:`tests.bench.losses` compares: ours, PyTorch's, and those of other libraries."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

import counterpoint as cp

Loss = Callable[[Tensor, Tensor], Tensor]
OURS = "infonce:t=T"
ONE_WAY = f"{OURS},pairing=one_way"
SIGLIP = "siglip:t=learned(T),b=learned(-10,-100,100),pairing=one_way"


@dataclass(frozen=True)
class Contestant:
    """A loss of two views.

    Args:
        name: as in the table.
        make: the loss for a temperature and a batch size.
        rival: which of ours it computes the same as, roughly.
        matrices: how many matrices of all pairs it holds at most, for what does not fit.
        largest: batch size up to which it is worth a try.
    """

    name: str
    make: Callable[[float, int], Loss]
    rival: str = OURS
    matrices: float = 0
    largest: int = 2**20


Keys = Callable[[Tensor], Tensor]


def of_spec(
    spec: str, t: float, keys: Keys, exact: bool = False, normalize: bool = True, library: ModuleType = cp
) -> Loss:
    """Return an objective on the pairing and with the engine that its spec ends with.

    Args:
        spec: with ``T`` for the temperature.
        t: the temperature.
        keys: returns the queue.
        exact: in float64, as a matrix.
        normalize: whether it normalizes the embeddings.
        library: this one, or another version of it; see :func:`version`.
    """
    # neither is part of a spec, but both are part of what is compared
    spec, *further = re.split(r",(?=pairing=|engine=)", spec)
    how: dict[str, Any] = dict(option.split("=") for option in further)
    how |= {} if normalize else {"normalize": False}
    pairing = how.pop("pairing", None)
    loss = library.objective(spec.replace("=T", f"={t}").replace("(T", f"({t}"))
    if exact:
        loss, how = loss.double(), how | {"engine": "matrix"}
    if pairing == "queue":
        return lambda a, b: loss.to(a.device)(a, b, queue=keys(a), **how)  # type: ignore[no-any-return]
    return lambda a, b: loss.to(a.device)(a, b, pairing=pairing, **how)  # type: ignore[no-any-return]


def ours(specs: list[str], keys: Keys, normalize: bool, before: Path | None) -> list[Contestant]:
    """Our objectives, each as its spec says, and those of another checkout, whose rivals they are."""

    def make(spec: str, library: ModuleType) -> Callable[[float, int], Loss]:
        return lambda t, size: of_spec(spec, t, keys, normalize=normalize, library=library)

    earlier = [] if before is None else [(spec, make(spec, version(before))) for spec in specs]
    return [Contestant(s, make(s, cp)) for s in specs] + [Contestant(f"before {s}", m, s) for s, m in earlier]


def version(checkout: Path) -> ModuleType:
    """Import the core of another checkout beside this one, under a name that it takes for its own."""
    name, core = f"{cp.__name__}.before", checkout / "core"
    spec = importlib.util.spec_from_file_location(name, core / "__init__.py", submodule_search_locations=[str(core)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cross_entropy(t: float, size: int) -> Loss:
    """What one writes by hand: one matrix of logits."""
    labels = torch.arange(2 * size).roll(size)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        nonlocal labels
        labels = labels.to(a.device)
        z = functional.normalize(torch.cat([a, b]))
        return functional.cross_entropy((z @ z.T / t).fill_diagonal_(float("-inf")), labels)

    return loss


def queue_of(length: int) -> Callable[[Tensor], Tensor]:
    """Return a function from embeddings to as many keys of their width, always the same."""
    drawn: dict[Any, Tensor] = {}

    def keys(like: Tensor) -> Tensor:
        kind = like.shape[1], like.dtype
        if kind not in drawn:
            z = torch.randn(length, like.shape[1], generator=torch.Generator().manual_seed(1))
            drawn[kind] = functional.normalize(z).to(like.device, like.dtype)
        return drawn[kind]

    return keys


def unit(z: Tensor, normalize: bool) -> Tensor:
    return functional.normalize(z) if normalize else z


def paired_cross_entropy(
    pairing: str, keys: Callable[[Tensor], Tensor], normalize: bool = True
) -> Callable[[float, int], Loss]:
    """What one writes by hand for a pairing with separate keys: one matrix of logits."""

    def make(t: float, size: int) -> Loss:
        labels = torch.arange(size)

        def loss(a: Tensor, b: Tensor) -> Tensor:
            nonlocal labels
            labels = labels.to(a.device)
            a, b = unit(a, normalize), unit(b, normalize)
            if pairing == "queue":
                b = b.detach()
                logits = torch.cat([(a * b).sum(1, keepdim=True), a @ keys(a).T], 1) / t
                return functional.cross_entropy(logits, torch.zeros_like(labels))
            logits = a @ b.T / t
            one_way = functional.cross_entropy(logits, labels)
            return one_way if pairing == "one_way" else (one_way + functional.cross_entropy(logits.T, labels)) / 2

        return loss

    return make


def linear_cross_entropy(pairing: str, normalize: bool) -> list[Contestant]:
    """PyTorch's chunked loss, which has its gradients after the forward pass."""
    try:
        from torch.nn import LinearCrossEntropyOptions
    except ImportError:
        raise ImportError("this torch does not have it in chunks") from None
    if pairing == "queue":
        raise ImportError("its targets are keys that all rows share, and MoCo's positives are not")

    def make(t: float, size: int) -> Loss:
        labels, options = torch.arange(size), LinearCrossEntropyOptions()

        def directed(a: Tensor, b: Tensor) -> Tensor:
            return functional.linear_cross_entropy(a / t, b, labels, options=options)  # type: ignore[no-any-return]

        def loss(a: Tensor, b: Tensor) -> Tensor:
            nonlocal labels
            labels = labels.to(a.device)
            a, b = unit(a, normalize), unit(b, normalize)
            return directed(a, b) if pairing == "one_way" else (directed(a, b) + directed(b, a)) / 2

        return loss

    return [Contestant("F.linear_cross_entropy", make, f"{OURS},pairing={pairing}", matrices=0.5)]


def lightly() -> list[Contestant]:
    from lightly.loss import DCLLoss, NTXentLoss

    return [
        Contestant("lightly NTXentLoss", lambda t, size: NTXentLoss(t), matrices=5.2),
        # its loss is ours with the positive left out of the denominator
        Contestant("lightly DCLLoss", lambda t, size: DCLLoss(t), matrices=5.7),
    ]


def pml() -> list[Contestant]:
    from pytorch_metric_learning.losses import NTXentLoss, SupConLoss

    def make(kind: Any) -> Callable[[float, int], Loss]:
        def with_labels(t: float, size: int) -> Loss:
            loss, labels = kind(temperature=t), torch.arange(size).repeat(2)
            return lambda a, b: loss(torch.cat([a, b]), labels)

        return with_labels

    return [
        Contestant("pml SupConLoss", make(SupConLoss), matrices=13.8),
        Contestant("pml NTXentLoss", make(NTXentLoss), largest=64),
    ]


def st() -> list[Contestant]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses as module

    ways = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")

    def make(cached: bool) -> Callable[[float, int], Loss]:
        def of_embeddings(t: float, size: int) -> Loss:
            model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
            if cached:
                kind = module.CachedMultipleNegativesRankingLoss
                loss = kind(model, scale=1 / t, directions=ways, mini_batch_size=256)
                return lambda a, b: loss.calculate_loss([[*a.split(256)], [*b.split(256)]])
            loss = module.MultipleNegativesRankingLoss(model, scale=1 / t, directions=ways)
            return lambda a, b: loss.compute_loss_from_embeddings([a, b], None)

        return of_embeddings

    # B anchors with 4 B keys each: as many pairs as 2 B anchors with 2 B keys
    return [
        Contestant("st MNRL, 4 directions", make(False), matrices=5.1),
        Contestant("st CachedMNRL, 4 directions", make(True), matrices=2.4),
    ]


def official(path: Path) -> list[Contestant]:
    """The losses of a clone of junkangwu/ADNCE, folder image."""
    spec = importlib.util.spec_from_file_location("official_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(estimator: str, tau_plus: float, beta: float) -> Callable[[float, int], Loss]:
        def of_views(t: float, size: int) -> Loss:
            loss = module.DRO_Loss(t, tau_plus, size, beta, estimator)
            return lambda a, b: loss(functional.normalize(a), functional.normalize(b))[0]

        return of_views

    return [
        Contestant("official ADNCE", make("adnce", 0.7, 1.0), "adnce:t=T", 10.7),
        Contestant("official HCL", make("HCL", 0.1, 1.0), "hcl:t=T", 8.6),
    ]


def infcl(pairing: str) -> list[Contestant]:
    """Inf-CL's kernels, which need a GPU: one or both directions between two views."""
    from inf_cl import cal_flash_loss

    def make(t: float, size: int) -> Loss:
        def loss(a: Tensor, b: Tensor) -> Tensor:
            a, b = (functional.normalize(x, dim=1) for x in (a, b))
            labels, scale = torch.arange(size, device=a.device), torch.tensor(1 / t, device=a.device)
            head = min(256, a.shape[1])
            directed = [cal_flash_loss(x, y, labels, scale, head).mean() for x, y in ((a, b), (b, a))]
            return directed[0] if pairing == "one_way" else (directed[0] + directed[1]) / 2  # type: ignore[no-any-return]

        return loss

    return [Contestant("infcl cal_flash_loss", make, f"{OURS},pairing={pairing}")]


def cce(pairing: str) -> list[Contestant]:
    """Apple's cut cross entropy, whose kernels need a GPU; by default it drops gradients that are small."""
    from cut_cross_entropy import linear_cross_entropy

    def make(eps: str | None) -> Callable[[float, int], Loss]:
        def of_views(t: float, size: int) -> Loss:
            def directed(a: Tensor, b: Tensor) -> Tensor:
                labels = torch.arange(size, device=a.device)
                return linear_cross_entropy(a / t, b, labels, filter_eps=eps)  # type: ignore[no-any-return]

            def loss(a: Tensor, b: Tensor) -> Tensor:
                a, b = functional.normalize(a), functional.normalize(b)
                return directed(a, b) if pairing == "one_way" else (directed(a, b) + directed(b, a)) / 2

            return loss

        return of_views

    own = f"{OURS},pairing={pairing}"
    return [Contestant("cce", make("high"), own), Contestant("cce, all gradients", make(None), own)]


def siglip_kernel(pairing: str) -> list[Contestant]:
    """siglip-kernel's sigmoid loss, which needs a GPU; scale and bias are learned, as in ours."""
    from siglip_kernel import fused_siglip_loss

    def make(t: float, size: int) -> Loss:
        log_scale, bias = torch.tensor(-math.log(t), requires_grad=True), torch.tensor(-10.0, requires_grad=True)

        def loss(a: Tensor, b: Tensor) -> Tensor:
            a, b = functional.normalize(a), functional.normalize(b)
            return fused_siglip_loss(a, b, log_scale.to(a.device), bias.to(a.device))  # type: ignore[no-any-return]

        return loss

    return [Contestant("siglip_kernel", make, SIGLIP)]


def open_clip_softmax() -> list[Contestant]:
    """open_clip's ClipLoss on one process, and as each of several processes computes it, in a group of one."""
    from open_clip.loss import ClipLoss

    def make(gathered: bool) -> Callable[[float, int], Loss]:
        def of_views(t: float, size: int) -> Loss:
            if gathered and not dist.is_initialized():
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            # it gathers if it is told of two processes, from as many as there are
            loss_fn = ClipLoss(True, True, cache_labels=True, rank=0, world_size=2) if gathered else ClipLoss()

            def loss(a: Tensor, b: Tensor) -> Tensor:
                a, b = functional.normalize(a), functional.normalize(b)
                return loss_fn(a, b, torch.tensor(1 / t, device=a.device))  # type: ignore[no-any-return]

            return loss

        return of_views

    own = f"{OURS},pairing=symmetric"
    local = Contestant("open_clip ClipLoss", make(False), own, matrices=6)
    return [local, Contestant("open_clip ClipLoss, gathered", make(True), own, matrices=6)]


def open_clip(pairing: str) -> list[Contestant]:
    """open_clip's sigmoid loss, as a matrix and in chunks of anchors; scale and bias are learned, as in ours.

    Release 3.3.0 does not have chunks; put ``src`` of a clone on ``PYTHONPATH``.
    """
    if pairing == "symmetric":
        return open_clip_softmax()
    from open_clip.loss import SigLipLoss

    def make(chunk: int) -> Callable[[float, int], Loss]:
        def of_views(t: float, size: int) -> Loss:
            loss_fn = SigLipLoss(chunk_size=chunk) if chunk else SigLipLoss()
            scale, bias = torch.tensor(1 / t, requires_grad=True), torch.tensor(-10.0, requires_grad=True)

            def loss(a: Tensor, b: Tensor) -> Tensor:
                a, b = functional.normalize(a), functional.normalize(b)
                return loss_fn(a, b, scale.to(a.device), bias.to(a.device))  # type: ignore[no-any-return]

            return loss

        return of_views

    sizes = (256, 1024) if "chunk_size" in inspect.signature(SigLipLoss).parameters else ()
    chunked = [Contestant(f"open_clip SigLipLoss, by {n} rows", make(n), SIGLIP, matrices=3) for n in sizes]
    return [Contestant("open_clip SigLipLoss", make(0), SIGLIP, matrices=5), *chunked]


VIEWS = {"lightly": lightly, "pml": pml, "st": st}
# Peers of the pairings in which the two views play different parts.
DIRECTED = {"infcl": infcl, "cce": cce, "open_clip": open_clip, "siglip_kernel": siglip_kernel}
PEERS = [*VIEWS, *DIRECTED]


def contestants(given: argparse.Namespace) -> list[Contestant]:
    keys = queue_of(given.queue)
    normalize = not given.unit
    own_losses = ours(given.losses, keys, normalize, given.before)
    if given.pairing == "views":
        field = [*own_losses, Contestant("F.cross_entropy", cross_entropy, matrices=3.2)]
        one_way = paired_cross_entropy("one_way", keys)
        field.append(Contestant("F.cross_entropy, one_way", one_way, ONE_WAY, matrices=0.8))
        peers: dict[str, Callable[[], list[Contestant]]] = {name: VIEWS[name] for name in given.peers if name in VIEWS}
    else:
        field, own = own_losses, f"{OURS},pairing={given.pairing}"
        by_hand = paired_cross_entropy(given.pairing, keys, normalize)
        field.append(Contestant("F.cross_entropy", by_hand, own, matrices=3.2))
        peers = {"F.linear_cross_entropy": partial(linear_cross_entropy, given.pairing, normalize)}
        sigmoid = {"siglip_kernel"} if given.pairing == "symmetric" else set()
        able = () if given.pairing == "queue" else set(DIRECTED) - sigmoid
        peers |= {name: partial(DIRECTED[name], given.pairing) for name in given.peers if name in able}
    for name, load in peers.items():
        try:
            field += load()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return field + (official(given.official) if given.official else [])
