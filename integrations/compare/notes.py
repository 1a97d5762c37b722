"""What a comparison tells later reports: its notes, kept beside its runs."""

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import store
from ..report.statistics import MANY
from ..report.summary import Column
from ..report.words import quoted
from ..store.run import Run
from ..store.transport import connect
from .cells import DOMAIN

ALIKE = 1e-3  # relative difference of first gradients, of one loss, that rounding may explain
UNSEEDED = (
    "rows of one seed do not begin alike: the first gradients of your loss differ by {:.2g} of their size. Does the "
    "script draw more than its seed sets? Pairing by seeds then removes little noise, and tests find less"
)


def write_notes(
    command: str, runs: list[Run], notes: Sequence[str], remarks: Mapping[Any, str], baseline: str | None, items: str
) -> None:
    """Keep a comparison's notes on its runs and rows, such as how they were tuned, and its baseline, for reports."""
    about, words = runs[0].arguments["dataset"], runs[0].arguments.get("script", ())[1:]
    kept = {"items": items, "baseline": baseline, "about": about, "runs": sorted(run.folder.name for run in runs)}
    kept |= {"command": command, "title": shlex.join([about, *words])}
    name = f"{DOMAIN}/notes/{store.checksum(command, *kept['runs'])[:12]}.json"
    connect(runs[0].folder.store).write(name, json.dumps({**kept, "notes": notes, "remarks": remarks}).encode())


def read_notes(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield the notes of each comparison whose runs are all among these, but of none that went on with more."""
    names, found = {run.folder.name for run in runs}, [*_all_notes(runs)]
    found = [kept for kept in found if names.issuperset(kept["runs"])]
    for kept in found:
        more = ({*kept["runs"]} < {*other["runs"]} and kept.get("command") == other.get("command") for other in found)
        if not any(more):
            yield kept


def _all_notes(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    for place in {run.folder.store: None for run in runs if run.arguments["domain"] == DOMAIN}:
        for name in (files := connect(place)).list(f"{DOMAIN}/notes"):
            with suppress(ValueError):  # if a process died when it wrote them, which the same command does again
                yield json.loads(files.read(name))


def from_seam(runs: Iterable[Run]) -> Iterator[str]:
    """Yield faults of objectives, and whether rows with one seed begin apart, by their script's own first gradient."""
    first, faults = defaultdict[int, list[float]](list), defaultdict[str, list[str]](list)
    for run in runs:
        first[run.arguments["seed"]] += [x for x in [run.details.get("first_gradient")] if x]
        for place, note in run.details.get("notes", {}).items():
            if "prior= took" in place:
                faults[f"{quoted(run.name)}: {place.rpartition(', ')[2]}"].append(note)
    apart = max((max(some) / min(some) - 1 for some in first.values() if some), default=0.0)
    if apart > ALIKE:
        yield UNSEEDED.format(apart)
    for fault, notes in faults.items():
        most = max(notes, key=lambda note: int(note.partition("%")[0].split()[-1]))
        yield f"{fault} in {len(notes)} of its runs, at most {most}"


def looks(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a warning if some of these seeds were compared before: who adds seeds until a test finds something errs."""
    names, seeds = {run.folder.name for run in runs}, {run.arguments["seed"] for run in runs}
    shared = [[name.rsplit("/", 1) for name in names.intersection(kept["runs"])] for kept in _all_notes(runs)]
    earlier = [len({seed for _, seed in look}) for look in shared if len({row for row, _ in look}) > 1]
    if fewer := [count for count in earlier if count < len(seeds)]:
        looked = f"{max(fewer)} of these {len(seeds)} seeds were compared before: two looks find more than is there"
        yield f"{looked}, which no interval knows; to confirm a find, take fresh seeds alone (--seed 100)"


def to_settle(columns: Iterable[Column], given: Any) -> Iterator[str]:
    """Yield how to ask once more about the row that needs the fewest fresh seeds, if any cannot be told."""
    rows = (item for column in columns for item in column.compared.items())
    seeds = [(v.missing + v.pairs, row) for row, v in rows if v.tested and v.kind == "cannot tell"]
    tuned = ", with the tuned rows as --objective and without --tune" * bool(given.settings.tune)
    if seeds and (fewest := min(seeds))[0] < MANY:
        again = f"the same command{tuned}, with --seed {given.seed + 100} --seeds {fewest[0]} --out confirm"
        yield f"to settle {quoted(fewest[1])} with fresh seeds: {again}"
