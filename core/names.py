"""Names: objectives by theirs, modules and public names on first use, the right one for a wrong one; no torch."""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain
from pkgutil import iter_modules
from typing import Any

# what other libraries call an objective, in small letters, without "loss": its name in specs, and the call in Python
ELSEWHERE = {
    name: (spec, call)
    for names, spec, call in [
        ("nce nt ntxent simclr clip npair npairs crossentropy", "infonce", "InfoNCE(temperature)(z1, z2)"),
        ("moco", "infonce", "InfoNCE(temperature)(query, key, queue=bank)"),
        ("mnrl multiplenegativesranking grace", "infonce", "InfoNCE(temperature)(z1, z2)"),
        ("cachedmultiplenegativesranking cachedmnrl", "infonce", "InfoNCE(temperature)(z1, z2), with gradcache"),
        ("gistembed", "infonce", "InfoNCE(temperature)(z1, z2, false_negatives=margin(0), guide=(g1, g2))"),
        ("graphcl", "infonce", 'InfoNCE(temperature, denominator="negatives")(z1, z2, pairing="one_way")'),
        ("sigliploss sigmoidloss", "siglip", "SigLIP(temperature, bias)(z1, z2)"),
        ("supconloss supervisedcontrastive", "supcon", "SupCon(temperature)(z1, z2, labels=labels)"),
        ("triplet tripletmargin", "infonce", "InfoNCE(temperature)(anchor, positive, negatives=negative)"),
        ("dclloss", "dcl", 'DCL, debiased; lightly\'s decoupled one is InfoNCE(temperature, denominator="negatives")'),
        ("decoupledcontrastive", "infonce", 'InfoNCE(temperature, denominator="negatives")(z1, z2)'),
        ("debiased debiasedcontrastive", "dcl", "DCL(temperature, prior)(z1, z2)"),
        ("contrastive", "infonce", "InfoNCE(temperature)(z1, z2), or counterpoint.plugins.<library>.ContrastiveLoss"),
    ]
    for name in names.split()
}  # fmt: skip

# the items of a treatment, behind its objective
TOLD, RULES = ("duplicates", "ids", "labels", "guide", "log_q", "index"), ("margin", "threshold")
COMMANDS = ("advise", "compare", "inject", "race", "train", "tune")  # of the command line; none is a function
# the class of each built-in objective, by its name in specs; a test compares it with the registry
OBJECTIVES = {
    "infonce": "InfoNCE", "dcl": "DCL", "hcl": "HCL", "rince": "RINCE", "arctanh": "Arctanh", "adnce": "ADNCE",
    "alphacl": "AlphaCL", "mv": "MeanVariance", "dro": "CLDRO", "nca": "NCA", "mixnca": "MixNCA", "robust": "Robust",
    "intcl": "IntCL", "intnacl": "IntNaCl", "dp": "DistancePolarization", "gor": "SpreadOut", "supcon": "SupCon",
    "arcl": "ArCL", "aal": "AAL", "debpos": "DebiasedPositives", "soft": "SoftTargets", "siglip": "SigLIP",
    "psl": "PSL", "drrl": "DrRL", "sogclr": "SogCLR", "isogclr": "ISogCLR", "matryoshka": "Matryoshka",
}  # fmt: skip


def closest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that suggests the closest known name, or nothing."""
    spelled, name = {option.lower(): option for option in known}, name.lower()
    others = {"tau_plus": "prior", "y": "labels", "targets": "labels", "duplicates": "ids"}
    meant = ("t", "temperature") if name == "tau" else (others.get(name, name),)
    name = next((other for other in meant if other in spelled), name)
    close = get_close_matches(name, spelled, n=1, cutoff=0.65 if name[2:] else 0.5)
    close = close or [option for option in spelled if name[1:] and name in option]
    return f" Did you mean {spelled[close[0]]!r}?" if close else ""


def nearest(name: str, known: Iterable[str], most: int = 0) -> str:
    """Suggest the closest known name and list all of them, or the nearest ones, as the end of an error message."""
    known = get_close_matches(name, known, most, cutoff=0.0) if most else list(dict.fromkeys(known))
    return f"{closest(name, known)} Known: {', '.join(known)}."


def check_known(
    what: str, value: Any, known: Collection[Any], error: Callable[[str], Exception] = ValueError, hint: str = ""
) -> None:
    """Raise ``error``, a message that begins with ``what`` and suggests the closest, unless ``value`` is known."""
    if value not in known:
        raise error(f"{what} {value!r}.{hint}{nearest(str(value), known)}")


def unknown_objective(name: str, classes: Mapping[str, str]) -> str:
    """Return the message for a name that no spec knows; ``classes`` are those of the known objectives, by name."""
    if name == "host":
        return "'host' is the loss of a script that `counterpoint` runs, as it is; here, name it, as infonce:t=0.1."
    if name in (*TOLD, *RULES):
        return f"{name!r} is what an objective is told, behind a semicolon: 'host; {name}' or 'hcl:beta=1; {name}'."
    here, _ = elsewhere(name) or ({kind.lower(): known for known, kind in classes.items()}.get(name.lower(), name), "")
    return f"unknown objective {name!r}.{nearest(here, classes)}"


def elsewhere(name: str) -> tuple[str, str] | None:
    """Return the name in specs and the call of the objective that another library calls ``name``."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    return ELSEWHERE.get(word) or ELSEWHERE.get(word.removesuffix("loss"))


def lazy(package: str, exports: Iterable[str] = (), known: Collection[str] = ()) -> Callable[[str], Any]:
    """``__getattr__`` of a package: modules, and names ``known`` that ``exports`` define, imported on first use."""

    def attribute(name: str) -> Any:
        for module in exports if name in known else ():
            if name in (members := vars(import_module(f"{package}.{module}"))):
                return members[name]
        if name.isidentifier() and not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        modules = (module.name for module in iter_modules(import_module(package).__path__))
        hint = "" if name.startswith("_") else closest(name, chain(known, modules))
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}", name=name, obj=None)

    return attribute


IMPORT = "COUNTERPOINT_IMPORT"
BUILT_IN = f"{__package__}.objectives"
registry: dict[str, type[Any]] = {}  # every named objective that has been defined so far; known() has all


def known() -> dict[str, type[Any]]:
    """Return the registry after importing the built-in objectives."""
    import_module(BUILT_IN)
    return registry


def register(name: str, cls: type[Any]) -> None:
    """Register a class under ``name``. Another class of that name is an error; the same one, defined again, is not."""
    registered = (registry if cls.__module__.startswith(BUILT_IN) else known()).get(name)
    if registered and (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
        owner = f"{registered.__module__}.{registered.__qualname__}"
        raise ValueError(f"{cls.__name__}: the name {name!r} is taken by {owner}.")
    registry[name] = cls


def kind(name: str) -> type[Any]:
    """Return the class with that name: built in, defined by you, or registered by an installed package.

    Packages register classes as entry points ``counterpoint.objectives``; ``$COUNTERPOINT_IMPORT`` names your modules.
    """
    if name not in known():
        for module in os.environ.get(IMPORT, "").split():
            sys.path.append(os.getcwd())
            import_module(module)
        for entry in metadata.entry_points(group="counterpoint.objectives"):
            entry.load()
    if name not in registry:
        raise ValueError(unknown_objective(name, {n: c.__name__ for n, c in registry.items()}))
    return registry[name]
