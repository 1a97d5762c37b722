"""examples/studies/atlas.py: worlds have the faults they name, cells resume, tuning leaves the edge of a grid."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import pytest
import torch

import counterpoint as cp

for needed in ("matplotlib", "scipy"):
    pytest.importorskip(needed)


@pytest.fixture
def study(monkeypatch):
    module = importlib.import_module("atlas")
    monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(module, "SEEDS", 3)
    monkeypatch.setattr(module, "TUNING_SEEDS", 1)
    monkeypatch.setattr(module, "BATCH", 8)
    return module


def pictures(study, samples=40):
    """Samples of ten classes with eight views each; the last feature is the number of the sample."""
    x = torch.randn(9 * samples, 6, generator=torch.Generator().manual_seed(0))
    x[:, -1] = torch.arange(9 * samples) % samples
    rows = torch.arange(samples)
    y = rows % 10
    views = rows.unsqueeze(1) + samples * torch.arange(1, 9)
    return study.Source(x, views, rows, y, (x[:20], y[:20]), (x[:30], y[:30]), x[:30], lambda classes: 4)


def texts(study):
    x = torch.nn.functional.normalize(torch.randn(770, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    rows, y = torch.arange(770), torch.arange(770) % 77
    held_out = (x[:77], y[:77])
    return study.Source(x, rows.unsqueeze(1), rows, y, held_out, held_out, None, lambda classes: 5, guide=True)


@pytest.mark.slow
def test_every_row_of_every_regime_runs(study):
    """One cell of each kind, and the same numbers whether settings train together or alone."""
    seen = set()
    for dataset, source in (("images", pictures(study)), ("text", texts(study))):
        for regime, _, name, world, row in study.cells(dataset):
            kind = (
                row.template,
                bool(world.mined),
                row.extra and row.template,
                row.views > 2,
                row.margin,
                world.topics,
            )
            if kind in seen:
                continue
            seen.add(kind)
            first = dict(zip(row.axes, (row.first[0], *row.start.values()), strict=True))
            second = first | {row.axes[0]: row.first[1]}
            both = study.run(source, world, row, [first, second], [0, 1], "cpu", "test")
            alone = study.run(source, world, row, [first], [0, 1], "cpu", "test")
            for key, values in both.items():
                assert values.shape == (2, 2), (regime, name)
                assert (values[0] - alone[key][0]).abs().max() < 8, (regime, name)  # two of 30 test samples
    names = ("t", "prior", "beta", "mu", "sigma", "radius", "power", "lam", "w", "alpha", "bias")
    specs = [template.format(**dict.fromkeys(names, 0.5)) for template, *_ in seen]
    expected = {"dcl", "hcl", "adnce", "debpos", "dro", "mixnca", "alphacl", "mv", "nca", "supcon", "siglip"}
    assert expected <= {cp.objective(spec).terms()[0][1].name for spec in specs}


def test_cells_are_unique_and_the_informative_ones_come_first(study):
    for dataset in study.DATASETS:
        cells = list(study.cells(dataset))
        assert cells[0][0] == ("mined negatives" if dataset == "text" else "false negatives")
        for regime, dose in dict.fromkeys(cell[:2] for cell in cells):
            rows = {}
            for *_, name, world, row in (cell for cell in cells if cell[:2] == (regime, dose)):
                assert rows.setdefault(name, (world, row)) == (world, row), (regime, dose, name)
            assert study.PLAIN in rows or regime == "false negatives", (regime, dose)


def test_wrong_positives_are_as_many_as_they_say(study):
    study.STEPS = 200
    source = pictures(study)
    for persistent in (False, True):
        world = study.World(wrong=0.3, persistent=persistent)
        trials = study.trials(source, world, study.INFONCE, [0, 1])
        shown = source.table[trials.batches.rows][..., -1]
        wrong = shown[:, :, 1] != shown[:, :, 0]
        assert abs(float(wrong.float().mean()) - 0.3) < 0.12
        each = [wrong[:, 0][trials.batches.samples[:, 0] == sample].float().mean() for sample in range(40)]
        constant = all(float(share) in (0.0, 1.0) for share in each)
        assert constant == persistent


def test_known_false_negatives(study):
    source = pictures(study)
    for kept, expected in ((1.0, 40), (0.5, 20), (0.0, 10)):
        trials = study.trials(source, study.World(kept=kept), study.INFONCE, [0])
        assert abs(len(trials.ids[0].unique()) - expected) <= 4
        if kept < 1:
            assert all(len(trials.labels[0][trials.ids[0] == one].unique()) == 1 for one in trials.ids[0].unique())


def test_topical_batches_are_of_as_many_classes_as_they_say(study):
    trials = study.trials(texts(study), study.World(topics=3), study.INFONCE, [0, 1])
    batches = trials.batches
    for seed in (0, 1):
        labels = trials.labels[seed][batches.samples[:, seed]]
        assert [len(of_batch.unique()) for of_batch in labels] == [3, 3]
        shown = batches.rows[:, seed, 1] % 77  # the other view is a question of the same intent
        assert bool((shown == labels).all())


def test_mined_negatives_are_near_and_never_the_positive(study):
    trials = study.trials(texts(study), study.World(mined="plain"), study.INFONCE, [0])
    batches = trials.batches
    assert batches.negatives.shape == (2, 1, 8, 4)
    assert not bool((batches.negatives == batches.rows[:, :, 1].unsqueeze(-1)).any())
    assert not bool((batches.negatives == batches.rows[:, :, 0].unsqueeze(-1)).any())
    x = trials.table
    near = (x[batches.rows[:, :, 0]].unsqueeze(-2) * x[batches.negatives]).sum(-1)
    assert near.min() > (x[trials.clean[0]] @ x[trials.clean[0]].T).median()


def test_tuning_goes_beyond_the_edge(study, monkeypatch):
    asked = []

    def accuracy_peaks_at_3(source, world, row, settings, *_):
        asked.extend(settings)
        scores = [[-abs(torch.tensor(one["t"] / 3).log())] for one in settings]
        return {"accuracy": torch.tensor(scores)}

    monkeypatch.setattr(study, "run", accuracy_peaks_at_3)
    tuned = study.tune(None, study.World(), study.INFONCE, "cpu")
    assert max(one["t"] for one in asked) >= 3.2
    assert tuned["chosen"]["t"] == pytest.approx(3, rel=0.3)
    assert tuned["edges"] == []
    assert 8 <= len(asked) <= 12
    monkeypatch.setattr(
        study, "run", lambda s, w, r, settings, *_: {"accuracy": torch.tensor([[1 / one["t"]] for one in settings])}
    )
    assert study.tune(None, study.World(), study.INFONCE, "cpu")["edges"] == ["t"]


def test_a_finished_cell_is_not_repeated_and_a_cut_line_is(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "load_source", lambda dataset, out: pictures(study))
    two = [cell for cell in study.cells("images") if cell[2] in (study.PLAIN, study.ORACLE)][:2]
    monkeypatch.setattr(study, "cells", lambda dataset: iter(two))
    study.main(["images", "--out", str(tmp_path)])
    path = tmp_path / "images.jsonl"
    lines = path.read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [study.ORACLE, study.PLAIN]
    assert all(len(json.loads(line)["accuracy"]) == 3 for line in lines)
    path.write_text(lines[0] + "\n" + lines[1][:50])
    capsys.readouterr()
    study.main(["images", "--out", str(tmp_path)])
    assert capsys.readouterr().out.count("\n") == 1
    again = path.read_text().splitlines()
    assert json.loads(again[-1])["accuracy"] == json.loads(lines[1])["accuracy"]
    study.main(["images", "--out", str(tmp_path)])
    assert capsys.readouterr().out == ""


def test_an_unknown_data_set(study, capsys):
    with pytest.raises(SystemExit):
        study.main(["image"])
    assert "unknown data set 'image'" in capsys.readouterr().err


def test_the_report_finds_a_planted_gain(study, tmp_path, monkeypatch):
    report = importlib.import_module("atlas_report")
    monkeypatch.setattr(study, "SEEDS", 20)
    world = study.World(4, 1.0)
    rows = study.rows(0.25)
    planted = {study.PLAIN: 0.0, "DCL": -2.0, "HCL": 0.0, study.ORACLE: 4.0}
    some = [("false negatives", "4 classes", name, world, rows[name]) for name in (study.PLAIN, "DCL", "HCL")]
    some.append(("false negatives", "4 classes", study.ORACLE, replace(world, kept=0.0), study.INFONCE))
    monkeypatch.setattr(report, "cells", lambda dataset: iter(some))
    noise = torch.randn(4, 20, generator=torch.Generator().manual_seed(0)) * 0.3
    with (tmp_path / "images.jsonl").open("w") as file:
        for (_, _, name, of, row), jitter in zip(some, noise, strict=True):
            spec = row.template.format(**dict.fromkeys(row.axes, 0.2))
            record = {"key": report.key_of("images", of, row), "edges": [], "seconds": 1.0, "spec": spec}
            record["accuracy"] = (60 + planted[name] + jitter).tolist()
            file.write(json.dumps(record) + "\n")
    report.main(["--out", str(tmp_path), "--docs", str(tmp_path), "--table", str(tmp_path / "table.json")])
    cells = {cell["row"]: cell for cell in json.loads((tmp_path / "table.json").read_text())["cells"]}
    assert {name: cell["effect"] for name, cell in cells.items()} == {
        "DCL": "hurts",
        "HCL": "does nothing",
        study.ORACLE: "helps",
    }
    assert cells["DCL"]["recovered"] == pytest.approx(-0.5, abs=0.1)
    assert cells["DCL"]["objective"] == "dcl"
    assert cells["HCL"]["level"] == 0.25
    assert (tmp_path / "atlas.png").stat().st_size > 5000


def test_the_page_is_made_from_the_cells_beside_it(tmp_path):
    """A fresh clone rebuilds it without training: the committed summaries are what the committed cells give."""
    report = importlib.import_module("atlas_report")
    report.main(["--docs", str(tmp_path), "--table", str(tmp_path / "table.json")])
    for path, made in (("docs/atlas.json", "atlas.json"), ("integrations/atlas.json", "table.json")):
        assert (report.ROOT / path).read_text(encoding="utf-8") == (tmp_path / made).read_text(encoding="utf-8"), path
    for name in ("atlas.png", "atlas_doses.png"):
        assert (tmp_path / name).stat().st_size > 20_000


def test_finished_cells_are_collected_in_order_and_resumed_from(tmp_path, capsys):
    report, atlas = importlib.import_module("atlas_report"), importlib.import_module("atlas")
    source = report.ROOT / "docs" / "atlas" / "images.jsonl"
    lines = source.read_text(encoding="utf-8").splitlines()
    (tmp_path / "images.jsonl").write_text("\n".join([lines[2], lines[0], lines[1][:40]]))
    report.collect(tmp_path, tmp_path / "page")
    assert (tmp_path / "page" / "images.jsonl").read_text().splitlines() == [lines[0], lines[2]]
    said = "\n".join(report.progress("images", tmp_path / "page"))
    assert said.startswith("- `images`: 2 of ")
    assert "attacks: not begun" in said
    wanted = [atlas.key_of("images", world, row) for *_, world, row in atlas.cells("images")]
    assert set(atlas.finished(source)) <= set(wanted)


def test_the_readmes_table_says_what_the_atlas_found():
    report = importlib.import_module("atlas_report")
    text = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert report.fill(text) == text
    assert all(f"| {proposed} | " in text for proposed in report.PROPOSED)
    rows = {cell["row"] for cell in report.evidence.atlas()["cells"]}
    named = {row for _, *others in report.atlas.cells("images") for row in others if isinstance(row, str)}
    assert {row for rows, _ in report.PROPOSED.values() for row in rows} <= rows | named
