"""``counterpoint race``: the best setting for the script in front of you, at equal compute.

Every treatment trains for a share of the script's length, once; Optuna's successive halving drops the worse ones, and
what is left trains to the end. The winner is then compared, on fresh seeds, with the script's own loss at its best
temperature, and with that loss trained longer.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import counterpoint as cp
from counterpoint.checks import is_number
from counterpoint.install import install

from .. import report
from ..report.statistics import Verdict
from ..search.commands import FIRST_SEED
from ..store.progress import print_line
from ..store.run import TUNING, Run
from .cells import length_of
from .comparison import Comparison, uneven
from .settings import HOST

if TYPE_CHECKING:
    import optuna

SHARE = 4  # the first trainings have a quarter of the script's length, and a quarter of them goes on
TEMPERATURES = (0.5, 2.0, 0.25)  # of the script's own loss, as multiples of its temperature
FACTORS = [2.0**power for power in range(-4, 5)]  # what is tried at most
LONGER = 1.5  # times the script's length: what the same compute may be worth elsewhere
MOST_PATHS = 3  # of what auto has found to be integers of the samples


@dataclass
class Arm:
    """A treatment in the race: its text, and its scores at a share of the script's length and at all of it.

    Higher scores are better: they have the other sign where smaller numbers are.
    """

    text: str
    own: bool  # the script's own loss, at some temperature
    short: float = math.nan
    full: float = math.nan
    dropped: str = ""


class Race(Comparison):
    """What ``counterpoint race`` was asked for."""

    def __init__(self, arguments: Any, seam: Sequence[str]) -> None:
        super().__init__(arguments, seam)
        given = arguments.settings
        self.sign = -1 if given.lower else 1
        self.flag, self.budget, self.chosen_by = given.steps_flag or "", given.budget, given.metric[0]
        self.confirmed_by = given.confirm_metric or self.chosen_by
        _, _, self.length = length_of(arguments.script, self.flag)
        if len(self.specs) > 2 * self.budget:
            raise ValueError(f"--budget {self.budget}: enough for {2 * self.budget} treatments, got {len(self.specs)}.")
        self.arms: list[Arm] = []

    def run(self) -> int:
        """Race, confirm, and say what has come out; return the exit code."""
        self._search()
        tuned = best([arm for arm in self.arms if arm.own])
        winner = best(self.arms)
        rows = [*dict.fromkeys([winner.text, tuned.text, HOST])]
        seeds = range(self.arguments.seed, self.arguments.seed + self.arguments.seeds)
        print_line(f"confirming {winner.text} against {tuned.text} on {len(seeds)} fresh seeds")
        label = f"{tuned.text}, {LONGER:g} x steps"
        cells = [self.cell(text, seed, steps_flag=self.flag) for seed, text in product(seeds, rows)]
        longer = {"length": self._steps(LONGER), "steps_flag": self.flag, "label": label}
        cells += [self.cell(tuned.text, seed, **longer) for seed in seeds]
        runs = [run for run in self._run_cells(cells, [self.confirmed_by]) if run.done]
        errors = dict(uneven([run for run in runs if run.arguments.get("length") is None]))
        if errors or len(runs) < len(cells):
            for error in errors.values():
                print(f"counterpoint race: {error}", file=sys.stderr)
            return 1
        base, lower, margin = tuned.text, self.settings.lower, self.settings.margin
        names = [self.confirmed_by.name]
        summary = report.summarise(runs, baseline=base, metrics=names, lower=lower, margin=margin)
        compared = {row: cell.difference for row, cell in summary.columns[0].cells.items()}
        cost = {"race": self._cost(self.arms), "temperature": float(sum(arm.own for arm in self.arms))}
        said = sentence(winner.text, tuned.text, compared, label, cost, lower)
        summary.notes[:0] = self._dropped()
        if self.arguments.json:
            arms = [vars(arm) for arm in self.arms]
            print(
                json.dumps({"sentence": said, "winner": winner.text, "tuned": tuned.text, "arms": arms, "cost": cost})
            )
        else:
            print(report.RENDER["terminal"](summary))
            print(said)
        return 0

    def _search(self) -> None:
        """Train every arm for a share of the length, and those that Optuna does not prune to the end."""
        print_line(f"treatments with {self.flag} {self._steps(1 / SHARE):g} of {self.length:g} each")
        if len(self.specs) > 1:
            self._begin(self.specs)
        else:  # the temperature first, further at an edge; then rules at the best one
            self._begin([HOST, *filter(None, (at_temperature(self.own, factor) for factor in TEMPERATURES))])
            while (edge := self._edge()) is not None:
                self._begin([edge])
            tuned = max(self.arms, key=lambda arm: arm.short).text
            self._begin(proposals(self.own, tuned, self.told)[: 2 * self.budget - len(self.arms)])
        study = _study()
        for arm in self.arms:
            trial = study.ask()
            trial.set_user_attr("treatment", arm.text)
            if math.isfinite(arm.short):
                trial.report(arm.short, 1)
            if not math.isfinite(arm.short) or (trial.should_prune() and arm.text != HOST):
                arm.dropped = f"after {self._steps(1 / SHARE):g}"
                study.tell(trial, state=_pruned())
                continue
            self._finish(arm)
            study.tell(trial, arm.full) if math.isfinite(arm.full) else study.tell(trial, state=_pruned())
        own = max((arm for arm in self.arms if arm.own), key=lambda arm: arm.short)
        if math.isnan(own.full):  # the script's own loss at its best temperature always runs to the end
            self._finish(own)

    def _begin(self, texts: Sequence[str]) -> None:
        """Train treatments for a share of the script's length."""
        short = {"length": self._steps(1 / SHARE), "steps_flag": self.flag, "purpose": TUNING}
        for text, run in zip(texts, self._train(texts, short), strict=True):
            own = text == HOST or is_temperature(text, self.own)
            self.arms.append(Arm(text, own, -math.inf if math.isnan(value := self._value(run)) else value))
        if self.arms[0].short == -math.inf:
            raise ValueError("the script's own loss gave no number; its output has the reason.")

    def _edge(self) -> str | None:
        """Return the own loss one temperature further, if the best so far is the largest or the smallest tried."""
        factors = {HOST: 1.0, **{text: f for f in FACTORS if (text := at_temperature(self.own, f))}}
        tried = {factors[arm.text]: arm.short for arm in self.arms}
        top = max(tried, key=tried.__getitem__)
        further = {max(tried): 2 * top, min(tried): top / 2}.get(top)
        return None if further not in FACTORS else at_temperature(self.own, further)

    def _finish(self, arm: Arm) -> None:
        (run,) = self._train([arm.text], {"purpose": TUNING})
        arm.full, arm.dropped = self._value(run), ""

    def _train(self, texts: Sequence[str], more: Mapping[str, Any]) -> list[Run]:
        return self._run_cells([self.cell(text, FIRST_SEED, **more) for text in texts], [self.chosen_by])

    def _value(self, run: Run) -> float:
        return self.sign * float((run.result or {}).get(self.chosen_by.name, math.nan))

    def _steps(self, share: float) -> float:
        length = self.length * share
        return float(max(1, round(length))) if self.length.is_integer() else length

    def _cost(self, arms: Sequence[Arm]) -> float:
        """Return the search's compute, in trainings of the script's length."""
        return len(arms) * self._steps(1 / SHARE) / self.length + sum(not math.isnan(arm.full) for arm in arms)

    def _dropped(self) -> Iterator[str]:
        for arm in sorted(self.arms, key=lambda arm: -math.inf if math.isnan(arm.full) else arm.full, reverse=True):
            end = f"dropped {arm.dropped}" if arm.dropped else f"at the end {self.sign * arm.full:.4g}"
            yield f"{arm.text}: {self.chosen_by.name} {self.sign * arm.short:.4g} at a quarter, {end}"


