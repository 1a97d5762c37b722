"""The description that package indexes show. Everything else about the package is in pyproject.toml.

An index shows README.md, whose relative links lead nowhere there. ``COUNTERPOINT_SOURCE``, which the release workflow
sets, is the address of the files at the release's tag; without it, links become their text and the file's path, and
pictures are left out.
"""

import os
import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(?P<picture>!?)\[(?P<label>[^\]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")
PATHS = "Paths, such as `docs/index.md`, are those of files in the source code."


def description(readme: str, source: str | None) -> str:
    """Return README.md without relative links.

    Args:
        readme: the file's text.
        source: address of the repository's files, such as ``https://github.com/OWNER/NAME/blob/v0.1.0``.
    """

    def absolute(link: re.Match[str]) -> str:
        if source is None and link["picture"]:
            return ""
        if source is None:
            return link["label"] if link["label"] == link["path"] else f"{link['label']} (`{link['path']}`)"
        folder = source.replace("/blob/", "/raw/") if link["picture"] else source
        return f"{link['picture']}[{link['label']}]({folder.rstrip('/')}/{link['path']})"

    readme = readme if source else readme.replace("\n\n", f"\n\n{PATHS}\n\n", 1)
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(absolute, readme))


if __name__ == "__main__":
    address = os.environ.get("COUNTERPOINT_SOURCE")
    setup(
        long_description=description(Path("README.md").read_text(encoding="utf-8"), address),
        long_description_content_type="text/markdown",
        project_urls={"Source": address.replace("/blob/", "/tree/")} if address else {},
    )
