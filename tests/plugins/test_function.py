"""The seam of a function of embeddings: what --replace and --as say, where it is replaced, and what --verify tests."""

from __future__ import annotations

import sys
from importlib import machinery
from types import SimpleNamespace

import pytest
import torch
from injected import differences

import counterpoint as cp
from counterpoint.plugins import inject

LOSSES = """
import torch
import torch.nn.functional as F


def nt_xent(z_i, z_j, t=0.5):
    z = F.normalize(torch.cat([z_i, z_j]), dim=1)
    logits = (z @ z.T / t).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z_i)))


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b, scale=None, details=False):
        scale = self.log_scale.exp() if scale is None else scale
        logits = scale * F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
        labels = torch.arange(len(a))
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()} if details else loss

    @staticmethod
    def stacked(z):
        return nt_xent(*z.chunk(2)) * len(z)
"""
SCRIPT = """
import torch
from losses import Loss, nt_xent


def main():
    torch.manual_seed(0)
    encoder, criterion = torch.nn.Linear(6, 4), Loss()
    optimiser = torch.optim.SGD([*encoder.parameters(), *criterion.parameters()], lr=0.1)
    for _ in range(3):
        a, b = encoder(torch.randn(5, 6)), encoder(torch.randn(5, 6))
        result = {call}
        loss = result["loss"] if isinstance(result, dict) else result
        print(float(loss.detach().sum()))
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()


main()
"""
PLAIN = ("--replace", "losses.py:nt_xent(z_i, z_j)")


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    def run(*words: str, call: str = "nt_xent(a, b)", script: str = SCRIPT, start=("toy.py",)) -> SimpleNamespace:
        monkeypatch.chdir(tmp_path)
        for name in ("argv", "path", "meta_path"):
            monkeypatch.setattr(sys, name, list(getattr(sys, name)))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "losses.py").write_text(LOSSES)
        (tmp_path / "toy.py").write_text(script.replace("{call}", call))
        code = inject.main(["function", *words, "--", *start])
        for name in ("toy", "losses", "deep", "deep.losses", "deep.toy"):
            sys.modules.pop(name, None)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, losses=[float(line) for line in out.splitlines()], err=err)

    return run


def test_a_function_of_an_imported_module(launch):
    own = launch(*PLAIN)
    assert (own.code, "reached 3 times" in own.err) == (0, True)
    same = launch(*PLAIN, "--objective", "infonce:t=0.5", "--verify", "3")
    assert same.code == 0
    assert max(differences(same.err)) < 1e-5
    assert same.losses == pytest.approx(own.losses)
    wrong = launch(*PLAIN, "--objective", "infonce:t=0.4", "--verify", "3")
    assert (wrong.code, "is not that of infonce:t=0.4" in wrong.err, "--own infonce:t=0.1" in wrong.err) == (
        5,
        True,
        True,
    )
    ours = launch(*PLAIN, "--objective", "infonce:t=0.5")
    assert ours.losses == pytest.approx(own.losses, rel=1e-5)
    assert "losses.py:nt_xent: taken for a mean over anchors, of all views (--as pairing=one_way: of " in ours.err
    assert "the first), and not compared: --own says" in ours.err
    other, proved = (launch(*PLAIN, "--objective", "hcl:t=0.5", *how) for how in ((), ("--own", "infonce:t=0.5")))
    assert other.losses[0] == own.losses[0]  # the script logs its own loss
    assert other.losses[2] != pytest.approx(own.losses[2], rel=1e-4)
    assert proved.losses == pytest.approx(other.losses, rel=1e-5)
    assert max(differences(proved.err)) < 1e-5


@pytest.mark.parametrize("details", [False, True])
def test_a_method_with_a_trained_scale_and_a_dict(launch, details):
    text = "losses.py:Loss.forward(a, b, scale=scale)"
    words = ("--replace", text, "--as", "pairing=one_way", "--own", "infonce:t=host", "--objective", "infonce:t=host")
    call = f"criterion(a, b, scale=criterion.log_scale.exp(), details={details})"
    own = launch("--replace", text, call=call)
    ours = launch(*words, call=call)
    assert ours.losses == pytest.approx(own.losses, rel=1e-5)
    assert max(differences(launch(*words, "--verify", "2", call=call).err)) < 1e-5


