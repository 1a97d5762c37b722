"""Training data: sentences, pairs and triplets in files, retrieval collections, and running text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from counterpoint.names import check_known

from ..domain import check_choice
from . import beir
from .frameworks import framework
from .settings import ENVIRONMENT, POSITIVES
from .text_files import lines, table

FORMATS = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")

ANCHOR, POSITIVE = "anchor", "positive"


def load(
    path: str | Path, positives: str = "auto", columns: Sequence[str] | None = None, revision: str | None = None
) -> tuple[Any, int]:
    """Load a ``datasets.Dataset`` of text columns, and the number of rows dropped because a text is missing or blank.

    =================  =============================================================================================
    ``positives``      what a sample is
    =================  =============================================================================================
    ``same``           one text, whose views differ by noise only (SimCSE)
    ``columns``        the columns of a row: a pair, or a pair with hard negatives
    ``auto``           ``same`` for one column of text, ``columns`` for several
    ``next-line``      a line and the one after it, in text with a sentence on each line; blank lines divide documents
    ``next-sentence``  a sentence and the one after it, in running text, which is split into sentences (quick-thought)
    =================  =============================================================================================

    Args:
        path: a file of one of :data:`FORMATS`: ``.txt`` has one text on a line, the others named columns, ``.tsv``
            without quoting. Or a BEIR folder, whose ``qrels/train.tsv`` pairs queries with documents; or a data set's
            name on the hub, ``owner/name``, of which the split ``train`` is used.
        positives: see the table.
        columns: columns to use, in this order; by default all that contain text.
        revision: of a data set on the hub.
    """
    check(path, positives)
    name = find(path)
    kind = name.suffix.lower()
    if beir.is_collection(name):
        queries, answers = beir.read(name, "train").pairs()
        pairs_by_column = {ANCHOR: queries, POSITIVE: answers}
        return _checked(framework("datasets").Dataset.from_dict(pairs_by_column), path, 0)
    if positives.startswith("next-"):
        texts = lines(name)
        split = _line_documents(texts) if positives == "next-line" else documents("\n".join(texts))
        pairs = [pair for document in split for pair in pairwise(document)]
        pairs_by_column = {ANCHOR: [a for a, _ in pairs], POSITIVE: [b for _, b in pairs]}
        return _checked(framework("datasets").Dataset.from_dict(pairs_by_column), path, 0)
    data = _read(name, kind, revision)
    selected = list(columns or _text_columns(data))
    for column in selected:
        check_known(f"columns: {path} has no column", column, data.column_names)
    if not selected:
        raise ValueError(f"{path}: no column contains text; it has {', '.join(data.column_names) or 'none'}.")
    if positives == "columns" and len(selected) < 2:
        raise ValueError(f"positives=columns: {path} has one column of text, {selected[0]!r}; expected two or more.")
    data = data.select_columns(selected[:1] if positives == "same" else selected)
    rows = zip(*(data[column] for column in data.column_names), strict=True)
    complete = [i for i, row in enumerate(rows) if all(isinstance(text, str) and text.strip() for text in row)]
    return _checked(data if len(complete) == len(data) else data.select(complete), path, len(data) - len(complete))


def check(path: str | Path, positives: str = "auto") -> None:
    """Raise an error unless this is a file that can be training data, or may be a data set on the hub."""
    check_choice("positives", positives, POSITIVES)
    name = find(path)
    running_text, kind = positives.startswith("next-"), name.suffix.lower()
    if running_text and kind != ".txt":
        raise ValueError(f"positives={positives}: needs running text in a .txt file, got {path}.")
    if beir.is_collection(name):
        check_choice("positives", positives, ("auto", "columns"))
        beir.judgements(name, "train")
    elif kind in FORMATS:
        if not name.is_file():
            raise FileNotFoundError(f"{name}: no such file.")
        if name.stat().st_size == 0:
            raise ValueError(f"{name}: empty.")
    elif name.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise ValueError(f"{path}: expected a file of {', '.join(FORMATS)}, a BEIR folder, or owner/name on the hub.")


def find(path: str | Path) -> Path:
    """The file itself if it exists, else the one in ``COUNTERPOINT_DATA``."""
    name = Path(path).expanduser()
    elsewhere = Path(os.environ.get(ENVIRONMENT, "")) / name
    return elsewhere if not name.exists() and elsewhere.exists() else name


def _checked(data: Any, path: str | Path, dropped: int) -> tuple[Any, int]:
    if len(data) < 2:
        raise ValueError(f"{path}: {len(data)} samples, and {dropped} blank ones; expected 2 or more.")
    return data, dropped


def _read(path: Path, kind: str, revision: str | None) -> Any:
    datasets = framework("datasets")
    if kind == ".txt":
        return datasets.Dataset.from_dict({"text": lines(path)})
    if kind == ".tsv":
        header = lines(path)[0].split("\t")
        if twice := [name for i, name in enumerate(header) if name in header[:i]]:
            raise ValueError(f"{path}: line 1 names the column {twice[0]!r} twice.")
        rows = [cells for _, cells in table(path, len(header), header=True, more=False)]
        return datasets.Dataset.from_dict({name: [row[i] for row in rows] for i, name in enumerate(header)})
    if kind not in FORMATS:
        return datasets.load_dataset(str(path), split="train", revision=revision)
    reader = {".csv": "from_csv", ".parquet": "from_parquet"}.get(kind, "from_json")
    try:
        return getattr(datasets.Dataset, reader)(str(path))
    except Exception as error:  # of the reader of this format
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{path}: cannot be read as {kind[1:]}: {reason}") from error


def _text_columns(data: Any) -> list[str]:
    return [name for name, kind in data.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]


# ---- running text --------------------------------------------------------------------------------

# a full stop after one of these, or after a single capital, does not end a sentence
ABBREVIATIONS = {
    *("mr", "mrs", "ms", "messrs", "mme", "mlle", "dr", "prof", "rev", "hon", "capt", "col", "gen", "lt", "sgt"),
    *("sr", "jr", "st", "vs", "cf", "e.g", "i.e", "viz", "no", "vol", "pp", "fig", "eq"),
}
_OPEN, _CLOSE = "\"'(\\[_\u201c\u2018", "\"')\\]_\u201d\u2019"
_END = re.compile(rf"([.!?]+[{_CLOSE}]*)\s+(?=[{_OPEN}]*[A-Z0-9])")


def documents(text: str) -> list[list[str]]:
    """Split running text into sentences. It is one document: sentences on both sides of a blank line are neighbors."""
    document = [sentence for paragraph in re.split(r"\n\s*\n", text) for sentence in sentences(paragraph)]
    return [document] if document else []


def sentences(paragraph: str) -> Iterator[str]:
    """Split where a full stop, question or exclamation mark is followed by a capital, a digit or an opening quote.

    >>> list(sentences('"Is he married?" Mr. Bennet made\\nno answer. It was the 3.5th time.'))
    ['"Is he married?"', 'Mr. Bennet made no answer.', 'It was the 3.5th time.']
    """
    text, start = " ".join(paragraph.split()), 0
    for end in _END.finditer(text):
        before = text[start : end.start()].rpartition(" ")[2].lstrip(_OPEN)
        if end[1] == "." and (before.lower() in ABBREVIATIONS or re.fullmatch(r"[A-Z]", before)):
            continue
        yield text[start : end.end()].rstrip()
        start = end.end()
    if rest := text[start:]:
        yield rest


def _line_documents(texts: Sequence[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in [*texts, ""]:
        if line.strip():
            document.append(line.strip())
        elif document:
            yield document
            document = []
