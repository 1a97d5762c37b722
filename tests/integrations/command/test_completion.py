"""Completion, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

import counterpoint as cp
from counterpoint.integrations.command import completion
from counterpoint.integrations.command.main import COMMANDS, parsers


@pytest.fixture(scope="module")
def known():
    return parsers()


@pytest.fixture(scope="module")
def scripts(known):
    return {shell: completion.script(shell, known) for shell in completion.WRITE}


ASK_BASH = """
{script}
COMP_LINE="$1" COMP_POINT=${{#1}}
shift
COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 ))
_counterpoint
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def bash(script, line, last):
    """What bash would put in the place of the last word; as it breaks words at colons, only what comes after them."""
    command = ["bash", "-c", ASK_BASH.format(script=script), "bash", line, *line.split()[:-1], last]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def fish(script, line, last):
    words = ["fish", "--no-config", "-c", f"{script}\ncomplete -C (printf '%s' $argv)", line]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    begun = line.split()[-1].lstrip("\"'") if not line.endswith(" ") else ""
    return [one[len(begun) - len(last) :] if last != begun else one for one in found]


def zsh(script, line, last):
    """The reply that zsh's own completion then matches, as its line editor needs a terminal."""
    words = line.split(" ")
    ask = f"{script.split('_counterpoint() {')[0]}" + """sh -c "$_counterpoint_sh"'_counterpoint_reply "$@"' sh "$@\""""
    begun = words[-1].lstrip("\"'")
    command = ["zsh", "-fc", ask, "zsh", begun, *[word for word in words[1:-1] if word]]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [one[len(begun) - len(last) :] for one in found if one.startswith(begun)]


SHELLS = {"bash": bash, "fish": fish, "zsh": zsh}
CASES = [
    ("counterpoint rep", "rep", ["report"]),
    ("counterpoint tr", "tr", ["train"]),
    ("counterpoint report --base", "--base", ["--baseline"]),
    ("counterpoint report runs --format js", "js", ["json"]),
    ("counterpoint demo --domains graph im", "im", ["image"]),
    ("counterpoint completion f", "f", ["fish"]),
    ("counterpoint demo --objective adn", "adn", ["adnce:"]),
    ("counterpoint demo --objective arc", "arc", ["arcl("]),
    ("counterpoint objectives hcl:be", "be", ["beta="]),
    ("counterpoint demo --objective adnce:t=0.2,sig", "0.2,sig", ["0.2,sigma="]),
    ("counterpoint demo --objective adnce:weight=gam", "gam", ["gamma"]),
    ('counterpoint demo --objective "arcl(adnce:quan', '"arcl(adnce:quan', ["arcl(adnce:quantile="]),
    (
        'counterpoint demo --objective "arcl(infonce:t=0.2):vie',
        '"arcl(infonce:t=0.2):vie',
        ["arcl(infonce:t=0.2):views="],
    ),
]


@pytest.mark.parametrize(("line", "last", "expected"), CASES)
@pytest.mark.parametrize("shell", SHELLS)
def test_completes(scripts, shell, line, last, expected):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    asked = last.lstrip('"') if shell != "bash" else last
    assert SHELLS[shell](scripts[shell], line, asked) == expected


@pytest.mark.parametrize("shell", ["bash"])
def test_files_where_files_are_meant(scripts, tmp_path, shell):
    (tmp_path / "some_runs").mkdir()
    begun = str(tmp_path / "some")
    assert bash(scripts["bash"], f"counterpoint report {begun}", begun) == [str(tmp_path / "some_runs")]
    assert bash(scripts["bash"], f"counterpoint demo --out {begun}", begun) == [str(tmp_path / "some_runs")]


def test_the_table_has_every_command_flag_and_objective(known):
    table = completion.table(known)
    assert sorted(set(table["next"])) == sorted({name.split()[0] for name in COMMANDS})
    for name, parser in known.items():
        for action in parser._actions if parser else ():
            assert set(action.option_strings) - {"-h"} <= set(table.get(f"flags {name}", [])), action
    assert [word.rstrip(":(") for word in table["names"]] == list(cp.registry)
    for name, kind in cp.registry.items():
        assert table.get(f"spec {name}", []) == [f"{hyper.short}=" for hyper in kind.hyper.values()]


def test_a_missing_extra_leaves_the_name(known):
    table = completion.table({**known, "train graph": None})
    assert "graph" in table["next train"]
    assert "flags train graph" not in table
