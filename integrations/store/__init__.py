"""The store of runs: train a grid of cells, and resume after any interruption.

A *cell* is a dict of plain JSON: ``domain``, ``dataset``, ``objective``, ``seed``, and every other argument that
changes the result. ``objective`` is a spec, ``host`` for the own loss of a code base, or ``None`` for a row that no
objective trains (an untrained encoder); ``label`` names the row in tables and is required where there is no spec. A
*run* is a cell and its folder::

    ROOT/<domain>/<dataset>/<name>-<hash>/seed<k>/
        run.json                  arguments, versions, data checksum, command, status, result; replaced as a whole
        metrics.jsonl             one line of numbers per logged step
        checkpoint.pt             the last checkpoint
        encoder.safetensors       weights of the trained encoder
        error.txt                 the traceback, if the run failed

The hash covers every argument but the seed. To train a grid, write a function that trains one run::

    def train(run):
        model, start = ..., 0
        if state := run.load():                          # None for a new run
            model.load_state_dict(state["model"]), ...
            store.set_rng_state(state["rng"])
            start = state["step"]
        for epoch in run.track(range(start, epochs), total=epochs):
            ...
            run.log(epoch + 1, loss=loss)
            run.save({"model": model.state_dict(), "rng": store.rng_state()}, epoch + 1)
        run.finish({"accuracy": accuracy}, folds=folds)

    runs = store.run_grid(train, cells, "runs", jobs=2)

Log before you save: lines after the last checkpoint are dropped on resume and logged again.
"""

from typing import TYPE_CHECKING

from counterpoint import names

if TYPE_CHECKING:
    from .cell import canonical, check_names
    from .errors import BusyError, DamagedError, GridError
    from .files import as_json, atomic, finite
    from .grid import run_grid
    from .progress import plain_warnings, track
    from .reproduce import checksum, rng_state, seed_everything, set_rng_state, versions
    from .run import Run, find_runs

__all__ = [
    "BusyError", "DamagedError", "GridError", "Run", "as_json", "atomic", "canonical", "check_names",
    "checksum", "find_runs", "finite", "plain_warnings", "rng_state", "run_grid", "seed_everything", "set_rng_state",
    "track", "versions",
]  # fmt: skip

__getattr__ = names.lazy(__name__, ("errors", "cell", "files", "progress", "reproduce", "run", "grid"), __all__)
