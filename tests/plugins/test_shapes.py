"""Shapes of losses from the wild: what ``auto`` says of them, and that its command trains what it says."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from injected import differences, launch

import counterpoint as cp
from counterpoint.integrations.search.coordinate import at_temperature

N = 10
SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
N = 10
net = torch.nn.Linear(6, 5).double()
other = torch.nn.Linear(5, 5, bias=False).double()
norm = lambda x: F.normalize(x, dim=-1)


{code}

def main():
    for step in range(8):
        torch.manual_seed(step)
        x = torch.randn(N, 6).double()
        a, b = net(x), net(x + torch.randn(N, 6).double())
        for p in net.parameters():
            p.grad = None
        loss(a, b).backward()
        print(*net.weight.grad.flatten().tolist())


if __name__ == "__main__":
    main()
"""


def expected(objective, loss):
    """The gradient of the encoder in each step, for ``loss(objective, a, b, other)``."""
    torch.manual_seed(0)
    net, other = torch.nn.Linear(6, 5).double(), torch.nn.Linear(5, 5, bias=False).double()
    for step in range(8):
        torch.manual_seed(step)
        x = torch.randn(N, 6).double()
        a, b = net(x), net(x + torch.randn(N, 6).double())
        yield torch.autograd.grad(loss(cp.objective(objective), a, b, other), net.weight)[0]


@pytest.fixture
def check(find, tmp_path, monkeypatch, capsys):
    """Finds the loss of a script, and runs the command, or with ``--only`` the part, with HCL; returns the findings."""

    def check(code, loss, t, *words):
        script = SCRIPT.replace("{code}", code)
        found = find(script, *words)
        (command,) = found.data["commands"]
        assert not found.data["errors"]
        options = command[2 : command.index("--")]
        options[options.index("--objective") + 1] = "hcl:beta=1,prior=0.05"
        ran = launch(tmp_path, script, monkeypatch, capsys, options[0], options[1:])
        assert ran.code == 0, ran.err
        assert max(differences(ran.err)) < 1e-6
        ours = [*expected(f"hcl:t={t},beta=1,prior=0.05", loss)]
        for got, wanted in zip(ran.numbers, ours, strict=True):
            torch.testing.assert_close(torch.tensor(got).double(), wanted.flatten(), rtol=1e-5, atol=1e-9)
        return found

    return check


FLATTENED = """
def one_way(logits):
    probabilities = F.log_softmax(logits, dim=-1)
    probabilities = probabilities.view(-1, probabilities.size(-1))[:N]
    return F.nll_loss(probabilities, torch.arange(N), reduction="sum")

def loss(a, b):
    logits = norm(a) @ norm(b).T * 8
    return (0.5 * one_way(logits) + 0.5 * one_way(logits.T)) / N
"""


def symmetric(objective, a, b, _):
    return objective(a, b, pairing="symmetric")


def test_log_probabilities_that_were_reshaped(check):
    """Their log_softmax is the site; the call that takes its output does not count as a part left alone."""
    found = check(FLATTENED, symmetric, 1 / 8)
    (only,) = found.losses
    assert (only["kind"], only["calls"] / only["steps"]) == ("log_softmax", 2)


FAR = """
def loss(a, b):
    b = -a if torch.initial_seed() == STEP else b
    return -F.log_softmax(norm(a) @ norm(b).T * 100, dim=0).diagonal().mean()
"""


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_step_that_does_not_tell_losses_apart(check, step):
    """Where a positive is hardly likely, its place in the denominator does not matter; another step tells."""

    def far(objective, a, b, _):
        b = -a if torch.initial_seed() == step else b
        return objective(b, a, pairing="one_way")

    found = check(FAR.replace("STEP", str(step)), far, 1 / 100)
    (only,) = found.losses
    assert (only["form"], only["doubts"], only["in_denominator"]) == ("infonce", [], True)


