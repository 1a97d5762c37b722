"""Synthetic sentences whose similarity is known, for demonstrations that need no download and no language model.

A small grammar has five slots (who, how, does, what, where) with five meanings each, most of them in three wordings.
The gold similarity of two sentences is the number of slots in which they mean the same, whatever the words. These
sentences are no language: numbers that come from them say nothing about text. False negatives abound: two sentences
share a slot's meaning in one case of five.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from . import framework
from .data import Pairs

MEANINGS = {  # per slot: the meanings, each with its wordings
    "who": "dog hound pup, cat kitten tom, child kid youngster, doctor medic physician, driver motorist cabbie",
    "how": "fast quickly rapidly, slowly leisurely lazily, quietly silently softly, gladly happily, sadly glumly",
    "does": "eats devours consumes, sees spots notices, chases follows pursues, paints draws, hides conceals buries",
    "what": "cake pastry pie, picture image portrait, house home cottage, stone rock pebble, coat jacket cloak",
    "where": "garden yard lawn, beach shore coast, forest woods grove, street road lane, office bureau study",
}
SLOTS = {slot: [one.split() for one in meanings.split(", ")] for slot, meanings in MEANINGS.items()}
TEMPLATES = [
    "the {who} {how} {does} the {what} in the {where}",
    "in the {where} the {who} {does} the {what} {how}",
    "{how} the {who} in the {where} {does} a {what}",
]
WORDS = sorted({w for groups in SLOTS.values() for g in groups for w in g} | {"the", "a", "in"})

Meaning = dict[str, int]
"""Which of its meanings each slot has."""


def meaning(draw: random.Random) -> Meaning:
    return {slot: draw.randrange(len(groups)) for slot, groups in SLOTS.items()}


def say(meant: Meaning, draw: random.Random) -> str:
    """One of the many ways to say it."""
    words = {slot: draw.choice(SLOTS[slot][which]) for slot, which in meant.items()}
    return draw.choice(TEMPLATES).format(**words)


def positives(count: int, seed: int, views: int = 2) -> dict[str, list[str]]:
    """Columns of sentences that say the same in words of their own: ``anchor``, ``positive``, and further ones."""
    draw = random.Random(f"train {seed}")
    meant = [meaning(draw) for _ in range(count)]
    names = ["anchor", "positive", *(f"positive{i}" for i in range(2, views))]
    return {name: [say(one, draw) for one in meant] for name in names}


def scored(count: int, seed: int) -> Pairs:
    """Pairs with as many of each gold similarity, 0 to 5."""
    draw, pairs = random.Random(f"test {seed}"), Pairs("synthetic")
    for i in range(count):
        gold = i % (len(SLOTS) + 1)
        first = meaning(draw)
        second = dict(first)
        for slot in draw.sample(list(SLOTS), len(SLOTS) - gold):
            second[slot] = (first[slot] + draw.randrange(1, len(SLOTS[slot]))) % len(SLOTS[slot])
        pairs.subset.append("all")
        pairs.gold.append(float(gold))
        pairs.first.append(say(first, draw))
        pairs.second.append(say(second, draw))
    return pairs


def labelled(count: int, seed: int, slot: str = "who") -> tuple[list[str], list[int], list[str]]:
    """Sentences, the meaning of a slot in each, and the names of these meanings."""
    draw = random.Random(f"labelled {seed}")
    meant = [meaning(draw) for _ in range(count)]
    return [say(one, draw) for one in meant], [one[slot] for one in meant], [words[0] for words in SLOTS[slot]]


def model(seed: int, width: int = 64) -> Any:
    """A SentenceTransformer with random vectors for the words of the grammar; a sentence is the mean of its words."""
    tokenizers = framework("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="the")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    table = torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(seed))
    embedding = framework("sentence_transformers.sentence_transformer.modules").StaticEmbedding(words, table)
    return framework("sentence_transformers").SentenceTransformer(modules=[embedding], device="cpu")
