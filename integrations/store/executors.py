"""Places that train the runs of a grid, as ``--on`` names them: ``slurm:partition=gpu,time=60``, ``dask:tcp://...``.

Reading a place imports nothing; opening it imports the library of the cluster, from the extra ``cluster``.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from counterpoint.install import install
from counterpoint.names import check_known

LOCAL = "local"
UNSAFE = re.compile(r"""[\s\x00-\x1f\x7f"'`\\$;#<>]""")
PATIENCE = 10  # seconds to find a scheduler
LOOK = 2.0  # seconds between two looks at Slurm's queue
SQUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%i %r")
# reasons for which Slurm lets a job wait that no free node will end
STUCK = {"AccountNotAllowed", "BadConstraints", "JobHeldAdmin", "JobHeldUser", "PartitionConfig", "PartitionDown"}
STUCK |= {"InvalidAccount", "InvalidQOS", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit"}
FOLDER = ".cluster"  # in the folder of runs, for what submitit writes

# what --on slurm:KEY=VALUE passes to submitit's update_parameters, and the kind of the value
SLURM: dict[str, tuple[str, type]] = {
    "partition": ("slurm_partition", str),
    "account": ("slurm_account", str),
    "qos": ("slurm_qos", str),
    "constraint": ("slurm_constraint", str),
    "gpus": ("gpus_per_node", int),
    "cpus": ("cpus_per_task", int),
    "mem": ("mem_gb", float),
    "time": ("timeout_min", int),
    "most": ("slurm_array_parallelism", int),
}
RAY: dict[str, tuple[str, type]] = {"gpus": ("num_gpus", float), "cpus": ("num_cpus", float)}
KEYS: dict[str, dict[str, tuple[str, type]]] = {LOCAL: {}, "slurm": SLURM, "ray": RAY, "dask": {}}


class Place(NamedTuple):
    """Where to train: a kind of cluster, its address if it has one, and what a run needs of it."""

    kind: str
    address: str
    options: dict[str, Any]


def parse(text: str) -> Place:
    """Read ``KIND[:ADDRESS][:KEY=VALUE,...]``; raise ``ValueError`` for what no cluster here takes."""
    if (wrong := UNSAFE.search(text)) is not None:  # it would reach the header of a batch script
        raise ValueError(f"--on: {wrong[0]!r} is not allowed in a place, got {text!r}.")
    kind, _, rest = text.partition(":")
    check_known("--on: unknown place", kind, KEYS)
    address, options = [], {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            address.append(word)
            continue
        if not KEYS[kind]:
            raise ValueError(f"--on {kind}: {kind} takes no keys, got {key!r}.")
        check_known(f"--on {kind}: unknown key", key, KEYS[kind])
        name, convert = KEYS[kind][key]
        try:
            options[name] = convert(value)
        except ValueError:
            raise ValueError(f"--on {kind}: {key} must be a number, got {value!r}.") from None
    if len(address) > (kind in ("ray", "dask")):
        hint = f"as {kind}:KEY=VALUE, with {', '.join(KEYS[kind])}" if KEYS[kind] else f"as {kind} alone"
        raise ValueError(f"--on {kind}: expected it {hint}, got {text!r}.")
    return Place(kind, "".join(address), options)


@contextmanager
def opened(text: str, root: Path) -> Generator[Any, None, None]:
    """Connect to a place and yield an executor for it; raise ``ValueError`` if none can be reached.

    Args:
        text: see :func:`parse`.
        root: the folder of runs.
    """
    place = parse(text)
    with {"slurm": _slurm, "dask": _dask, "ray": _ray}[place.kind](place, root) as executor:
        yield executor


@contextmanager
def _slurm(place: Place, root: Path) -> Generator[Any, None, None]:
    folder = root.resolve() / FOLDER
    if not str(folder).isprintable():
        raise ValueError(f"--on slurm: control characters are not allowed in the folder of runs, got {str(root)!r}.")
    submitit = _library("submitit", "slurm")
    try:
        executor = submitit.AutoExecutor(folder, cluster="slurm")
    except RuntimeError:
        raise ValueError("--on slurm: no Slurm here (srun is not found).") from None
    executor.update_parameters(name="counterpoint", **place.options)
    yield SlurmExecutor(executor)


class SlurmExecutor:
    """Submits functions through submitit, and asks ``squeue`` what is left; clusters without accounting have no sacct.

    Args:
        executor: submitit's.
    """

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.jobs = list[Any]()
        self.queue: dict[str, str] = {}  # jobs, and why they wait
        self.looks, self._looked = 0, 0.0
        self._stuck = set[str]()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Submit all enclosed jobs as one array."""
        with _submitting(), self.executor.batch():
            yield

    def submit(self, function: Callable[..., Any], /, *args: Any) -> SlurmTask:
        """Submit a job; within ``batch()``, an element of one array."""
        with _submitting():
            self.jobs.append(self.executor.submit(function, *args))
        return SlurmTask(self, self.jobs[-1])

    def look(self) -> int:
        """Read the queue, if that was not done just now, and return how often it was read."""
        if time.monotonic() - self._looked > LOOK:
            done = subprocess.run(SQUEUE, capture_output=True, text=True)
            self._looked = time.monotonic()
            if not done.returncode:  # else the controller is away
                lines = (line.partition(" ") for line in done.stdout.splitlines())
                self.queue, self.looks = {job: reason.strip() for job, _, reason in lines}, self.looks + 1
            for reason in STUCK.intersection(self.queue.get(job.job_id, "") for job in self.jobs) - self._stuck:
                self._stuck.add(reason)
                message = f"--on slurm: jobs wait, and no node that becomes free will end it: {reason}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return self.looks


@contextmanager
def _submitting() -> Iterator[None]:
    """Raise ``ValueError`` in one line if sbatch refuses."""
    from submitit.core.utils import FailedJobError

    try:
        with redirect_stderr(StringIO()):  # where submitit prints the lines of the error, too
            yield
    except FailedJobError as error:
        lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines() or [""]
        raise ValueError(f"--on slurm: {lines[0].strip()}") from None


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
def _dask(place: Place, root: Path) -> Generator[Any, None, None]:
    distributed = _library("distributed", "dask")
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
def _ray(place: Place, root: Path) -> Generator[Any, None, None]:
    ray = _library("ray", "ray")
    address = place.address or os.environ.get("RAY_ADDRESS") or "auto"
    before = ray.is_initialized()
    if not before:
        try:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if port.isdecimal():  # if nothing listens there, Ray itself waits minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
            ray.init(address, log_to_driver=False, logging_level="error")
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            raise ValueError(f"--on ray: no cluster at {address}: {str(error).partition(chr(10))[0]}") from None
    try:
        yield RayExecutor(ray, place.options)
    finally:
        if not before:
            ray.shutdown()


class RayExecutor:
    """Submits functions as tasks of Ray, which are not repeated when their worker dies; a grid does that itself.

    Args:
        ray: the module, connected to a cluster.
        options: of ``ray.remote``, such as ``num_gpus``.
    """

    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        self.remote = ray.remote(max_retries=0, **options)

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Start a task; cancelled ones end when the grid does."""
        return self.remote(function).remote(*args).future()


def _library(name: str, place: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"--on {place} needs {name}: {install('cluster')}", name=name) from None
