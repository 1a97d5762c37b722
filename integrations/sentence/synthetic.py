"""Synthetic sentences whose similarity is known, for demonstrations that need no download and no language model.

A small grammar has five slots (who, how, does, what, where) with five meanings each, most of them in three wordings.
The gold similarity of two sentences is the number of slots with the same meaning, whatever the wording. The sentences
are not natural language, so results on them do not carry over to text. False negatives are frequent: two sentences
share a slot's meaning with probability 1/5.
"""

from __future__ import annotations

import random
from typing import Any

import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from .benchmarks import Pairs

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

Meaning = dict[str, int]
"""The number of the meaning of each slot."""


def meaning(draw: random.Random) -> Meaning:
    """Draw a meaning for each slot."""
    return {slot: draw.randrange(len(groups)) for slot, groups in SLOTS.items()}


def sentence(meanings: Meaning, draw: random.Random) -> str:
    """Draw one of the wordings of a meaning."""
    words = {slot: draw.choice(SLOTS[slot][which]) for slot, which in meanings.items()}
    return draw.choice(TEMPLATES).format(**words)


def positives(count: int, seed: int, views: int = 2) -> dict[str, list[str]]:
    """Draw columns of differently worded sentences with the same meaning: ``anchor``, ``positive`` and further ones."""
    draw = random.Random(f"train {seed}")
    drawn = [meaning(draw) for _ in range(count)]
    names = ["anchor", "positive", *(f"positive{i}" for i in range(2, views))]
    return {name: [sentence(meanings, draw) for meanings in drawn] for name in names}


def scored(count: int, seed: int) -> Pairs:
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
    return Pairs("synthetic", ["all"] * count, gold, firsts, seconds)


def labelled(count: int, seed: int) -> tuple[list[str], list[int], list[str]]:
    """Draw sentences; returns them, the number of who each is about, and the names of these numbers."""
    draw = random.Random(f"labelled {seed}")
    drawn = [meaning(draw) for _ in range(count)]
    sentences = [sentence(meanings, draw) for meanings in drawn]
    return sentences, [meanings["who"] for meanings in drawn], [words[0] for words in SLOTS["who"]]


def model(seed: int, width: int = 64) -> Any:
    """Return a SentenceTransformer with random word vectors; a sentence is the mean of its words."""
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="the"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # type: ignore[attr-defined]
    table = torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(seed))
    return SentenceTransformer(modules=[StaticEmbedding(words, table)], device="cpu")
