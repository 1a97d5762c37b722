"""The settings of a graph run, its cells, and the domain; imports neither torch nor a framework."""

from dataclasses import dataclass
from pathlib import Path

from counterpoint.names import nearest

from ..domain import Domain, check, defaults, known_settings, setting

# tests compare these with the names that the implementations know
AUGMENTATIONS = ("dnodes", "pedges", "mask_nodes", "subgraph", "random2", "random3", "random4")
PAIRINGS = ("views", "one_way", "symmetric", "first_two", "pairs", "arcl")  # neither queue nor single, of regularizers
PROBES = ("svm", "svc", "logreg", "knn")
FEATURES = ("auto", "labels", "degree", "constant")
PARTS = ("all", "tune", "report")
_OFFICIAL = "official: evaluate during training too, with GraphCL's kernel SVM, and report its best beside the last"
UNTRAINED, BAG = "untrained encoder", "bag of nodes"  # the rows that train no objective

# the sets, of more than a hundred, that the field reports; for the hints of error messages
DEMO = "demo"
KNOWN = (
    *("AIDS", "BZR", "COLLAB", "COX2", "DD", "DHFR", "ENZYMES", "FRANKENSTEIN", "IMDB-BINARY", "IMDB-MULTI"),
    *("KKI", "MSRC_9", "MSRC_21", "MUTAG", "Mutagenicity", "NCI1", "NCI109", "OHSU", "PROTEINS", "PROTEINS_full"),
    *("PTC_FM", "PTC_FR", "PTC_MM", "PTC_MR", "REDDIT-BINARY", "REDDIT-MULTI-5K", "REDDIT-MULTI-12K"),
    *("SYNTHETIC", "twitch_egos", "github_stargazers", "deezer_ego_nets", "reddit_threads", DEMO),
)


def check_dataset(name: str) -> None:
    """Raise ``ValueError`` unless this can be the name of a data set."""
    if not name or Path(name).name != name or name.upper() in {*KNOWN} - {name}:
        raise ValueError(f"dataset: {name!r} is not the name of a data set.{nearest(name, KNOWN)}")


@known_settings
@dataclass(frozen=True)
class Settings:
    """The settings of a run; by default those of GraphCL's scripts, evaluated by a linear SVM."""

    encoder: str = setting("gin", flag=False)
    augment: str = setting("random2", "distribution of views", choices=AUGMENTATIONS)
    hops: int | None = setting(None, "reach of subgraphs in steps; 1 in the official code (any)", type=int, low=1)
    pairing: str = setting("one_way", "which views are compared", choices=PAIRINGS)
    features: str = setting("auto", "node features", choices=FEATURES)
    epochs: int = setting(20, low=0, flag=False)
    batch: int = setting(128, "graphs per step", low=2)
    lr: float = setting(0.01, "learning rate of Adam", above=0)
    hidden: int = setting(32, "width of each layer", low=1)
    layers: int = setting(3, "layers of the encoder", low=1)
    probe: str = setting("svm", "classifier that evaluates the embeddings", choices=PROBES)
    folds: int = setting(10, "test folds", low=2)
    part: str = setting("all", "graphs to report on: all, or 30 % to tune on, or the other 70 %", choices=PARTS)
    protocol: str = setting("inner", _OFFICIAL, choices=("inner", "official"))
    device: str = setting("cpu", flag=False)


def cell(dataset: str, objective: str | None, seed: int, **changes: object) -> dict[str, object]:
    """The arguments of one run: the defaults of :class:`Settings`, changed as given, and perhaps a ``label``."""
    from ..store.cell import check_names

    settings = defaults(Settings)
    check_names(changes, (*settings, "label"))
    settings |= changes
    check(Settings, settings)
    return {"domain": "graph", "dataset": dataset, "objective": objective, "seed": seed, **settings}


def untrained(dataset: str, seed: int, **changes: object) -> dict[str, object]:
    """The cell of the encoder before training."""
    return cell(dataset, None, seed, **{**changes, "label": UNTRAINED, "epochs": 0})


def bag(dataset: str, seed: int, **changes: object) -> dict[str, object]:
    """The cell without an encoder, see :func:`.data.bag_of_nodes`."""
    return cell(dataset, None, seed, **{**changes, "label": BAG, "encoder": "none", "epochs": 0})


DOMAIN = Domain(
    "graph",
    Settings,
    dataset="data",
    default_dataset="demo",
    held_out={"part": "tune"},
    reported=("--part", "report"),
    grids={  # ADNCE, Table 9, of all data sets
        "temperature": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
        "mu": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0),
        "sigma": (0.5, 1.0),
    },
)
