"""``counterpoint race``: the best setting for the script in front of you, at equal compute.

Every treatment trains for a quarter of the script's length, with one seed; the best ones, and the script's own loss,
train to the end with several seeds, at temperatures that are tuned there. The best other treatment is then compared on
fresh seeds with this loss at its best temperature, or at the script's own if that one is better on them. Last, this
loss trains longer, unless only its temperature has gained.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import counterpoint as cp
from counterpoint.plugins.printing import visible

from .. import flags, report, store
from ..report.statistics import Verdict
from ..report.summary import listed, plural
from ..search.commands import FIRST_SEED
from ..search.coordinate import FACTORS, FOLLOWS, at_temperature
from ..store.files import finite
from ..store.progress import duration, format_numbers, print_line
from ..store.run import TUNING, Run
from . import race_page
from .cells import DOMAIN, length_of
from .comparison import EQUAL, Comparison, did_nothing, same_numbers, uneven
from .metrics import Metric
from .notes import from_seam, write_notes
from .race_page import Arm, Points, best_at_end, ranked
from .running import LOG, NO_SEED, check_metrics
from .settings import HOST, SHARE, TEMPERATURES

UNTRAINED = "0*infonce"  # whose gradient is zero
UNTRAINED_ROW = f"untrained ({UNTRAINED})"  # on fresh seeds, with a share of the steps, as nothing trains the encoder
LONGER = 1.5  # times the script's length: what the same compute may be worth elsewhere
FRESH = 3 + LONGER + 1 / SHARE  # trainings with each fresh seed, at most
MOST_PATHS = 3  # of what auto has found of the samples
NOT_TUNED = "the temperature of your loss was not tuned, since it is learned, not known, or not the only one"
TWIN = "in its first training it left out as many keys as {} and had the same numbers"
OBJECTIVES = ("hcl:beta=1,prior=0.1", "hcl:beta=2,prior=0.1", "drrl:m=0.8,weight=3")  # what gained in the atlas


class Race(Comparison):
    """A race, checked with the plugins of the host."""

    command = "race"
    skipped: Sequence[str] = ()  # treatments at temperatures that the budget is too small for
    enough = 0  # the budget that suffices for it
    asked: Sequence[Mapping[str, Any]] = ()  # cells of the runs so far

    def __init__(self, arguments: Any, seam: Sequence[str]) -> None:
        super().__init__(arguments, seam)
        given = arguments.settings
        self.sign = -1 if given.lower else 1
        self.flag, self.chosen_by = given.steps_flag, given.metric[0]
        self.tune_seeds: int = given.tune_seeds
        self.most = SHARE * given.budget // (1 + given.tune_seeds)  # since one of SHARE goes on
        self.confirmed_by = given.confirm_metric or self.chosen_by
        self.length = length_of(arguments.script, self.flag)[2] if self.flag else 0.0
        self.families = [spec for spec in self.specs if spec != HOST]
        self.families = self.families or proposals(self.told)
        if same := [one for one in self.families if cp.treatment(one, self.own) == cp.treatment(HOST, self.own)]:
            self.families = [one for one in self.families if one not in same]
            print_line(f"{', '.join(same)}: your own loss, so it is tried as {HOST}")
        self.arms: list[Arm] = []

    def run(self) -> int:
        """Race, confirm, and print the result; return the exit code."""
        try:
            return self._race()
        except KeyboardInterrupt:
            asked = (Run(self.arguments.out, one) for one in self.asked)
            ended = len({run.path for run in asked if run.done or run.record.get("error")})
            raise KeyboardInterrupt(f"stopped; runs that have ended: {ended}; the same command resumes") from None

    def _race(self) -> int:
        self.left = self.arguments.settings.budget + FRESH * self.arguments.seeds  # at most
        self._search()
        ranking = ranked(self.arms)
        tuned = next((arm for arm in ranking if arm.own), self.arms[0])
        if math.isnan(tuned.full):
            raise ValueError("your loss gave no number at the whole length; the output of its runs has the reason.")
        others, beside = [arm for arm in ranking if not arm.own], HOST
        seeds = range(self.arguments.seed, self.arguments.seed + self.arguments.seeds)
        more = 1 if tuned.text != HOST else LONGER * bool(self.flag)
        self.left = (1 + 1 / SHARE + bool(others) + more) * len(seeds)
        print_line(f"on {len(seeds)} seeds that chose nothing: {' and '.join(dict.fromkeys((tuned.text, HOST)))}")
        runs = self._confirm([tuned.text], seeds)
        if tuned.text != HOST and not self._lost(runs) and not self._lost(own := self._confirm([HOST], seeds)):
            by = partial(self._value, by=self.confirmed_by)
            if fmean(map(by, own)) >= fmean(map(by, runs)):  # tuning has not gained: the better one is harder to beat
                tuned, beside = self.arms[0], tuned.text
            runs += own
        cut = self._cut(self._steps(1 / SHARE)) if self.flag or self.confirmed_by is self.chosen_by else {}
        untrained = [] if self._lost(runs) else self._confirm([UNTRAINED], seeds, 1 / SHARE, label=UNTRAINED_ROW, **cut)
        runs += [run for run in untrained if not self._lost([run])]
        rival = tuned
        for arm in others if not self._lost(runs) else ():
            print_line(f"confirming {arm.text} against {tuned.text} on {len(seeds)} seeds that chose nothing")
            trained = self._confirm([arm.text], seeds)
            if not self._lost(trained):
                rival, runs = arm, [*runs, *trained]
                break
            print_line(f"{arm.text} has failed at the whole length")
        label = f"{tuned.text}, {LONGER:g} x steps"
        lower = self.settings.lower
        compare = partial(report.summarise, baseline=tuned.text, lower=lower, margin=self.settings.margin)
        metrics, lost = [self.confirmed_by.name], self._lost(runs)
        if self.flag and not lost and (tuned.text == HOST or _is_better(compare(runs, metrics=metrics), rival.text)):
            self.left = LONGER * len(seeds)
            trained = self._confirm([tuned.text], seeds, LONGER, label=label, **self._cut(self._steps(LONGER)))
            runs += trained if not self._lost(trained) else []
        even = [run for run in runs if run.done and "label" not in run.arguments]
        errors = self._lost(runs) + [error for _, error in uneven(even) if not self.settings.any_length]
        errors = errors or ["all other treatments have failed at the whole length"] * (bool(others) and rival is tuned)
        if errors:
            print_line(*(f"counterpoint race: {error}" for error in errors))
            return 1
        summary = compare(runs, metrics=metrics)
        whole = [arm for arm in self.arms if not arm.dropped]
        counted = not self.flag and HOST not in [arm.text for arm in whole]  # which says how many numbers there are
        search = (len(self.arms) + 1) * self._steps(1 / SHARE) / self.length + self.tune_seeds * len(whole) + counted
        cost = {"race": search, "temperature": float(self.tune_seeds * sum(arm.own for arm in self.arms))}
        better = _is_better(summary, rival.text)
        compared = summary.columns[0].compared
        if beside != HOST and (gain := compared.get(beside)):  # of the temperature that has not gained
            compared[HOST] = replace(gain, difference=-gain.difference, low=-gain.high, high=-gain.low)
        tuning = compared.get(HOST)
        winner = rival if better else self.arms[0] if tuning and not tuning.different else tuned  # as it is
        times = search / cost["temperature"] if sum(arm.own for arm in self.arms) > 1 else 0.0  # if it was not tuned
        said = sentence(rival.text, tuned.text, compared, label, times, better, lower)
        own_whole = sum(arm.own for arm in whole)
        quarters = sum(arm.own for arm in self.arms) + 2 * len(self.families)
        suffices = 2 * self.tune_seeds * (own_whole + 1) + math.ceil(quarters / SHARE)
        enough = f"--budget {max(suffices, self.arguments.settings.budget + 1)} trains one more"
        may_gain = ", so it may gain as much by itself" * better
        said += f" Your loss's best temperature has no neighbor on one side{may_gain}; {enough}." * tuned.edge
        few = ["your loss's temperatures"] * (own_whole == 1 < sum(arm.own for arm in self.arms))
        few += ["the other treatments"] * (len(whole) - own_whole == 1 < len({arm.family for arm in others}))
        if all(arm.full <= arm.short for arm in whole):
            said += f" Nothing was better at the end than at 1/{SHARE} of the length: is that length, or number, right?"
        if self.arms[0].short <= self.untrained:
            both = f"{self.sign * self.arms[0].short:.4g} against {self.sign * self.untrained:.4g}"
            said += f" At 1/{SHARE} your loss was no better than {UNTRAINED}, which switches it off ({both})."
        net = summary.columns[0].checks.get(UNTRAINED_ROW, {}).get(tuned.text)
        if net is None or not net.different or (net.difference > 0) == lower:
            worth = f"on fresh seeds {tuned.text} is {_interval(net)} from an untrained encoder" if net else "unknown"
            said += f" Training is not shown to help: {worth}."
        alone = f"only one{' each' * (len(few) > 1)} was trained to the end; {enough}"
        said += f" Of {' and of '.join(few)}, {alone}." * bool(few)
        first = dict.fromkeys(at_temperature(arm.family, self.own) for arm in others)  # as the script's own is
        untried = [text for text in first if text and text not in {arm.text for arm in self.arms}]
        start = " Not tried, as treatments start at your loss's best temperature: "
        said += f"{start}{listed(untried)}." * bool(untried)
        small = f"since --budget {self.arguments.settings.budget} is too small and {self.enough} suffices"
        for where in ("", " at another temperature"):
            names = [family for family in self.skipped if any(arm.family == family for arm in self.arms) == bool(where)]
            said += f" Not tried{where}, {small}: {listed(names)}." * bool(names)
        said += f" Keep your script as it is ({self.own})." * (winner.text == HOST)
        summary.notes[:0] = notes = [*from_seam(even), *self._dropped()]
        follow = [arm for arm in self.arms if not arm.own and at_temperature(arm.family, self.own, 2) is None]
        summary.remarks.update({arm.text: FOLLOWS for arm in follow})
        at_edge = [arm.text for arm in self.arms if arm.edge and (arm is tuned or not arm.own)]
        summary.remarks.update(dict.fromkeys(at_edge, "at the edge of the temperatures trained to the end"))
        write_notes(self.command, even, [f"race: {said}", *notes], summary.remarks, tuned.text, "")
        page = race_page.write(summary, self.arms, said, self.chosen_by.name, self._folder())
        one: dict[str, Any] = dict(self.cell(winner.text, 0))
        script = [word.replace("{out}", "out").replace("{seed}", "0") for word in one["script"]]
        train = ["counterpoint", "inject", one["host"], "--objective", winner.text, *one["seam"], "--", *script]
        doubtful = winner.text == HOST or (better and tuned.edge)  # there, tuning may gain as much
        if self.arguments.json:
            arms = [{name: value for name, value in vars(arm).items() if name != "curve"} for arm in self.arms]
            found: dict[str, Any] = {"sentence": said, "winner": winner.text, "other": rival.text, "tuned": tuned.text}
            found |= {"command": train, "arms": arms, "cost": cost}
            print(json.dumps(finite(found)))
        else:
            print(report.RENDER["terminal"](summary), visible(said), sep="\n", flush=True)
        by_hand = " (or with that temperature in the script itself)" * winner.own
        print_line(*[f"to train with {winner.text}{by_hand}: {shlex.join(train)}"] * (not doubtful), f"page: {page}")
        return 0

    def _confirm(self, rows: Sequence[str], seeds: Sequence[int], share: float = 1, **more: Any) -> list[Run]:
        """Train treatments to the end with fresh seeds, of which two show whether they fail, or depend on the seed."""
        runs: list[Run] = []
        for some in (seeds[:EQUAL], seeds[EQUAL:]):
            cells = [self.cell(text, seed, **more) for seed, text in product(some, rows)]
            part = {"before": len(runs), "total": len(rows) * len(seeds), "share": share}
            runs += self._run_cells(cells, [self.confirmed_by], **part)
            if self._lost(runs):
                break
            if UNTRAINED not in rows and same_numbers(runs):
                raise ValueError(f"--seed: two seeds give the same numbers; {NO_SEED}")
        return runs

    def _lost(self, runs: Iterable[Run]) -> list[str]:
        """Name the runs without a number to confirm by; a mean without them would flatter their row."""
        name = self.confirmed_by.name
        lost = [run for run in runs if run.result is None or math.isnan(run.result.get(name, math.nan))]
        return [f"{run.title} gave no {name}: {run.record.get('error') or 'it is NaN'}" for run in lost]

    def _search(self) -> None:
        """Train every arm for a share of the length, and the best to the end."""
        if typed := [one for one in self.settings.objective if cp.treatment(one, "infonce").paths]:  # perhaps wrong
            print_line(f"first a training of length 1, to look up the names in {', '.join(typed)}")
            run, *_ = self._train(typed, self._cut(1), share=1 / SHARE, after=math.inf)
            if not self.flag and "ValueError: --metric" in (error := str(run.record.get("error"))):  # it has ended
                raise ValueError(f"{typed[0]} gave no number: {error}")
        self._begin((HOST, factor) for factor in TEMPERATURES)
        self._follow()
        own = [arm for arm in self.arms if arm.own]
        self._check_moved(own)
        arms = min(self.most, len(own) + 2 * len(self.families))
        most = int((self.arguments.settings.budget - arms / SHARE) // self.tune_seeds)  # to the end
        ended = self._climb([max(own, key=lambda arm: arm.short)], max(1, most // 2))
        tuned = best_at_end(ended)
        most_settings = len(FACTORS) + 2 * len(self.families)  # even if your own loss tries every temperature
        for factor in (tuned.factor, tuned.factor / 2):  # below the best one too, since large ones hide faults
            self._begin(((family, factor) for family in self.families), most_settings)
        self._check_moved(self.arms)
        (run,) = self._train([UNTRAINED], self._cut(self._steps(1 / SHARE)), share=1 / SHARE)
        self.untrained = self._value(run)
        others = sorted((arm for arm in self.arms if not arm.own), key=lambda arm: arm.short)
        best = {arm.family: arm for arm in others if math.isfinite(arm.short)}  # at its best temperature
        room = most - len(ended)
        self.left = max(1, room) * self.tune_seeds + FRESH * self.arguments.seeds  # not all of the budget
        order = sorted(best.values(), key=lambda arm: -arm.short)
        ended += self._climb(order[: max(1, min(2, room), room // 2)], room)
        for arm in self.arms:
            arm.dropped = arm not in ended
        for arm in ended:
            family = [other for other in self.arms if other.family == arm.family]
            whole = [other.factor for other in family if not other.dropped]
            tried = whole if len(whole) > 1 else [other.factor for other in family]
            arm.edge = len(tried) > 1 and arm.factor in (min(tried), max(tried))

    def _climb(self, arms: list[Arm], most: int) -> list[Arm]:
        """Train treatments to the end, then the best one at further temperatures, which may depend on the length."""
        ended = self._finish(arms)
        while ended and len(ended) < most:
            top = best_at_end(ended)
            known = {arm.factor for arm in ended if arm.family == top.family}
            sides = {2 * top.factor, top.factor / 2}.intersection(FACTORS) - known
            self._begin((top.family, factor) for factor in sides)
            more = [arm for arm in self.arms if arm.family == top.family and arm.factor in sides]
            if not (more := [arm for arm in more if math.isfinite(arm.short)]):
                break
            ended += self._finish([max(more, key=lambda arm: arm.factor)])  # more often better than at a quarter
        return ended

    def _finish(self, arms: list[Arm]) -> list[Arm]:
        """Train treatments to the end; return them."""
        if arms:
            print_line(f"to the end, {plural(self.tune_seeds, 'seed')} each: {', '.join(arm.text for arm in arms)}")
        runs = self._train([arm.text for arm in arms], {}, self.tune_seeds)
        if same_numbers(runs[: self.tune_seeds]):
            raise ValueError(f"--seed: two seeds give the same numbers; {NO_SEED}")
        for i, arm in enumerate(arms):
            some = runs[i * self.tune_seeds :][: self.tune_seeds]
            if 0 < some[0].details.get("calls", 0) <= arm.calls and not self.settings.any_length:
                both = f"{arm.calls} times with {self.flag} {self._steps(1 / SHARE):g} and with {self.length:g}"
                raise ValueError(f"--steps-flag: the loss was reached {both}: is this the flag for the length?")
            arm.full = fmean(map(self._value, some))
            arm.curve += self._points(some[0], self.length, arm.full)
        return arms

    def _begin(self, settings: Iterable[tuple[str, float]], most_settings: int = 0) -> bool:
        """Train treatments, each at a temperature, for a share of the script's length; return whether any was new."""
        if not self.length:  # the numbers that a whole training prints
            print_line(f"first a whole training, to count its numbers: {SHARE} or more, or name a --steps-flag")
            self._check_own(whole := self._train([HOST], {})[0])
            self.length = float(len(whole.metrics()))
        if self.length < SHARE and not self.flag:
            raise ValueError(
                f"--metric {self.chosen_by.text}: expected {SHARE} or more of these numbers while the script "
                f"trains, to stop it early, got {self.length:g}; or name its own flag for its length by --steps-flag."
            )
        arms: dict[str, Arm] = {}
        for family, factor in settings:
            if text := at_temperature(family, self.own, factor):  # None of a temperature that is learned
                arms.setdefault(text, Arm(text, family, factor))
        known = {arm.text for arm in self.arms}
        new, room = [arm for arm in arms.values() if arm.text not in known], self.most - len(self.arms)
        if any(arm.own for arm in new):  # each treatment shall be tried, too
            room -= min(len(self.families), self.most - max(len(TEMPERATURES), len(self.arms)))
        tried = {arm.family for arm in (*self.arms, *new[:room])}
        if skipped := [*dict.fromkeys(arm.family for arm in new[room:])]:
            every = {HOST, *self.families, *(arm.family for arm in self.arms)}  # at every temperature
            self.enough = math.ceil((most_settings or len(FACTORS) * len(every)) * (1 + self.tune_seeds) / SHARE)
            shown = (f"{one} at another temperature" if one in tried else one for one in skipped)
            small = f"--budget {self.arguments.settings.budget} is too small to try {', '.join(shown)}"
            print_line(f"{small}; {self.enough} suffices")
            self.skipped = [*dict.fromkeys((*self.skipped, *skipped))]
        if new := new[:room]:
            later = f"; later {room - len(new)} more settings{' of your loss' * new[0].own} at most" * (room > len(new))
            print_line(f"1/{SHARE} of the length: {', '.join(arm.text for arm in new)}{later}")
        short = self._cut(quarter := self._steps(1 / SHARE))
        texts = [arm.text for arm in new]
        part: dict[str, Any] = {"share": 1 / SHARE, "total": len(new)}
        if runs := [] if self.arms else self._train(texts[:1], short, **part, after=math.inf):
            self._check_own(runs[0])
            if self.flag:  # a wrong name is said now
                check_metrics(runs, self.chosen_by, [self.confirmed_by])
            seconds = runs[0].record.get("seconds", 0.0)
            start = max(0.0, seconds - ((runs[0].details if runs[0].done else {}).get("training_seconds") or seconds))
            whole = start + SHARE * (seconds - start)
            self.fixed = start / max(whole, 1e-9)
            starts = self.most * self.fixed * (1 - 1 / SHARE)  # of short trainings, which take no share of the time
            all_of_it = (self.left + 1 / SHARE + starts) * whole / flags.concurrent(self.arguments)
            print_line(f"all of it takes about {duration(all_of_it)} if each step is as fast as in this one")
        runs += self._train(texts[len(runs) :], short, before=len(runs), **part)
        for arm, run in zip(new, runs, strict=True):
            arm.short = -math.inf if math.isnan(value := self._value(run)) else value
            arm.curve, arm.calls = self._points(run, quarter, value), run.details.get("calls", 0) * bool(self.flag)
            details = run.details if run.done else {}
            arm.excluded = details.get("excluded") if arm.family.startswith(f"{HOST};") else None
            found = (arm.factor, arm.short, arm.excluded)
            earlier = [other for other in (*self.arms, *new[: new.index(arm)]) if other.excluded]
            twins = [one.text for one in earlier if (one.factor, one.short, one.excluded) == found]
            idle = did_nothing(arm.family, details)
            if idle or twins:
                arm.short, arm.inert = -math.inf, TWIN.format(twins[0]) if twins else f"in its first training {idle}"
                self.families = [family for family in self.families if family != arm.family]
                print_line(f"{arm.text}: dropped, since {arm.inert}")
        self.arms += new
        return bool(new)

    def _check_own(self, run: Run) -> None:
        """Raise if the first training gave no number, since in all others, too, it may be missing."""
        if math.isnan(self._value(run)):
            why = run.record.get("error") or f"expected {self.chosen_by.name}, got {format_numbers(run.result or {})}"
            why = f": {why}" * bool(self.arguments.json or run.result)  # else it is printed already
            if run.result and self.chosen_by.name not in run.result:  # a function may return several
                why += f"; choose one by its name, --metric {next(iter(run.result))}={self.chosen_by.text}"
            raise ValueError(f"the script's own loss gave no number{why}; its output is in {run.address}/{LOG}")

    def _follow(self) -> None:
        """Go on from your own loss's best temperature while that is the largest or the smallest tried."""
        more = math.isfinite(max(arm.short for arm in self.arms))
        while more and len(self.arms) < self.most - len(self.families):
            top, tried = max(self.arms, key=lambda arm: arm.short), [arm.factor for arm in self.arms]
            further = {max(tried): 2 * top.factor, min(tried): top.factor / 2}.get(top.factor, 0.0)
            more = further in FACTORS and self._begin([(HOST, further)])

    def _check_moved(self, arms: Iterable[Arm]) -> None:
        """Raise if all first trainings have the same number."""
        scores = [arm.short for arm in arms if math.isfinite(arm.short)]
        if len(scores) > 1 == len({*scores}):
            raise ValueError(
                f"all treatments have {self.chosen_by.name} {self.sign * scores[0]:g} at 1/{SHARE} of the length, so "
                "none can be chosen: is that too short to move it, such as a warm-up, or the number too coarse?"
            )

    def _run_cells(self, cells: Iterable[Mapping[str, Any]], metrics: Sequence[Metric] = (), **part: Any) -> list[Run]:
        self.asked = [*self.asked, *(cells := [*cells])]
        return super()._run_cells(cells, metrics, **part)

    def _train(self, texts: Sequence[str], more: Mapping[str, Any], seeds: int = 1, **part: float) -> list[Run]:
        each = product(texts, range(FIRST_SEED, FIRST_SEED + seeds))
        cells = [self.cell(text, seed, purpose=TUNING, **more) for text, seed in each]
        return self._run_cells(cells, [self.chosen_by], **{"total": len(cells), **part})

    def _value(self, run: Run, by: Metric | None = None) -> float:
        return self.sign * float((run.result or {}).get((by or self.chosen_by).name, math.nan))

    def _points(self, run: Run, length: float, value: float) -> Points:
        """Return the numbers that a run wrote while it trained, or else the arm's value at this length."""
        name = self.chosen_by.name
        curve = [(line["step"], line[name]) for line in run.metrics() if name in line] if run.done else []
        if curve and self.flag:  # whose steps are numbers of printed lines
            curve = [(step * length / curve[-1][0], number) for step, number in curve]
        return curve or [(length, self.sign * value)]

    def _cut(self, length: float) -> dict[str, Any]:
        """Return the settings of a run of another length, or of one stopped after so many printed numbers."""
        lines = {"lines": int(length), "of": self.chosen_by.what}
        return {"length": float(length), "steps_flag": self.flag} if self.flag else lines

    def _folder(self) -> Path:
        """Return the folder of this race's page, on this machine."""
        named = store.checksum(json.dumps([self.cell(HOST, 0), self.families, self.chosen_by.text]))[:12]
        folder = Run(self.arguments.out, self.cell(HOST, 0)).folder.root / DOMAIN / f"race-{named}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _steps(self, share: float) -> float:
        length = self.length * share
        return float(max(1, round(length))) if self.length.is_integer() else length

    def _dropped(self) -> Iterator[str]:
        for arm in sorted(self.arms, key=lambda arm: -math.inf if math.isnan(arm.full) else arm.full, reverse=True):
            short, full = (f"{self.sign * x:.4g}" if math.isfinite(x) else "no number" for x in (arm.short, arm.full))
            other = ", but compared on fresh seeds, as it is your loss" * (arm.text == HOST)
            end = f"dropped by this one seed{other}" if arm.dropped else f"{full} at the end, mean of {self.tune_seeds}"
            told = f"{self.chosen_by.name} {short} at a quarter, {end}".replace(f"{self.chosen_by.name} no", "no")
            yield f"{arm.text}: {f'dropped, since {arm.inert}' if arm.inert else told}"


