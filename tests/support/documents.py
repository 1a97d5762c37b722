"""The documents, the command lines in them, and what they link to."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    "examples/README.md",
    "examples/existing_repos/README.md",
    "skills/counterpoint/SKILL.md",
)
GENERATED = ("objectives", "hosts", "api", "notebooks")  # folders of the site that docs/site_pages.py fills
COMMAND = re.compile(r"(?:make|pip|counterpoint|python) \S")


def commands(text: str) -> Iterator[list[str]]:
    """The commands in fences without a language, in indented lines, and in backticks; without comments, in order.

    Those with an ellipsis are patterns and no commands.
    """
    fence = None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            continue
        if fence == "" or (fence is None and line.startswith("    ")):
            said = [line.strip()]
        else:
            said = [] if fence is not None else re.findall(r"`([^`]+)`", line)
        for one in said:
            typed = re.split(r"\s+#|\s{3,}|\s>\s", re.sub(r"^cd \S+ && ", "", one))[0]
            if COMMAND.match(typed) and "..." not in typed:
                yield shlex.split(typed)


def too_long(text: str, words: int = 30) -> list[str]:
    """The sentences of more words than that, outside of code, tables and comments."""
    text = re.sub(r"```.*?```|<!--.*?-->|^(?:    |\|).*?$", "", text, flags=re.S | re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return [one for one in re.split(r"(?<=[.:;?!])\s+|\n\n|\n(?:- |#)", text) if len(one.split()) > words]


def links(name: str) -> Iterator[tuple[str, str]]:
    """Path from the root and heading (or "") of every relative link and picture of a document.

    Without links to generated pages, which are checked on the built site.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    for path, _, heading in (one.partition("#") for one in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", text)):
        if path.replace("../", "").partition("/")[0] not in GENERATED:
            yield (os.path.normpath(Path(name).parent / path) if path else name), heading


def headings(name: str) -> set[str]:
    """As links name them: small letters, hyphens for spaces, nothing but those and digits."""
    found = re.findall(r"^#+ (.*)", (ROOT / name).read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in found}


def run_blocks(name: str, heading: str, run: Path, model: Path | None = None) -> dict[str, object]:
    """Run the Python blocks under a heading of a document in one namespace, and return it.

    Args:
        run: the folder of the run that the blocks call ``runs/.../NAME/...``.
        model: the folder of the model that they call ``FOLDER``.
    """
    section = (ROOT / name).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert blocks, heading
    names: dict[str, object] = {}
    for block in blocks:
        block = re.sub(r'"runs/[^"]*/NAME/[^"]*"', repr(str(run)), block).replace('"FOLDER"', repr(str(model)))
        exec(compile(block, f"{name}, {heading}", "exec"), names)
    return names
