"""The command line, ``counterpoint COMMAND ...``; :data:`COMMANDS` is the table of what there is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import counterpoint as cp
from counterpoint.plugins import inject

from ..store.grid import GridError
from ..store.progress import plain_warnings
from . import completion, demo, doctor, report, tune
from .objectives import _objectives, _objectives_arguments


@dataclass(frozen=True)
class Command:
    """A sub-command: what it does, what it takes, how it runs (returning the exit code), and examples.

    One that runs the user's own ``script`` lets that script's errors through as they are.
    """

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: str
    script: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after ``counterpoint``; by default those of the process.

    Returns:
        The exit code: 0; 1 if something that began has failed, as some of a grid's runs; 2 if what was asked cannot be
        done; 130 after Ctrl-C, when the same command goes on. One line on stderr says what was wrong.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    asked = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    given = None
    try:
        given = build(asked).parse_args(words, argparse.Namespace(words=words[len(asked.split()) :]))
        with plain_warnings():
            code = COMMANDS[asked].run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads, such as head, has seen enough; Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt as error:
        if given is not None and COMMANDS[asked].script:
            raise
        said = str(error) or ("stopped" if given else "stopped; nothing was done yet")  # frameworks are still loading
        print(f"counterpoint {asked}:", said, file=sys.stderr)
        code = 130
    except (GridError, ImportError, OSError, ValueError) as error:
        if COMMANDS[asked].script:
            raise
        print(f"counterpoint {asked}:", str(error).partition("\n")[0], file=sys.stderr)
        code = 1 if isinstance(error, GridError) else 2
    return code


def build(asked: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of the one asked for: others may need what is slow to import."""
    look: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    every = "examples:\n" + "".join(command.examples for command in COMMANDS.values())
    parser = argparse.ArgumentParser(
        "counterpoint", description=(cp.__doc__ or "").partition("\n")[0], epilog=every, **look
    )
    parser.add_argument("--version", action="version", version=f"counterpoint {cp.__version__}")
    tables: dict[tuple[str, ...], Any] = {(): parser.add_subparsers(metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        *group, last = name.split()
        if tuple(group) not in tables:
            members = [other for other in COMMANDS if other.startswith(f"{group[0]} ")]
            said = {"help": ", ".join(members), "description": ", ".join(members)}
            said["epilog"] = "examples:\n" + "".join(COMMANDS[one].examples for one in members)
            own = tables[()].add_parser(group[0], **(look | said))
            tables[tuple(group)] = own.add_subparsers(metavar="WHAT", required=True)
        look |= {"help": command.help, "description": command.help, "epilog": f"examples:\n{command.examples}"}
        own = tables[tuple(group)].add_parser(last, **look)
        if name == asked:
            command.arguments(own)
    return parser


def parsers() -> dict[str, argparse.ArgumentParser | None]:
    """The parser of each command; None for those whose extra is missing."""
    found: dict[str, argparse.ArgumentParser | None] = {}
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(f"counterpoint {name}")
        try:
            command.arguments(parser)
        except ImportError:
            found[name] = None
        else:
            found[name] = parser
    return found


def _of(
    module: str, verb: str
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """``VERB_arguments`` and ``VERB_command`` of a domain's module, which is imported when one of them is called."""

    def find(name: str) -> Any:
        return getattr(import_module(f"counterpoint.integrations.{module}"), f"{verb}_{name}")

    return lambda parser: find("arguments")(parser), lambda given: find("command")(given)


# a name of two words is a command within a group, such as train
COMMANDS = {
    "objectives": Command(
        "list the objectives: formula, parameters with defaults and ranges, paper",
        _objectives_arguments,
        _objectives,
        """\
  counterpoint objectives                                   all of them
  counterpoint objectives adnce                             one in full
  counterpoint objectives "hcl:beta=2" --plot w.png         and the weights it gives to negatives
  counterpoint objectives infonce adnce --plot w.png        two of them compared
  counterpoint objectives --json                            for programs
""",
    ),
    "inject": Command(
        "run an unmodified training script with another objective in the place of its loss",
        inject.add_arguments,
        inject.command,
        """  counterpoint inject --list                                the code bases that are known
  counterpoint inject simcse --objective "adnce:mu=0.4,t=0.07" -- train.py --model_name_or_path ...
  counterpoint inject graphcl --objective hcl --verify 5 -- gsimclr.py --DS PROTEINS --lr 0.01
  counterpoint inject logits --site train.py:42 --scale 10 --objective hcl:t=0.1 -- train.py     any cross entropy
""",
        script=True,
    ),
    "train graph": Command(
        "pre-train a graph encoder without labels (GraphCL) with any objectives, and compare them",
        *_of("graph.commands", "train"),
        """\
  counterpoint train graph                                  on embedded graphs, in seconds
  counterpoint train graph --dataset PROTEINS --objective "adnce:t=0.05,mu=1.5" --seeds 5
  counterpoint train graph --dataset MUTAG --preset adnce --protocol official
""",
    ),
    "eval tu": Command(
        "evaluate the encoders of runs on a TU data set",
        *_of("graph.commands", "eval"),
        """\
  counterpoint eval tu runs/graph/PROTEINS --probe svm logreg knn
  counterpoint eval tu runs --dataset PROTEINS --json
""",
    ),
    "report": Command(
        "tables, tests, plain sentences and pictures from folders of runs, with the papers' numbers beside",
        report.add_arguments,
        report.command,
        """  counterpoint report runs/                                 of the first result that the runs have
  counterpoint report runs/ --baseline "infonce:t=0.2" --metric accuracy
  counterpoint report runs/ other/ --metric STS-B --metric SICK-R --out report
  counterpoint report runs/ --format markdown               for a README; csv and json for programs
""",
    ),
    "train control": Command(
        "learn to control from pixels (CURL on dm_control's suite) with any objectives, and compare them",
        *_of("control.commands", "train"),
        """\
  counterpoint train control --task cartpole-swingup --objective "infonce:t=1 + 0.1*dp" --steps 100000 --seed 1
  counterpoint train control --task walker-walk --objective infonce:t=1 adnce --seeds 3 --device cuda
  counterpoint train control --task cartpole-balance --observe state --steps 20000     plain SAC, in minutes
""",
    ),
    "eval control": Command(
        "play episodes with what runs have learned to control",
        *_of("control.commands", "eval"),
        """\
  counterpoint eval control runs/control/cartpole-swingup --episodes 10
  counterpoint eval control runs/control/cartpole-swingup/NAME/seed1 --video swingup.mp4 --representation frames
""",
    ),
    "demo": Command(
        "every domain and six objectives on data that needs no download: a table and a page, in minutes",
        demo.add_arguments,
        demo.command,
        """\
  counterpoint demo                                         all four domains, three seeds: demo/report.html
  counterpoint demo --domains graph image --seeds 8         seeds enough for a test
  counterpoint demo --objective infonce:t=0.2 "hcl:t=0.2,beta=2" --out mine
  counterpoint demo --quick                                 only to see that everything runs
""",
    ),
    **{
        f"tune {domain}": Command(
            f"search the parameters of objectives for {what}, on validation data",
            partial(tune.add_arguments, domain=domain),
            partial(tune.command, domain=domain),
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
    "completion": Command(
        "print a script that completes commands, flags and specs in your shell",
        completion.add_arguments,
        lambda given: print(completion.script(given.shell, parsers())) or 0,
        """\
  counterpoint completion bash > ~/.local/share/bash-completion/completions/counterpoint
""",
    ),
    "doctor": Command(
        "say what of the library can run here, and what to install for the rest",
        doctor.add_arguments,
        doctor.command,
        """  counterpoint doctor                                       versions, extras, GPU, renderer, data
  counterpoint doctor --json                                for programs, and for bug reports
""",
    ),
    "train image": Command(
        "pre-train an image encoder without labels (SimCLR, MoCo, CMC) with any objectives, and compare them",
        *_of("image.commands", "train"),
        """\
  counterpoint train image                                  on embedded digits, in seconds
  counterpoint train image --data cifar10 --objective "adnce:t=0.4,mu=0.7,sigma=0.5" --backbone resnet18
  counterpoint train image --data ./my_photos --method moco --objective "arcl(infonce:t=0.2)" --views 4
  counterpoint train image --data cifar10 --preset intnacl --probe linear robust --device cuda
""",
    ),
    "eval image": Command(
        "evaluate the encoders of image runs: linear, kNN, attacked, shifted, transferred, fine-tuned",
        *_of("image.commands", "eval"),
        """\
  counterpoint eval image runs/image/cifar10 --probe linear,knn,robust,shifted --transfer cifar100
  counterpoint eval image runs --data digits --probe knn --json
""",
    ),
    "train sentence": Command(
        "train sentence embeddings with any objective (SimCSE, quick-thought), from a paper's recipe or your own",
        *_of("sentence.commands", "train"),
        """\
  counterpoint train sentence --data wiki1m.txt --preset adnce-bert --device cuda
  counterpoint train sentence --data nli.csv --preset simcse-bert-supervised --objective "hcl:t=0.05"
  counterpoint train sentence --data book.txt --positives next-sentence --model all-MiniLM-L6-v2 --lr 1e-5
  counterpoint train sentence --data wiki.txt --objective "arcl(infonce:t=0.05):views=4" --pooling cls
""",
    ),
    "eval sts": Command(
        "score a model on semantic textual similarity, as SimCSE reports it",
        *_of("sentence.commands", "sts"),
        """\
  counterpoint eval sts sentence-transformers/all-MiniLM-L6-v2
  counterpoint eval sts runs/sentence/wiki.txt/NAME/seed0 --data SentEval --subsets
  counterpoint eval sts bert-base-uncased --pooling cls --json
""",
    ),
    "eval transfer": Command(
        "score a model on SentEval's classification tasks",
        *_of("sentence.commands", "transfer"),
        """\
  counterpoint eval transfer sentence-transformers/all-MiniLM-L6-v2 --data DATA --jobs 2
  counterpoint eval transfer MODEL --tasks TREC MRPC
""",
    ),
}

if __name__ == "__main__":
    sys.exit(main())
