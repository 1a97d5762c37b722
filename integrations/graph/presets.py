"""The recipes of the papers: the spec of the objective, and the other settings of a cell."""

from counterpoint.names import nearest

from ..domain import Preset, check_choice
from .settings import KNOWN

# from the published commands of ADNCE's graph code, where DD, MUTAG, REDDIT-* and IMDB-BINARY have random2; they have
# mu=0.3 for COLLAB and t=0.55 for IMDB-BINARY, neither of which Table 9 has
AUGMENT = {"NCI1": "random3", "PROTEINS": "random4", "COLLAB": "random4"}
# GraphCL (arXiv:2010.13902), unsupervised_TU; ADNCE (arXiv:2305.17440), Table 9, t, mu and sigma of each data set
PRESETS = ("graphcl", "adnce")


def preset(name: str, dataset: str) -> Preset:
    """The recipe of a paper, one of :data:`PRESETS`, for a data set.

    ``adnce`` needs one of those that the paper reports. ``graphcl`` is the same for all, with ``random2`` where the
    papers name no augmentation.
    """
    check_choice("preset", name, PRESETS)
    settings = {"augment": AUGMENT.get(dataset, "random2")}
    if name == "graphcl":
        return Preset("infonce:t=0.2,denominator=negatives", settings)
    from ..report.papers import paper_settings

    if (known := paper_settings("graph", dataset)) is None:
        raise ValueError(f"preset adnce: the paper has no settings for {dataset!r}.{nearest(dataset, KNOWN)}")
    return Preset("adnce:t={t},mu={mu},sigma={sigma},denominator=mean".format(**known), settings)
