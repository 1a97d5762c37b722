"""The recipes of the papers: the spec of the objective, and the settings that differ from the defaults."""

from counterpoint.names import check_known

from ..domain import Preset, check_choice

ADAM = {"protocol": "adam", "probe_epochs": 100}
# the code base of DCL, HCL and ADNCE
HCL: dict[str, object] = {
    "backbone": "resnet50", "epochs": 400, "batch": 256, "lr": 1e-3, "weight_decay": 1e-6, "evaluation": ADAM,
}  # fmt: skip
INTNACL: dict[str, object] = {
    "backbone": "resnet18", "epochs": 100, "batch": 256, "lr": 3e-4, "mixed": 4,
    "evaluation": {"protocol": "adam", "probe_epochs": 1000, "epsilons": [0.002]},
}  # fmt: skip
ARCL: dict[str, object] = {"backbone": "resnet18", "epochs": 500, "batch": 512, "evaluation": ADAM}
ARCL_MOCO: dict[str, object] = {
    **ARCL, "method": "moco", "epochs": 400, "batch": 256, "queue": 4096,
    "optimizer": "sgd", "lr": 0.15, "weight_decay": 1e-4, "cosine": True,
}  # fmt: skip
LMCL = {**HCL, "epochs": 100}
DEBPOS = {**HCL, "backbone": "resnet18", "epochs": 50, "batch": 512}

# ADNCE, Table 6: t, mu, sigma
ADNCE = {"cifar10": (0.4, 0.7, 0.5), "stl10": (0.2, 0.8, 1.0), "cifar100": (0.3, 0.5, 1.0)}

PRESETS = {
    "simclr": Preset("infonce:t=0.5", HCL),
    "adnce": Preset(None, HCL),
    # IntNaCl: prior .01, beta 1, alpha 1, M = 5 positives or mixtures and the sample itself
    "nca": Preset("nca:g=g2", {**INTNACL, "views": 6}),
    "mixnca": Preset("mixnca:g=g2,lam=0.5", INTNACL),
    "mixnca-g0": Preset("mixnca:g=g0,lam=0.9", INTNACL),
    "intcl": Preset("intcl", INTNACL),
    "intnacl": Preset("intnacl:base=mixnca,lam=0.5", INTNACL),
    "intnacl-nca": Preset("intnacl:base=nca", {**INTNACL, "views": 6}),
    "arcl": Preset("arcl(infonce:t=0.5):views=4", ARCL),
    "arcl-6": Preset("arcl(infonce:t=0.5):views=6", ARCL),
    "arcl-8": Preset("arcl(infonce:t=0.5):views=8", ARCL),
    "aal": Preset("aal(infonce:t=0.5):views=4", ARCL),
    "arcl-moco": Preset("arcl(infonce:t=0.2):views=4", ARCL_MOCO),
    "moco": Preset("infonce:t=0.2", ARCL_MOCO),
    "lmcl": Preset("infonce:t=0.5 + 0.1*dp", LMCL),
    "lmcl-dcl": Preset("dcl:t=0.5 + 0.1*dp", LMCL),
    "lmcl-hcl": Preset("hcl:t=0.5 + 0.1*dp", LMCL),
    "debpos": Preset("debpos:t=0.5,prior=0.1", DEBPOS),
    # the debiased positives' figures 2 to 4: no false negatives, blurred positives, M = 4 positives
    "debpos-true-negatives": Preset("debpos:t=0.5,prior=0.1", {**DEBPOS, "false_negatives": 0.0}),
    "debpos-blur": Preset("debpos:t=0.5,prior=0.1", {**DEBPOS, "augment": "cifar-blur"}),
    "debpos-m4": Preset("debpos:t=0.5,prior=0.1", {**DEBPOS, "views": 5, "batch": 64}),
}
"""By name; ADNCE's objective depends on the data set."""


def preset(name: str, dataset: str) -> Preset:
    """The recipe of a paper, one of :data:`PRESETS`, for a data set; ``adnce`` needs one of those in its Table 6.

    Where a paper is silent: ArCL's SimCLR has the optimizer of :data:`HCL`; attacks during IntNaCl's training have the
    default size; LMCL's SimCLR has the temperature .5.
    """
    check_choice("preset", name, PRESETS)
    if name != "adnce":
        return PRESETS[name]
    labelled = dataset.removesuffix("-unlabelled")
    check_known("preset adnce: the paper has no settings for", labelled, ADNCE)
    t, mu, sigma = ADNCE[labelled]
    return Preset(f"adnce:t={t},mu={mu},sigma={sigma}", HCL)
