"""SECURITY.md: what it says of the code is true of every file, and files from someone else run no code."""

from __future__ import annotations

import ast
import io
import pickle
import re
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from documents import ROOT

from counterpoint.integrations import store
from counterpoint.integrations.store.files import load_checked
from counterpoint.integrations.store.progress import print_line
from counterpoint.plugins.printing import print_lines

FILES = [
    path
    for folder in ("core", "experimental", "plugins", "integrations")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LAUNCH, WORKER = "plugins/launch.py", "integrations/store/worker.py"
METRICS = "integrations/compare/metrics.py"


def calls(*names):
    """The calls of these functions, as (file, keywords)."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                yield path.relative_to(ROOT).as_posix(), keywords


def test_torch_loads_only_weights():
    loads = list(calls("torch.load", "load"))
    assert ("integrations/store/files.py", {"map_location": "'cpu'", "weights_only": "True"}) in loads
    assert all(keywords["weights_only"] == "True" for _, keywords in calls("torch.load"))


def test_numpy_loads_no_pickles():
    loads = list(calls("np.load", "numpy.load", "np.fromfile", "np.genfromtxt"))
    readers = {"items.py", "image/data.py"}
    assert {path for path, _ in loads} == {f"integrations/{name}" for name in readers}
    assert all(keywords == {"allow_pickle": "False"} for _, keywords in loads)


def test_pickles_come_from_processes_of_ones_own():
    loads = calls("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open")
    assert {path for path, _ in loads} == {LAUNCH, WORKER}
    imported = {
        name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported.isdisjoint({"dill", "cloudpickle", "joblib", "marshal", "shelve", "runpy"})


def test_yaml_makes_no_objects():
    used = {attribute for path in FILES for attribute in re.findall(r"\byaml\.(\w+)\b", path.read_text("utf-8"))}
    assert used == {"safe_load"}
    assert not any("from yaml" in path.read_text("utf-8") for path in FILES)


def test_only_the_script_that_is_named_is_executed():
    assert {path for path, _ in calls("eval", "exec", "compile", "runpy.run_path", "runpy.run_module")} == {LAUNCH}
    assert {path for path, _ in calls("spec.loader.exec_module", "loader.exec_module")} == {METRICS}
    assert not list(calls("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"))
    started = list(calls("subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.check_call"))
    assert started
    assert not any("shell" in keywords for _, keywords in started)


def test_pages_escape_and_models_bring_no_code():
    assert [keywords["autoescape"] for _, keywords in calls("Environment")] == ["True"]
    assert not any("trust_remote_code" in path.read_text(encoding="utf-8") for path in FILES)


class Touch:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_files_from_someone_else_run_no_code(tmp_path):
    made = tmp_path / "made"
    pickle.loads(pickle.dumps(Touch(made)))  # the attack works
    made.unlink()
    bad = Touch(made)
    (run,) = store.run_grid(
        lambda run: run.finish({"accuracy": 1.0}),
        [{"domain": "toy", "dataset": "x", "objective": "infonce", "seed": 0}],
        tmp_path / "runs",
        progress=False,
    )
    contents = {"checkpoint.pt": {"state": {"model": bad}, "metrics": 0}}
    for name, content in contents.items():
        for old_format in (False, True):
            torch.save(content, run.path / name, _use_new_zipfile_serialization=not old_format)
            says = name if old_format else "it contains more than tensors and plain values"  # not torch's advice
            with pytest.raises(store.DamagedError, match=says):
                load_checked(run.path / name, content)
            (run.path / name).write_bytes(pickle.dumps(content))
            with pytest.raises(store.DamagedError, match=name):
                load_checked(run.path / name, content)
    with pytest.raises(store.DamagedError):
        run.load()
    assert not made.exists()


def test_an_array_of_objects_is_not_loaded(tmp_path, monkeypatch):
    sources = pytest.importorskip("counterpoint.integrations.image.data")
    made, out = tmp_path / "made", io.BytesIO()
    np.save(out, np.array([Touch(made)], dtype=object), allow_pickle=True)
    (tmp_path / "cifar10").mkdir()
    with zipfile.ZipFile(tmp_path / "cifar10" / "train.npz", "w") as archive:
        for name in ("images", "labels", "offsets", "data", "x", "y", "jpeg", "classes"):
            archive.writestr(f"{name}.npy", out.getvalue())
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"train\.npz"):
        sources.load("cifar10")
    assert not made.exists()


def test_every_protection_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.endswith("| test |")]
    assert len(rows) >= 20
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", row)]
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text))
    for file, name in sorted(named):
        functions = {node.name for node in ast.parse((ROOT / file).read_text("utf-8")).body if hasattr(node, "name")}
        assert name in functions, f"{file}::{name}"


def test_messages_go_through_what_shows_control_characters(capsys):
    """A name may be in any of them; ``comparison.py`` passes on what the script itself has printed."""
    sent = [path for path, keywords in calls("print", "sys.stderr.write") if "sys.stderr" in keywords.values()]
    assert sent == ["integrations/compare/comparison.py"]
    for shown in (partial(print_lines, file=None), print_line):
        shown("a\x1b[31m\nb", "c\u202e\r")
        assert "".join(capsys.readouterr()) == "a\\x1b[31m\\nb\nc\\u202e\\r\n"
