"""Features without a trained network: k-means on image patches, and principal components."""

import torch
from torch import Tensor
from torch.nn import functional as F

PATCHES = 20_000  # from which the centers are computed
ROUNDS = 10  # of k-means
THRESHOLD = 0.5  # below which a patch does not count for a center


class PatchFeatures:
    """Soft assignments of whitened patches to k-means centers, averaged in the four quarters of the image.

    The patches that determine the centers are drawn from ``images``, ``(N, 3, height, width)`` uint8.
    Coates and Ng 2011, the importance of encoding versus training with sparse coding and vector quantization.
    """

    def __init__(self, images: Tensor, centers: int = 200, patch: int = 6, stride: int = 2, seed: int = 0) -> None:
        self.patch, self.stride = patch, stride
        generator = torch.Generator().manual_seed(seed)
        some = images[torch.randperm(len(images), generator=generator)[:500]]
        patches = self._patches(some).transpose(1, 2).flatten(0, 1)
        patches = patches[torch.randperm(len(patches), generator=generator)[:PATCHES]]
        self.mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self.whiten = vectors @ torch.diag((values + 0.1).rsqrt()) @ vectors.T
        patches = (patches - self.mean) @ self.whiten
        c = patches[torch.randperm(len(patches), generator=generator)[:centers]]
        for _ in range(ROUNDS):  # k-means by cosine
            c = F.normalize(c, dim=1)
            c = torch.zeros_like(c).index_add_(0, (patches @ c.T).argmax(1), patches) + 1e-6 * c
        self.centers = F.normalize(c, dim=1)

    def _patches(self, images: Tensor) -> Tensor:
        """Return ``(N, 3 patch^2, L)``, each patch with zero mean and unit deviation, up to noise."""
        p = F.unfold(images.float(), self.patch, stride=self.stride)
        p = p - p.mean(1, keepdim=True)
        return p / (p.var(1, keepdim=True) + 10).sqrt()

    def __call__(self, images: Tensor) -> Tensor:
        """Compute ``(N, 4 centers)`` of uint8 images of the same size."""
        weight = self.centers @ self.whiten
        side = [(n - self.patch) // self.stride + 1 for n in images.shape[2:]]
        parts = []
        for some in images.split(256):
            similar = weight @ self._patches(some) - (weight @ self.mean).unsqueeze(1)
            parts.append(F.adaptive_avg_pool2d((similar - THRESHOLD).clamp(min=0).unflatten(2, side), 2).flatten(1))
        return torch.cat(parts)


class Components:
    """The first principal components, scaled such that the mean squared norm is the number of components."""

    def __init__(self, x: Tensor, count: int = 128) -> None:
        self.mean = x.mean(0)
        _, vectors = torch.linalg.eigh(torch.cov((x - self.mean).T))
        self.axes = vectors[:, -count:]
        self.scale = ((x - self.mean) @ self.axes).square().mean().sqrt()

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.axes / self.scale  # type: ignore[no-any-return]
