"""Image sets by name: torchvision's, CIFAR-10 offline, digits that need no download, and folders; the data of a run."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import datasets
from torchvision.datasets.folder import IMG_EXTENSIONS

from counterpoint.names import check_known

from ..domain import check_choice, check_whole
from .image_set import ImageSet, from_pictures
from .settings import DATASETS, Source, check_dataset

SPLITS = ("train", "test")
DIGITS_TEST = 1287  # the first row of the digits' test split: the writers before it wrote the training images


class Data(NamedTuple):
    """The images to train on, to fit probes on, to validate on, and to report on."""

    train: ImageSet
    labelled: ImageSet
    validation: ImageSet
    test: ImageSet


def prepare(arguments: Mapping[str, Any]) -> Data:
    """Load the data of a cell.

    With ``part="tune"`` the validation images are reported on, and the test split is not loaded.
    """
    options = (arguments["size"], None, arguments["classes"])
    train, validation = load(arguments["dataset"], "train", *options).hold_out(arguments["validation"])
    train = train.draw(arguments["subset"])
    labelled, validation = train.with_classes(), validation.with_classes()
    test = validation
    if arguments["dataset"] == "mnist-cifar":  # the probe must not learn the class from the digits
        labelled = mnist_cifar("ood-train")
        if arguments["part"] == "tune":
            labelled, test = labelled.hold_out(arguments["validation"])
    if arguments["part"] == "report":
        test = load(arguments["dataset"], "test", *options)
    return Data(train, labelled, validation, test)


def image_size(name: str, size: int | None = None) -> tuple[int, int]:
    """Height and width of the images of :func:`load`, without loading them."""
    side = size or DATASETS.get(name, Source()).size
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
    given = None if root is None else str(root)
    data = _load(name, split, image_size(name, size)[0], given, os.environ.get("COUNTERPOINT_DATA"), wanted)
    return data if wanted in (None, data.classes) else _select(data, wanted)


@lru_cache(maxsize=8)
def _load(
    name: str, split: str, size: int, root: str | None, offline: str | None, classes: tuple[str, ...] | None
) -> ImageSet:
    """Folders read only ``classes``; of all other sets :func:`load` selects them afterwards."""
    folders = [Path(folder) for folder in (root, offline) if folder]
    if name == "digits":
        return _digits(split, size)
    if name == "mnist-cifar":
        return mnist_cifar("id-train" if split == "train" else "ood-test", root=root)
    for folder in folders if name == "cifar10" else ():
        if (archive := folder / "cifar10" / f"{split}.npz").is_file():
            return _compressed_cifar(archive, size)
    if name in ("tiny-imagenet", "imagenet"):
        paths = [folder / spelling for folder in folders for spelling in (name, f"{name}-200")]
        path = next((path for path in paths if path.is_dir()), None)
        if path is None:
            searched = " or ".join(map(str, folders)) or "$COUNTERPOINT_DATA"
            raise ValueError(f"data: {name} is not in {searched}; unpack it there.")
        return _folder(path, split, size, name, classes)
    if name in DATASETS:
        return _downloaded(name, split, size, folders, root)
    check_dataset(name)
    return _folder(Path(name), split, size, Path(name).name or name, classes)


def _select(data: ImageSet, classes: Sequence[str]) -> ImageSet:
    """The images of these classes, numbered in this order."""
    number = torch.full((len(data.classes) + 1,), -1)
    for new, label in enumerate(classes):
        check_known(f"{data.name}: unknown class", label, data.classes)
        number[data.classes.index(label)] = new
    y = number[data.y]
    rows = (y >= 0).nonzero().squeeze(1)
    return replace(data, x=data.x[rows], y=y[rows], classes=tuple(classes))


def _digits(split: str, size: int) -> ImageSet:
    """scikit-learn's 8 x 8 digits, enlarged."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = slice(None, DIGITS_TEST) if split == "train" else slice(DIGITS_TEST, None)
    grey, labels = (digits.images[rows] * (255 / 16)).round().astype(np.uint8), digits.target[rows].tolist()

    def picture(number: int) -> tuple[Image.Image, int]:
        return Image.fromarray(grey[number]), labels[number]

    return from_pictures("digits", len(grey), picture, size, list("0123456789"), "8 x 8 digits, embedded")


def _compressed_cifar(path: Path, size: int) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as archive:
            jpeg, offsets, labels = archive["jpeg"].tobytes(), archive["offsets"].tolist(), archive["labels"].tolist()
            classes = [str(label) for label in archive["classes"]]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: not readable ({error}).") from error

    def picture(number: int) -> tuple[Image.Image, int]:
        return Image.open(io.BytesIO(jpeg[offsets[number] : offsets[number + 1]])), labels[number]

    note = "JPEG-compressed CIFAR-10, not the official pixels"
    return from_pictures("cifar10", len(labels), picture, size, classes, note)


