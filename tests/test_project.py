"""What surrounds the code: issue forms, continuous integration, the citation, the Dockerfile and the skill."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from documents import ROOT

import counterpoint as cp

yaml = pytest.importorskip("yaml")

SKILL = ROOT / "skills" / "counterpoint" / "SKILL.md"
BLOCKS = re.findall(r"```python\n(.*?)```", SKILL.read_text(encoding="utf-8"), re.S)
HOSTS = re.compile(r"(?:from|import) (?:datasets|sentence_transformers)\b|plugins\.lightly")
FORMS = sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/release.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    **{f".github/ISSUE_TEMPLATE/{name}": "github-issue-forms" for name in FORMS},
}


def tool(name: str) -> str:
    found = shutil.which(name, path=Path(sys.executable).parent)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


@pytest.mark.parametrize(("path", "schema"), SCHEMAS.items(), ids=SCHEMAS)
def test_they_follow_their_schemas(path, schema):
    done = ran(tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", ROOT / path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_schema_finds_a_mistake(tmp_path):
    """What the test above relies on."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    (tmp_path / "ci.yml").write_text(text.replace("runs-on:", "runs_on:"))
    done = ran(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", tmp_path / "ci.yml")
    assert done.returncode == 1


def test_type_checkers_know_the_whole_public_api():
    """``pyright --verifytypes``: no public name, nor a member of one, has a type that checkers infer or do not know.

    docs/policy.md says what is public; a name is only complete if all types that its signature and its members
    mention are.
    """
    command = [tool("pyright"), "--verifytypes", "counterpoint", "--ignoreexternal", "--outputjson"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it verifies the packages of `python`
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    symbols = {one["name"]: one for one in json.loads(done.stdout)["typeCompleteness"]["symbols"]}
    public = {f"counterpoint.{name}" for name in cp.__all__}
    public |= {
        f"{getattr(cp, name).__module__}.{name}" for name in cp.__all__ if hasattr(getattr(cp, name), "__module__")
    }
    public |= {
        name for name in symbols if re.fullmatch(r"counterpoint\.plugins\.\w+\.(patch|\w*ContrastiveLoss)", name)
    }
    members = [one for name, one in symbols.items() if name in public or name.rpartition(".")[0] in public]
    assert len(members) > 300
    incomplete = [one["name"] for one in members if one["isTypeAmbiguous"] or not one["isTypeKnown"]]
    assert incomplete == []


def test_the_files_of_changes_become_a_section_of_the_changelog(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    sections = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| `.*? \|", (ROOT / "changes/README.md").read_text(), re.M))
    )
    for section in sections:
        (tmp_path / "changes" / f"7.{section}.md").write_text(f"A change of {section}.\n")
    build = (tool("towncrier"), "build", "--yes", "--version", "7.0", "--dir", tmp_path)
    assert ran(*build).returncode == 0
    before, _, after = (tmp_path / "CHANGELOG.md").read_text().partition("\n## 0.1.0")
    assert after == (ROOT / "CHANGELOG.md").read_text().partition("\n## 0.1.0")[2]
    assert re.findall(r"- A change of (\w+)\.", before) == sections
    named = {path.name for path in (ROOT / "changes").iterdir()} - {"README.md"}
    assert [name for name in named if name.split(".")[1:] not in [[one, "md"] for one in sections]] == []


def test_continuous_integration_runs_what_make_runs():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    linux, core = jobs["linux"], jobs["core"]
    assert linux["strategy"]["matrix"]["python"] == re.search(r"^PYTHONS := (.*)", make, re.M)[1].split()
    assert {"make lint", "make test JOBS=4"} <= {step.get("run") for step in linux["steps"]}
    assert {one.partition("-")[0] for one in core["strategy"]["matrix"]["os"]} == {"macos", "windows"}
    assert set(core["strategy"]["matrix"]["python"]) <= set(linux["strategy"]["matrix"]["python"])
    tests = re.search(r"^CORE_TESTS := ((?:.*\\\n)*.*)", make, re.M)[1].replace("\\\n", " ").split()
    command = core["steps"][-1]["run"].split()
    assert [word for word in command if word.startswith("tests/")] == tests
    assert all((ROOT / path).exists() for path in tests)


def test_the_dockerfile_is_clean():
    done = ran(tool("hadolint"), "--failure-threshold", "info", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_a_mistake(tmp_path):
    """What the test above relies on."""
    (tmp_path / "Dockerfile").write_text("FROM ubuntu\nRUN apt-get install python3\n")
    assert ran(tool("hadolint"), "--failure-threshold", "info", tmp_path / "Dockerfile").returncode == 1


def test_the_image_gets_what_the_package_needs():
    """Nothing that the build of the package reads is kept out of the image, and its extra exists."""
    ignored = {line.strip("/") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = {"pyproject.toml", "README.md", "LICENSE", *re.findall(r'^"counterpoint[\w.]*" = "(\w+)"', project, re.M)}
    assert {"core", "experimental", "plugins", "integrations"} <= needed
    assert not needed & ignored
    for extra in re.findall(r'"\.\[(\w+)\]"', (ROOT / "Dockerfile").read_text(encoding="utf-8")):
        assert re.search(rf"^{extra} = \[", project, re.M)


def test_the_skill_says_what_it_is_for():
    front = yaml.safe_load(SKILL.read_text(encoding="utf-8").split("---\n")[1])
    assert front["name"] == SKILL.parent.name
    assert 100 < len(front["description"]) <= 1024
    assert len(SKILL.read_text(encoding="utf-8").splitlines()) <= 200


def run(blocks: list[str]) -> None:
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for i, block in enumerate(blocks):
        exec(compile(block, f"SKILL.md, Python block {i + 1}", "exec"), names)


def test_the_blocks_of_the_skill_run():
    """All but those that import a host, which takes longer than all others together."""
    assert sum(bool(HOSTS.search(block)) for block in BLOCKS) == 2
    run([block for block in BLOCKS if not HOSTS.search(block)])


@pytest.mark.slow
def test_the_blocks_of_the_skill_with_hosts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(BLOCKS)
