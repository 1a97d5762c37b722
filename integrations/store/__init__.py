"""The store of runs that all domains share; see :mod:`counterpoint.integrations.store.run`."""

from .files import as_json, atomic, finite
from .grid import GridError, run_grid
from .progress import plain_warnings, track
from .reproduce import checksum, rng_state, seed_everything, set_rng_state, versions
from .run import BusyError, Embeddings, Run, canonical, check_names, find_runs

__all__ = [
    "BusyError",
    "Embeddings",
    "GridError",
    "Run",
    "as_json",
    "atomic",
    "canonical",
    "check_names",
    "checksum",
    "find_runs",
    "finite",
    "plain_warnings",
    "rng_state",
    "run_grid",
    "seed_everything",
    "set_rng_state",
    "track",
    "versions",
]
