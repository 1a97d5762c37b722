"""The part of sentences in ``counterpoint demo``: SimCSE's loss, scored by Spearman's correlation.

The sentences are synthetic, and their similarity is known. A small grammar has five slots (who, how, does, what, where)
with five meanings each, most of them in three wordings. The gold similarity of two sentences is the number of slots
with the same meaning, whatever the wording. This is not natural language, so results do not carry over to text. False
negatives are frequent: two sentences share a slot's meaning with probability 1/5.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import random
from pathlib import Path

import tokenizers
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

import counterpoint as cp

from ..domain import defaults
from ..store.run import Run
from . import encode, sts
from .settings import Settings as Training
from .training import fit

COMMON = {"t": "0.1", "denominator": ""}
SETTINGS = {"steps": 60, "batch": 64}
QUICK = {"steps": 4}


def cell(objective: str | None, seed: int, **settings: object) -> dict[str, object]:
    """Return the cell of an objective; None for the encoder before training."""
    untrained = {"label": "untrained encoder", "steps": 0} if objective is None else {}
    own = {"lr": 0.03, "dev": None, "every": 3, "save": 0, "keep": False}
    named = {"domain": "sentence", "dataset": "synthetic", "objective": objective, "seed": seed}
    return {**defaults(Training), **own, **named, **settings, **untrained}


def train(run: Run, cache: Path) -> None:
    """Train one cell as ``counterpoint train sentence`` does, and score it."""
    seed, steps, batch = (run.arguments[name] for name in ("seed", "steps", "batch"))
    model, pairs = encoder(seed), scored(600, seed)
    if steps:
        views = cp.objective(run.arguments["objective"]).views or 2
        fit(run, model, Dataset.from_dict(positives(steps * batch, seed, views)))
    run.finish({"Spearman": sts.score(pairs, encode.embed(model, pairs.texts)).spearman})


MEANINGS = {  # per slot: the meanings, each with its wordings
    "who": "dog hound pup, cat kitten tom, child kid youngster, doctor medic physician, driver motorist cabbie",
    "how": "fast quickly rapidly, slowly leisurely lazily, quietly silently softly, gladly happily, sadly glumly",
    "does": "eats devours consumes, sees spots notices, chases follows pursues, paints draws, hides conceals buries",
    "what": "cake pastry pie, picture image portrait, house home cottage, stone rock pebble, coat jacket cloak",
    "where": "garden yard lawn, beach shore coast, forest woods grove, street road lane, office bureau study",
}
SLOTS = {slot: [wordings.split() for wordings in meanings.split(", ")] for slot, meanings in MEANINGS.items()}
TEMPLATES = [
    "the {who} {how} {does} the {what} in the {where}",
    "in the {where} the {who} {does} the {what} {how}",
    "{how} the {who} in the {where} {does} a {what}",
]
WORDS = sorted({w for groups in SLOTS.values() for g in groups for w in g} | {"the", "a", "in"})


def meaning(draw: random.Random) -> dict[str, int]:
    """Draw the number of a meaning for each slot."""
    return {slot: draw.randrange(len(groups)) for slot, groups in SLOTS.items()}


def sentence(meanings: dict[str, int], draw: random.Random) -> str:
    """Draw one of the wordings of these meanings."""
    words = {slot: draw.choice(SLOTS[slot][which]) for slot, which in meanings.items()}
    return draw.choice(TEMPLATES).format(**words)


def positives(count: int, seed: int, views: int = 2) -> dict[str, list[str]]:
    """Draw columns of differently worded sentences with the same meaning: ``anchor``, ``positive`` and further ones."""
    draw = random.Random(f"train {seed}")
    drawn = [meaning(draw) for _ in range(count)]
    names = ["anchor", "positive", *(f"positive{i}" for i in range(2, views))]
    return {name: [sentence(meanings, draw) for meanings in drawn] for name in names}


def scored(count: int, seed: int) -> sts.Pairs:
    """Draw pairs with gold similarities 0 to 5, in equal numbers."""
    draw = random.Random(f"test {seed}")
    gold, firsts, seconds = [float(i % (len(SLOTS) + 1)) for i in range(count)], [], []
    for similarity in gold:
        first = meaning(draw)
        second = dict(first)
        for slot in draw.sample(list(SLOTS), len(SLOTS) - int(similarity)):
            second[slot] = (first[slot] + draw.randrange(1, len(SLOTS[slot]))) % len(SLOTS[slot])
        firsts.append(sentence(first, draw))
        seconds.append(sentence(second, draw))
    return sts.Pairs("synthetic", gold, firsts, seconds)


def encoder(seed: int, width: int = 64) -> SentenceTransformer:
    """Return a SentenceTransformer with random word vectors; a sentence is the mean of its words."""
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="the"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    table = torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(seed))
    return SentenceTransformer(modules=[StaticEmbedding(words, table)], device="cpu")
