"""Places that train the runs of a grid, as ``--on`` names them: ``slurm:partition=gpu,time=60``, ``dask:tcp://...``.

Reading a place imports nothing; opening it imports the library of the cluster, from the extra ``cluster``.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from counterpoint.install import install
from counterpoint.names import check_known

LOCAL = "local"
UNSAFE = re.compile(r"""[\s\x00-\x1f\x7f"'`\\$;#<>]""")
PATIENCE = 10  # seconds to find a scheduler
LOOK = 2.0  # seconds between two looks at Slurm's queue
SQUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%i")

TEXTS = ("partition", "account", "qos", "constraint")
SLURM = {key: f"slurm_{key}" for key in TEXTS} | {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "mem": "mem_gb"}
SLURM |= {"time": "timeout_min", "most": "slurm_array_parallelism"}

# by kind: the library, and how it calls what --on KIND:KEY=VALUE says
PACKAGES = {LOCAL: "", "slurm": "submitit", "ray": "ray", "dask": "distributed"}
KEYS = {LOCAL: {}, "slurm": SLURM, "ray": {"gpus": "num_gpus", "cpus": "num_cpus"}, "dask": {}}


class Place(NamedTuple):
    """Where to train: a kind of cluster, its address if it has one, and what a run needs of it."""

    kind: str
    address: str
    options: dict[str, Any]


def parse(text: str) -> Place:
    """Read ``KIND[:ADDRESS][,KEY=VALUE,...]``; raise ``ValueError`` for what no cluster here takes."""
    if (wrong := UNSAFE.search(text)) is not None:  # it would reach the header of a batch script
        raise ValueError(f"--on: {wrong[0]!r} is not allowed in a place, got {text!r}.")
    kind, _, rest = text.partition(":")
    check_known("--on: unknown place", kind, KEYS)
    address, options = "", {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        if not equals and kind in ("ray", "dask") and not address:
            address = word
            continue
        if not equals or not KEYS[kind]:
            raise ValueError(f"--on {kind}: takes {', '.join(KEYS[kind]) or 'no keys'}, as KEY=VALUE, got {word!r}.")
        check_known(f"--on {kind}: unknown key", key, KEYS[kind])
        name = KEYS[kind][key]
        try:
            options[name] = value if key in TEXTS else int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise ValueError(f"--on {kind}: {key} must be a number, got {value!r}.") from None
    return Place(kind, address, options)


def opened(text: str, root: Path) -> AbstractContextManager[Any]:
    """Connect to a place and return an executor for it, to be closed; raise ``ValueError`` if none can be reached."""
    place = parse(text)
    package = PACKAGES[place.kind]
    try:
        library = import_module(package)
    except ModuleNotFoundError as error:
        raise ImportError(f"--on {place.kind} needs {package}: {install('cluster')}", name=package) from error
    return {"slurm": _slurm, "dask": _dask, "ray": _ray}[place.kind](library, place, root)


@contextmanager
def _slurm(submitit: Any, place: Place, root: Path) -> Iterator[Any]:
    folder = root.resolve() / ".cluster"  # for what submitit writes
    if not str(folder).isprintable():
        raise ValueError(f"--on slurm: control characters are not allowed in the folder of runs, got {str(root)!r}.")
    try:
        executor = submitit.AutoExecutor(folder, cluster="slurm")
    except RuntimeError:
        raise ValueError("--on slurm: no Slurm here (srun is not found).") from None
    executor.update_parameters(name="counterpoint", **place.options)
    yield SlurmExecutor(executor)


class SlurmExecutor:
    """Submits functions through submitit, and asks ``squeue`` what is left, as some clusters have no ``sacct``."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.queue, self.looks, self._looked = set[str](), 0, 0.0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Submit all enclosed jobs as one array; raise ``ValueError`` in one line if sbatch refuses."""
        from submitit.core.utils import FailedJobError

        try:
            with redirect_stderr(StringIO()), self.executor.batch():  # submitit prints the lines of the error, too
                yield
        except FailedJobError as error:
            lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines() or [""]
            raise ValueError(f"--on slurm: {lines[0].strip()}") from None

    def submit(self, function: Callable[..., Any], /, *args: Any) -> SlurmTask:
        """Submit a job, an element of the array of ``batch()``."""
        return SlurmTask(self, self.executor.submit(function, *args))

    def look(self) -> int:
        """Read the queue, if that was not done just now, and return how often it was read."""
        if time.monotonic() - self._looked > LOOK:
            done = subprocess.run(SQUEUE, capture_output=True, text=True)
            self._looked = time.monotonic()
            if not done.returncode:  # else the controller is away
                self.queue, self.looks = {*done.stdout.split()}, self.looks + 1
        return self.looks


class SlurmTask:
    """A job of Slurm with the methods of a future."""

    def __init__(self, executor: SlurmExecutor, job: Any) -> None:
        self.executor, self.job = executor, job
        self.gone = 0  # the first look at which the job was not in the queue

    def done(self) -> bool:
        """Whether there is a reply, or the job has left the queue; a reply may be seen a little later than that."""
        looks = self.executor.look()
        if self.job.paths.result_pickle.exists():
            return True
        self.gone = 0 if self.job.job_id in self.executor.queue else self.gone or looks
        return bool(self.gone) and looks > self.gone + 1

    def result(self) -> Any:
        """What the function returned; raises if it failed, or if the job was killed."""
        if not self.job.paths.result_pickle.exists():
            raise ConnectionError(f"Slurm's job {self.job.job_id} ended without a reply")
        return self.job.result()

    def cancel(self) -> None:
        """Cancel the job."""
        self.job.cancel(check=False)


@contextmanager
def _dask(distributed: Any, place: Place, root: Path) -> Iterator[Any]:
    address = place.address or os.environ.get("DASK_SCHEDULER_ADDRESS")
    if not address:
        raise ValueError("--on dask: which scheduler? As dask:tcp://HOST:8786, or $DASK_SCHEDULER_ADDRESS.")
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"--on dask: no scheduler at {address}: {str(error).partition(chr(10))[0]}") from None
    with client:
        yield client.get_executor()


@contextmanager
def _ray(ray: Any, place: Place, root: Path) -> Iterator[Any]:
    address = place.address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdecimal():  # if nothing listens there, Ray itself waits minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        ray.init(address, log_to_driver=False, logging_level="error", ignore_reinit_error=True)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(f"--on ray: no cluster at {address}: {str(error).partition(chr(10))[0]}") from None
    remote = ray.remote(max_retries=0, **place.options)  # a grid itself repeats the tasks of a worker that dies
    try:
        yield SimpleNamespace(submit=lambda function, *args: remote(function).remote(*args).future())
    finally:
        ray.shutdown()
