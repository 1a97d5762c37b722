"""Stores that are URLs, on a file system of fsspec in this process."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import fsspec
import pytest
import toy_grid
from processes import fresh

from counterpoint.integrations import store
from counterpoint.integrations.store.errors import StoreError
from counterpoint.integrations.store.transport import Transport, connect, local_path
from counterpoint.integrations.store.worker import attempt

CELL = toy_grid.cells(1)[0]
quietly = partial(store.run_grid, progress=False)


@pytest.fixture
def url(monkeypatch, tmp_path):
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    name = f"/{uuid.uuid4().hex}"
    yield f"memory:/{name}/runs"
    files = fsspec.filesystem("memory")
    if files.exists(name):
        files.rm(name, recursive=True)


def names(url):
    """The files of a store, without leases."""
    return sorted(name for name in connect(url).list() if "/.lease/" not in name)


def content(url, name):
    return connect(url).read(name)


def stop_at(step, run):
    """Train, and be interrupted after a step is logged and before it is saved."""

    def log(number, **numbers):
        type(run).log(run, number, **numbers)
        if number == step:
            raise KeyboardInterrupt

    run.log = log
    try:
        toy_grid.train(run)
    finally:
        del run.log


def other_machine(monkeypatch, tmp_path, name="other"):
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / name))


def test_a_grid_is_that_of_a_folder(url, tmp_path, monkeypatch):
    there = quietly(toy_grid.train, toy_grid.cells(1), url)
    here = quietly(toy_grid.train, toy_grid.cells(1), tmp_path / "here")
    folders = [run.path.relative_to(tmp_path / "here").as_posix() for run in here]
    assert [run.address for run in there] == [f"{url}/{folder}" for folder in folders]
    assert names(url) == sorted(
        f"{folder}/{name}" for folder in folders for name in ("checkpoint.pt", "metrics.jsonl", "run.json")
    )
    other_machine(monkeypatch, tmp_path)
    for run, same in zip(quietly(None, toy_grid.cells(1), url), here, strict=True):  # trains nothing
        assert run.result == same.result
        assert run.metrics() == same.metrics()
        assert toy_grid.plain(run.load()) == toy_grid.plain(same.load())


def test_an_interrupted_run_goes_on_elsewhere(url, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        quietly(partial(stop_at, 4), [CELL], url)
    run = store.Run(url, CELL)
    assert run.record["status"] == "interrupted"
    assert run.load()["step"] == 3
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4]
    other_machine(monkeypatch, tmp_path)
    (run,) = quietly(toy_grid.train, [CELL], url)
    (here,) = quietly(toy_grid.train, [CELL], tmp_path / "here")
    relative = here.path.relative_to(tmp_path / "here").as_posix()
    assert content(url, f"{relative}/metrics.jsonl") == (here.path / "metrics.jsonl").read_bytes()
    assert run.result == here.result


def test_reading_fetches_no_checkpoint(url, tmp_path, monkeypatch):
    quietly(toy_grid.train, [CELL], url)
    other_machine(monkeypatch, tmp_path)
    for place in (url, f"{url}/toy", store.Run(url, CELL).address):
        (run,) = store.find_runs(place)
        assert run.done
        assert run.address == store.Run(url, CELL).address
    run = store.Run.read(run.address)
    assert run.metrics()
    assert {path.name for path in run.path.iterdir()} == {"metrics.jsonl"}
    assert run.load()["step"] == toy_grid.STEPS


def test_what_is_deleted_in_the_store_is_not_read(url):
    quietly(toy_grid.train, [CELL], url)
    for name in connect(url).list():
        connect(url).write(name, None)
    assert not store.Run(url, CELL).done
    with pytest.raises(ValueError, match="no runs in"):
        store.find_runs(url)


def test_one_process_at_a_time(url, tmp_path, monkeypatch):
    first, second = store.Run(url, CELL), store.Run(url, CELL)
    with first.lock():
        other_machine(monkeypatch, tmp_path)
        assert second.folder.busy
        with pytest.raises(store.BusyError), second.lock():
            pass
    assert not second.folder.busy
    with second.lock():
        pass


def test_a_run_that_another_process_took_over_is_left_to_it(url, tmp_path, monkeypatch, capsys):
    taken = []

    def train(run):
        """As a process that was stopped for longer than its lease, which another one then took."""
        run.log(1, loss=1.0)
        run.save({}, 1)
        assert connect(url).create(f"{run.folder.name}/.lease/00000002", b'{"owner": "another", "seconds": 60}')
        taken.append(names(url))
        run.log(2, loss=2.0)
        run.save({"late": True}, 2)

    outcome = attempt(train, store.Run(url, CELL), progress=False)
    assert outcome.busy
    assert "another process has taken over this run" in capsys.readouterr().err
    assert store.Run(url, CELL).load()["step"] == 1
    assert store.Run(url, CELL).record["status"] == "running"
    assert names(url) == taken[0]


def test_what_is_there_needs_nothing_that_is_not(url, monkeypatch):
    order, write = [], Transport.write

    def recorded(self, name, content):
        if isinstance(content, Path):
            order.append(name.rpartition("/")[2])
        write(self, name, content)

    monkeypatch.setattr(Transport, "write", recorded)
    run = store.Run(url, CELL)
    with run.lock():
        (run.path / "part").write_text("1")
        (run.path / "half.tmp").write_text("1")
        run.log(1, loss=1.0)
        run.save({}, 1)
        run.begin()
        assert order == ["part", "metrics.jsonl", "checkpoint.pt", "run.json"]
        (run.path / "part").unlink()
        run.finish({"score": 1.0})
        assert order[4:] == ["run.json"]  # nothing else has changed
    assert [name.rpartition("/")[2] for name in names(url)] == ["checkpoint.pt", "metrics.jsonl", "run.json"]


def test_fresh_deletes_what_the_store_has(url):
    quietly(toy_grid.train, [CELL], url)
    with store.Run(url, CELL).lock(fresh=True):
        assert names(url) == []


def test_a_failure_is_recorded_there(url):
    def fail(run):
        raise OSError("broken")

    with pytest.raises(store.GridError, match="broken"):
        quietly(fail, [CELL], url)
    relative = store.Run(url, CELL).folder.name
    assert b"OSError: broken" in content(url, f"{relative}/error.txt")


def test_file_urls_are_folders(tmp_path):
    (run,) = quietly(toy_grid.train, [CELL], f"file://{tmp_path}/there")
    assert run.folder.store == tmp_path / "there"
    assert run.path.is_relative_to(tmp_path / "there")


def test_no_run_at_a_url(url):
    with pytest.raises(ValueError, match="no run there; expected STORE"):
        store.Run.read("memory://a")
    with pytest.raises(ValueError, match=r"no run there \(it has no run.json\)"):
        store.Run.read(f"{url}/a/b/c/seed0")


# ---- somebody else's bucket ----------------------------------------------------------------------

HOSTILE = [
    "../out", "model/../../../../../../../out", "model/..", "/out", "model//out", "C:/out", "c:out", "model/c:out",
    "a\\..\\out", "model/a\x00b", "model/a\nb", "", ".", "model/.", "model/",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    with pytest.raises(StoreError, match=r"refused: a store's name must stay below its folder"):
        local_path(tmp_path, name)


def test_names_below_a_folder(tmp_path):
    for name in ("run.json", "model/1_Pooling/config.json", "..a/b..c", "ab:c", "ä b/c"):
        assert local_path(tmp_path, name) == tmp_path.joinpath(*name.split("/"))


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_bucket_writes_nothing_outside_its_folder(url, tmp_path):
    """A model's folder, a run that is resumed, and the records of a search."""
    (run,) = quietly(toy_grid.train, [CELL], url)
    relative = run.folder.name
    files, path = connect(url).files, connect(url).path
    for name in (f"{relative}/model/../../../../../../../.bashrc", "../../x/y/../run.json"):
        files.pipe_file(f"{path}/{relative}/plain", b"planted")
        files.store[f"{path}/{name}"] = files.store.pop(f"{path}/{relative}/plain")
    before = everything(tmp_path)
    for read in (
        lambda: run.file("model"), lambda: run.lock().__enter__(), lambda: store.find_runs(url),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=r"refused: a store's name must stay below its folder"):
            read()
    assert not [path for path in everything(tmp_path) if path not in before and not path.startswith("cache/stores/")]
    assert not list(tmp_path.rglob(".bashrc"))


def test_a_local_run_needs_nothing_of_this(tmp_path):
    """A run in a folder, without trackers, imports neither leases, copies and transports nor fsspec's file systems."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(toy_grid.__file__).parent)!r})
import toy_grid
from counterpoint.integrations import store
store.run_grid(toy_grid.train, toy_grid.cells(1)[:1], {str(tmp_path)!r}, progress=False)
assert store.find_runs({str(tmp_path)!r})[0].done
print([name for name in sys.modules if name.startswith("counterpoint.integrations.")])
"""
    loaded = fresh(code)
    assert "counterpoint.integrations.store" in loaded
    for part in ("store.transport", "store.mirror", "store.lease", "store.remote", "trackers"):
        assert f"integrations.{part}" not in loaded