def test_two_views_in_one_tensor_and_a_factor(launch):
    text = "losses.py:Loss.stacked(z)"
    call = "criterion.stacked(torch.cat([a, b]))"
    own = launch("--replace", text, call=call)
    words = ("--replace", text, "--as", "cat=2", "--own", "infonce:t=0.5", "--objective", "infonce:t=0.5")
    assert launch(*words, call=call).losses == pytest.approx(own.losses, rel=1e-5)
    assert max(differences(launch(*words, "--verify", "3", call=call).err)) < 1e-5


def test_a_script_that_trains_between_its_definitions(launch):
    evaluation = "\n\ndef evaluate():\n    return nt_xent(torch.eye(4), torch.eye(4))\n\n\nevaluate()\n"
    script = LOSSES + SCRIPT.replace("from losses import Loss, nt_xent", "") + evaluation
    words = ("--replace", "toy.py:nt_xent(z_i, z_j)", "--own", "infonce:t=0.5")
    found = launch(*words, "--objective", "hcl:t=0.5", script=script)
    assert (found.code, "reached 3 times" in found.err) == (0, True), found.err
    assert max(differences(found.err)) < 1e-5


def test_a_function_of_the_script_and_of_a_module_that_is_run(launch, tmp_path):
    script = LOSSES + SCRIPT.replace("from losses import Loss, nt_xent", "")
    own = launch("--replace", "toy.py:nt_xent(z_i, z_j)", script=script)
    words = ("--replace", "toy.py:nt_xent(z_i, z_j)", "--objective", "hcl:t=0.5")
    ours = launch(*words, script=script)
    assert (ours.code, len(ours.losses)) == (0, 3)
    assert ours.losses[2] != pytest.approx(own.losses[2], rel=1e-4)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "losses.py").write_text(LOSSES)
    (tmp_path / "deep" / "toy.py").write_text(
        SCRIPT.replace("from losses", "from .losses").replace("{call}", "nt_xent(a, b)")
    )
    words = ("--replace", "deep/losses.py:nt_xent(z_i, z_j)", "--objective", "hcl:t=0.5")
    assert launch(*words, start=("-m", "deep.toy")).losses == pytest.approx(ours.losses, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "which one?"),
        (("--replace", "losses.py:nt_xent"), "expected FILE:FUNCTION(a, b) with the parameters that are embeddings"),
        (("--replace", "losses.py:nt_xen(z_i, z_j)"), "Did you mean 'nt_xent'?"),
        (("--replace", "losses.py:Los.forward(a, b)"), "has no class 'Los'"),
        (("--replace", "losses.py:nt_xent(z_i, zj)"), "no parameter 'zj'. Did you mean 'z_j'?"),
        (("--replace", "losses.py:nt_xent(z_i, z_j, label=t)"), "no argument 'label'. Did you mean 'labels'?"),
        ((*PLAIN, "--as", "pairin=one_way"), "Did you mean 'pairing'?"),
        ((*PLAIN, "--as", "pairing=oneway"), "unknown pairing. Did you mean 'one_way'?"),
        ((*PLAIN, "--as", "cat=0"), "--as cat=0: expected the number of views"),
        ((*PLAIN, "--as", "epsilon=-1"), "--as epsilon=-1: expected a small number"),
        ((*PLAIN, "--as", "cat=3", "--objective", "hcl"), "--as cat=3: expected a multiple of 3 rows, got 5"),
        (("--replace", "losses.py:nt_xent(z_i, t)", "--objective", "hcl"), "t is not a tensor, but float"),
    ],
)
def test_usage(launch, words, message):
    found = launch(*words)
    assert found.code == 2
    assert message in found.err


def test_a_wrong_parameter_is_the_only_error(launch):
    """A module whose import has failed is not taken for one that was loaded by exec."""
    found = launch("--replace", "losses.py:nt_xent(z_i, z_k)", "--objective", "hcl")
    assert (found.code, "no parameter 'z_k'" in found.err, "loaded by exec" in found.err) == (2, True, False)


