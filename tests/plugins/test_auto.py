"""The finder: where an unmodified script makes its contrastive loss, and what it may not claim."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from bed import UNKNOWN
from contrastive_variants import HARNESS, VARIANTS
from injected import differences
from testbed import MEMBERS, verdict, watch

from counterpoint.plugins import inject


def variant(name: str) -> str:
    return HARNESS.replace("{code}", VARIANTS[name][0])


def line_of(script: str, text: str) -> int:
    (line,) = (i for i, line in enumerate(script.splitlines(), 1) if text in line)
    return line


def test_a_loss_near_zero(find):
    """Where a positive's probability is one but for rounding, its gradient is zero, or has few digits."""
    code = """
def loss(a, b):
    apart = torch.diag(torch.arange(1.0, N + 1))
    x, y = norm(torch.cat([a, apart], 1)), norm(torch.cat([a + 0.01 * b, apart], 1))
    s = x @ y.T * 14
    return (torch.logsumexp(s, 1) - s.diagonal()).mean()
"""
    found = find(HARNESS.replace("{code}", code))
    (loss,) = (loss for loss in found.losses if loss["form"])
    assert loss["ours"]
    assert loss["scale"] == pytest.approx(14, rel=1e-3)
    assert found.data["commands"]


def test_it_says_what_it_saw(find):
    script = variant("learned_scale")
    found = find(script)
    at = line_of(script, "return (F.cross_entropy(logits, at)")
    assert f"cross entropy toy.py:{at} in loss: F.cross_entropy(logits, at)" in found.err
    assert "learned: net.logit_scale" in found.err
    assert "both: the transposed logits are at the same line" in found.err
    assert f"--site toy.py:{at} --scale scale --objective hcl:t=host -- toy.py" in found.err
    assert "watched 3 calls of backward()" in found.err


def test_the_command_has_the_same_shims(find):
    for words in (("--shims", "adnce_image"), ("--no-shims",)):
        (command,) = find(variant("cross_entropy"), *words).data["commands"]
        assert command[-len(words) - 2 :] == [*words, "--", "toy.py"]


@pytest.mark.parametrize(("words", "said"), [((), True), (("--objective", "hcl:t=0.1"), False)])
def test_why_the_temperature_of_hcl_is_not_the_scripts(find, words, said):
    found = find(variant("cross_entropy"), *words)
    assert ("Its t is twice yours, since HCL sharpens" in found.err) == said


def test_names_of_the_script_are_in_the_command(find):
    found = find(variant("grace"))
    assert "--replace 'toy.py:loss(a, b)' --as pairing=views" in found.err


