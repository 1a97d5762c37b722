"""Training on ``SentenceTransformerTrainer`` with any objective, as runs that can be interrupted.

A run's folder holds ``model/``, an ordinary SentenceTransformer with its model card, beside what the store of runs
keeps. While it trains, ``checkpoints/`` holds the trainer's own; ``checkpoint.pt`` says which of them is whole.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler

import counterpoint as cp
from counterpoint.hyper import Real, nearest
from counterpoint.plugins.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss

from .. import store
from ..store.run import Run
from . import corpus, encode, framework, sts, transfer
from .data import STS, TRANSFER, Pairs, load_sts
from .noise import PerturbedContrastiveLoss, WordDropout

_Callback: Any = framework("transformers").TrainerCallback
_Evaluator: Any = framework("sentence_transformers.sentence_transformer.evaluation").SentenceEvaluator

DEFAULTS: dict[str, Any] = {
    "model": "bert-base-uncased",
    "revision": None,
    "pooling": None,
    "static": False,
    "head": "none",
    "positives": "auto",
    "columns": None,
    "views": None,
    "word_dropout": 0.0,
    "max_length": 32,
    "epochs": 1,
    "steps": None,
    "batch": 64,
    "mini_batch": None,
    "lr": 3e-5,
    "schedule": "linear",
    "warmup": 0.0,
    "weight_decay": 0.0,
    "negative_weight": 0.0,
    "epsilon": None,
    "mixed": 0,
    "precision": "fp32",
    "dev": "STSB-dev",
    "every": 125,
    "save": 125,
    "test": None,
    "keep": True,
    "device": "cpu",
}
"""What a cell's arguments are if it does not say otherwise: SimCSE's unsupervised script, in full precision."""

UNTRAINED = "before training"
HEADS = ("none", "training", "kept")
PRECISIONS = ("fp32", "bf16", "fp16")
SCHEDULES = ("linear", "constant", "cosine")
WHOLE = {"batch": 2, "epochs": 1, "every": 1, "save": 0, "max_length": 3, "steps": 1, "views": 2, "mini_batch": 1}
WHOLE |= {"mixed": 0}
REAL = {
    "lr": Real(low=0, open_low=True),
    "warmup": Real(low=0, high=1, open_high=True),  # the trainer takes 1 for a step, not for all of them
    "weight_decay": Real(low=0),
    "word_dropout": Real(low=0, high=1, open_high=True),
    "negative_weight": Real(),
    "epsilon": Real(low=0, open_low=True, optional=True),
}
COLLAPSED = -100.0  # the dev score of a model that has none; below every correlation, so that it is never the best


def cell(file: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run; what is not changed is as in :data:`DEFAULTS`.

    Args:
        file: what to train on, or a data set on the hub, see :func:`counterpoint.integrations.sentence.corpus.load`.
        objective: a spec; None for a model that is scored as it starts, see :func:`untrained`.
        seed: of everything.
        model, revision: a folder or a name on the hub.
        pooling: ``cls``, ``pooler``, ``mean`` or ``max``, for a checkpoint that is no SentenceTransformer.
        static: train the checkpoint's table of word pieces alone, a text being the mean of its pieces. Gradients of
            the table are sparse, and Adam moves only the rows of a batch's pieces (``torch.optim.SparseAdam``).
        head: SimCSE's dense layer and tanh over the embedding: ``none``, ``training`` only, or ``kept`` in the model.
        positives, columns: see :func:`counterpoint.integrations.sentence.corpus.load`.
        views: how often a single text is embedded; by default what the objective asks for, else 2.
        word_dropout: share of word pieces that each view leaves out. The model's own dropout is noise as well.
        max_length: word pieces in training; the finished model keeps its own limit. Static models have none.
        epochs, steps: length of training; ``steps`` wins.
        batch: samples per step. An epoch's last, smaller batch is left out.
        mini_batch: samples embedded at a time, with sentence-transformers' gradient cache; by default all.
        lr, schedule, warmup, weight_decay: of AdamW; ``warmup`` is a share of all steps.
        negative_weight: added to the logit of a sample's own hard negatives.
        epsilon, mixed: see :class:`counterpoint.integrations.sentence.noise.PerturbedContrastiveLoss`.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        dev: the STS set whose Spearman correlation chooses the checkpoint, looked at ``every`` so many steps and at
            the end; None for the last one.
        save: steps between checkpoints; 0 for none, then an interrupted run begins anew.
        test: STS sets and transfer tasks that the finished model is scored on.
        keep: whether ``model/`` is written.
        device: where it trains.
        label: what tables call the row.
    """
    store.check_names(changes, (*DEFAULTS, "label"))
    found = {**DEFAULTS, **changes, "domain": "sentence", "dataset": Path(file).name, "file": file}
    found |= {"objective": objective, "seed": seed}
    for name, options in (("head", HEADS), ("precision", PRECISIONS), ("schedule", SCHEDULES), ("dev", (None, *STS))):
        if found[name] not in options:
            hint = nearest(str(found[name]), [one for one in options if one])
            raise ValueError(f"unknown {name} {found[name]!r}.{hint}")
    for name, low in WHOLE.items():
        given = found[name]
        if not (given is None and DEFAULTS[name] is None) and (not isinstance(given, int) or given < low):
            raise ValueError(f"{name}: expected a whole number of at least {low}, got {given!r}.")
    for name, real in REAL.items():
        real.name = name
        real.check(found[name], "cell")
    for name in found["test"] or ():
        if name not in (*STS, *TRANSFER):
            raise ValueError(f"unknown test set {name!r}.{nearest(str(name), (*STS, *TRANSFER))}")
    if found["static"] and (found["head"] != "none" or found["weight_decay"] or found["precision"] != "fp32"):
        raise ValueError("static: a table alone takes no head, no weight decay, and fp32.")
    if found["precision"] == "fp16" and found["device"] == "cpu":
        raise ValueError("precision: fp16 needs a GPU; on a CPU take fp32 or bf16.")
    if str(found["device"]).startswith("cuda:") and found["device"] != "cuda:0":
        raise ValueError(
            f"device: the trainer takes the first GPU it sees; for {found['device']} set CUDA_VISIBLE_DEVICES."
        )
    if found["mini_batch"] is not None and (found["epsilon"] is not None or found["mixed"]):
        raise ValueError("mini_batch: the gradient cache does not know adversarial or mixed views.")
    return found


