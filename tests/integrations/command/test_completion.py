"""Completion, as the shells themselves carry it out."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest
from parsers import parsers
from processes import PATIENCE

import counterpoint as cp
from counterpoint.install import install
from counterpoint.integrations.command import completion
from counterpoint.integrations.command.main import build, main
from counterpoint.integrations.command.table import COMMANDS

pytest.importorskip("shtab")

ASK_BASH = """
source "$1"
COMP_LINE="$2" COMP_POINT=${#2}
shift 2
COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 ))
_counterpoint
printf '%s\\n' "${COMPREPLY[@]}"
"""
ASK_ZSH = """\
fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D
answer() {{ zle complete-word; print -r -- "<<""$BUFFER"">>"; }}; zle -N answer; bindkey '^X' answer; echo REA""DY
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts of all shells, by the name under which zsh loads its own."""
    path = tmp_path_factory.mktemp("completion")
    for shell in completion.INSTALL:
        name = "_counterpoint" if shell == "zsh" else f"counterpoint.{shell}"
        (path / name).write_text(completion.script(shell, build("*")) + "\n")
    return path


def bash(folder, line):
    """The line that bash completes. Like readline it splits words at ``:`` and ``=``, but not within quotes."""
    words = re.findall(r"""["'].*$|[:=]|[^\s:=]+""", line)
    command = ["bash", "--norc", "-c", ASK_BASH, "bash", folder / "counterpoint.bash", line, *words]
    (found,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return line.removesuffix(words[-1].lstrip("\"'")) + found


def fish(folder, line):
    code = f"source {folder}/counterpoint.fish\ncomplete -C (printf '%s' $argv)"
    done = subprocess.run(["fish", "--no-config", "-c", code, line], capture_output=True, text=True, check=True)
    (found,) = {one.split("\t")[0] for one in done.stdout.splitlines()}
    return (
        line.removesuffix(re.split(r"\s|[\"']", line)[-1]) + found
        if '"' not in line
        else line.split('"')[0] + '"' + found
    )


def zsh(folder, line):
    """The line that zsh's editor completes, in a terminal of its own."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "COLUMNS": "400"})
    try:
        os.write(terminal, ASK_ZSH.format(folder=folder).encode())
        answer(terminal, rb"(READY)")
        os.write(terminal, line.encode() + b"\x18")
        return answer(terminal, rb"<<(.*?)>>").rstrip().replace("\\", "")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def answer(terminal, pattern):
    text, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 1 << 16)
        if match := re.search(pattern, text, re.S):
            return match[1].decode()
    raise AssertionError(f"zsh does not answer: {text[-500:]!r}")


SHELLS = {"bash": bash, "fish": fish, "zsh": zsh}
CASES = [
    ("counterpoint rep", "counterpoint report"),
    ("counterpoint tr", "counterpoint train"),
    ("counterpoint train gr", "counterpoint train graph"),
    ("counterpoint report --base", "counterpoint report --baseline"),
    ("counterpoint report runs --format js", "counterpoint report runs --format json"),
    ("counterpoint demo --domains im", "counterpoint demo --domains image"),
    ("counterpoint completion f", "counterpoint completion fish"),
    ("counterpoint demo --objective adn", "counterpoint demo --objective adnce:"),
    ("counterpoint demo --objective arc", "counterpoint demo --objective arcl("),
    ("counterpoint objectives hcl:be", "counterpoint objectives hcl:beta="),
    ("counterpoint demo --objective adnce:t=0.2,sig", "counterpoint demo --objective adnce:t=0.2,sigma="),
    ("counterpoint demo --objective adnce:weight=gam", "counterpoint demo --objective adnce:weight=gamma"),
    ('counterpoint demo --objective "arcl(adnce:quan', 'counterpoint demo --objective "arcl(adnce:quantile='),
    ('counterpoint demo --objective "infonce + adn', 'counterpoint demo --objective "infonce + adnce:'),
    (
        'counterpoint demo --objective "arcl(infonce:t=0.2):vie',
        'counterpoint demo --objective "arcl(infonce:t=0.2):views=',
    ),
]


@pytest.mark.parametrize(("line", "expected"), CASES)
@pytest.mark.parametrize("shell", SHELLS)
def test_completes(folder, shell, line, expected):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert SHELLS[shell](folder, line) == expected


def test_several_values_of_one_flag(folder):
    assert bash(folder, "counterpoint demo --domains graph im") == "counterpoint demo --domains graph image"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("words", ["report", "demo --out"])
def test_files_where_an_argument_is_a_file(folder, tmp_path, shell, words):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "some_runs").mkdir()
    begun = f"counterpoint {words} {tmp_path}/some"
    assert SHELLS[shell](folder, begun).rstrip("/") == f"counterpoint {words} {tmp_path}/some_runs"


def test_the_script_knows_every_command_and_flag(folder):
    text = (folder / "counterpoint.bash").read_text()
    for name, parser in parsers().items():
        prefix = "_shtab_counterpoint_" + name.replace(" ", "_")
        (flags,) = re.findall(rf"^{prefix}_option_strings=\((.*)\)$", text, re.M)
        assert flags.split() == [word for action in parser._actions for word in action.option_strings], name
    assert len(parsers()) == len(COMMANDS)


def test_specs_know_every_objective_and_parameter():
    words = completion.spec_words()
    assert [word.rstrip(":(") for word in words["names"]] == list(cp.registry)
    for name, class_ in cp.registry.items():
        assert words.get(name, []) == [f"{hyper.short}=" for hyper in class_.hyper.values()]


def test_a_missing_shtab_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == f"counterpoint completion: completion needs shtab: {install('cli')}\n"
