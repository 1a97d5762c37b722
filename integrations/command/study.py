"""The search of ``counterpoint tune`` as an Optuna study, which several processes and machines may share.

They also share the folder of the runs. Its lock lets one process at a time choose a setting, so that none is chosen
twice. A trial belongs to no process: where nothing is left to choose, a process trains the runs of the trials that are
not finished. The store waits for runs that another process is training, and resumes those of a process that died.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

import counterpoint as cp
from counterpoint.hyper import is_number

from .coordinate import WEIGHT, changed, proposals

START = "start"  # stands for what the first spec has, where its text or its terms have no single number
ATTEMPTS = 20  # of TPE, before it takes a random setting that is new


class Space:
    """The settings that a search can reach: each parameter keeps its first value or takes one of its grid.

    Args:
        start: the first spec.
        grids: the values to try of each parameter.
    """

    def __init__(self, start: str, grids: Mapping[str, Sequence[float]]) -> None:
        self.start, self.grids = start, grids
        self.is_canonical = start == str(cp.objective(start))
        self.distributions: dict[str, CategoricalDistribution] = {}
        for name, value in _values(start, grids).items():
            numbers = sorted({*([] if value == START else [value]), *grids[name]})
            words = [START] if value == START or not self.is_canonical else []
            self.distributions[name] = CategoricalDistribution([*words, *numbers])

    def params(self, spec: str) -> dict[str, Any]:
        """Return the parameters of a spec by their names."""
        raw = spec == self.start and not self.is_canonical
        return dict.fromkeys(self.grids, START) if raw else _values(spec, self.grids)

    def spec(self, params: Mapping[str, Any]) -> str:
        """Return the spec with these parameters."""
        if all(value == START for value in params.values()):
            return self.start
        data = cp.objective(self.start).to_dict()
        for name, value in params.items():
            data = data if value == START else changed(data, name, value)
        return str(cp.from_dict(data))

    def specs(self) -> list[str]:
        """Return all specs, sorted."""
        choices = [kind.choices for kind in self.distributions.values()]
        return sorted({self.spec(dict(zip(self.distributions, values, strict=True))) for values in product(*choices)})

    def trials(self, study: optuna.Study) -> dict[str, FrozenTrial]:
        """Return the trials that have chosen their setting, by spec."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if set(trial.params) == set(self.distributions)]
        return {self.spec(trial.params): trial for trial in trials}


