"""Evaluation: as scikit-learn has it on the same features, as an attack library has it on the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lightly")
pytest.importorskip("lightning")
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import counterpoint as cp
from counterpoint.integrations.image import (
    Encoder,
    EvaluationSettings,
    ImageSet,
    SimCLR,
    evaluate,
    features,
    knn,
    linear_probe,
    load,
    robust,
    shifted,
    shifts,
)


@pytest.fixture(scope="module")
def digits():
    return load("digits").draw(600), load("digits", "test").draw(300)


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return Encoder("conv4", 16, 8).eval()


@pytest.fixture(scope="module")
def frozen(encoder, digits):
    return [features(encoder, one.x) for one in digits]


@pytest.fixture(scope="module")
def classifier(encoder, digits, frozen):
    """Accurate enough on clean images for attacks to take something away."""
    return nn.Sequential(encoder, linear_probe(frozen[0], digits[0].y, 10)).eval()


class Pair(nn.Module):
    """An encoder that returns features and projections."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x), self.encoder(x)


def test_images_of_ones_own(digits, encoder, frozen):
    pairs = [(one.x, one.y) for one in digits]
    assert evaluate(encoder, *pairs, ["knn"]) == evaluate(encoder, *digits, ["knn"])
    assert evaluate(encoder, *pairs, "knn") == evaluate(encoder, *digits, ["knn"])
    with pytest.raises(TypeError, match=r"images: expected a tensor of images, got ndarray: torch\.from_numpy\(x\)"):
        evaluate(encoder, (digits[0].x.numpy(), digits[0].y), pairs[1], ["knn"])
    with pytest.raises(ValueError, match=r"The colors come second: x\.permute\(0, 3, 1, 2\)"):
        evaluate(encoder, (digits[0].x.permute(0, 2, 3, 1), digits[0].y), pairs[1], ["knn"])
    with pytest.raises(ValueError, match=r"\(600, 64\)\. Features go to image\.knn\(z, y,") as said:
        evaluate(encoder, (frozen[0], digits[0].y), (frozen[1], digits[1].y), ["knn"])
    assert "from 0 to 1" not in str(said.value)
    whole = [(x, y.int()) for x, y in pairs]
    assert evaluate(encoder, *whole, ["knn", "linear"]) == evaluate(encoder, *digits, ["knn", "linear"])
    with pytest.raises(TypeError, match="expected an ImageSet, or a pair of images and classes, got TensorDataset"):
        evaluate(encoder, torch.utils.data.TensorDataset(*pairs[0]), pairs[1], ["knn"])
    with pytest.raises(TypeError, match=r"expected a tensor of classes, of whole numbers, got torch\.float32"):
        evaluate(encoder, (digits[0].x, digits[0].y.float()), pairs[1], ["knn"])
    with pytest.raises(TypeError, match=r"encoder: expected features \(N, width\) of N images, got tuple; wrap it"):
        features(Pair(encoder), digits[0].x)
    with pytest.raises(ValueError, match="expected uint8, or numbers from 0 to 1, got numbers from 0 to 255"):
        features(encoder, digits[0].x.float())
    with pytest.raises(TypeError, match=r"ImageSet\(name, x, y\): expected a name first, got Tensor"):
        ImageSet(*pairs[0], 10)
    with pytest.raises(TypeError, match="encoder: Sequential has no width"):
        SimCLR(nn.Sequential(nn.Flatten()))


