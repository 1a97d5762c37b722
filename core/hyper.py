"""Hyper-parameters: names, defaults and ranges, from which ``__init__`` and the texts of objectives are generated."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import warnings
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter, Signature
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from torch import Tensor, nn, no_grad
from typing_extensions import Self, TypeVar

from . import checks, spec
from .names import check_known, register
from .values import FromHost, Learned, Number, Schedule, Value, number, text

T = TypeVar("T", default=Number, contravariant=True)
V = TypeVar("V", default=Value, covariant=True)
W = TypeVar("W", bound=str, default=str, contravariant=True)

REQUIRED: Any = Parameter.empty  # in place of a default


@dataclass(eq=False)
class Hyper(Generic[T, V]):
    """A hyper-parameter of an objective: a read-only attribute that accepts a ``T`` and reads as a ``V``.

    Args:
        short: Name in specs (``t`` for ``temperature``); by default the attribute's name.
        default: Value if the caller passes none; without a default the parameter is required, and keyword-only.
        doc: One sentence for the ``Args`` section of the objective's docstring.
        always: Print it in specs even at its default.
        kw_only: Pass it by name; type checkers require that, and positional parameters come first.
    """

    short: str = ""
    _: KW_ONLY
    default: Any = REQUIRED
    doc: str = ""
    always: bool = False
    kw_only: bool = False

    def __post_init__(self) -> None:
        self.kw_only = self.kw_only or self.default is REQUIRED

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.short = self.short or name

    @overload
    def __get__(self, objective: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, objective: object, owner: Any = None) -> V: ...
    def __get__(self, objective: Any, owner: Any = None) -> Any:
        return self if objective is None else objective._hyper[self.name]()  # only values that move get here

    if TYPE_CHECKING:  # at run time this stays a non-data descriptor: constants live in the instance's __dict__

        def __set__(self, objective: Any, value: T) -> None: ...

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its canonical type, or raise an error that names the objective ``where``."""
        raise NotImplementedError

    def expected(self) -> str:
        """Describe the accepted values."""
        raise NotImplementedError

    def fail(self, value: Any, where: str) -> Exception:
        kind = ValueError if isinstance(value, (numbers.Real, str)) else TypeError
        hint = " To train a number, pass a Learned(...)." if isinstance(value, Tensor) else ""
        return kind(f"{where}: {self.name} must be {self.expected()}, got {value!r}.{hint}")


@dataclass(eq=False)
class Real(Hyper[T, V]):
    """A number in an interval, or one of ``words`` (``"auto"``), or None if ``optional``.

    ``low`` and ``high`` belong to the interval, ``above`` and ``below`` do not. It also accepts a :class:`Schedule` or
    a :class:`Learned` value unless it is ``fixed``, as ``whole`` numbers are.

    >>> class Scaled(cp.Objective):
    ...     scale: cp.Real = cp.Real("s", above=0, default=1.0)
    >>> Scaled(s=0.5).scale
    0.5
    """

    _: KW_ONLY
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    words: tuple[str, ...] = ()
    optional: bool = False
    fixed: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fixed = self.fixed or self.whole

    def expected(self) -> str:
        lower = [f"{number(x)} {sign} " for x, sign in ((self.low, "<="), (self.above, "<")) if x > -math.inf]
        upper = [f" {sign} {number(x)}" for x, sign in ((self.high, "<="), (self.below, "<")) if x < math.inf]
        interval = f" with {''.join(lower[:1])}{self.name}{''.join(upper[:1])}" if lower or upper else ""
        words = [f'"{word}"' for word in (*self.words, *["host"] * (self.name in FromHost.missing))]
        kind = "a whole number" if self.whole else "a finite number"
        return " or ".join([kind + interval, *words, *["None"] * self.optional])

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below

    def check(self, value: Any, where: str) -> Any:
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return value
        if self.name in FromHost.missing and isinstance(value, str) and value == "host":
            return FromHost(self.name)
        if isinstance(value, FromHost) and value.name == self.name:
            return value
        if isinstance(value, (Schedule, Learned)) and not self.fixed:
            if not all(map(self.contains, value.bounds())):
                raise ValueError(f"{where}: {self.name} must be {self.expected()}, got {value}.")
            return value
        if not checks.is_number(value) or not self.contains(value) or (self.whole and value != int(value)):
            raise self.fail(value, where)
        return int(value) if self.whole else float(value)


