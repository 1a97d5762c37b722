"""Image sets by name: torchvision's, CIFAR-10 offline, digits that need no download, and folders of your own."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image

from counterpoint.names import check_known

from ..domain import check_choice, check_whole
from .image_set import ImageSet, from_pictures
from .settings import EXTENSIONS, check_dataset

SPLITS = ("train", "test")
DIGITS_TEST = 1287  # the first row of the digits' test split: the writers before it wrote the training images


# of torchvision: the class, and its arguments for the two splits
_BY_TRAIN = ({"train": True}, {"train": False})
_BY_SPLIT = ({"split": "train"}, {"split": "test"})
_TRAINVAL = ({"split": "trainval"}, {"split": "test"})
# the nine small sets of ArCL's Table 3, and the sets that the papers train on
DOWNLOADED: dict[str, tuple[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "cifar10": ("CIFAR10", _BY_TRAIN),
    "cifar100": ("CIFAR100", _BY_TRAIN),
    "mnist": ("MNIST", _BY_TRAIN),
    "stl10": ("STL10", _BY_SPLIT),
    "stl10-unlabelled": ("STL10", ({"split": "train+unlabeled"}, {"split": "test"})),
    "aircraft": ("FGVCAircraft", _TRAINVAL),
    "caltech101": ("Caltech101", ({}, {})),
    "cars": ("StanfordCars", _BY_SPLIT),
    "dtd": ("DTD", _BY_SPLIT),
    "flowers": ("Flowers102", _BY_SPLIT),
    "food": ("Food101", _BY_SPLIT),
    "pets": ("OxfordIIITPet", _TRAINVAL),
}
NATIVE_SIZES = {
    "digits": 16,
    "cifar10": 32,
    "cifar100": 32,
    "stl10": 96,
    "stl10-unlabelled": 96,
    "tiny-imagenet": 64,
    "mnist": 32,
}


def image_size(name: str, size: int | None = None) -> tuple[int, int]:
    """Height and width of the images of :func:`load`, without loading them."""
    side = size or NATIVE_SIZES.get(name, 64)
    return (64, 32) if name == "mnist-cifar" else (side, side)


def load(
    name: str,
    split: str = "train",
    size: int | None = None,
    root: str | Path | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Load a data set by its name, or a folder of images.

    ==========================  =====================================================================================
    ``digits``                  scikit-learn's, embedded; the test images are by other writers
    ``cifar10``                 ``root/cifar10`` (JPEG-compressed, not the official pixels) if it exists, else the
                                official set
    ``tiny-imagenet``           a folder of that name, or ``tiny-imagenet-200``, in ``root``
    ``imagenet``                the folders ``imagenet/train`` and ``imagenet/val`` in ``root``; ImageNet-100 by
                                ``classes``
    ``mnist-cifar``             ArCL's Table 7; see :func:`mnist_cifar`
    other names                 downloaded by torchvision; :data:`counterpoint.integrations.image.settings.DATASETS`
                                lists them
    a path                      a folder of images or of one folder per class, with ``train`` and ``test`` (or ``val``)
                                inside; otherwise a fifth of the images is for testing
    ==========================  =====================================================================================

    Args:
        split: ``train`` or ``test``.
        size: pixels; by default the set's own size, and 64 for sets and folders of many sizes.
        root: folder of the data sets; by default ``$COUNTERPOINT_DATA``. Missing sets are downloaded to ``root`` if you
            pass one, else to ``~/.cache/counterpoint``, never to ``$COUNTERPOINT_DATA``.
        classes: the classes to keep, by name.
    """
    check_choice("split", split, SPLITS)
    if size is not None:
        check_whole("size must be", size, 1)
    wanted = None if classes is None else tuple(classes)
    data = _load(name, split, size, None if root is None else str(root), os.environ.get("COUNTERPOINT_DATA"), wanted)
    return data if wanted in (None, data.classes) else _select(data, wanted)


