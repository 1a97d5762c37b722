"""Logits less a number of each row, and sums of exponentials with a learned scale: what trains is what one would write.

Cross entropy does not depend on what is taken from a row of logits, and objectives of cosines do: the gradient of
shifted logits must not pass for theirs.
"""

from __future__ import annotations

import itertools
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch

from counterpoint.plugins import inject

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
import counterpoint as cp

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
encoder, log_scale = torch.nn.Linear(6, 4), torch.nn.Parameter(torch.tensor(1.6))
bias = torch.nn.Parameter(torch.tensor(-2.0))
parameters = [*encoder.parameters(), log_scale, bias]
optimizer = torch.optim.SGD(parameters, lr=0.2)
at = torch.arange(9)
for step in range(5):
    x = torch.randn(9, 6)
    a, b = F.normalize(encoder(x), dim=1), F.normalize(encoder(x + 0.3 * torch.randn(9, 6)), dim=1)
    scale = SCALE
    logits = a @ b.T * scale  # product
    shifted = SHIFTED
    loss = LOSS  # loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
TRAINED = [float(p.detach().sum()) for p in parameters]
"""
SHIFTS = {
    "none": "logits",
    "offset": "logits - 3.0",
    "bias": "logits + bias",
    "constant": "logits - logits.detach().max(1, keepdim=True).values",
    "trained": "logits - logits.max(1, keepdim=True).values",
}
LOSSES = {
    "cross_entropy": "F.cross_entropy(shifted, at)",
    "logsumexp": "(torch.logsumexp(shifted, 1) - shifted.diagonal()).mean()",
    "exponentials": "(torch.log(torch.exp(shifted).sum(1)) - shifted.diagonal()).mean()",
}
OBJECTIVES = ("hcl:prior=0.2", "adnce:mu=0.4", "dcl:prior=0.4", "hcl:prior=0.01")
SCALES = {"constant": "5.0", "learned": "log_scale.exp()"}


def write(loss: str, shift: str = "logits", scale: str = SCALES["constant"]) -> str:
    return SCRIPT.replace("LOSS ", f"{loss} ").replace("SHIFTED", shift).replace("SCALE\n", f"{scale}\n")


def line_of(text: str) -> str:
    return f"toy.py:{next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f'# {text}'))}"


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs a script, under ``counterpoint inject`` if there are words; returns its parameters, code and words."""

    def run(script: str, *words: str) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "toy.py").write_text(f"{script}print('trained', *map(repr, TRAINED))\n")
        try:
            code = inject.main([*words, "--", "toy.py"]) if words else 0
            if not words:
                runpy.run_path("toy.py", run_name="__main__")
        finally:
            torch.set_default_dtype(torch.float32)
        out, err = capsys.readouterr()
        lines = [line.split()[1:] for line in out.splitlines() if line.startswith("trained ")]
        return SimpleNamespace(code=code, err=err, trained=[float(x) for x in lines[0]] if lines else [])

    return run


@pytest.mark.parametrize(
    ("objective", "loss", "scale", "shift"),
    [(o, *how) for o, how in zip(itertools.cycle(OBJECTIVES), itertools.product(LOSSES, SCALES, SHIFTS), strict=False)],
)
def test_what_auto_prints_trains_as_the_objective_by_hand(find, train, objective, loss, scale, shift):
    script = write(LOSSES[loss], SHIFTS[shift], SCALES[scale])
    try:
        found = find(script)
    finally:
        torch.set_default_dtype(torch.float32)
    command = found.data["commands"][0]
    words = command[command.index("inject") + 1 : command.index("--")]
    t = "host" if scale == "learned" else "0.4"
    words[words.index("--objective") + 1] = f"{objective},t={t}"
    assert ("less a number of each row" in found.err) == (shift in ("constant", "trained"))
    assert ("cosines, plus -" in found.err) == (shift in ("offset", "bias"))
    injected = train(script, *words)
    ours = f'cp.objective("{words[words.index("--objective") + 1]}").from_logits(logits, at, scale=scale)'
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(train(write(ours, scale=SCALES[scale])).trained, rel=1e-9)


