"""Code bases that the finder is tried on, unmodified: what to run of each, and what it should say.

    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py            # a table, one line per code base
    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py open_clip  # what the finder says, too
    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py --write    # the table in the documentation
    COUNTERPOINT_HOSTS=FOLDER python tests/support/testbed.py --write open_clip    # a row of it

Each member is a small script beside an unmodified clone ``FOLDER/NAME`` or an installed package. It feeds random data
to the clone's own code: its training loop where that runs on a CPU, its loss on a toy encoder's outputs otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import bed_broad
import bed_distant
import bed_faraway
import bed_fields
import bed_graphs
import bed_images
import bed_last
import bed_news
import bed_pairs
import bed_senses
import bed_signals
import bed_strangers
import bed_texts
import bed_trainers
import bed_unseen
import bed_wild
from bed import IN, OUT, PRELUDE, Member

from counterpoint.names import nearest
from counterpoint.plugins import inject, registry

PAGES = (bed_images, bed_texts, bed_graphs, bed_signals, bed_wild, bed_last, bed_unseen, bed_fields)
PAGES += (bed_trainers, bed_pairs, bed_strangers, bed_news, bed_senses, bed_broad, bed_distant, bed_faraway)
MEMBERS = {name: member for page in PAGES for name, member in page.MEMBERS.items()}


def write_driver(member: Member, hosts: Path, folder: Path) -> None:
    clone = str(hosts / member.folder) if member.folder else str(Path(__file__).parent)
    if Path(clone, "SentEval").is_dir():  # which scripts expect in their working directory
        (folder / "SentEval").symlink_to(Path(clone, "SentEval"))
    (folder / "driver.py").write_text(PRELUDE.replace("{clone!r}", repr(clone)) + member.code)


def watch(member: Member, hosts: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Run the finder on a member; return what it found, as data and in words."""
    found = folder / "found.json"
    write_driver(member, hosts, folder)
    words = ["-m", "counterpoint.plugins.inject", "auto", *member.words, "--json", str(found), "--", "driver.py"]
    places = os.pathsep.join([str(Path(__file__).parent), *([str(hosts / member.folder)] if member.folder else [])])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": places}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    text = found.read_text() if found.exists() else ""
    return json.loads(text) if text else {"losses": [], "commands": []}, done.stderr


def verdict(member: Member, found: dict[str, Any]) -> str:
    """Say whether the member was found: "found", "half", "not found" or "wrong"."""
    losses = [loss for loss in found["losses"] if loss["form"]]
    missing = list(member.losses)
    for loss in losses:
        matching = [expected for expected in missing if _matches(loss, *expected)]
        if not matching:
            return f"wrong: {loss['site']} {loss['form']} {loss.get('scale')} {loss.get('positives')}"
        missing.remove(matching[0])
    if missing:
        return "not found" if not losses else "half: some of its losses are missing"
    command = " ".join(found["commands"][0]) if found.get("commands") else ""
    return (
        "found"
        if bool(member.command) == bool(command) and member.command in command
        else f"half: {command or 'no command'}"
    )


def _matches(loss: dict[str, Any], file: str, form: str, scale: float, positives: str) -> bool:
    return (
        Path(loss["file"]).name == file
        and (loss["form"] == form if form in (IN, OUT) else form in loss["form"])
        and (not scale or abs(loss["scale"] - scale) <= 0.02 * scale)
        and positives in str(loss.get("positives"))
    )


# ---- the table -------------------------------------------------------------------------------------