@pytest.mark.parametrize("steps", [1, 2])
def test_the_number_of_steps(find, steps):
    found = find(variant("cross_entropy"), "--steps", str(steps))
    assert found.data["steps"] == found.data["backwards"] == steps


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--steps", "0"), "--steps 0: expected the number of contrastive steps to watch, 1 or more"),
        (("--verify", "3"), "--verify: auto replaces nothing; give it to the command that auto prints"),
        (("--json", "nowhere/found.json"), "its folder does not exist"),
        (("--scale", "10"), "--scale: auto has no such option"),
    ],
)
def test_options_without_effect(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text("")
    assert inject.main(["auto", *words, "--", "toy.py"]) == 2
    assert why in capsys.readouterr().err


def test_the_name_of_a_script_cannot_move_color_or_forge_what_is_printed(find):
    lines = "import torch\nx = torch.randn(8, 6, requires_grad=True)\nfor _ in range(3):\n"
    lines += "    torch.nn.functional.cross_entropy(x @ x.T, torch.arange(8)).backward()\n"
    found = find(lines, name="t\x1b[31mx\nfake.py")
    assert "\n  cross entropy t\\x1b[31mx\\nfake.py:4 in <module>" in found.err
    assert "\x1b" not in found.err + found.out
    assert "\nfake" not in found.err + found.out


def test_a_script_may_edit_its_logits_without_a_gradient(find):
    """As BLIP-2 does, which draws hard negatives from them: a view of them has no gradient function any more."""
    lines = """
def loss(a, b):
    s = norm(a) @ norm(b).T / 0.1
    value = F.cross_entropy(s, torch.arange(N))
    with torch.no_grad():
        s[:, :N].fill_diagonal_(-1e4)
    return value
"""
    assert find(HARNESS.replace("{code}", lines)).data["steps"] == 3


def test_nothing_is_found(find):
    found = find(variant("classifier_alone"))
    head = line_of(variant("classifier_alone"), "classes = F.cross_entropy")
    assert found.code == 3
    assert "ended by itself after 6 calls of backward()" in found.err
    assert f"toy.py:{head}: cross entropy of (8, 4), a product with parameters, 6 times" in found.err
    assert find("print('no training')").code == 3


def test_scores_of_a_cross_encoder_have_a_command_by_hand(find, monkeypatch, capsys):
    """Of which no product of embeddings tells that its columns are candidates."""
    code = """
head = torch.nn.Linear(5, 1)
loss = lambda a, b: F.cross_entropy(head(a + b).view(-1, 4), torch.zeros(N // 4).long())
"""
    found = find(HARNESS.replace("{code}", code))
    (line,) = (line for line in found.err.splitlines() if "inject logits --site" in line)
    assert line.endswith(" --scale 1 --objective infonce:t=1 -- ...")
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    assert inject.main([*line.split()[2:-1], "toy.py"]) == 0
    assert "trained in" in capsys.readouterr().err


def test_a_script_that_ends_early(find):
    found = find("import torch\nprint(torch.eye(3).exp())")
    assert "ended before it called backward()" in found.err


def test_a_script_that_fails(find, tmp_path, capsys):
    script = variant("cross_entropy").replace("range(6)", "range(2)").replace("    main()", "    main()\n    1 / 0")
    with pytest.raises(ZeroDivisionError):
        find(script)
    said = capsys.readouterr().err
    assert "1 contrastive loss" in said
    assert "ended with an error:\n" in said
    assert json.loads((tmp_path / "found.json").read_text())["errors"] == ["ZeroDivisionError: division by zero"]
    for end, how in (("2", "exit code 2\n"), ("'no data'", "an error:\n")):  # as argparse ends; with a reason
        with pytest.raises(SystemExit):
            find(f"raise SystemExit({end})")
        assert f"the script ended with {how}" in capsys.readouterr().err


def test_a_loss_that_is_only_measured_is_not_claimed(find):
    script = variant("classifier_alone").replace(
        "contrastive = loss(a, b)", "contrastive = loss(a, b)\n        F.cross_entropy(a @ b.T, torch.arange(N))"
    )
    assert not [loss for loss in find(script).losses if loss["form"]]


def test_labels_of_classes_are_doubted(find):
    code = """
def loss(a, b):
    labels = torch.tensor([0, 3, 1, 1, 2, 0, 3, 1])
    return F.cross_entropy(norm(a) @ norm(b[:4]).T / 0.1, labels)
"""
    found = find(HARNESS.replace("{code}", code))
    (loss,) = found.losses
    assert "columns may be classes rather than samples" in loss["doubts"][0]
    assert not found.data["commands"]


@pytest.mark.parametrize(
    "logits",
    [
        "(norm(a) @ norm(b).T - 0.2 * torch.eye(N)) / 0.1",
        "norm(a) @ norm(b).T / 0.1 - torch.linspace(-4, -1, N)",  # the logarithm of how often a key is sampled
        "torch.cat([norm(a) @ norm(b).T, norm(a) @ norm(b).roll(1, 0).T], 1) / 0.1 + torch.eye(N).repeat(1, 2)",
    ],
)
def test_a_margin_is_doubted(find, capsys, monkeypatch, logits):
    """No command is ready; what is printed to do so by hand runs as it stands."""
    code = f"def loss(a, b):\n    return F.cross_entropy({logits}, torch.arange(N))"
    found = find(HARNESS.replace("{code}", code))
    (loss,) = found.losses
    assert "a margin, or a weight" in loss["doubts"][0]
    assert not found.data["commands"]
    (hint,) = (line for line in found.err.splitlines() if line.startswith("  by hand"))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        words = hint.partition("counterpoint inject ")[2].split()
        assert inject.main([*words, "--objective", "infonce:t=0.2", "--", "toy.py"]) == 0
    finally:
        sys.modules.pop("toy", None)
    assert "the loss was reached 6 times" in capsys.readouterr().err


def test_an_epsilon_is_doubted(find):
    code = (
        "SMALL = [1e-3]\n\n\ndef loss(a, b):\n    pos = torch.exp((norm(a) * norm(b)).sum(-1) / 0.2)\n"
        "    every = torch.exp(norm(a) @ norm(b).T / 0.2)\n    return -torch.log(pos / every.sum(1) + SMALL[0]).mean()"
    )
    found = find(HARNESS.replace("{code}", code))
    (loss,) = found.losses
    assert loss["form"] == "infonce"
    assert loss["doubts"][0] == "anchors do not weigh the same, as in log(p + epsilon)"
    assert "by hand       if cross entropy is what you mean, write it as F.cross_entropy of the logits" in found.err
    assert not found.data["commands"]


def test_positives_of_another_product(find):
    code = """
def loss(a, b):
    x, y, z = norm(a[:4]), norm(b[:4]), norm(a[4:])
    pos = torch.einsum("ni,ni->n", x, y) / 0.1
    return (torch.logsumexp(x @ z.T / 0.1, dim=1) - pos).mean()
"""
    script = HARNESS.replace("{code}", code)
    (loss,) = find(script).losses
    assert loss["positives"] == f"the product at toy.py:{line_of(script, 'torch.einsum')}"
    assert loss["product"].endswith(f",{line_of(script, 'torch.einsum')}")


def test_a_form_that_changes_is_doubted(find):
    code = (
        "step = [0]\n\n\ndef loss(a, b):\n    step[0] += 1\n    soft = 0.3 * (step[0] > 1)\n"
        "    targets = [(1 - soft) * torch.eye(N) + soft / N]\n"
        "    return -(F.log_softmax(norm(a) @ norm(b).T / 0.1, 1) * targets[0]).sum(1).mean()"
    )
    (loss,) = find(HARNESS.replace("{code}", code)).losses
    assert "its form is another in a later call: not known" in loss["doubts"]


def test_the_script_trains_as_before(find, tmp_path, capsys):
    """Watching changes no value."""
    script = variant("exp_both_ways").replace(
        "optimizer.step()", "optimizer.step()\n        print(repr(float(total.detach())))"
    )
    watched = find(script, "--steps", "6").out
    runpy.run_path(str(tmp_path / "toy.py"), run_name="__main__")
    plain = capsys.readouterr().out
    assert len(plain.splitlines()) == 6
    assert watched.splitlines() == plain.splitlines()[:5]  # the sixth step ends before it is taken


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("criterion", "infonce:t=host"),
        ("learned_scale", "infonce:t=host"),
        ("columns_of_positive_and_queue", "infonce:t=host"),
        ("exp_sum", "infonce:t=0.2,denominator=negatives"),
        ("grace", "infonce:t=0.5"),
        ("nt_xent_mask", "infonce:t=0.5"),
        ("log_softmax_nll", "infonce:t=0.1"),
        ("one_loop_per_anchor", "infonce:t=0.5"),
        ("tensordot", "hcl:t=0.2"),
        ("memory_that_is_not_normalized", "infonce:t=0.5"),
        ("anchors_of_one_view", "hcl:t=0.4"),
        ("divided_by_lengths", "hcl:t=0.5"),
        ("siglip", "hcl:t=host"),
        ("siglip_of_a_batch_of_one", "hcl:t=host"),
        ("softplus_of_pairs", "hcl:t=0.2"),
    ],
)
def test_the_command_it_prints_verifies(find, capsys, monkeypatch, name, objective):
    """The command runs, reaches every step, and the objective with the settings of the script is its loss."""
    found = find(variant(name), "--objective", objective)
    (command,) = found.data["commands"]
    assert command[-4:] == ["--objective", objective, "--", "toy.py"]
    assert f"{objective} was not trained: start a command above" in found.err
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        assert inject.main([*command[2:-2], "--verify", "3", "--", "toy.py"]) == 0
    finally:
        sys.modules.pop("toy", None)
    said = capsys.readouterr().err
    assert "reached 12 times" in said if name == "learned_scale" else "reached 6 times" in said
    assert max(differences(said)) < 1e-5


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("pass", "normalize=false,pairing=one_way"),
        ("a, b = norm(a), norm(b)", "pairing=one_way"),
        ("a = norm(a)\n    b = norm(b)", "pairing=one_way"),
        ("a = torch.tanh(a @ net.bilinear)", ""),  # the arguments are not what is compared: not by the function
    ],
)
def test_whether_embeddings_are_normalized(find, capsys, monkeypatch, first, command):
    """A function that assigns to its arguments gets them as they were passed."""
    code = f"""
def loss(a, b):
    {first}
    e = torch.exp(a @ b.T / 2)
    return -torch.log(e.diag() / e.sum(1)).mean()
"""
    found = find(HARNESS.replace("{code}", code), "--objective", "infonce:t=2")
    (loss,) = found.losses
    assert loss["form"] == "infonce"
    assert loss["scale"] == pytest.approx(0.5)
    assert loss["normalized"] == ("norm" in first)
    (words,) = found.data["commands"]
    if not command:
        assert words[2:4] == ["logits", "--site"]
        return
    assert words[words.index("--as") + 1] == command
    for how in ("pairing=one_way", "normalize=false,pairing=one_way"):
        words[words.index("--as") + 1] = how
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        try:
            code = inject.main([*words[2:-2], "--verify", "3", "--", "toy.py"])
        finally:
            sys.modules.pop("toy", None)
        said = capsys.readouterr().err
        assert code == (0 if how == command else 5)  # the other one verifies nothing by accident
        if not code:
            assert max(differences(said)) < 1e-5


