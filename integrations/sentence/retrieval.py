"""Retrieval: where the documents that answer a query stand among all documents, ranked by the model.

A collection is a folder in the format of BEIR (https://arxiv.org/abs/2104.08663): ``corpus.jsonl`` (``_id``, ``title``,
``text``), ``queries.jsonl`` (``_id``, ``text``) and ``qrels/SPLIT.tsv`` (query, document and grade, with or without a
header; or TREC's four columns). Every grade above 0 is relevant.

The scores are those of sentence-transformers' ``InformationRetrievalEvaluator`` and ``NanoBEIREvaluator``, times 100:
nDCG@10 and MRR@10, where a document is relevant or not, whatever its grade, and the recall at 10 and 100.
"""

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterpoint.names import check_known, nearest

from .files import ENVIRONMENT, NUMBER, lines, root, table

FOLDER = "retrieval"  # of the collections, in that of the data
NANO = "nano"  # the thirteen small collections of NanoBEIR, which are on the hub; nano:NAME is one of them
NANO_NAMES = (  # a test compares them with those of sentence-transformers
    "climatefever", "dbpedia", "fever", "fiqa2018", "hotpotqa", "msmarco", "nfcorpus", "nq", "quoraretrieval",
    "scidocs", "arguana", "scifact", "touche2020",
)  # fmt: skip
METRICS = {"nDCG@10": "ndcg@10", "MRR@10": "mrr@10", "recall@10": "recall@10", "recall@100": "recall@100"}
HEADLINE = "nDCG@10"
_TREC = re.compile(r"(\S+)(?:\tQ?0\t| +Q?0 +)(\S+)[\t ]+([-+]?\d+)\s*")  # query, 0, document, grade


@dataclass
class Collection:
    """The judged queries of a split, all documents, and each query's relevant ones, missing ones included, by id."""

    name: str
    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, set[str]]

    def pairs(self) -> list[tuple[str, str]]:
        """Return each query beside each of its relevant documents that exist, in the order of the files."""
        order = {document: i for i, document in enumerate(self.documents)}
        relevant = {q: sorted(self.relevant[q] & order.keys(), key=order.__getitem__) for q in self.queries}
        return [(self.queries[q], self.documents[d]) for q, documents in relevant.items() for d in documents]


def is_collection(path: Path) -> bool:
    """Return whether this is a BEIR folder."""
    return (path / "corpus.jsonl").is_file() and (path / "queries.jsonl").is_file()


def collections() -> list[str]:
    """Return the names of the collections in ``retrieval/`` of the data."""
    base = root()
    folders = [] if base is None else sorted((base / FOLDER).glob("*"))
    return [folder.name for folder in folders if is_collection(folder)]


def find(name: str | Path) -> Path:
    """Return the folder of a collection: the folder itself, or one of this name in ``retrieval/`` of the data."""
    folder = Path(name).expanduser()
    if is_collection(folder):
        return folder
    if folder.is_dir():
        raise FileNotFoundError(f"{folder}: not a BEIR folder, which has corpus.jsonl, queries.jsonl and qrels/.")
    base, known = root(), collections()
    if base is not None and str(name) in known:
        return base / FOLDER / name
    where = f"{ENVIRONMENT} is not set" if base is None else f"{base / FOLDER} has none of this name"
    hint = nearest(str(name), known) if known else ""
    raise FileNotFoundError(f"{name}: not a BEIR folder, nor the name of a collection: {where}.{hint}")


def check(names: Iterable[str], split: str = "") -> None:
    """Raise an error unless each name is that of a collection, which has the split, or of NanoBEIR."""
    for name in names:
        kind, _, one = name.partition(":")
        if kind != NANO:
            _ = judgements(find(name), split) if split else find(name)
        elif one:
            check_known("unknown collection of NanoBEIR", one.lower(), NANO_NAMES)


def read(folder: str | Path, split: str = "test") -> Collection:
    """Read the queries of a split, their relevant documents, and all documents; those without text are left out."""
    folder = Path(folder)
    every = _texts(folder / "corpus.jsonl")
    documents = {key: text for key, text in every.items() if text}
    queries = _texts(folder / "queries.jsonl")
    relevant: dict[str, set[str]] = {}
    for place, (query, document, grade, *_) in table(judgements(folder, split), 3, slice(2, 3), other=_TREC):
        if query not in queries:
            raise ValueError(f"{place}: queries.jsonl does not contain the query {query!r}.")
        if not NUMBER.fullmatch(grade):
            raise ValueError(f"{place}: expected a number as grade, got {grade!r}.")
        if float(grade) > 0 and every.get(document) != "":  # one without text is left out
            relevant.setdefault(query, set()).add(document)
    if documents.keys().isdisjoint(set[str]().union(*relevant.values())):
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