def _downloaded(name: str, split: str, size: int, folders: list[Path], root: str | None) -> ImageSet:
    source = DATASETS[name]
    class_, options = getattr(datasets, str(source.torchvision)), source.splits[SPLITS.index(split)]
    dataset: Any = None
    for folder in folders:
        with suppress(RuntimeError, OSError, ValueError):  # the folder does not hold it
            dataset = class_(folder, **options)
            break
    if dataset is None:
        cache = Path(root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "counterpoint", "image"))
        try:
            cache.mkdir(parents=True, exist_ok=True)
            dataset = class_(cache, download=True, **options)
        except Exception as error:  # whatever the network, the server and the file system raise
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(f"data {name!r}: not found on disk, and the download failed ({cause}).") from error
    classes = tuple(getattr(dataset, "classes", getattr(dataset, "categories", ())))
    raw = getattr(dataset, "data", None)
    if isinstance(raw, np.ndarray) and size == source.size:  # CIFAR and STL-10 are arrays
        pixels = torch.from_numpy(raw if raw.shape[1] == 3 else raw.transpose(0, 3, 1, 2)).contiguous()
        labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
        return ImageSet(name, pixels, torch.as_tensor(labels).long(), classes)
    if name == "caltech101":  # has no test split; by convention 30 images of each class are for training
        seen: Counter[int] = Counter()
        rows = []
        for row in torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist():
            seen[dataset.y[row]] += 1
            if (seen[dataset.y[row]] <= 30) == (split == "train"):
                rows.append(row)
        dataset = Subset(dataset, sorted(rows))
    return from_pictures(name, len(dataset), dataset.__getitem__, size, classes)


def _folder(path: Path, split: str, size: int, name: str, wanted: tuple[str, ...] | None) -> ImageSet:
    """Load the images of a folder: one folder per class, or images without classes."""
    split_names = (split, "val") if split == "test" else (split,)
    split_folder = next((path / split_name for split_name in split_names if (path / split_name).is_dir()), None)
    base, train = split_folder or path, path / "train"
    if split_folder is None and train.is_dir():
        raise ValueError(
            f"data: {path} has a folder train beside none named test or val; add one, or remove that level."
        )
    known = _classes(train if train.is_dir() else base)  # the training images define the classes of both splits
    classes = known if wanted is None or not known else wanted
    for label in classes:
        check_known(f"{name}: unknown class", label, known)
    annotations = base / "val_annotations.txt"
    if annotations.is_file():  # Tiny-ImageNet's validation images
        rows = (line.split("\t") for line in annotations.read_text(encoding="utf-8").splitlines())
        found = [(base / "images" / file, label) for file, label, *_ in rows]
    else:
        every = ((file, label) for label in _classes(base) for file in sorted((base / label).rglob("*")))
        found = [(file, label) for file, label in every if _is_image(file)]
    for label in dict.fromkeys(label for _, label in found):
        check_known(f"{name}: unknown class", label, known)
    files = [(file, classes.index(label)) for file, label in found if label in classes]
    if not known:
        files = [(file, -1) for file in sorted(base.iterdir()) if _is_image(file)]
    if not files:
        raise ValueError(f"data: {base} holds no images ({', '.join(IMG_EXTENSIONS)}).")
    if split_folder is None and len(files) > 1:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
        test_rows = set(order[: max(1, len(files) // 5)])
        files = [file for row, file in enumerate(files) if (row in test_rows) == (split == "test")]
    _check_memory(len(files), size)

    def picture(number: int) -> tuple[Image.Image, int]:
        file, label = files[number]
        return Image.open(file), label

    return from_pictures(
        name, len(files), picture, size, classes, title=lambda number: str(files[number][0].relative_to(path))
    )


def _classes(folder: Path) -> tuple[str, ...]:
    """Names of the folders that contain images."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return tuple(path.name for path in subfolders if any(map(_is_image, path.rglob("*"))))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMG_EXTENSIONS and file.is_file()


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


def mnist_cifar(split: str, root: str | Path | None = None, seed: int = 0) -> ImageSet:
    """ArCL's Table 7: a digit (0 or 1) above a CIFAR-10 image (automobile or airplane), 64 x 32 pixels; CIFAR's class.

    If MNIST is neither on disk nor can be downloaded, scikit-learn's digits replace it, and the note says so.

    Args:
        split: ``id-train`` pairs 0 with automobiles, 1 with airplanes; ``ood-train`` and ``ood-test`` pair at random.
    """
    check_choice("split", split, ("id-train", "ood-train", "ood-test"))
    part = split.partition("-")[2]
    classes = ("automobile", "airplane")
    pixels = load("cifar10", part, 32, root)
    notes = [pixels.note] if pixels.note else []
    try:
        digits = load("mnist", part, 32, root)
    except ValueError:
        digits = load("digits", part, 32, root)
        notes.append("with scikit-learn's digits in place of MNIST")
    generator = torch.Generator().manual_seed(seed)
    x, y = [], []
    for number, label in enumerate(classes):
        lower = pixels.x[pixels.y == pixels.classes.index(label)]
        digit = torch.full((len(lower),), number)
        if split.startswith("ood"):
            digit = torch.randint(2, (len(lower),), generator=generator)
        upper = torch.empty_like(lower)
        for value in (0, 1):
            rows = (digit == value).nonzero().squeeze(1)
            pool = (digits.y == value).nonzero().squeeze(1)
            upper[rows] = digits.x[pool[torch.randint(len(pool), (len(rows),), generator=generator)]]
        x.append(torch.cat([upper, lower], 2))
        y.append(torch.full((len(lower),), number))
    return ImageSet("mnist-cifar", torch.cat(x), torch.cat(y), classes, "; ".join(notes))
