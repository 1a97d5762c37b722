"""The report, the weight curve and the distances against loops written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

import counterpoint as cp
from counterpoint.diagnose import distances, report, weight_curve

# Their weights pass gradients, so a difference quotient of the loss is the training weight.
SMOOTH = [
    "infonce",
    "infonce:denominator=mean",
    "dcl:prior=0.05",
    "hcl:beta=2",
    "nca",
    "debpos",
    "mv",
    "dp",
    "hcl + 0.5*dp",
]
SMOOTH += ["dro", "dro:divergence=chi2", "dro:divergence=chi2,nonneg=false", "arcl(hcl)", "robust:detach_weights=false"]


def views(batch=4, count=2, width=6, seed=0, noise=0.7):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(batch, width, generator=generator)
    return [centre + noise * torch.randn(batch, width, generator=generator) for _ in range(count)]


def cosine(a, b):
    a, b = a.tolist(), b.tolist()
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def perplexity(weights):
    total = sum(map(abs, weights))
    shares = [abs(w) / total for w in weights if w]
    return math.exp(-sum(q * math.log(q) for q in shares))


def by_hand(z1, z2, labels=None):
    """Positives and negatives of every anchor, SimCLR's way or the supervised one."""
    z, n = [*z1, *z2], len(z1)
    classes = list(range(n)) if labels is None else list(labels)
    pos, neg = [], []
    for i in range(2 * n):
        others = [(classes[j % n] == classes[i % n], cosine(z[i], z[j])) for j in range(2 * n) if j != i]
        pos.append([s for same, s in others if same])
        neg.append([s for same, s in others if not same])
    return pos, neg


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_rows_without_direction_are_counted():
    z = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    z[0, 1:3], z[1, 4] = 0, 0
    z[1, 0] *= 1e-30
    assert cp.InfoNCE().report(*z)["without_direction"] == 3
    assert "without_direction" not in cp.InfoNCE().report(*z, normalize=False)


@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2, 1]])
def test_report_of_infonce_by_hand(labels):
    z1, z2 = views(5, noise=1.5)
    t = 0.3
    pos, neg = by_hand(z1, z2, labels)
    losses, effective = [], []
    for p, s in zip(pos, neg, strict=True):
        mass = sum(math.exp(x / t) for x in s)
        losses.append(mean(-math.log(math.exp(x / t) / (math.exp(x / t) + mass)) for x in p))
        effective.append(perplexity([math.exp(x / t) for x in s]))
    expected = {
        "without_direction": 0,
        "engine[matrix]": 1,
        "loss": mean(losses),
        "positive_mean": mean(map(mean, pos)),
        "negative_mean": mean(map(mean, neg)),
        "negative_variance": mean(mean((x - mean(s)) ** 2 for x in s) for s in neg),
        "negatives": mean(map(len, neg)),
        "effective_negatives": mean(effective),
        "negatives_above_positive": mean(mean(x > y for x in s for y in p) for p, s in zip(pos, neg, strict=True)),
    }
    assert 0 < expected["negatives_above_positive"] < 1
    found = cp.InfoNCE(t).report(z1, z2, labels=None if labels is None else torch.tensor(labels))
    assert found == pytest.approx(expected, rel=1e-5)


def test_signed_weights_count_by_their_size():
    z1, z2 = views(6)
    t, prior, beta = 0.5, 0.02, 2.0
    weights = []
    for s in by_hand(z1, z2)[1]:
        k = [math.exp(x / t) for x in s]
        total = sum(x**beta for x in k)
        u = sum(x ** (beta + 1) for x in k) / total
        # the derivative of the hard mean u; what it is multiplied by is the same for all negatives of an anchor
        weights.append([x**beta / total * ((beta + 1) * x - beta * u) for x in k])
    assert any(w < 0 for row in weights for w in row)
    found = cp.HCL(t, prior, beta).report(z1, z2)
    assert found["clamp_rate"] == 0
    assert found["effective_negatives"] == pytest.approx(mean(map(perplexity, weights)), rel=1e-4)


def test_effective_negatives_from_all_to_one_to_none():
    same = torch.eye(5)
    assert cp.InfoNCE(0.1).report(same, same)["effective_negatives"] == pytest.approx(8, rel=1e-5)
    collapsed = cp.InfoNCE(0.1).report(torch.ones(5, 4), torch.ones(5, 4))
    assert collapsed["effective_negatives"] == pytest.approx(8, rel=1e-5)
    assert collapsed["negatives_above_positive"] == 0
    one = torch.tensor([[1.0, 0, 0]]), torch.tensor([[1.0, 0.2, 0]])
    bank = torch.tensor([[0.9, 0.1, 0.0], [-1.0, 0, 0], [0, 1.0, 0], [0, 0, -1.0]])
    dominated = cp.InfoNCE(0.05).report(*one, queue=bank)
    assert dominated["negatives"] == 4
    assert dominated["effective_negatives"] == pytest.approx(1, abs=1e-4)
    clamped = cp.HCL(0.2, prior=0.1).report(same, same)
    assert clamped["clamp_rate"] == 1
    assert clamped["effective_negatives"] == 0
    assert cp.HCL(0.2, prior=0.1).report(same, -same)["clamp_rate"] == 0