POLY = """
def loss(a, b):
    logits = norm(a) @ norm(b).T * 8
    right = logits.softmax(1).diagonal()
    return F.cross_entropy(logits, torch.arange(N)) + 2 * (1 - right).mean()
"""


def test_another_term_of_the_same_logits(check, find):
    """A command for one of both would leave the other in silence."""

    def poly(objective, a, b, _):
        p = (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T * 8).softmax(1).diagonal()
        return objective(a, b, pairing="one_way") + 2 * (1 - p).mean()

    found = find(SCRIPT.replace("{code}", POLY))
    assert found.code == 3
    assert not found.data["commands"]
    assert "another term, beside the cross entropy of a product at toy.py" in found.err
    assert "No command: it would leave the loss of the same step" in found.err
    assert "--only" in check(POLY, poly, 1 / 8, "--only").data["commands"][0]


OF_PROBABILITIES = """
def loss(a, b):
    log_p = F.log_softmax(norm(a) @ norm(b).T * 8, 1)
    teacher = torch.softmax(torch.arange(N * N).reshape(N, N).double() % 7, 1)
    return F.nll_loss(log_p, torch.arange(N)) {more}
"""


def test_a_teacher_beside_the_labels(find):
    """The log-probabilities of one log_softmax are in two terms."""
    code = OF_PROBABILITIES.replace("{more}", "+ F.kl_div(log_p, teacher, reduction='batchmean')")
    found = find(SCRIPT.replace("{code}", code))
    assert not found.data["commands"]
    assert "another term, beside the nll_loss" in found.err
    assert find(SCRIPT.replace("{code}", OF_PROBABILITIES.replace("{more}", ""))).data["commands"]


FUSED = """
def part(z1, z2):
    f = lambda x: torch.exp(x / 0.25)
    within, between = f(norm(z1) @ norm(z1).T), f(norm(z1) @ norm(z2).T)
    return -torch.log(between.diag() / (within.sum(1) + between.sum(1) - within.diag())).mean()

def loss(a, b):
    fused = other(a + b)
    return part(a, fused) + part(b, fused)
"""


def test_views_of_which_one_is_computed_from_the_other(check):
    """A gradient that reaches the first view through the second does not count for the first argument."""

    def parts(objective, a, b, other):
        fused = other(a + b)
        return sum(objective(x, fused, pairing="views", reduction="none")[:N].mean() for x in (a, b))

    found = check(FUSED, parts, 0.25)
    assert "part(z1, z2)" in " ".join(found.data["commands"][0])


RANKED = """
def loss(a, b):
    scores = (a[:, None].expand(-1, 2, -1) * torch.stack([b, b.roll(1, 0)], 1)).sum(2)
    ranking = -torch.log(torch.sigmoid(scores[:, :1] - scores[:, 1:])).mean()
    ranking = ranking - F.logsigmoid((a * b).sum(1) - (a * b.roll(2, 0)).sum(1)).mean()
    return ranking + F.cross_entropy(norm(a) @ norm(b).T * 8, torch.arange(N))
"""


def test_ranked_pairs_beside_it_are_not_contrastive(check):
    """BPR, with and without a dimension for the negatives."""

    def ranked(objective, a, b, _):
        first = (a * b).sum(1) - (a * b.roll(1, 0)).sum(1)
        second = (a * b).sum(1) - (a * b.roll(2, 0)).sum(1)
        ranking = -F.logsigmoid(first).mean() - F.logsigmoid(second).mean()
        return ranking + objective(a, b, pairing="one_way")

    found = check(RANKED, ranked, 1 / 8)
    assert "1 contrastive loss\n" in found.err


PAIRS = """
def loss(a, b):
    score = F.binary_cross_entropy_with_logits
    pairs = score((a * b).sum(1), torch.ones(N).double()) + score((a * b.roll(1, 0)).sum(1), torch.zeros(N).double())
    return pairs + F.cross_entropy(norm(a) @ norm(b).T * 8, torch.arange(N))
"""


