"""What notebooks show of objectives and of reports on a batch."""

from __future__ import annotations

import copy
import json
import pickle
from html import escape

import pytest
import torch

import counterpoint as cp
from counterpoint.html import meaning, table


@pytest.mark.parametrize("name", cp.registry)
def test_every_objective_shows_its_formula_and_parameters(name):
    kind = cp.registry[name]
    shown = kind()._repr_html_()
    assert f"<code>{kind()}</code>" in shown
    assert all(f"<td>{key}</td>" in shown for key in kind.hyper)


def test_a_sum_shows_each_of_its_parts():
    shown = cp.objective("arcl(hcl:t=0.2) + 0.1*dp")._repr_html_()
    for part in ("ArCL", "HCL", "DistancePolarization"):
        assert f"<p>{part}: " in shown


def test_schedules_and_learned_values_show_themselves():
    assert "0.5" in cp.InfoNCE(cp.Schedule(0.5, 0.1, steps=10))._repr_html_()
    assert "0.07" in cp.InfoNCE(cp.Learned(0.07, low=0.01))._repr_html_()


def test_text_is_escaped():
    assert table(["<b>"], [["a & b"]], "<i>") == (
        "<p>&lt;i&gt;</p><table><thead><tr><th>&lt;b&gt;</th></tr></thead><tbody><tr><td>a &amp; b</td></tr>"
        "</tbody></table>"
    )


def test_a_report_is_a_dict_that_shows_what_its_numbers_mean(tmp_path):
    z = torch.randn(2, 8, 4)
    rule = cp.margin(0.0)
    numbers = (cp.InfoNCE(0.5) + 0.1 * cp.DistancePolarization()).report(*z, false_negatives=rule, empty="zero")
    assert numbers == json.loads(json.dumps(numbers)) == pickle.loads(pickle.dumps(numbers)) == copy.deepcopy(numbers)
    assert repr(numbers).startswith("{")
    torch.save(numbers, tmp_path / "numbers.pt")
    assert torch.load(tmp_path / "numbers.pt", weights_only=True) == numbers
    shown = numbers._repr_html_()
    assert all(escape(meaning(name)) in shown for name in numbers)
    assert all(meaning(name) for name in numbers), [name for name in numbers if not meaning(name)]
