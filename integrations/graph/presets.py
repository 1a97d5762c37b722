"""Settings of papers, per data set: the spec of the objective, and what else a cell needs."""

from __future__ import annotations

from typing import Any

from counterpoint.hyper import nearest

from ..report.papers import paper_settings

# ADNCE's published commands; t, mu and sigma are in its Table 9 (for COLLAB the commands have mu=0.3, for IMDB-BINARY
# t=0.55, which is not in the table's own range)
AUGMENT = {
    "NCI1": "random3",
    "PROTEINS": "random4",
    "DD": "random2",
    "MUTAG": "random2",
    "COLLAB": "random4",
    "REDDIT-BINARY": "random2",
    "REDDIT-MULTI-5K": "random2",
    "IMDB-BINARY": "random2",
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
    settings = {"augment": AUGMENT.get(dataset, "random2")}
    if name == "graphcl":
        return "infonce:t=0.2,denominator=negatives", settings
    if (known := paper_settings("graph", dataset)) is None:
        raise ValueError(f"preset adnce: the paper has no settings for {dataset!r}.{nearest(dataset, AUGMENT)}")
    return "adnce:t={t},mu={mu},sigma={sigma},denominator=mean".format(**known), settings