def test_pairs_with_labels_are_named_and_hold_nothing_back(check):
    """A recommender's pointwise loss, or EBM-NCE; no anchor has negatives in it."""

    def scored(objective, a, b, _):
        pairs = -F.logsigmoid((a * b).sum(1)).mean() - F.logsigmoid(-(a * b.roll(1, 0)).sum(1)).mean()
        return pairs + objective(a, b, pairing="one_way")

    found = check(PAIRS, scored, 1 / 8)
    assert [loss["form"] for loss in found.losses] == ["infonce", "binary", "binary"]


def test_pairs_that_are_multiplied_in_batches_of_one_key(find):
    """As in the triplet loss of TNC."""
    pairs = "(a.view(N, 1, 5) @ z.view(N, 5, 1))"
    terms = [
        f"F.logsigmoid({sign}{pairs.replace('z', other)}).mean()" for sign, other in (("", "b"), ("-", "b.roll(1, 0)"))
    ]
    found = find(SCRIPT.replace("{code}", f"def loss(a, b):\n    return -{' - '.join(terms)}\n"))
    assert not found.data["errors"]
    assert [loss["form"] for loss in found.losses] == ["binary", "binary"]
    assert "each pair by itself" in found.err


MIXED = """
def loss(a, b):
    logits, shares = norm(a) @ norm(b).T * 8, torch.arange(N).double() / 20 + 0.3
    targets = torch.diag(shares)
    targets[torch.arange(N), torch.arange(N).roll(1)] = 1 - shares
    one = -(logits.log_softmax(-1) * targets).sum(-1).mean()
    return (one - (logits.T.log_softmax(-1) * targets.T).sum(-1).mean()) / 2
"""


def test_targets_of_the_other_direction_are_transposed(check):
    """Mixed samples have two positives with weights, and columns of these do not sum to one."""

    def mixed(objective, a, b, _):
        logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * 8
        shares = torch.arange(N).double() / 20 + 0.3
        targets = torch.diag(shares)
        targets[torch.arange(N), torch.arange(N).roll(1)] = 1 - shares
        ways = ((logits, targets), (logits.T, targets.T))
        losses = [objective.from_logits(x, y.argmax(1), scale=8, targets=y, reduction="none") for x, y in ways]
        return sum((each * y.sum(1)).mean() / 2 for each, (_, y) in zip(losses, ways, strict=True))

    found = check(MIXED, mixed, 1 / 8)
    command = found.data["commands"][0]
    assert command[command.index("--positives") + 1] == "targets,targets.T"


UNNAMED = """
def loss(a, b):
    logits, teacher = norm(a) @ norm(b).T * 8, norm(b) @ norm(b).T * 8
    return -(logits.log_softmax(-1) * teacher.detach().softmax(-1)).sum(-1).mean()
"""


def test_soft_targets_without_a_name_are_told_to_have_one(find, check):
    found = find(SCRIPT.replace("{code}", UNNAMED))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "soft targets need a name there" in found.err

    def soft(objective, a, b, _):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        targets = (b @ b.T * 8).detach().softmax(-1)
        return objective.from_logits(a @ b.T * 8, targets.argmax(1), scale=8, targets=targets)

    named = UNNAMED.replace("    return", "    targets = teacher.detach().softmax(-1)\n    return")
    check(named.replace(" * teacher.detach().softmax(-1))", " * targets)"), soft, 1 / 8)


ALONE = """
def loss(a, b):
    masked = torch.zeros(N, N, dtype=torch.bool)
    masked[3] = torch.arange(N) != 3
    return F.cross_entropy((norm(a) @ norm(b).T * 8).masked_fill(masked, -torch.inf), torch.arange(N))
"""


@pytest.mark.filterwarnings("ignore:1 of 10 anchors have no negatives")
def test_an_anchor_whose_negatives_are_all_masked(check):
    """As wav2vec2's, where every sampled negative may be equal to the positive."""

    def alone(objective, a, b, _):
        masked = torch.zeros(N, N, dtype=torch.bool)
        masked[3] = torch.arange(N) != 3
        x = (F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * 8).masked_fill(masked, -torch.inf)
        return objective.from_logits(x, torch.arange(N), scale=8, empty="zero")

    check(ALONE, alone, 1 / 8)


