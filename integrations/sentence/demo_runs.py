"""The part of sentences in ``counterpoint demo``: SimCSE's loss, scored by Spearman's correlation."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import PrinterCallback

import counterpoint as cp
from counterpoint.plugins.sentence_transformers import ContrastiveLoss

from ..store.run import Run
from . import encode, sts, synthetic

COMMON = {"t": "0.1", "denominator": ""}
SETTINGS: dict[str, Any] = {"steps": 60, "batch": 64}
QUICK: dict[str, Any] = {"steps": 4}


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """The cell of an objective; None for the encoder before training."""
    untrained = {"label": "untrained encoder", "steps": 0} if objective is None else {}
    shared = {"domain": "sentence", "dataset": "synthetic", "seed": seed, **settings}
    return {**shared, "objective": objective, **untrained}


def train(run: Run, cache: Path, count: int) -> None:
    """Train one cell, score it, and keep the embeddings of some sentences."""
    arguments = run.arguments
    run.load()  # clears the log of an interrupted run, which starts again as it takes seconds
    model = synthetic.model(arguments["seed"])
    if arguments["steps"]:
        _fit(run, model)
    embed, pairs = encode.encoder(model), synthetic.scored(600, arguments["seed"])
    score = sts.score(pairs, encode.Embeddings(embed, [*pairs.first, *pairs.second], progress=False)).spearman
    texts, labels, names = synthetic.labelled(count, arguments["seed"])
    run.keep(embed(texts), labels, names, "who the sentence is about")
    run.finish({"Spearman": math.nan if score is None else score})


def _fit(run: Run, model: Any) -> None:
    """Train with ``SentenceTransformerTrainer`` as a user would."""
    arguments = run.arguments
    views = cp.objective(arguments["objective"]).views or 2
    samples = Dataset.from_dict(synthetic.positives(arguments["steps"] * arguments["batch"], arguments["seed"], views))
    with tempfile.TemporaryDirectory() as folder:
        training = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=arguments["batch"],
            learning_rate=0.03,
            logging_steps=max(1, arguments["steps"] // 20),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=arguments["seed"],
        )
        loss = ContrastiveLoss(model, arguments["objective"], views=views, log_terms=False)
        model.model_card_data.widget = [{"text": "none"}]  # no card is written, so do not choose examples for it
        trainer = SentenceTransformerTrainer(model=model, args=training, train_dataset=samples, loss=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            run.log(line["step"], loss=line["loss"])
