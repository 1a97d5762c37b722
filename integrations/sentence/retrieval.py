"""Retrieval: where the documents that answer a query stand among all documents, ranked by the model.

The scores are those of sentence-transformers' ``InformationRetrievalEvaluator`` and ``NanoBEIREvaluator``, times 100:
nDCG@10 and MRR@10, where a document is relevant or not, whatever its grade, and the recall at 10 and 100.
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator, NanoBEIREvaluator

from ..store.progress import print_line
from . import beir, encode
from .files import collections
from .tables import grid, number

METRICS = {"nDCG@10": "ndcg@10", "MRR@10": "mrr@10", "recall@10": "recall@10", "recall@100": "recall@100"}
HEADLINE = "nDCG@10"


@dataclass
class Score:
    """Percentages, by the names of :data:`METRICS`; sizes are None for NanoBEIR, which the framework loads itself."""

    metrics: dict[str, float]
    queries: int | None = None
    documents: int | None = None


@dataclass
class Report:
    """The scores by collection, and the mean of each metric if there are several."""

    collections: dict[str, Score]
    mean: dict[str, float] | None


def evaluate(
    model: Any,
    names: Sequence[str | Path] = (),
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on retrieval collections.

    Args:
        model: a SentenceTransformer, or its name or folder; its prompts for queries and documents are used.
        names: BEIR folders, names of collections in ``retrieval/`` of the data, ``nano`` for NanoBEIR from the hub, or
            ``nano:NAME`` for one of its collections; by default all collections of the data, or else ``nano``.
        data: the folder of the data; by default ``COUNTERPOINT_DATA``.
        batch_size: texts embedded at a time.
        progress: whether to show it.
    """
    read: dict[str, beir.Collection | None] = {}
    for name in map(str, names or collections(data) or [beir.NANO]):
        read[name] = None if name.partition(":")[0] == beir.NANO else beir.read(beir.find(name, data))
    if isinstance(model, (str, Path)):
        model = encode.load(model)
    elif not hasattr(model, "encode_query"):
        raise TypeError(f"model: expected a name or a SentenceTransformer, got {type(model).__name__}.")
    options = {"batch_size": batch_size, "show_progress_bar": progress}
    scores: dict[str, Score] = {}
    for name, collection in read.items():
        if collection is not None:
            scores[collection.name] = score(model, collection, **options)
            continue
        only = name.partition(":")[2]
        nano = NanoBEIREvaluator([only] if only else None, precision_recall_at_k=[10, 100], write_csv=False, **options)
        found = nano(model)
        scores |= {part.name: Score(_metrics(found, f"{part.name}_")) for part in nano.evaluators}
    columns = [one.metrics for one in scores.values()]
    mean = {key: math.fsum(column[key] for column in columns) / len(columns) for key in METRICS}
    return Report(scores, mean if len(columns) > 1 else None)


def score(model: Any, collection: beir.Collection, **options: Any) -> Score:
    """Score a SentenceTransformer on a collection; ``options`` are those of ``InformationRetrievalEvaluator``."""
    queries, documents = collection.queries, collection.documents
    if options.get("show_progress_bar"):
        print_line(f"{collection.name}: {len(queries)} queries, {len(documents)} documents")
    options |= {"precision_recall_at_k": [10, 100], "write_csv": False}
    evaluator = InformationRetrievalEvaluator(queries, documents, collection.relevant, **options)
    return Score(_metrics(evaluator(model)), len(queries), len(documents))


def _metrics(found: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return our metrics of those of an evaluator, for the model's own similarity."""
    own = {key: value for key, value in found.items() if key.startswith(prefix)}
    return {ours: 100 * next(own[key] for key in own if key.endswith(f"_{theirs}")) for ours, theirs in METRICS.items()}


def text(report: Report) -> str:
    """Return the table of the collections, and their mean below."""
    rows = []
    for name, one in report.collections.items():
        sizes = ["-" if size is None else str(size) for size in (one.queries, one.documents)]
        rows.append([name, *sizes, *map(number, one.metrics.values())])
    if report.mean is not None:
        rows.append(["mean", "", "", *map(number, report.mean.values())])
    return grid(["collection", "queries", "documents", *METRICS], rows)