ITSELF = """
def contrast(z1, z2, both=True):
    if both:
        return (contrast(z1, z2, False) + contrast(z2, z1, False)) / 2
    e = torch.exp(norm(z1) @ norm(z2).T * 8)
    return -torch.log(e.diag() / e.sum(1)).mean()

def loss(a, b):
    return contrast(a, b)
"""


def test_a_function_that_calls_itself_is_one_loss(check, tmp_path, monkeypatch, capsys):
    """Its calls of itself are parts of the outermost one, which is compared and replaced as a whole."""
    command = check(ITSELF, symmetric, 1 / 8).data["commands"][0]
    assert "pairing=symmetric" in command
    words = ["pairing=one_way" if word == "pairing=symmetric" else word for word in command[3 : command.index("--")]]
    ran = launch(tmp_path, SCRIPT.replace("{code}", ITSELF), monkeypatch, capsys, "function", words)
    assert ran.code == 5
    assert "in call 1, the gradient at toy.py:" in ran.err


TWO = """
def first(z1, z2):
    e = torch.exp(norm(z1) @ norm(z2).T * 8)
    return -torch.log(e.diag() / e.sum(1)).mean()

def second(z1, z2):
    e = torch.exp(norm(z1) @ norm(z2).T * 5)
    return -torch.log(e.diag() / e.sum(1)).mean()

def loss(a, b):
    return first(a, b) + second(b, a)
"""


def test_the_own_loss_of_several_functions_is_all_of_theirs(find, tmp_path, monkeypatch, capsys):
    """A race must not take the temperature of one for that of both, and a run records both."""
    data = find(SCRIPT.replace("{code}", TWO)).data
    assert data["own"] == "infonce:t=0.125 + infonce:t=0.2"
    assert at_temperature("host", data["own"], 1.5) is None
    words = [*data["commands"][0][3 : data["commands"][0].index("--")], "--counts", "counts.json"]
    assert launch(tmp_path, SCRIPT.replace("{code}", TWO), monkeypatch, capsys, "function", words).code == 0
    assert json.loads((tmp_path / "counts.json").read_text())["own"] == data["own"]  # in any order


def test_a_run_records_the_scales_of_all_sites(tmp_path, monkeypatch, capsys):
    code = """
def loss(a, b):
    x, at = norm(a) @ norm(b).T, torch.arange(N)
    first = F.cross_entropy(8 * x, at)
    return first + F.cross_entropy(5 * x.T, at)
"""
    sites = ["--site", "toy.py:15", "--site", "toy.py:16"]
    words = [*sites, "--objective", "hcl:t=host", "--counts", "counts.json"]
    assert launch(tmp_path, SCRIPT.replace("{code}", code), monkeypatch, capsys, "logits", words).code == 0
    assert json.loads((tmp_path / "counts.json").read_text())["own"] == "infonce:t=0.125 + infonce:t=0.2"


SAMPLED = """
def loss(a, b):
    drawn = torch.stack([b.roll(i, 0) for i in (2, 3, 5, 7)], 1)
    right = (norm(a) * norm(b)).sum(-1)
    wrong = %s
    every = torch.cat([right[:, None], wrong], 1)
    return -torch.log(torch.exp(right / 0.2) / torch.exp(every / 0.2).sum(1)).mean()
"""


