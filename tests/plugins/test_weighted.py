"""Weighted losses, with a weight for each anchor: proved by their sum, and trained with the same weights."""

from __future__ import annotations

import re
import sys

import pytest
import torch

import counterpoint as cp
from counterpoint.plugins import inject
from counterpoint.plugins.finder.recognise import weights_of

SCRIPT = """
import torch
import torch.nn.functional as F
import counterpoint as cp

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net, data, w, doc = torch.nn.Linear(6, 4), torch.randn(64, 6), torch.rand(12) + 0.1, torch.arange(12) // 2


def loss_of(z1, z2, w, doc):
    x = z1 @ z2.T / 0.2
    {loss}


optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
for step in range(6):
    for part in range(2):  # accumulation, and the scale of a GradScaler
        rows = data[torch.randint(64, (12,))]
        z1, z2 = (F.normalize(net(rows + 0.3 * torch.randn_like(rows)), dim=1) for _ in range(2))
        loss = loss_of(z1, z2, w, doc)
        (loss * 1024).backward()
    for p in net.parameters():
        p.grad /= 2048
    optimizer.step()
    optimizer.zero_grad()
print(*(repr(float(p.detach().sum())) for p in net.parameters()))
"""
FORMS = {
    "log_softmax": "return -(F.log_softmax(x, 1).diagonal() * w).sum() / w.sum()",
    "log_softmax of columns": "return -(F.log_softmax(x, 0).diagonal() * w).sum() / w.sum()",
    "logsumexp": "return ((x.logsumexp(1) - x.diagonal()) * w).sum() / w.sum()",
    "exponentials": "e = x.exp(); return -(torch.log(e.diagonal() / e.sum(1)) * w).sum() / w.sum()",
    "negatives": "e = x.exp(); return -(torch.log(e.diagonal() / (e.sum(1) - e.diagonal())) * w).sum() / w.sum()",
    "the nearest a little less": "q = F.log_softmax(x, 1).diagonal(); w = 1 - 0.05 * (q == q.max()); "
    "return -(q * w).sum() / w.sum()",
    "some without": "w = w * (w > 0.5); return -(F.log_softmax(x, 1).diagonal() * w).sum() / w.sum()",
}
LOSS = "each = {loss_fn}({views}, pairing='one_way', reduction='none'{more}); return (each * {w}).sum() / {w}.sum()"
SLOPES = {
    "focal": "p = F.log_softmax(x, 1).diagonal(); return -((1 - p.exp()) ** 2 * p).mean()",
    "focal, detached": "p = F.log_softmax(x, 1).diagonal(); return -((1 - p.exp()).detach() ** 2 * p).mean()",
    "weighted focal": "p = F.log_softmax(x, 1).diagonal(); return -(w * (1 - p.exp()) ** 2 * p).mean()",
}


SCALE = "net.scale.exp"


def script_of(loss, changes):
    script = SCRIPT
    for old, new in dict(changes).items():
        assert old in script
        script = script.replace(old, new)
    return script.replace("{loss}", loss)


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    def run(words, loss, changes=()):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "toy.py").write_text(script_of(loss, changes))
        try:
            code = inject.main([*words, "--", "toy.py"])
        finally:
            sys.modules.pop("toy", None)
            torch.set_default_dtype(torch.float32)
        out, err = capsys.readouterr()
        return code, err, [float(x) for x in out.split()]

    return run


@pytest.fixture
def found(find):
    def run(loss, changes=()):
        try:
            return find(script_of(loss, changes))
        finally:
            torch.set_default_dtype(torch.float32)

    return run


