"""Views of whole batches: the same parameters, and the same pixels from them, as lightly's transforms have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("lightly")
pytest.importorskip("lightning")
from lightly_views import lightlys
from PIL import Image, ImageFilter
from scipy.stats import chisquare, ks_2samp
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from counterpoint.integrations.image import Recipe, recipe

SEEN = 1e-3  # p-value below which two samples count as different; all seeds are fixed


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Smooth, coloured, saturated in places: what resampling and colour changes are sensitive to."""
    x = torch.rand(60, 3, 8, 8, generator=seeded())
    x = torch.nn.functional.interpolate(x, (40, 32), mode="bicubic").mul(1.4).sub(0.2).clamp(0, 1)
    return (255 * x).round().byte()


def by_pil(image: torch.Tensor, draws, row: int, made: Recipe) -> torch.Tensor:
    """The same view by torchvision on PIL images and by PIL's blur, which is what lightly calls."""
    picture = F.to_pil_image(image)
    box = [int(value) for value in draws.crop[row]]
    picture = F.resized_crop(picture, *box, list(made.sides), antialias=True)
    if draws.flip[row]:
        picture = F.hflip(picture)
    change = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for kind in draws.order[row].tolist() if draws.jitter[row] else ():
        if made.jitter[kind]:  # torchvision leaves out what has no strength
            picture = change[kind](picture, float(draws.factors[row, kind]))
    if draws.grey[row]:
        picture = F.to_grayscale(picture, 3)
    if draws.blur[row] > 0:
        picture = picture.filter(ImageFilter.GaussianBlur(float(draws.blur[row])))
    return F.to_dtype(F.to_image(picture), torch.float32, scale=True)


NOTHING = {"min_scale": 1.0, "flip": 0.0, "jitter_prob": 0.0, "grey": 0.0, "blur": 0.0}
STEPS = {  # one change each, and how many grey levels the rounding of PIL may make of it: mean, and largest
    "crop": ({"min_scale": 0.08}, 0.5, 1.5),
    "larger": ({"min_scale": 0.3, "size": 50}, 0.5, 1.5),
    "smaller": ({"min_scale": 0.3, "size": 13}, 0.5, 1.5),
    "oblong": ({"min_scale": 0.3, "size": (20, 33)}, 0.5, 1.5),
    "flip": ({"flip": 0.5}, 0.5, 1.5),
    "brightness": ({"jitter_prob": 1.0, "jitter": (0.8, 0, 0, 0)}, 1.0, 2.5),
    "contrast": ({"jitter_prob": 1.0, "jitter": (0, 0.8, 0, 0)}, 1.0, 2.5),
    "saturation": ({"jitter_prob": 1.0, "jitter": (0, 0, 0.8, 0)}, 1.0, 3.0),
    "hue": ({"jitter_prob": 1.0, "jitter": (0, 0, 0, 0.5)}, 2.0, 20.0),  # PIL has 256 hues
    "grey": ({"grey": 1.0}, 0.5, 1.5),
    "blur": ({"blur": 1.0}, 1.0, 3.5),
    "strong blur": ({"blur": 1.0, "sigmas": (2.0, 6.0)}, 1.0, 3.5),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_pils(pictures, step):
    changes, mean, largest = STEPS[step]
    made = Recipe(**{"size": (40, 32), **NOTHING, **changes})
    draws = made.draw(len(pictures), 40, 32, seeded(1))
    views = made.apply(pictures, draws)
    theirs = torch.stack([by_pil(image, draws, row, made) for row, image in enumerate(pictures)])
    assert views.shape == theirs.shape
    away = (views - theirs).abs() * 255
    assert away.mean() < mean
    assert away.max() < largest
    assert abs(float((views - theirs).mean()) * 255) < 0.6  # nothing drifts; PIL cuts where it blends


def test_all_steps_together_are_pils(pictures):
    made = recipe("simclr", 32)
    draws = made.draw(len(pictures), 40, 32, seeded(2))
    theirs = torch.stack([by_pil(image, draws, row, made) for row, image in enumerate(pictures)])
    away = (made.apply(pictures, draws) - theirs).abs() * 255
    assert away.mean() < 2
    assert (away > 16).float().mean() < 1e-3


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 24), (20, 90)])
def test_crops_are_distributed_as_torchvisions(height, width):
    count, made = 3000, Recipe(min_scale=0.08)
    ours = made.draw(count, height, width, seeded(3)).crop
    torch.manual_seed(4)
    crop, image = v2.RandomResizedCrop(32, scale=(0.08, 1.0)), [torch.zeros(3, height, width)]
    theirs = [crop.make_params(image) for _ in range(count)]
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(ours[:, column], [one[name] for one in theirs]).pvalue > SEEN, name
    areas = [one["height"] * one["width"] for one in theirs]
    assert ks_2samp(ours[:, 2] * ours[:, 3], areas).pvalue > SEEN
    assert bool((ours[:, 0] + ours[:, 2] <= height).all())
    assert bool((ours[:, 1] + ours[:, 3] <= width).all())


