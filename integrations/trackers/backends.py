"""One class per tracker: start, lines, result, files, end. Each imports its package when it starts."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock  # torch itself requires it

PROJECT = "counterpoint"  # project or experiment, unless the tracker's own environment variable names another
PATIENCE = 10.0  # seconds that a server has to answer


@dataclass(frozen=True)
class Subject:
    """What trackers are told of a run, or of a report."""

    identifier: str
    name: str
    group: str
    config: Mapping[str, Any]
    tags: Mapping[str, str]
    root: Path
    folder: Path

    def plain(self) -> dict[str, Any]:
        """Convert to a dict that can be written as JSON."""
        return {**vars(self), "root": str(self.root), "folder": str(self.folder)}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Subject:
        """Create a subject from the dict that :meth:`plain` returned."""
        return cls(**{**plain, "root": Path(plain["root"]), "folder": Path(plain["folder"])})


class Tracker(ABC):
    """A run of a tracker, which starts or continues when it is built.

    Args:
        subject: the run of the store.
        step: the step of the first line to come; lines from it on are new.
    """

    name = ""

    @classmethod
    def check(cls) -> None:
        """Raise if the tracker cannot be used, such as for want of its server; by default nothing can go wrong."""
        return

    @abstractmethod
    def __init__(self, subject: Subject, step: int) -> None: ...

    @abstractmethod
    def has(self, step: int, name: str) -> bool:
        """Whether an earlier process has sent this number."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send a line."""

    def flush(self) -> None:  # noqa: B027
        """Send what is waiting to be sent together."""

    @abstractmethod
    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result of the run."""

    @abstractmethod
    def attach(self, files: Sequence[Path]) -> None:
        """Send the page and the text of a report."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run: ``done``, ``interrupted`` or ``failed``."""


class TensorBoard(Tracker):
    """Event files in the folder of the run; ``tensorboard --logdir`` finds them below the store."""

    name = "tensorboard"

    def __init__(self, subject: Subject, step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.step, self.config = step, {**subject.config, **subject.tags}
        # events of an earlier process from this step on are discarded
        self.writer: Any = SummaryWriter(str(subject.folder), purge_step=step if subject.folder.exists() else None)
        rows = "".join(f"| {key} | {value} |\n" for key, value in self.config.items())
        self.writer.add_text("config", f"| | |\n|---|---|\n{rows}", 0)

    def has(self, step: int, name: str) -> bool:
        return step < self.step

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self.writer.flush()

    def finish(self, result: Mapping[str, float]) -> None:
        from torch.utils.tensorboard.summary import hparams

        # not add_hparams, which begins another run for them
        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in self.config.items()}
        scores = {f"result/{name}": value for name, value in result.items()}
        for summary in hparams(plain, scores):
            self.writer.file_writer.add_summary(summary)
        for name, value in scores.items():
            self.writer.add_scalar(name, value, 0)

    def attach(self, files: Sequence[Path]) -> None:
        for file in files:
            if file.suffix == ".md":  # it shows no pages
                self.writer.add_text("report", file.read_text(encoding="utf-8"))

    def close(self, status: str) -> None:
        self.writer.close()


class Wandb(Tracker):
    """Weights & Biases; ``WANDB_MODE=offline`` writes to the store's folder, for ``wandb sync``."""

    name = "wandb"

    @classmethod
    def check(cls) -> None:
        silent = ("offline", "disabled", "dryrun")
        if os.environ.get("WANDB_MODE") in silent:  # without the package, which takes a second to import
            return
        import wandb

        if wandb.setup().settings.mode in silent:
            return
        if not wandb.login(prompt=False):
            raise ValueError("not logged in: run wandb login, or set WANDB_MODE=offline")
        wandb.Api(timeout=int(PATIENCE)).viewer  # noqa: B018  asks the server

    def __init__(self, subject: Subject, step: int) -> None:
        import wandb

        subject.root.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=subject.identifier,
            name=subject.name,
            group=subject.group,
            tags=[f"{key}: {value}"[:64] for key, value in subject.tags.items()],  # the longest that it takes
            config=dict(subject.config),
            dir=os.environ.get("WANDB_DIR", str(subject.root)),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", init_timeout=3 * PATIENCE),
        )
        self.first = self.run.starting_step  # of a resumed run, the step after the last one, which a server knows
        self.sent = Path(self.run.dir).parents[1] / f"{subject.identifier}.step" if self.run.offline else None
        if self.sent is not None and self.sent.exists():
            self.first = int(self.sent.read_text(encoding="utf-8")) + 1
        self.last = self.first - 1

    def has(self, step: int, name: str) -> bool:
        return bool(step < self.first)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)
        self.last = step

    def flush(self) -> None:
        if self.sent is not None and self.last >= self.first:
            self.sent.write_text(str(self.last), encoding="utf-8")

    def finish(self, result: Mapping[str, float]) -> None:
        self.run.summary.update({f"result/{name}": value for name, value in result.items()})

    def attach(self, files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(f"report-{self.run.id}", type="report")
        for file in files:
            artifact.add_file(str(file))
        self.run.log_artifact(artifact)

    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status == "failed"))


