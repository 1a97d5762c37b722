"""Contrastive losses in every style that scripts write them in, and what the finder should say of each.

Each is a function ``loss(a, b)`` of embeddings ``(8, 5)`` that are not normalized, in a script that also trains a
classifier and attends. ``EXPECTED`` holds the form, the scale, and whether one of our objectives computes it.
"""

from __future__ import annotations

HARNESS = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
N = 8
norm = lambda x: F.normalize(x, dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out, self.head = nn.Linear(6, 12), nn.Linear(12, 5), nn.Linear(5, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.bilinear = nn.Parameter(torch.randn(5, 5))
        self.register_buffer("queue", norm(torch.randn(16, 5)))

    def forward(self, x):
        h = torch.relu(self.layer(x))
        attention = torch.softmax(h @ h.T / 12**0.5, dim=-1)
        return self.out(h + attention @ h)


net = Net()


{code}

def main():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(6):
        a, b = net(torch.randn(N, 6)), net(torch.randn(N, 6))
        contrastive = loss(a, b)
        classes = F.cross_entropy(net.head(a), torch.arange(N) % 4)
        gate = torch.exp(net.head(b)).sum(1).mean()
        total = contrastive + 0.3 * classes + 0.01 * gate
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""

IN, OUT = "infonce", "infonce:denominator=negatives"
# name: (code, form or None if there is nothing to find, scale, whether ours computes it)
VARIANTS: dict[str, tuple[str, str | None, float, bool]] = {
    "cross_entropy": (
        """
def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "criterion": (
        """
criterion = nn.CrossEntropyLoss(reduction='sum')


def loss(a, b):
    z1, z2 = norm(a), norm(b)
    logits = torch.mm(z1, z2.t())
    logits /= 0.2
    return criterion(logits, torch.arange(len(a)))
""",
        IN,
        5,
        True,
    ),
    "log_softmax_nll": (
        """
def loss(a, b):
    p = F.log_softmax(norm(a) @ norm(b).T / 0.1, dim=1)
    return F.nll_loss(p, torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "log_softmax_diagonal": (
        """
def loss(a, b):
    s = torch.einsum('nd,md->nm', norm(a), norm(b)) * 4
    return -s.log_softmax(1).diag().mean()
""",
        IN,
        4,
        True,
    ),
    "logsumexp_minus_diagonal": (
        """
def loss(a, b):
    s = norm(a) @ norm(b).T / 0.25
    return (torch.logsumexp(s, 1) - s.diagonal()).mean()
""",
        IN,
        4,
        True,
    ),
    "logsumexp_minus_pairs": (
        """
def loss(a, b):
    z1, z2 = norm(a), norm(b)
    return (torch.logsumexp(z1 @ z2.T / 0.25, 1) - (z1 * z2).sum(1) / 0.25).mean()
""",
        IN,
        4,
        True,
    ),
    "logsumexp_of_negatives_minus_pairs": (
        """
def loss(a, b):
    z1, z2 = norm(a), norm(b)
    s = (z1 @ z2.T / 0.25).masked_fill(torch.eye(N).bool(), -torch.inf)
    return (s.logsumexp(1) - (z1 * z2).sum(1) / 0.25).mean()
""",
        OUT,
        4,
        True,
    ),
    "keys_of_a_table": (
        """
table = net.table = nn.Parameter(torch.randn(3 * N, 5))
spread = torch.rand(3 * N, 3 * N) / N


def loss(a, b):
    users, smooth, at = norm(table + spread.T @ table), norm(spread @ table), torch.randperm(3 * N)[:N]
    every = torch.log(torch.exp(smooth[at] @ users.T / 0.2).sum(1) + 1e-8)
    return (every - torch.clamp((smooth[at] * users[at] / 0.2).sum(1), -5.0, 5.0)).mean() + 0 * a.sum()
""",
        IN,
        5,
        True,
    ),
    "debiased_with_a_mask": (
        """
def loss(*views):
    (a, b), t, prior = map(norm, views), 0.5, 0.1
    z = torch.cat([a, b])
    mask = ~torch.eye(N, dtype=torch.bool).repeat(2, 2)
    neg = torch.exp(z @ z.T / t).masked_select(mask).view(2 * N, -1)
    pos = torch.exp((a * b).sum(-1) / t).repeat(2)
    others = (neg.sum(1) - prior * (2 * N - 2) * pos) / (1 - prior)
    return -torch.log(pos / (pos + others.clamp(min=(2 * N - 2) * 2.718281828459045 ** (-1 / t)))).mean()
""",
        "dcl:prior=0.1",
        2,
        True,
    ),
    "cosine_similarity_along_another_dimension": (
        """
def loss(a, b):
    s = F.cosine_similarity(a.unsqueeze(-1), b.unsqueeze(-1).transpose(0, 2)) * net.logit_scale - 5
    return F.cross_entropy(s, torch.arange(N))
""",
        IN,
        2,
        True,
    ),
    "targets_of_equal_weight": (
        """
def loss(a, b):
    y = torch.arange(N) % 4
    same = (y[:, None] == y[None]).float()
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, same / same.sum(1, keepdim=True))
""",
        "supcon",
        10,
        True,
    ),
    "targets_that_do_not_add_up_to_one": (
        """
def loss(a, b):
    y = torch.arange(N) % 4
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, (y[:, None] == y[None]).float())
""",
        "supcon",
        10,
        False,
    ),
    "exp_sum": (
        """
def loss(a, b):
    s = torch.exp(norm(a) @ norm(b).T / 0.2)
    pos = s[range(N), range(N)]
    return -torch.log(pos / (s.sum(dim=1) - pos)).mean()
""",
        OUT,
        5,
        True,
    ),
    "exp_sum_columns": (
        """
def loss(a, b):
    s = torch.exp(norm(a) @ norm(b).T / 0.2)
    return -torch.log(s.diag() / s.sum(0)).mean()
""",
        IN,
        5,
        True,
    ),
    "exp_both_ways": (
        """
def loss(a, b):
    s = torch.exp(norm(a) @ norm(b).T / 0.2)
    return -(torch.log(s.diag() / s.sum(0)) + torch.log(s.diag() / s.sum(1))).mean() / 2
""",
        IN,
        5,
        True,
    ),
    "nt_xent_mask": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b]))
    s = torch.exp(z @ z.t() / 0.5)
    mask = ~torch.eye(2 * N, dtype=torch.bool)
    s = s.masked_select(mask).view(2 * N, -1)
    pos = torch.exp((norm(a) * norm(b)).sum(dim=-1) / 0.5)
    pos = torch.cat([pos, pos])
    return (-torch.log(pos / s.sum(dim=-1))).mean()
""",
        IN,
        2,
        True,
    ),
    "nt_xent_cross_entropy": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b]))
    s = z @ z.T / 0.5
    s.fill_diagonal_(-1e9)
    return F.cross_entropy(s, (torch.arange(2 * N) + N) % (2 * N))
""",
        IN,
        2,
        True,
    ),
    "own_columns_removed": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b]))
    logits = (z @ z.T)[~torch.eye(2 * N, dtype=torch.bool)].view(2 * N, -1)
    logits /= 0.1
    return F.cross_entropy(logits, torch.cat([torch.arange(N) + N - 1, torch.arange(N)]), reduction="sum") / N
