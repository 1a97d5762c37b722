"""The seam of logits and labels: the twin of nn.CrossEntropyLoss, and the launcher's replacement of one call."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

import counterpoint as cp
from counterpoint.base import Wrapper
from counterpoint.plugins import inject
from counterpoint.plugins.host import Seam, SeamError
from counterpoint.plugins.logits import ContrastiveLoss, before
from counterpoint.plugins.sentence_transformers import SITES

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


@pytest.mark.parametrize("anchors", [1, 3])
def test_one_key_alone_is_zero(anchors):
    logits, labels = torch.ones(anchors, 1, requires_grad=True), torch.zeros(anchors, dtype=torch.long)
    with pytest.warns(UserWarning, match=f"{anchors} of {anchors} anchors have no negatives, so their loss is zero"):
        loss = ContrastiveLoss("hcl")(logits, labels)
    torch.testing.assert_close(loss, cross_entropy(logits, labels))
    loss.backward()
    assert not logits.grad.any()


def test_keys_at_the_second_dimension_and_one_hot_targets():
    s = torch.rand(2, 5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 4, 1], [2, -100, 3]])
    criterion = ContrastiveLoss("infonce:t=host", scale=4.0)
    torch.testing.assert_close(criterion(s, labels), cross_entropy(s, labels))
    one_hot = torch.nn.functional.one_hot(labels[:, 0], 5).double()
    torch.testing.assert_close(criterion(s[..., 0], one_hot), cross_entropy(s[..., 0], one_hot))


def test_a_scale_that_is_trained():
    s, labels = similarities(6, 6), torch.arange(6)
    log_scale = torch.tensor(2.0, requires_grad=True, dtype=torch.float64)
    loss = ContrastiveLoss("infonce:t=host")(log_scale.exp() * s, labels, scale=log_scale.exp())
    expected = cross_entropy(log_scale.exp() * s, labels)
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(value, (s, log_scale)) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_are_those_of_cross_entropy(reduction):
    s, labels = similarities(), torch.tensor([-1, 0, 3, -1, 5, 1])
    criterion = ContrastiveLoss("infonce:t=1", ignore_index=-1, reduction=reduction)
    expected = cross_entropy(s, labels, ignore_index=-1, reduction=reduction)
    torch.testing.assert_close(criterion(s, labels), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"weight": torch.ones(9)}, "weight= weights classes, but columns are samples"),
        ({"reduction": "men"}, r"unknown reduction 'men'\. Did you mean 'mean'"),
    ],
)
def test_settings_of_cross_entropy_without_counterpart(how, why):
    with pytest.raises(ValueError, match=why):
        ContrastiveLoss("infonce", **how)
    ContrastiveLoss("infonce", weight=None)


@pytest.mark.parametrize("spec", ["infonce:t=host", "soft:t=host,tau=1"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_and_label_smoothing(spec, smoothing):
    s, labels = similarities(), torch.tensor([-1, 0, 3, -1, 5, 1])
    for given in (labels, torch.rand(6, 9).double().softmax(1)):
        how = {"label_smoothing": smoothing, **({"ignore_index": -1} if given is labels else {})}
        if given is labels and not smoothing and spec.startswith("soft"):
            continue  # its targets are its own similarities
        loss = ContrastiveLoss(spec, scale=4.0, **how)(s, given)
        torch.testing.assert_close(loss, cross_entropy(s, given, **how), rtol=1e-12, atol=0)


def test_several_positives_and_targets_that_ramp_from_them():
    """Rows of equal numbers are positives, as booleans are; SupCon of both these and soft targets is cross entropy."""
    s, positive = similarities(), torch.eye(6, 9).bool() | torch.eye(6, 9).bool().roll(1, 1)
    equal = positive / positive.sum(1, keepdim=True).double()
    nearly = equal * torch.linspace(1, 1 + 1e-9, 9, dtype=torch.float64)
    for spec, jumps in (("supcon:t=host", False), ("infonce:t=host", True), ("hcl:t=host", True)):
        several, first, later = (ContrastiveLoss(spec, scale=4.0)(s, x) for x in (positive, equal, nearly))
        torch.testing.assert_close(first, several, rtol=1e-12, atol=0)
        assert torch.allclose(first, later, rtol=1e-6) is not jumps
    torch.testing.assert_close(ContrastiveLoss("supcon:t=host", scale=4.0)(s, equal), cross_entropy(s, equal))
    for criterion in (ContrastiveLoss("infonce:t=host", scale=4.0), ContrastiveLoss("supcon:t=host", scale=4.0)):
        torch.testing.assert_close(criterion(s, nearly), cross_entropy(s, nearly))
        criterion.label_smoothing = 0.1
        torch.testing.assert_close(criterion(s, positive), cross_entropy(s, equal, label_smoothing=0.1))


@pytest.mark.parametrize("spec", ["adnce:mu=0.4,t=0.07", "infonce + 0.1*dp", "infonce:t=0.05"])
def test_a_forgotten_scale_is_warned_of_once(spec, recwarn):
    s, labels = similarities(), torch.arange(6)
    masked = s.detach().masked_fill(s < 0.1, -1e9)
    ContrastiveLoss(spec, scale=1 / 0.07)(masked / 0.07, labels)  # a mask is no similarity
    ContrastiveLoss("infonce:t=1")(s / 0.07, labels)  # at its temperature of 1, any similarity will do
    assert not recwarn.list
    criterion = ContrastiveLoss(spec)
    with pytest.warns(UserWarning, match=r"expected cosines, but similarities reach 1[0-9.]* at scale=1; pass scale=,"):
        criterion(s / 0.07, labels)
    criterion(s / 0.07, labels)
    assert not recwarn.list


def test_it_says_what_it_is():
    assert "infonce:t=0.5" in repr(ContrastiveLoss("infonce:t=0.5", scale=2))


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
        print(float(loss.detach().mean()), float(language.detach()))
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
    def run(*words: str, settings: str = "", script: str = SCRIPT) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
        (tmp_path / "toy.py").write_text(script.replace("{settings}", settings))
        code = inject.main(["logits", *words, "--", "toy.py"])
        sys.modules.pop("toy", None)
        torch.nn.functional.cross_entropy = cross_entropy
        out, err = capsys.readouterr()
        losses = [[float(word) for word in line.split()] for line in out.splitlines()]
        return SimpleNamespace(code=code, losses=losses, err=err)

    return run


def proof(said: str) -> tuple[int, float]:
    """Return in how many calls the gradient at the logits was the host's own, and its largest difference."""
    match = re.search(r"that of the host's own loss in (?:all )?(\d+) .+?, within (\S+), relative", said)
    assert match, said
    return int(match[1]), float(match[2])


