"""The table of all commands. Their modules are imported when they are needed."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any


class Command:
    """A command.

    Args:
        place: the module with ``add_arguments`` and ``command``; MODULE:PREFIX for ``PREFIX_arguments`` and so on.
        help: what the command does.
        examples: at most five, without ``counterpoint``.
        script: whether it runs the user's own script, whose errors are passed on unchanged.
        more: further arguments of both functions.
    """

    def __init__(self, place: str, help: str, *examples: str, script: bool = False, more: Sequence[str] = ()) -> None:
        self.module, _, prefix = place.partition(":")
        self.names = (f"{prefix}_arguments", f"{prefix}_command") if prefix else ("add_arguments", "command")
        self.help, self.examples, self.script, self.more = help, examples, script, more

    def _call(self, name: str, argument: argparse.ArgumentParser | argparse.Namespace) -> Any:
        return getattr(import_module(self.module, __package__), name)(argument, *self.more)

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        self._call(self.names[0], parser)

    def run(self, arguments: argparse.Namespace) -> int:
        return int(self._call(self.names[1], arguments))


SEARCH = "search the parameters of objectives for {}, on validation data"
GROUPS = {
    "train": "train an encoder of a domain, with any objective",
    "tune": "find the settings of objectives, with equal budgets",
    "eval": "evaluate an encoder",
}
# a name of two words is a command within a group, such as "train"
COMMANDS = {
    "demo": Command(
        ".demo",
        "every domain and six objectives on data that needs no download: a table and a page, in minutes",
        "demo                                         all domains, five seeds: demo/report.html",
        "demo --domains graph image --seeds 8         more seeds find smaller differences",
        'demo --objective infonce:t=0.2 "hcl:t=0.2,beta=2" --out mine',
    ),
    "objectives": Command(
        ".objectives",
        "list the objectives: formula, parameters with defaults and ranges, paper",
        "objectives                                   all of them",
        "objectives adnce                             one in full",
        'objectives "hcl:beta=2" --plot w.png         and the weights it gives to negatives',
    ),
    "advise": Command(
        "..advise.commands",
        "measure your data or embeddings and say what to try, with the evidence",
        "advise a.npy b.npy                           two views of the same samples",
        "advise a.npy b.npy --ids labels.txt --negatives hard.npy --negative-ids hard_ids.npy",
        "advise ./my_photos                           a folder per class, or without classes",
    ),
    "inject": Command(
        "counterpoint.plugins.inject",
        "run an unmodified training script with another objective in place of its loss",
        "inject --list                                the code bases it knows",
        'inject simcse --objective "adnce:mu=0.4,t=0.07" -- train.py --model_name_or_path ...',
        "inject logits --site train.py:42 --scale 10 --objective hcl:t=0.1 -- train.py     any cross entropy",
        script=True,
    ),
    "compare": Command(
        "..compare.commands",
        "compare objectives in an unmodified training script: an A/B test with seeds and verdicts",
        "compare auto --objective host hcl --seed-flag --seed --metric json:r.json:acc --jobs 2 -- train.py {out}",
        "compare lightly --objective host hcl --set-seed --metric script:score.py:knn -- simclr.py",
        "compare auto --objective host hcl --tune 6 --tune-metric json:r.json:dev --metric json:r.json:test ...",
    ),
    "race": Command(
        "..compare.race_commands",
        "find the best setting for an unmodified training script at equal compute",
        "race auto --metric json:r.json:acc --steps-flag --steps --seed-flag --seed -- train.py --steps 400",
        "race auto --metric 'output:nDCG: ([.\\d]+)' --steps-flag --max_steps --set-seed -- train.py --max_steps 900",
    ),
    "train graph": Command(
        "..graph.commands:train",
        "pre-train a graph encoder without labels (GraphCL) with any objectives, and compare them",
        "train graph                                  on generated graphs, in seconds",
        'train graph --data PROTEINS --objective "adnce:t=0.05,mu=1.5" --seeds 5',
        "train graph --data MUTAG --preset adnce --protocol official",
        "train graph --config runs/graph/MUTAG/NAME/seed0/run.json --out again",
    ),
    "train image": Command(
        "..image.commands:train",
        "pre-train an image encoder without labels (SimCLR, MoCo) with any objectives, and compare them",
        "train image                                  on embedded digits, in seconds",
        'train image --data cifar10 --objective "adnce:t=0.4,mu=0.7,sigma=0.5" --backbone resnet18',
        'train image --data ./my_photos --method moco --objective "arcl(infonce:t=0.2)" --views 4',
        "train image --data cifar10 --preset intnacl --probe linear robust --device cuda",
    ),
    "train sentence": Command(
        "..sentence.commands:train",
        "train sentence embeddings with any objective (SimCSE, quick-thought), from a paper's recipe or your own",
        "train sentence --data wiki1m.txt --preset adnce-bert --device cuda",
        'train sentence --data nli.csv --preset simcse-bert-supervised --objective "hcl:t=0.05"',
        "train sentence --data book.txt --positives next-sentence --model all-MiniLM-L6-v2 --lr 1e-5",
    ),
    "train control": Command(
        "..control.commands:train",
        "learn to control from pixels (CURL on dm_control's suite) with any objectives, and compare them",
        'train control --task cartpole-swingup --objective "infonce:t=1 + 0.1*dp" --steps 100000 --seed 1',
        "train control --task walker-walk --objective infonce:t=1 adnce --seeds 3 --device cuda",
    ),
    **{
        f"tune {domain}": Command("..search.commands", SEARCH.format(what), f"tune {domain} {example}", more=(domain,))
        for domain, what, example in (
            ("graph", "a graph encoder", "--objective infonce hcl --budget 10 --grid t=0.1,0.2,0.5 --jobs 2"),
            ("image", "an image encoder", "--data cifar10 --objective adnce --budget 20 --epochs 50 --device cuda"),
            ("sentence", "sentence embeddings", "--data wiki1m.txt --preset adnce-bert --objective adnce --budget 20"),
            ("control", "learning to control from pixels", "--task cartpole-swingup --objective adnce --budget 10"),
        )
    },
    "eval graph": Command(
        "..graph.commands:eval",
        "evaluate the encoders of graph runs on a TU data set",
        "eval graph runs/graph/PROTEINS --probe svm logreg knn",
        "eval graph runs --data PROTEINS --json",
    ),
    "eval image": Command(
        "..image.commands:eval",
        "evaluate the encoders of image runs: linear, kNN, attacked, shifted",
        "eval image runs/image/cifar10 --probe linear,knn,robust,shifted",
        "eval image runs --data cifar100 --probe linear --json       transfer to another data set",
    ),
    "eval sts": Command(
        "..sentence.commands:sts",
        "score a model on semantic textual similarity, as SimCSE reports it",
        "eval sts sentence-transformers/all-MiniLM-L6-v2",
        "eval sts runs/sentence/wiki.txt/NAME/seed0 --root SentEval",
    ),
    "eval transfer": Command(
        "..sentence.commands:transfer",
        "score a model on SentEval's classification tasks",
        "eval transfer sentence-transformers/all-MiniLM-L6-v2 --root DATA --jobs 2",
    ),
    "eval retrieval": Command(
        "..sentence.commands:retrieval",
        "score a model on retrieval collections: nDCG@10, MRR@10, recall",
        "eval retrieval sentence-transformers/all-MiniLM-L6-v2 --data ./my_beir_folder",
        "eval retrieval runs/sentence/pairs.csv/NAME/seed0 --data nano:msmarco nano:nq --json",
    ),
    "eval mteb": Command(
        "..sentence.commands:mteb",
        "score a model on tasks and benchmarks of mteb",
        "eval mteb sentence-transformers/all-MiniLM-L6-v2 --tasks STS16 Banking77Classification",
        'eval mteb runs/sentence/pairs.csv/NAME/seed0 --tasks "MTEB(eng, v2)" --out mteb --device cuda',
    ),
    "eval control": Command(
        "..control.commands:eval",
        "evaluate trained control agents",
        "eval control runs/control/cartpole-swingup --episodes 10",
    ),
    "report": Command(
        ".report",
        "compare folders of runs: tables, tests, summaries and plots, next to the papers' numbers",
        "report runs/                                 of the first result that the runs have",
        'report runs/ --baseline "infonce:t=0.2" --metric accuracy',
        "report runs/ --format markdown               for a README; json for programs",
    ),
    "push": Command(
        "..hub.commands:push",
        "publish the encoder of a run on the Hugging Face hub, with a model card",
        "push runs/image/cifar10/NAME/seed0 me/cifar10-adnce",
        "push runs/graph/MUTAG/NAME/seed0 me/mutag --folder published    only look at what would be pushed",
    ),
    "doctor": Command(
        ".doctor",
        "check what this installation can run, and what to install for the rest",
        "doctor                                       versions, extras, GPU, renderer",
    ),
}