@lru_cache(maxsize=8)
def _load(
    name: str, split: str, size: int | None, root: str | None, offline: str | None, classes: tuple[str, ...] | None
) -> ImageSet:
    """Folders read only ``classes``; of all other sets :func:`load` selects them afterwards."""
    folders = [Path(folder) for folder in (root, offline) if folder]
    if name == "digits":
        return digits(split, size or NATIVE_SIZES[name])
    if name == "mnist-cifar":
        return mnist_cifar("id-train" if split == "train" else "ood-test", root=root)
    for folder in folders if name == "cifar10" else ():
        if (folder / "cifar10" / f"{split}.npz").is_file():
            return _compressed_cifar(folder / "cifar10" / f"{split}.npz", size)
    if name in ("tiny-imagenet", "imagenet"):
        paths = [folder / spelling for folder in folders for spelling in (name, f"{name}-200")]
        path = next((path for path in paths if path.is_dir()), None)
        if path is None:
            searched = " or ".join(map(str, folders)) or "$COUNTERPOINT_DATA"
            raise ValueError(f"data: {name} is not in {searched}; unpack it there.")
        return _folder(path, split, size or NATIVE_SIZES.get(name, 64), name, classes)
    if name in DOWNLOADED:
        return _downloaded(name, split, size or NATIVE_SIZES.get(name, 64), folders, Path(root) if root else None)
    check_dataset(name)
    return _folder(Path(name), split, size or 64, Path(name).name or name, classes)


def _select(data: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images of these classes, numbered in this order."""
    _check_classes(classes, data.classes, data.name)
    number = torch.full((len(data.classes) + 1,), -1)
    for new, label in enumerate(classes):
        number[data.classes.index(label)] = new
    y = number[data.y]
    rows = (y >= 0).nonzero().squeeze(1)
    return replace(data, x=data.x[rows], y=y[rows], classes=tuple(classes))


def _check_classes(classes: Sequence[str], known: Sequence[str], name: str) -> None:
    for label in classes:
        check_known(f"{name}: unknown class", label, known)


def digits(split: str, size: int = 16) -> ImageSet:
    """scikit-learn's 8 x 8 digits, enlarged."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = slice(None, DIGITS_TEST) if split == "train" else slice(DIGITS_TEST, None)
    grey = (data.images[rows] * (255 / 16)).round().astype(np.uint8)
    pictures = [
        (str(i), lambda image=image: Image.fromarray(image), int(y))
        for i, (image, y) in enumerate(zip(grey, data.target[rows], strict=True))
    ]
    return from_pictures("digits", pictures, size, [str(digit) for digit in range(10)], "8 x 8 digits, embedded")


def _compressed_cifar(path: Path, size: int | None) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as archive:
            jpeg, offsets, labels = archive["jpeg"].tobytes(), archive["offsets"], archive["labels"]
            classes = [str(label) for label in archive["classes"]]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: not readable ({error}).") from error
    spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True)
    pictures = (
        (f"row {i}", lambda file=jpeg[first:last]: Image.open(io.BytesIO(file)), y)
        for i, (first, last, y) in enumerate(spans)
    )
    note = "JPEG-compressed CIFAR-10, not the official pixels"
    return from_pictures("cifar10", pictures, size or 32, classes, note, total=len(labels))


def _downloaded(name: str, split: str, size: int, folders: list[Path], root: Path | None) -> ImageSet:
    from torchvision import datasets

    dataset: Any = None
    class_name, of_splits = DOWNLOADED[name]
    class_, options = getattr(datasets, class_name), of_splits[SPLITS.index(split)]
    for folder in folders:
        try:
            dataset = class_(folder, **options)
            break
        except (RuntimeError, OSError, ValueError):
            continue  # the folder does not hold it
    cache = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "counterpoint", "image")
    if dataset is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            dataset = class_(cache, download=True, **options)
        except Exception as error:  # whatever the network, the server and the file system raise
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(f"data {name!r}: not found on disk, and the download failed ({cause}).") from error
    classes = getattr(dataset, "classes", getattr(dataset, "categories", ()))
    raw = getattr(dataset, "data", None)
    if isinstance(raw, np.ndarray) and raw.ndim == 4 and raw.dtype == np.uint8:  # CIFAR and STL-10 are arrays
        pixels = torch.from_numpy(raw if raw.shape[1] == 3 else raw.transpose(0, 3, 1, 2))
        y = torch.as_tensor(np.asarray(getattr(dataset, "targets", getattr(dataset, "labels", None)))).long()
        if pixels.shape[2:] == (size, size):
            return ImageSet(name, pixels.contiguous(), y, tuple(classes))
    rows: Any = range(len(dataset))
    if name == "caltech101":  # has no test split; by convention 30 images of each class are for training
        seen: Counter[int] = Counter()
        chosen = []
        for row in torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist():
            seen[dataset.y[row]] += 1
            if (seen[dataset.y[row]] <= 30) == (split == "train"):
                chosen.append(row)
        rows = sorted(chosen)
    pictures = ((f"image {row}", lambda row=row: dataset[row][0], _label(dataset, row)) for row in rows)
    return from_pictures(name, pictures, size, classes, total=len(rows))


