"""A run of the toy grid that trackers follow, interrupted in the middle and resumed."""

from __future__ import annotations

import pytest
import toy_grid

from counterpoint.integrations import store, trackers

INTERRUPTED_AT = 4


def stopped(run):
    """Train, and be interrupted after a line that no checkpoint holds."""
    save = run.save

    def interrupt(state, step):
        if step == INTERRUPTED_AT:
            raise KeyboardInterrupt
        save(state, step)

    run.save = interrupt
    try:
        toy_grid.train(run)
    finally:
        del run.save


def trained_with_a_break(place, name):
    """Train a cell with a tracker, interrupted in the middle; return its run."""
    (cell, *_) = toy_grid.cells()
    with pytest.raises(KeyboardInterrupt):
        store.run_grid(trackers.tracked(stopped, [name]), [cell], place / "runs", progress=False)
    (run,) = store.run_grid(trackers.tracked(toy_grid.train, [name]), [cell], place / "runs", progress=False)
    assert run.done
    return run
