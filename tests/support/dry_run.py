"""Install the files of a release as their users will, each in empty environments, and run README.md's lines there.

python tests/support/dry_run.py dist [--extras graph cli]

Needs uv and a package index; the release workflow runs it before it publishes. Nothing is imported from the checkout:
commands run in a temporary folder, with the environment's own Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from documents import commands

ROOT = Path(__file__).resolve().parents[2]
FITS = ["--epochs", "1", "--folds", "3", "--hidden", "8"]
SCRIPT = "train.py --steps 40"
NAMED = ("inject",)  # the text names these commands without the words that they need
LINES = {  # how a command of the README starts: what shortens it, and a line that it prints; or why it is left out
    "make": "in a clone",
    "python examples": "in a clone",
    "pip install .": "the environment has the built file in its place",
    "counterpoint race auto": (["--budget", "4", "--seeds", "3"], r"train\.py"),
    "counterpoint inject simcse": "needs a clone of SimCSE",
    "counterpoint inject auto": ([], r"logits"),
    "counterpoint inject --list": ([], r"simcse: "),
    "counterpoint compare auto": (["--seeds", "2"], r"duplicates"),
    "counterpoint doctor": ([], r"ok +extra +graph"),
    "counterpoint objectives adnce": ([], r"false negatives"),
    "counterpoint tune graph": ([*FITS, "--budget", "4"], r"use adnce:t="),
    "counterpoint train graph": ([*FITS, "--seeds", "2"], r"against infonce"),
    "counterpoint report": ([], r"wrote report/report\.html"),
}


def known(words: list[str]) -> str:
    """Return the longest beginning in LINES."""
    found = [one for one in LINES if " ".join(words).startswith(one)]
    if not found:
        sys.exit(
            f"README.md has a new command, {' '.join(words)!r}: say in LINES of {Path(__file__).name} how to run it"
        )
    return max(found, key=len)


def environment(folder: Path, requirement: str) -> Path:
    """Create an environment with one distribution, and return its folder of commands."""
    # the same Python as ours, which a version alone would not choose
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    commands_ = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", str(commands_ / "python"), requirement], check=True)
    return commands_


def run(path: Path, words: list[str], folder: Path, expected: str = "") -> str:
    """Run a command of an environment in a folder outside of the checkout, and return its output."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COUNTERPOINT_DATA", "VIRTUAL_ENV")}
    variables["PATH"] = os.pathsep.join([str(path), variables["PATH"]])
    found = shutil.which(words[0], path=variables["PATH"]) or words[0]
    done = subprocess.run([found, *words[1:]], cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode or not re.search(expected, done.stdout + done.stderr):
        sys.exit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}\nexit status {done.returncode}")
    return done.stdout


def extras(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Provides-Extra", [])


def check_same(wheel: Path, sdist: Path) -> None:
    """End unless the wheel that the sdist builds has the same files, so that commands need to run with one of them."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", folder, str(sdist)], check=True)
        (built,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as one, ZipFile(built) as other:
            names = {*one.namelist(), *other.namelist()}
            both = {*one.namelist()} & {*other.namelist()}
            if differ := sorted(name for name in names if name not in both or one.read(name) != other.read(name)):
                sys.exit(f"{sdist.name}: its wheel is another one: {', '.join(differ[:4])}")
    print(f"{sdist.name}: its wheel has the {len(both)} files of {wheel.name}", flush=True)


def try_file(file: Path, names: list[str]) -> None:
    """Check one wheel or sdist: alone, and with each extra; the README's commands with those of the wheel."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "work")
        folder.mkdir()
        path = environment(Path(home, "alone"), str(file))
        (folder / "tour.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", readme, re.S)), encoding="utf-8")
        run(path, ["python", "tour.py"], folder)
        origin = run(path, ["python", "-c", "import counterpoint; print(counterpoint.__file__)"], folder)
        if not origin.startswith(home):
            sys.exit(f"{file.name}: counterpoint was imported from {origin}")
        print(f"{file.name}: README.md's Python runs", flush=True)
        for name in names:
            path = environment(Path(home, name), f"{file}[{name}]")
            state = {
                one["name"]: one["state"] for one in json.loads(run(path, ["counterpoint", "doctor", "--json"], folder))
            }
            if name != "all" and state[name] != "ok":
                sys.exit(f"{file.name}[{name}]: counterpoint doctor finds {name} {state[name]}")
            print(f"{file.name}[{name}]: installed, complete", flush=True)
            if name == "all" and file.suffix == ".whl":
                try_commands(path, folder)
            shutil.rmtree(Path(home, name))


def try_commands(path: Path, folder: Path) -> None:
    demo = json.loads(run(path, ["counterpoint", "demo", "--quick", "--seeds", "2", "--json"], folder))
    ran = {column["domain"].partition("-")[0] for column in demo["columns"]}
    left_out = [note for note in demo["notes"] if "left out" in note]
    # there may be no renderer for control; everything else must run
    if not ran >= {"planted", "graph", "image", "sentence"} or not all("control" in note for note in left_out):
        sys.exit(f"counterpoint demo ran {sorted(ran)} and left out {left_out}")
    print("    counterpoint demo", flush=True)
    script = (ROOT / "tests" / "support" / "toy_train.py").read_text(encoding="utf-8")
    script = (
        script.replace("results.json", "r.json").replace('"test"', '"acc"').replace("results['test']", "results['acc']")
    )
    (folder / "train.py").write_text(script, encoding="utf-8")
    for words in commands((ROOT / "README.md").read_text(encoding="utf-8")):
        if len(words) == 2 and words[1] in NAMED:
            continue
        how = LINES[known(words)]
        if isinstance(how, str):
            continue
        more, expected = how
        # the words after the dashes name the reader's own script
        end = words.index("--") if "--" in words else len(words)
        words = [*words[:end], *more, *(["--", *SCRIPT.split()] if end < len(words) else [])]
        run(path, words, folder, expected)
        print(f"    {' '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder with a wheel and an sdist")
    parser.add_argument("--extras", nargs="*", help="only these (all that the wheel has)")
    arguments = parser.parse_args()
    (wheel,), (sdist,) = arguments.dist.resolve().glob("*.whl"), arguments.dist.resolve().glob("*.tar.gz")
    subprocess.run(["uv", "tool", "run", "twine", "check", "--strict", str(wheel), str(sdist)], check=True)
    check_same(wheel, sdist)
    names = extras(wheel) if arguments.extras is None else arguments.extras
    for file in (wheel, sdist):
        try_file(file, names)
    print(f"complete: {wheel.name} and {sdist.name}, alone and with {len(names)} extras")


if __name__ == "__main__":
    main()
