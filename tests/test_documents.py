"""Names in the documents exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pkgutil import resolve_name

import pytest
from documents import DOCUMENTS, ROOT

from counterpoint.integrations.command.table import COMMANDS


@pytest.mark.parametrize("path", [*DOCUMENTS, "CHANGELOG.md"])
def test_the_names_of_modules_and_classes_exist(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    names = set(re.findall(r"`(counterpoint(?:\.\w+)+)", text))
    assert names or path.startswith("docs/") or path in ("CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    for name in names:
        try:
            resolve_name(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "counterpoint":
                raise
            pytest.skip(f"{error.name} is not installed")


def test_examples_can_be_pasted_into_a_shell():
    """Those of ``--help``, and the commands in the documents: no character that a shell reads is without quotes."""
    examples = [f"counterpoint {example}" for command in COMMANDS.values() for example in command.examples]
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        blocks = re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", text, re.S | re.M)
        examples += [line for block in blocks for line in block.splitlines() if line.startswith("counterpoint ")]
    assert len(examples) > 70
    for example in examples:
        typed = re.split(r"\s{3,}|\s#", example)[0]  # without the comment beside it
        assert subprocess.run(["bash", "-n", "-c", typed], capture_output=True).returncode == 0, typed
        words = [*shlex.shlex(typed, posix=False, punctuation_chars="();<>|&*")]
        assert not [word for word in words if word[0] in "();<>|&*"], typed
