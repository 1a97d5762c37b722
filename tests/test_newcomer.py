"""A newcomer's hour: the commands of the README and of the pages for beginners, in order, from an empty environment.

What would take hours, a GPU, a download or somebody else's code base is shortened by flags, or left out, and why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, commands

PAGES = (  # in the order in which a newcomer reads them
    "README.md",
    "docs/index.md",
    "docs/command_line.md",
    "docs/which_loss.md",
    "docs/guides/tuning.md",
    "docs/domains/graph.md",
    "docs/domains/sentence.md",
    "docs/domains/control.md",
    "docs/domains/image.md",
    "docs/atlas.md",
    "docs/results.md",
    "docs/faq.md",
)
GRAPH = ["--epochs", "1", "--folds", "3", "--hidden", "8"]
SAID = {  # a command's beginning: what shortens it, and what its output must hold; or why it is left out
    "make demo": (["JOBS=2"], r"sentence: 35 runs.*wrote demo/report\.json"),
    "make test": "this is a part of it",
    "make docs": ([], r"site/index\.html"),
    "pip install -c constraints.txt .": "the versions of another Python may not exist for this one",
    "pip install .[": "make demo has set up more than that",
    "pip install mteb": "a framework that eval mteb alone needs",
    "pip install .": ([], r"[+~] counterpoint-losses(==| @)"),
    "counterpoint demo": "as make demo",
    "counterpoint objectives adnce --plot": ([], r"when +many false negatives.*wrote weights\.png"),
    "counterpoint objectives adnce": ([], r"here it is (the same|off by)"),
    "counterpoint objectives": ([], r"infonce  InfoNCE.*debpos  DebiasedPositives"),
    "counterpoint inject --list": ([], r"simcse: .*graphcl: "),
    "counterpoint inject lightly": "needs a script of the reader's own",
    "counterpoint inject clip": "needs a script of the reader's own",
    "counterpoint inject logits": "needs a script of the reader's own",
    "counterpoint inject function": "needs a script of the reader's own",
    "counterpoint inject auto": "needs a script of the reader's own",
    "counterpoint compare --help": ([], r"A/B test of objectives.*--seed-flag"),
    "counterpoint compare": "needs a script of the reader's own",
    "counterpoint inject": ([], r"which host\? Known:"),
    "counterpoint race": "needs a script of the reader's own",
    "counterpoint advise": "needs data of the reader's own",
    "counterpoint doctor": ([], r"ok +extra +graph"),
    "counterpoint tune graph": ([*GRAPH, "--budget", "4"], r"use adnce:t="),
    "counterpoint train graph --objective": ([*GRAPH, "--seeds", "2"], r"against infonce.*untrained encoder"),
    "counterpoint train graph --config": "a file of the reader's own",
    "counterpoint report runs --out report": ([], r"wrote report/report\.html"),
    "counterpoint report runs/curl_dmc/runs": "reads what half an hour has trained",
    "counterpoint train graph --data PROTEINS": ([*GRAPH, "--seeds", "1"], r"graph: PROTEINS.*adnce:t=0\.05"),
    "counterpoint train graph --data MUTAG": ([*GRAPH], r"graph: MUTAG.*adnce:t=0\.15"),
    "counterpoint train graph --seeds 8 --on": "a cluster",
    "counterpoint eval graph runs/graph/PROTEINS": (["--folds", "3", "--seeds", "1"], r"PROTEINS, knn: accuracy"),
    "counterpoint train control --task cartpole-swingup": "a GPU's hours",
    "counterpoint eval control": "plays what a GPU's hours have trained",
    "python examples/studies/curl_dmc.py": "half an hour",
    "python examples/studies/results.py": ([], r"wrote .*results\.md"),
    "python examples/studies/atlas_report.py": "summarizes cells that take an hour",
    "python examples/studies/finetuned.py": "fine-tunes for hours",
    "python examples/studies/retrieval.py": "trains for a quarter of an hour",
    "counterpoint train sentence": "texts of the reader's own, models from the hub",
    "counterpoint eval sts": "evaluates what these have trained",
    "counterpoint eval transfer": "a model from the hub",
    "counterpoint eval retrieval": "a model from the hub",
    "counterpoint eval mteb": "a model from the hub",
    "counterpoint train image": "downloads, a GPU, or the reader's own photos",
    "counterpoint eval image": "evaluates what these have trained",
    "python tests/bench/bench_control.py": "needs a clone of CURL",
    "python -m tests.bench.losses": "needs a clone of ADNCE, and measures",
    "python tests/bench/bench_augment.py": "measures; says nothing that could be wrong",
}


def known(words: list[str]) -> str:
    """The longest beginning that the table has."""
    line = " ".join(words)
    found = [one for one in SAID if line.startswith(one)]
    assert found, f"the pages have a new command, {line!r}: say in SAID what it must show, or why it cannot run"
    return max(found, key=len)


def hour() -> list[list[str]]:
    """The commands of the pages, each once."""
    found = [one for page in PAGES for one in commands((ROOT / page).read_text(encoding="utf-8"))]
    return [list(one) for one in dict.fromkeys(map(tuple, found))]


def test_the_table_is_that_of_the_pages():
    assert {known(words) for words in hour()} == set(SAID)


@pytest.mark.slow
def test_from_an_empty_environment(tmp_path):
    home = tmp_path / "counterpoint"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a clone")
    for name in listed.stdout.splitlines():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, home / name)
    bin_ = home / ".venv" / "bin"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PATH": f"{bin_}{os.pathsep}{environment['PATH']}", "PYTHON": sys.executable}
    for words in hour():
        how = SAID[known(words)]
        if isinstance(how, str):
            continue
        data = Path(environment.get("COUNTERPOINT_DATA", ""), "tu")
        if {"PROTEINS", "MUTAG", "runs/graph/PROTEINS"} & set(words) and not (
            "COUNTERPOINT_DATA" in environment and data.is_dir()
        ):
            continue
        if words[0] == "pip":  # in the environment of make demo, which need not have pip
            install = ["uv", "pip", "install", "--reinstall-package", "counterpoint"]
            words = [*install, "--python", str(bin_ / "python"), *words[2:]]
        more, expected = how
        done = subprocess.run([*words, *more], cwd=home, env=environment, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == (2 if words == ["counterpoint", "inject"] else 0), f"{words}: {said[-2000:]}"
        assert re.search(expected, said, re.S), f"{words}: {said[-2000:]}"
    for path in ("demo/report.html", "demo/report.json", "report/report.html", "weights.png"):
        assert (home / path).stat().st_size > 1000
