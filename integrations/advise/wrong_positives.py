"""Estimate the share of positive pairs that are wrong, from similarities alone.

A wrong pair is as similar as a random pair. So rank each positive among negatives: the ranks of wrong ones are uniform
between 0 and 1, and hardly any right one has a rank near 0. The share of the uniform part is what is asked for: the
share of true null hypotheses among p-values, of which Storey 2002 (https://doi.org/10.1111/1467-9868.00346) counts the
positives below a low quantile of the negatives. That counts right pairs that look random, too, and uses few of the
pairs; a mixture of the uniform and increasing densities does better on both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

POWERS = (0, *(2**i for i in range(10)))  # k of the densities (k + 1) u^k of a rank; 0 is that of wrong pairs
BINS, ROUNDS, DRAWS = 100, 300, 200
COMPONENTS, RIDGE = 64, 0.1


def ranks(similar: Tensor) -> Tensor:
    """Return the rank of each positive among the negatives, in ``(0, 1)``, of similarities ``(n, n)``."""
    negatives = similar[~torch.eye(len(similar), dtype=torch.bool)].sort().values
    return (torch.searchsorted(negatives, similar.diagonal().contiguous()) + 0.5) / (len(negatives) + 1)


def share(ranks: Sequence[Tensor]) -> tuple[float, float, float]:
    """Estimate the share of the uniform part, and its 95 % interval over pairs drawn again with a fixed seed."""
    u = torch.cat(list(ranks)).double()
    counts = torch.histc(u, BINS, 0, 1)
    drawn = torch.distributions.Multinomial(len(u), counts, validate_args=False)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        some = torch.cat([counts.unsqueeze(0), drawn.sample((DRAWS,))])
    found, *others = (round(x, 4) for x in _uniform_part(some).tolist())
    low, *_, high = sorted(others)[round(0.025 * DRAWS) : round(0.975 * DRAWS)]
    return found, low, max(high, round(1 - 0.025 ** (1 / len(u)), 4))  # as much may be there if none was drawn


def _uniform_part(counts: Tensor) -> Tensor:
    """Return the weight of the uniform density in the mixture that fits each of ``(draws, BINS)`` histograms, by EM."""
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.double)
    density = torch.stack([(edges ** (k + 1)).diff() for k in POWERS])  # (powers, BINS)
    weight = torch.full((len(counts), len(POWERS)), 1 / len(POWERS), dtype=torch.double)
    counts = counts / counts.sum(1, keepdim=True)
    for _ in range(ROUNDS):
        weight = weight * ((counts / (weight @ density)) @ density.T)
    return weight[:, 0]


class Canonical:
    """The likelihood ratio of right and random pairs, if the two views of a sample were jointly Gaussian.

    Both views ``a`` and ``b`` of training pairs, ``(n, width)``, are projected on the directions in which they agree
    most, where the ``i``-th has correlation ``r_i``. Rows are scaled to one length first, as the norm of features says
    little about a pair.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        a, b = self._scaled(a), self._scaled(b)
        both = torch.cat([a, b])
        total = both.T @ both / len(both)
        values, vectors = torch.linalg.eigh(total + RIDGE * total.diagonal().mean() * torch.eye(len(total)))
        whiten = vectors * values.rsqrt()
        agreement, directions = torch.linalg.eigh(whiten.T @ (a.T @ b + b.T @ a) @ whiten / len(both))
        self.directions = whiten @ directions[:, -COMPONENTS:]
        self.correlation = agreement[-COMPONENTS:].clamp(0, 0.999)

    @staticmethod
    def _scaled(x: Tensor) -> Tensor:
        return normalize(x, dim=1) * x.shape[1] ** 0.5  # type: ignore[no-any-return]

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return log likelihood ratios ``(n, n)`` of each row of ``a`` with each row of ``b``, up to a constant."""
        x, y, r = self._scaled(a) @ self.directions, self._scaled(b) @ self.directions, self.correlation
        rest = 1 - r**2
        squares = [(z**2 @ (r**2 / rest)) / 2 for z in (x, y)]
        return (x * (r / rest)) @ y.T - squares[0].unsqueeze(1) - squares[1]  # type: ignore[no-any-return]
