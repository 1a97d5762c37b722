"""Transports: addresses of stores, their four methods, and errors of stores that cannot be used."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from counterpoint.integrations.store.errors import StoreError
from counterpoint.integrations.store.folder import plain
from counterpoint.integrations.store.transport import Transport, connect


class Unconditional(MemoryFileSystem):
    """Ignores that a file shall be created exclusively."""

    protocol = "memory"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value, **kwargs)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("runs", Path("runs")),
        (Path("runs"), Path("runs")),
        ("file:///a/b%20c", Path("/a/b c")),
        ("s3://b/r/", "s3://b/r"),
    ],
)
def test_places(place, expected):
    assert plain(place) == expected


@pytest.mark.parametrize("place", ["hf://owner/name", "file:///a", "runs", Path("runs")])
def test_no_url(place):
    assert isinstance(plain(place), Path)


@pytest.mark.parametrize("kind", ["folder", "memory", "local"])
def test_files_are_read_written_listed_and_created_once(kind, tmp_path):
    places = {"folder": tmp_path, "memory": f"memory://{uuid.uuid4().hex}", "local": f"local://{tmp_path}"}
    there = connect(places[kind])
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        there.read("a/one")
    assert there.list("a") == []
    assert there.written("a/one") == 0
    (tmp_path / "file").write_bytes(b"from a file")
    there.write("a/one", b"1")
    there.write("a/b/two", tmp_path / "file")
    assert there.read("a/b/two") == b"from a file"
    there.download("a/one", tmp_path / "c" / "copy")
    assert (tmp_path / "c" / "copy").read_bytes() == b"1"
    assert there.list("a") == ["a/b/two", "a/one"]
    assert there.list("a/one") == ["a/one"]
    assert set(there.list()) >= {"a/one", "a/b/two"}
    assert time.time() - 60 < there.written("a/one") < time.time() + 1
    assert there.create("a/three", b"first")
    assert not there.create("a/three", b"second")
    assert there.read("a/three") == b"first"
    for name in ("a/one", "a/b/two", "a/three", "a/three"):
        there.write(name, None)
    assert there.list("a") == []
    there.check()


def test_wrong_urls():
    with pytest.raises(ValueError, match=r"s4://bucket/runs: .*s4"):
        connect("s4://bucket/runs")
    with pytest.raises(ValueError, match="expected s3://BUCKET/FOLDER"):
        connect("s3://")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"gs://bucket/runs: (uv )?pip install .*\[gcs\]"):
        connect("gs://bucket/runs")


def test_a_store_without_exclusive_leases_is_named():
    with pytest.warns(RuntimeWarning, match="memory://late: no exclusive lease here: let one process at a time"):
        Transport("memory://late", Unconditional(), "/late").check()


def test_errors_of_any_library_are_one_line(monkeypatch):
    there = connect(f"memory://{uuid.uuid4().hex}")

    def fail(*_, **__):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(type(there.files), "pipe_file", fail)
    with pytest.raises(StoreError, match=rf"^{there.address}: ZeroDivisionError: two$"):
        there.write("a", b"1")


def test_a_folder_is_that_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("file.json").write_text(name)
        assert connect(".").read("file.json") == name.encode()