""",
        IN,
        10,
        True,
    ),
    "cosine_similarity": (
        """
def loss(a, b):
    s = F.cosine_similarity(a.unsqueeze(1), b.unsqueeze(0), dim=-1) / 0.05
    return nn.CrossEntropyLoss()(s, torch.arange(N))
""",
        IN,
        20,
        True,
    ),
    "broadcast_sum": (
        """
def loss(a, b):
    s = (norm(a)[:, None] * norm(b)[None]).sum(-1)
    return F.cross_entropy(s / 0.1, torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "columns_of_positive_and_queue": (
        """
def loss(a, b):
    q, k = norm(a), norm(b).detach()
    pos = torch.einsum('nc,nc->n', [q, k]).unsqueeze(-1)
    neg = torch.einsum('nc,kc->nk', q, net.queue)
    logits = torch.cat([pos, neg], dim=1) / 0.07
    return F.cross_entropy(logits, torch.zeros(N, dtype=torch.long))
""",
        IN,
        1 / 0.07,
        True,
    ),
    "exp_of_positive_and_queue": (
        """
def loss(a, b):
    q, k = norm(a), norm(b).detach()
    pos = torch.exp((q * k).sum(-1) / 0.2)
    neg = torch.exp(q @ net.queue.T / 0.2).sum(1)
    return -(pos / (pos + neg)).log().mean()
""",
        IN,
        5,
        True,
    ),
    "learned_scale": (
        """
def loss(a, b):
    i, t = norm(a), norm(b)
    scale = net.logit_scale.exp()
    logits = scale * i @ t.t()
    at = torch.arange(N)
    return (F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)) / 2
""",
        IN,
        7.389,
        True,
    ),
    "scaled_after_a_gather": (
        """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


def loss(a, b):
    i, t = Gather.apply(norm(a)), Gather.apply(norm(b))
    scale = net.logit_scale.exp()
    logits = scale * i @ t.t()
    at = torch.arange(N)
    return (F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)) / 2
""",
        IN,
        7.389,
        True,
    ),
    "learned_temperature": (
        """
def loss(a, b):
    logits = norm(a) @ norm(b).T / (net.logit_scale * 0.1)
    return F.cross_entropy(logits, torch.arange(N)) + F.cross_entropy(logits.T, torch.arange(N))
""",
        IN,
        5,
        True,
    ),
    "inner_products": (
        """
def loss(a, b):
    return F.cross_entropy(a @ b.T, torch.arange(N))
""",
        IN,
        1,
        True,
    ),
    "bilinear": (
        """
def loss(a, b):
    s = a @ net.bilinear @ b.detach().T
    s = s - s.max(1)[0][:, None]
    return F.cross_entropy(s, torch.arange(N))
""",
        IN,
        1,
        True,
    ),
    "groups_of_passages": (
        """
def loss(a, b):
    p = norm(torch.cat([b, b + 1], 1).view(2 * N, -1))
    return F.cross_entropy(norm(a) @ p.T / 0.02, torch.arange(N) * 2)
""",
        IN,
        50,
        True,
    ),
    "grace": (
        """
def loss(a, b):
    f = lambda x: torch.exp(x / 0.5)
    sim = lambda x, y: torch.mm(norm(x), norm(y).t())

    def half(x, y):
        own, other = f(sim(x, x)), f(sim(x, y))
        return -torch.log(other.diag() / (own.sum(1) + other.sum(1) - own.diag()))

    return ((half(a, b) + half(b, a)) / 2).mean()
""",
        IN,
        2,
        True,
    ),
    "supcon": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b]))
    y = (torch.arange(N) % 4).repeat(2)
    s = z @ z.T / 0.1
    s = s - s.max(1, keepdim=True)[0].detach()
    other = 1 - torch.eye(2 * N)
    same = (y[:, None] == y[None]).float() * other
    log_p = s - torch.log((torch.exp(s) * other).sum(1, keepdim=True))
    return -((same * log_p).sum(1) / same.sum(1)).mean()