@pytest.mark.parametrize("settings", ["", "reduction='sum'", "reduction='none'", "ignore_index=2"])
def test_one_call_is_replaced(launch, settings):
    plain = launch("--site", "elsewhere.py:1", "--scale", "10", settings=settings)
    assert plain.code == 3
    assert "toy.py:13 with logits (5, 20) of a layer, 3 times\n  toy.py:14 with logits (5, 5), 3 times" in plain.err
    host = launch(*SITE, "--verify", "2", settings=settings)
    assert host.code == 0
    assert "reached 3 times" in host.err
    assert proof(host.err) == (2, pytest.approx(0, abs=1e-5))
    for ours, theirs in zip(host.losses, plain.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    other = launch(*SITE, "--objective", "hcl:t=0.1", settings=settings)
    assert proof(other.err)[0] == 3
    assert other.losses[0] == plain.losses[0]  # the script logs its own loss
    assert other.losses[2] != pytest.approx(plain.losses[2], rel=1e-4)


def test_a_file_that_is_mistyped_is_told_with_the_first_loss_that_is_seen(launch):
    said = launch("--site", "tyo.py:14", "--scale", "10").err
    assert "counterpoint: tyo.py:14: no file of this name is loaded so far. Did you mean 'toy.py'?\n" in said
    assert "is loaded so far" not in launch(*SITE).err


@pytest.mark.parametrize(("prior", "told"), [(0.9, True), (0.001, False)])
def test_anchors_whose_negatives_have_no_gradient_are_told(launch, prior, told):
    found = launch(*SITE, "--objective", f"hcl:t=0.1,prior={prior}", script=SCRIPT.replace("range(3)", "range(10)"))
    said = re.search(r"toy.py:14, prior= took out more than there was: at (\d+)% of the anchors in call 10", found.err)
    assert bool(said and int(said[1]) > 5) == told


def test_compiled_code(launch, tmp_path):
    """In a fresh process, since the compiler remembers which functions it has seen."""
    plain = launch("--site", "elsewhere.py:1", "--scale", "10")
    (tmp_path / "toy.py").write_text(SCRIPT.replace(*COMPILED).format(settings=""))
    words = ["inject", "logits", *SITE, "--objective", "infonce:t=0.1", "--", "toy.py"]
    command = [sys.executable, "-W", "ignore", "-m", "counterpoint", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reached 3 times" in done.stderr
    losses = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(losses) == 3
    for ours, theirs in zip(losses, plain.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "scale"),
    [
        (("--verify", "3"), "7"),
        (("--objective", "hcl:t=0.1"), "0.1"),
        (("--objective", "hcl:t=0.1"), "7"),
        (("--objective", "hcl:t=0.1"), "20"),
        (("--objective", "infonce:t=1"), "20"),
    ],
)
def test_a_wrong_scale(launch, words, scale):
    """It cancels in cross entropy, so that comparing losses cannot find it."""
    found = launch("--site", "toy.py:14", "--scale", scale, *words)
    assert found.code == 2
    assert f"--scale {scale} is wrong: cosines are multiplied by 10 at toy.py:14, not by {scale}." in found.err
    assert launch("--site", "toy.py:14", "--scale", "10.05", *words).code == 0  # rounded


def test_a_scale_is_measured(launch):
    given = launch(*SITE, "--objective", "hcl:t=0.1")
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1")
    assert found.code == 0
    assert "toy.py:14: cosines times 10, constant, measured in 3 calls" in found.err
    assert found.losses == [pytest.approx(line, rel=1e-5) for line in given.losses]
    verified = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", "--verify", "3")
    assert "cosines times 10, constant, measured in 3 calls" in verified.err


def test_targets_of_several_positives(launch):
    """The host's own loss is kept as it is; where a row's targets are equal, it is SupCon."""
    targets = "torch.tensor([[1.0, 1, 0, 0, 0]] * 5){share}"
    for share in (" / 2", " / 4"):  # the second one is half of the mean over the positives, a weight
        script = SCRIPT.replace("torch.arange(5))  # here", targets.replace("{share}", share) + ")")
        plain = launch("--site", "elsewhere.py:1", script=script)
        own = launch("--site", "toy.py:14", script=script)
        assert (own.code, own.losses) == (0, plain.losses)
        found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", "--verify", "2", script=script)
        assert (found.code, proof(found.err)[0]) == (0, 3)
    found = launch("--site", "toy.py:14", "--objective", "supcon:t=0.1", script=SCRIPT)
    assert found.losses == [pytest.approx(line, rel=1e-5) for line in launch(*SITE).losses]  # one positive


def test_a_classifier_of_the_same_shape_is_no_half_of_the_loss(launch):
    script = SCRIPT.replace("Linear(4, 20)", "Linear(4, 5)")
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=script)
    assert found.code == 0
    half = script.replace("head(a)", "b @ a.T")
    assert launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=half).code == 4
    assert "toy.py:13 with logits (5, 5) of a layer, 3 times" in launch("--site", "elsewhere.py:1", script=script).err


