"""The settings of control: choices that the implementations know, cells of version 0.1.0, parsers without torch."""

import argparse
import subprocess
import sys
from importlib.util import find_spec

import pytest

if find_spec("dm_control") is None or find_spec("gymnasium") is None:
    pytest.skip("dm_control is not installed", allow_module_level=True)

from counterpoint.install import install
from counterpoint.integrations.control import representation, settings, training
from counterpoint.integrations.control.commands import settings as settings_of
from counterpoint.integrations.control.commands import train_arguments
from counterpoint.integrations.domain import domain
from counterpoint.integrations.store.run import Run
from counterpoint.plugins import curl


def test_choices_are_those_of_the_implementations():
    assert tuple(curl.SCORES) == settings.SCORES
    assert domain("control") is settings.DOMAIN


@pytest.mark.parametrize(
    ("module", "cell", "folder"),
    [
        (training, ("cartpole-swingup", "infonce:t=1 + 0.1*dp", 3, {}),
         "control/cartpole-swingup/infonce-t=1-denominator=with_positive-0.1-dp-801c5816/seed3"),
        (training, ("cheetah-run", "adnce:t=0.2", 1, {"batch": 64, "steps": 50000}),
         "control/cheetah-run/adnce-t=0.2-denominator=with_positive-36b73c23/seed1"),
        (representation, ("cartpole-swingup", "infonce:t=1", 0, {}),
         "control-representation/cartpole-swingup/infonce-t=1-denominator=with_positive-1a623b11/seed0"),
        (representation, ("cartpole-swingup", None, 0, {"label": representation.PCA}),
         "control-representation/cartpole-swingup/pixels-PCA-e17a7c1d/seed0"),
        (representation, ("walker-walk", "adnce:t=0.2", 2, {"updates": 80, "episodes": 40, "crop": 50}),
         "control-representation/walker-walk/adnce-t=0.2-denominator=with_positive-669dafb1/seed2"),
    ],
)  # fmt: skip
def test_cells_have_the_folders_of_version_0_1_0(module, cell, folder, tmp_path):
    *arguments, changes = cell
    assert Run(tmp_path, module.cell(*arguments, **changes)).path == tmp_path / folder


def test_settings_are_those_that_were_typed():
    parser = argparse.ArgumentParser()
    train_arguments(parser)
    assert settings_of(parser.parse_args([]), "walker-walk") == {"device": "cpu"}
    typed = parser.parse_args(["--steps", "9", "--lr", "0.1", "--scores", "cosine", "--random-steps", "5"])
    assert settings_of(typed, "walker-walk") == {
        "steps": 9, "lr": 0.1, "scores": "cosine", "random_steps": 5, "device": "cpu"
    }  # fmt: skip


def test_settings_need_no_framework():
    code = (
        "import sys; import counterpoint.integrations.control as control; control.settings, control.Settings; "
        "from counterpoint.integrations.control import commands; "
        "print(sorted({'gymnasium', 'dm_control', 'mujoco'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_framework_names_the_extra():
    code = "import sys; sys.modules['gymnasium'] = None; from counterpoint.integrations.control import Control"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"ImportError: control needs gymnasium: {install('control')}" in done.stderr