def test_a_package_may_have_a_file_of_the_same_name(launch, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "twin.py").write_text("class Other:\n    pass\n")
    script = "import sys\n\nsys.path.insert(0, 'site-packages')\nimport twin\n" + LOSSES + SCRIPT
    script = script.replace("from losses import Loss, nt_xent", "import mine.twin as mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "twin.py").write_text(LOSSES)
    words = ("--replace", "twin.py:Loss.forward(a, b)", "--objective", "infonce:t=0.5")
    try:
        found = launch(*words, script=script, call="mine.Loss().forward(a, b)")
        assert (found.code, "reached 3 times" in found.err, "no class" in found.err) == (0, True, False)
        missing = launch(*words, script=script, call="nt_xent(a, b)".replace("nt_xent", "mine.nt_xent"))
        assert (missing.code, "no class 'Loss'" in missing.err) == (3, True)
    finally:
        for name in ("twin", "mine", "mine.twin"):
            sys.modules.pop(name, None)


def test_it_was_never_called(launch):
    found = launch("--replace", "losses.py:Loss.forward(a, b)", "--objective", "hcl")
    assert found.code == 3
    missing = launch(*PLAIN, start=("-m", "nowhere.toy"))
    assert (missing.code, "-m nowhere.toy: no such module" in missing.err) == (2, True)


def test_what_a_function_returns(launch):
    text = ("--replace", "toy.py:pair(a, b)", "--objective", "infonce:t=0.5")
    script = (
        LOSSES + "\ndef pair(a, b):\n    return nt_xent(a, b), a.sum()\n" + SCRIPT.replace("from losses import", "#")
    )
    found = launch(*text, call="pair(a, b)[0]", script=script)
    assert (found.code, "returns tuple, not a loss alone: say what it computes" in found.err) == (2, True)
    both = launch(*text, "--own", "infonce:t=0.5", call="sum(pair(a, b))", script=script)
    assert (both.code, "the gradient at toy.py:pair is not that of infonce:t=0.5" in both.err) == (5, True)
    ours = launch(*text, "--own", "infonce:t=0.5", call="pair(a, b)[0]", script=script)
    assert ours.losses == pytest.approx(launch(*PLAIN).losses, rel=1e-5)


def test_views_of_an_objective_that_needs_more(launch):
    found = launch(*PLAIN, "--objective", "arcl(infonce):views=4")
    assert found.code == 2
    assert "views=4 were expected, got 2" in found.err
    assert cp.objective("arcl(infonce):views=4").views == 4
    assert torch.is_grad_enabled()


def test_what_the_function_computes_is_compared_where_the_objective_is_another(launch):
    words = (*PLAIN, "--objective", "hcl:t=0.5", "--verify", "2")
    own = launch(*words, "--own", "infonce:t=0.5")
    assert own.code == 0
    assert max(differences(own.err)) < 1e-5
    plain, other = launch(*PLAIN).losses, launch(*PLAIN, "--objective", "hcl:t=0.5").losses
    assert own.losses == pytest.approx(plain)  # the third step trains with the objective, and logs its loss before
    assert other[2] != pytest.approx(plain[2], rel=1e-4)
    wrong = launch(*words, "--own", "infonce:t=0.51")
    assert (wrong.code, len(wrong.losses)) == (5, 1)  # nothing is trained with the objective
    early = launch(*PLAIN, "--objective", "hcl:t=0.5", "--verify", "9")
    assert (early.code, len(early.losses)) == (5, 1)  # it is not compared with what the function computes
    assert launch(*words, "--own", "infonc").code == 2


@pytest.mark.parametrize("how", ["spec", "loader", "lazy"])
def test_modules_that_are_loaded_by_their_path(launch, how):
    load = {
        "spec": "module = util.module_from_spec(spec); spec.loader.exec_module(module)",
        "loader": "module = machinery.SourceFileLoader('mine', 'losses.py').load_module()",
        "lazy": "spec.loader = util.LazyLoader(spec.loader); module = util.module_from_spec(spec); "
        "spec.loader.exec_module(module)",
    }[how]
    lines = "from importlib import machinery, util\nspec = util.spec_from_file_location('mine', 'losses.py')\n" + load
    script = SCRIPT.replace("from losses import Loss, nt_xent", f"{lines}\nLoss = module.Loss")
    before = machinery.SourceFileLoader.exec_module
    try:
        found = launch(*PLAIN, "--objective", "hcl:t=0.5", script=script, call="module.nt_xent(a, b)")
    finally:
        sys.modules.pop("mine", None)
    assert found.code == 0
    assert found.losses == pytest.approx(launch(*PLAIN, "--objective", "hcl:t=0.5").losses)
    assert machinery.SourceFileLoader.exec_module is before


LOAD = "Loss, nt_xent = map(runpy.run_path('losses.py').get, ('Loss', 'nt_xent'))"


def test_functions_that_cannot_be_reached_are_named(launch):
    script = SCRIPT.replace("from losses import Loss, nt_xent", "import runpy\n" + LOAD)
    found = launch(*PLAIN, "--objective", "hcl:t=0.5", script=script)
    assert (found.code, "not loaded by exec or runpy" in found.err) == (3, True), found.err
    nested = LOSSES.replace(
        "def nt_xent", "def outer():\n  def inner(a, b): return a.sum()\n  return inner\n\n\ndef nt_xent"
    )
    nested += SCRIPT.replace("from losses import Loss, nt_xent", "inner = outer()")
    found = launch("--replace", "toy.py:inner(a, b)", "--objective", "hcl:t=0.5", script=nested)
    assert (found.code, "does not define it" in found.err) == (2, True)


def test_anchors_of_the_first_view(launch):
    half = """
def half(x, y):
    x, y = F.normalize(x, dim=1), F.normalize(y, dim=1)
    within, between = torch.exp(x @ x.T / 0.5), torch.exp(x @ y.T / 0.5)
    losses = -torch.log(between.diag() / (within.sum(1) + between.sum(1) - within.diag()))
    return {result}
"""
    for result in ("losses.mean()", "losses.sum()", "losses"):
        script = LOSSES + half.format(result=result) + SCRIPT.replace("from losses import Loss, nt_xent", "")
        text = ("--replace", "toy.py:half(x, y)", "--as", "pairing=views,anchors=first")
        found = launch(*text, "--objective", "infonce:t=0.5", "--verify", "2", script=script, call="half(a, b)")
        assert found.code == 0, found.err
        assert len(found.losses) == 3
    wrong = ("--replace", "toy.py:half(x, y)", "--as", "pairing=views")
    assert launch(*wrong, "--objective", "infonce:t=0.5", "--verify", "2", script=script, call="half(a, b)").code == 5


def test_a_trained_scale_and_bias(launch):
    siglip = """
def siglip(a, b, scale, bias):
    logits = scale * F.normalize(a, dim=1) @ F.normalize(b, dim=1).T + bias
    return -F.logsigmoid((2 * torch.eye(len(a)) - 1) * logits).sum() / len(a)
"""
    script = LOSSES + siglip + SCRIPT.replace("from losses import Loss, nt_xent", "")
    script = script.replace(
        "    for _ in range(3):",
        "    bias = torch.nn.Parameter(torch.tensor(-3.0))\n    optimiser.add_param_group({'params': [bias]})\n"
        "    for _ in range(3):",
    ).replace(
        "print(float(loss",
        "print(float(bias.detach()))\n        print(float(criterion.log_scale.detach()))\n        print(float(loss",
    )
    call = "siglip(a, b, criterion.log_scale.exp(), bias)"
    text = ("--replace", "toy.py:siglip(a, b, scale=scale, bias=bias)", "--as", "pairing=one_way")

    def run(*words):
        found = launch(*words, script=script, call=call)
        assert found.code == 0, found.err
        return found

    proof = ("--own", "siglip:t=host,b=host")
    own, ours = run("--replace", "toy.py:siglip(a, b)"), run(*text, *proof, "--objective", "siglip:t=host,b=host")
    assert ours.losses == pytest.approx(own.losses, rel=1e-5)
    assert len({*own.losses[0::3]}) == 3  # the bias is trained
    run(*text, "--objective", "siglip:t=host,b=host", "--verify", "2")
    fixed = launch(*text, "--objective", "siglip:t=host,b=-3", "--verify", "2", script=script, call=call)
    assert fixed.code == 5  # a number has no gradient


@pytest.mark.parametrize("host", ["function", "logits"])
def test_a_file_with_the_name_of_one_of_pythons(launch, tmp_path, capsys, host):
    """``multiprocessing/spawn.py`` is loaded, and does not have the script's function."""
    (tmp_path / "spawn.py").write_text(LOSSES)
    line = next(i for i, text in enumerate(LOSSES.splitlines(), 1) if "F.cross_entropy" in text)
    words = ("--replace", "spawn.py:nt_xent(z_i, z_j)", "--objective", "hcl:t=0.5")
    try:
        if host == "function":
            found = launch(*words, script=SCRIPT.replace("from losses", "from spawn"))
            assert (found.code, len(found.losses)) == (0, 3), found.err
        else:
            launch(*words, script=SCRIPT.replace("from losses", "from spawn"))
            sys.modules.pop("spawn")
            words = ["logits", "--site", f"spawn.py:{line}", "--scale", "2", "--objective", "hcl:t=0.5", "--", "toy.py"]
            assert inject.main(words) == 0, capsys.readouterr().err
    finally:
        sys.modules.pop("spawn", None)
        sys.modules.pop("toy", None)


TWO = """
def within(z):
    z = F.normalize(z, dim=1)
    e = torch.exp(z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), 0)
    return -torch.log(e[torch.arange(10), torch.arange(10).roll(5)] / e.sum(1)).mean()


def between(a, b, c):
    e = torch.exp(F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.5)
    return -torch.log(e.diag() / e.sum(1)).sum()


def second(a, b, step):
    return between(a, b, None) if step else 0 * a.sum()

"""
TWO_WORDS = ("--replace", "toy.py:within(z)", "--as", "pairing=views,cat=2", "--own", "infonce:t=0.2")
TWO_WORDS += ("--replace", "toy.py:between(a, b)", "--as", "pairing=one_way", "--own", "infonce:t=0.5")


def test_two_functions_in_one_command(launch):
    """Each has its own temperature; the weights after three steps are those of the edited script."""
    script = LOSSES + TWO + SCRIPT.replace("from losses import Loss, nt_xent", "")
    script = script.replace(
        "        optimiser.step()\n", "        optimiser.step()\n    print(float(encoder.weight.detach().sum()))\n"
    )
    call = "0.3 * within(torch.cat([a, b])) + between(a, b, None)"
    found = launch(*TWO_WORDS, "--objective", "hcl:beta=2", script=script, call=call)
    assert (found.code, "reached 6 times" in found.err) == (0, True), found.err
    assert max(differences(found.err)) < 1e-5
    edits = "import counterpoint as cp\nHCL = [cp.objective(f'hcl:beta=2,t={t}') for t in (0.2, 0.5)]\n"
    call = "0.3 * HCL[0](a, b, pairing='views') + 5 * HCL[1](a, b, pairing='one_way')"
    by_hand = launch(*PLAIN, "--only", script=edits + script, call=f"{call} + 0 * nt_xent(a, b)")
    assert found.losses[-1] == pytest.approx(by_hand.losses[-1], rel=1e-5)
    one = launch(*TWO_WORDS[:6], "--objective", "hcl:beta=2", script=script, call="within(torch.cat([a, b]))")
    assert one.losses[-1] != pytest.approx(found.losses[-1], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*TWO_WORDS, "--own", "infonce:t=1"), "--own: expected one, or one for each of 2 --replace, got 3"),
        ((*TWO_WORDS, "--replace", "toy.py:second(a)"), "--as: expected one, or one for each of 3 --replace, got 2"),
        ((*TWO_WORDS[:2], *TWO_WORDS[:4]), "--replace names a function twice"),
    ],
)
def test_functions_that_do_not_go_together(launch, words, why):
    script = LOSSES + TWO + SCRIPT.replace("from losses import Loss, nt_xent", "")
    found = launch(*words, "--objective", "hcl", script=script, call="within(torch.cat([a, b]))")
    assert (found.code, why in found.err) == (2, True), found.err


@pytest.mark.parametrize("steps", [3, 20])
def test_one_of_two_functions_is_never_called(launch, steps):
    script = (
        LOSSES + TWO + SCRIPT.replace("from losses import Loss, nt_xent", "").replace("range(3)", f"range({steps})")
    )
    words = (*TWO_WORDS, "--objective", "hcl")
    found = launch(*words, script=script, call="within(torch.cat([a, b]))")
    assert (found.code, "toy.py:between was not called" in found.err) == (4, True), found.err
    assert len(found.losses) == min(steps, 9)
    assert launch(*words, "--only", script=script, call="within(torch.cat([a, b]))").code == 0