@dataclass
class Score:
    """Percentages, by the names of :data:`METRICS`; sizes are None for NanoBEIR, which the framework loads itself.

    ``items`` are the percentages of each query.
    """

    metrics: dict[str, float]
    queries: int | None = None
    documents: int | None = None
    items: list[dict[str, str | float]] = field(default_factory=list, repr=False)


@dataclass
class Report:
    """The scores by collection, and the mean of each metric if there are several."""

    collections: dict[str, Score]
    mean: dict[str, float] | None


def evaluate(
    model: Any, names: Sequence[str | Path] = (), *, split: str = "test", batch_size: int = 64, progress: bool = False
) -> Report:
    """Score a model on retrieval collections.

    Args:
        model: a SentenceTransformer; its prompts for queries and documents are used.
        names: BEIR folders, names of collections in ``retrieval/`` of the data, ``nano`` for NanoBEIR from the hub, or
            ``nano:NAME`` for one of its collections; by default all collections of the data, or else ``nano``.
        split: which queries of the folders, by the file of their judgements, ``qrels/SPLIT.tsv``.
        batch_size, progress: see :func:`counterpoint.integrations.sentence.encode.embed`.
    """
    places = [*map(str, names or collections() or [NANO])]
    if split != "test" and (nano := [name for name in places if name.partition(":")[0] == NANO]):
        raise ValueError(f"split: {nano[0]} has only test, got {split!r}.")
    loaded = {name: None if name.partition(":")[0] == NANO else read(find(name), split) for name in places}
    if not hasattr(model, "encode_query"):
        raise TypeError(f"model: expected a SentenceTransformer, got {type(model).__name__}.")
    from sentence_transformers.sentence_transformer.evaluation import NanoBEIREvaluator

    from ..store.progress import on_terminal, print_line

    options = {"batch_size": batch_size, "show_progress_bar": progress and on_terminal()}
    scores: dict[str, Score] = {}
    for name, collection in loaded.items():
        if collection is not None:
            if progress:
                sizes = f"{len(collection.queries)} queries, {len(collection.documents)} documents with text"
                print_line(f"{collection.name}: {sizes}, behind titles, if any; all grades above 0 are relevant alike")
            scores[collection.name] = score(model, collection, **options)
            continue
        only = name.partition(":")[2]
        nano = NanoBEIREvaluator([only] if only else None, precision_recall_at_k=[10, 100], write_csv=False, **options)
        queries = {part.name: _each_query(part) for part in nano.evaluators}
        found = nano(model)
        scores |= {name: Score(_metrics(found, f"{name}_"), items=items) for name, items in queries.items()}
    columns = [one.metrics for one in scores.values()]
    mean = {key: math.fsum(column[key] for column in columns) / len(columns) for key in METRICS}
    return Report(scores, mean if len(columns) > 1 else None)


def score(model: Any, collection: Collection, **options: object) -> Score:
    """Score a SentenceTransformer on a collection; ``options`` are those of ``InformationRetrievalEvaluator``."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    judged = set[str]().union(*collection.relevant.values())
    if missing := judged - collection.documents.keys():
        counts = f"{len(missing)} of {len(judged)} relevant documents are not in corpus.jsonl"
        warnings.warn(f"{collection.name}: {counts}; they count as not found", RuntimeWarning, stacklevel=2)
    options |= {"precision_recall_at_k": [10, 100], "write_csv": False}
    evaluator = InformationRetrievalEvaluator(collection.queries, collection.documents, collection.relevant, **options)
    items = _each_query(evaluator)
    return Score(_metrics(evaluator(model)), len(collection.queries), len(collection.documents), items)


def _each_query(evaluator: Any) -> list[dict[str, str | float]]:
    """Let an evaluator append the scores of each query to the list that is returned, computed by its own formulas."""
    items: list[dict[str, str | float]] = []
    compute = evaluator.compute_metrics

    def of_all(hits: list[list[dict[str, object]]]) -> object:
        ids, queries = evaluator.queries_ids, evaluator.queries
        for query, own in zip(ids, hits, strict=True):
            evaluator.queries_ids = evaluator.queries = [query]
            found = {name.replace("@k", f"@{k}"): x for name, by in compute([own]).items() for k, x in by.items()}
            items.append({"item": query, **{ours: 100 * float(found[theirs]) for ours, theirs in METRICS.items()}})
        evaluator.queries_ids, evaluator.queries = ids, queries
        return compute(hits)

    evaluator.compute_metrics = of_all
    return items


def _metrics(found: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return our metrics of those of an evaluator, for the model's own similarity."""
    own = {key: value for key, value in found.items() if key.startswith(prefix)}
    return {ours: 100 * next(own[key] for key in own if key.endswith(f"_{theirs}")) for ours, theirs in METRICS.items()}
