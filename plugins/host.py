"""The declaration of a host by its plugin, and the seam: the place where the host computes its loss.

A plugin is a module with a :class:`Host`. It says how to recognize a clone, where the loss sits, which tensors are
there, which spec the host's own loss is, and how to put another objective there. It holds no loss math.
"""

import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import add
from pathlib import Path
from statistics import fmean, median
from types import ModuleType
from typing import Any

from torch import Tensor, distributed

from counterpoint.base import Objective, as_objective
from counterpoint.objectives.positives import ArCL
from counterpoint.treatments import Treatment
from counterpoint.treatments import treatment as read_treatment
from counterpoint.values import Schedule
from counterpoint.vectors import widen

from .encoders import OwnGuide
from .paths import look_up
from .printing import print_lines

OWN_LOSS = "host"
"""The spec that stands for whatever the host computes itself."""
WHOLE = 8
"""Calls after which a part of the loss that was left alone is an error."""
PATIENCE = 100
"""Steps of an optimizer after which it is an error that the loss was never reached."""
ONE_WAY = {"views": "one_way"}
"""``pairing=`` for hosts whose anchors are the first view only, unless an objective's paper compares other pairs."""


class SeamError(RuntimeError):
    """The host cannot take this objective, or it is not the host that you named."""

    code = 2


class HalfError(SeamError):
    """The host computed its loss in other places, too, and these were left alone."""

    code = 4


class DifferenceError(SeamError):
    """The host's own loss is not the objective that it was compared with."""

    code = 5


class UnreachedError(SeamError):
    """With these settings, the host computes its loss somewhere else."""

    code = 3


@dataclass(frozen=True)
class Shim:
    """A change to today's packages without which the unmodified host does not run.

    Attributes:
        name: short, unique within the host.
        why: what breaks without it, and since which version.
        apply: makes the change if it is needed and returns whether it was; called before the script is loaded.
        script: the part of the change in the script's own module, called when its definitions are loaded.
    """

    name: str
    why: str
    apply: Callable[[], bool]
    script: Callable[[ModuleType], None] | None = None