def test_raw_pixels_are_a_baseline(digits):
    train, test = digits
    found = evaluate(nn.Flatten(), train, test, ["knn", "robust"], EvaluationSettings(attacked=20, epsilons=(0.01,)))
    z, z_test = (one.x.flatten(1) / 255 for one in digits)
    assert found["knn"] == knn(z, train.y, z_test, test.y)
    assert found.keys() == {"knn", "clean", "fgsm@0.01", "pgd@0.01"}


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ("runs/seed0", r"got str\. Load it: image\.restore\(folder\)\.encoder"),
        (Path("encoder.pt"), r"got \w*Path\. Load it: .* load_state_dict\(torch\.load\(file\)\)"),
        (lambda x: x.flatten(1), r"got function\. Pass a module whose forward calls it"),
    ],
)
def test_an_encoder_is_a_module(digits, encoder, said):
    with pytest.raises(TypeError, match=rf"encoder: expected a torch\.nn\.Module, {said}"):
        evaluate(encoder, *digits, ["knn"])


def test_the_fast_probe_is_scikit_learns(digits, frozen):
    (train, test), (z, z_test) = digits, frozen
    probe = linear_probe(z, train.y, 10, EvaluationSettings(penalty=1e-2))
    scaled = [((one - z.mean(0)) / z.std(0, unbiased=False).clamp(min=1e-6)).double().numpy() for one in (z, z_test)]
    theirs = LogisticRegression(C=1 / (1e-2 * len(z)), tol=1e-8, max_iter=5000).fit(scaled[0], train.y.numpy())
    ours = probe(z_test).softmax(1).numpy()
    assert abs(ours - theirs.predict_proba(scaled[1])).max() < 5e-3
    right = 100 * theirs.score(scaled[1], test.y.numpy())
    found = 100 * float((probe(z_test).argmax(1) == test.y).float().mean())
    assert abs(found - right) < 0.4  # one image


def test_adams_probe_agrees_with_the_fast_one(digits, frozen):
    (train, test), (z, z_test) = digits, frozen
    fast = linear_probe(z, train.y, 10, EvaluationSettings(penalty=1e-4))
    papers = EvaluationSettings(protocol="adam", probe_epochs=300)
    slow = linear_probe(z, train.y, 10, papers)
    right = [float((probe(z_test).argmax(1) == test.y).float().mean()) for probe in (fast, slow)]
    assert abs(right[0] - right[1]) < 0.03
    assert torch.equal(
        slow(z_test), linear_probe(z, train.y, 10, EvaluationSettings(protocol="adam", probe_epochs=300))(z_test)
    )


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.07), (200, 0.1)])
def test_nearest_neighbours_are_scikit_learns(digits, frozen, k, temperature):
    (train, test), (z, z_test) = digits, frozen
    weigh = lambda distance: np.exp((1 - distance) / temperature)  # noqa: E731
    theirs = KNeighborsClassifier(k, weights=weigh, metric="cosine", algorithm="brute").fit(z.numpy(), train.y.numpy())
    right = 100 * theirs.score(z_test.numpy(), test.y.numpy())
    assert abs(knn(z, train.y, z_test, test.y, k, temperature) - right) < 0.4


def test_more_neighbours_than_images(digits, encoder, frozen):
    z, y = frozen[0][:30], digits[0].y[:30]
    every = knn(z, y, frozen[1], digits[1].y, 30)
    assert knn(z, y, frozen[1], digits[1].y) == every
    pairs = (digits[0].x[:30], y), (digits[1].x, digits[1].y)
    assert evaluate(encoder, *pairs, ["knn"]) == {"knn": every}
    for k in (0, 31):
        with pytest.raises(ValueError, match=f"k: expected from 1 to 30, the number of samples, got {k}"):
            knn(z, y, frozen[1], digits[1].y, k)


def test_attacks_are_ordered_and_nothing_is_clean(classifier, digits):
    test = digits[1]
    found = robust(classifier, test.x, test.y, EvaluationSettings(epsilons=(0.0, 0.01, 0.03)))
    assert found["fgsm@0"] == found["pgd@0"] == found["clean"]
    assert found["clean"] == pytest.approx(100 * float((classifier(test.x / 255).argmax(1) == test.y).float().mean()))
    for epsilon in ("0.01", "0.03"):
        assert found[f"pgd@{epsilon}"] <= found[f"fgsm@{epsilon}"] <= found["clean"]
    assert found["pgd@0.03"] < found["pgd@0.01"] < found["clean"]