@pytest.mark.parametrize("supervised", [True, False])
def test_labels_of_a_function_are_passed_on(find, capsys, monkeypatch, supervised):
    """A supervised loss, times a factor, whose function changes the shape of its labels."""
    code = """
def loss(a, b):
    return supervised(torch.stack([norm(a), norm(b)], 1), torch.randint(4, (N,)))


def supervised(features, y, t=0.1):
    y = y.view(-1, 1)
    features = features.transpose(0, 1).flatten(0, 1)
    s = (features @ features.T / t).masked_fill(torch.eye(2 * N).bool(), -1e9)
    same = (y == y.T).repeat(2, 2).float().fill_diagonal_(0)
    return -3 * ((s - torch.log(torch.exp(s).sum(1, keepdim=True))) * same).sum(1).div(same.sum(1)).mean()
"""
    code = code if supervised else code.replace("torch.randint(4, (N,))", "torch.arange(N)")
    script = HARNESS.replace("{code}", code)
    found = find(script)
    (words,) = found.data["commands"]
    assert words[words.index("--replace") + 1] == f"toy.py:supervised(features{', labels=y' * supervised})"
    assert words[words.index("--as") + 1] == "normalize=false,pairing=views"
    spec = words[words.index("--objective") + 1]
    assert spec == ("supcon:t=0.1" if supervised else "hcl:t=0.2")
    assert ("supcon:t=0.1 is the script's own loss: name another one there" in found.err) is supervised
    assert words[words.index("--own") + 1] == ("supcon" if supervised else "infonce") + ":t=0.1"
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        assert inject.main([*words[2:-2], "--verify", "3", "--", "toy.py"]) == 0
    finally:
        sys.modules.pop("toy", None)
    assert max(differences(capsys.readouterr().err)) < 1e-5


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ("F.cross_entropy(x, at, reduction='sum') + a.sum()", "--scale 5 --objective hcl:t=0.4"),
        ("F.cross_entropy(x / step[0], at)", "--scale changing --objective hcl:t=host"),
        (
            "(torch.exp(x / step[0]).sum(1).log() - x.diag() / step[0]).mean()",
            "its scale changes: `counterpoint inject logits --site toy.py:",
        ),
    ],
)
def test_a_scale_that_changes_is_measured_in_each_call_or_needs_a_name(find, loss, line):
    head = "step = [0]\n\n\ndef loss(a, b):\n    step[0] += 1\n    x, at = 5 * norm(a) @ norm(b).T, torch.arange(N)"
    code = f"{head}\n    return {loss}"
    found = find(HARNESS.replace("{code}", code))
    assert line in found.err
    assert ("changes from 1.66667 to 5" in found.err) == ("step[0]" in loss)
    assert bool(found.data["commands"]) == ("cross_entropy" in loss)


