"""The report as a page: whole, safe, self-contained, saying what the tables say. In a browser where one is there."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest
from reports import BASE, OTHER, make, noisy

from counterpoint.diagnose import figure
from counterpoint.install import install
from counterpoint.integrations import report, store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.report import output, plots
from counterpoint.integrations.report.tables import tables
from counterpoint.integrations.report.words import reading

pytest.importorskip("matplotlib")

VOID = {"meta", "wbr", "br", "img", "hr", "link", "input"}
NASTY = "<script>alert(\"x\")</script> & 'quotes'"


class Page(HTMLParser):
    """What is in a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.lines: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.lines.append([])
        elif tag in ("td", "th"):
            self.lines[-1].append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.stack):
            self.lines[-1][-1] += data


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    make(root, {("MUTAG", BASE): noisy(70, 10, 0.3), ("MUTAG", OTHER): noisy(74, 10, 0.3)})
    make(
        root,
        {("digits", BASE): noisy(70, 3), ("digits", OTHER): noisy(74, 3), ("digits", NASTY): noisy(60, 3)},
        "image",
    )
    return report.summarise(store.find_runs(root))


@pytest.fixture(scope="module")
def text(study):
    return output.html(study, title=NASTY, intro=NASTY)


def test_it_says_what_the_tables_say(study, text):
    page = Page(text)
    lines = [[re.sub(r"^\d+ ", "", cell) for cell in line] for line in page.lines]
    for table in tables(study, "{} ★ best"):
        assert ["objective", *table.head[1:]] in lines or table.head in lines
        assert all(line in lines for line in table.body)
        assert table.below in page.text
    assert any("★ best" in cell for line in lines for cell in line)


def test_it_needs_nothing_and_runs_nothing(text):
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "img"}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert value.startswith("#")
    assert "<script" not in text
    assert not re.search(r"url\((?!#)", text)
    assert NASTY in page.text
    assert "prefers-color-scheme: dark" in text


def test_ids_are_unique_and_found(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for name, value in attributes.items():
            targets = re.findall(r"url\(#([^)]+)\)", value or "")
            targets += [value[1:]] if name in ("href", "xlink:href") else []
            assert set(targets) <= set(ids)


def test_pictures_have_words_and_follow_the_pages_ink(text):
    pictures = [attributes for tag, attributes in Page(text).tags if tag == "svg"]
    assert all(one.get("aria-label") or one.get("aria-hidden") == "true" for one in pictures)
    labels = [one["aria-label"] for one in pictures if "aria-label" in one]
    assert sum("curves of loss" in label for label in labels) == 2
    for drawing in re.findall(r"<figure>.*?</figure>", text, re.S):
        assert not re.search(r"(fill|stroke): #([0-9a-f]{2})\2\2\b", drawing)
        assert "currentColor" in drawing


def test_what_is_left_out_is_said_above_the_tables(study):
    found = Page(output.html(report.Report(study.columns[:1], [f"1 run is left out: {NASTY}"])))
    assert found.text.index(f"1 run is left out: {NASTY}") < found.text.index(reading(study.columns[0]))


def test_it_is_the_same_each_time(study, text):
    assert output.html(study, title=NASTY, intro=NASTY) == text


def test_greys_become_shares_of_ink():
    made = figure(2, 2)
    made.add_subplot().plot([0, 1], [0, 1], color="0.2")
    assert "stroke: currentColor; stroke-opacity: 0.80" in output.svg(made, "a <line>", "x-")


def test_rows_look_the_same_everywhere():
    looks = plots.styles(str(i) for i in range(30))
    assert len({(one.colour, str(one.dash)) for one in looks.values()}) == 30
    assert [one.number for one in looks.values()] == list(range(1, 31))


def test_without_matplotlib_the_tables_remain(study, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    found = Page(output.html(study))
    assert install("plots") in found.text
    assert "figure" not in {tag for tag, _ in found.tags}
    assert len(found.lines) > 6


def test_the_command_prints_it_and_writes_it(tmp_path, capsys):
    make(tmp_path / "runs", {("A", BASE): {0: 1.0}})
    assert main(["report", str(tmp_path / "runs"), "--format", "html", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert Page(printed).lines


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(text, tmp_path, browser, width, scheme):
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    smallest = "Math.min(...[...document.querySelectorAll('figure text')].map(t => t.getBoundingClientRect().height))"
    assert page.evaluate(smallest) >= 9  # pixels: nothing is scaled down to be unreadable
    ink, paper = (
        [int(x) for x in re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{name}"))[:3]]
        for name in ("color", "backgroundColor")
    )
    assert (sum(ink) > sum(paper)) == (scheme == "dark")
    page.close()
