"""Execute the notebooks of this folder, and turn them into pages of the site and files for Jupyter or Colab.

The notebooks are Python files in the percent format, so that they can be read, compared and linted. jupytext reads
them.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).with_name("notebooks")
TIMEOUT = 600  # seconds for a cell
CLEAR = "%reset -f"  # so that a notebook cannot use names of the one before it
NOISE = re.compile(r"Warning|warnings\.warn|\{'train_runtime'|^\s*\d+%\|", re.M)

# where a reader of the page goes next
FURTHER = {
    "false_negatives": "[False negatives](../guides/false_negatives.md), "
    "[from sentence-transformers](../from/sentence_transformers.md), [which loss](../which_loss.md)",
    "graphcl_mutag": "[The graph domain](../domains/graph.md), [the study](../results.md#graphs), "
    "[from PyTorch Geometric](../from/pyg.md)",
    "simclr_photos": "[The image domain](../domains/image.md), [from lightly](../from/lightly.md)",
    "look_into_a_batch": "[Temperature](../guides/temperature.md), [objectives](../objectives/index.md), "
    "[`report` in the API](../api/counterpoint.md)",
}


# data that a notebook would download, and where it is otherwise: in $COUNTERPOINT_DATA
DATA = {"graphcl_mutag": Path("tu", "MUTAG", "raw")}


def paths() -> list[Path]:
    """Return the notebooks, in the order of :data:`FURTHER`."""
    return [FOLDER / f"{name}.py" for name in FURTHER]


def offline(name: str) -> bool:
    """Whether a notebook can be executed without a download."""
    return name not in DATA or (Path(os.environ.get("COUNTERPOINT_DATA", ""), DATA[name])).is_dir()


def execute(notebooks: Iterable[Path]) -> dict[str, Any]:
    """Execute the notebooks one after the other, and return them with their outputs, by name.

    One kernel executes all, because importing the frameworks takes most of the time; a reset separates them. A cell
    that raises stops everything, with its traceback. A notebook whose data are not here has no outputs.
    """
    read = {path.stem: jupytext.read(path) for path in notebooks}
    together = nbformat.v4.new_notebook()
    for name, notebook in read.items():
        together.cells += [nbformat.v4.new_code_cell(CLEAR), *notebook.cells] if offline(name) else []
    NotebookClient(together, timeout=TIMEOUT, startup_timeout=TIMEOUT, kernel_name="python3").execute(
        env={"OMP_NUM_THREADS": "1", **os.environ}
    )
    return read


def page(name: str, notebook: Any) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if output.output_type == "stream":
                lines = [line for line in output.text.splitlines() if not NOISE.search(line)]
                if output.name == "stdout" and any(map(str.strip, lines)):
                    parts.append("```text\n" + "\n".join(lines).strip("\n") + "\n```")
            elif "image/png" in data:
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![The picture that this cell draws]({file})")
            elif "text/html" in data and "application/vnd.jupyter.widget-view+json" not in data:
                parts.append(f'<div class="output" markdown="0">\n{data["text/html"].strip()}\n</div>')
            elif output.output_type == "execute_result":
                parts.append(f"```text\n{data['text/plain']}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    ran = any(cell.get("outputs") for cell in notebook.cells)
    note = (
        f"[Download this notebook]({name}.ipynb), and open it in Jupyter, or in Colab by *File, Upload notebook*. "
        f"{'The outputs below are those of the build of this site.' if ran else 'This page shows no outputs.'}"
    )
    return f"{title}\n\n{note}\n{rest}\n\n## Further reading\n\n{FURTHER[name]}.\n", pictures


def files(executed: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of the site's folder ``notebooks``: a page, a notebook, and pictures for each."""
    written: dict[str, bytes] = {}
    for name, notebook in executed.items():
        text, pictures = page(name, notebook)
        written |= {f"{name}.md": text.encode(), f"{name}.ipynb": nbformat.writes(notebook).encode(), **pictures}
    return written


def plain() -> dict[str, Any]:
    """Return the notebooks without outputs, where executing them takes too long."""
    return {path.stem: jupytext.read(path) for path in paths()}