@pytest.mark.parametrize("name", list(cp.registry))
def test_every_objective_reports(name):
    loss_fn = cp.registry[name]()
    z1, z2 = views()
    how = {} if isinstance(loss_fn, cp.Wrapper) else {"adversarial": views(seed=1)[0], "mixed": views(seed=2)[0]}
    how |= {"index": torch.arange(len(z1))} if "indexed" in loss_fn.needs else {}
    found = report(loss_fn, z1, z2, **how)
    assert found["loss"] == pytest.approx(loss_fn.eval()(z1, z2, **how).item(), rel=1e-6)
    assert found["effective_negatives"] <= found["negatives"] * (1 + 1e-6)
    if name in ("sogclr", "isogclr", "matryoshka"):  # scores alone have no loss
        return
    weight = weight_curve(loss_fn)[1]
    assert weight.abs().mean().item() == pytest.approx(1)


def test_a_sum_reports_its_terms_and_the_pairs_of_the_first_with_positives():
    z1, z2 = views(8)
    total = cp.objective("0.1*dp + hcl + 0.5*dcl:t=0.2")
    found = total.report(z1, z2)
    terms = {key: value for key, value in found.items() if key.startswith("term[")}
    assert len(terms) == 3
    assert sum(terms.values()) == pytest.approx(found["loss"])
    for key, value in terms.items():
        assert value == pytest.approx(cp.objective(key[len("term[") : -1])(z1, z2).item(), rel=1e-6)
    alone = cp.objective("hcl").report(z1, z2)
    assert found["clamp_rate"] == alone["clamp_rate"]
    dcl = cp.objective("dcl:t=0.2")
    assert found[f"clamp_rate[{dcl}]"] == dcl.report(z1, z2)["clamp_rate"] != alone["clamp_rate"]
    for key in ("positive_mean", "negative_mean", "negative_variance", "negatives", "negatives_above_positive"):
        assert found[key] == alone[key]
    assert cp.objective("hcl + 0.1*dp").report(z1, z2)["effective_negatives"] == alone["effective_negatives"]
    found = cp.objective("infonce + schedule(1,0,9)*(dp + mv) + 2*(dp + 0.5*mv)").report(z1, z2)
    for term in ("schedule(1,0,9)*(dp + mv:t=0.5)", "2*dp", "mv:t=0.5"):
        assert f"term[{term}]" in found


def test_diagnostics_are_those_of_the_pairs_that_a_term_compares():
    z = views(16, count=3, width=8)
    alone = cp.objective("arcl(dcl:prior=0.4)").report(*z)["clamp_rate"]
    assert cp.objective("infonce + arcl(dcl:prior=0.4)").report(*z)["clamp_rate"] == alone
    assert cp.objective("dcl:prior=0.4").report(*z)["clamp_rate"] != alone


def test_a_regulariser_alone_has_no_positives():
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
    found = cp.DistancePolarization(0.05, 0.45).report(z)
    assert math.isnan(found["positive_mean"])
    assert math.isnan(found["negatives_above_positive"])
    assert found["negatives"] == 3
    # D = .1, .2 between rows (0, 1) and (1, 2) only: rows 0 and 2 have one pair in the margin, row 3 has none
    weights = [[0.1 - 0.25], [0.1 - 0.25, 0.2 - 0.25], [0.2 - 0.25], None]
    expected = mean(0 if w is None else perplexity(w) for w in weights)
    assert found["effective_negatives"] == pytest.approx(expected, rel=1e-5)


def test_further_keys_count():
    z1, z2 = views(4)
    hard = torch.stack(views(4, 2, seed=3), 1)
    assert cp.InfoNCE().report(z1, z2, negatives=hard)["negatives"] == 3 + 8
    assert cp.InfoNCE().report(z1, z2, ids=torch.tensor([0, 0, 1, 2]))["negatives"] == 2 * mean([2, 2, 3, 3])
    plain, weighted = (cp.InfoNCE().report(z1, z2, negatives=cp.Keys(hard, own_log_weight=w)) for w in (0.0, 9.0))
    # two hard negatives of each sample outweigh the rest
    assert plain["effective_negatives"] > 5 > 2.01 > weighted["effective_negatives"]