def test_attacks_stay_in_their_box_and_in_the_range_of_pixels(classifier, digits):
    x, y = digits[1].x[:50] / 255, digits[1].y[:50]
    loss = lambda inputs: nn.functional.cross_entropy(classifier(inputs), y, reduction="sum")  # noqa: E731
    for attacked in (cp.views.fgsm(loss, x, 0.03, (0.0, 1.0)), cp.views.pgd(loss, x, 0.03, 0.01, 10, clip=(0.0, 1.0))):
        assert (attacked - x).abs().max() <= 0.03 + 1e-6
        assert attacked.min() >= 0
        assert attacked.max() <= 1
        assert loss(attacked) > loss(x)


@pytest.mark.parametrize("epsilon", [0.005, 0.02])
def test_attacks_are_foolboxs(classifier, digits, epsilon):
    attacks = pytest.importorskip("foolbox").attacks
    from foolbox import PyTorchModel

    x, y = digits[1].x[:100] / 255, digits[1].y[:100]
    model = PyTorchModel(classifier, (0, 1), "cpu")
    loss = lambda inputs: nn.functional.cross_entropy(classifier(inputs), y, reduction="sum")  # noqa: E731
    settings = EvaluationSettings(epsilons=(epsilon,))
    pgd = {"abs_stepsize": settings.step, "steps": settings.steps}

    _, theirs, fooled = attacks.LinfFastGradientAttack()(model, x, y, epsilons=epsilon)
    assert (cp.views.fgsm(loss, x, epsilon, (0.0, 1.0)) - theirs).abs().max() < 1e-6
    found = robust(classifier, x, y, settings)
    assert found[f"fgsm@{epsilon}"] == pytest.approx(100 * float((~fooled).float().mean()))

    _, theirs, _ = attacks.LinfPGD(**pgd, random_start=False)(model, x, y, epsilons=epsilon)
    ours = cp.views.pgd(loss, x, epsilon, settings.step, settings.steps, False, (0.0, 1.0))
    # a gradient that is zero up to rounding may have either sign
    assert ((ours - theirs).abs() > 1e-5).float().mean() < 5e-3

    torch.manual_seed(0)  # of their random starts
    _, _, fooled = attacks.LinfPGD(**pgd).repeat(settings.restarts)(model, x, y, epsilons=epsilon)
    assert abs(found[f"pgd@{epsilon}"] - 100 * float((~fooled).float().mean())) <= 1  # one image


def test_each_restart_can_only_take_away(classifier, digits):
    x, y = digits[1].x[:100], digits[1].y[:100]
    one, four = (
        robust(classifier, x, y, EvaluationSettings(epsilons=(0.02,), restarts=n), seed=3)["pgd@0.02"] for n in (1, 4)
    )
    assert four <= one


def test_evaluation_leaves_the_encoder_as_it_was(digits):
    torch.manual_seed(1)
    encoder = Encoder("conv4", 16, 8).train()
    encoder.network[1].eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    settings = EvaluationSettings(attacked=20, epsilons=(0.01,))
    found = evaluate(encoder, *digits, ["knn", "linear", "robust", "shifted"], settings)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert encoder.training
    assert not encoder.network[1].training
    assert encoder.network[2].training
    assert found.keys() == {"knn", "linear", "linear_top5", "clean", "fgsm@0.01", "pgd@0.01", *shifts((16, 16))}
    assert all(0 <= value <= 100 for value in found.values())
    assert found["linear"] <= found["linear_top5"]