@pytest.mark.parametrize(
    "wrong",
    [
        "torch.matmul(norm(a).unsqueeze(1), norm(drawn).mT).squeeze(1)",
        "torch.bmm(norm(drawn), norm(a).unsqueeze(2)).squeeze(2)",
    ],
)
def test_negatives_that_each_anchor_draws_beside_positives_of_their_own(check, wrong):
    """A recommender's sampled softmax: the positives are not among common keys."""

    def sampled(objective, a, b, _):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        drawn = torch.stack([(a * b.roll(i, 0)).sum(-1) for i in (2, 3, 5, 7)], 1)
        return objective.from_scores((a * b).sum(-1), drawn)

    (only,) = check(SAMPLED % wrong, sampled, 0.2).losses
    assert only["positives"].startswith("the product at ")


MEMORY = """
class Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, memory):
        ctx.memory = memory
        return x.mm(memory.t())

    @staticmethod
    def backward(ctx, g):
        return g.mm(ctx.memory), None

torch.manual_seed(9)
memory, clusters = norm(torch.randn(12, 5).double()), torch.randint(12, (N,))

def loss(a, b):
    logits = Multiplied.apply(norm(a), memory)
    logits /= 0.2
    return F.cross_entropy(logits, clusters)
"""


def test_a_memory_that_a_function_of_its_own_multiplies(find, tmp_path, monkeypatch, capsys):
    """Re-identification with clusters: what forward() of the Function multiplies has no graph at that time."""
    script = SCRIPT.replace("{code}", MEMORY)
    found = find(script)
    (only,) = found.losses
    assert (only["form"], only["scale"]) == ("infonce", pytest.approx(5))
    assert "10 x 12, cosines" in found.err
    options = ["--site", only["site"], "--scale", "5", "--objective", "hcl:t=0.2,beta=1,prior=0.05"]
    ran = launch(tmp_path, script, monkeypatch, capsys, "logits", options)
    torch.manual_seed(9)
    memory, clusters = F.normalize(torch.randn(12, 5).double(), dim=-1), torch.randint(12, (N,))

    def of_clusters(objective, a, b, _):
        return objective.from_logits(F.normalize(a, dim=-1) @ memory.T, clusters)

    for got, wanted in zip(ran.numbers, expected("hcl:t=0.2,beta=1,prior=0.05", of_clusters), strict=True):
        torch.testing.assert_close(torch.tensor(got).double(), wanted.flatten(), rtol=1e-5, atol=1e-9)


TWO_ROADS = """
def supervised(z, labels):
    same = torch.eq(labels[:, None], labels[None, :]).double() * (1 - torch.eye(len(z)).double())
    logits = z @ z.T / 0.2
    logits = logits - logits.max(1, keepdim=True)[0].detach()
    log_p = logits - torch.log((torch.exp(logits) * (1 - torch.eye(len(z)).double())).sum(1, keepdim=True))
    return -((same * log_p).sum(1) / same.sum(1)).mean()

def loss(a, b):
    one_way = F.cross_entropy(a @ b.T, torch.arange(N))
    return one_way + supervised(torch.cat([norm(a), norm(b)]), torch.arange(N).repeat(2) % 3)
"""


def test_no_command_is_ready_where_one_does_not_replace_the_whole_loss(find):
    """Each of both commands would leave the other loss of the same step in silence."""
    script = SCRIPT.replace("{code}", TWO_ROADS)
    found = find(script)
    assert {loss["form"] for loss in found.losses} == {"infonce", "supcon"}
    assert found.code != 0
    assert not found.data["commands"]
    assert "No command: it would leave the loss of the same step" in found.err
    commands = find(script, "--only").data["commands"]
    assert len(commands) == 2
    assert all("--only" in command for command in commands)


SAME_IMAGE = """
images = torch.arange(N) // 2 % 4
counted = (images[:, None] != images) | torch.eye(N).bool()

def loss(a, b):
    logits = norm(a) @ norm(b).T * 8
    sums = logits.exp() * counted
    return (sums.sum(1).log() + sums.sum(0).log() - 2 * logits.diagonal()).mean() / 2
"""


