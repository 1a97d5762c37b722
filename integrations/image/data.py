"""Images in memory: torchvision's sets, folders of your own, CIFAR-10 offline, and digits that need no download."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterpoint.hyper import nearest

from .. import store

SPLITS = ("train", "test")
# images of the digits' first 1286 rows are by other writers than those after them
DIGITS_TEST = 1287
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
NAMED = 5


@dataclass(frozen=True)
class ImageSet:
    """Images of one size, with their classes.

    Args:
        name: for tables.
        x: ``(N, 3, height, width)`` ``uint8``.
        y: ``(N,)`` classes, -1 where there is none.
        classes: their names.
        note: what a reader of its numbers must know.
        skipped: files that could not be read, and are left out.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...] = ()
    note: str = ""
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 or self.x.dim() != 4 or self.x.shape[1] != 3 or len(self.x) == 0:
            raise ValueError(f"{self.name}: expected uint8 (N, 3, H, W), got {self.x.dtype} {tuple(self.x.shape)}.")
        if self.y.shape != (len(self.x),):
            raise ValueError(f"{self.name}: expected one class per image, got {tuple(self.y.shape)}.")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor) -> ImageSet:
        return replace(self, x=self.x[rows], y=self.y[rows])

    @property
    def labelled(self) -> bool:
        return bool((self.y >= 0).all())

    def with_classes(self) -> ImageSet:
        """Those that have a class, where others, as in STL-10's unlabelled split, have none; all where no image has."""
        known = self.y >= 0
        return self if known.all() or not known.any() else self[known]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.x.shape[2], self.x.shape[3]

    @cached_property
    def checksum(self) -> str:
        """Of pixels and classes, whatever files they came from."""
        found = hashlib.sha256(f"{tuple(self.x.shape)}".encode())
        found.update(self.x.contiguous().numpy().tobytes())
        found.update(self.y.contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def pil(self, row: int) -> Image.Image:
        """One image, as lightly's transforms take it."""
        return Image.fromarray(self.x[row].permute(1, 2, 0).numpy())

    def draw(self, count: int | None, seed: int = 0) -> ImageSet:
        """``count`` of the images, as many of each class as can be; all of them for None."""
        return self if count is None else self[self._drawn(count, seed, lambda turn, of: turn)]

    def hold_out(self, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """What is left, and the ``share`` of each class that is held out."""
        if not 0 < share < 1:
            raise ValueError(f"{self.name}: the share that is held out must be in (0, 1), got {share!r}.")
        # by the middles of equal parts of each class: of a hundred images ten go, of three none
        held = self._drawn(max(1, round(share * len(self))), seed, lambda turn, of: (turn + 0.5) / of)
        left = torch.ones(len(self), dtype=torch.bool)
        left[held] = False
        return self[left.nonzero().squeeze(1)], self[held]

    def _drawn(self, count: int, seed: int, place: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The first ``count`` rows by the ``place`` of each turn in a class of so many images."""
        if not 0 < count <= len(self):
            raise ValueError(f"{self.name}: cannot draw {count} of {len(self)} images.")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        y = self.y[order]
        places = torch.zeros(len(self), dtype=torch.float64)
        for one in y.unique():
            of = int((y == one).sum())
            places[y == one] = place(torch.arange(of, dtype=torch.float64), of)
        return order[places.argsort(stable=True)[:count]].sort().values


def from_pictures(
    name: str,
    pictures: Iterable[tuple[str, Callable[[], Image.Image], int]],
    size: int | None,
    classes: Sequence[str] = (),
    note: str = "",
    total: int | None = None,
) -> ImageSet:
    """An image set of pictures of any size and mode; those that cannot be read are skipped, counted and named.

    Args:
        pictures: a name, a function that opens it, and its class (-1 for none).
        size: pixels of the square that is made of each: the shorter side is scaled to it, and the middle is cut out.
            None if all are of one size already.
    """
    x, y, skipped = [], [], []
    for title, open_it, label in store.track(pictures, f"reading {name}", total):
        try:
            x.append(_pixels(open_it(), size))
            y.append(label)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # PIL raises all of these
            skipped.append(title)
    if not x:
        raise ValueError(f"{name}: none of its {len(skipped)} images can be read.")
    if skipped:
        named = ", ".join(skipped[:NAMED]) + (", ..." if len(skipped) > NAMED else "")
        warnings.warn(
            f"{name}: {len(skipped)} of {len(x) + len(skipped)} images cannot be read and are left out: {named}",
            RuntimeWarning,
            stacklevel=3,
        )
    sizes = {one.shape for one in x}
    if len(sizes) > 1:
        raise ValueError(f"{name}: its images have {len(sizes)} sizes; say which one they shall have, size=.")
    stacked = torch.from_numpy(np.stack(x)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(name, stacked, torch.tensor(y), tuple(classes), note, tuple(skipped))


def _pixels(picture: Image.Image, size: int | None) -> np.ndarray[Any, Any]:
    """``(height, width, 3)``; grey values are repeated, transparent ones lose their transparency."""
    picture = picture.convert("RGB")
    if size is not None and picture.size != (size, size):
        shorter = min(picture.size)
        scaled = [max(size, round(side * size / shorter)) for side in picture.size]
        picture = picture.resize((scaled[0], scaled[1]), Image.Resampling.BILINEAR)
        left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
        picture = picture.crop((left, top, left + size, top + size))
    return np.array(picture)


# ---- by name -----------------------------------------------------------------------------------


def _torchvision(kind: str, **of_split: dict[str, Any]) -> Callable[[Path, str, bool], Any]:
    def make(root: Path, split: str, download: bool) -> Any:
        from torchvision import datasets

        return getattr(datasets, kind)(str(root), download=download, **of_split[split])

    return make


def _official(kind: str) -> Callable[[Path, str, bool], Any]:
    """Sets whose two splits are chosen by ``train=``."""
    return _torchvision(kind, train={"train": True}, test={"train": False})


def _split(kind: str, train: str = "train", test: str = "test", **more: Any) -> Callable[[Path, str, bool], Any]:
    """Sets whose splits have names."""
    return _torchvision(kind, train={"split": train, **more}, test={"split": test, **more})


# the nine small sets of ArCL's Table 3, and what the papers train on
DOWNLOADED: dict[str, Callable[[Path, str, bool], Any]] = {
    "cifar10": _official("CIFAR10"),
    "cifar100": _official("CIFAR100"),
    "mnist": _official("MNIST"),
    "stl10": _split("STL10"),
    "stl10-unlabelled": _split("STL10", train="train+unlabeled"),
    "aircraft": _torchvision("FGVCAircraft", train={"split": "trainval"}, test={"split": "test"}),
    "caltech101": _torchvision("Caltech101", train={}, test={}),
    "cars": _split("StanfordCars"),
    "dtd": _split("DTD"),
    "flowers": _split("Flowers102"),
    "food": _split("Food101"),
    "pets": _split("OxfordIIITPet", train="trainval"),
}
TRANSFER = ("aircraft", "caltech101", "cars", "cifar10", "cifar100", "dtd", "flowers", "food", "pets")
BUILT = ("digits", "mnist-cifar", "tiny-imagenet", "imagenet")
NAMES = (*DOWNLOADED, *BUILT)
NATIVE = {"cifar10": 32, "cifar100": 32, "stl10": 96, "stl10-unlabelled": 96, "tiny-imagenet": 64, "mnist": 32}


def load(
    name: str,
    split: str = "train",
    size: int | None = None,
    root: str | Path | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """A data set by its name, or a folder of images.

    ==========================  =====================================================================================
    ``digits``                  scikit-learn's, embedded; test images are by other writers
    ``cifar10``                 ``root/cifar10`` (JPEG-compressed, not the official pixels) if it is there, or else the
                                official one
    ``tiny-imagenet``           a folder of that name, or ``tiny-imagenet-200``, in ``root``
    ``imagenet``                the folders ``imagenet/train`` and ``imagenet/val`` in ``root``; ImageNet-100 by
                                ``classes``
    ``mnist-cifar``             ArCL's Table 7; see :func:`mnist_cifar`
    others in :data:`NAMES`     through torchvision, which downloads them
    a path                      a folder of images or of one folder per class, with ``train`` and ``test`` (or ``val``)
                                in it, or else a fifth of the images is for testing
    ==========================  =====================================================================================

    Args:
        split: ``train`` or ``test``.
        size: pixels; by default the set's own size, and 64 for sets and folders of many sizes.
        root: where sets lie; by default ``$COUNTERPOINT_DATA``. What is not there is downloaded, but never to there:
            to ``~/.cache/counterpoint``, unless a ``root`` is given.
        classes: the classes to keep, by name.
    """
    if split not in SPLITS:
        raise ValueError(f"split: unknown split {split!r}.{nearest(str(split), SPLITS)}")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ValueError(f"size must be a whole number of at least 1, got {size!r}.")
    given = None if root is None else str(root)
    kept = None if classes is None else tuple(classes)
    found = _load(name, split, size, given, os.environ.get("COUNTERPOINT_DATA"), kept)
    return found if kept in (None, found.classes) else _only(found, kept)


@lru_cache(maxsize=8)
def _load(
    name: str,
    split: str,
    size: int | None,
    root: str | None,
    offline: str | None,
    classes: tuple[str, ...] | None,
) -> ImageSet:
    """Folders leave other ``classes`` unread; of other sets they are taken out afterwards."""
    where = [Path(one) for one in (root, offline) if one]
    if name == "digits":
        return digits(split, size or 16)
    if name == "mnist-cifar":
        return mnist_cifar("id-train" if split == "train" else "ood-test", root=root)
    for folder in where if name == "cifar10" else ():
        if (folder / "cifar10" / f"{split}.npz").is_file():
            return _compressed_cifar(folder / "cifar10" / f"{split}.npz", size)
    if name in ("tiny-imagenet", "imagenet"):
        names = (name, f"{name}-200")
        found = next((folder / one for folder in where for one in names if (folder / one).is_dir()), None)
        if found is None:
            raise ValueError(
                f"data: {name} is not in {' or '.join(map(str, where)) or '$COUNTERPOINT_DATA'}; unpack it there."
            )
        return _folder(found, split, size or NATIVE.get(name, 64), name, classes)
    if name in DOWNLOADED:
        return _downloaded(name, split, size or NATIVE.get(name, 64), where, Path(root) if root else None)
    if Path(name).is_dir():
        return _folder(Path(name), split, size or 64, Path(name).name or name, classes)
    raise ValueError(f"data: {name!r} is neither a data set nor a folder.{nearest(name, NAMES)}")


def _only(data: ImageSet, classes: Sequence[str]) -> ImageSet:
    _must_be_known(classes, data.classes, data.name)
    number = torch.full((len(data.classes) + 1,), -1)
    for new, one in enumerate(classes):
        number[data.classes.index(one)] = new
    y = number[data.y]
    rows = (y >= 0).nonzero().squeeze(1)
    return replace(data, x=data.x[rows], y=y[rows], classes=tuple(classes))


def _must_be_known(classes: Sequence[str], known: Sequence[str], name: str) -> None:
    for one in classes:
        if one not in known:
            raise ValueError(f"{name}: it has no class {one!r}.{nearest(one, known)}")


def digits(split: str, size: int = 16) -> ImageSet:
    """scikit-learn's 8 x 8 digits, enlarged."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = slice(None, DIGITS_TEST) if split == "train" else slice(DIGITS_TEST, None)
    grey = (data.images[rows] * (255 / 16)).round().astype(np.uint8)
    pictures = [
        (str(i), lambda one=one: Image.fromarray(one), int(y))
        for i, (one, y) in enumerate(zip(grey, data.target[rows], strict=True))
    ]
    return from_pictures("digits", pictures, size, [str(one) for one in range(10)], "8 x 8 digits, embedded")


def _compressed_cifar(path: Path, size: int | None) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as archive:
            jpeg, offsets, labels = archive["jpeg"].tobytes(), archive["offsets"], archive["labels"]
            classes = [str(one) for one in archive["classes"]]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: not readable ({error}).") from error

    def picture(first: int, last: int) -> Callable[[], Image.Image]:
        return lambda: Image.open(io.BytesIO(jpeg[first:last]))

    spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True)
    pictures = ((f"row {i}", picture(first, last), y) for i, (first, last, y) in enumerate(spans))
    note = "JPEG-compressed CIFAR-10, not the official pixels"
    return from_pictures("cifar10", pictures, size or 32, classes, note, total=len(labels))


def _downloaded(name: str, split: str, size: int, where: list[Path], root: Path | None) -> ImageSet:
    make, found, why = DOWNLOADED[name], None, ""
    for folder in where:
        try:
            found = make(folder, split, False)
            break
        except (RuntimeError, OSError, ValueError):
            continue  # it is not there
    cache = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "counterpoint", "image")
    if found is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            found = make(cache, split, True)
        except Exception as error:  # whatever the network, the server and the file system raise
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(f"data {name!r}: it is not here and cannot be fetched ({why}).") from error
    classes = getattr(found, "classes", getattr(found, "categories", ()))
    raw = getattr(found, "data", None)
    if isinstance(raw, np.ndarray) and raw.ndim == 4 and raw.dtype == np.uint8:  # CIFAR and STL-10 are arrays already
        pixels = torch.from_numpy(raw if raw.shape[1] == 3 else raw.transpose(0, 3, 1, 2))
        y = torch.as_tensor(np.asarray(getattr(found, "targets", getattr(found, "labels", None)))).long()
        if pixels.shape[2:] == (size, size):
            return ImageSet(name, pixels.contiguous(), y, tuple(classes))

    def picture(row: int) -> Callable[[], Image.Image]:
        return lambda: found[row][0]

    rows: Any = range(len(found))
    if name == "caltech101":  # it has no test split; the field takes 30 images of each class to train on
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()
        seen: dict[int, int] = {}
        chosen = []
        for row in order:
            seen[found.y[row]] = seen.get(found.y[row], 0) + 1
            if (seen[found.y[row]] <= 30) == (split == "train"):
                chosen.append(row)
        rows = sorted(chosen)
    pictures = ((f"image {row}", picture(row), _label(found, row)) for row in rows)
    return from_pictures(name, pictures, size, classes, total=len(rows))


def _label(found: Any, row: int) -> int:
    for name in ("y", "targets", "labels", "_labels"):
        labels = getattr(found, name, None)
        if labels is not None:
            return int(labels[row])
    return int(found[row][1])


def _folder(path: Path, split: str, size: int, name: str, kept: tuple[str, ...] | None) -> ImageSet:
    """Images of a folder: one folder per class, or all without classes."""
    split_folder = next(
        (path / one for one in ((split, "val") if split == "test" else (split,)) if (path / one).is_dir()), None
    )
    share = split_folder is None
    base = split_folder or path
    # the training images say which classes there are, in the other split too
    classes = _classes(path / "train" if (path / "train").is_dir() else base)
    annotations = base / "val_annotations.txt"
    files: list[tuple[Path, int]] = []
    if annotations.is_file():  # Tiny-ImageNet's validation images
        for line in annotations.read_text(encoding="utf-8").splitlines():
            file, wnid, *_ = line.split("\t")
            files.append((base / "images" / file, classes.index(wnid)))
    else:
        for one in _classes(base):
            _must_be_known([one], classes, name)
            files += [(file, classes.index(one)) for file in sorted((base / one).rglob("*")) if _is_image(file)]
        if not classes:
            files = [(file, -1) for file in sorted(base.iterdir()) if _is_image(file)]
    if kept is not None and classes:
        _must_be_known(kept, classes, name)
        files = [(file, kept.index(classes[number])) for file, number in files if classes[number] in kept]
        classes = list(kept)
    if not files:
        raise ValueError(f"data: {base} holds no images ({', '.join(EXTENSIONS)}).")
    if share and len(files) > 1:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
        tested = set(order[: max(1, len(files) // 5)])
        files = [one for row, one in enumerate(files) if (row in tested) == (split == "test")]
    _must_fit(len(files), size)

    def picture(file: Path) -> Callable[[], Image.Image]:
        return lambda: Image.open(file)

    pictures = ((str(file.relative_to(path)), picture(file), label) for file, label in files)
    return from_pictures(name, pictures, size, classes, total=len(files))


def _classes(folder: Path) -> list[str]:
    """Names of the folders with images in them."""
    inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    return [one.name for one in inside if any(map(_is_image, one.rglob("*")))]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in EXTENSIONS and file.is_file()


def _must_fit(count: int, size: int) -> None:
    needed = 2 * count * 3 * size * size  # twice while they are stacked
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    if needed > free:
        raise ValueError(
            f"data: {count} images of {size} x {size} pixels need {needed / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} are free; choose a smaller size or fewer classes."
        )


# ---- MNIST-CIFAR -------------------------------------------------------------------------------


def mnist_cifar(split: str, root: str | Path | None = None, seed: int = 0) -> ImageSet:
    """ArCL's Table 7: a digit (0 or 1) above a CIFAR-10 image (automobile or airplane), 64 x 32 pixels; CIFAR's class.

    Where MNIST can neither be found nor downloaded, scikit-learn's digits stand in, and the note says so.

    Args:
        split: ``id-train`` pairs 0 with automobiles, 1 with airplanes; ``ood-train`` and ``ood-test`` pair at random.
    """
    if split not in ("id-train", "ood-train", "ood-test"):
        raise ValueError(f"split: unknown split {split!r}.{nearest(split, ('id-train', 'ood-train', 'ood-test'))}")
    part = split.partition("-")[2]
    note, digit_set = "", None
    try:
        digit_set = load("mnist", part, 32, root)
    except ValueError:
        note = "with scikit-learn's digits in the place of MNIST"
        digit_set = load("digits", part, 32, root)
    pixels = load("cifar10", part, 32, root)
    wanted = [pixels.classes.index(one) for one in ("automobile", "airplane")]
    generator = torch.Generator().manual_seed(seed)
    x, y = [], []
    for number, one in enumerate(wanted):
        lower = pixels.x[pixels.y == one]
        digit = torch.full((len(lower),), number)
        if split.startswith("ood"):
            digit = torch.randint(2, (len(lower),), generator=generator)
        upper = torch.empty_like(lower)
        for value in (0, 1):
            rows = (digit == value).nonzero().squeeze(1)
            pool = (digit_set.y == value).nonzero().squeeze(1)
            upper[rows] = digit_set.x[pool[torch.randint(len(pool), (len(rows),), generator=generator)]]
        x.append(torch.cat([upper, lower], 2))
        y.append(torch.full((len(lower),), number))
    note = "; ".join(filter(None, (pixels.note, note)))
    return ImageSet("mnist-cifar", torch.cat(x), torch.cat(y), ("automobile", "airplane"), note)