@pytest.mark.parametrize(
    ("rule", "refused"), [("threshold=0.5", True), ("margin=0.1,relative", True), ("margin=-0.05", False)]
)
def test_rules_of_cosines_are_refused_at_shifted_logits(train, rule, refused):
    """A margin below the positive is a difference, which does not depend on the shift."""
    words = ["logits", "--site", line_of("loss"), "--objective", f"infonce:t=0.2; {rule}"]
    shifted, plain = (train(write(LOSSES["cross_entropy"], SHIFTS[name]), *words) for name in ("constant", "none"))
    assert (shifted.code, plain.code) == (2 if refused else 0, 0), shifted.err
    if not refused:
        assert shifted.trained == pytest.approx(plain.trained, rel=1e-9)


@pytest.mark.parametrize("shift", ["constant", "trained"])
@pytest.mark.parametrize("loss", LOSSES)
def test_shifted_logits_take_the_losses_that_do_not_depend_on_it(train, loss, shift):
    script = write(LOSSES[loss], SHIFTS[shift])
    how = [] if loss == "cross_entropy" else ["--positives", "diagonal"]
    refused = train(script, "logits", "--site", line_of("loss"), *how, "--objective", "hcl:t=0.4")
    assert (refused.code, refused.trained) == (2, []), refused.err
    if loss == "exponentials":  # the positives are not in its sum
        return
    injected = train(script, "logits", "--site", line_of("loss"), *how, "--objective", "infonce:t=0.4")
    by_hand = train(write('cp.objective("infonce:t=0.4").from_logits(logits, at, scale=scale)'))
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(by_hand.trained, rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*is trained, but has no gradient")
@pytest.mark.parametrize("objective", ["hcl:t=0.4", "0.5 * dcl:t=host,prior=0.4 + 0.5 * infonce:t=0.1"])
@pytest.mark.parametrize("loss", [*LOSSES, "nll_loss"])
def test_a_learned_scale_gets_its_gradient_of_any_objective(train, loss, objective):
    losses = LOSSES | {"nll_loss": "F.nll_loss(torch.log_softmax(shifted, 1), at)"}
    how = ["--positives", "diagonal"] if loss in ("logsumexp", "exponentials") else []
    words = ["logits", "--site", line_of("loss"), *how, "--scale", "log_scale.exp", "--objective", objective]
    injected = train(write(losses[loss], scale=SCALES["learned"]), *words)
    ours = f'cp.objective("{objective}").from_logits(logits, at, scale=scale)'
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(train(write(ours, scale=SCALES["learned"])).trained, rel=1e-9)


def by_hand(logits: str = "logits", labels: str = "at") -> str:
    return f'cp.objective("{MIXED}").from_logits({logits}, {labels}, scale=scale)'


MIXED = "0.5 * dcl:t=host,prior=0.1 + 0.5 * hcl:t=0.3"
LEARNED = ["--scale", "log_scale.exp", "--objective", MIXED]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("loss", ["logsumexp", "exponentials"])
def test_a_learned_scale_gets_its_gradient_from_within_a_checkpoint(train, loss, reentrant):
    inside = LOSSES[loss].replace("shifted", "x")
    kept = f"lambda a, b, s: (lambda x: {inside})(a @ b.T * s), a, b, scale, use_reentrant={reentrant}"
    host = write(f"torch.utils.checkpoint.checkpoint({kept})", scale=SCALES["learned"])
    injected = train(host, "logits", "--site", line_of("loss"), "--positives", "diagonal", *LEARNED)
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(train(write(by_hand(), scale=SCALES["learned"])).trained, rel=1e-9)


@pytest.mark.parametrize("loss", ["F.nll_loss(torch.log_softmax(shifted, 1), at)", LOSSES["logsumexp"]])
def test_hooks_of_the_script_see_the_whole_gradient_of_a_learned_scale(train, loss):
    """Clipping each gradient by a hook is common, and not linear."""
    clipped = "at = torch.arange(9); log_scale.register_hook(lambda g: g.clamp(-0.02, 0.02) + 0.01)"
    host, ours = (write(x, scale=SCALES["learned"]).replace("at = torch.arange(9)", clipped) for x in (loss, by_hand()))
    how = ["--positives", "diagonal"] if loss == LOSSES["logsumexp"] else []
    injected = train(host, "logits", "--site", line_of("loss"), *how, *LEARNED)
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(train(ours).trained, rel=1e-9)


@pytest.mark.parametrize("mask", ["-torch.inf", "-1e9"])
def test_masked_entries_of_a_product_do_not_spoil_the_gradient_of_a_learned_scale(train, mask):
    """Such as each sample's own."""
    shift = f"(logits := logits.masked_fill(torch.eye(9).bool(), {mask})) - logits.detach().amax(1, keepdim=True)"
    lines = "F.cross_entropy(shifted, (at + 1) % 9)", by_hand(labels="(at + 1) % 9")
    host, ours = (write(loss, shift, SCALES["learned"]).replace("a @ b.T", "a @ a.T") for loss in lines)
    how = ["--product", line_of("product"), "--positives", "columns", "--own", "infonce:t=host"]
    host = host.replace("x = torch", "columns = (at + 1) % 9; x = torch")
    injected = train(host, "logits", *how, *LEARNED)
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(train(ours).trained, rel=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_a_margin_of_positives_that_are_a_product_of_their_own_is_not_a_shift(train, scale):
    both = "torch.cat([(a * b).sum(1, keepdim=True) - 0.1, a @ b.roll(1, 0).detach().T], 1) * scale"
    words = LEARNED if scale == "learned" else ["--objective", MIXED]
    host = write("F.cross_entropy(shifted, 0 * at)", both, SCALES[scale])
    injected = train(host, "logits", "--site", line_of("loss"), *words)
    assert injected.code == 0, injected.err
    ours = write(by_hand("shifted", "0 * at"), both, SCALES[scale])
    assert injected.trained == pytest.approx(train(ours).trained, rel=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_auto_prints_no_command_that_is_refused(find, scale):
    """Of two products, neither can be named for all logits."""
    both = "torch.cat([(a * b).sum(1, keepdim=True), a @ b.roll(1, 0).detach().T], 1) * scale"
    host = write("F.cross_entropy(shifted, 0 * at)", f"(x := {both}) - x.detach().amax(1, keepdim=True)", SCALES[scale])
    try:
        found, ours = find(host, "--objective", MIXED), find(host, "--objective", "infonce:t=0.1")
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.code, found.data["commands"]) == (3, [])
    assert "put the loss alone into a function of its embeddings" in found.err
    assert ours.data["commands"][0][-3] == "infonce:t=0.1"


def test_a_number_is_taken_out_of_pairs_of_logits_too(train):
    both = "torch.cat([(a * b).sum(1, keepdim=True), (a * b.roll(1, 0)).sum(1, keepdim=True)], 1) * scale"
    injected = train(
        write("F.cross_entropy(shifted, 0 * at)", f"{both} - 2.0"),
        *("logits", "--site", line_of("loss"), "--objective", MIXED.replace("host", "0.2")),
    )
    assert injected.code == 0, injected.err
    ours = write(by_hand("shifted", "0 * at").replace("host", "0.2"), both)
    assert injected.trained == pytest.approx(train(ours).trained, rel=1e-9)


def test_the_bias_of_binary_logits_is_not_a_shift(find, train):
    """Objectives are told of it."""
    host = write("-F.logsigmoid((2 * torch.eye(9) - 1) * shifted).sum() / 9", "logits + log_scale")
    try:
        found = find(host)
    finally:
        torch.set_default_dtype(torch.float32)
    assert "hcl:t=0.4" in found.data["commands"][0], found.err
    words = ["--site", line_of("loss"), "--positives", "diagonal", "--objective", MIXED]
    injected = train(host, "logits", *words)
    assert injected.code == 0, injected.err
    ours = write(by_hand("shifted").replace("scale=scale", "scale=scale, bias=log_scale"), "logits + log_scale")
    assert injected.trained == pytest.approx(train(ours).trained, rel=1e-9)


@pytest.mark.parametrize(
    ("loss", "shift"),
    [
        (
            "F.cross_entropy(shifted.mT, at.view(3, 3) % 3)",
            "(x := a.view(3, 3, 4) @ b.view(3, 3, 4).mT * scale) - x.detach().amax(-1, keepdim=True)",
        ),
        (
            "F.cross_entropy(shifted, at)",
            "(x := a.bfloat16() @ b.bfloat16().T * 100) - x.detach().amax(1, keepdim=True)",
        ),
    ],
    ids=["positions", "bfloat16"],
)
def test_shifts_are_seen_in_logits_of_positions_and_in_half_precision(train, loss, shift):
    host = write(loss, shift)
    refused = train(host, "logits", "--site", line_of("loss"), "--objective", MIXED)
    assert (refused.code, "a number of each row is taken" in refused.err) == (2, True), refused.err


def words_of(found, objective: str) -> list[str]:
    """The printed command with another objective, without the script."""
    assert found.data["commands"], found.err
    command = found.data["commands"][0]
    words = command[command.index("inject") + 1 : command.index("--")]
    words[words.index("--objective") + 1] = objective
    return words


@pytest.mark.parametrize(
    ("loss", "scale", "objective"),
    [
        ("-F.log_softmax(a @ b.T * log_scale.exp(), 1).diagonal().mean()", "log_scale.exp()", "hcl:t=host,prior=0.2"),
        ("F.cross_entropy(a @ b.T / (-log_scale).exp(), at)", "log_scale.exp()", "hcl:t=host,prior=0.2"),
        ("F.cross_entropy(a @ b.T / log_scale.exp(), at)", "1 / log_scale.exp()", "adnce:t=host,mu=0.4"),
        ("F.cross_entropy(logits - logits.max().detach(), at)", "5.0", "hcl:t=0.4,prior=0.2"),
    ],
)
def test_what_auto_prints_runs_whatever_else_is_on_the_line(find, train, loss, scale, objective):
    """The scale's own exponential, one over it, and the largest logit of a batch, which no number replaces."""
    by_hand = write(f'cp.objective("{objective}").from_logits(a @ b.T * ({scale}), at, scale={scale})')
    by_hand = train(by_hand.replace("scale = SCALE", "scale = 5.0"))
    try:
        found = find(write(loss))
    finally:
        torch.set_default_dtype(torch.float32)
    injected = train(write(loss), *words_of(found, objective))
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(by_hand.trained, rel=1e-9)


def test_a_mask_of_minus_a_hundred_is_a_mask(find, train):
    """Of cosines, no logit is that small: such keys do not count, as those at minus infinity do not."""
    mask = "(torch.arange(81).view(9, 9) % 5 == 3)"
    loss = f"F.cross_entropy(logits - 100.0 * {mask}, at)"
    try:
        found = find(write(loss))
    finally:
        torch.set_default_dtype(torch.float32)
    injected = train(write(loss), *words_of(found, "hcl:t=0.4,prior=0.2"))
    masked = f"logits.masked_fill({mask}, -torch.inf)"
    by_hand = train(write(f'cp.objective("hcl:t=0.4,prior=0.2").from_logits({masked}, at, scale=scale)'))
    assert injected.code == 0, injected.err
    assert injected.trained == pytest.approx(by_hand.trained, rel=1e-9)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ("logits - 0.5 * torch.eye(9)", "were similarities times one number, and now are not"),
        ("logits / (1 + at[:, None] / 9)", "were similarities times one number, and now are not"),
        ("2 * logits", "scale"),
    ],
)
def test_logits_that_change_after_they_were_measured_end_the_run(train, late, said):
    """Cross entropy has the same gradient at logits of any kind, so that comparing gradients does not find it."""
    loss = f"F.cross_entropy({late} if step > 5 else logits, at)"
    script = write(loss).replace("range(5)", "range(30)")
    ended = train(script, "logits", "--site", line_of("loss"), "--objective", "hcl:t=0.4")
    assert ended.code == 2, ended.err
    assert said in ended.err