@dataclass
class Seam:
    """The seam in one run: the objective that trains, the proofs, and the losses that were left alone."""

    spec: str  # the objective to train with; ``host`` for the host's own loss
    verify: int = 0  # train in so many first calls with the host's own loss
    report: Path | None = None  # file that gets a line of diagnostics per step
    options: dict[str, Any] = field(default_factory=dict)  # further options of the host's plugin (``--scale``, ...)
    # the call at which schedules and the steps of the report begin: a host that resumes training does not restore the
    # objective's state
    start: int = 0
    calls: int = 0  # of the host's loss so far
    proofs: int = 0  # calls in which the gradient was that of the host's own loss
    worst: float = 0.0  # its largest difference in these, relative
    proved_at: str = ""  # what the gradient was compared at, embeddings or logits
    first: float = 0.0  # the size of the first gradient, by which repetitions are told from seeds with equal results
    # of a returned loss: its weight over the gradient that arrives, how long that has stayed, the calls, and the loss
    ratios: dict[object, tuple[float, int, int, float]] = field(default_factory=dict)
    if_wrong: str = (  # what to do about a difference
        "The script is not what this host knows, or another term of its loss reaches these tensors: `counterpoint "
        "inject auto` says what it computes. --allow-drift trains on regardless."
    )
    # losses like the host's that were left alone: calls by place and by shape; and the calls that were replaced
    seen: dict[str, dict[str, int]] = field(default_factory=dict)
    replaced: dict[str, dict[str, int]] = field(default_factory=dict)
    # by place, the gradient that has arrived at losses that were left alone; zero if their weight in the loss is
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # what else the user should know at the end, by place
    # functions or classes behind whose definitions the script's own code is changed; else behind the last
    behind: Sequence[str] = ()
    named: Sequence[str] = ()  # functions that are replaced, all of which the script must call
    patches: list[Callable[[ModuleType], object]] = field(default_factory=list)  # called with each loaded module
    at_end: list[Callable[[], object]] = field(default_factory=list)  # called when the script has ended
    quiet: bool = False  # print nothing; for spawned processes, whose parent prints
    gaps: list[float] = field(default_factory=list)  # seconds from each call to the next
    owns: dict[int, str] = field(default_factory=dict)  # the host's own losses that were replaced, by the criterion
    own_guide: OwnGuide | None = None  # of a treatment that the first step's encoder guides, or its moving average
    # :meth:`counts` of a process that was spawned, which speaks for all
    in_processes: list[dict[str, float]] = field(default_factory=list)
    _objectives: dict[int, Objective] = field(default_factory=dict)
    _last_call: float | None = None

    def __post_init__(self) -> None:
        if ";" in self.spec and (kind := self._treatment.own_guide):
            self.own_guide = OwnGuide(moves=kind == "ema")
            self.at_end.append(self.own_guide.watch())

    @property
    def verifies(self) -> bool:
        """Whether the next step compares the host's own loss with ours."""
        return self.calls < self.verify

    @property
    def uses_own_loss(self) -> bool:
        """Whether the next step trains with the host's own loss."""
        return self.verifies or self.spec == OWN_LOSS

    def say(self, message: str) -> None:
        """Tell the user on standard error which loss was replaced."""
        if is_first_process() and not self.quiet:
            print_lines(f"counterpoint: {message}", file=sys.stderr)

    def count(self) -> None:
        """Count a call of the host's loss."""
        if self.calls == WHOLE:  # not when a training of days has ended
            self.raise_if_half()
        now = time.perf_counter()
        if self._last_call is not None:
            self.gaps.append(now - self._last_call)
        self.calls, self._last_call = self.calls + 1, now

    @property
    def step_seconds(self) -> float | None:
        """The time from one call to the next: the median of means over ten calls, which leaves out pauses."""
        starts = range(0, max(1, len(self.gaps) - 9), 10)
        return median(fmean(self.gaps[i : i + 10]) for i in starts) if self.gaps else None

    def saw(self, place: str, shape: str, replaced: bool) -> None:
        """Count a call that is, or could be, the host's loss."""
        calls = (self.replaced if replaced else self.seen).setdefault(place, {})
        calls[shape] = calls.get(shape, 0) + 1

    def raise_if_half(self, ended: bool = False) -> None:
        """Raise an error if a part of the host's loss was left alone, or the loss at its end, unless that is meant."""
        replaced, used = [_anchors(calls) for calls in self.replaced.values()], self.weights
        left = [at for at, calls in self.seen.items() if used.get(at, 1.0) and _anchors(calls) in replaced]
        if uncalled := [name for name in self.named if name not in self.replaced and not self.options.get("only")]:
            raise HalfError(f"{' and '.join(uncalled)} was not called. If it is called later, say --only")
        if left and not self.options.get("only"):
            raise HalfError(
                f"a part of the host's loss was left alone: {' and '.join(left)} was called as often with as many "
                "anchors. Name it, too (--site), or say --only if the host's own loss is meant to stay there."
            )
        if ended and not self.options.get("only") and "afterwards" in self.notes:
            raise HalfError(f"afterwards, {self.notes.pop('afterwards')}; if that is meant, say --only")

    def put(self, owner: Any, name: str, value: object) -> None:
        """Put a value in the place of ``owner.name`` until the script has ended."""
        self.at_end.append(partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def end(self) -> None:
        """Undo the plugin's changes when the script has ended."""
        while self.at_end:
            self.at_end.pop()()

    def objective(self, criterion: object = None, own: str = OWN_LOSS) -> Objective:
        """Return the objective that trains.

        Args:
            criterion: for hosts with several criteria, the one that asks: each has its own schedules and statistics.
            own: the host's own loss, whose temperature and denominator are those of an objective that names none.
        """
        if id(criterion) not in self._objectives:
            self.owns.setdefault(id(criterion), own)
            loss_fn = self._objectives[id(criterion)] = objective_of(self.spec, own)
            for module in loss_fn.modules():
                if isinstance(module, Schedule):
                    module.step += self.start
        return self._objectives[id(criterion)]

    def told(self, names: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Look up the paths of a treatment among the ``names`` at the loss; a wrong one fails in the first step."""
        if self.spec == OWN_LOSS or not (treatment := self._treatment).paths:
            return {}
        found = look_up(treatment, names(), SeamError)
        return {name: x.clone() if isinstance(x, Tensor) else x for name, x in found.items()}  # a buffer may change

    def counts(self) -> Iterator[dict[str, float]]:
        """Yield how many keys the treatments have excluded per anchor, and the share of anchors without negatives."""
        yield from self.in_processes
        for loss_fn in self._objectives.values():
            if isinstance(loss_fn, Treatment) and (anchors := float(loss_fn.counts["anchors"])):
                yield {name: float(loss_fn.counts[name]) / anchors for name in ("excluded", "without_negatives")}

    @cached_property
    def _treatment(self) -> Treatment:
        return read_treatment(self.spec, "infonce")


@dataclass(frozen=True)
class Host:
    """A host code base.

    Attributes:
        name: as in ``counterpoint inject NAME``.
        title: what it is.
        seam: where the loss sits, in one line.
        tensors: what is there: normalized? divided by a temperature? positive in the denominator? gathered?
        spec: the host's own loss at its default settings.
        tested: versions with which the unmodified host ran, and when.
        markers: pairs of a file, relative to the clone, and text in it; a clone is recognized by any one of them.
            Empty for hosts that are packages. ``auto`` names the host where a loss lies in one of these files.
        package, extra: for hosts that are installed packages, and the extra that brings them.
        sites: for hosts that are recognized by where a loss lies: ``FILE:FUNCTION``, and what else the plugin needs.
        scale: the name of the factor at these sites, where no product of embeddings leads to the logits.
        max_views: the most views per sample: None for any number, 1 if objectives that compare views are impossible.
        views: why there are not more.
        inputs: why the host has no adversarial and no mixed inputs; if empty, objectives that need them are not
            refused beforehand.
        guided: what to do instead where the encoder shall guide and there are only logits; ``{told}`` are its items.
        options: options of ``counterpoint inject`` that only some hosts have.
        hint: how to choose these options, shown with the host's ``--help``.
        shims: see :class:`Shim`.
        before: installs the seam before the script is loaded (patches of packages).
        after: installs the seam when the script's definitions are loaded (patches of the script's own classes);
            gets the script's module.
    """

    name: str
    title: str
    seam: str
    tensors: str
    spec: str
    tested: str
    markers: tuple[tuple[str, str], ...] = ()
    package: str = ""
    extra: str = ""
    sites: Mapping[str, str | None] = field(default_factory=dict)
    scale: str = ""
    max_views: int | None = 2
    views: str = ""
    inputs: str = ""
    guided: str = "Put the loss into a function, loss(a, b), and call `counterpoint inject auto`"
    options: tuple[str, ...] = ("allow_drift",)
    hint: str = ""
    shims: tuple[Shim, ...] = ()
    before: Callable[[Seam], object] | None = None
    after: Callable[[Seam, ModuleType], object] | None = None

    def recognises(self, folder: Path) -> bool:
        """Return whether the clone in ``folder`` is this host."""
        files = ((folder / name, text) for name, text in self.markers)
        return any(file.is_file() and text in file.read_text(errors="replace") for file, text in files)

    def as_seam(self, objective: str | Seam) -> Seam:
        """Return the launcher's seam as it is; check a spec, and return a new seam for it."""
        if isinstance(objective, Seam):
            return objective
        if objective != OWN_LOSS:
            self.check(objective)
        return Seam(objective)

    def check(self, loss_fn: Objective | str) -> Objective:
        """Return the objective, or raise a :class:`SeamError` that names the tensors it needs and this host lacks."""
        typed, loss_fn = loss_fn, as_objective(loss_fn, like="infonce")
        if "indexed" in loss_fn.needs and "index" not in getattr(loss_fn, "told", ()):
            raise SeamError(f'{self.name}: {typed} needs the positions of samples: add "; index=PATH"')
        if loss_fn.needs - {"indexed"} and self.inputs:
            needs = " and ".join(sorted(loss_fn.needs))
            raise SeamError(f"{self.name}: {typed} needs {needs} views, but {self.inputs}")
        if self.max_views == 1 and getattr(loss_fn, "own_guide", None):
            raise SeamError(
                f"{typed}: its encoder cannot guide a loss that is replaced at its logits, which do not say what "
                f"embedded their rows. {self.guided.format(told=str(typed).partition(';')[2].strip())}"
            )
        if self.max_views is None:
            return loss_fn
        multi = [part for part in loss_fn.modules() if isinstance(part, ArCL)]
        if multi and self.max_views == 1:
            raise SeamError(f"{self.name}: {typed} compares several views, but {self.views}")
        if (loss_fn.views or 2) > 2:
            raise SeamError(f"{self.name}: {typed} asks for {loss_fn.views} views, but {self.views}")
        if any(part.views is None for part in multi):
            # with one pair of views, the worst pair and the mean over pairs are that pair: nothing is left of ArCL
            several = f"{typed} compares several views, but {self.views}"
            raise SeamError(f"{self.name}: {several}. For two views, add views=2.")
        return loss_fn


def objective_of(spec: str, own: str = OWN_LOSS) -> Objective:
    """Return the objective or the treatment of a host whose own loss is ``own``.

    Raises:
        SeamError: the own loss is asked for, and not known.
    """
    if own != OWN_LOSS:
        return as_objective(spec, like=own)
    if spec.partition(";")[0].strip() == OWN_LOSS:
        raise SeamError(f"{spec}: the host's own loss is not known here; --own says what it computes")
    return as_objective(spec)


def depends_on_cosines(spec: str) -> bool:
    """Return whether the objective or a rule depends on the cosines themselves, not on their differences alone."""
    objective = as_objective(spec, like="infonce")
    rules = objective.rules if isinstance(objective, Treatment) and "guide" not in objective.told else ()
    parts = any(getattr(part, "on_cosines", False) for part in objective.modules())
    return parts or any(rule.kind != "absolute" for rule in rules)


def _anchors(calls: Mapping[str, int]) -> Counter[str]:
    """Count calls by their anchors: two directions may have other numbers of keys, and classifiers do not count."""
    counts = Counter[str]()
    for shape, number in calls.items():
        counts[shape.rpartition(", ")[0] if shape.endswith(")") else shape] += number
    return counts


def is_first_process() -> bool:
    """Return whether this process prints and writes for all that train together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"  # Lightning sets LOCAL_RANK alone


def world_size() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def loss_of(loss_fn: Objective, *args: Any, call: str = "forward", **options: Any) -> Tensor:
    """Compute the loss of a host's batch; for a batch of one sample, which has no negatives, warn and return zero.

    The hosts' own losses are zero there too, and a last batch of one should not end a training. The zero depends on
    the embeddings, so that every process has a gradient. ``call`` is the objective's method.
    """
    if not _is_single_sample(args, call, options):
        loss: Tensor = (loss_fn if call == "forward" else getattr(loss_fn, call))(*args, **options)
        return loss
    warnings.warn(
        "a batch of one sample has no negatives, so its loss is zero. Drop such a last batch: DataLoader("
        "drop_last=True), or dataloader_drop_last=True in the arguments of transformers' trainers.",
        stacklevel=1,  # always the same place, so that Python warns once
    )
    embeddings = args if call == "forward" else args[:1]
    zero = reduce(add, (widen(x).sum() for x in (*embeddings, *loss_fn.parameters()))) * 0
    return zero if options.get("reduction", "mean") == "mean" else zero.reshape(1)


def _is_single_sample(args: Sequence[Any], call: str, options: Mapping[str, Any]) -> bool:
    """Whether a batch is one sample without negatives from a queue, hard negatives or other processes."""
    single = args and all(isinstance(view, Tensor) and view.shape[:1] == (1,) for view in args)
    if call != "forward" or not single or options.get("reduction", "mean") != "mean":
        return False
    others = options.get("gather") and distributed.is_available() and distributed.is_initialized()
    return not others and options.get("queue") is None and options.get("negatives") is None
