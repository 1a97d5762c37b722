"""Read the data that ``counterpoint advise`` measures: arrays, text pairs, folders of images."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..items import load_array
from ..store.progress import print_line
from .settings import Settings

VIEWS = 4  # of each image
UNKNOWN = -1
UNKNOWN_WORDS = ("", "?", str(UNKNOWN))


@dataclass(frozen=True)
class Pairs:
    """Samples as rows of a table of features."""

    x: Tensor  # (rows, width) features
    views: Tensor  # (samples, P) rows that show each sample, its anchor first
    ids: Tensor | None = None  # (samples,) the same for samples that belong together; -1 where it is not known
    negatives: Tensor | None = None  # (samples, n) rows of hard negatives
    negative_ids: Tensor | None = None  # (samples, n) ids of these
    kind: str = "embeddings"  # what the features are, for the advice
    modality: str | None = None  # text, images or graphs, if it is known
    flat: bool = False  # the tokens of a batch have no row for each text, as those of StaticEmbedding
    batches: Tensor | None = None  # (samples,) the same for samples that are trained in one batch
    numbers: Tensor | None = None  # (samples,) places in the files: lines of a text from 1, rows of an array from 0

    def __len__(self) -> int:
        return len(self.views)

    def draw(self, count: int) -> "Pairs":
        """Return at most ``count`` samples, at random with a fixed seed."""
        if len(self) <= count:
            return self
        rows = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:count]
        parts: dict[str, Any] = {k: v[rows] for k, v in vars(self).items() if isinstance(v, Tensor) and k != "x"}
        return replace(self, **parts)


def from_arrays(
    a: Any, b: Any, ids: Any = None, negatives: Any = None, negative_ids: Any = None, *, kind: str = "embeddings"
) -> Pairs:
    """Take two views ``(N, d)`` of the same samples, and hard negatives ``(N, n, d)`` of the first view."""
    a, b = _numbers(a, "the first view"), _numbers(b, "the second view")
    if a.dim() != 2 or a.shape != b.shape:
        raise ValueError(f"expected two arrays (N, d) of the same shape, got {tuple(a.shape)} and {tuple(b.shape)}.")
    if negative_ids is not None and (negatives is None or ids is None):
        raise ValueError("negative_ids: need negatives and ids beside them.")
    if negative_ids is not None and _are_numbers(ids) != _are_numbers(negative_ids):
        raise ValueError("negative_ids: expected numbers if ids are numbers, or else words.")
    count = len(a)
    x, hard = torch.cat([a, b]), None
    if negatives is not None:
        n = _numbers(negatives, "negatives")
        if n.dim() != 3 or n.shape[0] != count or n.shape[2] != a.shape[1]:
            raise ValueError(f"negatives: expected ({count}, n, {a.shape[1]}), got {tuple(n.shape)}.")
        hard = len(x) + torch.arange(n.shape[0] * n.shape[1]).view(n.shape[:2])
        x = torch.cat([x, n.flatten(0, 1)])
    if not bool(x.isfinite().all()):
        raise ValueError("the embeddings have entries that are not finite.")
    views = torch.arange(2 * count).view(2, count).T
    known = None if ids is None else _ids(ids, "ids", (count,))
    of_hard = None if negative_ids is None or hard is None else _ids(negative_ids, "negative_ids", tuple(hard.shape))
    return Pairs(x, views, known, hard, of_hard, kind, numbers=torch.arange(count))


def _numbers(values: Any, name: str) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected an array of numbers, got {array.dtype}; pairs of texts are one file.")
    return torch.as_tensor(array.astype(np.float32))


def _ids(values: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return ids as numbers: equal words, of whichever argument, have equal ones."""
    values = np.asarray(values)
    if values.shape != shape and (*values.shape, 1) != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {values.shape}.")
    if values.dtype.kind in "US":
        number = int if _are_numbers(values) else lambda word: int.from_bytes(sha256(word.encode()).digest()[:7], "big")
        values = np.array([UNKNOWN if word in UNKNOWN_WORDS else number(word) for word in values.ravel().tolist()])
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected whole numbers or words, got {values.dtype}.")
    return torch.as_tensor(values.astype(np.int64)).view(shape)


