"""The styles in which losses are written: what the finder says of each, and that its command trains what it says."""

from __future__ import annotations

import sys

import pytest
import torch
from contrastive_variants import HARNESS, VARIANTS

from counterpoint.plugins import inject

HCL = "hcl:t=0.1,beta=1,prior=0.05,denominator=with_positive"
PRINTS = "        optimizer.step()\n        print(repr(sum(float(p.double().sum()) for p in net.parameters())))"


def check_findings(name, script, found):
    """Form, scale and place are right, or nothing is claimed; the classifier beside the loss is never taken for it."""
    _, form, scale, ours = VARIANTS[name]
    claimed = [loss for loss in found.losses if loss["form"]]
    if form is None:
        assert not claimed
        assert not found.data["commands"]
        assert found.code == 3
        return
    assert claimed
    (head,) = (i for i, line in enumerate(script.splitlines(), 1) if "classes = F.cross_entropy" in line)
    for loss in claimed:
        exact = form.startswith("infonce")
        assert loss["form"] == form if exact else form in loss["form"]
        assert loss["ours"] == ours
        assert loss["file"].endswith("toy.py")
        assert loss["line"] != head
        if scale:
            assert loss["scale"] == pytest.approx(scale, rel=1e-2 if loss["learned"] else 1e-3)
        if ours:
            assert not loss["doubts"]
            assert loss["gradient_difference"] < (2e-2 if "bfloat16" in name else 1e-5)
    assert not found.data["errors"]
    assert ours or not found.data["commands"]


@pytest.fixture
def trained(find, monkeypatch, capsys):
    """Start the script that was watched with a command; return the sums of parameters after each step, and the rest."""

    def run(*words: str) -> tuple[list[float], str]:
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        try:
            code = inject.main([*words, "--", "toy.py"])
        finally:
            sys.modules.pop("toy", None)
        out, err = capsys.readouterr()
        assert code == 0, err
        return [float(x) for x in out.split()], err

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_style_is_found_and_trains_as_the_script_or_with_the_objective(find, trained, name):
    """With the host's own form, training is unchanged; with another objective it is not; both are proved."""
    script = HARNESS.replace("{code}", VARIANTS[name][0]).replace("        optimizer.step()", PRINTS)
    found = find(script, "--objective", HCL)
    check_findings(name, script, found)
    plain = [float(line) for line in found.out.split()]  # the steps that auto has watched
    assert len(plain) >= 2
    for command in found.data["commands"]:
        if command[2] != "logits":
            continue
        at = command.index("--objective")
        own = command[command.index("--own") + 1] if "--own" in command else "host"
        words = [*command[2:at], "--only"]
        same, _ = trained(*words, "--objective", own)
        assert len(same) == 6
        assert same[: len(plain)] == pytest.approx(plain, rel=1e-4)
        if "siglip" in name:
            continue
        ours, said = trained(*words, "--objective", HCL)
        assert "was that of the host's own loss in " in said
        assert ours[: len(plain)] != plain
