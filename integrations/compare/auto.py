"""The host ``auto``: find the loss once, and compare there."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import store
from .cells import DOMAIN


def find(root: Path, code: str, script: Sequence[str], seam: Sequence[str]) -> tuple[str, list[str]]:
    """Return the host and its flags, which ``counterpoint inject auto`` finds in some steps of the script.

    What it finds is kept in the store, since the name of a cell depends on it.
    """
    file = root.resolve() / DOMAIN / f"auto-{store.checksum(code, json.dumps([*script, *seam]))[:12]}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as out, store.atomic(file) as kept:
            words = [word.replace("{seed}", "0").replace("{out}", out) for word in script]
            found = Path(out, "found.json")
            command = [sys.executable, "-m", "counterpoint.plugins.inject", "auto", *seam, f"--json={found}", "--"]
            subprocess.run([*command, *words], stdout=sys.stderr)
            kept.write(found.read_bytes() if found.exists() else b"{}")
    data = json.loads(file.read_text(encoding="utf-8"))
    commands = data.get("commands", [])
    known = [command for command in commands if command[2] in data["hosts"]]
    if not commands or (len(known) != 1 and len(commands) > len(known) + 1):
        file.unlink()
        roads = "; ".join(shlex.join(["compare", *command[2 : command.index("--")]]) for command in commands)
        raise ValueError(f"auto: found {len(commands)} losses to replace" + (f", name one: {roads}" if roads else ""))
    host, *flags = commands[0][2 : commands[0].index("--")]
    at = flags.index("--objective")
    return host, [*flags[:at], *flags[at + 2 :]]
