"""Retrieval: where the documents that answer a query stand among all documents, ranked by the model.

The scores are those of sentence-transformers' ``InformationRetrievalEvaluator`` and ``NanoBEIREvaluator``, times 100:
nDCG@10 and MRR@10, where a document is relevant or not, whatever its grade, and the recall at 10 and 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ..store.progress import print_line
from . import beir, encode
from .frameworks import framework
from .sts import grid, number

METRICS = {"nDCG@10": "ndcg@10", "MRR@10": "mrr@10", "recall@10": "recall@10", "recall@100": "recall@100"}
HEADLINE = "nDCG@10"


@dataclass
class Score:
    """Percentages, by the names of :data:`METRICS`; sizes are None for what the framework loads itself."""

    metrics: dict[str, float]
    queries: int | None = None
    documents: int | None = None


@dataclass
class Report:
    """The scores by collection, and the mean of each metric if there are several."""

    collections: dict[str, Score]
    mean: dict[str, float] | None
    seconds: dict[str, float]


def evaluate(
    model: Any,
    names: Sequence[str | Path] = (),
    data: str | Path | None = None,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> Report:
    """Score a model on retrieval collections.

    Args:
        model: a name or folder as in :func:`counterpoint.integrations.sentence.encode.load`, or a SentenceTransformer;
            its prompts for queries and documents are used.
        names: BEIR folders, names of collections in ``retrieval/`` of the data, ``nano`` for NanoBEIR from the hub, or
            ``nano:NAME`` for one of its collections; by default all collections of the data, or else ``nano``.
        data: the folder of the data, see :func:`counterpoint.integrations.sentence.data.root`.
        pooling, device: for a model that is named.
        batch_size: texts embedded at a time.
    """
    start = perf_counter()
    chosen = [str(name) for name in names] or beir.collections(data) or [beir.NANO]
    read = {name: beir.read(beir.find(name, data)) for name in chosen if not beir.is_nano(name)}
    if isinstance(model, (str, Path)):
        model = encode.load(model, pooling, device=device)
    elif not hasattr(model, "encode_query"):
        raise TypeError(f"model: expected a name or a SentenceTransformer, got {type(model).__name__}.")
    ready = perf_counter()
    options = {"batch_size": batch_size, "show_progress_bar": progress, "write_csv": False}
    scores: dict[str, Score] = {}
    for name in chosen:
        if name in read:
            scores[read[name].name] = score(model, read[name], **options)
        else:
            scores |= _nano(model, name, options)
    columns = [one.metrics for one in scores.values()]
    mean = {key: math.fsum(c[key] for c in columns) / len(columns) for key in METRICS} if len(columns) > 1 else None
    seconds = {"read and load": ready - start, "total": perf_counter() - start}
    return Report(scores, mean, seconds)


def score(model: Any, collection: beir.Collection, **options: Any) -> Score:
    """Score a SentenceTransformer on a collection; ``options`` are those of ``InformationRetrievalEvaluator``."""
    if options.get("show_progress_bar"):
        print_line(f"{collection.name}: {len(collection.queries)} queries, {len(collection.documents)} documents")
    kind = framework("sentence_transformers.sentence_transformer.evaluation").InformationRetrievalEvaluator
    evaluator = kind(
        collection.queries, collection.documents, collection.relevant, precision_recall_at_k=[10, 100], **options
    )
    return Score(_metrics(evaluator(model)), len(collection.queries), len(collection.documents))


def _nano(model: Any, name: str, options: dict[str, Any]) -> dict[str, Score]:
    kind = framework("sentence_transformers.sentence_transformer.evaluation").NanoBEIREvaluator
    only = name.partition(":")[2]
    evaluator = kind([only] if only else None, precision_recall_at_k=[10, 100], **options)
    found = evaluator(model)
    return {part.name: Score(_metrics(found, part.name)) for part in evaluator.evaluators}


def _metrics(found: dict[str, float], name: str = "") -> dict[str, float]:
    """Return our metrics of what an evaluator found, for the model's own similarity."""
    own = {key: value for key, value in found.items() if key.startswith(f"{name}_" if name else "")}
    return {ours: 100 * next(own[key] for key in own if key.endswith(f"_{theirs}")) for ours, theirs in METRICS.items()}


def text(report: Report) -> str:
    """The table of the collections, and their mean below."""
    rows = [["collection", "queries", "documents", *METRICS]]
    for name, one in report.collections.items():
        sizes = ["-" if size is None else str(size) for size in (one.queries, one.documents)]
        rows.append([name, *sizes, *(number(one.metrics[key]) for key in METRICS)])
    if report.mean is not None:
        rows.append(["mean", "", "", *(number(report.mean[key]) for key in METRICS)])
    return grid(rows)