class Choice(Hyper[W, str]):
    """One of a few words; type checkers know them from an annotation such as ``Choice[Literal["mean", "sum"]]``.

    >>> class Averaged(cp.Objective):
    ...     average: cp.Choice = cp.Choice("mean", "sum", default="mean")
    >>> Averaged("sum").average
    'sum'
    """

    def __init__(self, *options: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.options = options

    def expected(self) -> str:
        return "one of " + ", ".join(self.options)

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise self.fail(value, where)
        check_known(f"{where}: unknown {self.name}", value, self.options)
        return value


class Flag(Hyper[bool, bool]):
    """True or False.

    >>> class Centered(cp.Objective):
    ...     center: cp.Flag = cp.Flag(default=True)
    >>> Centered(center=False).center
    False
    """

    def expected(self) -> str:
        return "True or False"

    def check(self, value: Any, where: str) -> Any:
        if not isinstance(value, bool):
            raise self.fail(value, where)
        return value


class Numbers(Hyper[list[float] | tuple[float, ...] | None, tuple[float, ...] | None]):
    """Positive numbers, ``[64,128]`` in specs, or None."""

    def expected(self) -> str:
        return "positive numbers, such as [64,128], or None"

    def check(self, value: Any, where: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not value or not all(checks.is_number(x) and x > 0 for x in value):
            raise self.fail(value, where)
        return tuple(map(float, value))


class _ClassSignature:
    """The signature of a class's ``__init__``; instances keep that of their call."""

    def __get__(self, instance: Any, cls: type[Parametrized]) -> Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        if cls.__init__ is not Parametrized.__init__:
            return Signature([*inspect.signature(cls.__init__).parameters.values()][1:])
        return Signature(cls._call_order())


class Parametrized(nn.Module):
    """A module with a name whose hyper-parameters are class attributes, frozen after ``__init__``."""

    __signature__: _ClassSignature = _ClassSignature()
    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""  # by default what the second paragraph of the docstring begins with
    paper: ClassVar[str] = ""  # by default from the docstring: "Paper: ..."
    hyper: ClassVar[dict[str, Hyper[Any, Any]]] = {}
    of_calls: ClassVar[tuple[str, ...]] = ()  # arguments of calls, not hyper-parameters

    def __init_subclass__(cls, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = name
        inherited = cls.hyper
        cls.hyper = {k: v for c in reversed(cls.__mro__) for k, v in vars(c).items() if isinstance(v, Hyper)}
        for key, hyper in cls.hyper.items():
            if key in inherited and hyper.default is REQUIRED:  # a new range keeps the default and the position
                hyper.default, hyper.kw_only = inherited[key].default, inherited[key].kw_only
        doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
        cls.__doc__ = _with_args(doc, cls._call_order(), cls.hyper) or None
        for key, pattern in (("formula", r"\A.+?\n\n``(.+?)``"), ("paper", r"^Paper: (.+?)\.?(\n\n|\Z)")):
            if (written := re.search(pattern, doc, re.M | re.S)) and key not in vars(cls):
                setattr(cls, key, re.sub(r"\s*\n\s*", " ", written[1]))
        if name and not spec.NAME.fullmatch(name):
            raise ValueError(f"{cls.__name__}: {name!r} is not a valid name; use lower-case letters, digits and _.")
        if name in ("sum", *spec.CALLS):
            raise ValueError(f"{cls.__name__}: the name {name!r} is reserved.")
        if name:
            register(name, cls)

    @classmethod
    def _call_order(cls) -> list[Parameter]:
        """Return the parameters of ``__init__``, the keyword-only ones last."""
        kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        positional_first = sorted(cls.hyper.items(), key=lambda item: item[1].kw_only)
        return [Parameter(k, kinds[h.kw_only], default=h.default) for k, h in positional_first]

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__()
        self._assign(self._bind(args, values))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validate parameters against each other and create state; runs when all are set."""

    @classmethod
    def _by_long_name(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Name values by the long names of their hyper-parameters: ``t`` is ``temperature``."""
        long = {hyper.short: key for key, hyper in cls.hyper.items()}
        for key in values:
            if (name := long.get(key, key)) != key and name in values:
                raise TypeError(f"{cls.__name__}: {name} was passed twice, also as {key}.")
        return {long.get(key, key): value for key, value in values.items()}

    def _bind(self, args: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
        """Name the positional arguments and fill in the defaults."""
        where, defaults = type(self).__name__, {p.name: p.default for p in self._call_order()}
        names, values = [*defaults], self._by_long_name(values)
        if len(args) > len(names):
            raise TypeError(f"{where}: expected at most {len(names)} arguments ({', '.join(names)}), got {len(args)}.")
        for name in values:
            hint = f" Give it to the call: loss_fn(z1, z2, {name}=...)." if name in self.of_calls else ""
            check_known(f"{where}: unknown parameter", name, names, TypeError, hint)
            if name in names[: len(args)]:
                raise TypeError(f"{where}: {name} was passed both by position and by name.")
        bound = defaults | dict(zip(names, args, strict=False)) | values
        if missing := [name for name, value in bound.items() if value is REQUIRED]:
            raise TypeError(f"{where}: {missing[0]}= is required.")
        return bound

    def _assign(self, values: dict[str, Any]) -> None:
        self._hyper: dict[str, Any] = {}
        for key, hyper in self.hyper.items():
            value = self._hyper[key] = hyper.check(values[key], type(self).__name__)
            if isinstance(value, nn.Module):
                self.add_module("_" + key, value)
            else:
                self.__dict__[key] = value  # shadows the descriptor, which old versions of torch.compile cannot trace

    def __setattr__(self, key: str, value: Any) -> None:
        name = next(iter(self._by_long_name({key: value})))
        if name in self.hyper:
            hint = "pass a Schedule or a Learned value for one that changes during training"
            frozen = f"{type(self).__name__}.{name} is frozen"
            raise AttributeError(f"{frozen}: use .replace({name}=...) for a changed objective, or {hint}.")
        super().__setattr__(key, value)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Return the default of every parameter of ``__init__``; ``Parameter.empty`` if it has none."""
        declared = {key: hyper.default for key, hyper in cls.hyper.items()}
        return declared | {p.name: p.default for p in inspect.signature(cls).parameters.values()}

    def _own(self) -> dict[str, Any]:
        """Return copies of the arguments that rebuild this object."""
        return deepcopy(self._hyper)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other hyper-parameters, and with its own schedules and learned values."""
        return type(self)(**self._own() | self._by_long_name(changes))

    def _parameters_text(self, detail: str) -> str:
        """Write the parameters that differ from their defaults, and the others that ``detail`` asks for."""
        defaults, shown = self._defaults(), []
        for key, hyper in self.hyper.items():
            value, always = self._hyper[key], detail != "short" and hyper.always
            if always or value != defaults[key] or (detail == "full" and isinstance(hyper, Real) and value is not None):
                shown.append(f"{hyper.short}={text(value)}")
        return ":" + ",".join(shown) if shown else ""

    @property
    def _spec_name(self) -> str:
        return self.name or type(self).__name__  # of an unregistered class, which no spec can build

    def __str__(self) -> str:
        """Return the canonical spec, which identifies stored runs: changed parameters, and those that matter most."""
        return self._text("usual")

    def __repr__(self) -> str:
        """Return a spec that also shows every number."""
        return self._text("full")

    @property
    def label(self) -> str:
        """The shortest spec, for tables: only what differs from the defaults."""
        return self._text("short")

    def _text(self, detail: str) -> str:
        return self._spec_name + self._parameters_text(detail)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which :func:`counterpoint.from_dict` rebuilds this object."""
        plain = {k: v if v is None or isinstance(v, (bool, int, float)) else text(v) for k, v in self._hyper.items()}
        return {"name": self._spec_name, **plain}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """Build an object from its hyper-parameters as JSON values."""
        return cls(**{k: spec.value(v) if isinstance(v, str) else v for k, v in data.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parametrized) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return id(self)


def _with_args(doc: str, parameters: list[Parameter], hyper: dict[str, Hyper[Any, Any]]) -> str:
    """Add an ``Args`` section before the papers and the examples, unless the docstring has one."""
    documented = [p for p in parameters if p.name in hyper and hyper[p.name].doc]
    if not documented or re.search(r"^Args:$", doc, re.M):
        return doc
    lines = ["Args:"]
    for p in documented:
        default = "" if p.default is REQUIRED else f" Default: {p.default!r}."
        lines.append(fill(f"    {p.name}: {hyper[p.name].doc}{default}", 100, subsequent_indent=" " * 8))
    at = re.search(r"^(Papers?:|>>> )|\Z", doc, re.M).start()  # type: ignore[union-attr]
    return "\n\n".join(part for part in (doc[:at].rstrip(), "\n".join(lines), doc[at:]) if part)


MAX_TEMPERATURE = 5.0  # divided by more than this, any two cosines differ by less than 0.4
LARGEST = 1.05  # larger than any cosine, however rounded


def first_temperatures(objective: nn.Module) -> list[tuple[nn.Module, float]]:
    """Return the parts of an objective that have a temperature, and its first value."""
    parts = objective.modules() if objective._modules else (objective,)
    known = [(part, vars(part).get("_hyper", {}).get("temperature")) for part in parts]
    starts = [(part, getattr(temperature, "start", temperature)) for part, temperature in known]
    return [(part, start) for part, start in starts if isinstance(start, float)]


def warn_of_scales(objective: nn.Module) -> None:
    """Warn of temperatures that start so high that cosines hardly differ: most likely they are scales of logits."""
    for part, start in first_temperatures(objective):
        if start > MAX_TEMPERATURE:
            wrong = f"expected a temperature of at most {MAX_TEMPERATURE:g} for cosines, got {number(start)}"
            hint = f"If this is a scale of logits, the temperature is 1/{number(start)}."
            warnings.warn(f"{type(part).__name__}: {wrong}. {hint}", stacklevel=5)  # where the objective is called


def warn_of_scale(objective: nn.Module, scores: Any, scale: float | Tensor) -> None:
    """Warn if parameters are for cosines, but similarities cannot be: the scale is missing, or a temperature."""
    if "_checked_scale" in vars(objective) or checks.traced() or scores.pos.is_meta:
        return  # reading a similarity synchronizes with an accelerator: once is enough
    vars(objective)["_checked_scale"] = True
    factor = float(scale.detach() if isinstance(scale, Tensor) else scale)
    small = factor == 1 and any(start < 1 for _, start in first_temperatures(objective))
    on_cosines = any(getattr(part, "on_cosines", False) for part in objective.modules())
    with no_grad():  # a checkpoint would miss the graph of the first call in later ones
        pos, hardest = scores.pos.detach(), scores.neg.max()
    if on_cosines and bool((pos.maximum(hardest) == 0).all()) and bool((pos < 0).any()):
        wrong = "the largest logit of each row is 0, as if it had been taken from the row, and cosines are expected"
        warnings.warn(f"{objective}: {wrong}; pass the logits before that.", stacklevel=3)
    if small or (factor <= 1 and on_cosines):
        largest = float(pos.maximum(hardest).max())
        if largest > LARGEST:
            wrong = f"expected cosines, but similarities reach {largest:.3g} at scale={factor:g}"
            hint = "pass scale=, by which they were multiplied: one over the temperature, 20 for 0.05"
            warnings.warn(f"{objective}: {wrong}; {hint}.", stacklevel=3)  # where the objective is called
