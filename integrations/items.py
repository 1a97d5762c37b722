"""Scores per item of a test set (queries, sentence pairs, images): where they are, and how they are read. No torch."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from counterpoint.names import nearest
from counterpoint.plugins import registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMS = {"npy": "npy:FILE", "jsonl": "jsonl:FILE:ID:SCORE"}


class Source(NamedTuple):
    """A file of scores; ``what`` names the fields of JSON lines: the item, and its score or its similarity and gold."""

    kind: str
    place: str
    what: str
    name: str
    text: str


def parse(text: str) -> Source:
    """A type for argparse: ``npy:FILE``, ``jsonl:FILE:ID:SCORE``, or ``jsonl:FILE:ID:SIMILARITY:GOLD``."""
    match = re.fullmatch(r"(?:([\w ./%@-]+)=)?(npy|jsonl):([^:]+)((?::[^:]+)*)", text, re.S)
    if match is None or match[4].count(":") not in ((0,) if match[2] == "npy" else (2, 3)):
        forms = f"{FORMS['npy']}, {FORMS['jsonl']} or jsonl:FILE:ID:SIMILARITY:GOLD"
        raise argparse.ArgumentTypeError(f"expected {forms}, got {text!r}")
    name, kind, place, what = match[1], match[2], match[3], match[4][1:]
    return Source(kind, place, what, name or ":".join(what.split(":")[1:]) or Path(place).stem, text)


def refuse_place(word: str) -> None:
    """Raise for the host or the script among the values of a flag, which takes all words up to the next one."""
    if word.endswith(".py") or word in registry.names():
        order = "The host comes first, and the script behind --: auto --objective host hcl ... -- train.py ..."
        raise argparse.ArgumentTypeError(f"unexpected {word!r}. {order}")


def relative(place: str) -> str:
    """Return a path in the folder of each run; raise where it leads out of it."""
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise argparse.ArgumentTypeError(
            f"{place}: expected a path relative to the folder where the script runs, or to {{out}}, the folder of each "
            "run, which can be put among the script's arguments"
        )
    return place


@dataclass(frozen=True)
class Items:
    """The scores of a model by item; with ``gold``, they are similarities, of which Spearman's correlation is asked."""

    ids: tuple[str, ...]
    scores: NDArray[np.float64]  # (n,)
    gold: NDArray[np.float64] | None = None  # (n,) scores of people


def load_array(path: Path) -> NDArray[np.generic]:
    """Read an array of numpy; never a pickle."""
    import numpy as np

    try:
        array: NDArray[np.generic] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: not readable as an array of numpy ({error}).") from error
    return array


def read(path: Path, what: str = "") -> Items:
    """Read the items of a file.

    Args:
        path: an array of numpy, ``(n,)`` scores or ``(n, 2)`` similarities and gold scores; or JSON lines.
        what: of JSON lines ``ID:SCORE`` or ``ID:SIMILARITY:GOLD``.
    """
    if what:
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            try:
                rows += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}).") from None
        return of_rows(str(path), rows, what.split(":"))
    array = load_array(path)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 2):
        expected = "expected numbers (n,), a score per item, or (n, 2), a similarity and a gold score"
        raise ValueError(f"{path}: {expected}; got {array.dtype} {array.shape}.")
    return _checked(str(path), [*map(str, range(len(array)))], array.astype(float).reshape(len(array), -1))


def of_rows(place: str, rows: Iterable[object], fields: Sequence[str]) -> Items:
    """Take the items of rows with these fields: the item, and its score, or its similarity and gold score."""
    import numpy as np

    table: dict[str, list[float]] = {}
    for number, row in enumerate(rows, 1):
        where = f"{place}, item {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected an object with {', '.join(fields)}, got {row!r:.60}.")
        for field in (field for field in fields if field not in row):
            raise ValueError(f"{where}: no field {field!r}.{nearest(field, row)}")
        item, *scores = (row[field] for field in fields)
        if str(item) in table:
            raise ValueError(f"{where}: the item {item!r} is there twice; expected one row per item.")
        for score in (score for score in scores if not isinstance(score, (int, float))):
            raise ValueError(f"{where}: expected a number, got {score!r}.")
        table[str(item)] = [float(score) for score in scores]
    return _checked(place, [*table], np.array([*table.values()]).reshape(len(table), len(fields) - 1))


def _checked(place: str, ids: Sequence[str], table: NDArray[np.float64]) -> Items:
    import numpy as np

    if (wrong := ~np.isfinite(table).all(1)).any():
        example = f"such as item {ids[int(wrong.argmax())]!r}"
        raise ValueError(f"{place}: {int(wrong.sum())} of {len(ids)} items have a score that is not finite, {example}.")
    if len(ids) < 3:
        raise ValueError(f"{place}: expected at least 3 items, got {len(ids)}.")
    for name, column in zip(("similarity", "gold score"), table.T if table.shape[1] == 2 else (), strict=False):
        if np.ptp(column) == 0:
            raise ValueError(f"{place}: all items have the same {name}, so their correlation is undefined.")
    return Items(tuple(ids), table[:, 0], table[:, 1] if table.shape[1] == 2 else None)


def write(folder: Path, set_name: str, models: Mapping[str, Iterable[Mapping[str, object]]]) -> list[Path]:
    """Write the items of a set that each model was scored on as JSON lines, in ``FOLDER/SET/MODEL.jsonl``."""

    def plain(name: str) -> str:
        return re.sub(r"[^\w.-]+", "_", name).strip("._") or "_"

    paths = {folder / plain(set_name) / f"{plain(model)}.jsonl": model for model in models}
    if len(paths) < len(models):
        raise ValueError(f"--items: {' and '.join(models)} would be written to the same file; give them other names.")
    for path, model in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in models[model]), encoding="utf-8")
    return list(paths)
