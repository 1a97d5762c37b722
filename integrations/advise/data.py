"""What ``counterpoint advise`` can read: arrays, text pairs, folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .settings import Settings

VIEWS = 4  # of each image
UNKNOWN = -1


@dataclass(frozen=True)
class Pairs:
    """Samples as rows of a table of features.

    Args:
        x: ``(rows, width)`` features.
        views: ``(samples, P)`` rows that show each sample, its anchor first.
        ids: ``(samples,)`` whole numbers, the same for samples that belong together; -1 where it is not known.
        negatives: ``(samples, n)`` rows of hard negatives.
        negative_ids: ``(samples, n)`` ids of these.
        kind: what the features are, for the advice.
        text: whether they are of texts, which cannot be mixed or perturbed.
    """

    x: Tensor
    views: Tensor
    ids: Tensor | None = None
    negatives: Tensor | None = None
    negative_ids: Tensor | None = None
    kind: str = "embeddings"
    text: bool = False

    def __len__(self) -> int:
        return len(self.views)

    def draw(self, count: int) -> Pairs:
        """At most ``count`` samples, at random with a fixed seed."""
        if len(self) <= count:
            return self
        rows = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:count]

        def some(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        ids, negatives, negative_ids = map(some, (self.ids, self.negatives, self.negative_ids))
        return replace(self, views=self.views[rows], ids=ids, negatives=negatives, negative_ids=negative_ids)


def from_arrays(
    a: Any, b: Any, ids: Any = None, negatives: Any = None, negative_ids: Any = None, *, kind: str = "embeddings"
) -> Pairs:
    """Two views ``(N, d)`` of the same samples, and hard negatives ``(N, n, d)`` of the first view."""
    a, b = _numbers(a, "the first view"), _numbers(b, "the second view")
    if a.dim() != 2 or a.shape != b.shape:
        raise ValueError(f"expected two arrays (N, d) of the same shape, got {tuple(a.shape)} and {tuple(b.shape)}.")
    count = len(a)
    parts, hard = [a, b], None
    if negatives is not None:
        n = _numbers(negatives, "negatives")
        if n.dim() != 3 or n.shape[0] != count or n.shape[2] != a.shape[1]:
            raise ValueError(f"negatives: expected ({count}, n, {a.shape[1]}), got {tuple(n.shape)}.")
        parts.append(n.flatten(0, 1))
        hard = 2 * count + torch.arange(n.shape[0] * n.shape[1]).view(n.shape[:2])
    x = torch.cat(parts)
    if not bool(x.isfinite().all()):
        raise ValueError("the embeddings have entries that are not finite.")
    views = torch.stack([torch.arange(count), count + torch.arange(count)], 1)
    known = None if ids is None else _ids(ids, "ids", (count,))
    if negative_ids is not None and (hard is None or known is None):
        raise ValueError("negative_ids: need negatives and ids beside them.")
    of_hard = None if negative_ids is None else _ids(negative_ids, "negative_ids", tuple(hard.shape))  # type: ignore[union-attr]
    return Pairs(x, views, known, hard, of_hard, kind)


def _numbers(values: Any, name: str) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected an array of numbers, got {array.dtype}.")
    return torch.as_tensor(array.astype(np.float32))


def _ids(values: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    values = np.asarray(values)
    if values.shape != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {values.shape}.")
    if values.dtype.kind in "US":
        names = sorted(set(values.ravel().tolist()) - {"", "?"})
        number = {label: i for i, label in enumerate(names)}
        values = np.array([number.get(v, UNKNOWN) for v in values.ravel().tolist()]).reshape(shape)
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected whole numbers or words, got {values.dtype}.")
    return torch.as_tensor(values.astype(np.int64))


def read(
    paths: Sequence[Path], ids: Path | None, negatives: Path | None, negative_ids: Path | None, settings: Settings
) -> Pairs:
    """Read what the command line names."""
    if len(paths) == 2 or negatives or paths[0].suffix == ".npy":
        if len(paths) != 2:
            raise ValueError(f"expected two arrays, such as a.npy b.npy, got {' '.join(map(str, paths))}.")
        a, b, *known = (None if path is None else _array(path) for path in (*paths, ids, negatives, negative_ids))
        return from_arrays(a, b, *known)
    if paths[0].is_dir():
        if ids is not None:
            raise ValueError("--ids is for arrays and texts; the ids of images are the folders in which they lie.")
        return _images(paths[0], settings)
    return _texts(paths[0], None if ids is None else _array(ids), settings)


def _array(path: Path) -> Any:
    """An array of numpy, or a text file with a word or number per line."""
    if path.suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path}: not readable as an array of numpy ({error}).") from error
    words = path.read_text(encoding="utf-8").split("\n")
    return np.array(words[:-1] if words[-1] == "" else words)


def _texts(path: Path, ids: Any, settings: Settings) -> Pairs:
    """Two texts per line, with a tab between them."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    if wrong := [i for i, line in enumerate(lines, 1) if len(line) != 2]:
        raise ValueError(f"{path}, line {wrong[0]}: expected two texts with a tab between them.")
    if settings.model is None:
        raise ValueError("a file of texts needs a sentence model: --model sentence-transformers/all-MiniLM-L6-v2")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        from counterpoint.install import install

        raise ImportError(f"texts need sentence-transformers: {install('sentence')}") from error
    from ..sentence.locate import find

    model = SentenceTransformer(find(settings.model), device="cpu")
    a, b = (model.encode([line[i] for line in lines], show_progress_bar=False) for i in (0, 1))
    return replace(from_arrays(a, b, ids, kind=f"embeddings by {settings.model}"), text=True)


def _images(path: Path, settings: Settings) -> Pairs:
    """Views by SimCLR's augmentations, as features without a trained network; folders are classes."""
    from ..image.augment import Recipe
    from ..image.data import load
    from .features import Components, PatchFeatures

    images = load(str(path), "train", 32)
    images = images.draw(min(settings.limit, len(images)))
    generator = torch.Generator().manual_seed(0)
    patches, recipe = PatchFeatures(images.x), Recipe(32)
    views = [(255 * recipe(images.x, generator)).round().byte() for _ in range(VIEWS)]
    clean = patches(images.x)
    components = Components(clean, min(128, len(clean) - 1))
    x = torch.cat([components(clean), *(components(patches(view)) for view in views)])
    rows = torch.arange(len(images)).unsqueeze(1) + len(images) * torch.arange(VIEWS + 1)
    known = None if bool((images.y == UNKNOWN).all()) else images.y
    return Pairs(x, rows, known, kind="k-means features of patches")
