"""Scripts with soft targets: proved in every step, and trained with another objective and the same targets."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import counterpoint as cp
from counterpoint.batch.ready_made import columns_of
from counterpoint.plugins import inject
from counterpoint.plugins.finder.recognise import explaining
from counterpoint.plugins.gradient import Logits
from counterpoint.plugins.host import DifferenceError, Seam

# momentum distillation as in ALBEF: a queue, a learned temperature, targets that ramp in, two directions
SCRIPT = """
import torch
import torch.nn.functional as F
import counterpoint as cp

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
        self.temp = torch.nn.Parameter(torch.tensor(0.2))
        self.register_buffer("queue", F.normalize(torch.randn(7, 4), dim=1))

    def forward(self, x, y, teacher, alpha):
        with torch.no_grad():
            self.temp.clamp_(0.001, 0.5)
            image_m, text_m = (F.normalize(net(z), dim=1) for net, z in zip(teacher, (x, y)))
            images, texts = torch.cat([image_m, self.queue]), torch.cat([text_m, self.queue])
            hard = torch.eye(5, 12)
            i2t_targets = alpha * F.softmax(image_m @ texts.T / self.temp, dim=1) + (1 - alpha) * hard
            t2i_targets = alpha * F.softmax(text_m @ images.T / self.temp, dim=1) + (1 - alpha) * hard
        i2t = F.normalize(self.image(x), dim=1) @ texts.T / self.temp
        t2i = F.normalize(self.text(y), dim=1) @ images.T / self.temp
        loss_i2t = -torch.sum(F.log_softmax(i2t, dim=1) * i2t_targets, dim=1).mean()  # one
        loss_t2i = -torch.sum(F.log_softmax(t2i, dim=1) * t2i_targets, dim=1).mean()  # other
        return (loss_i2t + loss_t2i) / 2


