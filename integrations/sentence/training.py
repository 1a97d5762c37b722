"""Training on ``SentenceTransformerTrainer`` with any objective, as runs that can be interrupted.

A run's folder contains ``model/``, an ordinary SentenceTransformer with its model card. During training,
``checkpoints/`` contains the trainer's own; ``checkpoint.pt`` says which of them is complete.
"""

from __future__ import annotations

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import math
import shutil
from pathlib import Path
from typing import Any

from counterpoint.batch.rules import as_rules

from .. import store
from ..domain import defaults
from ..store.run import Run
from . import encode
from .data import prepare
from .evaluation import DevScore, defined, evaluate
from .model import build, make_loss
from .settings import OPTIONAL, Settings, check_settings
from .trainer import RunCallback, make_trainer

UNTRAINED = "before training"


def cell(file: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the arguments of one run: the defaults of :class:`Settings`, changed, and ``label``, its row in tables.

    Args:
        file: the training data; see :func:`counterpoint.integrations.sentence.data.load`, also for the settings
            ``positives`` and ``columns``.
        objective: a spec; None for a model that is not trained, see :func:`untrained`.
        static: gradients are sparse; Adam updates only the rows of a batch's pieces (``torch.optim.SparseAdam``).
        max_length: the finished model keeps its own limit. Static models have none.
        batch: an epoch's last, smaller batch is dropped.
        epsilon, mixed: see :class:`counterpoint.integrations.sentence.noise.PerturbedContrastiveLoss`.
        dev: the score is computed every ``every`` steps and at the end.
        save: without checkpoints, an interrupted run starts again.
        keep: whether to write ``model/``.
    """
    settings = defaults(Settings)
    store.check_names(changes, (*settings, "label"))
    arguments = {**settings, **changes, "domain": "sentence", "dataset": Path(file).name, "file": file}
    arguments |= {"objective": objective, "seed": seed}
    check_settings(arguments)
    as_rules(arguments["false_negatives"])
    return {name: value for name, value in arguments.items() if value is not None or name not in OPTIONAL}


def untrained(file: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the cell of the model before training, a baseline."""
    return cell(file, None, seed, **{**changes, "head": "none", "label": UNTRAINED})


@encode.quiet()
def train(run: Run) -> None:
    """Train one cell and finish its run with the dev score, or with the last loss if there is no dev set."""
    arguments = run.arguments
    dev = DevScore(arguments["dev"], arguments["head"] == "training") if arguments["dev"] else None
    test = arguments["test"] or ()
    if arguments["objective"] is None:
        model = build(arguments)
        result = {dev.name: defined(dev.score(model))} if dev else {}
        scores, shares = evaluate(model, test)
        run.finish(result | scores, majority=shares)
        return
    samples, dropped, checksum = prepare(arguments)
    run.data(checksum)
    model = build(arguments)
    loss = make_loss(model, arguments)
    callback = RunCallback(run, loss.objective, dev)
    trainer = make_trainer(model, loss, samples, callback)
    trainer.train(resume_from_checkpoint=callback.resume())
    history, best, curve = trainer.state.log_history, callback.best, []
    if dev and best is not None:
        model.load_state_dict(best["model"])
        result = {dev.name: best["score"]}
        curve = [(line["step"], line[key]) for line in history if (key := f"eval_{dev.name}") in line]
    else:
        result = {"loss": next((line["loss"] for line in reversed(history) if "loss" in line), math.nan)}
    if arguments["head"] == "training":
        del model[-1]
    if arguments["keep"]:
        model.save_pretrained(str(run.path / "model"))
        _link(run.path / "model", run.path / "encoder.safetensors")
    scores, shares = evaluate(model, test)
    details = {"samples": len(samples), "left_out": dropped, "step": best and best["step"], "curve": curve}
    run.finish(result | scores, **details, majority=shares)
    shutil.rmtree(callback.folder, ignore_errors=True)


def _link(model: Path, encoder: Path) -> None:
    """Give the weights of a model's first module another name, without copying them where the disk allows that."""
    weights = min(model.rglob("model.safetensors"), key=lambda path: len(path.parts))
    encoder.unlink(missing_ok=True)
    try:
        encoder.hardlink_to(weights)
    except OSError:
        shutil.copyfile(weights, encoder)


def restore(run: Run | str | Path) -> Any:
    """Return the trained SentenceTransformer of a finished run or of its folder; needs no data."""
    run = Run.read(run)
    if run.mirror is not None:
        run.mirror.fetch_folder("model")
    if not (run.path / "model").is_dir():
        raise ValueError(f"{run.address}: it has no model.")
    return encode.load(run.path)
