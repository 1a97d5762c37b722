"""The settings of images: choices that the implementations know, cells of version 0.1.0, parsers without torch."""

import argparse
import subprocess
import sys
from contextlib import nullcontext

import pytest

pytest.importorskip("lightly")
pytest.importorskip("lightning")

from PIL import Image
from torchvision import models

from counterpoint.install import install
from counterpoint.integrations.domain import defaults, domain
from counterpoint.integrations.image import augment, data, settings, sources, training
from counterpoint.integrations.image.commands import eval_arguments, train_arguments
from counterpoint.integrations.image.commands import settings as settings_of
from counterpoint.integrations.store.run import Run


def test_choices_are_those_of_the_implementations():
    assert set(settings.AUGMENTATIONS) == set(augment.RECIPES)
    assert set(settings.DOWNLOADS) == set(sources.DOWNLOADED)
    assert (*settings.DOWNLOADS, "digits", "mnist-cifar", "tiny-imagenet", "imagenet") == settings.DATASETS
    assert domain("image") is settings.DOMAIN
    assert set(settings.DOMAIN.held_out) <= set(defaults(settings.Settings))


def test_backbones_are_those_of_torchvision():
    assert settings.backbones() == models.list_models(module=models)


def test_the_number_of_training_images_is_known():
    assert set(settings.TRAINING_IMAGES) < set(settings.DATASETS)
    assert settings.TRAINING_IMAGES["digits"] == len(sources.load("digits"))


@pytest.mark.parametrize(("batch", "subset", "fits"), [(7, None, True), (8, None, False), (4, 4, True), (5, 4, False)])
@pytest.mark.parametrize("split", ["", "train"])
def test_a_batch_that_does_not_fit_is_found_without_reading_an_image(tmp_path, batch, subset, fits, split):
    for number in range(8 if split else 10):  # a fifth is for testing without a split; a tenth is held out
        path = tmp_path / split / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (20 * number, 0, 0)).save(path)
    cell = training.cell(str(tmp_path), "infonce", 0, batch=batch, subset=subset)
    assert len(data.prepare({**cell, "part": "tune"}).train) == (subset or 7)
    with nullcontext() if fits else pytest.raises(ValueError, match=f"give --batch {subset or 7} or less"):
        settings.check_batch(str(tmp_path), cell)


@pytest.mark.parametrize("change", [{"width": 0}, {"lr": -1.0}, {"batch": 1}, {"subset": 0}, {"false_negatives": 1.5}])
def test_a_cell_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}"):
        training.cell("digits", "infonce", 0, **change)


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        (("digits", "infonce", 0), "digits/infonce-t=0.5-denominator=with_positive-c0b920b7/seed0"),
        (("cifar10", "adnce:t=0.4,mu=0.7,sigma=0.5", 3, {"method": "moco", "epochs": 4, "evaluation": {"k": 20}}),
         "cifar10/adnce-t=0.4-denominator=with_positive-sigma=0.5-2bde08c5/seed3"),
        (("digits", None, 0, {"method": "swav"}), "digits/SwAV-29242537/seed0"),
    ],
)  # fmt: skip
def test_cells_have_the_folders_of_version_0_1_0(cell, folder, tmp_path):
    *arguments, changes = cell if isinstance(cell[-1], dict) else (*cell, {})
    assert Run(tmp_path, training.cell(*arguments, **changes)).path == tmp_path / "image" / folder


def test_untrained_cells_have_the_folders_of_version_0_1_0(tmp_path):
    cell = training.untrained("digits", 1, backbone="conv4")
    assert Run(tmp_path, cell).path == tmp_path / "image/digits/untrained-encoder-661da6d2/seed1"


def test_typed_flags_win_over_the_preset():
    parser = argparse.ArgumentParser()
    train_arguments(parser)
    words = ["--preset", "intnacl", "--lr", "0.1", "--cosine", "--probe", "knn,linear", "robust", "--transfer", "dtd"]
    chosen = settings_of(parser.parse_args([*words, "--attacked", "9"]), "digits")
    assert (chosen["backbone"], chosen["lr"], chosen["cosine"], chosen["batch"]) == ("resnet18", 0.1, True, 256)
    assert chosen["probe"] == ["knn", "linear", "robust", "transfer"]
    assert chosen["evaluation"] == {
        "protocol": "adam", "probe_epochs": 1000, "epsilons": [0.002], "attacked": 9, "transfer": ["dtd"]
    }  # fmt: skip
    assert settings_of(parser.parse_args([]), "digits")["backbone"] == "conv4"
    eval_arguments(argparse.ArgumentParser())


def test_settings_need_no_framework():
    code = (
        "import counterpoint, sys; before = set(sys.modules); import counterpoint.integrations.image as image; "
        "image.settings, image.presets, image.Settings; from counterpoint.integrations.image import commands; "
        "print(sorted({'lightly', 'lightning', 'torchvision', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_framework_names_the_extra():
    code = "import sys; sys.modules['lightly'] = None; from counterpoint.integrations.image import Encoder"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: images need lightly" in done.stderr
    assert install("image") in done.stderr