class MLflow(Tracker):
    """MLflow, at ``MLFLOW_TRACKING_URI``, or in the store; lines are sent together."""

    name = "mlflow"
    TAG = "counterpoint.run"
    TOGETHER = 500  # numbers in a request
    STATUS: ClassVar = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

    @classmethod
    def check(cls) -> None:
        if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
            cls._client(Path())[0].search_experiments(max_results=1)

    @staticmethod
    def _client(root: Path) -> tuple[Any, Path | None]:
        """The client, and the folder of files that are attached, where no address is set.

        MLflow itself would then write a data base and files to the folder where the command was started.
        """
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default it waits for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(PATIENCE)))
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # not that it creates its tables
        import mlflow
        from mlflow.tracking import MlflowClient

        if mlflow.is_tracking_uri_set():
            return MlflowClient(), None
        place = root.resolve() / "mlflow"
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".lock"):  # the first process creates the data base
            return MlflowClient(f"sqlite:///{place / 'mlflow.db'}"), place / "artifacts"

    def __init__(self, subject: Subject, step: int) -> None:
        self.client, files = self._client(subject.root)
        self.waiting = list[Any]()
        place = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT), files)
        same = self.client.search_runs([place], f"tags.`{self.TAG}` = '{subject.identifier}'", max_results=1)
        self.sent: set[tuple[int, str]] = set()
        if same:
            self.id = same[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            for key in same[0].data.metrics:
                self.sent |= {(metric.step, key) for metric in self.client.get_metric_history(self.id, key)}
            return
        from mlflow.entities import Param

        tags = {**subject.tags, self.TAG: subject.identifier, "group": subject.group}
        self.id = self.client.create_run(place, tags=tags, run_name=subject.name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in subject.config.items()]
        for start in range(0, len(params), 100):  # the most that it takes
            self.client.log_batch(self.id, params=params[start : start + 100])

    def _experiment(self, name: str, files: Path | None) -> str:
        """The identifier of the experiment, which is created if there is none."""
        from mlflow.exceptions import MlflowException

        if (experiment := self.client.get_experiment_by_name(name)) is None:
            try:
                return str(self.client.create_experiment(name, None if files is None else files.as_uri()))
            except MlflowException:  # another process has just created it
                experiment = self.client.get_experiment_by_name(name)
        return str(experiment.experiment_id)

    @staticmethod
    def _key(name: str) -> str:
        """A name as it is allowed there."""
        return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)

    def has(self, step: int, name: str) -> bool:
        return (step, self._key(name)) in self.sent

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        fresh = {key: value for name, value in numbers.items() if (step, key := self._key(name)) not in self.sent}
        self.waiting += [Metric(key, value, now, step) for key, value in fresh.items()]
        if len(self.waiting) >= self.TOGETHER:
            self.flush()

    def flush(self) -> None:
        while self.waiting:
            batch = self.waiting[: 2 * self.TOGETHER]
            self.client.log_batch(self.id, metrics=batch)
            del self.waiting[: len(batch)]

    def finish(self, result: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.waiting += [Metric(f"result/{self._key(name)}", value, now, 0) for name, value in result.items()]

    def attach(self, files: Sequence[Path]) -> None:
        for file in files:
            self.client.log_artifact(self.id, str(file))

    def close(self, status: str) -> None:
        self.flush()
        self.client.set_terminated(self.id, self.STATUS[status])


class Trackio(Tracker):
    """trackio, on this machine, or at ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL``; ``trackio show`` opens it."""

    name = "trackio"

    def __init__(self, subject: Subject, step: int) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        name = f"{subject.name} ({subject.identifier})"  # by which it finds a run again
        last = SQLiteStorage.get_max_step_for_run(project, name)
        self.last = -1 if last is None else last
        config = {**subject.config, **{f"tag_{key}": value for key, value in subject.tags.items()}}
        self.run = trackio.init(
            project,
            name=name,
            group=subject.group,
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def has(self, step: int, name: str) -> bool:
        return step <= self.last

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        if step > self.last:
            self.run.log(dict(numbers), step=step)

    def finish(self, result: Mapping[str, float]) -> None:
        self.run.log({f"result/{name}": value for name, value in result.items()})

    def attach(self, files: Sequence[Path]) -> None:
        for file in files:
            self.run.log_artifact(file, name=file.name, type="report")

    def close(self, status: str) -> None:
        from trackio import context_vars

        self.run.finish()
        if context_vars.current_run.get() is self.run:  # it would finish it again at exit
            context_vars.current_run.set(None)


BACKENDS: dict[str, type[Tracker]] = {tracker.name: tracker for tracker in (Wandb, Trackio, MLflow, TensorBoard)}
