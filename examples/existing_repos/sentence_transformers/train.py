"""Train a sentence-transformer with any objective; by default a tiny one with random weights, in seconds on a CPU.

python train.py                                             # nothing is downloaded
python train.py --model all-MiniLM-L6-v2 --objective "infonce:t=0.05"
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from counterpoint.plugins.sentence_transformers import ContrastiveLoss

WHO = ["a cook", "a pilot", "two dogs", "the old man", "my sister", "a tall tree", "the band", "a small boat"]
DOES = ["waits for", "walks past", "talks about", "looks at", "paints", "remembers", "is close to", "hides from"]
WHAT = ["the house", "a red car", "the river", "an open door", "the market", "a quiet lake", "the moon", "a bridge"]


def pairs(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Return sentences, and paraphrases of them."""
    draw = random.Random(seed)
    facts = [(draw.choice(WHO), draw.choice(DOES), draw.choice(WHAT)) for _ in range(count)]
    return {
        "anchor": [f"{who} {does} {what}" for who, does, what in facts],
        "positive": [f"it is {what} that {who} {does}" for who, does, what in facts],
    }


def tiny(folder: Path) -> Any:
    """Create a transformer with one layer, whose vocabulary is the words above."""
    words = sorted({word for column in pairs(999).values() for sentence in column for word in sentence.split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return SentenceTransformer(str(folder), device="cpu")


def top1(model: Any, data: dict[str, list[str]]) -> float:
    """Return the share of sentences whose nearest neighbour is their paraphrase."""
    nearest = model.similarity(*(model.encode(data[column], convert_to_tensor=True) for column in data)).argmax(1)
    same = [data["anchor"][i] == data["anchor"][j] for i, j in enumerate(nearest.tolist())]
    return sum(same) / len(same)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a sentence-transformer, by name or folder")
    parser.add_argument("--objective", default="adnce:mu=0.4,t=0.07 + 0.1*dp", metavar="SPEC")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = SentenceTransformer(args.model) if args.model else tiny(Path(folder))
        test = pairs(100, seed=1)
        before = top1(model, test)
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=32,
            learning_rate=2e-5 if args.model else 1e-3,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(pairs(2000)),
            loss=ContrastiveLoss(model, args.objective),  # the line to change
        ).train()
        print(f"{args.objective}: right neighbour in {before:.0%} before, {top1(model, test):.0%} after")


if __name__ == "__main__":
    main()
