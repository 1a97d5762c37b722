"""The seam of any script whose loss is a function of embeddings, ``loss(z1, z2)``.

**Where the loss sits.** In a function or a method that you name with its parameters that are embeddings::

    counterpoint inject function --replace "losses.py:NTXent.forward(z_i, z_j)" --objective adnce -- train.py

Several functions are several ``--replace``, each with an ``--as`` and an ``--own``, or with one of these for all.

**Which tensors are there.** The arguments of each call; one of three dimensions is ``(B, views, d)``, as SupContrast's
``features``. ``--as`` says what else the objective needs to know: ``pairing=one_way``, ``normalize=false``,
``cat=2`` where one parameter holds two views, one below the other, and ``anchors=first`` where only the first view's
samples are anchors; and ``epsilon=1e-8`` where the function's own loss is ``-log(p + 1e-8)``. Parameters may also be
passed by an objective's own names: ``(features, labels=targets)``, ``(image, text, scale=logit_scale,
bias=logit_bias)``.

**How to put an objective there.** The script computes, and logs, its own loss; the gradient that its backward pass
brings to the embeddings becomes that of the objective, see :mod:`counterpoint.plugins.gradient`. ``--own`` says what
the function computes, which is then proved during training; without it, a function that returns a loss alone is taken
for a mean over anchors.

**What is not possible.** Functions that are defined inside other functions.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from counterpoint.batch.options import BatchOptions
from counterpoint.batch.pairings import PAIRINGS
from counterpoint.names import check_known, nearest

from .call import Call, call_of
from .embeddings import Embeddings
from .host import OWN_LOSS, Host, Seam, SeamError
from .sites import Site, functions, is_file, is_installed, is_of_torch

NAME = "function"
_TEXT = re.compile(r"([^()]+)\(([^()]*)\)")
_AS: dict[str, Any] = {"pairing": (*PAIRINGS,), "anchors": ("all", "first"), "cat": None, "epsilon": None}
_AS |= dict.fromkeys(("symmetric", "normalize", "gather"), ("true", "false"))


@dataclass(frozen=True)
class _Replaced:
    """The values of ``--replace`` and ``--as``."""

    site: Site  # the function
    views: tuple[str, ...]  # its parameters that are embeddings
    named: dict[str, str]  # parameters that the objective gets by name, by that name
    options: dict[str, Any]  # those of ``--as``
    own: str  # the loss that the function computes, or ""

    @classmethod
    def parse(cls, text: str, how: str, own: str) -> _Replaced:
        match = _TEXT.fullmatch(text.strip())
        parts = [part.strip() for part in match[2].split(",") if part.strip()] if match else []
        named = dict(part.replace(" ", "").split("=", 1) for part in parts if "=" in part)
        views = tuple(part for part in parts if "=" not in part)
        if match is None or not views or ":" not in match[1]:
            raise SeamError(
                f"--replace {text!r}: expected FILE:FUNCTION(a, b) with the parameters that are embeddings, as in "
                '"losses.py:NTXent.forward(z_i, z_j)"'
            )
        known = (*BatchOptions.__annotations__, "scale", "bias")
        for name in named:
            check_known(f"--replace {text!r}: an objective has no argument", name, known, SeamError)
        options: dict[str, Any] = {}
        for part in filter(None, how.replace(" ", "").split(",")):
            key, _, value = part.partition("=")
            if key not in _AS:
                raise SeamError(f"--as {part!r}: expected KEY=VALUE.{nearest(key, _AS)}")
            if (choices := _AS[key]) is not None and value not in choices:
                raise SeamError(f"--as {part!r}: unknown {key}.{nearest(value, choices)}")
            options[key] = value == "true" if choices == ("true", "false") else value
        if not (cat := str(options.get("cat", "1"))).isdigit() or int(cat) < 1:
            raise SeamError(f"--as cat={cat}: expected the number of views that lie below one another")
        if not re.fullmatch(r"[\d.]+(e-\d+)?", epsilon := str(options.get("epsilon", "0"))):
            raise SeamError(f"--as epsilon={epsilon}: expected a small number, as in epsilon=1e-8")
        options |= {"cat": int(cat), "epsilon": float(epsilon)}
        return cls(Site.parse(match[1].strip(), "--replace"), views, named, options, own)

    def call(self, values: Mapping[str, Any]) -> Call:
        """Return the call of an objective for these values of parameters."""
        views = [values[name] for name in self.views]
        for name, view in zip(self.views, views, strict=True):
            if not isinstance(view, Tensor):
                raise SeamError(f"{self.site.text}: {name} is not a tensor, but {type(view).__name__}")
        return call_of(views, {**self.options, **{key: values[name] for key, name in self.named.items()}})


def before(seam: Seam) -> None:
    """Replace the function in modules that are loaded, and in each module as soon as it is."""
    if not seam.options.get("replace"):
        raise SeamError(
            'function: which one? --replace "FILE:FUNCTION(a, b)" with the parameters that are embeddings. '
            "`counterpoint inject auto -- train.py ...` finds it."
        )
    given = (seam.options.get(name) for name in ("replace", "as", "own"))
    texts, ways, owns = ([x] if isinstance(x, str) else x or [""] for x in given)
    every = [*map(_Replaced.parse, texts, one_for_each("--as", ways, texts), one_for_each("--own", owns, texts))]
    seam.named = [each.site.text for each in every]
    if len({*seam.named}) < len(every):
        raise SeamError("function: --replace names a function twice")
    others: list[str] = []  # files of installed packages that have the same name

    def patch(module: ModuleType) -> None:
        for replaced in every:
            try:
                _patch(seam, replaced, module)
            except SeamError as error:
                file = module.__file__ or ""
                if not is_installed(file):
                    raise
                if not is_of_torch(file):
                    others.append(str(error))

    def end() -> None:
        for message in others if {*seam.named} - {*seam.replaced} else ():
            seam.say(message)

    seam.at_end.append(end)
    seam.if_wrong = _OWN_IS_WRONG if seam.options.get("own") else _IF_WRONG
    seam.behind = tuple(each.site.function.partition(".")[0] for each in every)
    for_modules(seam, patch)


def one_for_each(option: str, values: Sequence[Any], texts: Sequence[str], of: str = "--replace") -> list[Any]:
    """Return the values of an option for each of several places; a single value is for all."""
    if len(values) not in (1, len(texts)):
        raise SeamError(f"{option}: expected one, or one for each of {len(texts)} {of}, got {len(values)}")
    return [*values] * (len(texts) // len(values))


def for_modules(seam: Seam, patch: Callable[[ModuleType], None]) -> None:
    """Call ``patch`` with each module that is loaded, and, until the seam ends, with each further one once it is.

    Whatever loads a module from its source comes through here: imports, ``importlib.util.spec_from_file_location``,
    import hooks that rewrite code, modules that load when they are first used. The script itself comes last.
    """
    seam.patches.append(patch)
    for module in [*sys.modules.values()]:
        patch(module)
    loaders = vars(importlib.machinery)["SourceFileLoader"]
    execute = loaders.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        execute(self, module)
        patch(module)

    seam.put(loaders, "exec_module", exec_module)


_OWN_IS_WRONG = "--own, --as or the parameters are wrong: `counterpoint inject auto` says what the function computes."
_IF_WRONG = (
    "If --objective is meant to be another loss than the function's, say what the function computes, as in --own "
    "infonce:t=0.1, and that is compared; `counterpoint inject auto` finds it. Else --as, or the parameters, are wrong."
)


def _patch(seam: Seam, replaced: _Replaced, module: ModuleType) -> None:
    file, names = getattr(module, "__file__", None), replaced.site.function.split(".")
    if not isinstance(file, str) or not is_file(file, replaced.site.file):
        return
    hint = f".{nearest(replaced.site.function, functions(file))} If you mean another file, give more of its path."
    owner: Any = module
    for name in names[:-1]:
        owner = vars(owner).get(name)
        if not isinstance(owner, type):
            raise SeamError(f"{replaced.site.text}: {file} has no class {name!r}{hint}")
    private = isinstance(owner, type) and names[-1][:2] == "__" and names[-1][-2:] != "__"
    key = f"_{owner.__name__.lstrip('_')}{names[-1]}" if private else names[-1]  # as Python mangles it
    original = vars(owner).get(key)
    if original is None:
        raise SeamError(f"{replaced.site.text}: {file} does not define it{hint}")
    kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    function = original if kind is None else original.__func__
    if not inspect.isfunction(function):
        raise SeamError(f"{replaced.site.text}: expected a function, got {type(function).__name__}")
    if hasattr(function, "counterpoint_replaces"):
        return
    parameters = inspect.signature(function).parameters
    for name in (*replaced.views, *replaced.named.values()):
        check_known(f"{replaced.site.text}: no parameter", name, parameters, SeamError)
    call = _replacement(seam, replaced, function)
    setattr(owner, key, call if kind is None else kind(call))
    seam.say(f"replaced {replaced.site.function} of {file}")


def _replacement(seam: Seam, replaced: _Replaced, original: Callable[..., Any]) -> Callable[..., Any]:
    signature, where = inspect.signature(original), replaced.site.text
    own = replaced.own or (seam.spec.partition(";")[0] if seam.verify else None)
    names = [*dict.fromkeys((*replaced.views, *replaced.named.values()))]

    def called(*values: Any) -> Call:
        return replaced.call(dict(zip(names, values, strict=True)))

    inside = set[int]()  # threads in it; a call of itself is a part of the outermost one, which is compared as a whole

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (thread := get_ident()) in inside:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        seam.saw(where, "embeddings", replaced=True)
        replaced.call(bound.arguments)  # raises now what is wrong with them
        embeddings = Embeddings(seam, where, own or OWN_LOSS, called, replaced.site, bound.arguments)
        before = [bound.arguments[name] for name in names]
        after = embeddings(*before)
        if all(a is b for a, b in zip(before, after, strict=True)):
            return original(*args, **kwargs)
        bound.arguments.update(zip(names, after, strict=True))
        inside.add(thread)
        try:
            result = original(*bound.args, **bound.kwargs)
        finally:
            inside.remove(thread)
        if own is None and seam.spec != OWN_LOSS:
            if not isinstance(result, Tensor):
                raise SeamError(
                    f"{where} returns {type(result).__name__}, not a loss alone: say what it computes, "
                    "as in --own infonce:t=0.1; `counterpoint inject auto` finds it"
                )
            pairs = "" if "pairing" in replaced.options else ", of all views (--as pairing=one_way: of the first)"
            seam.notes[where] = f"taken for a mean over anchors{pairs}, and not compared: --own says what it computes"
        return embeddings.returned(result)

    vars(call)["counterpoint_replaces"] = original
    # compiled code would trace what happens here once
    return torch.compiler.disable(call)  # type: ignore[no-any-return]


HOST = Host(
    name=NAME,
    title="any script whose loss is a function of embeddings",
    seam='the function of --replace "FILE:FUNCTION(a, b)", in a file that is imported, not loaded by exec or runpy',
    tensors="the arguments of its calls; --as says how they are compared",
    spec="the function itself; --verify compares it with --own, or with --objective",
    tested="torch 2.15; November 2026",
    max_views=None,
    views="as many embeddings as the function gets",
    options=("replace", "as", "own", "allow_drift"),
    hint="`counterpoint inject auto` finds the function and its parameters.",
    before=before,
)
