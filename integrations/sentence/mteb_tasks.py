"""mteb's tasks and benchmarks: mteb downloads, embeds, scores and caches the results.

Its scores are those of the task, times 100: the metric that mteb calls the task's main score.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoint.names import closest

from ..store.progress import on_terminal, print_line
from ..store.reproduce import checksum

try:
    import mteb
except ModuleNotFoundError as error:
    raise ImportError("this needs mteb, on Python 3.11 or later: pip install 'mteb>=2'") from error


@dataclass
class Score:
    """A percentage; ``metric`` is mteb's name of the measure."""

    score: float
    metric: str
    kind: str


@dataclass
class Report:
    """The scores by task, and their mean if there are several."""

    tasks: dict[str, Score]
    mean: float | None


def evaluate(
    model: Any, names: Sequence[str], *, batch_size: int = 64, out: str | Path | None = None, progress: bool = False
) -> Report:
    """Score a model on tasks of mteb.

    Args:
        names: mteb's names of tasks (``Banking77Classification``) or benchmarks (``MTEB(eng, v2)``).
        out: a folder for mteb's results: what it holds of these weights is not computed again.
        batch_size, progress: see :func:`counterpoint.integrations.sentence.encode.embed`.
    """
    tasks = find(names)
    # mteb's own key is the model's name, and the weights in a folder may change
    weights = sorted(model.state_dict().items())
    parts = (part for name, value in weights for part in (name, value.cpu().float().numpy().tobytes()))
    cache = None if out is None else mteb.ResultCache(Path(out) / checksum(*parts)[:16])
    scores, bars = dict[str, Score](), progress and on_terminal()
    for done, task in enumerate(tasks):
        about = task.metadata
        if progress:
            print_line(f"{about.name}, task {done + 1} of {len(tasks)}")
        options: Any = {"encode_kwargs": {"batch_size": batch_size}, "show_progress_bar": bars, "cache": cache}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="mteb")  # it logs what a user should know
                (result,) = mteb.evaluate(model, task, **options).task_results
        except (ConnectionError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise OSError(f"{about.name}: its data cannot be had ({reason}); {done} tasks are done.") from error
        scores[about.name] = Score(round(100 * float(result.get_score()), 4), about.main_score, about.type)  # as mteb
    mean = math.fsum(one.score for one in scores.values()) / len(scores) if len(scores) > 1 else None
    return Report(scores, mean)


def find(names: Iterable[str]) -> list[mteb.AbsTask]:
    """Return mteb's tasks of these names, those of a benchmark in its order, each once."""
    found: dict[str, mteb.AbsTask] = {}
    benchmarks = {benchmark.name for benchmark in mteb.get_benchmarks()}
    for name in names:
        try:
            tasks = mteb.get_benchmark(name).tasks if name in benchmarks else [mteb.get_task(name)]
        except KeyError:
            known = [*benchmarks, *(task.metadata.name for task in mteb.get_tasks(exclude_superseded=False))]
            raise ValueError(f"tasks: mteb has no task or benchmark {name!r}.{closest(name, known)}") from None
        found |= {task.metadata.name: task for task in tasks}
    return list(found.values())
