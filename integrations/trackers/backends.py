"""One class per tracker. Each imports its package when it is used, and its client sends without being waited for."""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock  # torch itself requires it

from ..store.cell import dataset_name
from ..store.folder import local
from ..store.run import Run

PROJECT = "counterpoint"  # project or experiment, unless the tracker's own environment variable names another
PATIENCE = 10.0  # seconds that a server has to answer
MOST = 1000  # lines that are waited for at the end


class Subject:
    """A run, as trackers know it. A resumed run has the same identifier, a run begun anew another one."""

    def __init__(self, run: Run) -> None:
        self.config = arguments = run.arguments
        identity = json.dumps([run.folder.name, run.record["started"]])
        self.identifier = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self.name = f"{run.name}, seed {arguments['seed']}"
        self.group = f"{arguments['domain']}/{dataset_name(arguments)}"
        tagged = ("domain", "objective", "seed")
        self.tags = {name: str(arguments[name]) for name in tagged if arguments[name] is not None}
        self.root, self.folder = local(run.folder.store), run.path / "tensorboard"


class Tracker:
    """A run of a tracker, which starts or continues when it is built."""

    run: Any  # wandb's object, or trackio's, which has the same methods
    last = -1  # the last step that it has of an earlier start

    def __init__(self, subject: Subject) -> None: ...

    @classmethod
    def check(cls) -> None:
        """Raise if the tracker cannot be used, such as for want of its server; by default nothing can go wrong."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send a line."""
        self.run.log(dict(numbers), step=step)

    def finish(self, result: Mapping[str, float]) -> None:
        """Send the result of the run, by names such as ``result/accuracy``."""
        self.log(0, result)

    def close(self, status: str) -> None:
        """End the run: ``done``, ``interrupted`` or ``failed``."""


class TensorBoard(Tracker):
    """Event files in the folder of the run; ``tensorboard --logdir`` finds them below the store."""

    def __init__(self, subject: Subject) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        # a resumed run writes all its lines again: the events of an earlier start are discarded
        self.writer: Any = SummaryWriter(subject.folder, purge_step=0, flush_secs=2)
        rows = "".join(f"| {key} | {value} |\n" for key, value in {**subject.config, **subject.tags}.items())
        self.writer.add_text("config", f"| | |\n|---|---|\n{rows}", 0)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        self.writer.close()


class Wandb(Tracker):
    """Weights & Biases; ``WANDB_MODE=offline`` writes to the store's folder, the whole curve at each start."""

    @classmethod
    def check(cls) -> None:
        import wandb

        if wandb.setup().settings.mode in ("offline", "disabled", "dryrun"):
            return
        if not wandb.login(prompt=False):
            raise ValueError("not logged in: run wandb login, or set WANDB_MODE=offline")
        wandb.Api(timeout=int(PATIENCE)).viewer  # noqa: B018  asks the server

    def __init__(self, subject: Subject) -> None:
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
        self.last = self.run.starting_step - 1  # of a resumed run, which a server knows

    def finish(self, result: Mapping[str, float]) -> None:
        self.run.summary.update(dict(result))

    def close(self, status: str) -> None:
        self.run.finish(exit_code=int(status == "failed"))


class MLflow(Tracker):
    """MLflow, at ``MLFLOW_TRACKING_URI``, or in the store; a thread of its client sends lines together."""

    TAG = "counterpoint.run"

    @classmethod
    def check(cls) -> None:
        if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
            cls._client(Path())[0].search_experiments(max_results=1)

    @staticmethod
    def _client(root: Path) -> tuple[Any, str | None]:
        """The client, and the folder of files that are attached, where no address is set.

        MLflow itself would then write a data base and files to the folder where the command was started.
        """
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default it waits for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(PATIENCE)))
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # not that it creates its tables
        os.environ.setdefault("MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE", "1")  # lines stay in their order
        import mlflow
        from mlflow.tracking import MlflowClient

        if mlflow.is_tracking_uri_set():
            return MlflowClient(), None
        place = root.resolve() / "mlflow"
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".lock"):  # the first process creates the data base
            return MlflowClient(f"sqlite:///{place / 'mlflow.db'}"), (place / "artifacts").as_uri()

    def __init__(self, subject: Subject) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        self.client, files = self._client(subject.root)
        self.waiting = deque[Any](maxlen=MOST)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        if (experiment := self.client.get_experiment_by_name(name)) is None:
            with suppress(MlflowException):  # another process has just created it
                self.client.create_experiment(name, files)
            experiment = self.client.get_experiment_by_name(name)
        place = [experiment.experiment_id]
        if same := self.client.search_runs(place, f"tags.`{self.TAG}` = '{subject.identifier}'", max_results=1):
            self.id = same[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            histories = (self.client.get_metric_history(self.id, key) for key in same[0].data.metrics)
            self.last = max((metric.step for history in histories for metric in history), default=-1)
            return
        tags = {**subject.tags, self.TAG: subject.identifier, "group": subject.group}
        self.id = self.client.create_run(*place, tags=tags, run_name=subject.name).info.run_id
        self.client.log_batch(self.id, params=[Param(key, str(x)[:500]) for key, x in subject.config.items()])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        allowed = {name: "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name) for name in numbers}
        metrics = [Metric(allowed[name], value, now, step) for name, value in numbers.items()]
        self.waiting.append(self.client.log_batch(self.id, metrics=metrics, synchronous=False))

    def close(self, status: str) -> None:
        for sent in self.waiting:
            sent.wait()
        self.client.set_terminated(self.id, {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[status])


class Trackio(Tracker):
    """trackio, on this machine, or at ``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL``; ``trackio show`` opens it."""

    def __init__(self, subject: Subject) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        name = f"{subject.name} ({subject.identifier})"  # by which it finds a run again
        self.last = -1 if (last := SQLiteStorage.get_max_step_for_run(project, name)) is None else last
        config = {**subject.config, **{f"tag_{key}": value for key, value in subject.tags.items()}}
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = trackio.init(project, name=name, group=subject.group, config=config, resume="allow", **quiet)

    def finish(self, result: Mapping[str, float]) -> None:
        self.run.log(dict(result))

    def close(self, status: str) -> None:
        from trackio import context_vars

        self.run.finish()
        if context_vars.current_run.get() is self.run:  # it would finish it again at exit
            context_vars.current_run.set(None)


BACKENDS: dict[str, type[Tracker]] = {"wandb": Wandb, "trackio": Trackio, "mlflow": MLflow, "tensorboard": TensorBoard}
