"""The recipes of the papers: the objective's spec and every setting, each with where it stands.

``not stated`` marks settings that a paper does not give, followed by the choice made here.

SimCSE: https://arxiv.org/abs/2104.08821, ADNCE: https://arxiv.org/abs/2305.17440, quick-thought:
https://arxiv.org/abs/1803.02893.
"""

from __future__ import annotations

from typing import Any

from ..domain import Preset, check_choice

SCRIPT = "Gao et al. 2021 (SimCSE), run_unsup_example.sh"
SUPERVISED = "Gao et al. 2021 (SimCSE), run_sup_example.sh"
TABLE = "Gao et al. 2021 (SimCSE), table of hyper-parameters in the README"
TRAINER = "default of the trainer, which the script does not change"
ADNCE = "Wu et al. 2023 (ADNCE), Table 7, final values as in its sentence/README.md"
ADNCE_CODE = "Wu et al. 2023 (ADNCE), sentence/simcse/models.py"
LMCL = "Chen et al. 2021 (LMCL), section 5"
QT = "Logeswaran and Lee 2018 (quick-thought), run.sh and defaults of train.py, which LMCL follows"
HERE = "not stated, chosen here: "


def _preset(objective: tuple[str, str], **settings: tuple[Any, str]) -> Preset:
    """A recipe from pairs of a value and its source."""
    values = {name: value for name, (value, _) in settings.items()}
    sources = {name: source for name, (_, source) in settings.items()}
    return Preset(objective[0], values, {"objective": objective[1], **sources})


_OPTIMIZER: dict[str, tuple[Any, str]] = {
    "schedule": ("linear", TRAINER),
    "warmup": (0.0, TRAINER),
    "weight_decay": (0.0, TRAINER),
}
_UNSUPERVISED: dict[str, tuple[Any, str]] = {
    "positives": ("same", "Gao et al. 2021 (SimCSE), section 3: the same sentence with two dropout masks"),
    "pooling": ("cls", SCRIPT),
    "head": ("training", f"{SCRIPT}: --mlp_only_train"),
    "max_length": (32, SCRIPT),
    "epochs": (1, SCRIPT),
    "precision": ("fp16", SCRIPT),
    "dev": ("STSB-dev", SCRIPT),
    "every": (125, SCRIPT),
    **_OPTIMIZER,
}
_BERT: dict[str, tuple[Any, str]] = {
    **_UNSUPERVISED,
    "model": ("bert-base-uncased", SCRIPT),
    "batch": (64, SCRIPT),
    "lr": (3e-5, SCRIPT),
}
_ROBERTA: dict[str, tuple[Any, str]] = {
    **_UNSUPERVISED,
    "model": ("roberta-base", TABLE),
    "batch": (512, TABLE),
    "lr": (1e-5, TABLE),
}

PRESETS = {
    "simcse-bert": _preset(("infonce:t=0.05", SCRIPT), **_BERT),
    "simcse-roberta": _preset(("infonce:t=0.05", SCRIPT), **_ROBERTA),
    "simcse-bert-supervised": _preset(
        ("infonce:t=0.05", SUPERVISED),
        **{
            **_BERT,
            "positives": ("columns", f"{SUPERVISED}: nli_for_simcse.csv has sent0, sent1, hard_neg"),
            "negative_weight": (0.0, "Gao et al. 2021 (SimCSE), train.py: default of --hard_negative_weight"),
            "head": ("kept", f"{SUPERVISED}: no --mlp_only_train"),
            "batch": (512, f"{SUPERVISED}: 128 on each of 4 GPUs"),
            "lr": (5e-5, SUPERVISED),
            "epochs": (3, SUPERVISED),
        },
    ),
    # all: its sentence code weights the positive too, and keeps it in the denominator
    "adnce-bert": _preset(
        ("adnce:t=0.07,mu=0.4,sigma=1,denominator=all", f"{ADNCE}; denominator: {ADNCE_CODE}"), **_BERT
    ),
    "adnce-roberta": _preset(
        ("adnce:t=0.06,mu=2,sigma=1,denominator=all", f"{ADNCE}; denominator: {ADNCE_CODE}"), **_ROBERTA
    ),
    "lmcl-quick-thought": _preset(
        (
            "infonce:t=0.05 + 0.1*dp:low=0.1,high=0.5",
            f"{LMCL}; {HERE}cosines at t=0.05, where quick-thought has products",
        ),
        positives=("next-sentence", f"{QT}: context_size 1; {HERE}the next sentence only, and one encoder for both"),
        model=("bert-base-uncased", f"{HERE}instead of its GRU with 50,001 words"),
        pooling=("mean", f"{HERE}a transformer has no last state"),
        head=("none", QT),
        max_length=(30, QT),
        batch=(400, f"{QT}; {HERE}shuffled, where quick-thought's batches are contiguous text"),
        lr=(3e-5, f"{HERE}quick-thought's 5e-4 is for a GRU from scratch"),
        epochs=(1, QT),
        precision=("fp16", f"{HERE}fp16"),
        dev=("STSB-dev", f"{HERE}quick-thought takes the last step"),
        every=(125, f"{HERE}as SimCSE"),
        **_OPTIMIZER,
    ),
}


def preset(name: str, dataset: str = "") -> Preset:
    """Look up a recipe, one of :data:`PRESETS`; it is the same for every data set."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
