"""The page of a race: its sentence, the curves of all treatments, who was dropped when, and the final intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from counterpoint.diagnose import figure, tidy

from .. import report
from ..report.output import svg
from ..report.plots import GREY, styles
from .settings import HOST

Points = list[tuple[float, float]]


@dataclass
class Arm:
    """A treatment in the race: its text, and its scores at a share of the script's length and at all of it.

    Higher scores are better: they have the other sign where smaller numbers are.
    """

    text: str
    family: str  # as it was proposed or typed
    factor: float  # of the temperature that is tried first
    short: float = math.nan
    full: float = math.nan
    dropped: bool = False
    inert: str = ""  # why it is the same as another one, and dropped
    excluded: float | None = None  # keys that it left out in its first training, where that is known
    calls: int = 0  # how often its first training reached the loss
    edge: bool = False  # whether no larger multiple of the temperature was tried, or no smaller one
    curve: Points = field(default_factory=list, repr=False)  # lengths and numbers, as they are

    @property
    def own(self) -> bool:
        """Whether it is the script's own loss, at some temperature."""
        return self.family == HOST


def best_at_end(arms: Iterable[Arm]) -> Arm:
    """Return the best one at the whole length; one that gave no number is the worst."""
    return max(arms, key=lambda arm: -math.inf if math.isnan(arm.full) else arm.full)


def ranked(arms: Iterable[Arm]) -> list[Arm]:
    """Return the arms that gave a number, the best first; those that were dropped come last."""
    known = [(not arm.dropped, arm.short if arm.dropped else arm.full, arm) for arm in arms]
    return [one[2] for one in sorted(known, key=lambda one: one[:2], reverse=True) if math.isfinite(one[1])]


def write(summary: report.Report, arms: Sequence[Arm], said: str, metric: str, folder: Path) -> Path:
    """Write the page to a folder; return its path."""
    intro = escape(said)
    with suppress(ImportError):  # the page says that matplotlib is missing
        intro += Markup("</p><p>") + Markup(svg(draw(arms, metric), f"{metric} of each treatment in the race", "race-"))
    (page,) = report.write(summary, folder, ["html"], title=f"Race: {summary.columns[0].dataset}", intro=intro)
    return page


def draw(arms: Sequence[Arm], metric: str) -> Any:
    """Draw the numbers of each treatment by the length of its training; a cross marks those that were dropped."""
    looks = styles(arm.text for arm in arms)
    drawing = figure(7.2, 3.4 + 0.2 * len(arms))
    axes = drawing.add_subplot()
    for arm in arms:
        look = looks[arm.text]
        style = {"color": GREY, "linestyle": ":"} if arm.dropped else {"color": look.colour, "linestyle": look.dash}
        points = sorted(arm.curve)
        axes.plot(*zip(*points, strict=True), **style, label=arm.text + ", dropped" * arm.dropped)
        axes.plot(*points[-1], "x" if arm.dropped else "o", color=style["color"], markersize=5)
    axes.set_xlabel("length of the training (lines: the first seed)")
    axes.set_ylabel(metric)
    tidy(axes)
    drawing.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=2)
    return drawing