@pytest.mark.parametrize("classifier", ["head(a)", "F.linear(a, F.normalize(head.weight, dim=1))"])
@pytest.mark.parametrize("first", ["language", "loss"])
def test_a_classifier_on_the_same_line_keeps_its_loss(launch, first, classifier):
    """Its cross entropy passes every proof; only its logits tell that it is another loss."""
    script = SCRIPT.replace("head(a)", classifier)
    apart = launch(*SITE, "--objective", "hcl:t=0.1", script=script)
    class_loss, loss = f"criterion({classifier}, torch.arange(5))", "criterion(a @ b.T / 0.1, torch.arange(5))"
    named = {"language": class_loss, "loss": loss}
    names = [first, *named.keys() - {first}]
    start = script.index("        language")
    line = f"{', '.join(names)} = {', '.join(named[name] for name in names)}"
    script = f"{script[:start]}        {line}{script[script.index('  # here') :]}"
    words = ("--site", "toy.py:13", "--scale", "10", "--objective", "hcl:t=0.1")
    together = launch(*words, script=script)
    assert together.losses == [pytest.approx(line, rel=1e-6) for line in apart.losses]
    assert proof(together.err)[0] == 3
    assert "toy.py:13, a layer: logits of a classifier there keep their loss" in together.err


def test_a_classifier_that_trains_first_on_the_same_line_is_refused(launch):
    """Its loss was replaced in the first step."""
    line = "loss = sum(criterion(x, torch.arange(5)) for x in ((head(a),) if _ < 1 else (head(a), a @ b.T / 0.1)))"
    script = SCRIPT.replace("loss = criterion(a @ b.T / 0.1, torch.arange(5))", line)
    found = launch(*SITE, "--objective", "hcl:t=0.1", script=script)
    assert (found.code, "first had the logits of a layer, and now those of a product" in found.err) == (2, True)


TWO_LOSSES = """
import torch
import torch.nn.functional as F


def contrast(logits, scale=None):
    return F.cross_entropy(logits, torch.arange(5))


def classify(logits, scale=None):
    return F.cross_entropy(logits, torch.arange(5))


if __name__ == "__main__":
    torch.manual_seed(0)
    encoder, head, s = torch.nn.Linear(6, 4), torch.nn.Linear(4, 7, bias=False), torch.nn.Parameter(torch.tensor(10.0))
    down, up = torch.nn.Parameter(torch.randn(2, 4)), torch.nn.Parameter(torch.randn(7, 2))
    parameters, steps = [*encoder.parameters(), *head.parameters(), down, up, s], 5
    for _ in range(steps):
        a, b = (F.normalize(encoder(torch.randn(5, 6)), dim=1) for _ in range(2))
        classes, loss = classify(head(a)), contrast(10 * a @ b.T)
        print(float(classes.detach()), float(loss.detach()))
        gradients = torch.autograd.grad(classes + loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= 0.1 * (0 if gradient is None else gradient)
"""

COMPILED_LOGITS = """@torch.compile(backend="aot_eager")
def logits(x):
    a, b = F.normalize(encoder(x), dim=2)
    return 10 * a @ b.T


if __name__"""