model, teacher = Model(), [torch.nn.Linear(6, 4) for _ in range(2)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(6):
    for part in range(2):  # accumulation
        x, ids = torch.randn(5, 6), torch.tensor([0, 1, 1, 2, 3])
        loss = model(x, x + 0.3 * torch.randn(5, 6), teacher, 0.4 * min(1.0, step / 3))
        ((loss + 0.1 * model.image.weight.square().sum()) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(*(repr(float(p.detach().sum())) for p in model.parameters()), float(model.temp.detach()))
"""


def line_of(text: str) -> str:
    return f"toy.py:{next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if text in line)}"


ONE, OTHER = line_of("# one"), line_of("# other")
SITES = ("--site", ONE, "--site", OTHER, "--scale", "self.temp.reciprocal")
PLAIN = ("--site", "elsewhere.py:1", "--scale", "1")
TARGETS = ("--positives", "i2t_targets,t2i_targets")


def by_hand(loss: str) -> str:
    """Return the script with the loss of both directions written as ``loss``."""
    script = SCRIPT
    for name in ("i2t", "t2i"):
        host = f"-torch.sum(F.log_softmax({name}, dim=1) * {name}_targets, dim=1).mean()"
        assert host in script
        script = script.replace(host, loss.replace("X", name).replace("T", f"{name}_targets"))
    return script


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    def run(*words: str, script: str = SCRIPT) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "toy.py").write_text(script)
        try:
            code = inject.main(["logits", *words, "--", "toy.py"])
        finally:
            sys.modules.pop("toy", None)
            torch.set_default_dtype(torch.float32)
        out, err = capsys.readouterr()
        return SimpleNamespace(
            code=code, err=err, trained=[[float(x) for x in line.split()] for line in out.splitlines()]
        )

    return run


def proof(said: str) -> tuple[int, float]:
    match = re.search(r"that of the host's own loss in (?:all )?(\d+) .+?, within (\S+), relative", said)
    assert match, said
    return int(match[1]), float(match[2])


HOST = "-torch.sum(F.log_softmax(X, dim=1) * T, dim=1).mean()"
SPECS = [
    "infonce:t=host",
    "infonce:t=0.1",
    "hcl:t=host,beta=1,prior=0.05",
    "adnce:t=host,mu=auto",
    "psl:t=0.2",
    "soft:t=host,tau=0.5",
    "hcl:t=host,beta=1 + 0.5*soft:t=0.1,tau=1",
    "infonce:t=host; margin=-0.1",
    "hcl:t=host; ids=ids",
]


@pytest.mark.parametrize(
    ("spec", "loss"),
    [
        *((spec, HOST) for spec in SPECS),
        ("hcl:t=host,beta=1", "F.cross_entropy(X, T)"),
        ("hcl:t=host,beta=1", "(torch.logsumexp(X, 1) - (T * X).sum(1)).mean()"),
        ("hcl:t=host,beta=1", "F.kl_div(F.log_softmax(X, 1), T, reduction='batchmean')"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*scale= is trained")
def test_training_equals_that_by_hand(launch, spec, loss):
    """A queue, a learned temperature, accumulation, targets that ramp in, another term, and both directions."""
    script = by_hand(loss)
    words = SITES if "cross_entropy" in loss else (*SITES, *TARGETS)
    found = launch(*words, "--objective", spec, script=script)
    assert found.code == 0, found.err
    assert proof(found.err) == (24, pytest.approx(0, abs=1e-9))
    loss_fns = f"    i2t, t2i = (cp.objective({spec!r}, like='infonce:t=host') for _ in range(2))\n\n    def forward("
    told = ", ids=ids" if "ids" in spec else ""
    script = by_hand(f"self.X.from_logits(X, targets=T, scale=1 / self.temp{told})")
    expected = launch(*PLAIN, script=script.replace("    def forward(", loss_fns, 1))
    assert found.trained == [pytest.approx(line, rel=1e-9) for line in expected.trained]
    if spec == "infonce:t=host":
        assert found.trained == [pytest.approx(line, rel=1e-9) for line in launch(*PLAIN).trained]


@pytest.mark.parametrize(
    "loss",
    [
        HOST,
        "F.kl_div(F.log_softmax(X, 1), T, reduction='batchmean')",
        "(torch.logsumexp(X, 1) - (T * X).sum(1)).mean()",
    ],
)
@pytest.mark.filterwarnings("ignore:.*scale= is trained")
def test_auto_names_the_targets_of_a_log_softmax(find, launch, loss):
    """They ramp in, from ones and zeros, which other tensors of that shape are, too."""
    found = find(by_hand(loss), "--objective", "hcl:t=host")
    torch.set_default_dtype(torch.float32)
    assert (found.code, found.data["open"]) == (0, []), found.err
    (command,) = found.data["commands"]
    assert command[2:-2] == ["logits", *SITES[:4], *TARGETS, *SITES[4:], "--objective", "hcl:t=host"]
    assert [x["positives"] for x in found.losses] == ["soft targets i2t_targets", "soft targets t2i_targets"]
    assert max(x["gradient_difference"] for x in found.losses) < 1e-9
    assert proof(launch(*command[3:-2], script=by_hand(loss)).err) == (24, pytest.approx(0, abs=1e-9))


def test_auto_names_targets_that_are_ones_and_zeros_up_to_the_precision_of_the_script(find):
    """They explain the gradient in single precision, but the mixture with the teacher's explains it better."""
    script = SCRIPT.replace("torch.set_default_dtype(torch.float64)", "").replace("step / 3)", "step / 3000)")
    assert script.count("3000") == 1
    found = find(script, "--objective", "hcl:t=host")
    assert [x["positives"] for x in found.losses] == ["soft targets i2t_targets", "soft targets t2i_targets"], found.err
    assert [*TARGETS] == found.data["commands"][0][7:9]


TRAINED_TARGETS = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
layer = torch.nn.Linear(5, 4)
for _ in range(4):
    a, b = (F.normalize(layer(torch.randn(6, 5)), dim=-1) for _ in range(2))
    s, targets = a @ b.T / 0.2, F.softmax((a @ a.T + b @ b.T) / 2, dim=-1)
    LOSS.backward()
"""


@pytest.mark.parametrize(
    "loss", ["-(targets * F.log_softmax(s, -1)).sum(1).mean()", "F.cross_entropy(s, targets)"], ids=["by_hand", "torch"]
)
def test_soft_targets_that_are_differentiated_are_a_doubt_and_noted_where_they_are_replaced(find, launch, loss):
    """Their own gradient is that of the script's loss, whatever trains at the logits."""
    script = TRAINED_TARGETS.replace("LOSS", f"({loss})")
    found = find(script, "--objective", "hcl:t=0.2")
    (doubt,) = found.losses[0]["doubts"]
    assert (found.code, found.data["commands"]) == (3, []), found.err
    assert doubt.startswith("the soft targets get a gradient, too")
    alone = find(script.replace(f"({loss})", f"({loss.replace('targets', 'targets.detach()')})"), "--objective", "hcl")
    (command,) = alone.data["commands"]
    said = launch(*command[3:-2], script=script).err
    assert "their own gradient stays that of the script's loss" in said


def test_of_tensors_that_explain_a_gradient_alike_the_distribution_is_the_targets():
    x, mask = torch.randn(4, 6, dtype=torch.float64), torch.eye(4, 6, dtype=torch.float64) + torch.eye(4, 6).roll(1, 1)
    gradient = x.softmax(1) - mask / 2
    for alike in ({"mask": mask, "targets": mask / 2}, {"targets": mask / 2, "mask": mask}):
        assert [*explaining(x, gradient, alike, 1e-3)] == ["targets", "mask"]


SEVERAL_POSITIONS = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
layer = torch.nn.Linear(5, 4)
x, y = torch.randn(2, 6, 2, 5)
targets = torch.softmax(3 * torch.randn(6, 6, 2), 1)
for _ in range(4):
    a, b = F.normalize(layer(x), dim=-1), F.normalize(layer(y), dim=-1)
    F.cross_entropy(torch.einsum("ipd,jpd->ijp", a, b) / 0.2, targets).backward()
"""


def test_auto_judges_cross_entropy_of_several_positions_with_soft_targets(find):
    found = find(SEVERAL_POSITIONS)
    assert found.data["errors"] == []
    (loss,) = found.losses
    assert (loss["form"], loss["ours"], loss["logits"]) == ("infonce", True, [6, 6, 2]), found.err
    assert loss["positives"].startswith("soft targets")


@pytest.mark.parametrize(
    ("targets", "code", "why"),
    [
        ("i2t_targets", 5, "in call 1, the gradient at toy.py:"),  # the same for both directions
        ("t2i_targets,i2t_targets", 5, "in call 1, the gradient at toy.py:"),
        ("hard", 5, "in call 5, the gradient at toy.py:"),  # until the teacher's part of the targets
        ("diagonal", 5, "in call 5, the gradient at toy.py:"),
        ("i2t", 2, "expected a column for each of 5 rows, got (5, 12)"),
        ("i2t_targets,nowhere", 2, "nowhere: no such name here or in the callers."),
        ("image_m,text_m", 2, "expected a column for each of 5 rows, got (5, 4)"),
        ("i2t_targets,t2i_targets,hard", 2, "expected one, or one for each of 2 --site"),
    ],
)
def test_wrong_targets_are_refused_before_the_objective_takes_a_step(launch, targets, code, why):
    script = SCRIPT.replace("step / 3", "step" if targets in ("hard", "diagonal") else "1.0")
    found = launch(*SITES, "--positives", targets, "--objective", "hcl:t=host", script=script)
    assert (found.code, why in found.err) == (code, True), found.err
    assert len(found.trained) == (targets in ("hard", "diagonal"))


def trained_by(own: str, x: torch.Tensor, loss, spec="hcl:t=host,beta=1", **how):
    """Return the gradient of the logits ``x`` of scale 3 behind the seam, and the seam."""
    logits, seam = x.clone().requires_grad_(), Seam(spec)
    call = Logits(seam, None, "here", own, columns_of(how["targets"]), {"scale": 3.0}, **how)
    loss(call(logits)).backward()
    return logits.grad, seam


@pytest.fixture
def batch():
    torch.manual_seed(0)
    x = torch.randn(6, 6, dtype=torch.double) * 2
    return x, torch.randn(6, 6, dtype=torch.double).softmax(1)


def expected_of(x, loss, spec="hcl:t=host,beta=1"):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(loss(cp.objective(spec), leaf), leaf)[0]


@pytest.mark.parametrize("own", ["infonce:t=host", f"infonce:t={1 / 3!r}"])
def test_weights_of_rows_and_rows_without_targets(batch, own):
    """A row of targets that sums to another number than one counts so much more; with zeros, not at all."""
    x, targets = batch
    targets = targets * torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5, 1.0]).unsqueeze(1).double()
    found, seam = trained_by(own, x, lambda y: 7 * F.cross_entropy(y, targets, reduction="sum"), targets=targets)
    assert (seam.proofs, seam.worst < 1e-9) == (1, True)
    share = targets.sum(1)
    expected = expected_of(
        x, lambda f, y: 7 * (f.from_logits(y, targets=targets, scale=3.0, reduction="none") * share).sum()
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_rows_and_columns_of_one_product(batch):
    x, targets = batch
    targets = targets + targets.T

    def loss(y):
        return (F.cross_entropy(y, targets) + F.cross_entropy(y.T, targets.T)) / 2

    found, seam = trained_by("infonce:t=host", x, loss, targets=targets, both=True)
    assert (seam.proofs, seam.worst < 1e-9) == (1, True)
    share = targets.sum(1)

    def ours(f, y):
        ways = (f.from_logits(z, targets=targets, scale=3.0, reduction="none") * share for z in (y, y.T))
        return sum(each.mean() for each in ways) / 2

    torch.testing.assert_close(found, expected_of(x, ours), rtol=1e-9, atol=1e-12)


def test_other_targets_and_weights_that_differ_are_another_loss(batch):
    x, targets = batch
    for loss in (
        lambda y: F.cross_entropy(y, targets.roll(1, 0)),
        lambda y: F.cross_entropy(y, targets) + 0.01 * y.square().mean(),
        lambda y: (F.cross_entropy(y, targets, reduction="none") * torch.linspace(0.5, 1.5, 6)).mean(),
    ):
        with pytest.raises(DifferenceError, match="is not that of infonce"):
            trained_by("infonce:t=host", x, loss, targets=targets)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision(dtype):
    torch.manual_seed(0)
    a, b = (F.normalize(torch.randn(24, 16), dim=1).to(dtype) for _ in range(2))
    leaf, targets = a.clone().requires_grad_(), (torch.randn(24, 24) * 2).softmax(1).to(dtype)
    seam = Seam("hcl:t=0.1,beta=1")
    call = Logits(seam, None, "here", "infonce:t=host", targets.argmax(1), {"scale": 10.0}, targets=targets)
    (1024 * -(F.log_softmax(call(leaf @ b.T * 10), 1) * targets).sum(1).mean()).backward()
    expected = expected_of(
        a.float() @ b.float().T, lambda f, s: 1024 * f.from_logits(s, targets=targets.float()), "hcl:t=0.1,beta=1"
    )
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    expected = expected @ b.float()
    assert seam.proofs == 1
    assert leaf.grad is not None
    torch.testing.assert_close(
        leaf.grad.float(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )
