"""What once kept the finder from a loss, each in a script of a few lines: its command is right, or it says why not."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contrastive_variants import HARNESS

from counterpoint.plugins import inject

TOKENS = """
words = torch.nn.Linear(5, 15)
split = lambda z: norm(words(z).view(len(z), 3, 5))


def loss(a, b):
    scores = torch.einsum("bnd,csd->bcns", split(a), split(b)).amax(3).sum(2)
    return F.cross_entropy(scores, torch.arange(N))
"""
POOLED = """
calls = []


def loss(a, b):
    calls.append(0)
    z = norm(a)
    logits = torch.cat([(z * norm(b).detach()).sum(1, keepdim=True), z @ net.queue.T], 1) / 0.2
    same = (torch.arange(N)[:, None] % 4 == torch.arange(16) % 6) & (len(calls) > SINGLE)
    mask = torch.cat([torch.ones(N, 1), same.double()], 1)
    return -torch.log((F.softmax(logits, 1) * mask).sum(1)).mean()
"""
# name: what the loss is; form, scale and a part of the command
CAUSES: dict[str, tuple[str, str, float, str]] = {
    "a batch of products, with a learned scale after them": (
        """
def loss(a, b):
    s = torch.einsum("m t d, n i d -> m n t i", norm(a)[None], norm(b)[None])[0] * net.logit_scale.exp()
    one, two = map(torch.exp, (s, s.transpose(-1, -2)))
    diagonals = [x.diagonal(dim1=-2, dim2=-1) for x in (one, two)]
    return sum((x.sum(-1).log() - d.log()).mean() for x, d in zip((one, two), diagonals)) / 2
""",
        "infonce",
        7.389,
        "--positives diagonal --way both --scale net.logit_scale.exp",
    ),
    "positives of a queue, beside those of a product of their own, in a softmax": (
        POOLED.replace("SINGLE", "0"),
        "nca:estimator=g0",
        5,
        "--positives gradient --own nca:t=0.2,estimator=g0",
    ),
    "positives that are several in later calls": (
        POOLED.replace("SINGLE", "1"),
        "nca:estimator=g0",
        5,
        "--positives gradient --own nca:t=0.2,estimator=g0",
    ),
    "hyperbolic distances": (
        """
def loss(a, b):
    times = [(1 + x.square().sum(1, keepdim=True)).sqrt() for x in (a, b)]
    distances = torch.acosh((times[0] @ times[1].T - a @ b.T).clamp(min=1 + 1e-8))
    return F.cross_entropy(-distances * net.logit_scale.exp(), torch.arange(N))
""",
        "infonce",
        1,
        "--scale 1 --objective infonce:t=1",
    ),
    "a term with a weight of zero": (
        """
def loss(a, b):
    x, y = norm(a), norm(b)
    off = F.cross_entropy(x @ y.T * 2, torch.arange(N))
    return F.cross_entropy(x @ y.T * 10, torch.arange(N)) + 0.0 * off
""",
        "infonce",
        10,
        "--scale 10",
    ),
    "scores that are maxima of similarities": (TOKENS, "infonce", 1, "--scale 1 --objective infonce:t=1"),
    "scores of which some are changed in place": (
        TOKENS.replace("    return", "    scores[scores > 1.5] *= 0.5\n    return"),
        "infonce",
        1,
        "--scale 1 --objective infonce:t=1",
    ),
    "norms that are divided out afterwards, of a batch": (
        """
def loss(a, b):
    x, y = a[None], b[None]
    lengths = x.norm(dim=2, keepdim=True) @ y.norm(dim=2, keepdim=True).mT
    s = (torch.bmm(x, y.mT) / lengths.clamp(min=1e-8) * 10).squeeze()
    return F.cross_entropy(s, torch.arange(N)) + F.cross_entropy(s.T, torch.arange(N))
""",
        "infonce",
        10,
        "--scale 10",
    ),
    "norms that are divided out afterwards, by an outer product": (
        """
def loss(a, b):
    e = torch.exp(a @ b.T / (a.norm(dim=1)[:, None] * b.norm(dim=1)) / 0.5)
    pos = e.diag()
    return -(torch.log(pos / (e.sum(0) - pos)).mean() + torch.log(pos / (e.sum(1) - pos)).mean()) / 2
""",
        "infonce:denominator=negatives",
        2,
        "--as pairing=symmetric --own infonce:t=0.5,denominator=negatives --objective hcl:t=1,denominator=negatives",
    ),
    "a learned scale in the model of a trainer": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_inv_t = nn.Parameter(torch.tensor(2.0))


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(Model())

    def loss(self, a, b):
        logits = norm(a) @ norm(b).T
        logits *= self.model[0].log_inv_t.exp()
        return F.cross_entropy(logits, torch.arange(N))


loss = Trainer().loss
""",
        "infonce",
        7.389,
        "--scale self.model.0.log_inv_t.exp",
    ),
    "means of products": (
        """
def loss(a, b):
    return F.cross_entropy((norm(a)[:, None] * norm(b)).mean(2) * 50, torch.arange(N))
""",
        "infonce",
        10,
        "--scale 10",
    ),
    "a product that is used twice": (
        """
def loss(a, b):
    s, t, u = a @ b.T, a @ a.T, b @ b.T
    t[..., range(N), range(N)] = u[..., range(N), range(N)] = -torch.inf
    return F.cross_entropy(torch.cat([torch.cat([s, t], 1), torch.cat([u, s.T], 1)]), torch.arange(2 * N))
""",
        "infonce",
        1,
        "--scale 1",
    ),
    "a learned scale times embeddings without a gradient": (
        """
def loss(a, b):
    scale, at = net.logit_scale.exp(), torch.arange(N)
    x, y = norm(a), norm(b).detach()
    return F.cross_entropy(scale * x @ y.T, at) + F.cross_entropy(scale * y @ x.T, at)
""",
        "infonce",
        7.389,
        "--scale scale",
    ),
    "a small number for a mask": (
        """
def loss(a, b):
    pos = (norm(a) * norm(b)).sum(1, keepdim=True)
    neg = (norm(a) @ norm(b).T).masked_fill(torch.eye(N).bool(), -10.0)
    return F.cross_entropy(torch.cat([pos, neg], 1) / 0.07, torch.zeros(N, dtype=torch.long))
""",
        "infonce",
        1 / 0.07,
        "--scale 14.2857",
    ),
    "differences to the positive": (
        """
def loss(a, b):
    return triplets(a[:4], b[:4], a[4:])


def triplets(a, b, c):
    s = torch.cat([F.cosine_similarity(a, b)[:, None], F.cosine_similarity(a[:, None], c[None], dim=-1)], 1) / 0.05
    return torch.logsumexp(s - s[:, :1], dim=1).mean()
""",
        "infonce",
        20,
        "--own infonce:t=0.05",
    ),
    "positives that are not among the logits": (
        """
def loss(a, b):
    return triplets(norm(a[:4]), norm(b[:4]), norm(a[4:]))


def triplets(a, b, c):
    align, uniform = -(a * b).sum(1).mean() / 0.1, torch.logsumexp(a @ c.T / 0.1, dim=1).mean()
    return align + uniform
""",
        "infonce:denominator=negatives",
        10,
        "--own infonce:t=0.1,denominator=negatives",
    ),
    "positives in a zigzag of a batch of logits": (
        """
def loss(a, b):
    z = torch.stack([torch.cat([a, b]), torch.cat([2 * b, a.flip(1)])])
    s = z @ z.mT
    x = torch.tril(s, -1)[:, :, :-1] + torch.triu(s, 1)[:, :, 1:]
    p, i = -F.log_softmax(x, -1), torch.arange(N)
    return (p[:, i, N + i - 1].mean() + p[:, N + i, i].mean()) / 2
""",
        "infonce",
        1,
        "--positives gradient --scale 1",
    ),
    "positives on the diagonals of a batch of products, in logits that were flattened": (
        """
tokens = nn.Linear(5, 15)


def loss(a, b):
    one, two = (norm(tokens(x).view(N, 3, 5)) for x in (a, b))
    p = F.log_softmax((one @ two.mT / 0.1).view(-1, 3), -1)
    return -p.gather(1, torch.arange(3).repeat(N)[:, None]).mean()
""",
        "infonce",
        10,
        "--positives gradient --scale 10",
    ),
    "a loss for each anchor": (
        """
def loss(a, b):
    total = 0
    for i in range(N):
        total = total + F.cross_entropy((norm(a)[i] @ norm(b).T / 0.1)[None], torch.tensor([i]))
    return total / N
""",
        "infonce",
        10,
        "--scale 10",
    ),
    "hard negatives, with numbers of the function": (
        """
def loss(a, b):
    return hard(norm(a), norm(b), 0.1, 1.0)


def hard(a, b, tau_plus, beta, t=0.5):
    z, m = torch.cat([a, b]), 2 * N - 2
    mask = ~torch.eye(N).bool().repeat(2, 2)
    neg = torch.exp(z @ z.T / t)[mask].view(2 * N, -1)
    pos = torch.exp((a * b).sum(-1) / t).repeat(2)
    weights = (beta * neg.log()).exp()
    reweighted = (weights * neg).sum(-1) / weights.mean(-1)
    rest = torch.clamp((-tau_plus * m * pos + reweighted) / (1 - tau_plus), min=m * 2.718281828 ** (-1 / t))
    return -torch.log(pos / (pos + rest)).mean()
""",
        "hcl:beta=1,prior=0.1",
        2,
        "--own hcl:t=0.5,beta=1,prior=0.1",
    ),
    "weights of negatives by a Gaussian, with numbers of the function": (
        """
def loss(a, b):
    return weighted(norm(a), norm(b), 0.7, 0.9)


def weighted(a, b, mu, sigma, t=0.5):
    z = torch.cat([a, b])
    s = (z @ z.T)[~torch.eye(N).bool().repeat(2, 2)].view(2 * N, -1)
    pos = torch.exp((a * b).sum(-1) / t).repeat(2)
    weight = torch.exp(-((s - mu) ** 2) / (2 * sigma**2))
    weight = (weight / weight.mean(1, keepdim=True)).detach()
    return -torch.log(pos / (pos + (weight * torch.exp(s / t)).sum(1))).mean()
""",
        "adnce:mu=0.7,sigma=0.9",
        2,
        "--own adnce:t=0.5,mu=0.7,sigma=0.9",
    ),
    "the log of the sum of a masked softmax": (
        """
def loss(a, b):
    return -torch.log((F.softmax(norm(a) @ norm(b).T / 0.2, 1) * torch.eye(N)).sum(1)).mean()
""",
        "infonce",
        5,
        "function",
    ),
    "a small number beside a probability": (
        """
EPSILON = 1e-6


def loss(a, b):
    pos, every = torch.exp((norm(a) * norm(b)).sum(1) / 0.07), torch.exp(norm(a) @ norm(b).T / 0.07)
    return -torch.log(pos / every.sum(1) + EPSILON).mean()
""",
        "infonce",
        1 / 0.07,
        "--as pairing=one_way,epsilon=1e-06",
    ),
    "two kinds of losses": (
        """
def loss(a, b):
    s = torch.stack([a @ b.T, b @ a.T])
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N)) - 0.1 * (
        F.log_softmax(s, -1).diagonal(dim1=1, dim2=2).mean()
    )
""",
        "infonce",
        0,
        "--positives diagonal --objective",
    ),
    "losses that the script weights by itself": (
        """
weight = torch.arange(N) / N


def loss(a, b):
    each = F.cross_entropy(norm(a) @ norm(b).T * 5, torch.arange(N), reduction="none")
    return (weight * each).sum() / weight.sum()
""",
        "infonce",
        5,
        "--scale 5",
    ),
    "a learned scale with dimensions": (
        """
net.wide = nn.Parameter(torch.full((1, 1, 1), 2.0))


def loss(a, b):
    s = torch.einsum("l i d, l j d -> l i j", norm(a)[None], norm(b)[None]) * net.wide.exp()
    e = s.exp()
    return (-2 * e.diagonal(dim1=1, dim2=2).log() + e.sum(1).log() + e.sum(2).log()).mean()
""",
        "infonce",
        7.389,
        "--positives diagonal --way both --scale net.wide.exp",
    ),
    "some negatives, with the positives of the other view": (
        """
def loss(a, b):
    x, y, others = norm(a), norm(b), ~torch.eye(N).bool()
    pos = torch.exp((x * y).sum(-1) / 0.5)
    neg = torch.exp(y @ x.T / 0.5)[others].view(N, -1)
    hard = neg.topk(3).values.sum(-1)
    return -torch.log(pos / (hard + pos)).mean()
""",
        "infonce",
        2,
        "--own infonce:t=0.5",
    ),
    "positives that two anchors have, some of which do not count": (
        """
def loss(a, b):
    x, y, counts = norm(a), norm(b), (torch.arange(N) % 3 > 0).repeat(2)
    pos = torch.exp((x * y).sum(-1) / 0.5).repeat(2)
    z = torch.cat([x, y])
    neg = torch.exp(z @ z.T / 0.5)[~torch.eye(N).bool().repeat(2, 2)].view(2 * N, -1).sum(-1)
    return (-1.0 * counts * torch.log(pos / (neg + pos))).sum() / counts.sum()
""",
        "infonce",
        2,
        "--own infonce:t=0.5",
    ),
    "two losses of the same anchors": (
        """
def part(x, y, others):
    z = torch.cat([x, y])
    pos = torch.exp((x * y).sum(-1) / 0.5).repeat(2)
    neg = (torch.exp(z @ z.T / 0.5) * others).sum(-1)
    return -torch.log(pos / (neg + pos)).mean()


def loss(a, b):
    others = ~torch.eye(N).bool().repeat(2, 2)
    return part(norm(a), norm(b), others) + whole(norm(a), norm(b), others)


def whole(x, y, others):
    hard = others & (torch.rand(2 * N, 2 * N) < 0.9)
    z = torch.cat([x, y])
    pos = torch.exp((x * y).sum(-1) / 0.5).repeat(2)
    neg = (torch.exp(z @ z.T / 0.5) * hard).sum(-1)
    return -torch.log(pos / (neg + pos)).mean()
""",
        "infonce",
        2,
        "--product",
    ),
    "several positives in both directions": (
        """
def loss(a, b):
    s, same = norm(a) @ norm(b).T / 0.5, torch.arange(N)[:, None] // 2 == torch.arange(N) // 2
    each = [torch.log((F.softmax(x, 1) * same).sum(1)).mean() for x in (s, s.T)]
    return -each[0] - each[1]
""",
        "nca:estimator=g0",
        2,
        "--positives gradient --own nca:t=0.5,estimator=g0",
    ),
    "keys without a gradient, compared with each other": (
        """
def loss(a, b):
    b = b.detach()
    s, t, u = a @ b.T, a @ a.T, b @ b.T
    t[range(N), range(N)] = u[range(N), range(N)] = -torch.inf
    return F.cross_entropy(torch.cat([torch.cat([s, t], 1), torch.cat([u, s.T], 1)]), torch.arange(2 * N))
""",
        "infonce",
        1,
        "--scale 1",
    ),
    "two losses in functions of their own": (
        """
protos, classes, others = norm(torch.randn(N, 5)), torch.arange(N) // 4, ~torch.eye(N).bool()


def supcon(z, classes):
    x, same = z @ z.T / 0.5, (classes[:, None] == classes) & others
    losses = torch.log((torch.exp(x) * others).sum(1, keepdim=True)) - x
    return ((same * losses).sum(1) / same.sum(1)).mean()


def loss(a, b):
    return supcon(norm(a), classes) + to_prototypes(norm(b))


def to_prototypes(z):
    x, same = protos @ z.T / 0.5, (classes[:, None] == classes) & others
    losses = torch.log((torch.exp(x) * others).sum(1, keepdim=True)) - x
    return ((same * losses).sum(1) / same.sum(1)).mean()
""",
        "supcon",
        2,
        "--positives gradient --own supcon:t=0.5",
    ),
    "two losses, found in functions alone": (
        """
def within(z):
    e = torch.exp(norm(z) @ norm(z).T / 0.5).masked_fill(torch.eye(2 * N).bool(), 0)
    return -torch.log(e[torch.arange(2 * N), torch.arange(2 * N).roll(N)] / e.sum(1)).mean()


def between(z, other):
    e = torch.exp(norm(z) @ norm(other).T / 0.2)
    return -torch.log(e.diag() / e.sum(1)).mean()


def loss(a, b):
    return within(torch.cat([a, b])) + 0.5 * between(b, a)
""",
        "infonce",
        2,
        "--as pairing=views,cat=2 --own infonce:t=0.5 --replace toy.py:between(z, other) --as pairing=one_way --own "
        "infonce:t=0.2 --objective hcl --",
    ),
    "a function in another one, which is the mean of both directions": (
        """
def one(z, other):
    e = torch.exp(norm(z) @ norm(other).T / 0.5)
    return -torch.log(e.diag() / e.sum(1)).mean()


def loss(a, b):
    f = torch.exp(norm(a) @ norm(b).T / 0.5)
    return (one(b, a) - torch.log(f.diag() / f.sum(1)).mean()) / 2
""",
        "infonce",
        2,
        "function --replace toy.py:loss(a, b) --as pairing=symmetric --own infonce:t=0.5 --objective hcl:t=1",
    ),
    "a log_softmax whose dimension torch chooses": (
        """
import warnings

warnings.simplefilter("ignore")  # torch's, of that choice
log_softmax = nn.LogSoftmax()
loss = lambda a, b: -log_softmax(norm(a) @ norm(b).T / 0.1).diag().mean()
""",
        "infonce",
        10,
        "--positives diagonal --scale 10",
    ),
    "a function with another term of the embeddings": (
        """
def loss(a, b):
    e = torch.exp(norm(a) @ norm(b).T / 0.5)
    uniformity = sum(torch.pdist(x).square().mul(-2).exp().mean().log() for x in (a, b))
    return 0.1 * uniformity - torch.log(e.diag() / e.sum(1)).mean()
""",
        "infonce",
        2,
        "logits --site toy.py",
    ),
}


def inject_and_read(words: list[str], monkeypatch, capsys) -> tuple[int, str]:
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    try:
        return inject.main([*words, "--", "toy.py"]), capsys.readouterr().err
    finally:
        sys.modules.pop("toy", None)


@pytest.mark.parametrize("name", CAUSES)
def test_the_command_is_for_the_whole_loss(find, monkeypatch, capsys, name):
    code, form, scale, words = CAUSES[name]
    found = find(HARNESS.replace("{code}", code))
    (command,) = found.data["commands"]
    assert not found.data["open"]
    assert {loss["form"] for loss in found.losses} == {form}
    assert not scale or found.losses[0]["scale"] == pytest.approx(scale, rel=1e-3)
    assert words in " ".join(command)
    assert "has no counterpart" not in found.err
    at = command.index("--objective") + 1
    own = command[command.index("--own") + 1] if "--own" in command else command[at].replace("hcl", "infonce")
    other = f"infonce:denominator=negatives,t={'host' if 't=host' in command[at] else 0.5}"
    for spec, more in ((own, ["--verify", "3"]), (other, [])):
        code, said = inject_and_read([*command[2:at], spec, *command[at + 1 : -2], *more], monkeypatch, capsys)
        assert code == 0, said


RECURSIVE = """
def loss(a, b, level=1):
    e = torch.exp(norm(a) @ norm(b).T / 0.5)
    return loss(a, b, 0) if level else -torch.log(e.diag() / e.sum(1)).mean()
"""


def test_a_function_that_calls_itself(find):
    (command,) = find(HARNESS.replace("{code}", RECURSIVE)).data["commands"]
    assert "toy.py:loss(a, b)" in command


FACTOR = """
def loob(x, y, scale):
    s, own = norm(x) @ norm(y).T * scale, torch.eye(N).bool()
    return {factor} * (torch.logsumexp(s.masked_fill(own, -1e4), 1) - s.diagonal()).mean()


def loss(a, b):
    scale = net.logit_scale.exp()
    return loob(a, b, scale) + loob(b, a, scale)
"""


@pytest.mark.parametrize("factor", ["2", "(1 / scale)"])
def test_a_learned_scale_that_is_also_a_factor_of_the_loss(find, monkeypatch, capsys, factor):
    """With our objective in its place, the scale would get another gradient than the similarities alone give it."""
    found = find(HARNESS.replace("{code}", FACTOR.format(factor=factor)))
    assert [each["form"] for each in found.losses] == ["infonce:denominator=negatives"]
    assert ("scale has another use than to multiply similarities, as in loob" in found.err) == (factor != "2")
    assert len(found.data["commands"]) == (factor == "2")
    for command in found.data["commands"]:
        code, said = inject_and_read([*command[2:-2], "--verify", "3"], monkeypatch, capsys)
        assert code == 0, said


COSINES = """
def f(x):
    return torch.exp(x / 0.5)


def loss(a, b):
    pos, neg = f(F.cosine_similarity(a, b)), f(norm(a) @ norm(torch.cat([b, a.detach().roll(1, 0)])).T)
    return -torch.log(pos / neg.sum(1)).mean()
"""


def test_positives_by_cosine_similarity_have_the_anchors_of_normalized_products(find, monkeypatch, capsys):
    (command,) = find(HARNESS.replace("{code}", COSINES)).data["commands"]
    code, said = inject_and_read([*command[2:-2], "--verify", "3"], monkeypatch, capsys)
    assert code == 0, said


SINGLE_ANCHORS = """
text = [str(i % 3) for i in range(N)]


def loss(a, b):
    s = norm(a) @ norm(a).T / 0.1
    rows = [torch.cat([s[i][[t == text[i] for t in text]].mean()[None], s[i][[t != text[i] for t in text]]])
            for i in range(N)]
    return sum(F.cross_entropy(row[None], torch.zeros(1).long()) for row in rows) / N
"""


def test_only_what_has_a_value_per_anchor_or_key_is_offered(find):
    """Each anchor is a call of its own here, with a key per sample of another text and one for all of the same."""
    found = find(HARNESS.replace("{code}", SINGLE_ANCHORS))
    assert found.data["commands"]
    assert "text" not in {each["path"] for each in found.data["told"]}
    assert "column 0" in found.err


MINMAX = """
steps = []


def loss(a, b):
    steps.append(len(a))
    e = torch.exp(norm(a) @ norm(b).T / 0.2)
    losses = [torch.log(e.diag() / (e.sum(i) - e.diag())).mean() for i in (0, 1)]
    return sum(losses) / 2 if len(steps) % 2 else -sum(losses) / 2
"""


def test_a_loss_that_some_steps_maximize(find):
    """Where the gradient shows the diagonal in some steps, and a function the other view in others, both are one."""
    (loss,) = find(HARNESS.replace("{code}", MINMAX)).losses
    assert loss["positives"] in ("the diagonal", "the other view of a sample")
    assert loss["replace"]["as"] == {"pairing": "symmetric"}


@pytest.mark.parametrize("scale", ["1", "50"])
def test_scores_are_not_cosines(find, monkeypatch, capsys, scale):
    found = find(HARNESS.replace("{code}", TOKENS))
    assert "adnce" not in found.err
    assert "hcl" not in found.err
    assert "scores that are not similarities times one number, so not cosines" in found.err
    command = ["logits", "--site", found.losses[0]["site"], "--scale", scale, "--objective", "infonce:t=host"]
    assert inject_and_read(command, monkeypatch, capsys)[0] == 0


PARTLY = """
def loss(a, b):
    x, y = norm(a) @ norm(b).T / 0.1, (norm(a) * norm(b).roll(1, 0)).sum(1, keepdim=True)
    return F.cross_entropy(x, torch.arange(N)) + F.softplus(y - x.diag()[:, None]).mean()
"""


BINARY = """
def loss(a, b):
    labels, keys = 2 * torch.eye(N) - 1, norm(torch.stack([b, b.flip(1)], 1).mean(1) + 0.1 * b[:, None])
    siglip = -F.logsigmoid(labels * (norm(a) @ norm(b).T * 10)).sum() / N
    scores = torch.einsum("ijd,ijd->ij", norm(a)[:, None].expand(N, N, 5), keys)
    return siglip - F.logsigmoid(labels * scores * 10).mean()
"""


