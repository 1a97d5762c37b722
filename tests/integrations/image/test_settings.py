"""The settings of images: choices that the implementations know, cells of version 0.1.0, parsers without torch."""

import argparse

import pytest
from processes import fresh

pytest.importorskip("lightly")
pytest.importorskip("lightning")

from torchvision import models

from counterpoint.install import install
from counterpoint.integrations.domain import defaults, domain
from counterpoint.integrations.image import augment, load, settings, training
from counterpoint.integrations.image.commands import eval_arguments, train_arguments
from counterpoint.integrations.image.commands import settings as settings_of
from counterpoint.integrations.store.run import Run


def test_choices_are_those_of_the_implementations():
    assert set(settings.AUGMENTATIONS) == set(augment.RECIPES)
    assert domain("image") is settings.DOMAIN
    assert settings.DATASETS["digits"].images == len(load("digits"))
    assert set(settings.DOMAIN.held_out) <= set(defaults(settings.Settings))


def test_backbones_are_those_of_torchvision():
    for name in models.list_models(module=models):
        settings.check_backbone(name)
    with pytest.raises(ValueError, match="Did you mean 'resnet18'"):
        settings.check_backbone("resnet19")


@pytest.mark.parametrize("change", [{"width": 0}, {"lr": -1.0}, {"batch": 1}, {"subset": 0}, {"false_negatives": 1.5}])
def test_a_cell_out_of_range_is_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}"):
        training.cell("digits", "infonce", 0, **change)


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        (("digits", "infonce", 0), "digits/infonce-t=0.5-denominator=with_positive-f930e129/seed0"),
        (("cifar10", "adnce:t=0.4,mu=0.7,sigma=0.5", 3, {"method": "moco", "epochs": 4, "evaluation": {"k": 20}}),
         "cifar10/adnce-t=0.4-denominator=with_positive-sigma=0.5-4bdbf315/seed3"),
    ],
)  # fmt: skip
def test_cells_have_the_folders_of_version_0_1_0(cell, folder, tmp_path):
    *arguments, changes = cell if isinstance(cell[-1], dict) else (*cell, {})
    assert Run(tmp_path, training.cell(*arguments, **changes)).path == tmp_path / "image" / folder


def test_untrained_cells_have_the_folders_of_version_0_1_0(tmp_path):
    cell = training.untrained("digits", 1, backbone="conv4")
    assert Run(tmp_path, cell).path == tmp_path / "image/digits/untrained-encoder-df357727/seed1"


def test_typed_flags_win_over_the_preset():
    parser = argparse.ArgumentParser()
    train_arguments(parser)
    words = ["--preset", "intnacl", "--lr", "0.1", "--cosine", "--probe", "knn,linear", "robust"]
    chosen = settings_of(parser.parse_args([*words, "--attacked", "9"]), "digits")
    assert (chosen["backbone"], chosen["lr"], chosen["cosine"], chosen["batch"]) == ("resnet18", 0.1, True, 256)
    assert chosen["probe"] == ["knn", "linear", "robust"]
    assert chosen["evaluation"] == {
        "protocol": "adam", "probe_epochs": 1000, "epsilons": [0.002], "attacked": 9
    }  # fmt: skip
    assert settings_of(parser.parse_args([]), "digits")["backbone"] == "conv4"
    eval_arguments(argparse.ArgumentParser())


def test_settings_need_no_framework():
    code = (
        "import counterpoint, sys; before = set(sys.modules); import counterpoint.integrations.image as image; "
        "image.settings, image.presets, image.Settings; from counterpoint.integrations.image import commands; "
        "print(sorted({'lightly', 'lightning', 'torchvision', 'sklearn'} & set(sys.modules)))"
    )
    assert fresh(code) == "[]"


def test_a_missing_framework_names_the_extra():
    code = (
        "import sys; sys.modules['lightly'] = None\n"
        "try: from counterpoint.integrations.image import Encoder\n"
        "except ImportError as error: print(error)"
    )
    said = fresh(code)
    assert said.startswith("images need lightly")
    assert install("image") in said
