"""mteb's tasks and benchmarks: mteb embeds, scores and keeps what it has done; local files replace its downloads.

Its scores are those of the task, times 100: the metric that mteb calls the task's main score.
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from counterpoint.names import closest

from ..store.progress import print_line
from . import sts
from .files import lines, root

try:
    import mteb
except ModuleNotFoundError as error:
    raise ImportError("this needs mteb, on Python 3.11 or later: pip install 'mteb>=2'") from error

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


def evaluate(
    model: Any,
    names: Sequence[str],
    data: str | Path | None = None,
    *,
    batch_size: int = 64,
    out: str | Path | None = None,
    progress: bool = False,
) -> Report:
    """Score a model on tasks of mteb.

    Args:
        model: a SentenceTransformer.
        names: mteb's names of tasks (``Banking77Classification``) or benchmarks (``MTEB(eng, v2)``).
        data: the folder of the data, by default ``COUNTERPOINT_DATA``: the tasks of :data:`STS` and :data:`INTENTS`
            are read from its ``sts/`` and ``intents/`` where it has them; ``hub`` for mteb's own download of all.
        batch_size: texts embedded at a time.
        out: a folder for mteb's results: what it holds of these weights is not computed again.
        progress: whether to show it.
    """
    tasks = find(names)
    # mteb's own key is the model's name, and the weights in a folder may change
    cache = None if out is None else mteb.ResultCache(Path(out) / fingerprint(model))
    scores: dict[str, Score] = {}
    for done, task in enumerate(tasks):
        about = task.metadata
        if progress:
            print_line(f"{about.name}, task {done + 1} of {len(tasks)}")
        local = local_data(about.name, data)
        if local:
            task.dataset = {split: Dataset.from_dict(columns) for split, columns in local.items()}
            task.data_loaded = True
        options: Any = {"encode_kwargs": {"batch_size": batch_size}, "show_progress_bar": progress, "cache": cache}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="mteb")  # it logs what a user should know
                (result,) = mteb.evaluate(model, task, **options).task_results
        except (ConnectionError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise OSError(f"{about.name}: its data cannot be had ({reason}); {done} tasks are done.") from error
        score = round(100 * float(result.get_score()), 4)  # as mteb keeps them
        scores[about.name] = Score(score, about.main_score, about.type, bool(local))
    mean = math.fsum(one.score for one in scores.values()) / len(scores) if len(scores) > 1 else None
    return Report(scores, mean)


def find(names: Iterable[str]) -> list[Any]:
    """Return mteb's tasks of these names, those of a benchmark in its order, each once."""
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


def local_data(name: str, data: str | Path | None) -> dict[str, dict[str, list[Any]]]:
    """Read the columns of each split of a task, in place of a download; empty where the folder does not have them."""
    if (folder := root(data)) is None:
        return {}
    if name in STS:
        try:
            pairs = sts.load(STS[name], folder)
        except FileNotFoundError:
            return {}
        return {"test": {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold}}
    if name not in INTENTS or not (folder / "intents").is_dir():
        return {}
    files = {split: folder / "intents" / f"{INTENTS[name]}-{split}.tsv" for split in ("train", "test")}
    rows = {split: [line.split("\t", 1) for line in lines(path)] for split, path in files.items()}
    labels = sorted({label for label, _ in rows["train"]})
    return {
        split: {"text": [text for _, text in part], "label": [labels.index(label) for label, _ in part]}
        for split, part in rows.items()
    }


def fingerprint(model: Any) -> str:
    """Return a name for the weights of a model: they, not its folder, decide whether a kept result is its own."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()[:16]
