"""Names: objectives by theirs, modules and public names on first use, the right one for a wrong one; no torch."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain, takewhile
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType, NoneType
from typing import Any, TypeVar

Init = TypeVar("Init")

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
WHERE = "__qualname__"  # among the names of a function: which one it is
_STEP = re.compile(r"(?:^|\.)(\w+)|\[(?:(-?\d+)|[\"']([^\"']*)[\"'])\]")
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


def at_path(path: str, names: Mapping[str, Any], shown: str = "", error: type[Exception] = ValueError) -> Any:
    """Look up a path, ``shown`` in errors; a name that leads nowhere in a function may be other data in a caller."""
    first, *steps = _STEP.finditer(path)
    wrong = ""
    for scope in (scope for scope in getattr(names, "maps", [names]) if first[1] in scope):
        value, step = scope[first[1]], first
        try:
            for step in steps:
                name, at = step[1], int(step[2]) if step[2] else step[3]
                if not name and isinstance(value, Mapping) and at not in value:  # a defaultdict would make it
                    raise KeyError(at)
                value = getattr(value, name) if name else value[at]
            return value
        except Exception as failure:
            why = f"Known: {', '.join(map(str, value))}." if isinstance(value, Mapping) else failure
            similar = closest(step[1] or "", getattr(value, "__dict__", ()))
            at = f", in {scope[WHERE]}, nor in its callers" if WHERE in scope else ""
            wrong = wrong or f"{path[: step.start()]} has no {step[0]}: {why}{at}{similar and '.'}{similar}"
    if not wrong:
        no_data = int, float, str, NoneType, ModuleType
        known = [k for k, x in names.items() if k[:1] != "_" and not isinstance(x, no_data)]
        known = [k for k in known if isinstance(names[k], Sized) or k == "self" or not callable(names[k])]  # PyG: both
        last, ending = re.findall(r"\w+", path)[-1], list[str]()
        for other in (f'{k}["{last}"]' if isinstance(names[k], Mapping) else f"{k}.{last}" for k in known):
            with suppress(Exception):  # whatever the script's own classes raise
                ending += [other] * isinstance(at_path(other, names), Sized)
        hint = f" Did you mean {' or '.join(ending[:3])}?" if ending else nearest(first[1], known, 8)
        wrong = f"no such name here or in the callers.{hint} `counterpoint inject auto` lists the paths that fit."
    raise error(f"{shown or path}: {wrong}")


def is_spec(text: str) -> bool:
    """Return whether this is meant as an objective or a treatment: it begins with the name of one, or ``host``."""
    return re.split(r"\W", text.strip(), maxsplit=1)[0] in (*OBJECTIVES, "host")


def no_script(words: Sequence[str]) -> str:
    """Return the message for a script that does not exist, or is a folder; its own arguments follow it."""
    path = Path(words[0])
    if path.is_dir():
        return f"{path} is a folder; expected a script, such as {next(path.glob('*.py'), path / 'train.py')}"
    if path.name.startswith("python"):
        return f"script not found: {path}. Leave the interpreter out: the script itself stands behind --."
    if rows := [*takewhile(is_spec, words)]:
        rest = words[len(rows) :] or ["train.py"]
        typed = shlex.join(["--objective", *rows, *["--"] * ("--" not in rest), *rest])
        return f"unexpected {words[0]!r}: objectives follow --objective, and the script --, as in: {typed}"
    if re.split(r"\W", words[0], maxsplit=1)[0] in (*TOLD, *RULES):
        treatment = f"--objective {shlex.quote(f'host; {words[0]}')} -- train.py"
        return f"unexpected {words[0]!r}: it stands behind an objective, or behind host, as in: {treatment}"
    return f"script not found: {path}.{closest(path.name, [other.name for other in path.parent.glob('*.py')])}"


def check_known(
    what: str, value: Any, known: Collection[Any], error: Callable[[str], Exception] = ValueError, hint: str = ""
) -> None:
    """Raise ``error``, a message that begins with ``what`` and suggests the closest, unless ``value`` is known."""
    if value not in known:
        raise error(f"{what} {value!r}.{hint}{nearest(str(value), known)}")


def checked_options(init: Init) -> Init:
    """Let an ``__init__`` name the closest option for one of the host's, and say where a temperature goes."""
    call: Any = init
    code = call.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @wraps(call)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in options.keys() - set(known):
            it = ' Give it to the objective: "infonce:t=0.5", or t=0.05 for a scale of 20.'
            hint = it if name in ("temperature", "t", "tau", "scale") else ""
            check_known(f"{type(self).__name__}: unknown argument", name, known, TypeError, hint)
        call(self, *args, **options)

    return checked  # type: ignore[return-value]


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


def visible(text: str) -> str:
    """Return a text in one line, with escapes for characters that would move, color or reorder it on a terminal."""
    hidden = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
    return re.sub(hidden, lambda found: found[0].encode("unicode_escape").decode(), text)


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