@pytest.mark.parametrize(
    "call", [lambda o, z: o.report(*z), lambda o, z: weight_curve(o)], ids=["report", "weight_curve"]
)
def test_looking_changes_nothing(call):
    t, weight = cp.Schedule(0.5, 0.1, 10), cp.Learned(0.1, 0.01, 1)
    loss_fn = cp.InfoNCE(t, radius=0.3) + cp.ADNCE(weight, mu="auto") + 0.1 * cp.DistancePolarization()
    loss_fn.train()
    loss_fn.parts[2].eval()
    loss_fn(*views(seed=5))  # so that there is a state
    modes = [module.training for module in loss_fn.modules()]
    before = {key: str(value) for key, value in loss_fn.state_dict().items()}
    assert {"tensor(1)"} == {value for key, value in before.items() if key.endswith("step")}
    assert "nan" not in before["parts.0.tracked_temperature.value"]
    z = [view.requires_grad_() for view in views()]
    call(loss_fn, z)
    assert [module.training for module in loss_fn.modules()] == modes
    assert {key: str(value) for key, value in loss_fn.state_dict().items()} == before
    assert all(x.grad is None for x in (*z, *loss_fn.parameters()))


def test_the_report_uses_the_tracked_state():
    loss_fn = cp.InfoNCE(radius=0.5)
    before = loss_fn.report(*views())["loss"]
    loss_fn(*views(seed=7))
    assert loss_fn.report(*views())["loss"] == pytest.approx(loss_fn.eval()(*views()).item())
    assert loss_fn.report(*views())["loss"] != pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize("spec", ["infonce:t=0.05", "adnce:mu=auto,t=learned(0.1,0.01,1) + 0.1*dp"])
def test_modes_around_the_call_do_not_matter(spec):
    expected = cp.objective(spec).report(*views(8))
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)):
        with mode:
            z = [view.clone() for view in views(8)]
            assert cp.objective(spec).report(*z) == expected
            assert weight_curve(spec)[1].isfinite().all()
    halves = cp.objective(spec).report(*(view.bfloat16() for view in views(8)))
    assert halves["loss"] == pytest.approx(expected["loss"], rel=0.05)


def test_scores_and_logits_can_be_reported_and_stay_as_they_are():
    pos, neg = torch.tensor([[0.5], [0.9]]), torch.tensor([[0.1, 0.6, 0.7], [0.2, 0.3, 0.4]])
    expected = {"negatives": 3, "positive_mean": 0.7, "negatives_above_positive": 1 / 3}
    for given in (neg, cp.MatrixNegatives(neg)):
        found = report(cp.InfoNCE(), pos, given, call="from_scores")
        assert {key: found[key] for key in expected} == pytest.approx(expected)
    logits = torch.cat([pos, neg], 1) / 0.1
    labels = torch.tensor([0, 0])
    assert report(cp.InfoNCE(), logits, labels, call="from_logits", scale=10.0) == pytest.approx(found)
    # a row that the loss ignores is ignored here too
    more, ignored = torch.cat([logits, logits[:1].flip(1)]), torch.tensor([0, 0, -100])
    assert report(cp.InfoNCE(), more, ignored, call="from_logits", scale=10.0) == pytest.approx(found)
    assert not any(x.requires_grad for x in (pos, neg, logits, more))
    with torch.inference_mode():
        assert report(cp.InfoNCE(), pos.clone(), neg.clone(), call="from_scores") == found


def test_a_wrong_argument_is_refused_as_in_the_call():
    with pytest.raises(TypeError, match="pairng"):
        cp.InfoNCE().report(*views(), pairng="one_way")
    with pytest.raises(ValueError, match="pairing"):
        cp.InfoNCE().report(*views(), pairing="one-way")


# ---- weight_curve ------------------------------------------------------------------------------


@pytest.mark.parametrize("denominator", ["with_positive", "negatives", "mean"])
def test_the_weights_of_infonce_are_exponential(denominator):
    s, weight = weight_curve(cp.InfoNCE(0.3, denominator), torch.linspace(-0.5, 0.9, 30))
    expected = torch.exp(s / 0.3)
    torch.testing.assert_close(weight, expected / expected.mean())


