"""Representation quality: the cache, the split by episodes, ridge regression, and what learns something."""

import importlib
import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

if find_spec("dm_control") is None or find_spec("gymnasium") is None:
    pytest.skip("dm_control is not installed", allow_module_level=True)

from counterpoint.integrations.control import representation as rep
from counterpoint.integrations.control.settings import AgentSettings
from counterpoint.integrations.report.papers import paper_number
from counterpoint.integrations.store.grid import run_grid

TASK = "cartpole-swingup"
TINY = {"episodes": 8, "length": 6, "updates": 4, "size": 20, "crop": 16, "filters": 4, "batch": 8}


def made_up(episodes=12, length=10, size=20, seed=0):
    """A bright dot whose place is the state, in noise; each episode goes its own way."""
    g = torch.Generator().manual_seed(seed)
    steps = 0.15 * torch.randn(episodes, length, 2, generator=g)
    place = (torch.randn(episodes, 1, 2, generator=g) + steps.cumsum(1)).tanh()
    grid = torch.linspace(-1.2, 1.2, size)
    x, y = place[..., 0, None, None], place[..., 1, None, None]
    dots = (-((grid - x) ** 2 + (grid[:, None] - y) ** 2) / 0.05).exp()
    noise = 0.1 * torch.rand(episodes, length, size, size, generator=g)
    frames = ((dots + noise).clamp(max=1) * 255).to(torch.uint8).unsqueeze(2).expand(-1, -1, 3, -1, -1).contiguous()
    return rep.Episodes(frames, place, ("place[0]", "place[1]"))


def test_stacks_and_targets_belong_together():
    data = made_up()
    known, new = data.split()
    assert len(known.frames) == 9
    stacks, targets = new.stacks(3), new.targets(3)
    assert stacks.shape == (3 * 8, 9, 20, 20)
    assert targets.shape == (3 * 8, 2)
    for row, (episode, at) in enumerate((e, t) for e in (9, 10, 11) for t in range(2, 10)):
        assert (stacks[row] == data.frames[episode, at - 2 : at + 1].flatten(0, 1)).all()
        assert (targets[row] == data.quantities[episode, at]).all()


def test_ridge_is_the_closed_form():
    torch.manual_seed(0)
    x, y, new = torch.randn(40, 5).double(), torch.randn(40, 2).double(), torch.randn(7, 5).double()
    found = rep._ridge(x, y, new)
    scaled, scaled_new = ((part - x.mean(0)) / x.std(0) for part in (x, new))
    for penalty, predicted in zip(rep.PENALTIES, found, strict=True):
        matrix = scaled.T @ scaled + penalty * len(x) * torch.eye(5)
        wanted = scaled_new @ torch.linalg.solve(matrix, scaled.T @ (y - y.mean(0))) + y.mean(0)
        assert torch.allclose(predicted, wanted)


def test_r2_is_one_for_what_is_there_and_zero_for_what_is_not():
    g = torch.Generator().manual_seed(0)
    group = torch.arange(100).repeat_interleave(10)
    x = torch.randn(1000, 6, generator=g)
    y = torch.stack([x[:, 0] - 2 * x[:, 3], torch.randn(1000, generator=g), torch.ones(1000)], dim=1)
    old, new = slice(0, 800), slice(800, None)
    linear, chance, constant = rep.ridge_r2(x[old], y[old], x[new], y[new], group[old]).tolist()
    assert linear > 0.999
    assert abs(chance) < 0.02
    assert constant != constant


def test_episodes_that_can_be_recognised_are_no_help():
    """Each episode has a colour and a value: what a split by frames would call perfect is worth nothing."""
    g = torch.Generator().manual_seed(0)
    colour, value = torch.randn(60, 50, generator=g), torch.randn(60, 1, generator=g)
    x, y = colour.repeat_interleave(10, 0), value.repeat_interleave(10, 0)
    x = x + 0.01 * torch.randn(x.shape, generator=g)
    group = torch.arange(60).repeat_interleave(10)
    by_episode = rep.ridge_r2(x[:450], y[:450], x[450:], y[450:], group[:450])
    odd = torch.arange(600) % 2 == 1
    by_frame = rep.ridge_r2(x[~odd], y[~odd], x[odd], y[odd], torch.arange(300))
    assert by_frame > 0.7
    assert by_episode < 0.2


@pytest.mark.parametrize("spec", ["infonce:t=0.2", "arcl(infonce:t=0.5):views=3"])
def test_training_finds_what_the_untrained_encoder_hides(spec):
    data, settings = made_up(40, 12), AgentSettings(size=20, crop=16, layers=2, filters=8, batch=32)
    known, new = (part.stacks(3) for part in data.split())
    scores = []
    for updates in (0, 60):
        torch.manual_seed(0)
        encoder = rep.pretrain(known, spec, settings, updates, "cosine")
        x, x_new = (rep.features(encoder, part, settings.crop) for part in (known, new))
        scores.append(rep.score(data, settings.stack, x, x_new)[0]["R2"])
    assert scores[1] > scores[0] + 0.05


def test_principal_components_are_those_of_the_crop():
    data = made_up()
    known, new = (part.stacks(3) for part in data.split())
    torch.manual_seed(0)
    x, x_new = rep.principal_components(known, new, 4, 16)
    pixels = rep.center_crop(known, 16).flatten(1).float() / 255
    pixels = pixels - pixels.mean(0)
    _, s, _ = torch.linalg.svd(pixels, full_matrices=False)
    assert torch.allclose(x.norm(dim=0), s[:4], rtol=1e-2)
    assert x_new.shape == (len(new), 4)