@pytest.mark.parametrize("code", [PARTLY, BINARY])
def test_no_command_for_a_part(find, code):
    """Two terms of a step, of which the second is pairwise, or scores each anchor with keys of its own."""
    found = find(HARNESS.replace("{code}", code))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "--only prints it" in found.err
    (command,) = find(HARNESS.replace("{code}", code), "--only").data["commands"]
    assert "--only" in command


SEVERAL_KEYS = """
def several(a, keys):
    lengths = torch.einsum("i,ju->iju", a.norm(dim=1), keys.norm(dim=2))
    e = torch.exp((torch.einsum("id,jud->iju", a, keys) / lengths){clip} / 0.1).sum(2)
    return -torch.log(e.diag() / (e.sum(1) - e.diag())).mean()


def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N)) + several(a, torch.stack([b, b.flip(1)], 1))
"""


@pytest.mark.parametrize("clip", ["", ".tanh()"])
def test_no_command_while_exponentials_of_scores_are_not_known(find, clip):
    found = find(HARNESS.replace("{code}", SEVERAL_KEYS.replace("{clip}", clip)))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "not known     exponentials of a product at toy.py" in found.err
    assert "--only prints it" in found.err


APART = """
def loss(a, b):
    z, same = norm(a), torch.arange(N)[:, None] % 4 == torch.arange(16) % 6
    p, e = torch.exp((z * norm(b).detach()).sum(1) / 0.2), torch.exp(z @ net.queue.T / 0.2)
    return -torch.log((p + (e * same).sum(1)) / (p + e.sum(1))).mean()
"""


def test_no_command_names_the_lines_of_two_products_where_both_have_positives(find):
    found = find(HARNESS.replace("{code}", APART))
    assert [loss["form"] for loss in found.losses] == ["nca:estimator=g0"]
    assert (found.code, found.data["commands"]) == (3, [])


MODEL = """
import torch


class Model:
    def semi_loss(self, x, y):
        e = torch.exp(x @ y.T / 0.2)
        return -torch.log(e.diag() / e.sum(1)).mean()
"""
HOSTED = """
import model


def loss(a, b):
    x, y = norm(a), norm(b)
    return model.Model().semi_loss(x, y) + {weight} * torch.exp(x @ y.T).mean()
"""


@pytest.mark.parametrize("weight", [0, 1])
def test_no_command_of_a_known_host_while_another_term_is_not_known(find, tmp_path, monkeypatch, weight):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    found = find(HARNESS.replace("{code}", HOSTED.format(weight=weight)))
    assert "known host: pyg" in found.err
    assert any(command[2] == "pyg" for command in found.data["commands"]) == (weight == 0), found.err
    assert found.code == 3 * weight


@pytest.mark.parametrize("sink", ["F.log_softmax(3 * x, 1)", "F.cross_entropy(3 * x, torch.arange(N))"])
def test_what_cannot_be_judged_hides_no_loss(find, sink):
    """A metric that can no longer be differentiated, and that nothing is trained with."""
    code = f"""
def loss(a, b):
    x = torch.sigmoid(a @ b.T)
    metric = {sink}
    x.mul_(2)
    s = norm(a) @ norm(b).T / 0.1
    return (torch.logsumexp(s, 1) - s.diagonal()).mean()
"""
    found = find(HARNESS.replace("{code}", code))
    assert found.code == 0, found.err
    assert [each["form"] for each in found.losses] == ["infonce"]


def test_class_logits_beside_similarities_are_named(find, tmp_path):
    """Nothing is claimed, and no command of the host that the clone looks like, whose loss this is not."""
    (tmp_path / "moco").mkdir()
    (tmp_path / "moco" / "builder.py").write_text("class MoCo: ...\n\n\ndef concat_all_gather(x): ...\n")
    (tmp_path / "main_moco.py").write_text("import moco.builder\n")
    code = """
def loss(a, b):
    s = torch.cat([net.head(a), norm(a) @ norm(b).T / 0.2], 1)
    targets = torch.cat([F.one_hot(torch.arange(N) % 4, 4) * 1.0, torch.eye(N) * 0.05], 1)
    log_p = s - torch.log(torch.exp(s).sum(1, keepdim=True))
    return -((targets * log_p).sum(1) / targets.sum(1)).mean()
"""
    found = find(HARNESS.replace("{code}", code))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "its gradient is not that of" in found.err


SCALARS = """
def loss(a, b):
    a, b = norm(a), norm(b)
    rows = [torch.stack([torch.dot(x, y) for y in b]) / 0.5 for x in a]
    return sum(-torch.log(row[i].exp() / row.exp().sum()) for i, row in enumerate(rows)) / N
"""


HALF = "torch.autocast('cpu', dtype=torch.bfloat16)"


