"""The layout, with core/, plugins/ and integrations/ as one import package, and what can go wrong with it."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from documents import DOCUMENTS, headings, links

import counterpoint
from counterpoint.install import DISTRIBUTION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {
    "core": "counterpoint",
    "experimental": "counterpoint.experimental",
    "plugins": "counterpoint.plugins",
    "integrations": "counterpoint.integrations",
}


def sources() -> list[Path]:
    return [p for folder in (*FOLDERS, "tests", "examples") for p in (ROOT / folder).rglob("*.py")]


def packages_on_disk() -> set[str]:
    """The import name of every folder with modules."""
    found = set()
    for folder, name in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *inside)))
    return found


def test_every_folder_is_listed():
    # a folder that is not listed is left out of the wheel
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_no_folder_shadows_a_mapped_package():
    assert not (ROOT / "core" / "plugins").exists()
    assert not (ROOT / "core" / "integrations").exists()
    assert not (ROOT / "conftest.py").exists()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_imports_the_folders_by_their_own_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        assert not {n.split(".")[0] for n in names} & set(FOLDERS), f"line {node.lineno}"


def test_no_second_copy_is_loaded():
    assert Path(counterpoint.__file__).parent.name in ("core", "counterpoint")
    assert not set(FOLDERS) & set(sys.modules)


def test_core_knows_torch_alone():
    """Modules of the core import only torch, the standard library and the core at module level."""
    for path in (ROOT / "core").rglob("*.py"):
        allowed = {"torch", "typing_extensions", "counterpoint", *sys.stdlib_module_names}
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
                assert not name.startswith(("counterpoint.plugins", "counterpoint.integrations")), path.name


def test_import_loads_no_framework():
    code = (
        "import torch, sys; before = set(sys.modules); import counterpoint; new = {m.split('.')[0] for m in "
        "set(sys.modules) - before}; print(sorted(new - set(sys.stdlib_module_names) - {'counterpoint', 'torch'}))"
    )
    # an editable install's import hook may appear among the modules
    new = ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True, cwd="/"))
    assert [m for m in new if not m.startswith("__editable__")] == []


def test_extras_add_up():
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"sentence", "graph", "image", "control", "plots", "report", "cli", "all", "hub", "track"} <= set(extras)
    assert extras["all"] == ["counterpoint-losses[sentence,graph,image,control,plots,report,race,cli]"]


def test_one_name_for_installers():
    """Nothing tells a reader or an installer to fetch ``counterpoint``, which is another project's name."""
    assert PROJECT["project"]["name"] == DISTRIBUTION
    files = [ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml", *map(str, ROOT.glob("*.md")))]
    suffixes = (".py", ".md", ".yml", ".toml", ".jinja")
    for folder in ("core", "plugins", "integrations", "docs", "examples", "skills", "changes", ".github"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    rest = DISTRIBUTION.removeprefix("counterpoint")
    installers = "pip install|pipx run|pipx install|uv add|uv tool install|uvx|--with|--from"
    extra = rf"(?<![\w/-])counterpoint(?!{rest}\[)[-\w]*\[[a-z]"
    other = re.compile(rf"{extra}|({installers})( (?!counterpoint)[-\w]+)* ['\"]?counterpoint(?!{rest})['\"]?(?=\s|$)")
    others = (
        "uvx counterpoint demo",
        "counterpoint[graph]",
        'pip install "counterpoint"',
        "uv tool install counterpoint",
    )
    assert all(map(other.search, (*others, "pip install torch counterpoint", "uvx --with counterpoint")))
    assert not other.search(f"uvx --from {DISTRIBUTION} counterpoint demo")
    assert not other.search(f'uvx --from "{DISTRIBUTION}[all]" counterpoint demo')
    assert [(path, found[0]) for path in files if (found := other.search(path.read_text(encoding="utf-8")))] == []


def test_the_pythons_of_the_metadata_are_those_that_are_tested():
    prefix = "Programming Language :: Python :: "
    versions = [line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)]
    makefile = (ROOT / "Makefile").read_text()  # a test compares it with the workflow
    assert versions == ["3 :: Only", *re.search("^PYTHONS := (.*)", makefile, re.M)[1].split()]
    assert PROJECT["project"]["requires-python"] == f">={versions[1]}"


def test_the_metadata_of_the_wheel_has_no_placeholders(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        fields = message_from_bytes(wheel.read(about))
    assert (fields["Name"], fields["License-Expression"]) == (DISTRIBUTION, "MIT")
    assert fields.get_all("License-File") == ["LICENSE"]
    assert fields.get_all("Project-URL") is None  # a release's workflow knows its address
    assert not re.search("(?i)todo|fixme|example\\.(com|org)|your[- ]|owner/name", str(fields.items()))


def test_extras_of_tests_stay_out_of_the_wheel(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        extras = set(re.findall(r"^Provides-Extra: (\S+)", wheel.read(about).decode(), re.M))
    assert extras == set(PROJECT["project"]["optional-dependencies"])
    assert not extras & set(PROJECT["dependency-groups"])


RELATIVE = re.compile(r"\]\((?!https?:)[^)]*\)")


def test_an_index_shows_the_readme_without_relative_links(built):
    """They would lead nowhere; a release knows its address, and has absolute ones."""
    with tarfile.open(built[0]) as sdist:
        about = sdist.extractfile(f"{built[0].name.removesuffix('.tar.gz')}/PKG-INFO").read().decode()
    headers, _, shown = about.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    assert RELATIVE.findall(shown) == []
    assert "overview.png" not in shown
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall("^#.*|^    .*", shown, re.M) == re.findall("^#.*|^    .*", readme, re.M)  # headings and commands
    description = runpy.run_path(str(ROOT / "setup.py"))["description"]
    assert description(readme, None).split() == shown.split()
    for text, path in re.findall(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)]+)\)", readme):  # none is a dead word
        assert path in shown.replace("\n", " "), text
    assert "ADNCE +0.18. All results (`docs/results.md`)." in shown
    assert shown.split("\n\n")[1].startswith("Paths, such as `docs/index.md`, are those of files in the source code.")
    absolute = description(readme, "https://here/blob/v1")
    assert "Paths, such as" not in absolute
    assert RELATIVE.findall(absolute) == []
    assert "(https://here/blob/v1/docs/guides/race.md)" in absolute
    assert "what does not](https://here/raw/v1/docs/overview.png)" in absolute