def untrained(file: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The cell of the model as it starts, a row to compare with."""
    return cell(file, None, seed, **{**changes, "head": "none", "label": UNTRAINED})


def train(run: Run) -> None:
    """Trains one cell and finishes its run with the dev score, or the last loss if there is no dev set."""
    given = run.arguments
    if given["objective"] is None:
        model = build(given)
        run.finish(tested(model, [*filter(None, [given["dev"]]), *(given["test"] or ())]))
        return
    data, left_out = corpus.load(given["file"], given["positives"], given["columns"])
    if len(data) < given["batch"]:
        raise ValueError(f"batch: {given['batch']} samples, but {given['file']} has only {len(data)}.")
    path = corpus.find(given["file"])
    run.data(store.checksum(path if path.is_file() else data._fingerprint))
    dev = load_sts(given["dev"]) if given["dev"] else None
    model = build(given)
    loss = make_loss(model, given)
    keeper = Store(run, loss.objective)
    trainer = _trainer(model, loss, data, dev, given, keeper)
    trainer.train(resume_from_checkpoint=keeper.resume())
    history = trainer.state.log_history
    result = {"loss": next((line["loss"] for line in reversed(history) if "loss" in line), math.nan)}
    if keeper.best is not None:
        model.load_state_dict(keeper.best["model"])
        result = {given["dev"]: keeper.best["score"]}
    if given["head"] == "training":
        del model[-1]
    if given["keep"]:
        model.save_pretrained(str(run.path / "model"))
    result |= tested(model, given["test"] or ())
    curve = [(line["step"], line[key]) for line in history if (key := f"eval_{given['dev']}") in line]
    run.finish(result, samples=len(data), left_out=left_out, step=keeper.best and keeper.best["step"], curve=curve)
    shutil.rmtree(keeper.folder, ignore_errors=True)


def tested(model: Any, names: Sequence[str]) -> dict[str, float]:
    """The model's scores on STS sets and transfer tasks, by name; with all of SimCSE's seven, their average too."""
    found: dict[str, float] = {}
    if sets := [name for name in names if name in STS]:
        report = sts.evaluate(model, sets, progress=False)
        found |= {name: math.nan if s.spearman is None else s.spearman for name, s in report.sets.items()}
        found |= {} if report.average is None else {"average": report.average}
    if tasks := [name for name in names if name in TRANSFER]:
        scores = transfer.evaluate(model, tasks, progress=False).tasks
        found |= {name: task.accuracy for name, task in scores.items()}
        found |= {f"{name} F1": task.f1 for name, task in scores.items() if task.f1 is not None}
    return found


# ---- its parts -----------------------------------------------------------------------------------


def build(given: dict[str, Any]) -> Any:
    """The SentenceTransformer of a cell as it starts; the seed fixes what is new in it."""
    store.seed_everything(given["seed"])
    how = {"device": given["device"], "revision": given["revision"]}
    # of a static model only the table is wanted, whatever would pool
    pooling = given["pooling"] or (
        "mean" if given["static"] and not encode.has_pooling(given["model"], given["revision"]) else None
    )
    model = encode.load(given["model"], pooling, **how)
    if given["static"]:
        model = static(model)
    if given["head"] != "none":
        width = model.get_embedding_dimension()
        weight, bias = torch.randn(width, width) * 0.02, torch.zeros(width)  # as BERT's own layers begin
        dense = framework("sentence_transformers.sentence_transformer.modules").Dense
        model.append(dense(width, width, init_weight=weight, init_bias=bias).to(model.device))
    if given["word_dropout"]:
        model.register_forward_pre_hook(WordDropout(given["word_dropout"]))
    return model


def static(model: Any) -> Any:
    """The mean of a model's own word-piece embeddings, without its layers, as a SentenceTransformer that can train."""
    embedding = framework("sentence_transformers.sentence_transformer.modules").StaticEmbedding
    layer = model[0].embedding if isinstance(model[0], embedding) else model[0].model.get_input_embeddings()
    table = layer.weight.detach().clone()
    pieces = embedding(model.tokenizer, embedding_weights=table)
    # the tokenizer's own limit is meant for the layers
    pieces.tokenizer.no_truncation()
    pieces.embedding.sparse = True
    return framework("sentence_transformers").SentenceTransformer(modules=[pieces], device=str(model.device))


def make_loss(model: Any, given: dict[str, Any]) -> ContrastiveLoss:
    """The loss of a cell."""
    objective = cp.objective(given["objective"])
    how = {"views": given["views"] or objective.views or 2, "negative_weight": given["negative_weight"]}
    if given["epsilon"] is not None or given["mixed"]:
        return PerturbedContrastiveLoss(model, objective, epsilon=given["epsilon"], mixed=given["mixed"], **how)
    if given["mini_batch"] is not None:
        return CachedContrastiveLoss(model, objective, mini_batch_size=given["mini_batch"], **how)
    return ContrastiveLoss(model, objective, **how)


class Batches(BatchSampler):
    """Shuffled batches that depend on nothing but the seed and the epoch, so that a resumed run sees the same ones."""

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool, seed: int = 0, **_: Any) -> None:
        super().__init__(range(len(dataset)), batch_size, drop_last)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        order = torch.randperm(len(self.sampler), generator=generator)  # type: ignore[arg-type]
        for batch in order.split(self.batch_size):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch.tolist()


