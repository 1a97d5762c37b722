"""What tests of identities share: strategies, random inputs, and values compared with their gradients."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import counterpoint as cp

SEED = st.integers(0, 2**32 - 1)
T = st.floats(0.05, 2.0)
PRIOR = st.floats(0.0, 0.5)
DENOMINATORS = ["with_positive", "negatives", "mean"]
FAMILIES = ["gaussian", "gamma", "rayleigh", "chi2"]
# every objective and every choice that has a formula of its own
FORMULAS = [
    *[f"infonce:t=0.3,denominator={d}" for d in DENOMINATORS],
    "infonce:radius=0.1",
    "dcl:t=0.3,prior=0.2",
    "hcl:t=0.3,beta=0.7",
    "hcl:t=0.5,detach_weights=true,denominator=mean",
    *[f"adnce:t=0.3,mu=0.9,weight={w},denominator=all" for w in FAMILIES],
    *[f"adnce:t=0.3,mu=0.9,denominator={d}" for d in DENOMINATORS],
    "adnce:t=0.3,mu=auto,sigma=auto",
    "alphacl:t=0.5",
    "siglip:t=0.5,b=-1",
    "alphacl:t=0.5,power=2.5,normalize=false",
    "mv:t=0.4",
    "dro:radius=0.1",
    "dro:radius=0.1,shared=true",
    "dro:radius=0.1,alpha=0.3",
    "dro:radius=0.2,divergence=chi2",
    "dro:radius=0.2,divergence=chi2,nonneg=false",
    *[f"debpos:t=0.5,aggregation={a}" for a in ("combination", "group_mean", "group_sum")],
    "debpos:t=0.5,prior=0.3,floor=false",
    *[
        f"supcon:t=0.3,average={a},denominator={d}"
        for a in ("outside", "inside")
        for d in ("positives", "with_positive", "negatives")
    ],
    *[f"nca:t=0.4,estimator={g}" for g in ("g0", "g1", "g2")],
    "nca:t=0.4,count_positives=true",
    "mixnca:t=0.4,lam=0.7",
    "robust:t=0.4",
    "intcl:t=0.4,alpha=0.5",
    "intnacl:t=0.4,base=both",
    *[f"dp:reduction={r}" for r in ("sum", "mean", "mean_full", "batch_sum")],
    "arcl(infonce:t=0.3)",
    "arcl(hcl:t=0.3):denominator=worst",
    "aal(adnce:t=0.3)",
    "infonce:t=0.3 + 0.1*dp",
]
ADVERSARIAL = ("robust", "intcl", "intnacl")
WITHOUT_ATTACK = [s for s in FORMULAS if not s.startswith(ADVERSARIAL)]


def prop(examples: int = 15, **strategies):
    def decorate(test):
        return settings(max_examples=examples, deadline=None, derandomize=True, database=None)(
            given(**strategies)(test)
        )

    return decorate


def cosines(seed: int, anchors: int = 5, positives: int = 1, negatives: int = 7):
    g = torch.Generator().manual_seed(seed)
    return tuple(
        (torch.rand(anchors, k, generator=g, dtype=torch.float64) * 1.9 - 0.95).requires_grad_()
        for k in (positives, negatives)
    )


def embeddings(seed: int, views: int = 2, batch: int = 5, width: int = 4):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(views, batch, width, generator=g, dtype=torch.float64).requires_grad_()


def gradients(value, leaves):
    actual = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, actual, strict=True)]


def same(left, right, *leaves, rtol=1e-9, atol=1e-10):
    """Assert equal values, and equal gradients with respect to ``leaves``."""
    torch.testing.assert_close(left, right, rtol=rtol, atol=atol)
    if leaves:
        for a, b in zip(gradients(left.sum(), leaves), gradients(right.sum(), leaves), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def two_batches(loss_fn: cp.Objective):
    """Train on two batches of ragged scores; yield scores, mask, valid negatives and loss of each."""
    for seed in (0, 1):
        pos, neg = cosines(seed, 6, 1, 50)
        mask = torch.rand(6, 50, generator=torch.Generator().manual_seed(seed)) < 0.8
        loss = loss_fn.from_scores(pos, neg, mask)
        yield pos, neg, mask, neg.detach()[mask], loss