def at_temperature(own: str, factor: float) -> str | None:
    """Return the script's own loss at a multiple of its temperature; None where that is not a number."""
    data = cp.objective(own).to_dict()
    t = data.get("temperature")
    return f"{data['name']}:t={t * factor:.4g}" if is_number(t) else None


def proposals(own: str, tuned: str, told: Sequence[str]) -> list[str]:
    """Return the treatments to race, by evidence: duplicates, ids, a margin, HCL, at the best temperature and near it.

    Args:
        own: the spec of the script's own loss.
        tuned: the same at its best temperature so far.
        told: what treatments may be told of, such as ``ids=batch["doc"]``.
    """
    near = [tuned, *filter(None, [at_temperature(own if tuned == HOST else tuned, 0.5)])]
    rules = ["duplicates", *told[:MOST_PATHS]]
    hcl = [
        "hcl:beta=1,prior=0.02" + text.partition(":")[2].join([",", ""] if ":" in text else ["", ""]) for text in near
    ]
    return [f"{text}; {rule}" for rule in rules for text in near] + [f"{tuned}; margin=-0.1", *dict.fromkeys(hcl)]


def is_temperature(text: str, own: str) -> bool:
    """Return whether a treatment is the script's own loss at some temperature."""
    return (
        ";" not in text
        and text.partition(":")[2].startswith("t=")
        and "," not in text
        and (text.partition(":")[0] == own.partition(":")[0])
    )


def best(arms: Sequence[Arm]) -> Arm:
    """Return the arm that was best at the end."""
    return max((arm for arm in arms if math.isfinite(arm.full)), key=lambda arm: arm.full)


def sentence(
    winner: str,
    tuned: str,
    compared: Mapping[str, Verdict | None],
    longer: str,
    cost: Mapping[str, float],
    lower: bool,
) -> str:
    """Say what the race has found, with intervals on fresh seeds."""
    own = "your loss" if tuned == HOST else f"your loss at {tuned.partition(':')[2]}"
    gain = compared.get(winner)
    more = compared.get(longer)
    times = f"the search cost {cost['race'] / max(cost['temperature'], 1):.2g} times tuning the temperature alone"
    also = "" if more is None else f"; {own} trained {LONGER:g} times as long: {_interval(more)}"
    if winner == tuned:
        tuning = compared.get(HOST)
        gained = "" if tuning is None or tuned == HOST else f": tuning gained {_interval(_negated(tuning))}"
        return f"nothing beats {own}{gained}; {times}{also}."
    assert gain is not None
    better = gain.different and (gain.difference < 0) == lower
    said = f"{winner}: {_interval(gain)} over {own}"
    return (
        f"{said}; {times}{also}." if better else f"nothing is shown to beat {own}; the best was {said}; {times}{also}."
    )


def _interval(verdict: Verdict) -> str:
    return f"{verdict.difference:+.3g} [{verdict.low:.3g}, {verdict.high:.3g}]"


def _negated(verdict: Verdict) -> Verdict:
    return replace(verdict, difference=-verdict.difference, low=-verdict.high, high=-verdict.low)


def _study() -> optuna.Study:
    """Return Optuna's schedule: a treatment goes on if it is in the best quarter of those before it."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError(f"counterpoint race needs optuna: {install('race')}", name="optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=SHARE)
    return optuna.create_study(direction="maximize", pruner=pruner)


def _pruned() -> Any:
    from optuna.trial import TrialState

    return TrialState.PRUNED