@pytest.mark.parametrize(
    "changes",
    [
        {"torch.nn.Linear(6, 4)": "torch.compile(torch.nn.Linear(6, 4), backend='aot_eager')"},
        {"10 * a @ b.T": "logits(torch.randn(2, 5, 6))", "if __name__": COMPILED_LOGITS},
        {"torch.nn.Linear(6, 4)": "torch.nn.LSTM(6, 4)", "encoder(torch.randn(5, 6))": "encoder(torch.randn(5, 6))[0]"},
        {"torch.nn.Linear(6, 4)": "torch.nn.Embedding(9, 4)", "torch.randn(5, 6)": "torch.randint(9, (5,))"},
        {"a @ b.T": "F.cosine_similarity(a.unsqueeze(1), b, dim=2)"},
        {"head(a)": "a @ (head.weight + up @ down).T"},
        {"F.cross_entropy(logits": "F.nll_loss(F.log_softmax(logits, 1)"},
        {"10 * a @ b.T": "s * a @ b.T, s", "head(a)": "head(a), s"},
    ],
    ids=["compiled", "compiled logits", "recurrent", "table", "entries", "low rank", "log_softmax", "learned scale"],
)
def test_a_classifier_is_told_from_embeddings_by_its_graph(launch, changes):
    """One function computes both losses, and only the contrastive one is replaced, in all steps."""
    script = TWO_LOSSES
    for old, new in changes.items():
        script = script.replace(old, new)
    scale = "scale" if "T, s" in script else "10"
    words = ("--site", "toy.py:7", "--scale", scale, "--only", "--objective", "hcl:t=host")
    apart, together = (launch(*words, script=x) for x in (script, script.replace("= classify(", "= contrast(")))
    assert together.losses == [pytest.approx(line, rel=1e-5) for line in apart.losses]
    assert (apart.code, proof(apart.err)[0], proof(together.err)[0]) == (0, 5, 5)
    plain = launch("--site", "elsewhere.py:1", script=script)
    assert apart.losses[0] == plain.losses[0]
    assert apart.losses[-1] != pytest.approx(plain.losses[-1], rel=1e-3)


def test_a_scale_that_changes(launch):
    script = SCRIPT.replace("loss = criterion(a @ b.T / 0.1", "s = 10 / (1 + _); loss = criterion(s * a @ b.T")
    words = ("--site", "toy.py:14", "--objective", "hcl:t=0.1")
    for scale in ((), ("--scale", "10")):
        found = launch(*words, *scale, script=script)
        assert found.code == 2
        assert "the scale at toy.py:14 changes from 10 to 5: --scale changing, or the name" in found.err
    named, measured = (launch(*words, "--scale", how, "--verify", "1", script=script) for how in ("s", "changing"))
    assert named.code == measured.code == 0
    assert measured.losses == [pytest.approx(line, rel=1e-5) for line in named.losses]
    assert "changing, measured in each call" in measured.err
    misspelt = launch(*words, "--scale", "chaning", script=script)
    assert (misspelt.code, "Did you mean 'changing'?" in misspelt.err) == (2, True), misspelt.err


@pytest.mark.parametrize("words", [(), ("--scale", "10")])
def test_a_scale_that_changes_later(launch, words):
    """As from epoch to epoch: cross entropy is the same for every scale, so that only measuring tells."""
    script = SCRIPT.replace("range(3)", "range(30)").replace("b.T / 0.1, ", "b.T / (0.1 if _ < 5 else 0.2), ")
    found = launch("--site", "toy.py:14", *words, "--objective", "hcl:t=0.1", script=script)
    assert (found.code, "the scale at toy.py:14 changes from 10 to 5" in found.err) == (2, True), found.err
    loss = "s = a @ b.T / 0.1; loss = criterion(s, torch.arange(5)) + criterion(s.T, torch.arange(5))"
    script = SCRIPT.replace("range(3)", "range(30)").replace("loss = criterion(a @ b.T / 0.1, torch.arange(5))", loss)
    found = launch("--site", "toy.py:14", *words, "--objective", "hcl:t=0.1", script=script)
    assert (found.code, "cosines times 10, constant, measured in 3 calls" in found.err) == (0, True), found.err


def test_products_are_released_though_no_backward_is_called(launch):
    """A scale that changes is measured in every call, so that embeddings of all steps would stay in memory."""
    script = SCRIPT.replace("import torch\n", "import torch, weakref\n").replace("seed(0)", "seed(0); older = []")
    step = """older.append(weakref.ref(a))
        parameters = [*encoder.parameters(), *head.parameters()]
        for parameter, g in zip(parameters, torch.autograd.grad(loss + language, parameters)):
            parameter.grad = g"""
    script = script.replace("(loss + language).sum().backward()", step).replace(
        "        optimiser.step()\n", "        optimiser.step()\n    print(sum(a() is not None for a in older))\n"
    )
    words = ("--site", "toy.py:14", "--scale", "changing", "--objective", "hcl:t=0.1", "--verify", "1")
    found = launch(*words, script=script)
    assert (found.code, found.losses[-1]) == (0, [1]), found.err


