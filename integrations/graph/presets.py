"""Settings of papers, per data set: the spec of the objective, and what else a cell needs."""

from __future__ import annotations

from typing import Any

from counterpoint.hyper import nearest

# ADNCE, Table 9, and the augmentations of its published commands; for COLLAB these have mu=0.3, for IMDB-BINARY
# t=0.55, which is not in the table's own range
ADNCE: dict[str, tuple[float, float, float, str]] = {
    "NCI1": (0.05, 0.7, 1.0, "random3"),
    "PROTEINS": (0.05, 1.5, 1.0, "random4"),
    "DD": (0.2, 0.2, 1.0, "random2"),
    "MUTAG": (0.15, 0.7, 1.0, "random2"),
    "COLLAB": (0.1, 0.2, 1.0, "random4"),
    "REDDIT-BINARY": (0.15, 0.3, 1.0, "random2"),
    "REDDIT-MULTI-5K": (0.15, 0.8, 1.0, "random2"),
    "IMDB-BINARY": (0.5, 0.7, 1.0, "random2"),
}
PRESETS = ("graphcl", "adnce")


def preset(name: str, dataset: str) -> tuple[str, dict[str, Any]]:
    """The objective's spec and the settings that a paper has for a data set.

    Args:
        name: ``graphcl`` (temperature 0.2, positive not in the denominator) or ``adnce`` (Table 9).
        dataset: for ``adnce`` one that the paper has; ``graphcl`` is the same for all, with ``random2`` where the
            papers name no augmentation.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: unknown preset {name!r}.{nearest(str(name), PRESETS)}")
    augment = ADNCE[dataset][3] if dataset in ADNCE else "random2"
    if name == "graphcl":
        return "infonce:t=0.2,denominator=negatives", {"augment": augment}
    if dataset not in ADNCE:
        raise ValueError(f"preset adnce: the paper has no settings for {dataset!r}.{nearest(dataset, ADNCE)}")
    t, mu, sigma, _ = ADNCE[dataset]
    return f"adnce:t={t},mu={mu},sigma={sigma},denominator=mean", {"augment": augment}
