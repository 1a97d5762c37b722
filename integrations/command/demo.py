"""``counterpoint demo``: the objectives side by side in every domain, on data that needs no download, in minutes.

======== ====================================================================================================
graph    six kinds of random graphs, GraphCL; a linear SVM on embeddings, three folds
image    scikit-learn's digits, SimCLR; nearest neighbours on digits of other writers
sentence synthetic sentences whose similarity is known, SimCSE's loss; Spearman's correlation x 100
control  frames of a simulated cart-pole, CURL's term; R^2 of the simulator's state on episodes not trained on
======== ====================================================================================================

Nothing is tuned: in a domain all objectives have the same temperature, and all else is their default. Runs are kept in
the store, so that a demo that was stopped goes on. What this shows is what the library does, not which objective wins.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .. import report, store
from ..store.run import Run
from . import flags

UNTRAINED = "untrained encoder"
ROWS = {  # {t} is the domain's temperature, {d} its denominator
    "InfoNCE": "infonce:t={t}{d}",
    "ADNCE": "adnce:t={t}{d}",
    "DCL": "dcl:t={t}{d}",
    "HCL": "hcl:t={t}{d}",
    "InfoNCE + DP": "infonce:t={t}{d} + 0.1*dp",
    "ArCL, 4 views": "arcl(infonce:t={t}{d}):views=4",
}
SHARED: dict[str, dict[str, str]] = {
    "graph": {"t": "0.2", "d": ",denominator=negatives"},
    "image": {"t": "0.2", "d": ""},
    "sentence": {"t": "0.1", "d": ""},
    "control": {"t": "0.2", "d": ""},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "graph": {"epochs": 12, "folds": 3},
    "image": {"backbone": "conv4", "channels": 8, "epochs": 12, "batch": 128, "probe": ["knn"]},
    "sentence": {"steps": 60, "batch": 64},
    "control": {"episodes": 40, "length": 20, "updates": 80, "scores": "cosine"},
}
QUICK: dict[str, dict[str, Any]] = {
    "graph": {"epochs": 1},
    "image": {"epochs": 1},
    "sentence": {"steps": 4},
    "control": {"episodes": 8, "length": 6, "updates": 4, "batch": 8},
}
TASK = "cartpole-swingup"
KEPT = 300  # embeddings of a run, for the pictures
MOST_JOBS = 4
INTRO = (
    "Each objective in each domain, on data that needs no download. Nothing is tuned: in a domain all objectives have "
    "the same temperature, and all else is their default. The sentences, graphs and robots are synthetic."
)


def cells(
    domain: str, objectives: dict[str, str], seeds: Sequence[int], quick: bool = False
) -> Iterator[dict[str, Any]]:
    """The runs of a domain: the encoder as it starts, and every objective, with every seed."""
    settings = SETTINGS[domain] | (QUICK[domain] if quick else {})
    for seed in seeds:
        if domain == "sentence":
            base = {"domain": domain, "dataset": "synthetic", "seed": seed, **settings}
            yield {**base, "objective": None, "label": UNTRAINED, "steps": 0}
        elif domain == "control":
            representation = import_module("counterpoint.integrations.control.representation")
            make = partial(representation.cell, TASK, seed=seed, **settings)
            yield make(None, label=representation.UNTRAINED)
        else:
            training = import_module(f"counterpoint.integrations.{domain}.training")
            dataset = {"graph": "demo", "image": "digits"}[domain]
            make = partial(training.cell, dataset, seed=seed, **settings)
            yield training.untrained(dataset, seed, **settings)
        for label, template in objectives.items():
            spec = template.format(**SHARED[domain])
            named = {} if label == template else {"label": label}
            yield {**base, "objective": spec, **named} if domain == "sentence" else make(spec, **named)


def check(domain: str) -> None:
    """Raises what keeps a domain from running here."""
    import_module(f"counterpoint.integrations.{domain}")
    if domain == "control":
        import_module("counterpoint.integrations.control.environment").check_frames()
    elif domain == "sentence":
        import_module("counterpoint.integrations.sentence.training")


# ---- training ----------------------------------------------------------------------------------


def train(run: Run, cache: Path) -> None:
    """Trains one cell of any domain, and keeps embeddings of some samples; ``cache`` is where frames are kept."""
    TRAIN[run.arguments["domain"]](run, cache)


def _graph(run: Run, cache: Path) -> None:
    from ..graph import embed, training
    from ..graph.data import KINDS

    training.train(run)
    data = training.prepared(run.arguments)[0]
    model = training.build(run.arguments, data)
    model.load_state_dict(_last(run)["model"])
    run.keep(embed(model.encoder, data)[:KEPT], data.y[:KEPT], KINDS, "kind of graph")


def _image(run: Run, cache: Path) -> None:
    from ..image import training
    from ..image.evaluation import features

    training.train(run)
    test = training.prepare(run.arguments).test
    z = features(training.restore(run).encoder, test.x[:KEPT])
    run.keep(z, test.y[:KEPT], test.classes, "digit")


def _sentence(run: Run, cache: Path) -> None:
    from ..sentence import encode, sts, synthetic

    given = run.arguments
    run.load()  # nothing was saved, for it takes seconds: an interrupted run begins again
    learner = synthetic.model(given["seed"])
    if given["steps"]:
        _learn_sentences(run, learner)
    embed, pairs = encode.encoder(learner), synthetic.scored(600, given["seed"])
    found = sts.score(pairs, encode.Embeddings(embed, [*pairs.first, *pairs.second], progress=False)).spearman
    texts, labels, names = synthetic.labelled(KEPT, given["seed"])
    run.keep(embed(texts), labels, names, "who the sentence is about")
    run.finish({"Spearman": math.nan if found is None else found})


def _learn_sentences(run: Run, learner: Any) -> None:
    """With the trainer and the loss as anyone would use them."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers import PrinterCallback

    import counterpoint as cp
    from counterpoint.plugins.sentence_transformers import ContrastiveLoss

    from ..sentence import synthetic

    given = run.arguments
    views = cp.objective(given["objective"]).views or 2
    data = Dataset.from_dict(synthetic.positives(given["steps"] * given["batch"], given["seed"], views))
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=given["batch"],
            learning_rate=0.03,
            logging_steps=max(1, given["steps"] // 20),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=given["seed"],
        )
        loss = ContrastiveLoss(learner, given["objective"], views=views, log_terms=False)
        learner.model_card_data.widget = [{"text": "none"}]  # a card is not written: nothing to choose for it
        trainer = SentenceTransformerTrainer(model=learner, args=settings, train_dataset=data, loss=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            run.log(line["step"], loss=line["loss"])


def _control(run: Run, cache: Path) -> None:
    from ..control import representation

    data, stack, x, x_new = representation.learned(run, cache)
    result, details = representation.judge(data, stack, x, x_new)
    place = data.targets(stack, data.held_out)[:KEPT, 0].contiguous()
    quarter = torch.bucketize(place, place.quantile(torch.tensor([0.25, 0.5, 0.75])))
    run.keep(x_new[:KEPT], quarter, "1234", f"quarter of {data.names[0]}, from the lowest")
    run.finish(result, **details)


TRAIN: dict[str, Callable[[Run, Path], None]] = {
    "graph": _graph,
    "image": _image,
    "sentence": _sentence,
    "control-representation": _control,
}


def _last(run: Run) -> dict[str, Any]:
    state = run.load()
    assert state is not None  # a run that is done has saved
    return state


# ---- counterpoint demo -------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_arguments(parser, None)
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.set_defaults(objective=None, seeds=3, out=Path("demo"), jobs=jobs)
    parser._option_string_actions["--objective"].help = f"one or more ({', '.join(ROWS)})"
    add = parser.add_argument
    add("--domains", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME", help=", ".join(SETTINGS))
    add("--quick", action="store_true", help="a few steps of everything, to see that it runs; the numbers mean nothing")


def command(given: argparse.Namespace) -> int:
    """Runs what can run here, prints the table, and leaves ``report.html`` and ``results.json``."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices this small only lose by being shared between cores
    torch.set_num_threads(1)
    seeds = range(given.seed, given.seed + given.seeds)
    objectives = ROWS if given.objective is None else {spec: spec for spec in given.objective}
    asked: list[dict[str, Any]] = []
    notes: list[str] = []
    for domain in given.domains:
        try:
            check(domain)
            asked += cells(domain, objectives, seeds, given.quick)
        except (ImportError, OSError) as error:
            notes.append(f"{domain} is left out: {error}")
            print(notes[-1], file=sys.stderr)
    if not asked:
        raise ImportError("nothing of the demo can run here; counterpoint doctor says what is missing.")
    how = {"jobs": given.jobs, "resume": given.resume, "progress": not given.json}
    done = store.run_grid(partial(train, cache=given.out / "frames"), asked, given.out / "runs", **how)
    found = report.summarise(done)
    found.notes[:0] = notes + ["With --quick: the numbers mean nothing."] * given.quick
    paths = report.write(found, given.out, formats=("html",), title="counterpoint demo", intro=INTRO, pictures=False)
    results = report.RENDER["json"](found)
    with store.atomic(given.out / "results.json") as file:
        file.write(results.encode() + b"\n")
    print(results if given.json else report.terminal(found))
    for path in (*paths, given.out / "results.json"):
        print(f"wrote {path}", file=sys.stderr)
    return 0
