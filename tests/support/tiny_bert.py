"""A transformer of 5,000 random weights, made here, so that nothing is downloaded; texts and sets that it can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB-test", "SICKR-test", "SICKR-train", "SICKR-trial")
HEADER = "subset\tscore\tsentence1\tsentence2\n"
WORDS = [f"w{i}" for i in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def build(
    folder: Path,
    dropout: float = 0.1,
    pooler: bool = True,
    width: int = 16,
    words: Sequence[str] = WORDS,
    mlm: bool = False,
) -> None:
    """Writes a checkpoint of transformers: no sentence transformer, as nothing says how tokens make a sentence."""
    import tokenizers
    import transformers

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=max(16, width // 2),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(0)
    if mlm:
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    else:
        transformers.BertModel(config, add_pooling_layer=pooler).save_pretrained(folder)


def load(folder: Path) -> Any:
    """It as a sentence transformer with mean pooling."""
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    return st.SentenceTransformer(modules=[Transformer(str(folder)), Pooling(16)], device="cpu")


def texts(columns: int, rows: int = 8, seed: int = 0) -> list[list[str]]:
    """``columns`` lists of short sentences of different lengths."""
    draw = torch.Generator().manual_seed(seed)

    def sentence() -> str:
        length = int(torch.randint(1, 8, (), generator=draw))
        return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (length,), generator=draw))

    return [[sentence() for _ in range(rows)] for _ in range(columns)]


def write_sts(folder: Path, names: tuple[str, ...] = STS) -> None:
    """Small STS sets, which share texts with each other."""
    (folder / "sts").mkdir()
    draw = np.random.default_rng(0)
    for name in names:
        rows = []
        for i in range(12):
            first, second = (" ".join(draw.choice(WORDS[:20], draw.integers(1, 5))) for _ in range(2))
            rows.append(f"{'ab'[i % 2]}\t{draw.uniform(0, 5):.2f}\t{first}\t{second}")
        (folder / "sts" / f"{name}.tsv").write_text(HEADER + "\n".join(rows) + "\n")


def write_transfer(folder: Path) -> None:
    """Small tasks of SentEval: the class has to do with the words, but not all."""
    (folder / "transfer").mkdir()
    draw = np.random.default_rng(0)

    def text(label: int) -> str:
        return " ".join(draw.choice(WORDS[label * 4 : label * 4 + 14], draw.integers(1, 6)))

    sizes = {"CR": (60, 2), "TREC-train": (90, 3), "TREC-test": (60, 3), "MRPC-train": (80, 2), "MRPC-test": (50, 2)}
    for name, (size, classes) in sizes.items():
        rows = []
        for _ in range(size):
            label = int(draw.integers(classes))
            second = f"\t{text(int(draw.integers(2)) if label else 0)}" if name.startswith("MRPC") else ""
            rows.append(f"{label}\t{text(label)}{second}")
        (folder / "transfer" / f"{name}.tsv").write_text("\n".join(rows) + "\n")


def write_collection(folder: Path, queries: int = 30, splits: tuple[str, ...] = ("train", "dev", "test")) -> Path:
    """A BEIR folder: the document of a query shares most of its words; splits take turns. Returns the folder."""
    (folder / "qrels").mkdir(parents=True)
    asked = texts(1, queries, seed=5)[0]
    answers = [f"{query} {other}" for query, other in zip(asked, texts(1, queries, seed=6)[0], strict=True)]
    documents = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(answers)]
    for name, rows in (("corpus", documents), ("queries", [{"_id": f"q{i}", "text": t} for i, t in enumerate(asked)])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for k, split in enumerate(splits):
        judged = "".join(f"q{i}\td{i}\t1\n" for i in range(k, queries, len(splits)))
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder
