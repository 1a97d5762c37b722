"""Does `counterpoint race` find what helps? Four worlds with a fault and one without, on data that it does not know.

`race_worlds_train.py` trains on frozen embeddings of all-MiniLM-L6-v2 of BANKING77's questions; its head describes the
worlds. In each, the study runs `counterpoint race auto` on that script as it stands, which chooses by validation
questions. What it has found is then trained with 20 fresh seeds beside the script's own loss, whose temperature was
tuned apart from the race: each that the race has tried, three seeds of the whole length. Tested on 3,080 questions:
nDCG@10 of retrieving training questions of the intent.

The study resumes where it stopped: the race keeps its runs; a finished world is a line of OUT/small.jsonl.

examples:
  COUNTERPOINT_DATA=... python examples/studies/race_worlds.py           an hour on one core
  python examples/studies/race_worlds.py --report       adds finished worlds to docs/race_worlds/small.jsonl, and
                                                        writes table, example and picture of docs/guides/race.md
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import torch
from retrieval import questions

from counterpoint.integrations.compare import race_page
from counterpoint.integrations.compare.race_page import Arm
from counterpoint.integrations.compare.settings import SHARE
from counterpoint.integrations.report.statistics import compare
from counterpoint.integrations.store import find_runs

SCRIPT = Path(__file__).with_name("race_worlds_train.py")
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "race.md"
ROWS = PAGE.parents[1] / "race_worlds" / "small.jsonl"
PICTURE = PAGE.parents[1] / "race.png"
MARK, END = "<!-- made by `python examples/studies/race_worlds.py --report` -->", "<!-- end -->"
WORLDS = {
    "topics": "a sixth of the keys in a batch are false negatives",
    "mined": "half of the mined negatives are false",
    "wrong": "40 % of the positives are wrong",
    "copies": "every pair is in its batch four times",
    "clean": "no fault",
}
STEPS, RACE_SEEDS, SEEDS, TUNING_SEEDS = 320, 3, range(5000, 5020), range(3000, 3003)
COUNTERPOINT = str(Path(sys.executable).with_name("counterpoint"))


def run(words: Sequence[str], folder: Path) -> str:
    """Run a command; return its output."""
    return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def race(world: str, folder: Path, script: Sequence[str]) -> dict[str, Any]:
    """Return the result of the race."""
    flags = ["--metric", "json:results.json:validation", "--confirm-metric", "json:results.json:test", "--json"]
    flags += ["--steps-flag", "--steps", "--seed-flag", "--seed", "--seeds", str(RACE_SEEDS), "--name", world]
    found: dict[str, Any] = json.loads(run([COUNTERPOINT, "race", "auto", *flags, "--", *script], folder))
    return found


def scores(treatment: str, seeds: range, folder: Path, script: Sequence[str]) -> dict[str, list[float]]:
    """Train a treatment with some seeds in one process, at the place that the race has found; return its scores."""
    arguments = find_runs(folder / "runs")[0].arguments
    words = [COUNTERPOINT, "inject", arguments["host"], *arguments["seam"], f"--objective={treatment}", "--", *script]
    run([*words, "--seed", str(seeds.start), "--count", str(len(seeds)), "--out", "many.json"], folder)
    every = json.loads((folder / "many.json").read_text())["seeds"]
    return {name: [one[name] for one in every] for name in every[0]}


def measure(world: str, out: Path) -> dict[str, Any]:
    """Race in a world, and compare what was found with the tuned loss on fresh seeds."""
    folder = out / world
    folder.mkdir(parents=True, exist_ok=True)
    script = [str(SCRIPT.resolve()), "--data", str((out / "questions.pt").resolve()), "--world", world]
    script += ["--steps", str(STEPS)]
    found = race(world, folder, script)
    own = [arm["text"] for arm in found["arms"] if arm["family"] == "host"]
    tried = {text: fmean(scores(text, TUNING_SEEDS, folder, script)["validation"]) for text in own}
    tuned = max(tried, key=tried.__getitem__)
    rows = {text: scores(text, SEEDS, folder, script)["test"] for text in dict.fromkeys([tuned, found["other"]])}
    return {"world": world, **found, "winner": found["other"], "tried": tried, "own": tuned, "test": rows}


def gain(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the gain of the race's winner over the tuned loss, with its interval; nothing where it is that loss."""
    base, winner = (dict(enumerate(row["test"][row[name]])) for name in ("own", "winner"))
    if row["own"] == row["winner"]:
        return 0.0, 0.0, 0.0
    verdict = compare(base, {"winner": winner})["winner"]
    return verdict.difference, verdict.low, verdict.high


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("world", "found by the race", "gain by the race", "own loss, tuned apart", "gain, 20 fresh seeds", "cost")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        difference, low, high = gain(row)
        cost = row["cost"]["race"] / row["cost"]["temperature"]
        said = "the same" if row["own"] == row["winner"] else f"{difference:+.2f} [{low:.2f}, {high:.2f}]"
        found = re.search(r"([+-][\d.e-]+ \[[^]]+\]) (over|from it)", row["sentence"])
        raced = found[1] + ", not claimed" * (found[2] != "over") if found else "nothing"
        cells = [WORLDS[row["world"]], f"`{row['winner']}`", raced, f"`{row['own']}`", said]
        lines.append(f"| {' | '.join(cells)} | {cost:.2g} |")
    return "\n".join(lines)


def example(row: Mapping[str, Any]) -> str:
    """Return the sentence of a race as a quotation."""
    return fill(row["sentence"], 118, initial_indent="> ", subsequent_indent="> ")


def draw(row: Mapping[str, Any]) -> None:
    """Draw the race in a world, as its page does."""
    arms = [Arm(**arm) for arm in row["arms"]]
    for arm in arms:
        arm.curve = [(STEPS / SHARE, arm.short), *[(float(STEPS), arm.full)] * (not arm.dropped)]
    race_page.draw([arm for arm in arms if not arm.inert], "validation").savefig(PICTURE, dpi=110)


def put(page: str, place: int, text: str) -> str:
    """Return the page with another text between the marks of a place."""
    parts = page.split(MARK)
    parts[place] = f"\n{text}\n{END}{parts[place].partition(END)[2]}"
    return MARK.join(parts)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the finished worlds; a line that was cut off is not one."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    rows = {row["world"]: row for row in map(json.loads, lines)}
    return {world: rows[world] for world in WORLDS if world in rows}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs", "race_worlds"), help="to resume from (%(default)s)")
    parser.add_argument("--worlds", nargs="+", choices=[*WORLDS], default=[*WORLDS], metavar="WORLD", help="(all)")
    parser.add_argument("--report", action="store_true", help="train nothing; write the table of the page")
    args = parser.parse_args(argv)
    if args.report:
        rows = read(ROWS) | read(args.out / ROWS.name)
        for row in rows.values():
            row.pop("command", None)  # with paths of the machine that ran it
        ROWS.write_text("".join(f"{json.dumps(rows[world])}\n" for world in WORLDS if world in rows))
        finished = [*read(ROWS).values()]
        PAGE.write_text(put(put(PAGE.read_text(), 1, example(finished[0])), 2, table(finished)))
        draw(finished[0])
        return
    features = args.out / "questions.pt"
    if not features.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(questions(), features.with_suffix(".part"))
        features.with_suffix(".part").replace(features)
    for world in args.worlds:
        if world not in read(args.out / ROWS.name):
            row = measure(world, args.out)
            with (args.out / ROWS.name).open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(table([row]), flush=True)
            print(row["sentence"], flush=True)


if __name__ == "__main__":
    main()
