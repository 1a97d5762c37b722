"""The notebooks: a Jupyter kernel executes them, and their pages show what they found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

pytest.importorskip("nbclient")
pytest.importorskip("jupytext")
import notebook_pages
from nbclient.exceptions import CellExecutionError

NAMES = list(notebook_pages.FURTHER)
HEAD = "# %%\n"


@pytest.fixture(scope="module")
def files():
    for module in ("sentence_transformers", "torch_geometric", "lightly", "matplotlib"):
        pytest.importorskip(module)
    return notebook_pages.files(notebook_pages.execute(notebook_pages.paths()))


def outputs(files: dict[str, bytes], name: str) -> str:
    return "\n".join(re.findall(r"```text\n(.*?)```", files[f"{name}.md"].decode(), re.S))


def test_every_notebook_is_listed():
    assert sorted(path.stem for path in notebook_pages.FOLDER.glob("*.py")) == sorted(NAMES)


@pytest.mark.slow
def test_false_negatives(files):
    """The text under the table says that InfoNCE loses, and what repairs it."""
    rows = dict(re.findall(r"^(\S.*?)  +(\d+\.\d)\b", outputs(files, "false_negatives"), re.M))
    score = {name: float(value) for name, value in rows.items()}
    assert score["InfoNCE, which is MNRL"] < score["before training"]
    assert score['InfoNCE, labels="ids"'] > score["before training"]
    assert score['InfoNCE, labels="classes"'] > score['InfoNCE, labels="ids"']
    assert "different" in outputs(files, "false_negatives")


@pytest.mark.slow
@pytest.mark.skipif(not notebook_pages.offline("graphcl_mutag"), reason="$COUNTERPOINT_DATA has no MUTAG")
def test_graphcl(files):
    text = outputs(files, "graphcl_mutag")
    assert "188 graphs of 2 classes" in text
    accuracy = dict(re.findall(r"^(\S.*?)  +(\d+\.\d) ±", text, re.M))
    assert set(accuracy) == {"untrained encoder", "GraphCL (InfoNCE)", "ADNCE", "bag of nodes"}
    assert float(accuracy["bag of nodes"]) > 66.5  # the share of the larger class


@pytest.mark.slow
def test_simclr(files):
    text = outputs(files, "simclr_photos")
    accuracy = {name: float(value) for name, value in re.findall(r"^(\S.*?)  +(\d+\.\d)$", text, re.M)}
    assert accuracy["before training"] < accuracy["infonce:t=0.2"] < accuracy["pixels"]
    assert {"simclr_photos_1.png", "simclr_photos_2.png"} <= set(files)


def test_look_into_a_batch():
    """The one that needs no framework, and so the quick one."""
    pytest.importorskip("matplotlib")
    name = "look_into_a_batch"
    files = notebook_pages.files(notebook_pages.execute([notebook_pages.FOLDER / f"{name}.py"]))
    shares = re.findall(r"^(?:0\.\d+|1\.0) +(\d+\.\d)$", outputs(files, name), re.M)
    assert len(shares) == 5
    assert sorted(shares, key=float) == shares  # the larger the temperature, the more negatives count
    assert {f"{name}_1.png", f"{name}_2.png"} <= set(files)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_they_open_in_jupyter(files, name):
    import nbformat

    notebook = nbformat.reads(files[f"{name}.ipynb"].decode(), 4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    assert str(ROOT) not in re.sub(r'"image/png": ".*?"', "", files[f"{name}.ipynb"].decode())


def test_a_cell_that_raises_stops_the_build_and_names_do_not_leak(tmp_path):
    (tmp_path / "a.py").write_text(f"{HEAD}secret = 1\nprint(secret)\n")
    (tmp_path / "b.py").write_text(f"{HEAD}print(secret)\n")
    with pytest.raises(CellExecutionError, match="name 'secret' is not defined"):
        notebook_pages.execute([tmp_path / "a.py", tmp_path / "b.py"])


@pytest.fixture(scope="module")
def site(files, tmp_path_factory):
    """The pages with their outputs; tests/test_site.py checks their links."""
    pytest.importorskip("zensical")
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "pages").mkdir()
    for name, data in files.items():
        (folder / "pages" / name).write_bytes(data)
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8").replace("build/pages", "pages")
    text = re.sub(r"^nav = \[.*?^\]\n|^extra_css.*?\n", "", text, flags=re.S | re.M)
    (folder / "zensical.toml").write_text(text.replace("docs/docstrings.py", str(ROOT / "docs" / "docstrings.py")))
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_their_pages_fit_a_screen(browser, site, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    for name in NAMES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, name
    assert said == []
    page.close()
