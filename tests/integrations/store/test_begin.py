"""A grid that cannot begin leaves nothing behind."""

from __future__ import annotations

import pytest

from counterpoint.integrations import store
from counterpoint.integrations.compare.comparison import find_loss


def test_a_grid_whose_data_or_packages_are_missing_makes_no_folder(tmp_path):
    def prepare():
        raise ImportError("graphs need torch_geometric")

    cell = {"domain": "graph", "dataset": "demo", "objective": "infonce:t=0.2", "seed": 0}
    with pytest.raises(ImportError, match="graphs need"):
        store.run_grid(lambda run: None, [cell], tmp_path / "runs", prepare=prepare)
    assert not (tmp_path / "runs").exists()


def test_a_script_without_a_loss_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('nothing')\n")
    with pytest.raises(ValueError, match="auto: found 0 losses to replace"):
        find_loss("runs", "c0de", ["train.py"], [], [])
    assert not (tmp_path / "runs").exists()
