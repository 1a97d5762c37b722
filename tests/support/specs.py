"""Specs of every objective, registered and composed, and embeddings to call them with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import counterpoint as cp
from counterpoint.batch.options import Reduction
from counterpoint.batch.ready_made import scores_from_matrices

FAMILIES = ["gaussian", "gamma", "rayleigh", "chi2"]

DENOMINATORS = ["with_positive", "negatives", "mean", "all"]


def default(name: str) -> list[str]:
    """Specs of a registered objective at its defaults; ``T`` stands where the temperature goes."""
    kind = cp.registry[name]
    if issubclass(kind, cp.Wrapper):
        return [f"{name}({inner}:t=T)" for inner in ("infonce", "hcl")]
    return [f"{name}:t=T" if "temperature" in kind.hyper else name]


REGISTERED = [spec for name in cp.registry for spec in default(name)]

CHOICES = [
    *[f"infonce:t=T,denominator={d}" for d in DENOMINATORS[1:3]],
    "infonce:radius=0.1",
    "hcl:t=T,beta=4,prior=0.3",
    "hcl:t=T,detach_weights=true,denominator=mean",
    *[f"adnce:t=T,denominator={d}" for d in DENOMINATORS[1:]],
    # each once more: weights of the negatives, and where they are summed, are two steps
    *[f"adnce:t=T,weight={w},denominator={d}" for w, d in zip(FAMILIES, DENOMINATORS, strict=True)],
    "adnce:t=T,sigma=0.05",
    "adnce:t=T,mu=auto,sigma=auto",
    "alphacl:t=T,power=2.5,normalize=false",
    "siglip:t=T,b=-2",
    "debpos:t=T,aggregation=group_mean",
    "supcon:t=T,average=inside",
    "supcon:t=T,average=inside,denominator=negatives",
    "supcon:t=T,denominator=with_positive",
    "debpos:t=T,aggregation=group_sum",
    "nca:t=T,estimator=g0,count_positives=true",
    "robust:t=T,weight=one",
    "intcl:t=T,estimator=g1,robust_estimator=g0",
    "intnacl:t=T,base=both,detach_weights=false",
    "dp:low=0.2,high=0.9,reduction=batch_sum",
    "sogclr:t=T,average=sample,rho=0.2",
    "isogclr:t=T,average=sample",
    "dro:alpha=0.3",
    "dro:shared=true",
    "dro:divergence=chi2",
    "dro:divergence=chi2,nonneg=false",
]

COMPOSITES = [
    "infonce:t=T + 0.1*dp",
    "arcl(adnce:t=T,mu=0.9 + 0.5*dcl:t=T):views=2,denominator=worst",
    "2*(aal(mv:t=T) + -0.5*alphacl:t=T)",
    "infonce:t=learned(0.07,0.005,10) + schedule(0,1,10)*hcl:t=schedule(0.5,0.1,100,cosine)",
]

SPECS = [*REGISTERED, *CHOICES, *COMPOSITES]

# others need embeddings: positions of samples, or widths
OF_SCORES = [spec for spec in SPECS if "sogclr" not in spec and "matryoshka" not in spec]

LEARNED = [
    "sogclr:t=learned(0.3,0.01,1),rho=0.5,gamma=schedule(1,0.5,3)",
    "infonce:t=learned(0.3,0.01,1)",
    "infonce:t=schedule(0.3,0.1,9)",
    "hcl:t=learned(0.3,0.01,1),beta=learned(1,0.1,3),detach_weights=true",
    "adnce:t=learned(0.3,0.01,1),mu=learned(0.4),sigma=learned(0.5)",
    "adnce:t=0.2,mu=learned(0.4),sigma=learned(0.1)",
    "adnce:t=0.2,mu=learned(2),weight=gamma",
    "alphacl:t=learned(0.3),power=learned(2)",
    "siglip:t=learned(0.3),b=learned(-1,-5,0)",
    "alphacl:t=schedule(0.3,1,3),normalize=false",
    "dp:low=learned(0.1,0.01,0.2),high=learned(0.6,0.5,0.9)",
    "mv:t=learned(0.3)",
    "dro:radius=learned(0.1)",
    "dro:divergence=chi2,radius=learned(0.1)",
]


def at(spec: str, t: float = 0.5) -> cp.Objective:
    return cp.objective(spec.replace("=T", f"={t}"))


def embeddings(views: int = 4, batch: int = 6, width: int = 8, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(views, batch, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def difficult(name: str, batch: int = 64, width: int = 128) -> torch.Tensor:
    """Two views that are rounded badly."""
    random = torch.Generator().manual_seed(0)
    z = torch.randn(2, batch, width, generator=random)
    z[1] = z[0] + 0.1 * z[1]  # aligned
    if name == "duplicates":
        z[:, batch // 2 :] = z[:, : batch // 2]
    if name == "identical":
        z[:] = z[:1, :1]
    if name == "opposite":
        z[:] = z[:1, :1]
        z[1] *= -1
        z += 1e-3 * torch.randn(z.shape, generator=random)
    if name == "zero":
        z[:, 0] = 0
    if name == "large":
        z *= 1e4
    return z


def keyed(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, from the reference's, which have a name for each property of keys."""
    options = dict(options)
    for base, prefix, own in (
        ("queue", "queue", ()),
        ("negatives", "negative", ("negative_weight", "shared_negatives")),
    ):
        names = {f"{prefix}_{field}": field for field in ("ids", "guide", "log_q")}
        names |= {"positives": "positives"} if base == "queue" else {}
        names |= dict(zip(own, ("own_log_weight", "shared"), strict=False))
        fields = {field: options.pop(name) for name, field in names.items() if name in options}
        if base in options:
            options[base] = cp.Keys.of(options[base])._replace(**fields)
    return options


def called(loss_fn: Any, views: Sequence[Any], options: dict[str, Any]) -> Any:
    """Call an objective with the reference's arguments; documents are the second view."""
    given = keyed(options)
    documents = [given.pop("queue")] if "positives" in options else []
    return loss_fn(*views, *documents, **given)


def of_scores(
    loss_fn: cp.Objective,
    pos: torch.Tensor,
    neg: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    pos_mask: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    adversarial: Sequence[torch.Tensor] | None = None,
    mixed: Sequence[torch.Tensor] | None = None,
    reduction: Reduction = "mean",
) -> torch.Tensor:
    """The loss of scores, also of adversarial and mixed views, or with other positives ``v`` in estimators."""
    scores = scores_from_matrices(pos, neg, mask, pos_mask, None)
    scores.v = v
    if adversarial is not None:
        scores.adversarial = cp.Scores(adversarial[0], cp.MatrixNegatives(adversarial[1]))
    for s, keys in zip(mixed[0].unbind(1), mixed[1].unbind(1), strict=True) if mixed is not None else ():
        scores.mixed.append(cp.Scores(s.unsqueeze(1), cp.MatrixNegatives(keys)))
    return loss_fn.compute_loss(lambda _: scores, pos.device, reduction=reduction)


def of_tiles(edge: int | None) -> str:
    """The value of ``engine=`` for tiles of this edge; 0 for a matrix, None to choose."""
    return "auto" if edge is None else f"tiles:{edge}" if edge else "matrix"