def _label(dataset: Any, row: int) -> int:
    for name in ("y", "targets", "labels", "_labels"):
        if (labels := getattr(dataset, name, None)) is not None:
            return int(labels[row])
    return int(dataset[row][1])


def _folder(path: Path, split: str, size: int, name: str, wanted: tuple[str, ...] | None) -> ImageSet:
    """Load the images of a folder: one folder per class, or images without classes."""
    split_names = (split, "val") if split == "test" else (split,)
    split_folder = next((path / split_name for split_name in split_names if (path / split_name).is_dir()), None)
    base = split_folder or path
    if split_folder is None and (path / "train").is_dir():
        raise ValueError(
            f"data: {path} has a folder train beside none named test or val; add one, or remove that level."
        )
    # the training images define the classes of both splits
    classes = _classes(path / "train" if (path / "train").is_dir() else base)
    annotations = base / "val_annotations.txt"
    files: list[tuple[Path, int]] = []
    if annotations.is_file():  # Tiny-ImageNet's validation images
        for line in annotations.read_text(encoding="utf-8").splitlines():
            file, wnid, *_ = line.split("\t")
            files.append((base / "images" / file, classes.index(wnid)))
    else:
        for label in _classes(base):
            _check_classes([label], classes, name)
            files += [(file, classes.index(label)) for file in sorted((base / label).rglob("*")) if _is_image(file)]
        if not classes:
            files = [(file, -1) for file in sorted(base.iterdir()) if _is_image(file)]
    if wanted is not None and classes:
        _check_classes(wanted, classes, name)
        files = [(file, wanted.index(classes[number])) for file, number in files if classes[number] in wanted]
        classes = list(wanted)
    if not files:
        raise ValueError(f"data: {base} holds no images ({', '.join(EXTENSIONS)}).")
    if split_folder is None and len(files) > 1:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
        test_rows = set(order[: max(1, len(files) // 5)])
        files = [file for row, file in enumerate(files) if (row in test_rows) == (split == "test")]
    _check_memory(len(files), size)
    pictures = ((str(file.relative_to(path)), partial(Image.open, file), label) for file, label in files)
    return from_pictures(name, pictures, size, classes, total=len(files))


def _classes(folder: Path) -> list[str]:
    """Names of the folders that contain images."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [path.name for path in subfolders if any(map(_is_image, path.rglob("*")))]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in EXTENSIONS and file.is_file()


def _check_memory(count: int, size: int) -> None:
    needed = 2 * count * 3 * size * size  # stacking copies them once
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

    If MNIST is neither on disk nor can be downloaded, scikit-learn's digits replace it, and the note says so.

    Args:
        split: ``id-train`` pairs 0 with automobiles, 1 with airplanes; ``ood-train`` and ``ood-test`` pair at random.
    """
    check_choice("split", split, ("id-train", "ood-train", "ood-test"))
    part = split.partition("-")[2]
    note, digit_set = "", None
    try:
        digit_set = load("mnist", part, 32, root)
    except ValueError:
        note = "with scikit-learn's digits in place of MNIST"
        digit_set = load("digits", part, 32, root)
    pixels = load("cifar10", part, 32, root)
    wanted = [pixels.classes.index(label) for label in ("automobile", "airplane")]
    generator = torch.Generator().manual_seed(seed)
    x, y = [], []
    for number, label in enumerate(wanted):
        lower = pixels.x[pixels.y == label]
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
