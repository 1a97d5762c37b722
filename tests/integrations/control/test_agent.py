"""The agent: CURL's loss by its formula, CURL's update by its official code, and what learns what."""

import copy
import importlib
import math
import sys
import types
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hosts import real_clone

import counterpoint as cp
from counterpoint.integrations.control.agent import Agent, Contrast, check_objective
from counterpoint.integrations.control.networks import Encoder, center_crop, random_crop
from counterpoint.integrations.control.replay import Transitions
from counterpoint.integrations.control.settings import AgentSettings

SMALL = {"size": 20, "crop": 16, "layers": 2, "filters": 4, "features": 6, "hidden": 16, "batch": 8}


def transitions(batch=8, size=20, actions=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    frames = F.interpolate(torch.rand(2 * batch, 9, 5, 5, generator=g), size=size).mul(255).to(torch.uint8)
    action, reward = torch.rand(batch, actions, generator=g) * 2 - 1, torch.rand(batch, generator=g)
    return Transitions(frames[:batch], action, reward, frames[batch:], (torch.arange(batch) % 3 > 0).float())


def agent(objective="infonce:t=1", seed=0, scores=None, **changes):
    torch.manual_seed(seed)
    return Agent((9, 20, 20), 2, objective, AgentSettings(**{**SMALL, **changes}), scores)


# ---- the contrastive term ----------------------------------------------------------------------


def curls_loss(z, key, w):
    """Laskin et al. 2020, equation 5 as their code has it: logits less their row's largest, cross entropy."""
    logits = z @ (w @ key.detach().T)
    logits = logits - logits.max(1, keepdim=True).values
    return F.cross_entropy(logits, torch.arange(len(z)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_infonce_on_bilinear_scores_is_curls_loss_with_its_gradients(dtype, tolerance):
    ours = agent()
    ours.critic.to(dtype), ours.target.to(dtype), ours.contrast.to(dtype)
    with torch.no_grad():  # so that keys differ from anchors, as they do once the encoder has moved
        for p in ours.target.parameters():
            p.mul_(0.9)
    frames = transitions().observations
    anchors, positives = center_crop(frames, 16), random_crop(frames, 16)
    encoder, target, w = ours.critic.encoder, ours.target.encoder, ours.contrast.w

    def gradients(loss):
        parameters = [*encoder.parameters(), w]
        return [g.clone() for g in torch.autograd.grad(loss, parameters)]

    loss = ours.contrast(encoder(anchors), [target(positives).detach()])
    theirs = curls_loss(encoder(anchors), target(positives), w)
    assert loss.item() == pytest.approx(theirs.item(), rel=tolerance)
    for mine, wanted in zip(gradients(loss), gradients(theirs), strict=True):
        assert (mine - wanted).abs().max() <= tolerance * max(1, float(wanted.abs().max()))


def test_the_key_gets_no_gradient_and_the_target_only_follows():
    ours = agent()
    target = ours.target.encoder
    assert not any(p.requires_grad for p in ours.target.parameters())
    assert not ours.contrast.keys(transitions().observations, 16)[0].requires_grad
    before = [p.clone() for p in target.parameters()]
    ours.update(transitions())
    after, fast = list(target.parameters()), list(ours.critic.encoder.parameters())
    assert any((a != b).any() for a, b in zip(after, before, strict=True))
    ours.settings = AgentSettings(**{**SMALL, "every": 10})
    before = [p.clone() for p in target.parameters()]
    ours.update(transitions())
    assert all((a == b).all() for a, b in zip(after, before, strict=True))
    assert any((a != b).any() for a, b in zip(after, fast, strict=True))


def test_cosine_scores_are_the_objective_on_embeddings():
    ours = agent("adnce:t=0.2")
    z, key = torch.randn(2, 8, 6, requires_grad=True)
    assert ours.contrast.scores == "cosine"
    wanted = cp.objective("adnce:t=0.2")(z, key, pairing="one_way")
    assert ours.contrast(z, [key]).item() == pytest.approx(wanted.item(), rel=1e-6)
    report, expected = ours.contrast.report(z, [key]), ours.contrast.objective.report(z, key, pairing="one_way")
    same = ("loss", "positive_mean", "negative_variance", "effective_negatives", "negatives_above_positive")
    assert [report[f"report/{name}"] for name in same] == pytest.approx([expected[name] for name in same], rel=1e-5)


def test_dp_acts_on_cosines_whatever_the_scores():
    z, key = torch.randn(2, 8, 6)
    plain, with_dp = agent("infonce:t=1"), agent("infonce:t=1 + 0.1*dp")
    assert with_dp.contrast.scores == "bilinear"
    with_dp.contrast.w.data = plain.contrast.w.data
    added = with_dp.contrast(z, [key]) - plain.contrast(z, [key])
    wanted = 0.1 * cp.objective("dp")(z, key)
    assert added.item() == pytest.approx(wanted.item(), abs=1e-5)
    assert added.item() == pytest.approx(
        (with_dp.contrast(10 * z, [key]) - plain.contrast(10 * z, [key])).item(), abs=1e-4
    )


@pytest.mark.parametrize("views", [2, 4])
def test_arcl_gets_as_many_crops_as_it_asks_for(views):
    ours = agent(f"arcl(infonce:t=1):views={views}")
    keys = ours.contrast.keys(transitions().observations, 16)
    assert len(keys) == views - 1
    assert all((a != b).any() for a, b in pairwise(keys))
    numbers = ours.update(transitions())
    assert numbers["contrast"].isfinite()


@pytest.mark.parametrize("spec", ["dcl", "hcl:t=0.2 + 0.1*dp", "adnce:t=learned(0.2)", "infonce:t=schedule(1,0.5,10)"])
def test_any_objective_trains(spec):
    ours = agent(spec)
    before = {name: p.clone() for name, p in ours.contrast.named_parameters()}
    w = ours.critic.encoder.convolutions[0].weight.clone()
    for i in range(3):
        assert all(math.isfinite(float(x)) for x in ours.update(transitions(seed=i)).values())
    assert (ours.critic.encoder.convolutions[0].weight != w).any()
    learned = {name for name, p in ours.contrast.named_parameters() if (p != before[name]).any()}
    assert learned == ({"w"} if ours.contrast.scores == "bilinear" else set()) | ({n for n in before if n != "w"})


# ---- the update --------------------------------------------------------------------------------


@pytest.fixture
def official(monkeypatch):
    clone = real_clone("curl")
    for name, needed in (("gym", {"Wrapper": object}), ("skimage.util.shape", {"view_as_windows": None})):
        if importlib.util.find_spec(name.split(".")[0]) is None:  # imported, but not used by an update
            module = types.ModuleType(name)
            vars(module).update(needed)
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(clone)
    yield importlib.import_module("curl_sac")
    for name in ("curl_sac", "encoder", "utils"):
        sys.modules.pop(name, None)


def shared(theirs, ours):
    """Pairs of parameters that ought to stay equal; the official heads see the convolutions in another order."""
    side = int((ours.critic.encoder.flat_features / SMALL_OFFICIAL["filters"]) ** 0.5)

    def turned(weight):
        return weight.view(len(weight), side, side, -1).permute(0, 3, 1, 2).flatten(1)

    def heads(their, our):
        yield their.fc.weight, turned(our[0].weight)
        yield from ((their.fc.bias, our[0].bias), (their.ln.weight, our[1].weight), (their.ln.bias, our[1].bias))

    for t, o in ((theirs.critic, ours.critic), (theirs.critic_target, ours.target)):
        yield from zip(t.encoder.convs.parameters(), o.encoder.convolutions.parameters(), strict=True)
        yield from heads(t.encoder, o.encoder.head)
        for their, our in ((t.Q1, o.q1), (t.Q2, o.q2)):
            yield from zip(their.parameters(), our.parameters(), strict=True)
    yield from zip(theirs.actor.trunk.parameters(), ours.actor.trunk.parameters(), strict=True)
    yield from heads(theirs.actor.encoder, ours.actor.head)
    yield theirs.CURL.W, ours.contrast.w
    yield theirs.log_alpha, ours.log_alpha


SMALL_OFFICIAL = {"size": 84, "crop": 84, "layers": 2, "filters": 2, "features": 6, "hidden": 16, "batch": 6}


def test_updates_are_those_of_the_official_code(official):
    """In float64, over updates with and without the actor's; both draw the same noise."""
    torch.manual_seed(0)
    ours = Agent((9, 84, 84), 2, "infonce:t=1", AgentSettings(**SMALL_OFFICIAL))
    how = {"num_layers": 2, "num_filters": 2, "encoder_feature_dim": 6, "hidden_dim": 16, "critic_tau": 0.01}
    how |= {"encoder_tau": 0.05, "init_temperature": 0.1, "alpha_lr": 1e-4, "alpha_beta": 0.5, "log_interval": 10**9}
    theirs = official.CurlSacAgent((9, 84, 84), (2,), torch.device("cpu"), **how)
    for module in (ours.critic, ours.target, ours.actor, ours.contrast, theirs.critic, theirs.critic_target):
        module.double()
    theirs.actor.double(), theirs.CURL.double()
    ours.log_alpha.data = ours.log_alpha.data.double()
    with torch.no_grad():
        for their, our in shared(theirs, ours):
            their.copy_(our)
    silent = types.SimpleNamespace(log=lambda *_: None, log_histogram=lambda *_: None, log_param=lambda *_: None)
    silent.log_image = silent.log
    torch.set_default_dtype(torch.float64)
    try:
        for step in range(5):
            batch = transitions(6, 84, seed=step)
            batch = batch._replace(actions=batch.actions.double(), rewards=batch.rewards.double())
            x, y, alive = batch.observations.double(), batch.next_observations.double(), batch.alive.double()
            sampled = (
                x,
                batch.actions,
                batch.rewards[:, None],
                y,
                alive[:, None],
                {"obs_anchor": x, "obs_pos": x.clone()},
            )
            sampled[-1].update(time_anchor=None, time_pos=None)
            torch.manual_seed(step)
            ours.update(batch)
            torch.manual_seed(step)
            theirs.update(types.SimpleNamespace(sample_cpc=lambda s=sampled: s), silent, step)
            for their, our in shared(theirs, ours):
                assert (their - our).abs().max() < 1e-8
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_actor_leaves_the_encoder_and_the_critic_alone():
    ours = agent()
    before = [p.clone() for p in ours.critic.parameters()]
    moved = [p.clone() for p in ours.actor.parameters()]
    h = ours.critic.encoder.convolve(center_crop(transitions().observations, 16)).detach()
    ours._update_actor(h, ours.critic.encoder.head(h).detach())
    assert all((a == b).all() for a, b in zip(ours.critic.parameters(), before, strict=True))
    assert all((a != b).any() for a, b in zip(ours.actor.parameters(), moved, strict=True))
    assert all(p.requires_grad and p.grad is None for p in ours.critic.parameters())


def test_densities_are_those_of_a_squashed_gaussian():
    from torch.distributions import Normal, TanhTransform, TransformedDistribution

    ours = agent()
    h = torch.randn(64, ours.critic.encoder.flat_features)
    action, log_density = ours.actor(h)
    mean, log_std = ours.actor.trunk(ours.actor.head(h)).chunk(2, dim=1)
    std = (-10 + 6 * (log_std.tanh() + 1)).exp()
    known = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1)).log_prob(
        action.clamp(-1 + 1e-6, 1 - 1e-6)
    )
    inside = (action.abs() < 0.99).all(1)
    assert inside.sum() > 10
    assert torch.allclose(log_density[inside], known.sum(1)[inside], atol=1e-2)


def test_state_brings_everything_back():
    ours, other = agent("adnce:t=learned(0.2)"), agent("adnce:t=learned(0.2)", seed=1)
    for i in range(3):
        ours.update(transitions(seed=i))
    other.load(copy.deepcopy(ours.state()))
    for one in (ours, other):
        torch.manual_seed(5)
        one.last = one.update(transitions(seed=7))
    assert {k: float(v) for k, v in ours.last.items()} == {k: float(v) for k, v in other.last.items()}
    for a, b in zip(ours.critic.parameters(), other.critic.parameters(), strict=True):
        assert torch.equal(a, b)


def test_crops_are_windows_at_places_of_their_own():
    rows = torch.arange(20, dtype=torch.uint8).view(1, 1, 20, 1).expand(64, 1, 20, 20)
    frames = torch.cat([rows, rows.mT], dim=1)
    torch.manual_seed(0)
    crops = random_crop(frames, 16)
    assert crops.shape == (64, 2, 16, 16)
    top, left = crops[:, 0, 0, 0], crops[:, 1, 0, 0]
    assert set(top.tolist()) == set(left.tolist()) == set(range(5))
    assert (top != left).any()
    assert (crops[:, 0] == top.view(-1, 1, 1) + torch.arange(16).view(1, -1, 1)).all()
    assert center_crop(frames, 16)[0, :, 0, 0].tolist() == [2, 2]


def test_convolving_in_parts_changes_nothing(monkeypatch):
    ours, frames = agent(), center_crop(transitions(10).observations, 16)
    whole = ours.critic.encoder.convolve(frames)
    monkeypatch.setattr("counterpoint.integrations.control.networks.CHUNK", 4)
    assert torch.equal(ours.critic.encoder.convolve(frames), whole)


def test_encoder_sizes_fit_for_all_crops():
    for crop in (7, 8, 16, 17, 84):
        settings = AgentSettings(**{**SMALL, "size": 100, "crop": crop})
        assert Encoder(9, settings)(torch.zeros(1, 9, crop, crop, dtype=torch.uint8)).shape == (1, 6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AgentSettings(batch=0), "batch: expected a whole number of at least 1, got 0"),
        (lambda: AgentSettings(lr=-1.0), "lr must be a finite number with 0 < lr, got -1.0"),
        (lambda: AgentSettings(crop=101), "crop: expected at most the frames' size 100, got 101"),
        (lambda: AgentSettings(crop=14), "crop: 4 convolutions need at least 15, got 14"),
        (lambda: AgentSettings(batch=2000), "batch: 2000 transitions, but the buffer holds 1000 at the first update"),
        (lambda: AgentSettings(capacity=100), "batch: 128 transitions, but the buffer holds 99"),
        (lambda: agent(scores="cosin"), "scores: unknown scores 'cosin'. Did you mean 'cosine'?"),
        (lambda: agent("intnacl"), "needs adversarial views"),
    ],
)
def test_bad_input_is_said(make, says):
    with pytest.raises(ValueError, match=r".") as raised:
        make()
    assert says in str(raised.value)


def test_contrast_names_what_it_compares():
    for spec, kind in (("infonce:t=1 + 0.1*dp", "bilinear"), ("dcl", "cosine"), ("arcl(infonce:t=1)", "bilinear")):
        encoder = torch.nn.Linear(2, 2)
        assert Contrast(spec, encoder, encoder, 2, None).scores == kind


def test_similarities_have_no_keys_that_a_treatment_could_name():
    with pytest.raises(ValueError, match="do not say which keys these are"):
        check_objective("infonce; duplicates")