def proposals(told: Sequence[str]) -> list[str]:
    """Return the treatments to race, by evidence; ``told`` are of the script's data, such as ``ids=batch["doc"]``."""
    rules = [*["duplicates"] * (not any(rule.startswith("duplicates=") for rule in told)), *told[:MOST_PATHS]]
    return [*(f"{HOST}; {rule}" for rule in rules), *OBJECTIVES, f"{HOST}; margin=-0.1"]


def sentence(
    rival: str, tuned: str, compared: Mapping[str, Verdict], longer: str, cost: float, better: bool, lower: bool = False
) -> str:
    """Return the result of the race in a sentence, with fresh seeds' verdict on ``rival``, the best other treatment."""
    own = "your loss" if tuned == HOST else f"your loss at {tuned.partition(':')[2]}"
    more, gain, tuning = (compared.get(row) for row in (longer, "" if rival == tuned else rival, HOST))
    times = f"the search cost {cost:.2g} times tuning the temperature alone" if cost else NOT_TUNED
    times += "" if more is None else f"; {own} trained {LONGER:g} times as long: {_interval(more)}"
    if gain is not None and better:
        return f"{rival}: {_interval(gain)} {'(lower is better) against' if lower else 'over'} {own}; {times}."
    gains = tuning is not None and tuning.different and (tuning.difference > 0) == lower
    changed = "gained" if gains else "changed it by"
    gained = "" if tuning is None else f": tuning {changed} {_interval(tuning, 1 if gains and lower else -1)}"
    other = "" if gain is None else f"; the best other, {rival}, is {_interval(gain)} from it"
    beats = "is shown to beat" if gain is not None and gain.kind == "cannot tell" else "beats"
    said = f"nothing that was tried {beats}" if rival != tuned else "no other treatment could be compared with"
    return f"{said} {own}{gained}{other}; {times}."


def _is_better(summary: report.Report, row: str) -> bool:
    """Return whether the test shows a row to be better than the baseline."""
    found = summary.columns[0].compared.get(row)
    return found is not None and found.different and (found.difference < 0) == summary.columns[0].lower


def _interval(verdict: Verdict, sign: int = 1) -> str:
    low, high = sorted((sign * verdict.low, sign * verdict.high))
    return f"{sign * verdict.difference + 0.0:+.3g} [{low:.3g}, {high:.3g}]"