def test_version_is_the_packages():
    assert metadata.version(DISTRIBUTION) == counterpoint.__version__


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and the wheel that `python -m build` builds from it."""
    out = tmp_path_factory.mktemp("dist")
    source = out / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "demo", "*.egg-info", "__pycache__")
    )
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def test_wheel_holds_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built[1]).namelist()
    tops = {n.split("/")[0] for n in names}
    assert tops == {"counterpoint", f"counterpoint_losses-{counterpoint.__version__}.dist-info"}
    assert {
        "counterpoint/py.typed",
        *(f"counterpoint/integrations/report/{name}" for name in ("papers.json", "report.css")),
    } <= set(names)
    expected = {
        "/".join((*name.split("."), *p.relative_to(ROOT / folder).parts))
        for folder, name in FOLDERS.items()
        for p in (ROOT / folder).rglob("*.py")
    }
    assert expected <= set(names)


def test_sdist_can_run_its_tests(built):
    with tarfile.open(built[0]) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    needed = {
        "tests/support/golden.json",
        "tests/support/golden.py",
        "tests/conftest.py",
        "examples/digits.py",
        "LICENSE",
        "Makefile",
    }
    needed |= {"CITATION.cff", "CONTRIBUTING.md", "CHANGELOG.md", "README.md", "constraints.txt", "examples/README.md"}
    for document in DOCUMENTS:
        needed |= {document, *(path for path, _ in links(document))}
    assert needed <= names
    assert not [n for n in names if "__pycache__" in n]


def test_installed_wheel_works_elsewhere(built, tmp_path):
    """The unpacked wheel can be imported from another folder, and computes."""
    zipfile.ZipFile(built[1]).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch, counterpoint as cp, counterpoint.plugins;"
        "assert cp.__file__.startswith(sys.argv[1]), cp.__file__;"
        "print(cp.objective('arcl(hcl) + 0.1*dp')(*torch.randn(3, 8, 4)).item())"
    )
    # -S and the explicit path keep the editable install away
    site = [p for p in sys.path if p.endswith("site-packages")]
    code = f"import sys; sys.path += {site!r}; " + code
    result = subprocess.run([sys.executable, "-S", "-c", code, str(tmp_path)], capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) > 0


def names_of(requirements):
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in requirements}


def test_the_policy_names_the_pinned_versions():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    row = re.search(r"^\| extras .*$", policy := (ROOT / "docs" / "policy.md").read_text(), re.M)[0]
    named = dict(re.findall(r"([\w-]+) (\d+\.\d+\.\d+)", row))
    assert len(named) > 3
    assert named.items() <= pinned.items()
    assert f"the pinned {pinned['torch']}" in policy


def test_constraints_are_names_and_versions_of_all_that_is_asked_for():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", line) for line in pins)
    assert pins == sorted(pins, key=lambda line: line.partition("==")[0])
    extras = PROJECT["project"]["optional-dependencies"]
    asked = names_of(
        [*PROJECT["project"]["dependencies"], *extras["all"], *PROJECT["dependency-groups"]["dev"], *extras["sentence"]]
    )
    for extra in ("sentence", "graph", "image", "control", "plots", "report", "cli"):
        asked |= names_of(extras[extra])
    assert asked - {DISTRIBUTION} <= names_of(pins)


def test_every_objective_is_cited():
    notes = re.findall(r"^    notes: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    cited = [name for line in notes for name in line.partition(";")[0].split(", ")]
    assert sorted(cited) == sorted(counterpoint.registry)


@pytest.mark.slow
def test_the_dry_run_of_a_release(built):
    """Wheel and sdist, each with each extra in an empty environment, and the README's lines there."""
    if shutil.which("uv") is None:
        pytest.skip("uv sets up the environments")
    command = [sys.executable, str(ROOT / "tests" / "support" / "dry_run.py"), str(built[1].parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\[\w+\]: installed, complete", done.stdout)) == 2 * len(
        PROJECT["project"]["optional-dependencies"]
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for path, heading in links(document):
        assert (ROOT / path).exists(), path
        assert not heading or heading in headings(path), f"{path}#{heading}"


def test_every_example_has_its_line():
    text = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").rglob("*.py"):
        name = path.relative_to(ROOT / "examples").as_posix()
        if "__main__" in path.read_text() and not name.startswith("existing_repos/"):  # others are imported only
            assert f"[{name}]({name})" in text