@pytest.mark.slow
def test_apply_runs_the_command_with_verify(tmp_path):
    (tmp_path / "toy.py").write_text(variant("criterion"))
    words = ["auto", "--apply", "--objective", "hcl:t=0.2", "--", "toy.py"]
    command = [sys.executable, "-m", "counterpoint.plugins.inject", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--scale 5 --objective hcl:t=0.2" in done.stderr
    assert "host's own loss in 6 of them" in done.stderr


@pytest.mark.slow
def test_apply_verifies_a_function_with_what_it_computes(tmp_path):
    (tmp_path / "toy.py").write_text(variant("exp_sum"))
    words = ["auto", "--apply", "--objective", "hcl:t=0.2", "--", "toy.py"]
    command = [sys.executable, "-m", "counterpoint.plugins.inject", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--own infonce:t=0.2,denominator=negatives --objective hcl:t=0.2" in done.stderr
    assert max(differences(done.stderr)) < 1e-5


def test_losses_whose_positives_are_in_other_columns_are_one_command(find):
    """As where an anchor has its own negatives in one loss, and those of the batch in the other."""
    code = """
def loss(a, b):
    x, y = norm(a), norm(b)
    own = torch.einsum("nd,nkd->nk", x, torch.stack([y, y.roll(1, 0), y.roll(3, 0)], 1))
    first = -F.log_softmax(own / 0.2, 1)[:, 0].mean()
    return first - F.log_softmax(x @ y.T / 0.2, 1).diagonal().mean()
"""
    script = HARNESS.replace("{code}", code)
    found = find(script)
    one, other = (line_of(script, text) for text in ("first =", "return first"))
    (command,) = found.data["commands"]
    sites = ["--site", f"toy.py:{one}", "--site", f"toy.py:{other}"]
    assert command[:9] == ["counterpoint", "inject", "logits", *sites, "--positives", "0,diagonal"]
    assert "--only" not in command


def test_losses_of_one_function_with_different_scales(find, capsys, monkeypatch):
    """Both are in one command, whose scales are measured; one of them alone is refused, unless that is meant."""
    code = """
def loss(a, b):
    at = torch.arange(N)
    warm = F.cross_entropy(norm(a) @ norm(b).T / 0.1, at)
    cold = F.cross_entropy(norm(b) @ norm(a).T * net.logit_scale.exp(), at)
    return (warm + cold) / 2
"""
    script = HARNESS.replace("{code}", code)
    found = find(script, "--objective", "hcl:t=host")
    (whole,) = found.data["commands"]
    lines = [f"toy.py:{line_of(script, word)}" for word in ("warm =", "cold =")]
    assert [word for word in whole if word.startswith("toy.py:")] == lines
    assert "--scale" not in whole

    def run(words):
        monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
        try:
            return inject.main([*words, "--", "toy.py"]), capsys.readouterr().err
        finally:
            sys.modules.pop("toy", None)

    code, said = run([*whole[2:-2], "--verify", "4"])
    assert (code, "reached 12 times" in said) == (0, True)
    assert max(differences(said)) < 1e-5
    part = ["logits", "--site", lines[0], "--objective", "hcl:t=host"]
    code, said = run(part)
    assert (code, "a part of the host's loss was left alone" in said) == (4, True)
    assert run([*part, "--only"])[0] == 0


COMPLEX = """
import torch
import torch.nn.functional as F

layer = torch.nn.Linear(6, 8)
for _ in range(4):
    x = torch.randn(8, 6)
    a, b = layer(x), layer(x + 0.1)
    gaps = (torch.fft.fft(a)[:, None] - torch.fft.fft(b)[None]).pow(2).sum(-1)
    loss = F.cross_entropy(F.normalize(a) @ F.normalize(b).T / 0.1, torch.arange(8)) + gaps.abs().mean()
    loss.backward()
"""


def test_complex_numbers_beside_the_loss_are_no_distances(find):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it discards imaginary parts
        found = find(COMPLEX)
    (loss,) = found.losses
    assert loss["ours"]


WIDE = """
import torch
import torch.nn.functional as F

layer, wide, tokens = torch.nn.Linear(6, 8), torch.nn.Linear(6, 300, bias=False), torch.randn(50, 6)
wide.weight.data[0] = tokens[0]  # no distance of the first two, and a sum that is zero there
shift = torch.randn(50, 300)
shift[0, 0] = -tokens[0].pow(2).sum()
for _ in range(4):
    x = torch.randn(8, 6)
    a, b = F.normalize(layer(x)), F.normalize(layer(x + 0.1))
    residual = (wide(tokens) + shift).mean()
    (F.cross_entropy(a @ b.T / 0.1, torch.arange(8)) + residual).backward()
"""


def test_a_layer_whose_first_output_could_be_a_distance_is_refused_by_one_row(find, monkeypatch):
    sizes, cdist = [], torch.cdist

    def recorded(a, b, *args):
        sizes.append(len(a) * len(b))
        return cdist(a, b, *args)

    monkeypatch.setattr(torch, "cdist", recorded)
    (loss,) = find(WIDE).losses
    assert loss["ours"]
    assert max(sizes) == 300


SPAWNED = """
import os

import torch
import torch.distributed.nn
import torch.nn.functional as F


def work(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 5)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(rank)
    for _ in range(5):
        a, b = (F.normalize(model(torch.randn(8, 6)), dim=1) for _ in range(2))
        keys = torch.cat(torch.distributed.nn.all_gather(b))
        loss = F.cross_entropy(a @ keys.T / 0.1, torch.arange(8) + 8 * rank)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
"""


@pytest.mark.slow
def test_processes_that_the_script_starts(tmp_path):
    (tmp_path / "toy.py").write_text(SPAWNED)
    command = [sys.executable, "-m", "counterpoint.plugins.inject", "auto", "--json", "found.json", "--", "toy.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (loss,) = json.loads((tmp_path / "found.json").read_text())["losses"]
    assert (loss["logits"], loss["processes"], loss["ours"]) == ([8, 16], 2, True)
    assert loss["scale"] == pytest.approx(10)
    assert "2, logits of one process 8 x 16" in done.stderr


RUN_BY_TORCHRUN = (
    SPAWNED.partition("if __name__")[0].replace(
        '"gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2', '"gloo"'
    )
    + 'if __name__ == "__main__":\n    work(int(os.environ["RANK"]), os.getcwd())\n'
)


@pytest.mark.slow
def test_torchrun(tmp_path):
    """``auto``, and the command that it prints, in two processes: one speaks for both."""
    (tmp_path / "toy.py").write_text(RUN_BY_TORCHRUN)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]

    def run(*words):
        command = [*start, "counterpoint.plugins.inject", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    done = run("auto", "--json", "found.json", "--", "toy.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("watched 3 calls of backward()") == 1
    data = json.loads((tmp_path / "found.json").read_text())
    (loss,) = data["losses"]
    assert (loss["logits"], loss["processes"], loss["ours"]) == ([8, 16], 2, True)
    (command,) = data["commands"]
    done = run(*command[2:-2], "--verify", "3", "--", "toy.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the loss was reached 5 times") == 1
    assert max(differences(done.stderr)) < 1e-5
    refused = run("auto", "--apply", "--", "toy.py")
    assert "--apply: it would start one process: start the command above, with your launcher" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
def test_clones(name, tmp_path):
    """What the finder says of unmodified code bases; see tests/support/testbed.py."""
    member = MEMBERS[name]
    for package in member.needs:
        pytest.importorskip(package)
    hosts = Path(os.environ.get("COUNTERPOINT_HOSTS", ""))
    if member.folder and not (os.environ.get("COUNTERPOINT_HOSTS") and (hosts / member.folder).is_dir()):
        pytest.skip(f"no {member.folder} in COUNTERPOINT_HOSTS")
    found, said = watch(member, hosts, tmp_path)
    unknown = any(form == UNKNOWN for _, form, _, _ in member.losses)
    assert verdict(member, found) == ("not found" if unknown else "found"), said
