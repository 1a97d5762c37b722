"""Image sets by name: torchvision's, CIFAR-10 offline, digits that need no download, and folders; the data of a run."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torchvision import datasets
from torchvision.datasets.folder import IMG_EXTENSIONS

from counterpoint.names import check_known

from ..domain import check_choice, check_whole
from .image_set import UNREADABLE, ImageSet, from_pictures
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
    name, size = arguments["dataset"], arguments["size"]
    train, validation = load(name, "train", size).hold_out(arguments["validation"])
    train, validation = train.draw(arguments["subset"]), validation.with_classes()
    test = load(name, "test", size) if arguments["part"] == "report" else validation
    return Data(train, train.with_classes(), validation, test)


def image_size(name: str, size: int | None = None) -> int:
    """Height and width of a cell's images, without looking at them; its ``size`` is the own size of a folder."""
    return size or DATASETS.get(name, Source()).size


@lru_cache(maxsize=8)
def own_size(name: str) -> int | None:
    """Height and width of a folder's images if all are squares of one size, else None; reads headers only."""
    sides: set[int] = set()
    for file in () if name in DATASETS else filter(_is_image, Path(name).rglob("*")):
        with suppress(*UNREADABLE), Image.open(file) as image:
            sides.update(image.size)
        if len(sides) > 1:
            return None
    return sides.pop() if sides else None


def load(name: str, split: str = "train", size: int | None = None, root: str | Path | None = None) -> ImageSet:
    """Load a data set by its name, or a folder of images.

    ==========================  =====================================================================================
    ``digits``                  scikit-learn's, embedded; the test images are by other writers
    ``cifar10``                 ``root/cifar10`` (JPEG-compressed, not the official pixels) if it exists, else the
                                official set
    other names                 downloaded by torchvision; :data:`counterpoint.integrations.image.settings.DATASETS`
                                lists them
    a path                      a folder of images or of one folder per class, with ``train`` and ``test`` (or ``val``)
                                inside; otherwise a fifth of the images is for testing
    ==========================  =====================================================================================

    Args:
        split: ``train`` or ``test``.
        size: pixels; by default the set's own size, and 64 for sets and folders of many sizes or of oblong images.
        root: folder of the data sets; by default ``$COUNTERPOINT_DATA``. Missing sets are downloaded to ``root`` if you
            pass one, else to ``~/.cache/counterpoint``, never to ``$COUNTERPOINT_DATA``.
    """
    check_choice("split", split, SPLITS)
    if size is not None:
        check_whole("size must be", size, 1)
    given = None if root is None else str(root)
    return _load(name, split, image_size(name, size or own_size(name)), given, os.environ.get("COUNTERPOINT_DATA"))


@lru_cache(maxsize=8)
def _load(name: str, split: str, size: int, root: str | None, offline: str | None) -> ImageSet:
    folders = [Path(folder) for folder in (root, offline) if folder]
    if name == "digits":
        return _digits(split, size)
    for folder in folders if name == "cifar10" else ():
        if (archive := folder / "cifar10" / f"{split}.npz").is_file():
            return _compressed_cifar(archive, size)
    if name in DATASETS:
        return _downloaded(name, split, size, folders, root)
    check_dataset(name)
    return _folder(Path(name), split, size)


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
    dataset: datasets.VisionDataset | None = None
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
            places = f"not on disk in {', '.join(map(str, [*folders, cache]))} (--root, COUNTERPOINT_DATA)"
            raise ValueError(f"data {name!r}: {places}, and the download failed ({cause}).") from error
    classes = tuple(getattr(dataset, "classes", getattr(dataset, "categories", ())))
    raw = getattr(dataset, "data", None)
    if isinstance(raw, np.ndarray) and size == source.size:  # CIFAR and STL-10 are arrays
        pixels = torch.from_numpy(raw if raw.shape[1] == 3 else raw.transpose(0, 3, 1, 2)).contiguous()
        labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
        return ImageSet(name, pixels, torch.as_tensor(labels).long(), classes)
    return from_pictures(name, len(dataset), dataset.__getitem__, size, classes)


def _folder(path: Path, split: str, size: int) -> ImageSet:
    """Load the images of a folder: one folder per class, or images without classes."""
    split_names = (split, "val") if split == "test" else (split,)
    split_folder = next((path / split_name for split_name in split_names if (path / split_name).is_dir()), None)
    base, train = split_folder or path, path / "train"
    if split_folder is None and train.is_dir():
        fault = "has a folder train beside none named test or val"
        raise ValueError(f"data: {path} {fault}; add one, or remove that level.")
    classes = _classes(train if train.is_dir() else base)  # the training images define the classes of both splits
    files = [(file, -1) for file in sorted(base.iterdir()) if _is_image(file)]
    if classes:
        for label in (own := _classes(base)):
            check_known(f"{path.name}: unknown class", label, classes)
        every = ((file, classes.index(label)) for label in own for file in sorted((base / label).rglob("*")))
        files = [(file, label) for file, label in every if _is_image(file)]
    if not files:
        raise ValueError(f"data: {base} holds no images ({', '.join(IMG_EXTENSIONS)}).")
    if split_folder is None and len(files) > 1:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
        test_rows = set(order[: max(1, len(files) // 5)])
        files = [file for row, file in enumerate(files) if (row in test_rows) == (split == "test")]

    def picture(number: int) -> tuple[Image.Image, int]:
        file, label = files[number]
        return Image.open(file), label

    titles = [str(file.relative_to(path)) for file, _ in files]
    return from_pictures(path.name or str(path), len(files), picture, size, classes, title=titles.__getitem__)


def _classes(folder: Path) -> tuple[str, ...]:
    """Names of the folders that contain images."""
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return tuple(path.name for path in subfolders if any(map(_is_image, path.rglob("*"))))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMG_EXTENSIONS and file.is_file()
