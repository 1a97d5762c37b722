"""Searches in Optuna studies, which several processes and machines may share.

They also share the folder of the runs. Its lock lets one process at a time choose a setting, so that none is chosen
twice. A trial belongs to no process: where nothing is left to choose, a process trains the runs of the trials that are
not finished. The store waits for runs that another process is training, and resumes those of a process that died.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.distributions import CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

import counterpoint as cp

from .coordinate import Scores, coordinate
from .grids import Grids, changed, numbers

START = "start"  # stands for what the first spec has, where its terms have no single number
ATTEMPTS = 20  # of TPE, before it takes a random setting that is new


class Space:
    """The settings that a search can reach: each parameter keeps its first value or takes one of its grid.

    Args:
        start: the first spec, as ``str(objective)`` writes it.
        grids: the values to try of each parameter.
    """

    def __init__(self, start: str, grids: Grids) -> None:
        self.start, self.grids = start, grids
        self.distributions: dict[str, CategoricalDistribution] = {}
        for name, value in _values(start, grids).items():
            first, numbers = ([START], []) if value == START else ([], [value])
            self.distributions[name] = CategoricalDistribution([*first, *sorted({*numbers, *grids[name]})])

    def trial(self, spec: str) -> FrozenTrial:
        """Make a trial that is running."""
        return create_trial(
            state=TrialState.RUNNING,
            params=_values(spec, self.grids),
            distributions=dict(self.distributions),
            user_attrs={"spec": spec},
        )

    def spec(self, params: Mapping[str, Any]) -> str:
        """Return the spec with these parameters."""
        data = cp.objective(self.start).to_dict()
        for name, value in params.items():
            data = data if value == START else changed(data, name, value)
        return str(cp.from_dict(data))

    def specs(self) -> list[str]:
        """Return all specs, sorted."""
        choices = [kind.choices for kind in self.distributions.values()]
        return sorted({self.spec(dict(zip(self.distributions, values, strict=True))) for values in product(*choices)})


def _values(spec: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the number that each parameter has in a spec; START if it has several."""
    found: dict[str, set[float]] = {name: set() for name in names}
    for name, value in numbers(cp.objective(spec).to_dict()):
        if name in found:
            found[name].add(value)
    return {name: values.pop() if len(values) == 1 else START for name, values in found.items()}


def _trials(study: optuna.Study) -> dict[str, FrozenTrial]:
    """Return the trials of a study by their specs."""
    return {trial.user_attrs["spec"]: trial for trial in study.get_trials(deepcopy=False)}


def _score(trial: FrozenTrial) -> float:
    return math.nan if trial.value is None else trial.value


# ---- samplers: the spec to try next; None at the end, or while trials must finish first --------


def _next_coordinate(study: optuna.Study, space: Space, budget: int) -> str | None:
    """Choose as :func:`.coordinate.coordinate` does: the same settings in the same order."""
    trials, scores = _trials(study), Scores()
    for specs in coordinate(space.start, space.grids, budget, scores):
        if new := [spec for spec in specs if spec not in trials]:
            return new[0]
        if not all(trials[spec].state.is_finished() for spec in specs):
            break
        scores.update((spec, _score(trials[spec])) for spec in specs)
    return None