def _are_numbers(ids: Any) -> bool:
    """Whether ids are whole numbers, of which a text file has the digits."""
    ids = np.asarray(ids)
    words = {*ids.ravel().tolist()} if ids.dtype.kind in "US" else set[str]()
    return all(re.fullmatch(r"-?\d{1,18}", word) for word in words.difference(UNKNOWN_WORDS))


def read(paths: Sequence[Path], settings: Settings, **known: Path | None) -> Pairs:
    """Read the data that the command line names; ``known`` are ids, negatives, negative_ids and batches."""
    parts = {name: _array(path) for name, path in known.items() if path is not None}
    batches = parts.pop("batches", None)
    if len(paths) == 2 or "negatives" in parts or paths[0].suffix == ".npy":
        if len(paths) != 2:
            hint = " Hard negatives of texts are further columns of their file." if "negatives" in parts else ""
            raise ValueError(f"expected two arrays, such as a.npy b.npy, got {' '.join(map(str, paths))}.{hint}")
        data = replace(from_arrays(*map(_array, paths), **parts), modality=settings.modality)
    elif not paths[0].is_dir() or (paths[0] / "corpus.jsonl").exists():
        data = _texts(paths[0], settings, **parts)
    elif parts:
        raise ValueError("--ids are of arrays and texts; those of images are the folders in which they lie.")
    else:
        data = _images(paths[0], settings)
    return data if batches is None else replace(data, batches=_ids(batches, "batches", (len(data),)))


def _array(path: Path) -> Any:
    """Read an array of numpy, or a text file with a word or number per line."""
    if path.suffix != ".npy":
        return np.array(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return load_array(path)


def _texts(path: Path, settings: Settings, ids: Any = None, negative_ids: Any = None) -> Pairs:
    """Read a text, its positive and perhaps hard negatives per line, or the pairs of a retrieval collection."""
    if path.is_dir():
        from ..sentence.retrieval import read as collection

        split = "train" if (path / "qrels/train.tsv").exists() else "test"
        lines = {i: [*pair] for i, pair in enumerate(collection(path, split).pairs(), 1)}
    else:
        rows = enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        lines = {i: line.split("\t") for i, line in rows if line}
    count = max(2, len(next(iter(lines.values()), ())))
    if wrong := [i for i, line in lines.items() if len(line) != count]:
        texts = "two texts with a tab between them" if count == 2 else f"{count} texts, as in the first"
        hint = "" if path.is_dir() else ". All columns after the second are hard negatives"
        raise ValueError(f"{path}, line {wrong[0]}: expected {texts}, got {len(lines[wrong[0]])}{hint}.")
    if ids is not None:
        _ids(ids, "ids", (len(lines),))  # before the model is loaded
    if negative_ids is not None:
        _ids(negative_ids, "negative_ids", (len(lines), count - 2))
    if settings.model is None:
        raise ValueError("a file of texts needs a sentence model: --model sentence-transformers/all-MiniLM-L6-v2")
    from ..sentence import frameworks  # noqa: F401  names the extra to install  # isort: skip
    from sentence_transformers import SentenceTransformer

    from ..sentence.locate import find

    model = SentenceTransformer(find(settings.model), device="cpu")
    print_line(f"embedding {count * len(lines)} texts by {settings.model}, which takes most of the time")
    a, b, *hard = (model.encode(list(texts), show_progress_bar=False) for texts in zip(*lines.values(), strict=True))
    negatives, kind = np.stack(hard, 1) if hard else None, f"embeddings by {settings.model}"
    data = from_arrays(a, b, ids, negatives, negative_ids, kind=kind)
    flat = "StaticEmbedding" in [type(part).__name__ for part in model]
    return replace(data, modality="text", numbers=torch.tensor([*lines]), flat=flat)


def _images(path: Path, settings: Settings) -> Pairs:
    """Compute features without a trained network of SimCLR's augmentations; folders are classes."""
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
    rows = torch.arange(len(x)).view(VIEWS + 1, -1).T
    known = None if bool((images.y == UNKNOWN).all()) else images.y
    part = "" if (path / "train").is_dir() else " (without the fifth of the folder that is for testing)"
    return Pairs(x, rows, known, kind=f"k-means features of patches{part}", modality="images")