def run(folder: Path, hosts: Path, member: Member, *words: str) -> tuple[int, str]:
    """Run ``counterpoint inject`` in a fork of this process, which has imported what takes long to import."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        os.chdir(folder)
        sys.path.insert(0, str(hosts / member.folder))
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        code = 1
        try:
            code = inject.main([*words, "--", "driver.py"])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    for path in ("store", "tiny", "bert", "out"):
        shutil.rmtree(folder / path, ignore_errors=True)
        (folder / path).unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(status), (folder / "said.txt").read_text()


def row(member: Member, hosts: Path, folder: Path, tell: bool) -> list[str]:
    """Return form, outcome, road, largest difference, and how it trains with other objectives."""
    write_driver(member, hosts, folder)
    code, said = run(folder, hosts, member, "auto", *member.words, "--json", "found.json")
    text = (folder / "found.json").read_text() if (folder / "found.json").exists() else ""
    found = json.loads(text) if text else {"losses": [], "commands": []}
    if tell:
        print(said)
    losses = [loss for loss in found["losses"] if loss["form"]]
    forms = [f"{x['kind']}: {x['form']}" + f", scale {x.get('scale', 0):.3g}" * x["ours"] for x in losses]
    form = "; ".join(dict.fromkeys(forms)) or ("a known host's" if found["commands"] else "nothing contrastive")
    command, as_expected = found["commands"][0][2:-2] if found["commands"] else None, verdict(member, found)
    command = None if command and "--only" in command else command
    if "the script ended with an error" in said and not losses:
        return [form, f"does not start: {reason(said).removeprefix('no: ')}", "", "", "", ""]
    if not text or "Traceback" in said:
        return [form, f"wrong: {reason(said)}", "", "", "", ""]
    if bool(command) != (code == 0):
        return [form, f"wrong: exit code {code}, but {'a' if command else 'no'} command", "", "", "", ""]
    if command and not losses and member.losses:
        return [form, f"wrong: {' '.join(command)}, but no loss", "", "", "", ""]
    if command is None:
        some = any(loss["ours"] for loss in losses)
        outcome = NAMED if found["losses"] else NOT_FOUND if member.losses else NOTHING
        outcome = HALF if some and any(loss.get("command") for loss in losses) else outcome
        known = [x["gradient_difference"] for x in losses if "gradient_difference" in x and x["ours"]]
        outcome = as_expected.partition(":")[0] * as_expected.startswith("wrong") or outcome
        return [form, outcome, "", f"{max(known):.1g}" if known else "", "", ""]
    at = command.index("--objective") + 1
    own = command[at].replace("adnce:", "infonce:")
    own = "siglip:t=host,b=host" if losses and losses[0]["form"] == "siglip" else own
    if "--own" in command:
        own = command[command.index("--own") + 1]
    code, said = run(folder, hosts, member, *command[:at], own, *command[at + 1 :], *member.words, "--verify", "3")
    proof = re.search(r"of the host's own loss in .+?, within (\S+), relative", said)
    outcome = as_expected if as_expected.startswith("wrong") else WORKS
    if tell or code:
        print(said)
    if code:
        outcome = f"wrong: --verify: {reason(said)}"
    temperature = re.search(r"t=[^,]+", command[at] if not own.startswith("siglip") else own)
    trained = []
    for spec in (f"{name}:{temperature[0] if temperature else 't=0.1'}" for name in ("hcl", "dcl")):
        code, said = run(folder, hosts, member, *command[:at], spec, *command[at + 1 :], *member.words)
        trained.append("yes" if code == 0 else reason(said))
        if code:
            print(said)
            outcome = outcome if outcome != WORKS else f"wrong: {spec} does not train"
    return [form, outcome, f"`inject {command[0]}`", proof[1] if proof else "", *trained]


PAGE = Path(__file__).parents[2] / "examples" / "existing_repos" / "README.md"
HEADER = "| code base | form | outcome | road | gradient | hcl | dcl |"
WORKS, HALF, NAMED, NOT_FOUND, NOTHING = "works", "half refused", "named", "not found", "nothing to find"
REASONS = {"logits do not say which columns are views": "only logits", "cannot be computed here": "only similarities"}


def reason(said: str) -> str:
    known = [short for text, short in REASONS.items() if text in said]
    return f"no: {known[0]}" if known else "no: " + (said.strip().splitlines() or ["it said nothing"])[-1][:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="code bases (all)")
    parser.add_argument("--write", action="store_true", help="write the table, or these rows, into the documentation")
    given = parser.parse_args()
    for name in given.names:
        if name not in MEMBERS:
            parser.error(f"unknown code base {name!r}.{nearest(name, MEMBERS)}")
    if "COUNTERPOINT_HOSTS" not in os.environ:
        parser.error("COUNTERPOINT_HOSTS: set it to the folder of the clones, see CONTRIBUTING.md")
    hosts, names = Path(os.environ["COUNTERPOINT_HOSTS"]).resolve(), given.names
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("torch._dynamo")  # which forks would import again and again
    for host in registry.names():
        registry.load(host)
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|"]
    print("\n".join(lines), flush=True)
    rows: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for name in names or MEMBERS:
        try:
            for package in MEMBERS[name].needs:
                importlib.import_module(package)
        except ImportError as error:
            print(f"| {name} | {error} |", flush=True)  # the page keeps its row
            continue
        if MEMBERS[name].folder and not (hosts / MEMBERS[name].folder).is_dir():
            print(f"| {name} | no {MEMBERS[name].folder} in COUNTERPOINT_HOSTS |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = row(MEMBERS[name], hosts, Path(folder), tell=bool(names))
        counts[cells[1].partition(":")[0]] += 1
        rows[name] = f"| {name} | {' | '.join(cells)} |"
        print(rows[name], flush=True)
    print("; ".join(f"{outcome}: {n}" for outcome, n in counts.most_common()), flush=True)
    if given.write:
        text = PAGE.read_text()
        table = re.search(rf"{re.escape(HEADER)}\n(\|.*\n)*(\n\d+ losses: .*\n)?", text)
        assert table, f"no table in {PAGE}"
        before = {line[2:].partition(" |")[0]: line for line in table[0].splitlines()[2:] if line.startswith("|")}
        lines += [line for name in MEMBERS if (line := rows.get(name, before.get(name)))]
        counts = Counter(line.split(" | ")[2].partition(":")[0] for line in lines[2:])
        outcomes = ", ".join(f"{outcome} {n}" for outcome, n in counts.most_common())
        lines += ["", f"{counts.total()} losses: {outcomes}.", ""]
        PAGE.write_text(text.replace(table[0], "\n".join(lines)))


if __name__ == "__main__":
    main()
