"""examples/studies/grids.py: the grids of a study on other machines, and their cells by number."""

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
    return grids.run(toy_grid.train, [{**CELLS[2], "objective": best}, *CELLS[2:]], root / "test", last=True)


def test_cells_are_numbered_through(tmp_path, capsys, monkeypatch):
    def ends(*words):
        with pytest.raises(SystemExit, match="0"):
            study(words, tmp_path)
        return capsys.readouterr().out.splitlines()

    listed = ends("--list-cells")
    assert [line.partition("  ")[0] for line in listed] == ["0", "1"]
    assert not list(tmp_path.rglob("run.json"))
    with pytest.raises(ValueError, match=r"from 0 to 1, got 2; what follows depends on the results of these\.$"):
        study(["--cell", "2"], tmp_path)
    ends("--cell", "1")
    assert len(list(tmp_path.rglob("run.json"))) == 1
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    ends("--cell")
    later = ends("--list-cells")
    assert later[:2] == listed
    assert [line.partition("  ")[0] for line in later] == ["0", "1", "2", "3"]  # one of three cells comes twice
    for number in ("2", "3"):
        ends("--cell", number)
    with pytest.raises(ValueError, match=r"from 0 to 3, got 4\.$"):
        study(["--cell", "4"], tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")}
    runs = study([], tmp_path)
    assert [run.done for run in runs] == [True] * 3
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")} == written
    assert len(written) == 4


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
