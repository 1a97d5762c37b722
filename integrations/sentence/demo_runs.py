"""The part of sentences in ``counterpoint demo``: SimCSE's loss, scored by Spearman's correlation."""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
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
from .evaluation import defined

COMMON = {"t": "0.1", "denominator": ""}
SETTINGS: dict[str, Any] = {"steps": 60, "batch": 64}
QUICK: dict[str, Any] = {"steps": 4}


def cell(objective: str | None, seed: int, **settings: Any) -> dict[str, Any]:
    """Return the cell of an objective; None for the encoder before training."""
    untrained = {"label": "untrained encoder", "steps": 0} if objective is None else {}
    shared = {"domain": "sentence", "dataset": "synthetic", "seed": seed, **settings}
    return {**shared, "objective": objective, **untrained}


def train(run: Run, cache: Path, count: int) -> None:
    """Train one cell, score it, and keep the embeddings of some sentences."""
    seed = run.arguments["seed"]
    run.load()  # clears the log of an interrupted run, which starts again as it takes seconds
    model, pairs = synthetic.model(seed), synthetic.scored(600, seed)
    if run.arguments["steps"]:
        _fit(run, model)
    score = sts.score(pairs, encode.Embeddings(model, pairs.texts)).spearman
    texts, labels, names = synthetic.labelled(count, seed)
    run.keep(encode.encoder(model)(texts), labels, names, "who the sentence is about")
    run.finish({"Spearman": defined(score)})


def _fit(run: Run, model: Any) -> None:
    """Train with ``SentenceTransformerTrainer`` as a user would."""
    spec, seed, steps, batch = (run.arguments[name] for name in ("objective", "seed", "steps", "batch"))
    views = cp.objective(spec).views or 2
    with tempfile.TemporaryDirectory() as folder:
        training = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=0.03,
            logging_steps=max(1, steps // 20),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=seed,
        )
        loss = ContrastiveLoss(model, spec, views=views, log_terms=False)
        model.model_card_data.widget = [{"text": "none"}]  # no card is written, so do not choose examples for it
        samples = Dataset.from_dict(synthetic.positives(steps * batch, seed, views))
        trainer = SentenceTransformerTrainer(model=model, args=training, train_dataset=samples, loss=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            run.log(line["step"], loss=line["loss"])
