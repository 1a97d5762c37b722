"""mteb's tasks and benchmarks: mteb embeds, scores and keeps what it has done; local files replace its downloads.

Its scores are those of the task, times 100: the metric that mteb calls the task's main score.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from counterpoint.names import closest

from ..store.progress import print_line
from . import encode
from .data import load_sts
from .frameworks import framework
from .sts import grid, number
from .text_files import lines, root

# mteb's name: ours
STS = {f"STS{year}": f"STS{year}" for year in range(12, 17)} | {"STSBenchmark": "STSB-test", "SICK-R": "SICKR-all"}
INTENTS = {"Banking77Classification": "BANKING77"}


@dataclass
class Score:
    """A percentage; ``metric`` is mteb's name of what it measures, ``local`` whether the data was a local file's."""

    score: float
    metric: str
    kind: str
    local: bool


@dataclass
class Report:
    """The scores by task, and their mean if there are several."""

    tasks: dict[str, Score]
    mean: float | None
    seconds: dict[str, float]


def evaluate(
    model: Any,
    names: Sequence[str],
    data: str | Path | None = None,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 64,
    out: str | Path | None = None,
    progress: bool = True,
) -> Report:
    """Score a model on tasks of mteb.

    Args:
        model: a name or folder as in :func:`counterpoint.integrations.sentence.encode.load`, or a SentenceTransformer.
        names: mteb's names of tasks (``Banking77Classification``) or benchmarks (``MTEB(eng, v2)``).
        data: the folder of the data, see :func:`counterpoint.integrations.sentence.data.root`: the tasks of
            :data:`STS` and :data:`INTENTS` are read from its ``sts/`` and ``intents/`` where it has them; ``hub`` for
            mteb's own download of all.
        pooling, device: for a model that is named.
        batch_size: texts embedded at a time.
        out: a folder for mteb's results: what it holds of these weights is not computed again.
    """
    start = perf_counter()
    tasks = find(names)
    if isinstance(model, (str, Path)):
        model = encode.load(model, pooling, device=device)
    mteb, ready = _mteb(), perf_counter()
    # mteb's own key is the model's name, and the weights in a folder may change
    cache = None if out is None else mteb.ResultCache(Path(out) / fingerprint(model))
    scores: dict[str, Score] = {}
    for done, task in enumerate(tasks):
        name = task.metadata.name
        if progress:
            print_line(f"{name}, task {done + 1} of {len(tasks)}")
        local = use_local(task, data)
        options = {"encode_kwargs": {"batch_size": batch_size}, "show_progress_bar": progress, "cache": cache}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="mteb")  # it logs what a user should know
                (result,) = mteb.evaluate(model, task, **options).task_results
        except (ConnectionError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise OSError(f"{name}: its data cannot be had ({reason}); {len(scores)} tasks are done.") from error
        score = round(100 * float(result.get_score()), 4)  # as mteb keeps them
        scores[name] = Score(score, task.metadata.main_score, task.metadata.type, local)
    mean = math.fsum(one.score for one in scores.values()) / len(scores) if len(scores) > 1 else None
    return Report(scores, mean, {"load": ready - start, "total": perf_counter() - start})


def find(names: Iterable[str]) -> list[Any]:
    """Return mteb's tasks of these names, those of a benchmark in its order, each once."""
    mteb = _mteb()
    found: dict[str, Any] = {}
    benchmarks = {benchmark.name for benchmark in mteb.get_benchmarks()}
    for name in names:
        try:
            tasks = mteb.get_benchmark(name).tasks if name in benchmarks else [mteb.get_task(name)]
        except KeyError:
            known = [*benchmarks, *(task.metadata.name for task in mteb.get_tasks(exclude_superseded=False))]
            raise ValueError(f"tasks: mteb has no task or benchmark {name!r}.{closest(name, known)}") from None
        found |= {task.metadata.name: task for task in tasks}
    return list(found.values())


def use_local(task: Any, data: str | Path | None) -> bool:
    """Give a task the local file of its data, if there is one, in place of a download."""
    name, folder = task.metadata.name, root(data)
    if folder is None:
        return False
    dataset = framework("datasets").Dataset
    if name in STS:
        try:
            pairs = load_sts(STS[name], folder)
        except FileNotFoundError:
            return False
        columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold}
        task.dataset = {"test": dataset.from_dict(columns)}
    elif name in INTENTS and (folder / "intents").is_dir():
        files = {split: folder / "intents" / f"{INTENTS[name]}-{split}.tsv" for split in ("train", "test")}
        rows = {split: [line.split("\t", 1) for line in lines(path)] for split, path in files.items()}
        labels = {label: index for index, label in enumerate(sorted({row[0] for row in rows["train"]}))}
        task.dataset = {
            split: dataset.from_dict({"text": [row[1] for row in part], "label": [labels[row[0]] for row in part]})
            for split, part in rows.items()
        }
    else:
        return False
    task.data_loaded = True
    return True


def fingerprint(model: Any) -> str:
    """A name for the weights of a model: they, not its folder, decide whether a kept result is its own."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def text(report: Report) -> str:
    """The table of the tasks, and their mean below."""
    rows = [["task", "type", "metric", "score"]]
    for name, one in report.tasks.items():
        rows.append([name + " (local data)" * one.local, one.kind, one.metric, number(one.score)])
    if report.mean is not None:
        rows.append(["mean", "", "", number(report.mean)])
    return grid(rows)


def _mteb() -> Any:
    try:
        return import_module("mteb")
    except ModuleNotFoundError as error:
        raise ImportError("this needs mteb, on Python 3.11 or later: pip install 'mteb>=2'") from error
