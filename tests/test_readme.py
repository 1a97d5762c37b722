"""The README's Python blocks run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

from counterpoint import registry

README = Path(__file__).resolve().parent.parent / "README.md"


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    registered = dict(registry)
    try:
        for i, block in enumerate(blocks):
            exec(compile(block, f"README.md, Python block {i + 1}", "exec"), names)
    finally:  # the README's own objective is nobody else's business
        registry.clear()
        registry.update(registered)