@pytest.mark.parametrize("form", FORMS)
def test_found_proved_and_trained(found, launch, form):
    loss, views = FORMS[form], "z2, z1" if "columns" in form else "z1, z2"
    own = "infonce:t=0.2,denominator=negatives" if form == "negatives" else "infonce:t=0.2"
    (command,) = found(loss).data["commands"]
    assert "--weighted" in command
    assert command[command.index("--own") + 1] == own
    words = command[2 : command.index("--objective")]
    alone = launch(["logits", "--site", "elsewhere.py:1"], loss)[2]
    code, said, trained = launch([*words, "--verify", "4", "--objective", own], loss)
    assert code == 0
    assert float(re.search(r"within (\S+), relative", said)[1]) < 1e-9
    assert trained == pytest.approx(alone, rel=1e-9)
    q = "F.log_softmax(x, 1).diagonal()"
    w = {"some without": "(w * (w > 0.5))", "the nearest a little less": f"(1 - 0.05 * ({q} == {q}.max()))"}.get(
        form, "w"
    )
    d = ",denominator=negatives" if form == "negatives" else ""
    for spec in (f"hcl:t=0.4{d}", f"adnce:t=0.2,mu=0.7{d} + 0.1*psl:t=0.2", f"hcl:t=0.4{d}; ids=doc"):
        code, said, trained = launch([*words, "--objective", spec], loss)
        assert code == 0, said
        made, more = ("treatment", ", ids=doc") if ";" in spec else ("objective", "")
        by_hand = LOSS.format(loss_fn=f"cp.{made}('{spec}')", views=views, more=more, w=w)
        assert trained == pytest.approx(launch(["logits", "--site", "elsewhere.py:1"], by_hand)[2], rel=1e-9), spec


LEARNED = {
    "x = z1 @ z2.T / 0.2": "x = z1 @ z2.T * net.scale.exp()",
    "\n\ndef loss_of": "\nnet.scale = torch.nn.Parameter(torch.tensor(1.5))\n\n\ndef loss_of",
}
HALF = {"loss = loss_of(": "with torch.autocast('cpu'):\n            loss = loss_of(", "float64": "float32"}


@pytest.mark.parametrize("form", ["log_softmax", "logsumexp", "exponentials"])
def test_a_learned_scale_gets_the_gradient_of_the_weighted_loss(found, launch, form):
    (command,) = found(FORMS[form], LEARNED).data["commands"]
    assert command[command.index("--weighted") :][:5] == ["--weighted", "--own", "infonce:t=host", "--scale", SCALE]
    words = command[2 : command.index("--objective")]
    trained = launch([*words, "--objective", "hcl:t=host"], FORMS[form], LEARNED)[2]
    by_hand = "each = cp.HCL('host').from_logits(x, scale=net.scale.exp(), reduction='none')"
    by_hand += "; return (each * w).sum() / w.sum()"
    again = launch(["logits", "--site", "elsewhere.py:1"], by_hand, LEARNED)[2]
    assert len(trained) == 3
    assert trained == pytest.approx(again, rel=1e-9)


def test_a_batch_of_products(found, launch):
    grouped = {"x = z1 @ z2.T / 0.2": "x = z1.view(2, 6, 4) @ z2.view(2, 6, 4).mT / 0.2; w = w.view(2, 6)"}
    loss = "return -(F.log_softmax(x, -1).diagonal(0, 1, 2) * w).sum() / w.sum()"
    (command,) = found(loss, grouped).data["commands"]
    assert "--weighted" in command
    words = command[2 : command.index("--objective")]
    trained = launch([*words, "--objective", "hcl:t=0.4"], loss, grouped)[2]
    by_hand = "return (cp.HCL(0.4).from_logits(x, scale=5, reduction='none') * w).sum() / w.sum()"
    assert trained == pytest.approx(launch(["logits", "--site", "elsewhere.py:1"], by_hand, grouped)[2], rel=1e-9)


def test_half_precision(found, launch):
    (command,) = found(FORMS["log_softmax"], HALF).data["commands"]
    assert "--weighted" in command
    words = command[2 : command.index("--objective")]
    code, said, trained = launch([*words, "--objective", "infonce:t=0.2"], FORMS["log_softmax"], HALF)
    assert code == 0, said
    alone = launch(["logits", "--site", "elsewhere.py:1"], FORMS["log_softmax"], HALF)[2]
    assert trained == pytest.approx(alone, rel=0.02)


@pytest.mark.parametrize(("most", "said"), [(100, True), (1000, False)])
def test_a_step_that_takes_long_is_told(found, monkeypatch, most, said):
    monkeypatch.setattr("counterpoint.plugins.auto.LARGE", most)
    text = "counterpoint: to judge a step with 144 logits may take minutes; --steps 1 watches one\n"
    assert (found(FORMS["log_softmax"]).err.count(text) == 1) == said


