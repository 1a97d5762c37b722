"""``counterpoint train image`` and ``counterpoint eval image``, the settings of papers, and studies."""

from __future__ import annotations

import importlib
import json
import re
import warnings

import pytest

pytest.importorskip("lightly")
pytest.importorskip("lightning")

from PIL import Image
from reports import make

import counterpoint as cp
from counterpoint.integrations.command.main import main
from counterpoint.integrations.image import PRESETS, EvaluationSettings, Settings, build, preset, training
from counterpoint.integrations.store.run import find_runs

QUICK = ["--batch", "64", "--subset", "128", "--width", "16"]


def test_train_then_evaluate(tmp_path, capsys):
    words = ["train", "image", "--objective", "infonce:t=0.2", "adnce:t=0.3", "--epochs", "1", "--out", str(tmp_path)]
    assert main([*words, *QUICK]) == 0
    table = capsys.readouterr().out
    for said in ("8 x 8 digits, embedded", "untrained encoder", "infonce:t=0.2", "adnce:t=0.3", "knn", "linear"):
        assert said in table
    assert table.count("minus baseline [95%, corrected]") == 3  # knn, linear, linear_top5
    assert main([*words, *QUICK, "--json"]) == 0  # nothing is trained again
    found = json.loads(capsys.readouterr().out)
    assert [one["name"].partition(":")[0] for one in found] == ["untrained encoder", "infonce", "adnce"]
    assert main(["eval", "image", str(tmp_path), "--probe", "knn,robust", "--attacked", "20", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    by_name = {one["name"]: one["knn"] for one in again}
    assert by_name == {one["name"]: one["knn"] for one in found}
    assert all(one["pgd@0.032"] <= one["clean"] for one in again)
    make(tmp_path / "others", {("MUTAG", "hcl:t=0.2"): {0: 1.0}})  # all domains write to the same folder by default
    assert main(["eval", "image", str(tmp_path), "--probe", "knn", "--json"]) == 0
    said = capsys.readouterr()
    assert {one["name"] for one in json.loads(said.out)} == by_name.keys()
    assert "left out: runs of graph" in said.err
    assert main(["eval", "image", str(tmp_path / "others")]) == 2
    assert "no finished run of image in" in capsys.readouterr().err
    make(tmp_path / "scripts", {("train.py", "host"): {0: 1.0}}, "compare")
    assert main(["eval", "image", str(tmp_path / "scripts")]) == 2
    assert "only of compare: models of your own script, for image.evaluate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "cifar-10"], "Did you mean 'cifar10'"),
        (["--backbone", "resnet81"], "Did you mean 'resnet"),
        (["--batch", "5000"], "do not fit into digits"),
        (["--views", "3", "--objective", "arcl(infonce):views=4"], "asks for 4 views, got 3"),
        (["--probe", "robust", "--epsilons", "-0.1"], "got -0.1"),
        (["--preset", "adnce"], "no settings for 'digits'"),
        (["--method", "moco", "--objective", "intnacl"], "moco makes no adversarial"),
    ],
)
def test_what_is_wrong_is_one_line(words, said, tmp_path, capsys):
    assert main(["train", "image", *words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
    assert not list(tmp_path.rglob("run.json"))  # said before anything was trained


def test_photos_without_classes(tmp_path, capsys):
    for number in range(20):
        Image.new("RGB", (16, 16), (10 * number, 0, 0)).save(tmp_path / f"{number}.png")
    out = str(tmp_path / "runs")
    words = ["--backbone", "conv4", "--channels", "4", "--size", "16", "--batch", "4", "--epochs", "1", "--out", out]
    assert main(["train", "image", "--data", str(tmp_path), *words]) == 0
    table = capsys.readouterr().out
    assert "loss" in table
    assert "nan" not in table
    assert "untrained" not in table  # an encoder that has no loss either
    assert main(["train", "image", "--data", str(tmp_path), *words, "--objective", "dcl", "infonce:t=1"]) == 0
    assert "losses are not compared" in capsys.readouterr().out
    assert main(["eval", "image", out]) == 2
    assert "has no classes to evaluate on" in capsys.readouterr().err
    assert main(["eval", "image", out, "--data", "digits", "--probe", "knn"]) == 0
    assert "8 x 8 digits" in capsys.readouterr().out


def test_a_file_that_is_no_image_is_said_in_one_line(tmp_path, capsys):
    for number in range(20):
        Image.new("RGB", (16, 16), (10 * number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "torn.jpg").write_bytes(b"nothing")
    words = ["--backbone", "conv4", "--channels", "4", "--size", "16", "--batch", "4", "--epochs", "1"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "image", "--data", str(tmp_path), *words, "--out", str(tmp_path / "runs")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "torn.jpg" in line]
    assert said
    assert all(re.fullmatch(r".*: 1 of \d+ images cannot be read and are left out: torn.jpg", line) for line in said)


def test_a_folder_without_images(tmp_path, capsys):
    assert main(["train", "image", "--data", str(tmp_path)]) == 2
    assert "holds no images" in capsys.readouterr().err
    assert main(["eval", "image", str(tmp_path)]) == 2
    assert "no folder there has a run.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_built(name):
    recipe = preset(name, "cifar10")
    spec = recipe.objective
    cell = training.cell("cifar10", spec, 0, **recipe.settings)
    EvaluationSettings(**cell["evaluation"])
    method = build(Settings.of({**cell, "backbone": "conv4"}), spec)
    assert cp.objective(spec) == method.objective


def test_presets_have_the_papers_values():
    assert preset("adnce", "stl10").objective == "adnce:t=0.2,mu=0.8,sigma=1.0"
    intnacl = cp.objective(preset("intnacl", "cifar100").objective)
    assert (intnacl.prior, intnacl.beta, intnacl.alpha, intnacl.lam) == (0.01, 1.0, 1.0, 0.5)
    mixed, views = preset("intnacl", "cifar100").settings["mixed"], preset("intnacl-nca", "cifar100").settings["views"]
    assert mixed + 1 == views - 1 == 5
    assert cp.objective(preset("arcl", "cifar10").objective).views == 4
    lmcl = cp.objective(preset("lmcl", "stl10").objective)
    weight, polarization = lmcl.terms()[1]
    assert (weight, polarization.low, polarization.high) == (0.1, 0.1, 0.5)
    with pytest.raises(ValueError, match=r"'arcl-5'.*Did you mean 'arcl-"):
        preset("arcl-5", "cifar10")


@pytest.mark.slow
def test_studies_choose_on_validation_images_and_compare_paired_seeds(tmp_path, capsys):
    study = importlib.import_module("shifted_cifar")
    words = ["--size", "smoke", "--rows", "SimCLR", "ArCL, 4 views", "--out", str(tmp_path)]
    size = study.STUDY["smoke"]
    size = {"smoke": size._replace(settings={**size.settings, "channels": 4, "subset": 128})}
    rows = {name: specs[:2] for name, specs in study.ROWS.items()}
    study.main_of(None, size, rows, ("linear", "shifted"), ("linear", "shifted"), printed=study.PRINTED, argv=words)
    said = capsys.readouterr().out
    (path,) = tmp_path.rglob("results.json")
    result = json.loads(path.read_text())
    for name, found in result["validation"].items():
        assert len(found) == 2
        assert result["chosen"][name] == rows[name][found.index(max(found))]
    tuned = [run.arguments for run in find_runs(tmp_path / "tuning-smoke")]
    assert len(tuned) == 4
    assert {one["part"] for one in tuned} == {"tune"}
    assert {one["seed"] for one in tuned}.isdisjoint(one.arguments["seed"] for one in find_runs(path.parent))
    first, other = (result["summary"][name]["shifted"] for name in words[3:5])
    gaps = [b - a for a, b in zip(first["values"], other["values"], strict=True)]
    assert other["vs_first"]["difference"] == pytest.approx(sum(gaps) / 2)
    assert f"| SimCLR | {result['summary']['SimCLR']['linear']['mean']:.1f} ± " in said
    assert f" | {first['mean']:.1f} ± {first['sd']:.1f} |" in said
    assert "(ArCL, Table 2)" not in said  # a smoke run is not comparable
    as_paper = {**result, "settings": {**result["settings"], "batch": 256}}
    assert "linear 88.95 (ArCL, Table 2)" in importlib.import_module("lightly_cifar").report(as_paper, study.PRINTED)
