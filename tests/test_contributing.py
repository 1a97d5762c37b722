"""CONTRIBUTING.md: its objective works in sums, specs and commands, and the paths it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from testbed import MEMBERS

import counterpoint as cp
from counterpoint.integrations.command.main import main

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


@pytest.fixture
def margin():
    names: dict = {"__name__": "contributed"}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.S)[1], names)
    yield names["Margin"]
    del cp.registry["margin"]


def test_the_objective_in_ten_lines(margin, capsys):
    views = torch.randn(3, 8, 4, dtype=torch.float64, requires_grad=True)
    plain = cp.InfoNCE(0.2, denominator="negatives")
    assert torch.equal(margin(0.2, 0)(*views), plain(*views))
    assert float((margin(0.2, 0.1)(*views) - plain(*views)).detach()) == pytest.approx(0.1 / 0.2)
    spec = re.search(r'cp.objective\("(.*?)"\)', TEXT)[1]
    loss_fn = cp.objective(spec)
    assert str(loss_fn) == spec
    loss_fn(*views).backward()
    assert views.grad.isfinite().all()
    assert main(["objectives", "margin"]) == 0
    assert "-log E(p - m) / sum_j E(s_j)" in capsys.readouterr().out


def test_what_it_points_to_is_there():
    root = Path(__file__).parent.parent
    paths = re.findall(r"`((?:core|experimental|plugins|integrations|tests|examples)/[\w./]*)`", TEXT)
    assert len(paths) > 10
    for path in paths + re.findall(r"\]\(([\w./]+)[#)]", TEXT):
        assert (root / path).exists(), path


def test_the_clones_that_tests_need_are_listed():
    lines = re.search(r"<<'END'\n(.*?)\n *END\n", TEXT, re.S)[1].splitlines()
    assert all(re.fullmatch(r" *[\w-]+/[\w-]+( [\w-]+)?", line) for line in lines)
    listed = {line.split()[-1].rpartition("/")[2] for line in lines}
    assert {member.folder for member in MEMBERS.values()} - {""} <= listed
    for file in Path(__file__).parent.rglob("test_*.py"):
        for places in re.findall(r'real_clone\(((?:"[^"]+",? ?)+)', file.read_text()):
            names = {place.partition("/")[0] for place in re.findall(r'"([^"]+)"', places)}
            assert names & listed, f"{file.name}: {names}"