def _next_tpe(study: optuna.Study, space: Space, budget: int) -> str | None:
    """Choose by Optuna's TPE over the same grids, from the same start, without repetitions."""
    trials = _trials(study)
    if not trials:
        return space.start
    new = [spec for spec in space.specs() if spec not in trials] if len(trials) < budget else []
    tpe = TPESampler(seed=len(trials), n_startup_trials=max(2, min(10, budget // 3)))
    trial, kinds = create_trial(state=TrialState.RUNNING), space.distributions.items()
    for _ in range(ATTEMPTS if len(new) > 1 else 0):
        spec = space.spec({name: tpe.sample_independent(study, trial, name, kind) for name, kind in kinds})
        if spec in new:
            return spec
    return random.Random(len(trials)).choice(new) if new else None


SAMPLERS: dict[str, Callable[[optuna.Study, Space, int], str | None]]
SAMPLERS = {"coordinate": _next_coordinate, "tpe": _next_tpe}


# ---- the search --------------------------------------------------------------------------------


def shared(
    sampler: str,
    start: str,
    grids: Grids,
    budget: int,
    scores: Scores,
    *,
    folder: Path,
    storage: str | None,
    name: str,
    settings: Mapping[str, Any],
    jobs: int = 1,
) -> Iterator[list[str]]:
    """Yield the specs to measure in this process, until the budget that all processes share is spent.

    Args:
        sampler: one of :data:`SAMPLERS`.
        start, grids, budget: see :func:`.coordinate.coordinate`.
        scores: the caller adds those of the yielded specs. At the end, the scores of all trials in their order.
        folder: of the runs, the same for all processes.
        storage: the file of a journal or the URL of a database; None for a study in memory.
        name: of the study.
        settings: what must be the same in all processes.
        jobs: specs to yield at a time.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    lock, space = FileLock(folder / ".study.lock"), Space(start, grids)
    what = {"start": start, "budget": budget, "grids": grids, "sampler": sampler, **settings}
    with lock:
        opened = connect(storage, name, what, folder)
    while True:
        with lock:
            study = optuna.load_study(study_name=name, storage=opened)  # anew: TPE reads its trials once
            mine: list[str] = []
            while len(mine) < jobs and (spec := SAMPLERS[sampler](study, space, budget)):
                study.add_trial(space.trial(spec))
                mine.append(spec)
            trials = _trials(study)
        chosen = [spec for spec, one in trials.items() if not one.state.is_finished() and (not mine or spec in mine)]
        if not chosen:
            scores.clear()
            scores.update((spec, _score(one)) for spec, one in trials.items())
            return
        yield chosen
        with lock:
            for spec in chosen:
                failed = math.isnan(scores[spec])
                value, state = (None, TrialState.FAIL) if failed else (scores[spec], TrialState.COMPLETE)
                study.tell(trials[spec].number, value, state, skip_if_finished=True)


def connect(storage: str | None, name: str, settings: Mapping[str, Any], folder: Path) -> BaseStorage:
    """Return the storage of a study, which is created, or checked to be of the same search and the same folder."""
    identity = folder / ".study"
    if not identity.exists():
        identity.write_text(uuid.uuid4().hex, encoding="utf-8")
    new = json.loads(json.dumps({**settings, "folder": identity.read_text(encoding="utf-8")}, default=str))
    try:
        where = _storage(storage)
        study = optuna.create_study(storage=where, study_name=name, direction="maximize", load_if_exists=True)
        if not study.user_attrs:
            study.set_user_attr("search", new)
        old = study.user_attrs.get("search", {})
    except (SQLAlchemyError, optuna.exceptions.OptunaError, ImportError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"--storage {_hidden(storage)}: {reason}") from error
    different = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    if different == ["folder"]:
        message = f"{folder} is not the folder with the runs of this study, which its processes share."
        raise ValueError(f"--out: {message} Use that folder or another --storage.")
    if different:
        key = different[0]
        message = f"has a study {name!r} with {key} {old.get(key)}, here {new.get(key)}; use another storage."
        raise ValueError(f"--storage {_hidden(storage)}: {message}")
    return where


def _hidden(storage: str | None) -> str:
    """Return the storage as messages name it, without a password."""
    try:
        return make_url(str(storage)).render_as_string()
    except SQLAlchemyError:  # a file
        return str(storage)


def _storage(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    if is_file := "://" not in storage:
        if not storage.endswith(".log"):
            raise ValueError("expected a journal file, such as tuning.log, or a URL, such as sqlite:///tuning.db.")
        path: str | None = storage
    else:
        url = make_url(storage)
        path = url.database if url.get_backend_name() == "sqlite" else None
    if path and not Path(path).parent.is_dir():
        raise ValueError(f"no folder {Path(path).parent}.")
    return JournalStorage(JournalFileBackend(storage)) if is_file else RDBStorage(storage)
