"""The documentation site: it builds without warnings, its code runs, links lead somewhere, it asks no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from documents import ROOT, too_long

import counterpoint as cp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along

pytest.importorskip("zensical")
import notebook_pages
import site_pages

CONFIGURATION = ROOT / "zensical.toml"
WRITTEN = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "own_models.md")  # tested by domains
HOSTS = re.compile(
    r"^(?:from|import) (?:lightly|datasets|sentence_transformers|torch_geometric)\b|integrations import", re.M
)
LOADED = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "video": "src"}


def zensical(folder: Path) -> subprocess.CompletedProcess[str]:
    text = CONFIGURATION.read_text(encoding="utf-8").replace("build/pages", "pages")
    (folder / "zensical.toml").write_text(text.replace("docs/docstrings.py", str(ROOT / "docs" / "docstrings.py")))
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    site_pages.main(folder / "pages", notebook_pages.plain())  # tests/test_notebooks.py executes them
    done = zensical(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if tag in LOADED and found.get(LOADED[tag]):
            self.loaded.add(found[LOADED[tag]])


@pytest.fixture(scope="module")
def pages(site):
    return {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"  # whose links are absolute
    }


def test_internal_links_lead_somewhere(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links | page.loaded:
            to = urlsplit(urljoin(f"https://here/{name}", link))
            if to.netloc != "here":
                continue
            path = unquote(to.path).lstrip("/")
            path = f"{path}index.html" if path.endswith("/") or not path else path
            if not (site / path).is_file() or (path in pages and unquote(to.fragment) not in pages[path].anchors):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_a_broken_link_stops_the_build(tmp_path):
    """What the test above relies on zensical for: a link to a page that does not exist."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# Start\n\n[a page](missing.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\ndocs_dir = "pages"\n')
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "page does not exist" in done.stdout + done.stderr


def test_no_page_loads_anything_from_another_host(site, pages):
    for name, page in pages.items():
        assert [one for one in page.loaded if urlsplit(one).netloc] == [], name
        assert 'class="mermaid"' not in (site / name).read_text(encoding="utf-8"), name  # its script is elsewhere
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import", style.read_text(encoding="utf-8")), style.name