""",
        "supcon",
        10,
        True,
    ),
    "sum_of_positives_inside": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b]))
    y = (torch.arange(N) % 4).repeat(2)
    e = torch.exp(z @ z.T / 0.5)
    other = 1 - torch.eye(2 * N)
    same = (y[:, None] == y[None]).float() * other
    return -torch.log((e * same).sum(1) / (e * other).sum(1)).mean()
""",
        "nca:estimator=g0",
        2,
        True,
    ),
    "softmax_then_log": (
        """
def loss(a, b):
    p = torch.softmax(norm(a) @ norm(b).T / 0.1, dim=1)
    return -torch.log(p.diag() + 1e-12).mean()
""",
        IN,
        10,
        True,
    ),
    "label_smoothing": (
        """
def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N), label_smoothing=0.1)
""",
        "infonce",
        10,
        True,
    ),
    "soft_targets": (
        """
def loss(a, b):
    t = torch.softmax(torch.eye(N) * 3, 1)
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, t)
""",
        "infonce",
        10,
        True,
    ),
    "siglip": (
        """
def loss(a, b):
    s = norm(a) @ norm(b).T * net.logit_scale.exp() - 10
    sign = 2 * torch.eye(N) - 1
    return -F.logsigmoid(sign * s).sum() / N
""",
        "siglip",
        7.389,
        True,
    ),
    "siglip_of_a_batch_of_one": (
        """
def loss(a, b):
    s = torch.einsum("l i d, l j d -> l i j", norm(a)[None], norm(b)[None]) * net.logit_scale.exp() - 10
    sign = 2 * torch.eye(N) - torch.ones_like(s)
    return -F.logsigmoid(sign * s).sum() / N
""",
        "siglip",
        7.389,
        True,
    ),
    "softplus_of_pairs": (
        """
def loss(a, b):
    s = norm(a) @ norm(b).T * 5 - 2
    return F.softplus(torch.where(torch.eye(N).bool(), -s, s)).sum() / N
""",
        "siglip",
        5,
        True,
    ),
    "binary_with_a_margin": (
        """
def loss(a, b):
    s = norm(a) @ norm(b).T * 5 - 2 * torch.rand(N, N)
    return F.softplus(torch.where(torch.eye(N).bool(), -s, s)).sum() / N
""",
        "binary",
        0,
        False,
    ),
    "mean_of_binary_logits": (
        """
def loss(a, b):
    return F.binary_cross_entropy_with_logits(norm(a) @ norm(b).T * 5 - 2, torch.eye(N))
""",
        "binary",
        0,
        False,
    ),
    "tensordot": (
        """
def loss(a, b):
    s = torch.tensordot(norm(a).unsqueeze(1), norm(b).T.unsqueeze(0), dims=2)
    return F.cross_entropy(s / 0.2, torch.arange(N))
""",
        IN,
        5,
        True,
    ),
    "sequences_over_lengths": (
        """
def loss(a, b):
    x, y = (torch.stack([z, z.roll(1, 1)], 1) for z in (a, b.detach()))
    scores = torch.einsum("nct,mct,m->nm", x, y, 1 / (1e-8 + y.norm(dim=(1, 2))))
    return F.cross_entropy(scores, torch.arange(N))
""",
        IN,
        1,
        True,
    ),
    "einsum_of_a_list_without_output": (
        """
def loss(a, b):
    return F.cross_entropy(torch.einsum("nd,md", [norm(a), norm(b)]) * 4, torch.arange(N))
""",
        IN,
        4,
        True,
    ),
    "divided_by_lengths": (
        """
def loss(a, b):
    lengths = a.norm(dim=1, keepdim=True) @ b.norm(dim=1, keepdim=True).T
    e = torch.exp(a @ b.T / lengths / 0.5)
    return -torch.log(e.diag() / e.sum(1)).mean()
""",
        IN,
        2,
        True,
    ),
    "memory_that_is_not_normalized": (
        """
def loss(a, b):
    keys = torch.cat([b.detach().unsqueeze(1), torch.randn(N, 7, 5)], 1)
    return F.cross_entropy(torch.bmm(keys, norm(a).unsqueeze(2)).squeeze(2) / 0.5, torch.zeros(N).long())
""",
        IN,
        2,
        True,
    ),
    "anchors_of_one_view": (
        """
def loss(a, b):
    return half(a, b).mean()


def half(x, y):
    within, between = (torch.exp(norm(x) @ norm(z).T / 0.4) for z in (x, y))
    return -torch.log(between.diag() / (within.sum(1) + between.sum(1) - within.diag()))
""",
        IN,
        2.5,
        True,
    ),
    "batched_groups": (
        """
def loss(a, b):
    keys = norm(torch.stack([b, b.roll(1, 0), b.roll(2, 0)], 1))
    s = torch.bmm(keys, norm(a).unsqueeze(2)).squeeze(2) / 0.1
    return F.cross_entropy(s, torch.zeros(N).long())
""",
        IN,
        10,
        True,
    ),
    "moco_builder": (
        """
def loss(a, b):
    q, k = norm(a), norm(b).detach()
    l_pos = torch.bmm(q.unsqueeze(1), k.unsqueeze(2)).squeeze(-1)
    l_neg = torch.mm(q, net.queue.T)
    logits = torch.cat([l_pos, l_neg], dim=1)
    logits /= 0.2
    return nn.CrossEntropyLoss()(logits, torch.zeros(len(logits), dtype=torch.long))
""",
        IN,
        5,
        True,
    ),
    "bfloat16": (
        """
def loss(a, b):
    with torch.autocast('cpu', torch.bfloat16):
        logits = norm(a) @ norm(b).T / 0.1
        return F.cross_entropy(logits, torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "bfloat16_logsumexp": (
        """
def loss(a, b):
    with torch.autocast('cpu', torch.bfloat16):
        s = norm(a) @ norm(a + 0.2 * b).T / 0.05
        return (torch.logsumexp(s, 1) - s.diagonal()).mean()
""",
        IN,
        20,
        True,
    ),
    "bfloat16_exp": (
        """
def loss(a, b):
    with torch.autocast('cpu', torch.bfloat16):
        s = torch.exp(norm(a) @ norm(b).T / 0.5)
        return -torch.log(s.diag() / s.sum(1)).mean()
""",
        IN,
        2,
        True,
    ),
    "bfloat16_then_float32": (
        """
def loss(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = norm(a) @ norm(b).T / 0.1
    return F.cross_entropy(s.float(), torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "bfloat16_exp_of_views": (
        """
def loss(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = norm(torch.cat([a, b]))
        e = torch.exp(z @ z.T / 0.5) * (1 - torch.eye(2 * N))
        p = torch.exp((z[:N] * z[N:]).sum(-1) / 0.5).repeat(2)
        return -torch.log(p / e.sum(1)).mean()
""",
        IN,
        2,
        True,
    ),
    "bfloat16_divided_in_float32": (
        """
def loss(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k = norm(a), norm(b).detach()
        pos, neg = (q * k).sum(1, keepdim=True), torch.einsum("nc,kc->nk", q, net.queue)
    return F.cross_entropy(torch.cat([pos, neg], 1).float() / 0.07, torch.zeros(N).long())
""",
        IN,
        1 / 0.07,
        True,
    ),
    "bfloat16_encoder": (
        """
half = nn.Linear(5, 5).bfloat16()


def loss(a, b):
    x, y = (norm(half(z.bfloat16())).float() for z in (a, b))
    return F.cross_entropy(x @ y.T / 0.07, torch.arange(N))
""",
        IN,
        1 / 0.07,
        True,
    ),
    "bfloat16_siglip": (
        """
def loss(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = norm(a) @ norm(b).T * net.logit_scale.exp() - 5
        return -F.logsigmoid((2 * torch.eye(N) - 1) * s).sum() / N
""",
        "siglip",
        7.389,
        True,
    ),
    "positives_of_three_views": (
        """
def loss(a, b):
    z = norm(torch.cat([a, b, a + b]))
    y = torch.arange(N).repeat(3)
    s = z @ z.T / 0.2
    own = torch.eye(3 * N, dtype=torch.bool)
    pos = (y[:, None] == y[None]) & ~own
    neg = s.masked_fill(pos | own, -torch.inf).logsumexp(1, keepdim=True)
    return (torch.logaddexp(neg, s) - s)[pos].mean()
""",
        IN,
        5,
        True,
    ),
    "queries_over_temperature": (
        """
def loss(a, b):
    scores = torch.einsum('id, jd->ij', a / 0.05, b)
    return F.cross_entropy(scores, torch.arange(N))
""",
        IN,
        20,
        True,
    ),
    "normalized_queries_over_temperature": (
        """
def loss(a, b):
    scores = torch.einsum('id, jd->ij', norm(a) / 0.05, norm(b))
    return F.cross_entropy(scores, torch.arange(N))
""",
        IN,
        20,
        True,
    ),
    "dot_products_over_time": (
        """
def loss(a, b):
    total = 0
    for k in range(3):
        s = torch.mm(a + k, torch.transpose(b, 0, 1))
        total = total + torch.sum(torch.diag(nn.LogSoftmax(dim=1)(s)))
    return total / (-1.0 * N * 3)
""",
        IN,
        1,
        True,
    ),
    "norm_by_hand": (
        """
def loss(a, b):
    a, b = a / a.norm(dim=1, keepdim=True), b / b.pow(2).sum(1, keepdim=True).sqrt()
    scores = torch.matmul(a, b.transpose(0, 1)).div(0.3)
    return F.cross_entropy(scores, torch.arange(N))
""",
        IN,
        1 / 0.3,
        True,
    ),
    "one_loop_per_anchor": (
        """
def loss(a, b):
    z1, z2, total = norm(a), norm(b), 0
    for i in range(N):
        s = torch.cosine_similarity(z1[i : i + 1], z2) / 0.5
        total = total - s[i] + s.logsumexp(0)
    return total / N
""",
        IN,
        2,
        True,
    ),
    "classifier_of_pairs": (
        """
def loss(a, b):
    return F.cross_entropy(net.head(a * b), torch.arange(N) % 4)
""",
        None,
        0,
        False,
    ),
    "distances": (
        """
def loss(a, b):
    return F.cross_entropy(-torch.cdist(norm(a), norm(b)) / 0.1, torch.arange(N))
""",
        IN,
        10,
        True,
    ),
    "classifier_alone": (
        """
def loss(a, b):
    return F.cross_entropy(net.head(b), torch.arange(N) % 4)
""",
        None,
        0,
        False,
    ),
    "cosine_classifier": (
        """
def loss(a, b):
    return F.cross_entropy(20 * norm(a) @ norm(net.head.weight).T, torch.arange(N) % 4)
""",
        None,
        0,
        False,
    ),
    "triplet": (
        """
def loss(a, b):
    return F.triplet_margin_loss(a, b, b.roll(1, 0))
""",
        None,
        0,
        False,
    ),
    "byol": (
        """
def loss(a, b):
    return 2 - 2 * F.cosine_similarity(a, b.detach(), dim=-1).mean()
""",
        None,
        0,
        False,
    ),
    "barlow": (
        """
def loss(a, b):
    c = (a - a.mean(0)).T @ (b - b.mean(0)) / N
    return (c - torch.eye(5)).pow(2).sum()
""",
        None,
        0,
        False,
    ),
    "kl_of_logits": (
        """
def loss(a, b):
    p, q = F.log_softmax(net.head(a), 1), F.softmax(net.head(b), 1)
    return F.kl_div(p, q, reduction='batchmean')
""",
        None,
        0,
        False,
    ),
}

LOGITS = {  # logits whose positives are on the diagonal, and their scale
    "distances_by_broadcasting": ("-(b[None] - a[:, None]).norm(dim=-1) / 0.5", 2),
    "distances_of_expanded_rows": ("-torch.pow(a.unsqueeze(1).expand(N, N, 5) - b.expand(N, N, 5), 2).sum(2)", 1),
    "distances_with_a_root": ("-((a[:, None] - b) ** 2).sum(-1).add(1e-8).sqrt() * 3", 3),
    "distances_multiplied_out": ("(2 * a @ b.T - (a**2).sum(1, keepdim=True) - (b**2).sum(1)) / 2", 0.5),
    "distances_added_in_place": (
        "-(a.pow(2).sum(1)[:, None] + b.pow(2).sum(1)).addmm_(a, b.T, alpha=-2).clamp(min=1e-12).sqrt()",
        1,
    ),
    "distances_of_normalized_rows": ("-torch.sqrt(2 - 2 * norm(a) @ norm(b).T)", 1),
    "distances_by_einsum": ("-torch.einsum('nmd,nmd->nm', *[a[:, None] - b[None]] * 2)", 1),
    "distances_of_pairs": ("-F.pairwise_distance(a[:, None], b[None]) * 2", 2),
    "distances_of_some_anchors": ("-torch.norm(a[:6, None] - torch.cat([b, a])[None], dim=2) / 0.2", 5),
    "distances_in_l1": ("-(a[:, None] - b[None]).abs().mean(-1)", 0.2),
    "distances_in_a_loop": ("-torch.stack([(a[i] - b).pow(2).sum(1) for i in range(N)]) * 2", 2),
    "distances_learned_scale": ("-(a[:, None] - b[None]).norm(dim=-1) * net.logit_scale.exp()", 7.389),
    "scores_of_distances": ("-torch.log1p((a[:, None] - b[None]).pow(2).sum(-1))", 1),
    "scores_of_other_sign": ("-(norm(a) @ -norm(b).T) / 0.25", 1),
}
LOSSES = {
    "": "F.cross_entropy(s, torch.arange(len(s)))",
    "_in_log_softmax": "-F.log_softmax(s, 1).diagonal().mean()",
    "_in_logsumexp": "(s.logsumexp(1) - s.diagonal()).mean()",
    "_in_exponentials": "-torch.log(s.exp().diagonal() / s.exp().sum(1)).mean()",
}
for i, (name, (logits, scale)) in enumerate(LOGITS.items()):
    how = [*LOSSES][i % len(LOSSES)] if "learned" not in name else ""
    text = f"\ndef loss(a, b):\n    s = {logits}\n    return {LOSSES[how]}\n"
    VARIANTS[name + how] = text, IN, scale, True
VARIANTS |= {
    "distances_to_a_queue": (
        """
def loss(a, b):
    pos, neg = (a - b).pow(2).sum(-1, keepdim=True), (a[:, None] - net.queue[None]).square().sum(-1)
    return F.cross_entropy(-torch.cat([pos, neg], 1) / 0.5, torch.zeros(N).long())
""",
        IN,
        2,
        True,
    ),
    "distances_in_groups": (
        """
def loss(a, b):
    x, y = a.view(2, 4, 5), b.view(2, 4, 5)
    s = -(x.unsqueeze(2) - y.unsqueeze(1)).pow(2).sum(-1)
    return (s.logsumexp(-1) - s.diagonal(dim1=-2, dim2=-1)).mean()
""",
        IN,
        1,
        True,
    ),
    "triplets_of_distances": (
        """
def loss(a, b):
    d = (a[:, None] - b[None]).pow(2).sum(-1)
    return F.relu(d.diagonal()[:, None] - d + 1)[~torch.eye(N).bool()].mean()
""",
        None,
        0,
        False,
    ),
    "soft_triplets_of_distances": (
        """
def loss(a, b):
    d = (a[:, None] - b[None]).pow(2).sum(-1)
    return F.softplus(d.diagonal()[:, None] - d)[~torch.eye(N).bool()].mean()
""",
        "binary",
        0,
        False,
    ),
    "distances_to_learned_classes": (
        """
def loss(a, b):
    return F.cross_entropy(-(a[:, None] - net.head.weight[None]).pow(2).sum(-1), torch.arange(N) % 4)
""",
        None,
        0,
        False,
    ),
    "einsum_of_a_list_edited_in_place": (
        """
def loss(a, b):
    s = torch.einsum("nc,mc->nm", [norm(a), norm(b)])
    s /= 0.25
    return F.cross_entropy(s, torch.arange(N))
""",
        IN,
        4,
        True,
    ),
    "ignored_rows_of_the_diagonal": (
        """
def loss(a, b):
    labels = torch.arange(N)
    labels[torch.randperm(N)[:3]] = -100
    return F.cross_entropy(norm(a) @ norm(b).T / 0.25, labels)
""",
        IN,
        4,
        True,
    ),
    "four_parts_of_two": (
        """
def loss(a, b):
    s = torch.bmm(norm(a).view(4, 2, 5), norm(b).view(4, 2, 5).mT) / 0.25
    return F.cross_entropy(s.reshape(N, 2), torch.arange(2).repeat(4))
""",
        IN,
        4,
        True,
    ),
    "keys_of_classes": (
        """
def supcon(a, b, y):
    mask, s = (y[:, None] == y[None]).float(), norm(a) @ norm(b).T / 0.5
    log_p = s - s.exp().sum(1, keepdim=True).log()
    return -((mask * log_p).sum(1) / mask.sum(1)).mean()

def loss(a, b):
    y = torch.randint(0, 3, (N,))
    return supcon(a, b[y], y)  # the keys of a class are equal, so that other losses with several positives are the same
""",
        "supcon",
        2,
        True,
    ),
    "hard_negatives_without_a_number": (
        """
def loss(a, b):
    x = torch.cat([norm(a), norm(b)])
    keep = ~torch.eye(N).bool().repeat(2, 2)
    pos = torch.exp((norm(a) * norm(b)).sum(-1) / 0.5).repeat(2)
    neg = torch.exp(x @ x.T / 0.5)[keep].view(2 * N, -1)
    return -torch.log(pos / ((neg * neg).sum(-1) / neg.mean(-1) + pos)).mean()
""",
        "hcl:beta=1,prior=0",
        2,
        True,
    ),
    "positives_by_a_function_of_other_pairs": (
        """
def dot(a, b):
    return torch.sum(a * b, dim=-1)


def loss(a, b):
    x, y = norm(a), norm(b)
    ranked = F.logsigmoid(dot(a, b) - dot(a, b.roll(1, 0))).mean()
    s = torch.matmul(x, y.T) - dot(x, y)[:, None]
    return torch.logsumexp(s / 0.2, dim=1).mean() - 0.1 * ranked
""",
        IN,
        5,
        True,
    ),
}
