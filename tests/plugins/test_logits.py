"""The seam of logits and labels: the twin of nn.CrossEntropyLoss, and the launcher's replacement of one call."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

import counterpoint as cp
from counterpoint.objective import Wrapper
from counterpoint.plugins import inject
from counterpoint.plugins.host import Seam, SeamError
from counterpoint.plugins.logits import ContrastiveLoss, before

SPECS = {name: f"{name}(infonce)" if issubclass(kind, Wrapper) else name for name, kind in cp.registry.items()}
NEED_INPUTS = ("robust", "intcl", "intnacl")


def similarities(anchors=6, keys=9):
    torch.manual_seed(0)
    return torch.rand(anchors, keys, dtype=torch.float64, requires_grad=True)


# ---- the twin --------------------------------------------------------------------------------------


def test_infonce_is_cross_entropy():
    s, labels = similarities(), torch.tensor([8, 0, 3, 3, 5, 1])
    loss, expected = (
        ContrastiveLoss("infonce:t=0.07", scale=1 / 0.07)(s / 0.07, labels),
        cross_entropy(s / 0.07, labels),
    )
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    ours, theirs = (torch.autograd.grad(value, s)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_objective_owns_the_temperature():
    s, labels = similarities(), torch.arange(6)
    wanted = cp.ADNCE(0.2, mu=0.4)
    expected = wanted.from_logits(s, labels)
    for temperature in (0.05, 1.0):
        criterion = ContrastiveLoss(wanted, scale=1 / temperature)
        torch.testing.assert_close(criterion(s / temperature, labels), expected, rtol=1e-10, atol=0)


def test_rows_that_do_not_count():
    s, labels = similarities(), torch.tensor([-1, 0, 3, -1, 5, 1])
    loss = ContrastiveLoss("infonce:t=1", ignore_index=-1)(s, labels)
    torch.testing.assert_close(loss, cross_entropy(s, labels, ignore_index=-1), rtol=1e-12, atol=0)


def test_several_positives_per_row():
    s, labels = similarities(), torch.zeros(6, 9, dtype=torch.bool)
    labels[torch.arange(6), torch.arange(6)] = labels[:, 8] = True
    loss = ContrastiveLoss("infonce:t=1,denominator=negatives")(s, labels)
    rest = s.masked_fill(labels, float("-inf")).logsumexp(1, keepdim=True)
    torch.testing.assert_close(loss, (rest - s)[labels].mean(), rtol=1e-12, atol=0)


def test_one_anchor_with_its_positive_alone_is_zero():
    logits = torch.ones(1, 1, requires_grad=True)
    with pytest.warns(UserWarning, match="one sample has no negatives"):
        loss = ContrastiveLoss("hcl")(logits, torch.tensor([0]))
    torch.testing.assert_close(loss, cross_entropy(logits, torch.tensor([0])))
    loss.backward()
    assert logits.grad == 0
    with pytest.raises(ValueError, match="at least 2 keys"):  # several anchors without negatives are no last batch
        ContrastiveLoss("hcl")(torch.ones(3, 1), torch.zeros(3, dtype=torch.long))


def test_calls_that_are_not_contrastive():
    s, labels = similarities(4, 4), torch.tensor([1, 0, 3, 2])
    criterion = ContrastiveLoss(
        "hcl:t=1", contrastive=lambda logits, labels: torch.equal(labels, torch.arange(len(logits)))
    )
    assert torch.equal(criterion(s, labels), cross_entropy(s, labels))
    assert torch.equal(criterion(s, torch.arange(4)), cp.HCL(1.0).from_logits(s, torch.arange(4)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_are_those_of_cross_entropy(reduction):
    s, labels = similarities(), torch.tensor([-1, 0, 3, -1, 5, 1])
    criterion = ContrastiveLoss("infonce:t=1", ignore_index=-1, reduction=reduction)
    expected = cross_entropy(s, labels, ignore_index=-1, reduction=reduction)
    torch.testing.assert_close(criterion(s, labels), expected, rtol=1e-12, atol=0)
    plain = ContrastiveLoss("hcl", ignore_index=-1, reduction=reduction, contrastive=lambda *_: False)
    assert torch.equal(plain(s, labels), expected)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"weight": torch.ones(9)}, "weight= weights classes, but columns are samples"),
        ({"label_smoothing": 0.1}, "label_smoothing= turns every negative into a positive.*got 0.1"),
        ({"reduction": "men"}, r"unknown reduction 'men'\. Did you mean 'mean'"),
    ],
)
def test_settings_of_cross_entropy_without_counterpart(how, why):
    with pytest.raises(ValueError, match=why):
        ContrastiveLoss("infonce", **how)
    ContrastiveLoss("infonce", weight=None, label_smoothing=0.0)


@pytest.mark.parametrize("spec", ["adnce:mu=0.4,t=0.07", "infonce + 0.1*dp"])
def test_a_forgotten_scale_is_warned_of_once(spec, recwarn):
    s, labels = similarities(), torch.arange(6)
    masked = s.detach().masked_fill(s < 0.1, -1e9)
    ContrastiveLoss(spec, scale=1 / 0.07)(masked / 0.07, labels)  # a mask is no similarity
    ContrastiveLoss("infonce")(s / 0.07, labels)  # at its temperature of 1, any similarity will do
    assert not recwarn.list
    criterion = ContrastiveLoss(spec)
    with pytest.warns(UserWarning, match=r"its parameters are cosines, but similarities reach 1[0-9.]* at scale=1;"):
        criterion(s / 0.07, labels)
    criterion(s / 0.07, labels)
    assert not recwarn.list


def test_it_says_what_it_is():
    assert repr(ContrastiveLoss("infonce:t=0.5", scale=2)).startswith("ContrastiveLoss(\n  infonce:t=0.5")
    assert "scale=2" in repr(ContrastiveLoss("infonce:t=0.5", scale=2))


# ---- the launcher's replacement --------------------------------------------------------------------

SCRIPT = """
import torch
import torch.nn.functional as F


