"""Training data: sentences, pairs and triplets in files, retrieval collections, and running text."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoint.names import check_known

from .. import store
from ..domain import check_choice
from . import retrieval
from .files import ENVIRONMENT, lines, table
from .retrieval import is_collection
from .settings import POSITIVES

if TYPE_CHECKING:
    from datasets import Dataset

FORMATS = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")


def prepare(arguments: Mapping[str, Any]) -> "tuple[Dataset, int, str]":
    """Load and check the data of a cell: the samples, the number of rows dropped as blank, and a checksum."""
    file, batch = arguments["file"], arguments["batch"]
    samples, dropped = load(file, arguments["positives"], arguments["columns"])
    if len(samples) < batch:
        count = len(samples)
        raise ValueError(f"batch: {batch} samples, but {file} has only {count}; give --batch {count} or less.")
    path = find(file)
    return samples, dropped, store.checksum(path if path.is_file() else samples._fingerprint)


def load(path: str | Path, positives: str = "auto", columns: Sequence[str] | None = None) -> "tuple[Dataset, int]":
    """Load a ``datasets.Dataset`` of text columns, and the number of rows dropped because a text is missing or blank.

    =================  =============================================================================================
    ``positives``      what a sample is
    =================  =============================================================================================
    ``same``           one text, whose views differ by noise only (SimCSE)
    ``columns``        the columns of a row: a pair, or a pair with hard negatives
    ``auto``           ``same`` for one column of text, ``columns`` for several
    ``next-sentence``  a sentence and the one after it, in running text, which is split into sentences (quick-thought)
    =================  =============================================================================================

    Args:
        path: a file of one of :data:`FORMATS`: ``.txt`` has one text on a line, the others named columns, ``.tsv``
            without quoting. Or a BEIR folder, whose ``qrels/train.tsv`` pairs queries with documents; or a data set's
            name on the hub, ``owner/name``, of which the split ``train`` is used.
        positives: see the table.
        columns: columns to use, in this order; by default all that contain text.
    """
    from datasets import Dataset

    check(path, positives)
    file, dropped = find(path), 0
    if is_collection(file) or positives == "next-sentence":
        is_text = not is_collection(file)
        pairs = [*pairwise(sentences("\n".join(lines(file))))] if is_text else retrieval.read(file, "train").pairs()
        data = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    else:
        data = _select(_read(file), path, positives, columns)
        rows = zip(*(data[column] for column in data.column_names), strict=True)
        complete = [i for i, row in enumerate(rows) if all(isinstance(text, str) and text.strip() for text in row)]
        if dropped := len(data) - len(complete):
            data = data.select(complete)
    if len(data) < 2:
        raise ValueError(f"{path}: {len(data)} samples, and {dropped} blank ones; expected 2 or more.")
    return data, dropped


def check(path: str | Path, positives: str = "auto") -> None:
    """Raise an error unless this is a file that can be training data, or may be a data set on the hub."""
    check_choice("positives", positives, POSITIVES)
    file = find(path)
    kind = file.suffix.lower()
    if positives == "next-sentence" and kind != ".txt":
        raise ValueError(f"positives={positives}: needs running text in a .txt file, got {path}.")
    if is_collection(file):
        check_choice("positives", positives, ("auto", "columns"))
        retrieval.judgements(file, "train")
    elif kind in FORMATS:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file.")
        if file.stat().st_size == 0:
            raise ValueError(f"{file}: empty.")
    elif file.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(file)):
        raise ValueError(f"{path}: expected a file of {', '.join(FORMATS)}, a BEIR folder, or owner/name on the hub.")


def find(path: str | Path) -> Path:
    """Return the file itself if it exists, else the one in ``COUNTERPOINT_DATA``."""
    file = Path(path).expanduser()
    elsewhere = Path(os.environ.get(ENVIRONMENT, "")) / file
    return elsewhere if not file.exists() and elsewhere.exists() else file


def _read(path: Path) -> "Dataset":
    from datasets import Dataset, load_dataset

    kind = path.suffix.lower()
    if kind == ".txt":
        return Dataset.from_dict({"text": lines(path)})
    if kind == ".tsv":
        header = lines(path)[0].split("\t")
        if twice := [name for i, name in enumerate(header) if name in header[:i]]:
            raise ValueError(f"{path}: line 1 names the column {twice[0]!r} twice.")
        rows = [cells for _, cells in table(path, len(header), header=slice(0), more=False)]  # whatever the names
        return Dataset.from_dict({name: [row[i] for row in rows] for i, name in enumerate(header)})
    if kind not in FORMATS:
        return load_dataset(str(path), split="train")
    reader = {".csv": Dataset.from_csv, ".parquet": Dataset.from_parquet}.get(kind, Dataset.from_json)
    try:
        return reader(str(path))
    except Exception as error:  # of the reader of this format
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{path}: cannot be read as {kind[1:]}: {reason}") from error


def _select(data: "Dataset", path: str | Path, positives: str, columns: Sequence[str] | None) -> "Dataset":
    """Select the columns of text that a sample consists of."""
    texts = [name for name, kind in data.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]
    selected = list(columns or texts)
    for column in selected:
        check_known(f"columns: {path} has no column", column, data.column_names)
    if not selected:
        raise ValueError(f"{path}: no column contains text; it has {', '.join(data.column_names) or 'none'}.")
    if positives == "columns" and len(selected) < 2:
        raise ValueError(f"positives=columns: {path} has one column of text, {selected[0]!r}; expected two or more.")
    return data.select_columns(selected[:1] if positives == "same" else selected)


# a full stop after one of these, or after a single capital, does not end a sentence
ABBREVIATIONS = {
    *("mr", "mrs", "ms", "messrs", "mme", "mlle", "dr", "prof", "rev", "hon", "capt", "col", "gen", "lt", "sgt"),
    *("sr", "jr", "st", "vs", "cf", "e.g", "i.e", "viz", "no", "vol", "pp", "fig", "eq"),
}
_OPEN, _CLOSE = "\"'(\\[_\u201c\u2018", "\"')\\]_\u201d\u2019"
_END = re.compile(rf"([.!?]+[{_CLOSE}]*)\s+(?=[{_OPEN}]*[A-Z0-9])")


def sentences(text: str) -> Iterator[str]:
    """Split where a full stop, question or exclamation mark is followed by a capital, a digit or an opening quote.

    Paragraphs, which blank lines divide, end sentences too.

    >>> list(sentences('"Is he married?" Mr. Bennet made\\nno answer. It was the 3.5th time.'))
    ['"Is he married?"', 'Mr. Bennet made no answer.', 'It was the 3.5th time.']
    """
    for paragraph in re.split(r"\n\s*\n", text):
        line, start = " ".join(paragraph.split()), 0
        for end in _END.finditer(line):
            before = line[start : end.start()].rpartition(" ")[2].lstrip(_OPEN)
            if end[1] == "." and (before.lower() in ABBREVIATIONS or re.fullmatch(r"[A-Z]", before)):
                continue
            yield line[start : end.end()].rstrip()
            start = end.end()
        if rest := line[start:]:
            yield rest