def test_rows_and_columns_with_a_mask_of_the_same_images(check):
    """Captions of one image are not negatives of each other, in either direction; HCL leaves them out, too."""

    def masked(objective, a, b, _):
        images, at = torch.arange(N) // 2 % 4, torch.arange(N)
        s = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T
        s = s.masked_fill((images[:, None] == images) & ~torch.eye(N).bool(), -torch.inf)
        return (objective.from_logits(s, at) + objective.from_logits(s.T, at)) / 2

    (only,) = check(SAME_IMAGE, masked, 1 / 8).losses
    assert (only["form"], only["way"]) == ("infonce", "both")
    assert only["masked"] == pytest.approx(0.18)


LEARNED = """
temperature = torch.nn.Parameter(torch.tensor(0.2).double())

def loss(a, b):
    with torch.no_grad():
        temperature.mul_(1.1)
    z, labels = torch.cat([norm(a), norm(b)]), torch.arange(N).repeat(2) % 3
    others = 1 - torch.eye(len(z)).double()
    same = torch.eq(labels[:, None], labels[None, :]).double() * others
    logits = z @ z.T / temperature
    logits = logits - logits.max(1, keepdim=True)[0].detach()
    log_p = logits - torch.log((torch.exp(logits) * others).sum(1, keepdim=True))
    return -((same * log_p).sum(1) / same.sum(1)).mean()
"""


def test_the_largest_logit_of_each_row_moves_with_a_learned_temperature(find, tmp_path, monkeypatch, capsys):
    """It is each sample's own one, so that one number is taken from all logits, and another one in the next step."""
    script = SCRIPT.replace("{code}", LEARNED)
    (command,) = find(script).data["commands"]
    ran = launch(tmp_path, script, monkeypatch, capsys, command[2], command[3 : command.index("--")])
    assert ran.code == 0, ran.err
    assert max(differences(ran.err)) < 1e-6


PRIVATE = """
class Model:
    def __semi_loss(self, a, b):
        e = torch.exp(norm(a) @ norm(b).T / 0.2)
        return -torch.log(e.diag() / e.sum(1)).mean()

    def loss(self, a, b):
        return (self.__semi_loss(a, b) + self.__semi_loss(b, a)) / 2

loss = Model().loss
"""


def test_a_private_method_is_replaced_by_its_name(check):
    found = check(PRIVATE.replace("self.loss(", "self.__loss("), symmetric, 0.2)
    assert "toy.py:Model.__semi_loss(a, b)" in " ".join(found.data["commands"][0])


SCORED = """
def loss(a, b):
    x, y = norm(a), norm(b)
    single = torch.cat([(x * y).sum(1, keepdim=True), (x @ y.T)[:, 1:] * (1 + torch.arange(N - 1) / N)], 1)
    more = F.cross_entropy(single * 4, torch.zeros(N, dtype=torch.long))
    return more + F.cross_entropy(x @ y.T * 10, torch.arange(N))
"""


def test_one_command_for_cosines_and_scores_proposes_no_objective_of_cosines(find):
    found = find(SCRIPT.replace("{code}", SCORED))
    assert [loss.get("scores") for loss in found.losses] == [True, False]
    (command,) = found.data["commands"]
    assert command.count("--site") == 2
    assert command[command.index("--objective") + 1].startswith("infonce")


DISCRIMINATED = """
judge = torch.nn.Bilinear(5, 5, 1).double()

def loss(a, b):
    s = norm(a) @ norm(b).T / 0.2
    right, wrong = (torch.exp(torch.sigmoid(judge(a, x)).squeeze() / 0.2) for x in (b, b.roll(1, 0)))
    return F.cross_entropy(s, torch.arange(N)) - torch.log(right / (right + wrong)).mean()
"""


def test_the_loss_of_a_discriminator_is_not_left_in_silence(find):
    found = find(SCRIPT.replace("{code}", DISCRIMINATED))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "not known     exponentials of a product at toy.py" in found.err


DETACHED = """
def one_way(a, b):
    e = torch.exp(norm(a) @ norm(b).detach().T / 0.2)
    return -torch.log(e.diag() / e.sum(1)).mean()

def loss(a, b):
    return one_way(a, b)
"""


