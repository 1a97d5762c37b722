"""What a plugin says about its host, and what happens at the seam where the host's loss sat.

A plugin is a module with a :class:`Host`. It answers: how a clone is recognised, where its loss sits, which tensors
are there, what the host's own settings are as a spec, and how to put another objective there. It holds no loss math.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, distributed

from counterpoint.engine.distributed import gather
from counterpoint.hyper import Schedule
from counterpoint.objective import Objective, objective
from counterpoint.objectives.positives import ArCL
from counterpoint.vectors import widen

HOST = "host"  # the objective's name that stands for whatever the host does itself


class SeamError(RuntimeError):
    """The host cannot take this objective, or is not what it was said to be."""

    code = 2


class UnreachedError(SeamError):
    """The host, as it was called, computes its loss somewhere else."""

    code = 3


@dataclass(frozen=True)
class Shim:
    """A change to today's packages without which the unmodified host does not run.

    Attributes:
        name: short, unique within the host.
        why: what breaks without it, and since which version.
        apply: makes the change if it is needed and returns whether it was; called before the script is loaded.
        script: the part of the change that is made in the script's own module, once its definitions are there.
    """

    name: str
    why: str
    apply: Callable[[], bool]
    script: Callable[[ModuleType], None] | None = None


@dataclass
class Seam:
    """One run's seam: chooses the objective, computes the loss, counts, compares and reports.

    Attributes:
        spec: the objective that the user asked for; ``host`` for the host's own.
        verify: number of first steps that are taken with the host's own loss, computed beside ours.
        report: file that gets one line of diagnostics per step.
        options: what else the host's plugin was given (``--scale``, ...).
        start: the call at which schedules, and the steps of the report, begin: hosts that resume a training of their
            own know nothing of the objective's state.
        seen: places where the host's loss might be, and how often each was passed; shown if the seam is never reached.
        quiet: says nothing; for spawned processes, whose parent has said it.
    """

    spec: str
    verify: int = 0
    report: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    calls: int = 0
    replaced: list[str] = field(default_factory=list)
    differences: list[tuple[float, float]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    quiet: bool = False
    _made: dict[tuple[str, int], Objective] = field(default_factory=dict)

    def say(self, what: str) -> None:
        """Tells the user, on standard error, which place was replaced."""
        self.replaced.append(what)
        if first_process() and not self.quiet:
            print(f"counterpoint: {what}", file=sys.stderr)

    def objective(self, host_spec: str, place: object = None) -> Objective:
        """The objective in force.

        Args:
            host_spec: the host's own loss at the settings of this run.
            place: for hosts with several criteria, which one asks: each has schedules and statistics of its own.
        """
        wanted = host_spec if self.calls < self.verify or self.spec == HOST else self.spec
        key = wanted, id(place)
        if key not in self._made:
            made = self._made[key] = objective(wanted)
            for part in made.modules():
                if isinstance(part, Schedule):
                    part.step += self.start
        return self._made[key]

    def views(self, loss_fn: Objective) -> int:
        """How many views ``loss_fn`` is to get: ``--views``, what it asks for, or the host's two."""
        if self.calls < self.verify:
            return 2
        return self.options.get("views") or loss_fn.views or 2

    def loss(
        self, loss_fn: Objective, theirs: Callable[[], Tensor], *args: Any, call: str = "forward", **how: Any
    ) -> Tensor:
        """``loss_fn``'s loss of what was found at the seam.

        Args:
            loss_fn: what :meth:`objective` returned.
            theirs: computes the host's own loss on the same tensors; called to verify only.
            args, how: arguments for the objective.
            call: its method, ``forward``, ``from_logits`` or ``from_scores``.
        """
        self.calls += 1
        loss_fn.to(args[0].device)  # what it tracks or counts lives where the batch is
        if is_lone(args, call, how):
            return theirs() if self.spec == HOST or self.calls <= self.verify else loss_of(loss_fn, *args, call=call)
        try:
            ours = loss_of(loss_fn, *args, call=call, **how)
        except ValueError as error:
            raise SeamError(f"{loss_fn} cannot be computed here: {error}") from error
        gathered = bool(how.get("gather"))
        if self.report is not None and (first_process() or gathered):  # who compares with others needs them
            line = {"step": self.start + self.calls, **loss_fn.report(*args, call=call, **how)}
            if first_process():
                with self.report.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        if self.calls > self.verify:
            return ours
        host = theirs()
        value = host.detach()
        if gathered:  # the host's is of this process's anchors
            value = gather(value.reshape(1)).mean()
        gap = abs(float(ours.detach()) - float(value))
        self.differences.append((gap, gap / max(abs(float(value)), 1e-12)))
        return host