def test_a_scale_that_cannot_be_measured(launch):
    script = SCRIPT.replace("a @ b.T / 0.1", "torch.cat([a @ b.T / 0.1, a @ a.T / 0.2], 1)")
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=script)
    assert found.code == 2
    assert "the scale at toy.py:14" in found.err
    assert "Give --scale" in found.err
    found = launch(*SITE, "--objective", "hcl:t=0.1", "--verify", "1", script=script)
    assert (found.code, "toy.py:14: its scale, 10, was not tested: " in found.err) == (0, True)
    unmeasured = SCRIPT.replace("a @ b.T / 0.1", "torch.rand(5, 5, requires_grad=True) + 3")
    found = launch("--site", "toy.py:14", "--scale", "1", "--objective", "adnce:t=0.1", script=unmeasured)
    assert found.code == 2
    assert re.search(r"--scale 1 is too small for cosines at toy.py:14: a logit of .* would be a similarity", found.err)
    assert launch("--site", "toy.py:14", "--scale", "1", "--objective", "infonce:t=1", script=unmeasured).code == 0


def test_embeddings_that_are_not_normalized(launch):
    script = SCRIPT.replace("F.normalize(encoder(torch.randn(5, 6)), dim=1)", "0.1 * encoder(torch.randn(5, 6))")
    with pytest.warns(UserWarning, match="assumes cosines, but at toy.py:14 embeddings are not"):
        found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=script)
    assert found.code == 0
    assert "was not tested: embeddings are not normalized, so similarities have any size" in found.err
    assert launch("--site", "toy.py:14", "--objective", "infonce:t=0.1", script=script).code == 0


def test_distances_are_not_cosines(launch):
    script = SCRIPT.replace("a @ b.T / 0.1", "-(a[:, None] - b[None]).norm(dim=-1) / 0.1")
    with pytest.warns(UserWarning, match="assumes cosines, but at toy.py:14 they are negative distances"):
        found = launch(*SITE, "--objective", "hcl:t=0.1", script=script)
    assert found.code == 0
    assert "toy.py:14: its scale, 10, was not tested: they are negative distances" in found.err


def test_calls_before_the_scale_is_known(launch):
    """Without a gradient, or when nothing is watched any more."""
    early = SCRIPT.replace(
        "        language",
        "        with torch.no_grad():\n            F.cross_entropy(a @ b.T, torch.arange(5))\n        language",
    )
    found = launch("--site", "toy.py:main", "--only", "--objective", "hcl:t=host", script=early)
    assert found.code == 2  # the classifier's logits come from no product of embeddings
    assert "no product of embeddings leads to the logits" in found.err
    found = launch("--site", "toy.py:14", "--site", "toy.py:16", "--only", "--objective", "hcl:t=host", script=early)
    assert found.code == 0
    assert proof(found.err)[0] == 3  # without a gradient there is nothing to replace
    more = "        loss = loss + (F.cross_entropy(b @ a.T / 0.2, torch.arange(5)) if _ > 4 else 0)\n        print"
    late = SCRIPT.replace("range(3)", "range(8)").replace("        print", more)
    found = launch("--site", "toy.py:14", "--site", "toy.py:15", "--only", "--objective", "hcl:t=host", script=late)
    assert found.code == 0
    assert "toy.py:15, at first: its own loss, as its scale was not measured yet; give --scale" in found.err
    assert "toy.py:15: cosines times 5, constant, measured in 2 calls" in found.err


def test_nothing_is_watched_for_long(launch):
    script = SCRIPT.replace("range(3)", "range(5)").replace(
        "        print(",
        "        mode = torch.overrides._get_current_function_mode()\n        print(float(mode is None),",
    )
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=script)
    assert [line[0] for line in found.losses] == [0, 0, 1, 1, 1]
    assert torch.overrides._get_current_function_mode() is None


def test_without_a_site(launch):
    found = launch("--scale", "10")
    assert found.code == 2
    assert "which call of cross entropy? --site FILE:LINE, or FILE:FUNCTION" in found.err