def test_weights_that_are_equal_at_first(found):
    loss = FORMS["log_softmax"].replace("return", "w = w if z1.sum() < net.seen else 0 * w + 1; net.seen += 9; return")
    (command,) = found(loss, {"\n\ndef loss_of": "\nnet.seen = -9.0\n\n\ndef loss_of"}).data["commands"]
    assert "--weighted" in command


@pytest.mark.parametrize("form", SLOPES)
def test_functions_of_the_loss_are_not_weights(found, launch, form):
    result = found(SLOPES[form])
    assert not result.data["commands"]
    if "weighted" not in form:  # which only the sum of the losses tells
        words = ["logits", "--site", "toy.py:loss_of", "--positives", "diagonal", "--weighted", "--scale", "5"]
        code, said, _ = launch([*words, "--objective", "hcl:t=0.4"], SLOPES[form].replace("p.exp()", "torch.exp(p)"))
        assert code != 0
        assert "is not that of infonce" in said or "expected logits" in said


@pytest.mark.parametrize(
    "words", [["--positives", "diagonal"], ["--positives", "3", "--weighted"]], ids=["no option", "other positives"]
)
def test_refused_in_the_first_call(launch, words):
    site = ["logits", "--site", "toy.py:13", "--scale", "5", *words, "--objective", "hcl:t=0.4"]
    code, said, _ = launch(site, FORMS["log_softmax"])
    assert code != 0
    assert "in call 1, the gradient at toy.py:13 is not that of infonce:t=host" in said


@pytest.mark.parametrize("own", ["infonce:t=0.2", "infonce:t=0.2,denominator=negatives"])
@pytest.mark.parametrize("form", ["exponentials", "negatives"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another term"])
def test_a_wrong_denominator_is_refused_by_the_value(launch, form, own, alone):
    """Its gradient is parallel, so that weights explain it; a value that is nowhere says nothing."""
    words = ["logits", "--site", "toy.py:loss_of", "--positives", "diagonal", "--weighted", "--own", own]
    loss = FORMS[form] if alone else FORMS[form].replace("-(torch.log", "(1 - torch.log")
    code, said, _ = launch([*words, "--objective", "hcl:t=0.4"], loss)
    if alone and ("negatives" in own) != (form == "negatives"):
        sums = {float(x) for x in re.findall(r"to (\d+\.\d+)", said)}
        assert (code, len(sums)) == (5, 2), said
    else:
        assert code == 0, said


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_of(dtype):
    torch.manual_seed(0)
    tolerance = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 5e-2}[dtype]
    x, w = torch.randn(16, 9).to(dtype).double().requires_grad_(), torch.rand(16, 1).double() + 0.1
    loss = cp.InfoNCE(1).from_logits(x, torch.arange(9).repeat(2)[:16], reduction="none")
    (expected,) = torch.autograd.grad(loss.sum(), x)
    g = (w * expected).to(dtype).double()
    torch.testing.assert_close(weights_of(g, expected, tolerance), w, rtol=tolerance, atol=0)
    assert weights_of(g.roll(1, 1), expected, tolerance) is None
    assert weights_of(g[:5], expected[:5], tolerance) is None
    assert weights_of(g[:, :2], expected[:, :2], tolerance) is None
    for slope in (loss, 1 / loss, -loss.exp()):
        assert weights_of(slope.detach().unsqueeze(1) * expected, expected, tolerance) is None


@pytest.mark.parametrize("spec", ["hcl:t=0.4", "infonce:t=0.2,denominator=negatives"])
def test_equal_targets_are_several_positives(launch, spec):
    """None of them is another one's negative, as masks_and_groups.md says."""
    targets = {"    x = z1": "    y = (doc[:, None] == doc).double(); y = y / y.sum(1, keepdim=True)\n    x = z1"}
    host = "return -(F.log_softmax(x, 1) * y).sum(1).mean()"
    words = ["logits", "--site", "toy.py:14", "--positives", "y", "--scale", "5", "--objective", spec]
    code, said, trained = launch(words, host, targets)
    assert code == 0, said
    by_hand = f"return cp.objective('{spec}').from_logits(x, y > 0, scale=5)"
    assert trained == pytest.approx(launch(["logits", "--site", "elsewhere.py:1"], by_hand, targets)[2], rel=1e-9)