def test_shifted_images_differ_as_their_names_say(digits):
    train = digits[0]
    sets = {name: shifted(train, recipe) for name, recipe in shifts(train.size).items()}
    changed = {name: float((one.x != train.x).any(1).any(1).any(1).float().mean()) for name, one in sets.items()}
    mirrored = (sets["aug3"].x == train.x.flip(3)).all(1).all(1).all(1)
    assert 0.4 < float(mirrored.float().mean()) < 0.6
    assert bool((mirrored | (sets["aug3"].x == train.x).all(1).all(1).all(1)).all())
    assert changed["aug1"] == 0  # grey already
    assert changed["aug2"] > 0.9
    assert 0.6 < changed["aug4"] < 0.9
    assert torch.equal(shifted(train, shifts(train.size)["aug2"]).x, sets["aug2"].x)


def test_attack_strength_is_monotone(classifier, digits):
    epsilons = (0.0, 0.004, 0.008, 0.016, 0.032)
    found = robust(classifier, digits[1].x[:150], digits[1].y[:150], EvaluationSettings(epsilons=epsilons, restarts=1))
    assert spearmanr(epsilons, [found[f"pgd@{epsilon:g}"] for epsilon in epsilons]).statistic < -0.9


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilons": (0.01, -0.1)}, r"pixels from 0 to 1, such as 8/255, got -0\.1"),
        ({"epsilons": (8,)}, r"pixels from 0 to 1, such as 8/255, got 8"),
        ({"protocol": "lbfg"}, "Did you mean 'lbfgs'"),
        ({"k": 0}, "k: expected a whole number of at least 1"),
        ({"restarts": 1.5}, "restarts"),
        ({"step": 0.0}, "step"),
        ({"attacked": 0}, "attacked"),
    ],
)
def test_bad_settings(changes, word):
    with pytest.raises(ValueError, match=word):
        EvaluationSettings(**changes)


class Spoiled(nn.Module):
    """An encoder of which something is wrong."""

    def __init__(self, how):
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.ones(1))

    def forward(self, x):
        z = x.flatten(1) * self.scale
        if self.how == "nan":
            z[:3] = torch.nan
        z = nn.functional.normalize(z.squeeze(0), dim=1) if self.how == "squeezed" else z
        return z.detach() * self.scale if self.how == "detached" else z


@pytest.mark.parametrize(
    ("how", "probe", "said"),
    [
        ("nan", "knn", "features: those of 6 of 600 images are NaN or infinite"),
        ("nan", "linear", "features: those of 6 of 600 images are NaN or infinite"),
        ("detached", "robust", "attacks need the gradient of the pixels"),
    ],
)
def test_encoders_without_numbers_or_gradients_are_refused(digits, how, probe, said):
    with pytest.raises(ValueError, match=said):
        evaluate(Spoiled(how), *digits, [probe])


def test_attacks_need_no_batch_of_one(digits):
    """Which an encoder that squeezes its features does not take."""
    few = EvaluationSettings(epsilons=(0.01,), attacked=4)
    assert evaluate(Spoiled("squeezed"), *digits, ["robust"], few).keys() == {"clean", "fgsm@0.01", "pgd@0.01"}


def test_one_epsilon_is_a_number(digits):
    assert EvaluationSettings(epsilons=8 / 255).epsilons == (8 / 255,)
    assert EvaluationSettings(epsilons=torch.tensor([0.25, 0.5]).numpy()).epsilons == (0.25, 0.5)
    with pytest.raises(TypeError, match=r"settings: expected EvaluationSettings\(k=10\), got dict"):
        evaluate(Spoiled(""), *digits, ["knn"], {"k": 10})


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ("squeezenet1_0", "squeezenet1_0 has no linear classifier"),
        ("vit_b_16", "vit_b_16 takes no images of 32 pixels; try --size 224 .Wrong image height"),
    ],
)
def test_backbones_that_do_not_fit(backbone, said):
    with pytest.raises(ValueError, match=said):
        Encoder(backbone, 32)


def test_bad_probes(encoder, digits):
    with pytest.raises(ValueError, match=r"'liner'.*Did you mean 'linear'"):
        evaluate(encoder, *digits, ["liner"])
