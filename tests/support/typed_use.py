"""Uses of the public API that type checkers accept, and mistakes that they report.

``make lint`` runs pyright and mypy on this file; nothing imports it. A mistake that is no longer reported makes its
"ignore" unnecessary, which is an error as well.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from typing_extensions import assert_type

import counterpoint as cp
from counterpoint import ADNCE, gradcache
from counterpoint.base import Objective

z1, z2 = torch.randn(2, 8, 16)

# names that are imported on first use have types, also where a module has the same name
assert_type(cp.objective("arcl(adnce:mu=0.7) + 0.1*dp"), Objective)
assert_type(cp.registry["adnce"](), Any)
assert_type(cp.__version__, str)
make: Callable[..., Objective] = cp.ADNCE
cached: Callable[..., Tensor] = gradcache
views: ModuleType = cp.views

# objectives
loss_fn = ADNCE(0.5, mu=0.7)
assert_type(loss_fn, ADNCE)
assert_type(loss_fn(z1, z2), Tensor)
assert_type(loss_fn(z1, z2, pairing="one_way", labels=torch.arange(8), engine="matrix", reduction="none"), Tensor)
assert_type(loss_fn.from_logits(z1 @ z2.T), Tensor)
assert_type(loss_fn.report(z1, z2), dict[str, float])
total: Objective = loss_fn + 0.1 * cp.DistancePolarization()
wrapped: Objective = cp.ArCL(cp.InfoNCE(temperature=0.2), views=4)
scheduled = cp.InfoNCE(cp.Learned(0.5))
assert_type(scheduled.temperature, float | Tensor)
assert_type(loss_fn.radius, float | None)
cp.ADNCE(mu="auto", denominator="all", weight="gamma")
cp.CLDRO(alpha=None, divergence="chi2")

# mistakes
cp.ADNEC(0.5)  # type: ignore[attr-defined]
ADNCE(temprature=0.5)  # type: ignore[call-arg]
ADNCE(mu=None)  # type: ignore[arg-type]
loss_fn(z1, z2, parings="views")  # type: ignore[call-arg]
loss_fn(z1, z2, engine=64)  # type: ignore[arg-type]
cp.objective(0.5)  # type: ignore[arg-type]
print(cp.sys)  # type: ignore[attr-defined]
loss_fn(z1, z2, pairing="oneway")  # type: ignore[arg-type]
loss_fn(z1, z2, reduction="avg")  # type: ignore[arg-type]
loss_fn.from_logits(z1 @ z2.T, empty="skip")  # type: ignore[arg-type]
cp.InfoNCE(denominator="negative")  # type: ignore[arg-type]
cp.ADNCE(mu="automatic")  # type: ignore[arg-type]
cp.HCL(detach_weights="yes")  # type: ignore[arg-type]
cp.margin(0.1, "relativ")  # type: ignore[arg-type]
cp.Schedule(0.5, 0.1, 100, "cos")  # type: ignore[arg-type]


class Halved(cp.Objective, name="halved"):
    """An objective of a user."""

    factor: cp.Real = cp.Real(default=0.5, short="f", low=0)

    def per_anchor(self, pos: Tensor, neg: cp.Negatives) -> Tensor:
        loss: Tensor = neg.logsumexp(lambda s: s / self.factor) - pos / self.factor
        return loss


halved = Halved()
assert_type(halved(z1, z2), Tensor)