def _values(spec: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the number that each parameter has in a spec; START if it has several."""
    data = cp.objective(spec).to_dict()
    values = {name: set(_numbers(data, name)) for name in names}
    return {name: numbers.pop() if len(numbers) == 1 else START for name, numbers in values.items()}


def _numbers(data: Mapping[str, Any], name: str) -> Iterator[float]:
    """Yield the values that :func:`.coordinate.changed` would change."""
    if data["name"] == "sum":
        for i, (weight, term) in enumerate(data["terms"]):
            if name == WEIGHT and i and is_number(weight):
                yield weight
            yield from _numbers(term, name)
        return
    if is_number(data.get(name)):
        yield data[name]
    if "objective" in data:
        yield from _numbers(data["objective"], name)


def score(trial: FrozenTrial) -> float:
    """The value of a trial; NaN if it failed."""
    return math.nan if trial.value is None else trial.value


# ---- samplers ----------------------------------------------------------------------------------


class GridSampler(BaseSampler):
    """A sampler that chooses among the settings of a :class:`Space`, each at most once.

    Args:
        start: the spec of the first trial.
        grids: the values to try of each parameter.
        budget: largest number of settings to try.
    """

    def __init__(self, start: str, grids: Mapping[str, Sequence[float]], budget: int) -> None:
        self.space, self.budget = Space(start, grids), budget

    @abstractmethod
    def new(self, study: optuna.Study) -> list[str]:
        """Return the specs to choose from now; none at the end, or while trials must finish first."""

    def choose(self, specs: list[str], study: optuna.Study, trial: FrozenTrial) -> str:
        """Choose one of the specs that :meth:`new` returned."""
        return specs[0]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self.space.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        specs = self.new(study)
        return self.space.params(self.choose(specs, study, trial)) if specs else {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise RuntimeError(f"{param_name}: not a parameter of the search, or nothing is left to choose now.")


class CoordinateSampler(GridSampler):
    """The coordinate-wise search of ``counterpoint tune``: the same settings in the same order."""

    def new(self, study: optuna.Study) -> list[str]:
        trials, scores = self.space.trials(study), dict[str, float]()
        for specs in proposals(self.space.start, self.space.grids, self.budget, scores):
            if new := [spec for spec in specs if spec not in trials]:
                return new
            if not all(trials[spec].state.is_finished() for spec in specs):
                break
            scores.update((spec, score(trials[spec])) for spec in specs)
        return []


class GridTPESampler(GridSampler):
    """Optuna's TPE over the same grids, from the same start, without repetitions."""

    def new(self, study: optuna.Study) -> list[str]:
        trials = self.space.trials(study)
        if not trials:
            return [self.space.start]
        return [spec for spec in self.space.specs() if spec not in trials] if len(trials) < self.budget else []

    def choose(self, specs: list[str], study: optuna.Study, trial: FrozenTrial) -> str:
        tpe = TPESampler(seed=trial.number, n_startup_trials=max(2, min(10, self.budget // 3)))
        for _ in range(ATTEMPTS if len(specs) > 1 else 0):
            kinds = self.space.distributions.items()
            spec = self.space.spec({name: tpe.sample_independent(study, trial, name, kind) for name, kind in kinds})
            if spec in specs:
                return spec
        return random.Random(trial.number).choice(specs)


SAMPLERS: dict[str, type[GridSampler]] = {"coordinate": CoordinateSampler, "tpe": GridTPESampler}


# ---- the search --------------------------------------------------------------------------------


def search(
    sampler: GridSampler,
    measure: Callable[[list[str]], Mapping[str, float]],
    folder: Path,
    *,
    storage: str | None,
    name: str,
    settings: Mapping[str, Any],
    jobs: int = 1,
) -> dict[str, float]:
    """Search until the budget that all processes share is spent, and return the score of each spec by trial.

    Args:
        sampler: of the space to search, with its budget.
        measure: returns the scores of specs; NaN for those that failed. It waits for other processes.
        folder: of the runs, the same for all processes.
        storage: the file of a journal or the URL of a database; None for a study in memory.
        name: of the study.
        settings: what must be the same in all processes.
        jobs: settings to measure at a time in this process.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".study.lock")
    space = sampler.space
    what = {"start": space.start, "budget": sampler.budget, "grids": space.grids, "sampler": type(sampler).__name__}
    with lock:
        study = opened(storage, name, {**what, **settings}, folder)
    study.sampler = sampler
    while True:
        with lock:
            for empty in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if not empty.params:  # its process died before it chose
                    study.tell(empty.number, state=TrialState.FAIL)
            mine: set[int] = set()
            while len(mine) < jobs and sampler.new(study):
                trial = study.ask(dict(space.distributions))
                trial.set_user_attr("spec", space.spec(trial.params))
                mine.add(trial.number)
            trials = space.trials(study)
        running = {spec: one.number for spec, one in trials.items() if not one.state.is_finished()}
        chosen = {spec: number for spec, number in running.items() if not mine or number in mine}
        if not chosen:
            return {spec: score(one) for spec, one in trials.items()}
        scores = measure(list(chosen))
        with lock:
            for spec, number in chosen.items():
                failed = math.isnan(scores[spec])
                value, state = (None, TrialState.FAIL) if failed else (scores[spec], TrialState.COMPLETE)
                study.tell(number, value, state, skip_if_finished=True)


def opened(storage: str | None, name: str, settings: Mapping[str, Any], folder: Path) -> optuna.Study:
    """Open or create a study, and check that it is of the same search and the same folder."""
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
    return study


def _hidden(storage: str | None) -> str:
    """The storage as messages name it, without a password."""
    try:
        return make_url(storage or "").render_as_string()
    except SQLAlchemyError:  # a file
        return storage or ""


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
