"""The recipes of the papers: the spec of the objective, and every setting; comments say where these stand.

SimCSE: https://arxiv.org/abs/2104.08821, ADNCE: https://arxiv.org/abs/2305.17440, LMCL: Chen et al. 2021,
quick-thought: https://arxiv.org/abs/1803.02893.
"""

from ..domain import Preset, check_choice

# SimCSE's run_unsup_example.sh, and of schedule, warmup and weight decay the trainer's defaults, which it keeps
BERT: dict[str, object] = {
    "positives": "same",  # section 3: the same sentence with two dropout masks
    "model": "bert-base-uncased",
    "pooling": "cls",
    "head": "training",  # --mlp_only_train
    "max_length": 32,
    "epochs": 1,
    "batch": 64,
    "lr": 3e-5,
    "schedule": "linear",
    "warmup": 0.0,
    "weight_decay": 0.0,
    "precision": "fp16",
    "dev": "STSB-dev",
    "every": 125,
}
ROBERTA = {**BERT, "model": "roberta-base", "batch": 512, "lr": 1e-5}  # the table in SimCSE's README
SUPERVISED = {  # SimCSE's run_sup_example.sh
    **BERT,
    "positives": "columns",  # nli_for_simcse.csv has sent0, sent1, hard_neg
    "negative_weight": 0.0,  # train.py: default of --hard_negative_weight
    "head": "kept",  # no --mlp_only_train
    "batch": 512,  # 128 on each of 4 GPUs
    "lr": 5e-5,
    "epochs": 3,
}
QUICK_THOUGHT = {  # quick-thought's run.sh and defaults of train.py, which LMCL follows (section 5)
    **BERT,  # chosen here: SimCSE's model, precision, dev and every; quick-thought takes the last step of a GRU
    "positives": "next-sentence",  # context_size 1; chosen here: the next sentence only, and one encoder for both
    "pooling": "mean",  # chosen here: a transformer has no last state
    "head": "none",
    "max_length": 30,
    "batch": 400,  # chosen here: shuffled, where quick-thought's batches are contiguous text
    "lr": 3e-5,  # chosen here: quick-thought's 5e-4 is for a GRU from scratch
}

PRESETS = {
    "simcse-bert": Preset("infonce:t=0.05", BERT),
    "simcse-roberta": Preset("infonce:t=0.05", ROBERTA),
    "simcse-bert-supervised": Preset("infonce:t=0.05", SUPERVISED),
    # ADNCE's Table 7, final values as in its sentence/README.md; simcse/models.py weights the positive too, and keeps
    # it in the denominator
    "adnce-bert": Preset("adnce:t=0.07,mu=0.4,sigma=1,denominator=all", BERT),
    "adnce-roberta": Preset("adnce:t=0.06,mu=2,sigma=1,denominator=all", ROBERTA),
    # LMCL's polarization; chosen here: cosines at t=0.05, where quick-thought has products
    "lmcl-quick-thought": Preset("infonce:t=0.05 + 0.1*dp:low=0.1,high=0.5", QUICK_THOUGHT),
}


def preset(name: str, dataset: str = "") -> Preset:
    """Look up a recipe, one of :data:`PRESETS`; it is the same for every data set."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
