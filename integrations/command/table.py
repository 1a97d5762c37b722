"""The table of all commands. Their modules are imported when they are needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command: its help, its arguments, the function that runs it and returns the exit code, and examples.

    A command that runs the user's own ``script`` passes that script's errors on unchanged.
    """

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: str
    script: bool = False


def _lazy(module: str, function: str, *more: str) -> Callable[..., Any]:
    """Return a function that imports ``module`` when it is called, and passes ``more`` on to ``function``."""

    def call(argument: Any) -> Any:
        return getattr(import_module(module, __package__), function)(argument, *more)

    return call


def _of(module: str, prefix: str = "") -> tuple[Callable[..., None], Callable[..., int]]:
    """The functions of a module that add a command's arguments and that run it."""
    names = (f"{prefix}_arguments", f"{prefix}_command") if prefix else ("add_arguments", "command")
    return _lazy(module, names[0]), _lazy(module, names[1])


# a name of two words is a command within a group, such as "train"
COMMANDS = {
    "objectives": Command(
        "list the objectives: formula, parameters with defaults and ranges, paper",
        *_of(".objectives"),
        """\
  counterpoint objectives                                   all of them
  counterpoint objectives adnce                             one in full
  counterpoint objectives "hcl:beta=2" --plot w.png         and the weights it gives to negatives
  counterpoint objectives infonce adnce --plot w.png        two of them compared
  counterpoint objectives --json                            for programs
""",
    ),
    "inject": Command(
        "run an unmodified training script with another objective in place of its loss",
        *_of("counterpoint.plugins.inject"),
        """  counterpoint inject --list                                the code bases it knows
  counterpoint inject simcse --objective "adnce:mu=0.4,t=0.07" -- train.py --model_name_or_path ...
  counterpoint inject graphcl --objective hcl --verify 5 -- gsimclr.py --DS PROTEINS --lr 0.01
  counterpoint inject logits --site train.py:42 --scale 10 --objective hcl:t=0.1 -- train.py     any cross entropy
""",
        script=True,
    ),
    "compare": Command(
        "compare objectives in an unmodified training script: an A/B test with seeds and verdicts",
        *_of("..compare.commands"),
        """\
  counterpoint compare graphcl --objectives host hcl --seed-flag --seed --metric 'output:acc (.+)' -- gsimclr.py
  counterpoint compare auto --objectives host hcl --seed-flag --seed --metric json:r.json:acc --jobs 2 -- train.py {out}
  counterpoint compare lightly --objectives host hcl --set-seed --metric script:score.py:knn -- simclr.py
  counterpoint compare auto --objectives host hcl --tune 6 --tune-metric json:r.json:dev --metric json:r.json:test ...
""",
    ),
    "train graph": Command(
        "pre-train a graph encoder without labels (GraphCL) with any objectives, and compare them",
        *_of("..graph.commands", "train"),
        """\
  counterpoint train graph                                  on embedded graphs, in seconds
  counterpoint train graph --dataset PROTEINS --objective "adnce:t=0.05,mu=1.5" --seeds 5
  counterpoint train graph --dataset MUTAG --preset adnce --protocol official
  counterpoint train graph --config runs/graph/MUTAG/NAME/seed0/run.json --out again
""",
    ),
    "eval tu": Command(
        "evaluate the encoders of runs on a TU data set",
        *_of("..graph.commands", "eval"),
        """\
  counterpoint eval tu runs/graph/PROTEINS --probe svm logreg knn
  counterpoint eval tu runs --dataset PROTEINS --json
""",
    ),
    "report": Command(
        "compare folders of runs: tables, tests, summaries and plots, next to the papers' numbers",
        *_of(".report"),
        """  counterpoint report runs/                                 of the first result that the runs have
  counterpoint report runs/ --baseline "infonce:t=0.2" --metric accuracy
  counterpoint report runs/ other/ --metric STS-B --metric SICK-R --out report
  counterpoint report runs/ --format markdown               for a README; csv and json for programs
""",
    ),
    "train control": Command(
        "learn to control from pixels (CURL on dm_control's suite) with any objectives, and compare them",
        *_of("..control.commands", "train"),
        """\
  counterpoint train control --task cartpole-swingup --objective "infonce:t=1 + 0.1*dp" --steps 100000 --seed 1
  counterpoint train control --task walker-walk --objective infonce:t=1 adnce --seeds 3 --device cuda
  counterpoint train control --task cartpole-balance --observe state --steps 20000     plain SAC, in minutes
""",
    ),
    "eval control": Command(
        "evaluate trained control agents",
        *_of("..control.commands", "eval"),
        """\
  counterpoint eval control runs/control/cartpole-swingup --episodes 10
  counterpoint eval control runs/control/cartpole-swingup/NAME/seed1 --video swingup.mp4 --representation frames
""",
    ),
    "demo": Command(
        "every domain and six objectives on data that needs no download: a table and a page, in minutes",
        *_of(".demo"),
        """\
  counterpoint demo                                         all domains, five seeds: demo/report.html
  counterpoint demo --domains graph image --seeds 8         more seeds find smaller differences
  counterpoint demo --objective infonce:t=0.2 "hcl:t=0.2,beta=2" --out mine
  counterpoint demo --quick                                 only to check that everything runs
""",
    ),
    "advise": Command(
        "measure your data or embeddings and say what to try, with the evidence",
        *_of("..advise.commands"),
        """  counterpoint advise a.npy b.npy                           two views of the same samples
  counterpoint advise a.npy b.npy --ids labels.txt --negatives hard.npy --negative-ids hard_ids.npy
  counterpoint advise pairs.tsv --model sentence-transformers/all-MiniLM-L6-v2 --json
  counterpoint advise ./my_photos                           a folder per class, or without classes
""",
    ),
    **{
        f"tune {domain}": Command(
            f"search the parameters of objectives for {what}, on validation data",
            _lazy(".tune", "add_arguments", domain),
            _lazy(".tune", "command", domain),
            examples,
        )
        for domain, what, examples in (
            (
                "sentence",
                "sentence embeddings",
                """\
  counterpoint tune sentence --data wiki1m.txt --preset adnce-bert --objective adnce:t=0.05 --budget 20
""",
            ),
            (
                "graph",
                "a graph encoder",
                """\
  counterpoint tune graph --dataset MUTAG --objective adnce --budget 20 --jobs 2
  counterpoint tune graph --objective infonce hcl --budget 10 --grid t=0.1,0.2,0.5     the same budget for both
""",
            ),
            (
                "image",
                "an image encoder",
                """\
  counterpoint tune image --data cifar10 --objective adnce --budget 20 --epochs 50 --device cuda
""",
            ),
            (
                "control",
                "learning to control from pixels",
                """\
  counterpoint tune control --task cartpole-swingup --objective adnce --budget 10 --device cuda
""",
            ),
        )
    },
    "show": Command(
        "print the command that trains a run again, its settings, status, result and environment",
        *_of(".show"),
        """\
  counterpoint show runs/graph/MUTAG/NAME/seed0
  counterpoint show runs/graph --json                       the commands of a grid
""",
    ),
    "push": Command(
        "publish the encoder of a run on the Hugging Face hub, with a model card",
        *_of("..hub.commands", "push"),
        """\
  counterpoint push runs/image/cifar10/NAME/seed0 me/cifar10-adnce
  counterpoint push runs/graph/MUTAG/NAME/seed0 me/mutag --folder published    only look at what would be pushed
""",
    ),
    "export": Command(
        "write the encoder of a run as safetensors, ONNX or a torch.export program, and check its outputs",
        *_of("..hub.commands", "export"),
        """\
  counterpoint export runs/image/cifar10/NAME/seed0 --format onnx --out encoder.onnx
  counterpoint export runs/sentence/wiki.txt/NAME/seed0 --format torch-export
""",
    ),
    "completion": Command(
        "print a script that completes commands, flags and specs in your shell",
        *_of(".completion"),
        """\
  counterpoint completion bash > ~/.local/share/bash-completion/completions/counterpoint
""",
    ),
    "doctor": Command(
        "check what this installation can run, and what to install for the rest",
        *_of(".doctor"),
        """  counterpoint doctor                                       versions, extras, GPU, renderer, data
  counterpoint doctor --json                                for programs, and for bug reports
""",
    ),
    "train image": Command(
        "pre-train an image encoder without labels (SimCLR, MoCo, CMC) with any objectives, and compare them",
        *_of("..image.commands", "train"),
        """\
  counterpoint train image                                  on embedded digits, in seconds
  counterpoint train image --data cifar10 --objective "adnce:t=0.4,mu=0.7,sigma=0.5" --backbone resnet18
  counterpoint train image --data ./my_photos --method moco --objective "arcl(infonce:t=0.2)" --views 4
  counterpoint train image --data cifar10 --preset intnacl --probe linear robust --device cuda
""",
    ),
    "eval image": Command(
        "evaluate the encoders of image runs: linear, kNN, attacked, shifted, transferred, fine-tuned",
        *_of("..image.commands", "eval"),
        """\
  counterpoint eval image runs/image/cifar10 --probe linear,knn,robust,shifted --transfer cifar100
  counterpoint eval image runs --data digits --probe knn --json
""",
    ),
    "train sentence": Command(
        "train sentence embeddings with any objective (SimCSE, quick-thought), from a paper's recipe or your own",
        *_of("..sentence.commands", "train"),
        """\
  counterpoint train sentence --data wiki1m.txt --preset adnce-bert --device cuda
  counterpoint train sentence --data nli.csv --preset simcse-bert-supervised --objective "hcl:t=0.05"
  counterpoint train sentence --data book.txt --positives next-sentence --model all-MiniLM-L6-v2 --lr 1e-5
  counterpoint train sentence --data wiki.txt --objective "arcl(infonce:t=0.05):views=4" --pooling cls
""",
    ),
    "eval sts": Command(
        "score a model on semantic textual similarity, as SimCSE reports it",
        *_of("..sentence.commands", "sts"),
        """\
  counterpoint eval sts sentence-transformers/all-MiniLM-L6-v2
  counterpoint eval sts runs/sentence/wiki.txt/NAME/seed0 --data SentEval --subsets
  counterpoint eval sts bert-base-uncased --pooling cls --json
""",
    ),
    "eval transfer": Command(
        "score a model on SentEval's classification tasks",
        *_of("..sentence.commands", "transfer"),
        """\
  counterpoint eval transfer sentence-transformers/all-MiniLM-L6-v2 --data DATA --jobs 2
  counterpoint eval transfer MODEL --tasks TREC MRPC
""",
    ),
    "mine": Command(
        "find hard negatives for pairs of texts, for train sentence",
        *_of("..sentence.mine"),
        """\
  counterpoint mine pairs.csv sentence-transformers/all-MiniLM-L6-v2 --out mined.jsonl --negatives 5
  counterpoint mine ./my_beir_folder MODEL --out mined.jsonl --relative-margin 0.05
""",
    ),
    "eval retrieval": Command(
        "score a model on retrieval collections: nDCG@10, MRR@10, recall",
        *_of("..sentence.commands", "retrieval"),
        """\
  counterpoint eval retrieval sentence-transformers/all-MiniLM-L6-v2 --data ./my_beir_folder
  counterpoint eval retrieval runs/sentence/pairs.csv/NAME/seed0 --data nano:msmarco nano:nq --json
""",
    ),
    "eval mteb": Command(
        "score a model on tasks and benchmarks of mteb",
        *_of("..sentence.commands", "mteb"),
        """\
  counterpoint eval mteb sentence-transformers/all-MiniLM-L6-v2 --tasks STS16 Banking77Classification
  counterpoint eval mteb runs/sentence/pairs.csv/NAME/seed0 --tasks "MTEB(eng, v2)" --out mteb --device cuda
""",
    ),
}
