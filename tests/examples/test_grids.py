"""examples/studies/grids.py: the grids of a study on other machines."""

from __future__ import annotations

import argparse

import pytest
import toy_grid
from grids import Grids, add_flags

CELLS = toy_grid.cells(2)


def study(words, root):
    """Two grids, of which the second depends on the first."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    grids = Grids(parser.parse_args(words), progress=False)
    first = grids.run(toy_grid.train, CELLS[:2], root / "tuning")
    best = min(first, key=lambda run: run.result["last"]).arguments["objective"]
    return grids.run(toy_grid.train, [{**CELLS[2], "objective": best}, *CELLS[2:]], root / "test")


def test_a_place_reaches_the_grid(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        study(["--on", "slrum"], tmp_path)
    assert "unknown place 'slrum'. Did you mean 'slurm'?" in capsys.readouterr().err

    class Full:
        def submit(self, function, /, *args):
            raise OSError(f"no room for {args[-1]['seed']}")

    grids = Grids(progress=False)
    grids.on = Full()
    with pytest.raises(OSError, match="no room for 1"):
        grids.run(toy_grid.train, CELLS[2:], tmp_path)