def test_jitter_is_distributed_as_torchvisions():
    strengths, count = (0.8, 0.4, 1.5, 0.2), 3000
    ours = Recipe(jitter=strengths).draw(count, 32, 32, seeded(5))
    torch.manual_seed(6)
    jitter = v2.ColorJitter(*strengths)
    theirs = [jitter.make_params([]) for _ in range(count)]
    for column, name in enumerate(("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")):
        values = [float(one[name]) for one in theirs]
        assert ks_2samp(ours.factors[:, column], values).pvalue > SEEN, name
    kinds = [tuple(row) for row in ours.order.tolist()]
    counts = [kinds.count(kind) for kind in set(kinds)]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > SEEN


def test_probabilities_and_blur_are_as_asked():
    count, made = 20000, Recipe(flip=0.5, jitter_prob=0.8, grey=0.2, blur=0.3, sigmas=(0.1, 2.0))
    draws = made.draw(count, 32, 32, seeded(7))
    shares = {"flip": draws.flip, "jitter_prob": draws.jitter, "grey": draws.grey, "blur": draws.blur > 0}
    for name, drawn in shares.items():
        share = getattr(made, name)
        assert abs(float(drawn.float().mean()) - share) < 4 * (share * (1 - share) / count) ** 0.5, name
    sigmas = draws.blur[draws.blur > 0]
    assert ks_2samp(sigmas, np.random.default_rng(8).uniform(0.1, 2.0, len(sigmas))).pvalue > SEEN


@pytest.mark.parametrize("name", ["cifar", "simclr", "moco"])
def test_views_have_the_distribution_of_lightlys(pictures, name):
    """Whatever lightly does inside: statistics of whole views of one image."""
    made, count = recipe(name, 24), 600
    torch.manual_seed(9)
    np.random.seed(9)
    transform, picture = lightlys(made), Image.fromarray(pictures[0].permute(1, 2, 0).numpy())
    theirs = torch.stack([transform(picture) for _ in range(count)])
    ours = made(pictures[:1].expand(count, -1, -1, -1), seeded(10))
    for statistic in (
        lambda x: x.mean((1, 2, 3)),
        lambda x: x.std((1, 2, 3)),
        lambda x: (x[:, 0] - x[:, 2]).mean((1, 2)),
        lambda x: (x.amax(1) - x.amin(1)).mean((1, 2)),
        lambda x: x.diff(dim=3).abs().mean((1, 2, 3)),
        lambda x: x[:, :, :, :12].mean((1, 2, 3)) - x[:, :, :, 12:].mean((1, 2, 3)),
    ):
        assert ks_2samp(statistic(ours), statistic(theirs)).pvalue > SEEN


def test_views_depend_on_the_generator_alone(pictures):
    made = recipe("simclr", 24)
    torch.manual_seed(0)
    first = made(pictures, seeded(11))
    torch.manual_seed(1)
    assert torch.equal(first, made(pictures, seeded(11)))
    assert not torch.equal(first, made(pictures, seeded(12)))
    assert first.min() >= 0
    assert first.max() <= 1


def test_nothing_changes_nothing(pictures):
    square = pictures[:, :, :32]
    assert torch.allclose(recipe("none")(square, seeded()), square.float() / 255, atol=1e-6)


def test_one_pixel_becomes_any_size():
    image = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    assert torch.allclose(recipe("none", 5)(image)[0, :, 2, 2] * 255, torch.tensor([10.0, 20.0, 30.0]))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"size": 0}, "size"),
        ({"size": (3, 4, 5)}, "size"),
        ({"min_scale": 0.0}, "min_scale"),
        ({"flip": 1.5}, "flip"),
        ({"grey": -0.1}, "grey"),
        ({"jitter": (0.1, 0.1, 0.1, 0.6)}, "jitter"),
        ({"sigmas": (2.0, 1.0)}, "sigmas"),
    ],
)
def test_bad_recipes(changes, word):
    with pytest.raises(ValueError, match=word):
        Recipe(**changes)


def test_bad_names_and_images():
    with pytest.raises(ValueError, match=r"'simclrr'.*Did you mean 'simclr'"):
        recipe("simclrr")
    with pytest.raises(ValueError, match="uint8"):
        recipe("cifar")(torch.rand(2, 3, 8, 8))
    with pytest.raises(ValueError, match="uint8"):
        recipe("cifar")(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
