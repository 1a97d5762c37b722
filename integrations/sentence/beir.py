"""Retrieval collections in the format of BEIR: documents, queries, and which documents answer which query.

A collection is a folder with ``corpus.jsonl`` (``_id``, ``title``, ``text``), ``queries.jsonl`` (``_id``, ``text``) and
``qrels/SPLIT.tsv`` (a header, then query, document and grade). Every grade above 0 is relevant.

BEIR: https://arxiv.org/abs/2104.08663
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from counterpoint.names import check_known, nearest

from .files import ENVIRONMENT, RETRIEVAL, collections, is_collection, lines, root, table

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

    def pairs(self) -> list[tuple[str, str]]:
        """Return each query beside each of its relevant documents, in the order of the files."""
        order = {document: i for i, document in enumerate(self.documents)}
        relevant = {query: sorted(self.relevant[query], key=order.__getitem__) for query in self.queries}
        return [(self.queries[q], self.documents[d]) for q, documents in relevant.items() for d in documents]


def find(name: str | Path, data: str | Path | None = None) -> Path:
    """Return the folder of a collection: the folder itself, or one of this name in ``retrieval/`` of the data."""
    folder = Path(name).expanduser()
    if is_collection(folder):
        return folder
    if folder.is_dir():
        raise FileNotFoundError(f"{folder}: not a BEIR folder, which has corpus.jsonl, queries.jsonl and qrels/.")
    base, known = root(data), collections(data)
    if base is not None and str(name) in known:
        return base / RETRIEVAL / name
    where = f"{ENVIRONMENT} is not set" if base is None else f"{base / RETRIEVAL} has none of this name"
    hint = nearest(str(name), known) if known else ""
    raise FileNotFoundError(f"{name}: not a BEIR folder, nor the name of a collection: {where}.{hint}")


def check(names: Iterable[str], data: str | Path | None = None) -> None:
    """Raise an error unless each name is that of a collection, or of NanoBEIR."""
    for name in names:
        kind, _, one = name.partition(":")
        if kind != NANO:
            find(name, data)
        elif one:
            check_known("unknown collection of NanoBEIR", one.lower(), NANO_NAMES)


def read(folder: str | Path, split: str = "test") -> Collection:
    """Read the queries of a split, their relevant documents, and all documents; those without text are left out."""
    folder = Path(folder)
    documents = {key: text for key, text in _texts(folder / "corpus.jsonl").items() if text}
    queries = _texts(folder / "queries.jsonl")
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
        known = sorted(file.stem for file in path.parent.glob("*.tsv"))
        raise FileNotFoundError(f"{path}: no such file; splits of {folder.name}: {', '.join(known) or 'none'}.")
    return path


def _texts(path: Path) -> dict[str, str]:
    """Read the text of each line by its identifier, after the title if there is one."""
    texts = {}
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            key, text = row["_id"], row["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            expected = 'expected {"_id": ..., "text": ...}'
            raise ValueError(f"{path}: line {number}: {expected}, got {line[:60]!r}.") from None
        if not isinstance(text, str):
            raise ValueError(f"{path}: line {number}: expected text, got {text!r}.")
        texts[str(key)] = f"{row.get('title') or ''} {text}".strip()
    return texts
