"""Commands start quickly: help, version and usage errors need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from counterpoint.integrations.command.main import COMMANDS

CPU_SECONDS = 0.3
HEAVY = ("torch", "numpy", "transformers", "lightning", "torch_geometric", "dm_control", "matplotlib", "scipy")
# the CPU time is that of the process itself, Python's own start included
START = f"""
import resource, sys
from counterpoint.integrations.command.main import main
sys.argv = ["counterpoint", *sys.argv[1:]]
try:
    main()
except SystemExit as error:
    code = error.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(code, used.ru_utime + used.ru_stime, *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def start(*words):
    """The exit code, the CPU time and the heavy packages imported of a start of the command."""
    done = subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True)
    code, seconds, *heavy = done.stderr.splitlines()[-1].split()
    return int(code), float(seconds), heavy


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--help"], 0), (["--version"], 0), ([], 2), (["objectvies"], 2), (["train"], 2), (["train", "--help"], 0)],
)
def test_help_version_and_usage_errors_are_quick(words, expected):
    code, _, heavy = start(*words)
    assert (code, heavy) == (expected, [])
    assert min(start(*words)[1] for _ in range(3)) <= CPU_SECONDS


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("flag", "expected"), [("--help", 0), ("--no-such-flag", 2)])
def test_every_commands_parser_needs_no_torch(name, flag, expected):
    code, seconds, heavy = start(*name.split(), flag)
    assert (code, heavy) == (expected, [])
    assert seconds <= 2 * CPU_SECONDS  # a single start, perhaps on a busy machine


def test_python_m_counterpoint_is_quick():
    code = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('counterpoint', run_name='__main__')"
    watched = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))\n{code}"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_installed_command_is_the_same(tmp_path):
    done = subprocess.run([Path(sys.executable).with_name("counterpoint"), "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("counterpoint ")