TWO = """
import torch
import torch.nn.functional as F


class ClipLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        logits = self.log_scale.exp() * a @ b.T
        images = F.cross_entropy(logits, torch.arange(5))
        return (images + F.cross_entropy(logits.T, torch.arange(5))) / 2


torch.manual_seed(0)
encoder, criterion = torch.nn.Linear(6, 4), ClipLoss()
optimiser = torch.optim.SGD([*encoder.parameters(), *criterion.parameters()], lr=1.0)
for _ in range(3):
    loss = criterion(*(F.normalize(encoder(torch.randn(5, 6)), dim=1) for _ in range(2)))
    print(float(loss.detach()), float(criterion.log_scale.detach()))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
ONE, OTHER, WHOLE = ("--site", "toy.py:13"), ("--site", "toy.py:14"), ("--site", "toy.py:ClipLoss.forward")
TRAINED = ("--scale", "self.log_scale.exp")


def test_half_a_loss_is_an_error(launch):
    found = launch(*ONE, *TRAINED, "--objective", "hcl:t=host", script=TWO)
    assert found.code == 4
    assert "a part of the host's loss was left alone: toy.py:14 was called as often" in found.err
    assert launch(*ONE, *TRAINED, "--objective", "hcl:t=host", "--only", script=TWO).code == 0


def test_half_with_fewer_keys_is_an_error(launch):
    """Mined negatives are keys of queries, not of passages."""
    mined = "images = F.cross_entropy(torch.cat([logits, logits[:, :2]], 1), torch.arange(5))"
    script = TWO.replace("images = F.cross_entropy(logits, torch.arange(5))", mined)
    assert script != TWO
    assert launch(*OTHER, *TRAINED, "--objective", "hcl:t=host", script=script).code == 4


@pytest.mark.parametrize("sites", [WHOLE, (*ONE, *OTHER)])
def test_a_whole_loss_with_a_trained_scale(launch, sites):
    plain = launch(*WHOLE, *TRAINED, script=TWO)
    assert plain.code == 0
    assert "reached 6 times" in plain.err
    ours = launch(*sites, *TRAINED, "--objective", "infonce:t=host", script=TWO)
    assert ours.losses == [pytest.approx(line, rel=1e-5) for line in plain.losses]
    assert len({scale for _, scale in ours.losses}) == 3
    with pytest.warns(UserWarning, match="scale= is trained, but has no gradient"):
        fixed = launch(*sites, *TRAINED, "--objective", "infonce:t=0.1", script=TWO)
    assert max(scale for _, scale in fixed.losses) == pytest.approx(2.0)


def test_a_trained_scale_is_found(launch):
    words = ("--objective", "adnce:t=host,mu=0.4")
    named = launch(*WHOLE, *TRAINED, *words, script=TWO)
    found = launch(*WHOLE, *words, script=TWO)
    assert found.code == 0
    assert found.losses == [pytest.approx(line, rel=1e-5) for line in named.losses]
    assert re.search(r"toy.py:13: cosines times \S+, learned, measured in 3 calls", found.err)
    constant = launch(*WHOLE, "--scale", "7.389", *words, script=TWO)
    assert constant.code == 2
    assert "is learned, so a number is soon wrong: --scale self.log_scale.exp" in constant.err


def test_names_of_a_scale(launch):
    found = launch(*WHOLE, "--scale", "self.scale", "--objective", "infonce:t=host", script=TWO)
    assert (found.code, "'ClipLoss' object has no attribute 'scale', in forward (toy.py:13)" in found.err) == (2, True)
    found = launch(*WHOLE, "--scale", "temperature", "--objective", "infonce:t=host", script=TWO)
    assert (found.code, "temperature: no such name here or in the callers." in found.err) == (2, True)
    assert launch(*WHOLE, "--scale", "-3", script=TWO).code == 2


def test_what_has_no_counterpart(launch):
    found = launch(*SITE, settings="weight=torch.ones(5)")
    assert (found.code, "class weights at toy.py:14 have no counterpart" in found.err) == (2, True)
    assert found.losses == []


@pytest.mark.parametrize("settings", ["label_smoothing=0.1", "label_smoothing=0.1, ignore_index=2"])
def test_label_smoothing(launch, settings):
    plain = launch("--site", "elsewhere.py:1", "--scale", "10", settings=settings)
    same = launch(*SITE, "--objective", "infonce:t=host", settings=settings)
    assert (same.code, proof(same.err)) == (0, (3, pytest.approx(0, abs=1e-5))), same.err
    assert same.losses == [pytest.approx(line, rel=1e-5) for line in plain.losses]
    other = launch(*SITE, "--objective", "hcl:t=0.1", settings=settings)
    hard = launch(*SITE, "--objective", "hcl:t=0.1", settings=settings.replace("0.1", "0.0"))
    assert other.losses[0] == plain.losses[0]
    for different in (plain, hard):
        assert other.losses[2] != pytest.approx(different.losses[2], rel=1e-4)


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_every_objective_takes_three_steps(launch, name):
    found = launch(*SITE, "--objective", SPECS[name])
    if name in NEED_INPUTS:
        assert (found.code, "needs adversarial views" in found.err) == (2, True)
    elif "sogclr" in name:
        assert (found.code, "needs the positions of samples" in found.err) == (2, True)
    elif name == "matryoshka":
        assert (found.code, "needs embeddings, which scores, logits" in found.err) == (2, True)
    elif name == "mixnca":
        assert (found.code, "needs mixed views, but there are only logits" in found.err) == (2, True)
    elif issubclass(cp.registry[name], cp.ArCL):
        assert (found.code, "compares several views, but logits do not say" in found.err) == (2, True)
    else:
        assert (found.code, len(found.losses)) == (0, 3)


def test_paths_of_a_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    text = "import torch\ntorch.nn.functional.cross_entropy(torch.eye(3).requires_grad_(), torch.arange(3)).backward()"
    code = compile(text, "", "exec")
    for named, inside in [("deep/loss.py:2", 1), (f"{tmp_path}/deep/loss.py:2", 1), ("other/loss.py:2", 0)]:
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
        seam = Seam("infonce:t=1", options={"site": [named], "scale": "1"})
        before(seam)
        exec(code.replace(co_filename=str(tmp_path / "deep" / "loss.py")), {})
        assert seam.calls == inside


def test_targets_that_are_negative(monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    seam = Seam("infonce", options={"site": ["soft.py:1"], "scale": "1"})
    before(seam)
    code = compile("F.cross_entropy(s, s.detach()).backward()", "soft.py", "exec")
    with pytest.raises(SeamError, match=r"cannot be computed at soft.py:1: labels: expected zero, or one number"):
        exec(code, {"F": torch.nn.functional, "s": (torch.rand(3, 3) - 0.5).requires_grad_()})


# ---- logsumexp and log_softmax ---------------------------------------------------------------------

SUMS = """
import torch
import torch.nn.functional as F