def test_every_page_is_in_the_navigation(pages):
    def names(entry):
        if isinstance(entry, str):
            return [entry]
        return [name for part in (entry.values() if isinstance(entry, dict) else entry) for name in names(part)]

    nav = names(tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"])
    assert sorted(name.removesuffix(".md") for name in nav) == sorted(name.removesuffix(".html") for name in pages)


def test_assistants_get_a_list_of_the_pages_and_their_text(site, pages):
    """As https://llmstxt.org asks: a title, a quoted summary, sections of links; every link leads to a page."""
    short, full = ((site / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    assert re.match(r"# counterpoint\n\n> \S.{20,}\n", short)
    links = re.findall(r"^- \[[^\]]+\]\((.+?\.html)\)(?:: \S.{10,})?$", short, re.M)
    assert len(links) == short.count("\n- ")
    assert sorted(links) == sorted(pages)
    assert [name for name in pages if f"<!-- {name.removesuffix('.html')}.md -->" not in full] == []
    assert "cp.InfoNCE(temperature=0.07)" in full
    assert not re.search(r": \[?!\[", short)
    assert "\n::: " not in full
    assert "Contrast each positive with the worst distribution of negatives within a radius" in full


def test_every_objective_has_its_page(site):
    for name, kind in cp.registry.items():
        text = (site / "objectives" / f"{name}.html").read_text(encoding="utf-8")
        assert "<math" in text
        assert "<polyline" in text
        assert all(f"<code>{key}</code>" in text for key in kind.hyper)
        assert f'href="{name}.html"' in (site / "objectives" / "index.html").read_text(encoding="utf-8")


def test_docstrings_are_rendered(pages, site):
    """No role, table or literal block of reStructuredText is left on the pages of the API, and no prompt is a quote."""
    for path in (site / "api").glob("*.html"):
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.S)
        assert not re.search(r":(?:class|func|mod|meth|attr|data):|={6}|::\s*<|&gt;&gt;&gt;", prose), path.name


def test_the_api_has_what_reports_say_and_the_fields_of_images(site):
    assert "negatives_above_positive" in (site / "api" / "counterpoint.html").read_text(encoding="utf-8")
    assert "classes, -1 where there is none" in (site / "api" / "image.html").read_text(encoding="utf-8")


def test_flowcharts_are_text(site):
    """The script that draws Mermaid is another host's; every node of a flowchart is named."""
    text = (site / "architecture.html").read_text(encoding="utf-8")
    assert "flowchart" not in text
    for node in re.findall(r'\["([\w/.]+)', (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        assert node in text, node


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def run(path: Path, code: list[str]) -> None:
    registered, names = dict(cp.registry), {}
    try:
        for i, block in enumerate(code):
            exec(compile(block, f"{path.name}, Python block {i + 1}", "exec"), names)
    finally:
        cp.registry.clear()
        cp.registry.update(registered)


@pytest.mark.parametrize(
    "path",
    [path for path in WRITTEN if any(not HOSTS.search(block) for block in blocks(path))],
    ids=lambda path: path.stem,
)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """All but those that import a host, which takes longer than all others together."""
    monkeypatch.chdir(tmp_path)  # where some of them write
    run(path, [block for block in blocks(path) if not HOSTS.search(block)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in WRITTEN if any(map(HOSTS.search, blocks(path)))], ids=lambda p: p.stem
)
def test_python_blocks_with_hosts_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(path, blocks(path))


def test_long_pages_start_with_a_summary(site):
    folder = site.parent / "pages"
    long = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.md") if path.parent.name != "notebooks"}
    long = {path.relative_to(folder).as_posix(): text for path, text in long.items() if len(text.split()) > 1500}
    assert {"results.md", "atlas.md"} <= set(long)
    summary = re.compile(r"\bIn short\b|^- \*\*", re.M)
    assert [name for name, text in long.items() if not summary.search(text.partition("\n## ")[0])] == []
    assert "hosts/index.md" not in long


def test_the_api_lists_what_a_package_exports(site):
    """Not another module's function of the same name."""
    for domain in ("image", "graph"):
        page = (site / "api" / f"{domain}.html").read_text()
        assert f'id="counterpoint.integrations.{domain}.data.load"' in page
        assert f"{domain}.published.load" not in page


def test_the_page_of_the_api_begins_with_what_users_call(site):
    page = (site.parent / "pages" / "api" / "counterpoint.md").read_text(encoding="utf-8")
    names = [name.rpartition(".")[2] for name in re.findall(r"^::: (.*)", page, re.M)]
    assert names[:3] == ["objective", "Objective", "InfoNCE"]
    assert sorted(names) == sorted(set(cp.__all__) - {"__version__", "registry"})
    assert {"Choice", "Real", "TileNegatives"} <= set(names[-20:])


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_starts_with_its_command_and_ends_with_mistakes(path):
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^(?:```|    \S)", "\n".join(text.splitlines()[:8]), re.M)
    heading, _, end = text.rpartition("\n## ")[2].partition("\n")
    assert heading == "What can go wrong"
    assert end.count("\n- ") >= 3


def test_every_code_base_has_lines_a_proof_and_limits():
    for path in (ROOT / "docs" / "from").glob("*.md"):
        if path.name != "index.md":
            text = path.read_text(encoding="utf-8")
            headings = re.findall(r"^## (.*)", text, re.M)
            assert {"Your lines, our lines", "What becomes possible", "What cannot be had"} <= set(headings), path.name
            assert any("assert torch.allclose(" in block for block in blocks(path) if not HOSTS.search(block)), (
                path.name
            )


def test_sentences_of_the_first_page_are_short():
    assert too_long((ROOT / "docs" / "index.md").read_text(encoding="utf-8")) == []


@pytest.fixture(scope="module")
def address(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def look(browser, address, names, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith(address) else None)
    page.on("response", lambda response: said.append(response.url) if response.status >= 400 else None)
    for name in names:
        page.goto(f"{address}/{name}", wait_until="networkidle")
        assert said == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        ink, paper = (
            sum(int(x) for x in re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{one}"))[:3])
            for one in ("color", "backgroundColor")
        )
        assert (ink > paper) == (scheme == "dark"), name
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser(browser, address, width, scheme):
    look(
        browser,
        address,
        ["index.html", "objectives/adnce.html", "api/counterpoint.html", "notebooks/false_negatives.html"],
        width,
        scheme,
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pages_in_a_browser(browser, address, pages, width, scheme):
    look(browser, address, sorted(pages), width, scheme)


@pytest.mark.slow
def test_search_finds_an_objective(browser, address):
    page = browser.new_page()
    page.goto(f"{address}/index.html", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type("polarization")
    page.get_by_text(re.compile(r"^\d+ results$")).wait_for(timeout=20_000)
    assert page.get_by_text("DistancePolarization", exact=True).count() >= 2  # the navigation, and a result
    page.close()