def test_the_weights_of_adnce_peak_where_gaussian_and_exponential_balance():
    # the logarithm of the weight is -(s - mu)^2 / (2 sigma^2) + s / t, a parabola with its top at mu + sigma^2 / t
    s, weight = weight_curve("adnce:mu=0.2,sigma=0.3,t=0.5")
    assert s[weight.argmax()].item() == pytest.approx(0.2 + 0.3**2 / 0.5, abs=0.006)
    s, weight = weight_curve("adnce:mu=0.2,sigma=0.3,t=0.2")
    assert s[weight.argmax()].item() == pytest.approx(0.2 + 0.3**2 / 0.2, abs=0.006)
    assert weight_curve("infonce")[1].argmax() == 200


@pytest.mark.parametrize("spec", SMOOTH)
@pytest.mark.parametrize("beside", [False, True], ids=["own", "beside"])
def test_the_weight_is_the_derivative(spec, beside):
    loss_fn = cp.objective(spec)
    pos = torch.tensor([[0.7]], dtype=torch.float64)
    own = torch.tensor([-0.6, -0.1, 0.15, 0.3, 0.55], dtype=torch.float64)
    look = torch.tensor([-0.2, 0.45], dtype=torch.float64)
    little = 1e-4  # what a negative counts that is only looked at; its weight is per count

    def loss(s, mass):
        neg = cp.MatrixNegatives(s.unsqueeze(0), log_weight=mass.log().unsqueeze(0))
        return loss_fn.losses(cp.Scores(pos, neg, adversarial=cp.Scores(pos, neg))).item()

    def slope(s, i, mass):
        step = 1e-5 * torch.eye(len(s), dtype=torch.float64)[i]
        return (loss(s + step, mass) - loss(s - step, mass)) / 2e-5 / mass[i].item()

    one = torch.ones_like(own)
    slopes = [slope(own, i, one) for i in range(len(own))]
    scale = mean(map(abs, slopes))
    if beside:
        more = torch.cat([one, torch.tensor([little])])
        slopes = [slope(torch.cat([own, s.reshape(1)]), len(own), more) for s in look]
    found = weight_curve(loss_fn, look, 0.7, own)[1] if beside else weight_curve(loss_fn, own, 0.7)[1]
    torch.testing.assert_close(found, torch.tensor(slopes, dtype=torch.float64) / scale, rtol=2e-3, atol=2e-4)


def test_the_sign_says_push_or_pull():
    d = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
    weight = weight_curve(cp.DistancePolarization(0.1, 0.5), 1 - 2 * d)[1]
    expected = torch.where((d > 0.1) & (d < 0.5), d - 0.3, 0.0)  # closer than the middle of the margin: pulled together
    torch.testing.assert_close(weight, expected / expected.abs().mean())
    s, weight = weight_curve("mv:t=0.5")  # 1 + (s - mean) / t
    assert torch.equal(weight < 0, s < -0.5)


def test_the_worst_case_within_a_large_radius_is_the_largest_negative():
    weight = weight_curve("dro:radius=10", torch.linspace(-1, 1, 50))[1]
    assert weight.tolist() == pytest.approx([0] * 49 + [50])


def test_zero_weights_stay_zero():
    weight = weight_curve("dcl:t=0.2,prior=0.3", torch.linspace(-1, 0, 50), positive=1.0)[1]
    assert torch.equal(weight, torch.zeros(50, dtype=torch.float64))


def test_negatives_given_set_the_scale_and_not_the_grid():
    negatives = torch.tensor([-0.3, 0.1, 0.2, 0.6])
    look = torch.tensor([-1.0, 0.0, 1.0])
    s, weight = weight_curve("infonce:t=0.2", look, negatives=negatives)
    expected = torch.exp(look.double() / 0.2) / torch.exp(negatives.double() / 0.2).mean()
    torch.testing.assert_close(weight, expected, rtol=1e-6, atol=0)
    assert torch.equal(s, look.double())


# ---- distances ---------------------------------------------------------------------------------


def test_distances_by_hand():
    z1, z2 = views(4)
    expected = [(1 - cosine(z[i], z[j])) / 2 for z in (z1, z2) for i in range(4) for j in range(i + 1, 4)]
    torch.testing.assert_close(distances(z1, z2), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert distances(z1).shape == (6,)
    assert not distances(z1.requires_grad_()).requires_grad


def test_distances_stay_in_range_and_refuse_what_is_no_embedding():
    z = torch.full((50, 33), 0.1)
    z[25:] *= -3
    found = distances(z)
    assert found.min() == 0
    assert found.max() == 1
    with pytest.raises(ValueError, match="width"):
        distances(torch.zeros(5))
    with pytest.raises(ValueError, match=r"distances: expected \(batch, width\), got shape \(2, 4, 8\)"):
        distances(torch.zeros(2, 4, 8))
    with pytest.raises(ValueError, match="NaN"):
        distances(torch.full((2, 2), math.nan))
