"""The studies of graphs and examples/graphs.py: equal budgets, supported claims, studies that resume."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

import counterpoint as cp

for needed in ("matplotlib", "scipy", "sklearn", "torch_geometric"):
    pytest.importorskip(needed)

TU = Path(os.environ.get("COUNTERPOINT_DATA", "."), "tu")
needs_tu = pytest.mark.skipif(
    not (os.environ.get("COUNTERPOINT_DATA") and TU.is_dir()), reason="COUNTERPOINT_DATA with TU data sets is not set"
)


@pytest.fixture
def study() -> ModuleType:
    return importlib.import_module("graphcl_tu")


def test_every_objective_has_the_same_budget_and_the_same_denominator(study):
    cells = study.tuning("MUTAG", 3, {})
    assert {len(found) for found in cells.values()} == {6 * 3}
    for row, grid in study.ROWS.items():
        assert len({str(cp.objective(spec)) for spec in grid}) == 6
        for part in (one for spec in grid for one in cp.objective(spec).modules()):
            assert getattr(part, "denominator", "negatives") in ("negatives", "paper"), row
    chosen = {row: grid[0] for row, grid in study.ROWS.items()}
    shown = study.reported("MUTAG", 2, chosen, {}, official=True)
    assert all(cell["part"] == "tune" and cell["seed"] >= 1000 for found in cells.values() for cell in found)
    assert all(cell["part"] != "tune" and cell["seed"] < 1000 for cell in shown)
    main = [cell for cell in shown if cell["label"] in (*study.ROWS, study.GRAPHCL)]
    assert {cell["pairing"] for cell in main} == {"one_way"}
    assert {cell["probe"] for cell in shown if cell["part"] == "report"} == {"svm"}


def test_the_words_claim_only_what_the_test_allows(study):
    def shown(seeds):
        base = ([80.0, 82.0, 81.0, 84.0] * 2)[:seeds]
        gaps = ([2, 2.1, 1.9, 2] * 2)[:seeds]
        rows = {
            study.GRAPHCL: base,
            "ADNCE": [v + g * sign for v, g, sign in zip(base, gaps, [1, -1] * 4, strict=False)],
            "DCL": [v + g for v, g in zip(base, gaps, strict=True)],
            "HCL": [v - g for v, g in zip(base, gaps, strict=True)],
        }
        rows["bag of nodes"] = [v + 5 + 0.1 * i for i, v in enumerate(base)]  # no part of the family
        summary = study.summaries(rows)
        return study.markdown({"MUTAG": {"seeds": seeds, "rows": summary, "papers": {study.GRAPHCL: "86.80±1.34"}}})

    table = shown(8)
    assert "| HCL | 79.8 ± 1.6 (-2.0 [-2.1, -1.9]) |" in table
    assert "| papers (official): GraphCL, t=0.2 | 86.80 ± 1.34 |" in table
    assert "higher: DCL (by 2.0); lower: HCL (by 2.0); cannot tell: ADNCE (differences of " in table
    assert "cannot tell: DCL, HCL, ADNCE." in shown(2).replace("ADNCE, DCL, HCL", "DCL, HCL, ADNCE")


@needs_tu
@pytest.mark.slow
def test_a_study_tunes_reports_and_goes_on_where_it_stopped(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "ROWS", {"DCL": ["dcl:t=0.2,denominator=negatives", "dcl:t=0.5,denominator=negatives"]})
    monkeypatch.setattr(study, "FACTORS", {})
    words = ["--preset", "quick", "--datasets", "MUTAG", "--out", str(tmp_path)]
    study.main(words)
    first = capsys.readouterr().out
    result = json.loads((tmp_path / "graphcl_tu.json").read_text())["MUTAG"]
    assert result["chosen"]["DCL"] in study.ROWS["DCL"]
    assert set(result["rows"]) >= {"DCL", study.GRAPHCL, "bag of nodes", "untrained encoder"}
    for name, row in result["rows"].items():
        assert len(row["values"]) == 2
        assert 50 < row["mean"] < 100, name
    assert re.search(r"\| papers \(official\): ADNCE, paper's setting \| 89\.04 ± 1\.30 \|", first)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")}
    assert len(written) == 2 + 2 * 8
    max(written).unlink()
    study.main(words)
    assert capsys.readouterr().out == first
    again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")}
    assert {path for path in written if again[path] != written[path]} == {max(written)}


def test_unknown_data_sets_are_one_clear_line(study, capsys):
    with pytest.raises(SystemExit) as stopped:
        study.main(["--datasets", "MUTAGG"])
    assert stopped.value.code == 2
    assert "Did you mean 'MUTAG'?" in capsys.readouterr().err


@pytest.mark.slow
def test_embedded_graphs_separate_chance_untrained_and_trained(monkeypatch, tmp_path, capsys):
    graphs = importlib.import_module("graphs")
    graphs.main(["--objectives", "hcl:t=0.2,denominator=negatives", "--graphs", "180", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "graphs.json").read_text())
    rows = result["summary"]
    floor, trained = rows["untrained encoder"], rows["hcl:t=0.2,denominator=negatives"]
    assert floor["mean"] > graphs.CHANCE + 20
    assert trained["mean"] > floor["mean"] + 4
    assert (tmp_path / "graphs.png").read_bytes().startswith(b"\x89PNG")
    assert "chance" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        graphs.main(["--seeds", "1"])
    assert "seeds must be at least 2" in capsys.readouterr().err