def loss_of(s, at):
    return {loss}


torch.manual_seed(0)
encoder = torch.nn.Linear(6, 4)
optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
for _ in range(3):
    a, b = (F.normalize(encoder(torch.randn(5, 6)), dim=1) for _ in range(2))
    at = torch.arange(5)
    loss = loss_of(a @ torch.cat([b, a.detach().roll(1, 0)]).T / 0.1, at)
    print(float(loss.detach()))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
HERE = ("--site", "toy.py:7")


@pytest.mark.parametrize(
    ("loss", "positives"),
    [
        ("(torch.logsumexp(s, 1) - s.diagonal()).mean()", "diagonal"),
        ("(s.logsumexp(dim=-1, keepdim=True) - s[:, at]).diagonal().mean()", "at"),
        ("(s.T.logsumexp(0) - s[:, 2]).mean()", "2"),
        ("-F.log_softmax(s, dim=1)[at, at].mean()", "at"),
        ("-s.log_softmax(1)[:, 2].sum() / 5", "2"),
        ("-torch.log_softmax(s.T, 0).T.diagonal().mean()", "diagonal"),
        ("F.nll_loss(torch.nn.LogSoftmax(dim=1)(s), at)", "at"),
    ],
)
def test_sums_of_exponentials(launch, loss, positives):
    script = SUMS.replace("{loss}", loss)
    words = (*HERE, "--positives", positives)
    plain = launch(*words, script=script)
    assert (plain.code, "reached 3 times" in plain.err) == (0, True)
    same = launch(*words, "--objective", "infonce:t=host", script=script)
    assert same.losses == [pytest.approx(line, rel=1e-5) for line in plain.losses]
    assert "cosines times 10, constant, measured in 3 calls" in same.err
    ours = launch(*words, "--objective", "hcl:t=0.1", script=script)
    as_cross_entropy = SUMS.replace(
        "{loss}", "F.cross_entropy(s, torch.full((5,), 2))" if positives == "2" else "F.cross_entropy(s, at)"
    )
    expected = launch(*HERE, "--objective", "hcl:t=0.1", script=as_cross_entropy)
    assert ours.losses == [pytest.approx(line, rel=1e-5) for line in expected.losses]
    assert ours.losses[2] != pytest.approx(plain.losses[2], rel=1e-4)
    verified = launch(*words, "--objective", "hcl:t=0.1", "--verify", "3", script=script)
    assert (proof(verified.err)[0], verified.losses) == (3, plain.losses)


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        ("(torch.logsumexp(s, 1) - s.diagonal()).mean()", "0"),
        ("(torch.logsumexp(s, 1) - s[:, 3]).mean()", "diagonal"),
        ("-F.log_softmax(s, dim=1)[at, at].mean()", "3"),
        ("-(torch.softmax(s, 1)[at, at] + 1e-2).log().mean()", "diagonal"),
        ("(torch.logsumexp(s, 1) - s.diagonal() + 0.1 * s.diagonal() ** 2).mean()", "diagonal"),
    ],
)
@pytest.mark.parametrize("verify", [(), ("--verify", "3")])
def test_wrong_positives_and_half_losses_are_refused_in_the_first_step(launch, loss, wrong, verify):
    """Value and gradient at the wrong column are an identity of the sum alone; the gradient that arrives is not."""
    found = launch(
        *HERE, "--positives", wrong, "--objective", "hcl:t=0.1", *verify, script=SUMS.replace("{loss}", loss)
    )
    assert (found.code, len(found.losses)) == (5, 1), found.err
    assert "in call 1, the gradient at toy.py:7 is not that of infonce:t=host" in found.err


def test_targets_that_change_during_training_stop_it(launch):
    """Soft targets that ramp in, as ALBEF's: nothing is wrong in the first steps."""
    loss = "-(F.log_softmax(s, 1) * ((1 - r) * torch.eye(5, 10) + r * (3 * s.detach()).softmax(1))).sum(1).mean()"
    script = SUMS.replace("{loss}", loss).replace("def loss_of(s, at):", "def loss_of(s, at, r=0.0):")
    script = script.replace("range(3)", "range(8)").replace("0.1, at)", "0.1, at, 0.0 if _ < 5 else 0.2)")
    words = (*HERE, "--positives", "diagonal", "--objective", "hcl:t=0.1")
    found = launch(*words, script=script)
    assert (found.code, len(found.losses), "in call 6," in found.err) == (5, 6, True), found.err
    allowed = launch(*words, "--allow-drift", script=script)
    assert (allowed.code, len(allowed.losses)) == (0, 8)
    assert "toy.py:7, allowed: in call 8, the gradient at toy.py:7 is not that of infonce:t=host" in allowed.err