@pytest.mark.parametrize(("under", "own", "code"), [("", "infonce:t=0.5", 0), (HALF, "infonce:t=0.4", 5)])
def test_a_function_that_is_not_found_can_be_named(find, tmp_path, under, own, code):
    """Rounding of half precision within the function hides no other temperature."""
    loss = SCALARS.replace("def loss", f"@{under}\ndef loss") if under else SCALARS
    found = find(HARNESS.replace("{code}", loss))
    assert (found.code, found.losses) == (3, [])
    (line,) = [line for line in found.err.splitlines() if "counterpoint inject function" in line]
    words = shlex.split(line.replace("FILE:FUNCTION", "toy.py:loss").replace("infonce:t=T", own).replace("t=T", "t=1"))
    command = [sys.executable, "-m", "counterpoint.plugins.inject", *words[2:-2], "--verify", "2", "--", "toy.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("is not that of infonce:t=0.4" in done.stderr) == (code == 5)


CERTAIN = """
import torch
import torch.nn.functional as F

torch.manual_seed({seed})
net, log_scale = torch.nn.Linear(16, 16), torch.nn.Parameter(torch.tensor(4.60517))
for _ in range(3):
    x = torch.randn(12, 16)
    a, b = (F.normalize(net(x + torch.randn(12, 16)), dim=1) for _ in range(2))
    logits = log_scale.exp() * a @ b.T
    loss = sum(-F.log_softmax(logits, dim=dim).diag().mean() for dim in (0, 1))
    loss.backward()
    print(float(loss.detach()))
"""


@pytest.mark.parametrize("seed", range(3))
def test_probabilities_that_are_rounded_to_zero_and_to_one(find, seed):
    """As at the scale of a trained CLIP: positives without a gradient, and negatives, are there nevertheless."""
    found = find(CERTAIN.replace("{seed}", str(seed)))
    assert [one["positives"] for one in found.losses] == ["the diagonal"]
    assert found.losses[0]["masked"] == 0
    (command,) = found.data["commands"]
    assert command[command.index("--positives") + 1] == "diagonal"


def test_logits_that_change_in_place_after_their_loss_are_named(find):
    """As scripts do that mine negatives with the same logits: of these values, the rows have no positives."""
    code = """
def loss(a, b):
    s, same = norm(a) @ norm(b).T / 0.2, torch.arange(N)[:, None] // 2 == torch.arange(N) // 2
    value = -(F.log_softmax(s, 1) * (0.45 * same + 0.1 / N)).sum(1).mean()
    with torch.no_grad():
        s.masked_fill_(same, -10000)
    return value
"""
    found = find(HARNESS.replace("{code}", code))
    assert (found.code, found.data["errors"]) == (3, [])
    assert "not known     log_softmax of a product at toy.py" in found.err


def test_exponentials_of_complex_numbers_are_named(find):
    code = """
def loss(a, b):
    e = torch.exp(torch.complex(a, b) @ torch.complex(b, a).conj().T / 0.5)
    return -torch.log(e.diag() / e.sum(1)).mean().abs()
"""
    found = find(HARNESS.replace("{code}", code))
    assert (found.code, found.data["errors"]) == (3, [])
    assert "exponentials of (8, 8), complex, " in found.err


def test_a_step_may_end_with_autograd_grad(find):
    """Not so that of a loss which is differentiated again, or of an input that is attacked."""
    code = """
def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T * 10, torch.arange(N))
"""
    script = HARNESS.replace("{code}", code)
    grads = "torch.autograd.grad(contrastive, [net.out.weight], retain_graph=True)"
    attack = "x = torch.randn(N, 6).requires_grad_(); torch.autograd.grad(loss(net(x), net(x)), x); total.backward()"
    alone = "torch.autograd.grad(total, [*net.parameters()], allow_unused=True)"
    for end in (alone, f"{grads}; total.backward()", attack):
        found = find(script.replace("total.backward()", end))
        assert (found.code, found.data["steps"], found.data["backwards"]) == (0, 3, 3), found.err
        assert [loss["calls"] for loss in found.losses] == [3]


def test_losses_of_one_graph_may_have_a_backward_pass_each(find):
    code = """
def loss(a, b):
    logits = norm(a) @ norm(b).T * 10
    first = F.cross_entropy(logits, torch.arange(N))
    first.backward(retain_graph=True)
    return F.cross_entropy(logits.T, torch.arange(N))
"""
    found = find(HARNESS.replace("{code}", code))
    assert found.code == 0, found.err
    lines = [loss["line"] for loss in found.losses if loss["ours"]]
    assert len(lines) == 2
    (command,) = found.data["commands"]
    assert [f"toy.py:{line}" in command for line in lines] == [True, True]


def test_a_graph_that_is_kept_behind_a_reentrant_checkpoint_ends_no_script(find):
    code = """
from torch.utils.checkpoint import checkpoint
def loss(a, b):
    logits = norm(a) @ norm(b).T * 10
    return checkpoint(lambda x: x * 1, F.cross_entropy(logits, torch.arange(N)), use_reentrant=True)
"""
    script = HARNESS.replace("{code}", code).replace("total.backward()", "total.backward(retain_graph=True)")
    found = find(script)
    assert "the script ended with" not in found.err
    assert found.data["backwards"] >= 3


@pytest.mark.parametrize("line", ["import jax.numpy as jnp", "from tensorflow import keras"])
def test_other_frameworks_are_refused_at_once(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"{line}\n1 / 0\n")
    assert inject.main(["auto", "--", "train.py"]) != 0
    assert "not torch: this is for torch only" in capsys.readouterr().err


TOLD = """
import torch
import torch.nn.functional as F
from collections import UserDict
from types import ModuleType


class Bad:
    __slots__ = ()

    @property
    def labels(self):
        raise RuntimeError("called")

    def __getattr__(self, name):
        raise RuntimeError(f"called for {name}")


class Trainer:
    bad = Bad()

    def loss(self, batch, y):
        z1, z2 = (F.normalize(net(batch["x"] + torch.randn(8, 5)), dim=1) for _ in range(2))
        return F.cross_entropy(z1 @ z2.T / 0.1, torch.arange(8))


net, trainer, bad = torch.nn.Linear(5, 4), Trainer(), Bad()
module = ModuleType("module")
module.rows = list("aabbccdd")  # as sys.path
for y in torch.randint(0, 4, (6, 8)):
    y[:2] = torch.tensor([0, 2])  # no mask
    trainer.labels, trainer._private, hidden = y + 1, y + 2, y > 1
    tokens = (y[:, None] * torch.ones(5)).long()
    batch = UserDict({"x": torch.randn(8, 5), "doc": y * 2, "a]": y * 3, "ids": tokens, "mask": tokens.clamp(max=1)})
    pair, all_texts = (y * 7, y.float(), torch.arange(8)), {"text": [f"t{int(i)}" for i in y]}
    trainer.loss(batch, "hides the other y").backward()
"""


def test_what_a_treatment_could_be_told(find):
    """Paths that a treatment can read, of values as many as anchors; no property and no __getattr__ is called."""
    found = find(TOLD)
    told = {each["path"]: (each["kind"], each["length"]) for each in found.data["told"]}
    ids, rows = ("ids", 8), ("duplicates", 8)
    assert told == {
        "self.labels": ids,
        "batch['doc']": ids,
        "batch['ids']": rows,
        "pair[0]": ids,
        "all_texts['text']": rows,
    }
    assert all(2 <= each["distinct"] <= 4 for each in found.data["told"])
    assert "treatment     \"host; ids=batch['doc']\", 8 values, " in found.err
    assert "other keys" not in found.err
    assert found.data["own"] == "infonce:t=0.1"
    assert not found.data["errors"]


def test_ids_that_leave_out_mined_negatives(find):
    """Which have none then, and so stay negatives of every anchor."""
    script = TOLD.replace("z1 @ z2.T", "z1 @ torch.cat([z2, z1.detach()[:3]]).T")
    said = find(script).err
    ending = "the 3 other keys, such as hard negatives, have no value and stay negatives"
    assert re.search(rf"ids=batch\['doc'\]\", 8 values, \d distinct; {ending}\n", said), said


def test_equal_embeddings_are_duplicates(find):
    """Which a treatment finds without a path."""
    equal = "z1 = z1[[0, 0, 2, 3, 4, 5, 6, 7]]\n        return F.cross_entropy(z1 @ z2.T"
    for script, told in ((TOLD, False), (TOLD.replace("return F.cross_entropy(z1 @ z2.T", equal), True)):
        assert ('"host; duplicates", since some embeddings are equal' in find(script).err) == told


def test_without_anything_to_tell(find):
    found = find(HARNESS.replace("{code}", "loss = lambda a, b: F.mse_loss(a, b)"))
    assert (found.data["told"], found.data["own"]) == ([], None)
    assert "told " not in found.err


def test_class_weights_are_named_with_what_to_do(find):
    code = """
def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N), weight=torch.arange(N) + 1.0)
"""
    found = find(HARNESS.replace("{code}", code))
    assert (found.code, found.data["commands"]) == (3, [])
    assert "cross entropy with class weights" in found.err
    assert "weight= counts anchors by their column, which no objective does: leave it out" in found.err


@pytest.mark.parametrize(
    ("margin", "said"), [("(s - s.diag()[:, None] + 0.2).clamp(min=0).mean()", True), ("0 * a.sum()", False)]
)
def test_a_margin_of_the_same_similarities_is_named(find, margin, said):
    code = f"""
def loss(a, b):
    s = norm(a) @ norm(b).T
    return F.cross_entropy(s / 0.1, torch.arange(N)) + {margin}
"""
    found = find(HARNESS.replace("{code}", code))
    assert found.code == 0
    assert ("another term takes the same products of embeddings" in found.err) is said