def main():
    torch.manual_seed(0)
    encoder, head = torch.nn.Linear(6, 4), torch.nn.Linear(4, 20)
    optimiser = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    criterion = torch.nn.CrossEntropyLoss({settings})
    for _ in range(3):
        a, b = (F.normalize(encoder(torch.randn(5, 6)), dim=1) for _ in range(2))
        language = F.cross_entropy(head(a), torch.arange(5))
        loss = criterion(a @ b.T / 0.1, torch.arange(5))  # here
        print(float(loss.detach()), float(language.detach()))
        optimiser.zero_grad()
        (loss + language).sum().backward()
        optimiser.step()


if __name__ == "__main__":
    main()
"""
COMPILED = "criterion(a @", "torch.compile(lambda x, y: F.cross_entropy(x, y), backend='eager')(a @"
SITE = ("--site", "toy.py:14", "--scale", "10")


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    def run(*words: str, settings: str = "", steps: int = 3) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
        (tmp_path / "toy.py").write_text(SCRIPT.format(settings=settings).replace("range(3)", f"range({steps})"))
        code = inject.main(["logits", *words, "--", "toy.py"])
        sys.modules.pop("toy", None)
        torch.nn.functional.cross_entropy = cross_entropy
        out, err = capsys.readouterr()
        losses = [[float(word) for word in line.split()] for line in out.splitlines()]
        return SimpleNamespace(code=code, losses=losses, err=err)

    return run


@pytest.mark.parametrize("settings", ["", "reduction='sum'", "ignore_index=2"])
def test_one_call_is_replaced(launch, settings):
    plain = launch("--site", "toy.py:1", "--scale", "10", settings=settings)
    assert plain.code == 3
    assert "toy.py:13 with logits (5, 20), 3 times\n  toy.py:14 with logits (5, 5), 3 times" in plain.err
    host = launch(*SITE, "--verify", "2", settings=settings)
    assert host.code == 0
    assert "reached 3 times" in host.err
    assert float(host.err.rpartition("relative ")[2].partition(",")[0]) <= 1e-6
    for ours, theirs in zip(host.losses, plain.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    other = launch(*SITE, "--objective", "hcl:t=0.1", settings=settings)
    assert other.losses[0][0] != pytest.approx(plain.losses[0][0], rel=1e-3)
    assert other.losses[0][1] == plain.losses[0][1]


def test_compiled_code(tmp_path):
    """In fresh processes, since the compiler remembers which functions it has seen."""
    (tmp_path / "toy.py").write_text(SCRIPT.replace(*COMPILED).format(settings=""))

    def run(*words):
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "counterpoint.plugins.inject",
            "logits",
            *words,
            "--",
            "toy.py",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        losses = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
        return done.returncode, losses, done.stderr

    code, host_losses, said = run("--site", "toy.py:1", "--scale", "10")
    assert (code, "toy.py:14 with logits (5, 5), 3 times" in said) == (3, True)
    code, losses, said = run(*SITE, "--objective", "infonce:t=0.1")
    assert (code, "reached 3 times" in said, len(losses)) == (0, True, 3)
    for ours, theirs in zip(losses, host_losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_temperature_for_a_scale_is_warned_of(launch):
    with pytest.warns(UserWarning, match="similarities reach .* at scale=0.1;"):
        launch("--site", "toy.py:14", "--scale", "0.1", "--objective", "adnce:mu=0.4,t=0.1", "--verify", "1")


def test_without_a_site_the_calls_are_listed(launch):
    found = launch(steps=20)
    assert found.code == 2
    assert len(found.losses) == 9
    assert "name one call, --site FILE:LINE, and its --scale. Seen so far:" in found.err
    assert "\n  toy.py:14 with logits (5, 5), 10 times" in found.err
    short = launch()
    assert short.code == 3
    assert "\n  toy.py:14 with logits (5, 5), 3 times" in short.err


@pytest.mark.parametrize("settings", ["weight=torch.ones(5)", "label_smoothing=0.1", "reduction='none'"])
def test_what_has_no_counterpart(launch, settings):
    found = launch(*SITE, settings=settings)
    assert found.code == 2
    assert "have no counterpart" in found.err or "has no counterpart" in found.err
    assert found.losses == []


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective_takes_three_steps(launch, name):
    found = launch(*SITE, "--objective", SPECS[name])
    if name in NEED_INPUTS:
        assert (found.code, "needs adversarial views" in found.err) == (2, True)
    elif name == "mixnca":
        assert (found.code, "needs mixed views, but there are only logits" in found.err) == (2, True)
    elif issubclass(cp.registry[name], cp.ArCL):
        assert (found.code, "compares several views, but logits do not say" in found.err) == (2, True)
    else:
        assert (found.code, len(found.losses)) == (0, 3)


def test_paths_of_a_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    code = compile("import torch\nloss = torch.nn.functional.cross_entropy(torch.eye(3), torch.arange(3))", "", "exec")
    for named, inside in [("deep/loss.py:2", 1), (f"{tmp_path}/deep/loss.py:2", 1), ("other/loss.py:2", 0)]:
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
        seam = Seam("infonce:t=1", options={"site": named, "scale": 1.0})
        before(seam)
        exec(code.replace(co_filename=str(tmp_path / "deep" / "loss.py")), {})
        assert seam.calls == inside


def test_soft_labels_are_no_columns(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    seam = Seam("infonce", options={"site": "soft.py:1", "scale": 1.0})
    before(seam)
    code = compile("F.cross_entropy(s, s)", "soft.py", "exec")
    with pytest.raises(SeamError, match="labels: expected"):
        exec(code, {"F": torch.nn.functional, "s": torch.rand(3, 3)})
