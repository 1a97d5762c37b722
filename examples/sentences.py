"""Do embeddings of sentences learn what words mean? Synthetic sentences, made here, whose similarity is known.

A small grammar has five slots (who, how, does, what, where) with five meanings each, most of them in three wordings.
The gold similarity of two sentences is the number of slots in which they mean the same, whatever the words.
Sentences that say the same in other words, two or as many as an objective wants, train a table of word vectors from
random numbers, in sentence-transformers' trainer; a sentence is the mean of its words. Scores are Spearman's
correlation of cosine and gold on pairs that were not trained on, as in semantic textual similarity. These sentences are
no language: the numbers say nothing about text.

False negatives abound here: two sentences of a batch share a slot's meaning in one case of five.

examples:
  python examples/sentences.py
  python examples/sentences.py --seeds 10 --objectives infonce:t=0.1 dcl:t=0.1,prior=0.04 "infonce:t=0.1 + 0.1*dp"
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from digits import COLOURS, compare
from matplotlib.figure import Figure
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardCallback
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PrinterCallback

import counterpoint as cp
from counterpoint.integrations.sentence.data import Pairs
from counterpoint.integrations.sentence.encode import Embeddings, encoder
from counterpoint.integrations.sentence.sts import score
from counterpoint.plugins.sentence_transformers import ContrastiveLoss

OBJECTIVES = ["infonce:t=0.1", "hcl:t=0.1,prior=0.01", "adnce:t=0.1,mu=0.4", "arcl(infonce:t=0.1):views=4"]
BEFORE = "before training"
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
WIDTH = 64


def meaning(draw: random.Random) -> dict[str, int]:
    return {slot: draw.randrange(len(groups)) for slot, groups in SLOTS.items()}


def say(meant: dict[str, int], draw: random.Random) -> str:
    """One of the many ways to say it."""
    words = {slot: draw.choice(SLOTS[slot][which]) for slot, which in meant.items()}
    return draw.choice(TEMPLATES).format(**words)


def unseen(seed: int, count: int = 600) -> Pairs:
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


def model(seed: int) -> SentenceTransformer:
    """Random vectors for the words of the grammar."""
    torch.manual_seed(seed)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="the"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(words, torch.randn(len(WORDS), WIDTH))], device="cpu")


def train(learner: SentenceTransformer, objective: str, seed: int, steps: int, batch: int) -> None:
    """The trainer and the loss as anyone would use them."""
    draw = random.Random(f"train {seed}")
    meant = [meaning(draw) for _ in range(steps * batch)]
    views = cp.objective(objective).views or 2
    data = Dataset.from_dict({f"view {i}": [say(m, draw) for m in meant] for i in range(views)})
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=0.03,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=seed,
        )
        loss = ContrastiveLoss(learner, objective, columns="views", log_terms=False)
        trainer = SentenceTransformerTrainer(model=learner, args=settings, train_dataset=data, loss=loss)
        for unneeded in (PrinterCallback, SentenceTransformerModelCardCallback):
            trainer.remove_callback(unneeded)
        trainer.train()


def spearman(learner: SentenceTransformer, pairs: Pairs) -> float:
    found = score(pairs, Embeddings(encoder(learner), [*pairs.first, *pairs.second], 256, progress=False)).spearman
    return float("nan") if found is None else found


def run(
    objectives: Sequence[str] = OBJECTIVES,
    seeds: int = 3,
    steps: int = 40,
    batch: int = 64,
    seed: int = 0,
    out: Path | str | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains each objective with each seed; every number is in what it returns."""
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}")
    if len(set(objectives)) < len(objectives):
        raise ValueError("an objective is named twice")
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    found: dict[str, list[float]] = {name: [] for name in (BEFORE, *objectives)}
    for s in range(seed, seed + seeds):
        pairs = unseen(s)
        found[BEFORE].append(spearman(model(s), pairs))
        for name in objectives:
            learner = model(s)
            train(learner, name, s, steps, batch)
            found[name].append(spearman(learner, pairs))
            if progress:
                print(f"sentences: seed {s}, {name}: {found[name][-1]:.1f}", file=sys.stderr, flush=True)
    summary: dict[str, dict[str, Any]] = {}
    for name, values in found.items():
        versus = None if name in (BEFORE, objectives[0]) else compare(found[objectives[0]], values)
        row = {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1)), "values": values}
        summary[name] = row | {"vs_first": versus}
    arguments = {"objectives": list(objectives), "seeds": seeds, "steps": steps, "batch": batch, "seed": seed}
    if out is not None:
        draw_scores(Path(out), summary)
    return {"arguments": arguments, "synthetic": True, "summary": summary}


def report(result: dict[str, Any]) -> str:
    """The table, and what its intervals allow to say."""
    first, width = (
        result["arguments"]["objectives"][0],
        max(map(len, (*result["summary"], "Spearman x 100, synthetic"))),
    )
    lines = [f"{'Spearman x 100, synthetic':{width}}                 minus {first}, 95%"]
    verdicts: dict[str, list[str]] = {}
    for name, row in result["summary"].items():
        gap = ""
        if (versus := row["vs_first"]) is not None:
            gap = "{difference:+6.1f} [{low:+.1f}, {high:+.1f}]".format(**versus)
            verdict = "higher" if versus["low"] > 0 else "lower" if versus["high"] < 0 else "no difference found"
            verdicts.setdefault(verdict, []).append(name)
        lines.append(f"{name:{width}}  {row['mean']:5.1f} +- {row['sd']:4.1f}  {gap}".rstrip())
    said = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items())
    return "\n".join([*lines, "", f"against {first} - {said}. ({result['arguments']['seeds']} paired seeds.)"])


def draw_scores(out: Path, summary: dict[str, dict[str, Any]]) -> None:
    """Every seed's score, a row per objective."""
    figure = Figure(figsize=(8, 0.4 * len(summary) + 1.4), layout="constrained")
    axis = figure.subplots()
    for i, (name, row) in enumerate(summary.items()):
        colour = COLOURS[i % len(COLOURS)]
        axis.plot(row["values"], [name] * len(row["values"]), "o", color=colour, alpha=0.5)
        axis.plot(row["mean"], name, "|", color=colour, markersize=22, markeredgewidth=2.5)
    axis.set_xlabel("Spearman x 100 on synthetic pairs (dots: seeds, bars: means)")
    axis.grid(axis="x", alpha=0.3)
    axis.invert_yaxis()
    figure.savefig(out / "sentences.png", dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--objectives", nargs="+", default=OBJECTIVES, metavar="SPEC", help="the first is compared with the others")
    add("--seeds", type=int, default=3, help="runs per objective (%(default)s)")
    add("--steps", type=int, default=40, help="per run (%(default)s)")
    add("--batch", type=int, default=64, help="meanings per step (%(default)s)")
    add("--seed", type=int, default=0, help="of the first run, the others follow (%(default)s)")
    add("--out", help="a folder for sentences.json and the picture")
    arguments = vars(parser.parse_args(argv))
    try:
        result = run(**arguments)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(report(result))
    if arguments["out"]:
        Path(arguments["out"], "sentences.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