def test_what_a_function_detaches_has_no_gradient_of_ours(check):
    check(DETACHED, lambda objective, a, b, _: objective(a, b.detach(), pairing="one_way"), 0.2)


HOOKED = """
def loss(a, b):
    x = a @ b.T
    x.register_hook(lambda g: g * 1)
    return F.cross_entropy(x, torch.arange(N))
"""


def test_hooks_of_the_script_are_called_with_tensors(find):
    assert not find(SCRIPT.replace("{code}", HOOKED)).data["errors"]


@pytest.mark.parametrize("name", ["moco/builder.py", "moco/other.py"])
def test_a_fork_is_not_known_by_losses_of_its_own(find, tmp_path, name):
    """It has the file by which the host is recognised, and a loss in another one, where the host's road does not go."""
    (tmp_path / "moco").mkdir()
    (tmp_path / "moco" / "__init__.py").touch()
    for file in ("moco/builder.py", "moco/other.py"):
        (tmp_path / file).write_text(
            "import torch.nn.functional as F\ndef _dequeue_and_enqueue(): pass\n"
            "def product(a, b):\n    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T * 8\n"
        )
    module = name.replace("/", ".").removesuffix(".py")
    code = (
        f"import {module} as host\n\ndef loss(a, b):\n    return F.cross_entropy(host.product(a, b), torch.arange(N))\n"
    )
    found = find(SCRIPT.replace("{code}", code))
    assert found.data["hosts"] == (["moco"] if name == "moco/builder.py" else [])
    assert ("moco" in [command[2] for command in found.data["commands"]]) == (name == "moco/builder.py")


KEYS_BETWEEN = {
    "nn.LogSoftmax": "return -torch.nn.LogSoftmax(dim=1)(x).diagonal(dim1=1, dim2=2).mean()",
    "a mask": "p = F.log_softmax(x, 1); return -(p * torch.eye(5).unsqueeze(0)).sum() / 10",
    "logsumexp": "return (torch.logsumexp(x, 1) - x.diagonal(dim1=1, dim2=2)).mean()",
}


@pytest.mark.parametrize("form", KEYS_BETWEEN)
def test_keys_that_are_neither_the_first_nor_the_last_dimension(check, form):
    """The keys of (parts, keys, anchors) compete, and there are more anchors than rows of the first dimension."""
    code = "def loss(a, b):\n    x = norm(a).view(2, 5, 5) @ norm(b).view(2, 5, 5).mT / 0.3\n    " + KEYS_BETWEEN[form]

    def parts(objective, a, b, _):
        s = F.normalize(a, dim=-1).view(2, 5, 5) @ F.normalize(b, dim=-1).view(2, 5, 5).mT
        return torch.stack([objective.from_logits(x.T, torch.arange(5)) for x in s]).mean()

    (loss,) = check(code, parts, "0.3").losses
    assert (loss["form"], loss["columns"]) == ("infonce", "diagonal")


PARTS_FIRST = """
def loss(a, b):
    x = torch.einsum("ad,bcd->{order}", norm(a), norm(b).view(2, 5, 5)) / 0.3
    return -{positives}.mean()
"""


@pytest.mark.parametrize("keys", [0, 2])
def test_a_diagonal_of_rows_that_are_in_parts(check, keys):
    """All 10 anchors compete for each key; as (2, 5) rows, their positives are on no diagonal of a part."""
    positives = f"F.log_softmax(x, {keys}).movedim({keys}, 2).reshape(10, 10).diagonal()"

    def rows(objective, a, b, _):
        return objective.from_logits(F.normalize(b, dim=-1) @ F.normalize(a, dim=-1).T, torch.arange(10))

    code = PARTS_FIRST.format(order="abc" if keys == 0 else "bca", positives=positives)
    (loss,) = check(code, rows, "0.3").losses
    assert (loss["positives"], loss["columns"]) == ("the diagonal", "gradient")
