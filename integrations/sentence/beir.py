"""Retrieval collections in the format of BEIR: documents, queries, and which documents answer which query.

A collection is a folder with ``corpus.jsonl`` (``_id``, ``title``, ``text``), ``queries.jsonl`` (``_id``, ``text``) and
``qrels/SPLIT.tsv`` (a header, then query, document and grade). Every grade above 0 is relevant.

BEIR: https://arxiv.org/abs/2104.08663
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoint.names import check_known, nearest

from ..domain import check_choice
from .settings import ENVIRONMENT, RETRIEVAL
from .text_files import lines, root, table

FILES = ("corpus.jsonl", "queries.jsonl")
NANO = "nano"  # the thirteen small collections of NanoBEIR, which are on the hub; nano:NAME is one of them
NANO_NAMES = (  # a test compares them with those of sentence-transformers
    "climatefever", "dbpedia", "fever", "fiqa2018", "hotpotqa", "msmarco", "nfcorpus", "nq", "quoraretrieval",
    "scidocs", "arguana", "scifact", "touche2020",
)  # fmt: skip


@dataclass
class Collection:
    """The judged queries of a split, all documents, and the relevant documents of each query, by their identifiers."""

    name: str
    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, set[str]]

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return each query beside each of its relevant documents, in the order of the files."""
        rows = [(q, d) for q in self.queries for d in self.documents if d in self.relevant[q]]
        return [self.queries[q] for q, _ in rows], [self.documents[d] for _, d in rows]


def is_collection(path: Path) -> bool:
    """Whether this is a folder of a collection."""
    return all((path / file).is_file() for file in FILES)


def find(name: str | Path, data: str | Path | None = None) -> Path:
    """Return the folder of a collection: the folder itself, or one of this name in ``retrieval/`` of the data."""
    folder = Path(name).expanduser()
    if is_collection(folder):
        return folder
    if folder.is_dir():
        raise FileNotFoundError(f"{folder}: not a BEIR folder, which has {', '.join(FILES)} and qrels/.")
    base = root(data)
    known = collections(data)
    if str(name) in known and base is not None:
        return base / RETRIEVAL / name
    where = f"{ENVIRONMENT} is not set" if base is None else f"{base / RETRIEVAL} has none of this name"
    hint = nearest(str(name), known) if known else ""
    raise FileNotFoundError(f"{name}: not a BEIR folder, nor the name of a collection: {where}.{hint}")


def check(names: Iterable[str | Path], data: str | Path | None = None) -> None:
    """Raise an error unless each name is that of a collection, or of NanoBEIR."""
    for name in names:
        if not is_nano(name):
            find(name, data)
        elif one := str(name).partition(":")[2]:
            check_known("unknown collection of NanoBEIR", one.lower(), NANO_NAMES)


def is_nano(name: str | Path) -> bool:
    """Whether the name is ``nano`` or ``nano:NAME``."""
    return str(name).partition(":")[0] == NANO


def check_sets(setting: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ``ValueError`` unless each name is one of those known, or that of a collection."""
    for name in names:
        if name not in known and not is_collection(Path(name).expanduser()):
            check_choice(setting, name, (*known, *collections()))


def collections(data: str | Path | None = None) -> list[str]:
    """Return the names of the collections in ``retrieval/`` of the data."""
    base = root(data)
    folders = sorted((base / RETRIEVAL).glob("*")) if base is not None else []
    return [folder.name for folder in folders if is_collection(folder)]


def read(folder: str | Path, split: str = "test") -> Collection:
    """Read the queries of a split, their relevant documents, and all documents; those without text are left out."""
    folder = Path(folder)
    documents = {key: text for _, key, text in _texts(folder / "corpus.jsonl") if text}
    queries = {key: text for _, key, text in _texts(folder / "queries.jsonl")}
    relevant: dict[str, set[str]] = {}
    for place, (query, document, grade, *_) in table(judgements(folder, split), 3, header=True):
        if query not in queries:
            raise ValueError(f"{place}: queries.jsonl does not contain the query {query!r}.")
        try:
            is_relevant = float(grade) > 0
        except ValueError:
            raise ValueError(f"{place}: expected a number as grade, got {grade!r}.") from None
        if is_relevant and document in documents:
            relevant.setdefault(query, set()).add(document)
    if not relevant:
        raise ValueError(f"{folder}: no query of {split} has a relevant document in corpus.jsonl.")
    return Collection(folder.name, {key: queries[key] for key in queries if key in relevant}, documents, relevant)


def judgements(folder: Path, split: str) -> Path:
    """Return the file of a split's judgements; raise ``FileNotFoundError``, which names the splits, without it."""
    path = folder / "qrels" / f"{split}.tsv"
    if not path.is_file():
        known = sorted(file.stem for file in (folder / "qrels").glob("*.tsv"))
        raise FileNotFoundError(f"{path}: no such file; splits of {folder.name}: {', '.join(known) or 'none'}.")
    return path


def _texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the identifier and the text of each line, after the title if there is one."""
    for number, line in enumerate(lines(path), 1):
        place = f"{path}: line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key, text = row["_id"], row["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f'{place}: expected {{"_id": ..., "text": ...}}, got {line[:60]!r}.') from None
        if not isinstance(text, str):
            raise ValueError(f"{place}: expected text, got {text!r}.")
        yield place, str(key), f"{row.get('title') or ''} {text}".strip()
