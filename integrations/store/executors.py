"""Places that train the runs of a grid, as ``--on`` names them: ``slurm:partition=gpu,time=60``, ``dask:tcp://...``.

Reading a place imports nothing; opening it imports the library of the cluster, from the extra ``cluster``.
"""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

from counterpoint.names import check_known

from ..domain import require

T = TypeVar("T")

LOCAL = "local"
UNSAFE = re.compile(r"""[\s\x00-\x1f\x7f"'`\\$;#<>]""")
PATIENCE = 10  # seconds to find a scheduler
LOOK = 2  # seconds between two looks at Slurm's queue
SQUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%i")

TEXTS = ("partition", "account", "qos", "constraint")
SLURM = {key: f"slurm_{key}" for key in TEXTS} | {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "mem": "mem_gb"}
SLURM |= {"time": "timeout_min", "most": "slurm_array_parallelism"}

# by kind: the library, and how it calls what --on KIND:KEY=VALUE says
PACKAGES = {LOCAL: "", "slurm": "submitit", "ray": "ray", "dask": "distributed"}
KEYS = {LOCAL: {}, "slurm": SLURM, "ray": {"gpus": "num_gpus", "cpus": "num_cpus"}, "dask": {}}


class Place(NamedTuple):
    """Where to train: a kind of cluster, its address if it has one, and the resources of a run."""

    kind: str
    address: str
    options: dict[str, str | float]


class Submits(Protocol):
    """An executor: of :mod:`concurrent.futures`, Dask or submitit, whose tasks have the methods of a future.

    Its ``batch()`` is used if it has one.
    """

    def submit(self, function: Callable[..., T], /, *args: object) -> Future[T]: ...


def parse(text: str) -> Place:
    """Read ``KIND[:ADDRESS][,KEY=VALUE,...]``; raise ``ValueError`` for unknown kinds and keys."""
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
        try:
            options[KEYS[kind][key]] = value if key in TEXTS else int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise ValueError(f"--on {kind}: {key} must be a number, got {value!r}.") from None
    return Place(kind, address, options)


def opened(text: str, root: Path) -> AbstractContextManager[Any]:
    """Connect to a place and return an executor for it, to be closed; raise ``ValueError`` if none can be reached."""
    place = parse(text)
    require(f"--on {place.kind} needs", "cluster", PACKAGES[place.kind])
    return {"slurm": _slurm, "dask": _dask, "ray": _ray}[place.kind](import_module(PACKAGES[place.kind]), place, root)


@contextmanager
def _slurm(submitit: Any, place: Place, root: Path) -> Iterator[Any]:
    from submitit.core.utils import FailedJobError
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class Queue(SlurmInfoWatcher):  # type: ignore[misc]
        """Asks ``squeue`` which jobs are left, as some clusters have no ``sacct``."""

        def update(self) -> None:
            queue = subprocess.run(SQUEUE, capture_output=True, text=True)
            self._last_status_check = time.time()
            if not queue.returncode:  # else the controller is away
                left = queue.stdout.split()
                self._info_dict = {job: {"State": "PENDING" if job in left else "ENDED"} for job in self._registered}

    @contextmanager
    def batch() -> Iterator[None]:
        """Submit all enclosed jobs as one array; raise ``ValueError`` in one line if sbatch refuses."""
        try:
            with redirect_stderr(StringIO()), executor.batch():  # submitit prints the lines of the error, too
                yield
        except FailedJobError as error:
            lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines() or [""]
            raise ValueError(f"--on slurm: {lines[0].strip()}") from None

    folder = root.resolve() / ".cluster"  # for what submitit writes
    if not str(folder).isprintable():
        raise ValueError(f"--on slurm: control characters are not allowed in the folder of runs, got {str(root)!r}.")
    try:
        executor = submitit.AutoExecutor(folder, cluster="slurm")
    except RuntimeError:
        raise ValueError("--on slurm: no Slurm here (srun is not found).") from None
    executor.update_parameters(name="counterpoint", **place.options)
    SlurmJob.watcher, SlurmJob._results_timeout_s = Queue(LOOK), 2 * LOOK  # a reply may be seen after the job's end
    yield SimpleNamespace(submit=executor.submit, batch=batch)


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
