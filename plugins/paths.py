"""Paths such as ``batch["doc_id"]``, by which a treatment names data of a script: looked up, never evaluated."""

import re
from collections.abc import Mapping, Sized
from contextlib import suppress
from difflib import get_close_matches
from types import ModuleType, NoneType
from typing import Any

from counterpoint.names import closest, nearest
from counterpoint.treatments import Treatment

WHERE = "__qualname__"  # among the names of a function: which one it is
_STEP = re.compile(r"(?:^|\.)(\w+)|\[(?:(-?\d+)|[\"']([^\"']*)[\"'])\]")


def look_up(treatment: Treatment, names: Mapping[str, Any], error: type[Exception] = ValueError) -> dict[str, Any]:
    """Return the values at the paths of a treatment, given the names of a function."""
    values = {name: at_path(path, names, f"{name}={path}", error) for name, path in treatment.paths.items()}
    for name in (name for name, value in values.items() if value is None):
        none = "it is None: the script has no such data here, perhaps no column."
        raise error(f"{name}={treatment.told[name]}: {none}")
    return values


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
        ending = [*map(repr, get_close_matches(first[1], known, 1, 0.9)), *ending]  # `labels` of the column `label`
        near = nearest(first[1], known, 8)  # and `labels`, which look like no other name
        near += " Also: labels." * ("labels" in known and not re.search(r"\blabels\b", near))
        hint = f" Did you mean {' or '.join(ending[:3])}?" if ending else near
        wrong = f"no such name here or in the callers.{hint} `counterpoint inject auto` lists the paths that fit."
    raise error(f"{shown or path}: {wrong}")