@dataclass(frozen=True)
class Host:
    """A host code base.

    Attributes:
        name: as in ``counterpoint inject NAME``.
        title: what it is.
        seam: where the loss sits, in one line.
        tensors: what is there: normalised? divided by a temperature? positive in the denominator? gathered?
        spec: the host's own loss at its default settings.
        tested: versions with which the unmodified host ran.
        markers: file, relative to the clone, and text in it, by which a clone is recognised; the first alternative
            that holds will do. Empty for hosts that are packages.
        package: for hosts that are installed packages.
        views: what more than two views need, or why they cannot be had.
        many: whether they can be had.
        options: options of ``counterpoint inject`` that only this host has.
        hint: how to find out what these are to be, shown with the host's ``--help``.
        shims: see :class:`Shim`.
        before: installs the seam before the script is loaded (patches of packages).
        after: installs the seam when the script's definitions are there (patches of the script's own classes);
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
    views: str = ""
    many: bool = False
    options: tuple[str, ...] = ()
    hint: str = ""
    shims: tuple[Shim, ...] = ()
    before: Callable[[Seam], None] | None = None
    after: Callable[[Seam, ModuleType], None] | None = None

    def recognises(self, folder: Path) -> bool:
        """Whether the clone in ``folder`` is this host."""
        for name, text in self.markers:
            path = folder / name
            if path.is_file() and text in path.read_text(errors="replace"):
                return True
        return False


def first_process() -> bool:
    """Whether this process speaks for all that train together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"  # Lightning sets the second alone


def loss_of(loss_fn: Objective, *args: Any, call: str = "forward", **how: Any) -> Tensor:
    """``loss_fn``'s loss of a host's batch; a batch of one sample, which has no negatives, is zero and warned of.

    So are the hosts' own losses, and a last batch of one is no reason to end a training. The zero is a function of the
    embeddings, so that there is a gradient in every process.

    Args:
        args, how: arguments for the objective.
        call: its method, ``forward``, ``from_logits`` or another one.
    """
    if not is_lone(args, call, how):
        loss: Tensor = (loss_fn if call == "forward" else getattr(loss_fn, call))(*args, **how)
        return loss
    warnings.warn(
        "a batch of one sample has no negatives: its loss is zero. DataLoader(drop_last=True), in the arguments of "
        "transformers' trainers dataloader_drop_last=True, leaves out such a last batch.",
        stacklevel=1,  # one place, so that Python says it once
    )
    embeddings = args if call == "forward" else args[:1]
    zero = reduce(add, (widen(x).sum() for x in (*embeddings, *loss_fn.parameters()))) * 0
    return zero if how.get("reduction", "mean") == "mean" else zero.reshape(1)


def is_lone(args: Sequence[Any], call: str, how: Mapping[str, Any]) -> bool:
    """Whether a call is for one sample alone, with no negatives from a queue, hard ones or other processes."""
    if call == "from_logits":
        return isinstance(args[0], Tensor) and args[0].shape == (1, 1)
    single = args and all(isinstance(view, Tensor) and view.shape[:1] == (1,) for view in args)
    if call != "forward" or not single or how.get("reduction", "mean") != "mean":
        return False
    others = how.get("gather") and distributed.is_available() and distributed.is_initialized()
    return not others and how.get("queue") is None and how.get("negatives") is None


def one_way(loss_fn: Objective) -> Objective:
    """For hosts whose anchors are the first view only: so do all terms, unless their paper compares other pairs."""
    for part in loss_fn.modules():
        # not by the argument pairing= of a call, which would overrule the papers' pairings as well
        if isinstance(part, Objective) and part.pairing == "views":
            vars(part)["pairing"] = "one_way"
    return loss_fn


def refuse(loss_fn: Objective, host: str, *, inputs: str, two_views: str = "") -> Objective:
    """The objective, if this host has what it needs, else an error that says why not.

    Args:
        inputs: why there are no adversarial and no mixed inputs.
        two_views: for hosts with two views and no place for more, why.
    """
    if loss_fn.needs:
        raise SeamError(f"{host}: {loss_fn} needs {' and '.join(sorted(loss_fn.needs))} views, but {inputs}")
    if two_views and (loss_fn.views or 2) > 2:
        raise SeamError(f"{host}: {loss_fn} asks for {loss_fn.views} views, but {two_views}")
    if two_views and any(isinstance(part, ArCL) and part.views is None for part in loss_fn.modules()):
        # with one pair of views the worst pair, and the mean over pairs, is that pair: no ArCL any more
        raise SeamError(f"{host}: {loss_fn} compares several views, but {two_views}. If two are meant: views=2")
    return loss_fn