def test_episodes_are_simulated_once(frames, tmp_path, monkeypatch):
    one = rep.collect(tmp_path, TASK, 8, 5, 16)
    assert one.frames.shape == (8, 5, 3, 16, 16)
    assert one.names[-1] == "velocity[1]"
    assert one.quantities.shape == (8, 5, 5)
    assert (one.frames[0, 0] != one.frames[0, -1]).any()
    monkeypatch.setattr(rep, "_simulate", None)
    again = rep.collect(tmp_path, TASK, 8, 5, 16)
    assert torch.equal(one.frames, again.frames)
    assert torch.equal(one.quantities, again.quantities)
    (path,) = tmp_path.glob("*.pt")
    whole = path.read_bytes()
    for damaged in (b"", b"PK", whole[:2000], whole[:2000] + bytes(len(whole) - 2000)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            rep.collect(tmp_path, TASK, 8, 5, 16)


def test_a_grid_of_objectives_and_floors(frames, tmp_path):
    how = {"seed": 0, **TINY}
    cells = [rep.cell(TASK, "infonce:t=1", **how), rep.cell(TASK, "dcl + 0.1*dp", **how)]
    cells += [rep.cell(TASK, None, label=label, **how) for label in (rep.PCA, rep.UNTRAINED)]
    done = run_grid(partial(rep.train, cache=tmp_path / "frames"), cells, tmp_path / "runs", progress=False)
    for run in done:
        assert set(run.result) == {"R2", "R2 positions", "R2 velocities"}
        assert run.record["data"]
        kept = run.details["quantities"]
        assert run.result["R2"] == pytest.approx(np.mean(list(kept.values())))
        assert len(kept) + len(run.details["left out"]) == 5
    assert [run.arguments["scores"] for run in done[:2]] == ["bilinear", "cosine"]
    assert len({run.result["R2"] for run in done}) == 4


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rep.cell("cartpole", "infonce", 0), "unknown task 'cartpole'"),
        (lambda: rep.cell(TASK, None, 0, label="x"), "label: expected 'pixels, PCA' or 'untrained encoder'"),
        (lambda: rep.cell(TASK, "infonce", 0, crop=70), "crop: expected at most the frames' size 64, got 70"),
        (lambda: rep.collect(Path("x"), TASK, episodes=3), "episodes: expected a whole number of at least 8, got 3"),
        (
            lambda: rep.pretrain(made_up().stacks(3), "infonce", AgentSettings(), 1),
            "batch: expected at most the 96 frames, got 128",
        ),
    ],
)
def test_bad_input_is_said(call, says):
    with pytest.raises(ValueError, match=r".") as raised:
        call()
    assert says in str(raised.value)


@pytest.mark.slow
def test_the_example_compares_and_goes_on(frames, tmp_path, capsys):
    study = importlib.import_module("curl_dmc")
    pytest.importorskip("matplotlib")
    how = {"size": "smoke", "objectives": ["infonce:t=1", study.COSINE], "seeds": 2, "out": tmp_path}
    tiny = {name: value for name, value in TINY.items() if name not in ("size", "crop")}
    result = study.run(**how, **tiny, progress=False)
    (column,) = result["columns"]
    assert {row["row"].partition(":")[0] for row in column["rows"]} == {rep.PCA, rep.UNTRAINED, "infonce"}
    assert all(row["n"] == 2 for row in column["rows"])
    assert "minus baseline" in study.table(result)
    assert {"report.md", "curl_dmc_frames.png"} <= {path.name for path in tmp_path.iterdir()}
    assert study.run(**how, **tiny, progress=True)["columns"] == result["columns"]
    assert "8 of 8 runs are done already" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_trains_agents_beside_table_5(frames, tmp_path, monkeypatch):
    from counterpoint.integrations.control import training

    study = importlib.import_module("curl_dmc")
    pytest.importorskip("matplotlib")
    assert paper_number("control", "cartpole-swingup", study.BASELINE, study.MARK).printed == "680±32"
    monkeypatch.setattr(training, "MARKS", (1000,))
    monkeypatch.setattr(study, "MARK", "score at 1k")
    tiny = {name: value for name, value in TINY.items() if name not in ("size", "length", "updates")}
    tiny |= {"hidden": 8, "random_steps": 16, "capacity": 64, "repeat": 40, "episodes": 1}
    how = {"size": "paper", "tasks": ["cartpole-swingup"], "objectives": [study.BASELINE, study.COSINE], "seeds": 2}
    result = study.run(**how, steps=1200, out=tmp_path, progress=False, **tiny)
    (column,) = result["columns"]
    assert column["metric"] == "score at 1k"
    assert [row["n"] for row in column["rows"]] == [2, 2]
    assert (tmp_path / "report.html").exists()


def test_the_example_says_what_is_wrong(frames, tmp_path, capsys):
    study = importlib.import_module("curl_dmc")
    assert study.main(["--tasks", "walker-wolk", "--out", str(tmp_path)]) == 2
    assert "Did you mean 'walker-walk'?" in capsys.readouterr().err


def test_the_example_skips_where_nothing_draws(tmp_path, monkeypatch, capsys):
    from counterpoint.integrations.control import environment

    def fail():
        raise environment.NoRendererError("no OpenGL at all")

    monkeypatch.setattr(environment, "check_frames", fail)
    study = importlib.import_module("curl_dmc")
    assert study.main(["--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("skipped, as no frames can be drawn: MUJOCO_GL=")
    assert "cannot draw frames here (no OpenGL at all). Install EGL" in out
    assert study.main(["--json", "--out", str(tmp_path)]) == 1
    assert "(no OpenGL at all)" in json.loads(capsys.readouterr().out)["skipped"]