@pytest.mark.parametrize(
    ("positives", "message"),
    [
        ((), "nothing was replaced"),
        (("--positives", "nowhere"), "nowhere: no such name here or in the callers"),
        (("--positives", "s"), "expected a column for each of 5 rows, got (5, 10)"),
        (("--positives", "99"), "expected columns from 0 to 9"),
        (("--positives", "-1"), "expected columns from 0 to 9"),
    ],
)
def test_columns_of_positives(launch, positives, message):
    script = SUMS.replace("{loss}", "(s.logsumexp(1) - s.diagonal()).mean()")
    found = launch(*HERE, *positives, "--objective", "hcl:t=0.1", script=script)
    assert found.code == (2 if positives else 3)
    assert message in found.err


def test_positives_of_cross_entropy_are_its_labels(launch):
    found = launch(*SITE, "--positives", "diagonal")
    assert (found.code, "cross entropy at toy.py:14 has labels of its own" in found.err) == (2, True)


def test_nll_loss_of_a_log_softmax(launch):
    """The logits are what log_softmax got, so that the scale is measured and objectives get similarities."""
    plain = launch("--site", "toy.py:14", "--scale", "10", "--objective", "hcl:t=0.1")
    script = SCRIPT.replace("criterion(a @ b.T / 0.1,", "F.nll_loss(F.log_softmax(a @ b.T / 0.1, 1),")
    assert script != SCRIPT
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", "--verify", "1", script=script)
    assert (found.code, "cosines times 10, constant" in found.err) == (0, True)
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=script)
    assert found.losses == [pytest.approx(line, rel=1e-5) for line in plain.losses]
    changed = script.replace("F.log_softmax(a @ b.T / 0.1, 1)", "F.log_softmax(a @ b.T / 0.1, 1) * 1")
    found = launch("--site", "toy.py:14", "--objective", "hcl:t=0.1", script=changed)
    assert (found.code, "write it as F.cross_entropy of the logits" in found.err) == (2, True)


SIGMOID = "-F.logsigmoid((2 * torch.eye(5) - 1) * (4 * a @ b.T + shift)).sum() / 5; loss = (loss,"


@pytest.mark.parametrize("words", [(), ("--scale", "4"), ("--scale", "4", "--bias", "-2"), ("--bias", "shift")])
def test_binary_logits(launch, words):
    script = SCRIPT.replace("loss = criterion(a @ b.T / 0.1,", f"shift = -2; loss = {SIGMOID}")
    script = script.replace(f"{SIGMOID} torch.arange(5))", f"{SIGMOID.partition(';')[0]}")
    assert "logsigmoid" in script
    site = ("--site", "toy.py:14", "--positives", "diagonal", *words)
    own = launch("--site", "elsewhere.py:1", script=script)
    found = launch(*site, "--objective", "siglip:t=host,b=host", "--verify", "3", script=script)
    assert found.code == 0, found.err
    ours = launch(*site, "--objective", "siglip:t=host,b=host", script=script)
    assert ours.losses == [pytest.approx(line, rel=1e-5) for line in own.losses]
    other = launch(*site, "--objective", "hcl:t=0.1", script=script)
    assert (other.code, other.losses[2][0] != pytest.approx(own.losses[2][0], rel=1e-3)) == (0, True)
    learned = script.replace("shift = -2; ", "").replace("range(3)", "range(14)")
    learned = learned.replace("optimiser = ", "shift = torch.nn.Parameter(torch.tensor(-2.0)); optimiser = ")
    learned = learned.replace("[*encoder", "[shift, *encoder")
    if "-2" not in words:
        found = launch(*site, "--objective", "siglip:t=host,b=host", script=learned)
        assert (found.code, proof(found.err)[0]) == (0, 14), found.err


def test_binary_logits_that_are_not_what_you_say(launch):
    script = SCRIPT.replace("loss = criterion(a @ b.T / 0.1,", f"shift = -2; loss = {SIGMOID}")
    script = script.replace(f"{SIGMOID} torch.arange(5))", f"{SIGMOID.partition(';')[0]}")
    words = ("--site", "toy.py:14", "--objective", "siglip:t=host,b=host")
    found = launch(*words, script=script)
    why = "toy.py:14 calls logsigmoid, which has no labels: which columns are the positives? --positives diagonal"
    assert (found.code, why in found.err) == (3, True), found.err
    for more, why in (
        (("--positives", "0"), "is not clear"),
        (("--positives", "0", "--scale", "4"), "or --positives is wrong"),
        (("--positives", "diagonal", "--bias", "-3"), "--bias -3 is wrong: logits at toy.py:14 are shifted by -2"),
        (("--positives", "diagonal", "--scale", "5"), "--scale 5 is wrong: cosines are multiplied by 4"),
    ):
        found = launch(*words, *more, script=script)
        assert (found.code, why in found.err) == (2, True), found.err


def test_a_named_host_is_announced_in_one_line(capsys):
    seam = Seam("host")
    before(seam, SITES)
    assert capsys.readouterr().err == "counterpoint: replacing the gradient at the host's losses\n"
    seam.end()