class Dev(_Evaluator):  # type: ignore[misc]
    """Spearman's correlation on an STS set, as :mod:`counterpoint.integrations.sentence.sts` computes it."""

    def __init__(self, pairs: Pairs, given: dict[str, Any]) -> None:
        super().__init__()
        self.pairs, self.given, self.name, self.primary_metric = pairs, given, pairs.name, pairs.name

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        if self.given["head"] == "training":
            model = framework("sentence_transformers").SentenceTransformer(
                modules=list(model)[:-1], device=model.device
            )
        texts = [*self.pairs.first, *self.pairs.second]
        found = sts.score(self.pairs, encode.Embeddings(encode.encoder(model), texts, progress=False)).spearman
        metrics = {self.name: COLLAPSED if found is None else found}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        return "Semantic Similarity"


class Store(_Callback):  # type: ignore[misc]
    """Keeps the best weights, and a run's folder up to date, while the trainer works."""

    def __init__(self, run: Run, objective: nn.Module) -> None:
        self.run, self.objective, self.folder = run, objective, run.path / "checkpoints"
        self.best: dict[str, Any] | None = None
        self.ticks: Iterator[int] = iter(())

    def resume(self) -> str | None:
        """The checkpoint to go on from."""
        state = self.run.load()
        if state is None:
            shutil.rmtree(self.folder, ignore_errors=True)  # what no record says is whole
            return None
        self.objective.load_state_dict(state["objective"])
        self.best = state["best"]
        return str(self.folder / state["trainer"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ticks = self.run.track(range(state.global_step, state.max_steps), total=state.max_steps)
        next(self.ticks, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        next(self.ticks, None)
        last = state.global_step >= state.max_steps  # which may be no multiple of the others
        control.should_evaluate |= last and args.eval_strategy.value != "no"
        # the trainer forgets the losses since the last line, so a checkpoint begins a new one
        control.should_log |= last or control.should_save

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "train_runtime" in logs:  # the trainer's last words are about the steps of this process only
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        self.run.log(state.global_step, **numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], model: Any, **_: Any) -> None:
        found = metrics[f"eval_{self.run.arguments['dev']}"]
        if self.best is None or found > self.best["score"]:
            weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            self.best = {"score": found, "step": state.global_step, "model": weights}

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        name = f"checkpoint-{state.global_step}"
        record = {"trainer": name, "objective": self.objective.state_dict(), "best": self.best}
        self.run.save(record, state.global_step)


def _trainer(
    model: Any, loss: ContrastiveLoss, data: Any, dev: Pairs | None, given: dict[str, Any], store: Store
) -> Any:
    st = framework("sentence_transformers")
    arguments = st.SentenceTransformerTrainingArguments(
        output_dir=str(store.folder),
        num_train_epochs=given["epochs"],
        max_steps=given["steps"] or -1,
        per_device_train_batch_size=given["batch"],
        batch_sampler=Batches,
        dataloader_drop_last=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        learning_rate=given["lr"],
        lr_scheduler_type=given["schedule"],
        warmup_steps=given["warmup"],
        weight_decay=given["weight_decay"],
        fp16=given["precision"] == "fp16",
        bf16=given["precision"] == "bf16",
        use_cpu=given["device"] == "cpu",
        seed=given["seed"],
        eval_strategy="steps" if dev else "no",
        eval_steps=given["every"],
        save_strategy="steps" if given["save"] else "no",
        save_steps=given["save"] or 1,
        save_total_limit=2,  # the last, and the one before it until the last is known to be whole
        logging_steps=min(given["every"], 50),
        disable_tqdm=True,
        report_to="none",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # it would take all that it sees, with a batch for each
    collator = framework("sentence_transformers.sentence_transformer.data_collator").SentenceTransformerDataCollator
    sparse = None
    if given["static"]:
        if next(loss.objective.parameters(), None) is not None:
            raise ValueError(f"static: {loss.objective} has learned values, which sparse Adam cannot move.")
        arguments.max_grad_norm = 0.0  # norms of sparse gradients cannot be had
        sparse = torch.optim.SparseAdam(list(model.parameters()), lr=given["lr"])
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        loss=loss,
        evaluator=Dev(dev, given) if dev else None,
        data_collator=collator(preprocess_fn=model.preprocess, max_length=given["max_length"]),
        callbacks=[store],
        optimizers=(sparse, None),
    )
    trainer.remove_callback(framework("transformers").PrinterCallback)
    if not given["keep"]:
        card = framework("sentence_transformers.sentence_transformer.model_card").SentenceTransformerModelCardCallback
        trainer.remove_callback(card)
    return trainer
