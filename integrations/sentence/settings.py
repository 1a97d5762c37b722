"""The settings of a sentence run, and the domain; imports neither torch nor a framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..domain import Domain, check, check_choice, known_settings, setting
from .retrieval import collections, is_collection

SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB-test", "SICKR-test")  # SimCSE's
STS = (*SEVEN, "SICKR-all", "STSB-train", "STSB-dev", "SICKR-train", "SICKR-trial")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC")

POOLING = "how tokens become one vector, for a checkpoint that does not define it (the model's own)"
POOLINGS = ("cls", "pooler", "mean", "max")
POSITIVES = ("auto", "same", "columns", "next-sentence")
HEADS = ("none", "training", "kept")
PRECISIONS = ("fp32", "bf16", "fp16")
# help that is longer than a line of the settings
_RULE = "negatives to leave out: margin(0.1), margin(0.05,relative), threshold(0.9), ... (none)"
_DEV = "STS set, or BEIR folder with qrels/dev.tsv, whose score selects the checkpoint; none for the last one"
_TEST = "sets, tasks and BEIR folders to evaluate the finished model on; --test alone: SimCSE's seven STS sets (none)"


def check_set(setting: str, name: str, known: Sequence[str]) -> None:
    """Raise ``ValueError`` unless a name is known, or that of a BEIR folder, there or in ``retrieval/`` of the data."""
    if name not in known and not is_collection(Path(name).expanduser()):
        check_choice(setting, name, (*known, *collections()))


@known_settings
@dataclass(frozen=True)
class Settings:
    """The settings of a run; by default those of SimCSE's unsupervised script, in full precision."""

    model: str = setting("bert-base-uncased", "a folder or a name on the hub")
    revision: str | None = setting(None, "revision of a model on the hub (the newest)")
    pooling: str | None = setting(None, POOLING, choices=POOLINGS)
    static: bool = setting(False, "train only the word-piece embeddings; a text is the mean of its pieces")
    head: str = setting("none", "SimCSE's dense layer and tanh: none, training only, or kept", choices=HEADS)
    positives: str = setting("auto", "what a sample is: a text twice, columns, neighbors in a text", choices=POSITIVES)
    columns: Sequence[str] | None = setting(None, "columns of the file, in this order (all of text)", nargs="+")
    views: int | None = setting(None, "embeddings of a text (what the objective asks for, or 2)", type=int, low=2)
    word_dropout: float = setting(0.0, "share of word pieces that each view leaves out", low=0, below=1)
    max_length: int = setting(32, "word pieces of a text in training", low=3)
    epochs: int = setting(1, low=1, flag=False)
    steps: int | None = setting(None, "length of training, instead of epochs (epochs count)", type=int, low=1)
    batch: int = setting(64, "samples per step", low=2)
    mini_batch: int | None = setting(None, "samples embedded at a time, with a gradient cache (all)", type=int, low=1)
    lr: float = setting(3e-5, "learning rate of AdamW", above=0)
    schedule: str = setting("linear", "schedule of the learning rate", choices=("linear", "constant", "cosine"))
    # the trainer takes 1 for one step, not for all of them
    warmup: float = setting(0.0, "share of the steps in which the learning rate rises", low=0, below=1)
    weight_decay: float = setting(0.0, "weight decay of AdamW", low=0)
    negative_weight: float = setting(0.0, "SimCSE's weight of a sample's own hard negatives, added to their logit")
    duplicates: str | None = setting(None, "text: samples that share one are not negatives (none)", choices=("text",))
    false_negatives: str | None = setting(None, _RULE, metavar="RULE")
    guide: str | None = setting(None, "model by whose similarities false_negatives decides (the trained one)")
    precision: str = setting("fp32", "precision of the arithmetic", choices=PRECISIONS)
    dev: str | None = setting("STSB-dev", _DEV, metavar="SET")
    every: int = setting(125, "steps between two evaluations on it", low=1)
    save: int = setting(125, "steps between two checkpoints; 0 for none", low=0)
    test: Sequence[str] | None = setting(None, _TEST, nargs="*", metavar="SET")
    keep: bool = setting(True, flag=False)
    device: str = setting("cpu", flag=False)


def check_settings(arguments: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for the first setting of a cell that is out of range, or does not fit another."""
    check(Settings, arguments)
    plain = arguments["head"] == "none" and not arguments["weight_decay"] and arguments["precision"] == "fp32"
    if arguments["static"] and not plain:
        raise ValueError("static: word-piece embeddings alone need head=none, no weight decay, and fp32.")
    if arguments["precision"] == "fp16" and arguments["device"] == "cpu":
        raise ValueError("precision: fp16 needs a GPU; on a CPU use fp32 or bf16.")
    if str(arguments["device"]).startswith("cuda:") and arguments["device"] != "cuda:0":
        wanted = arguments["device"]
        raise ValueError(f"device: the trainer uses the first visible GPU; for {wanted} set CUDA_VISIBLE_DEVICES.")
    if arguments["guide"] is not None and arguments["false_negatives"] is None:
        raise ValueError("guide: needs false_negatives beside it; margin(0) is GISTEmbed's rule.")
    check_set("dev", arguments["dev"] or STS[0], STS)
    for name in arguments["test"] or ():
        check_set("test", name, (*STS, *TRANSFER))


DOMAIN = Domain(
    "sentence",
    Settings,
    dataset="data",
    default_dataset=None,
    held_out={"test": None, "keep": False},
    reported=("--test",),
    grids={  # ADNCE, Table 7, of BERT and RoBERTa
        "temperature": (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.15, 0.2),
        "mu": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 2.5, 3.0),
        "sigma": (0.5, 1.0),
    },
)
