"""Transports: addresses of stores, their four methods, and errors of stores that cannot be used."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from counterpoint.integrations.store import transport
from counterpoint.integrations.store.errors import StoreError
from counterpoint.integrations.store.place import is_url, plain
from counterpoint.integrations.store.transport import Transport, connect


class Unconditional(MemoryFileSystem):
    """Ignores that a file shall be created exclusively."""

    protocol = "memory"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value, **kwargs)


class Elsewhere(LocalFileSystem):
    """A file system that this package knows nothing about."""

    protocol = "elsewhere"


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
    assert not is_url(place)


@pytest.mark.parametrize("kind", ["folder", "memory", "local"])
def test_files_are_read_written_listed_and_created_once(kind, tmp_path):
    places = {"folder": tmp_path, "memory": f"memory://{uuid.uuid4().hex}", "local": f"local://{tmp_path}"}
    there = connect(places[kind])
    with pytest.raises(FileNotFoundError):
        there.read("a/one")
    assert there.list("a") == {}
    (tmp_path / "file").write_bytes(b"from a file")
    there.write("a/one", b"1")
    there.write("a/b/two", tmp_path / "file")
    assert there.read("a/b/two") == b"from a file"
    assert there.read("a/one", tmp_path / "copy") is not None
    assert (tmp_path / "copy").read_bytes() == b"1"
    assert {name: entry.size for name, entry in there.list("a").items()} == {"a/one": 1, "a/b/two": 11}
    assert set(there.list()) >= {"a/one", "a/b/two"}
    assert all(entry.modified > 0 for entry in there.list("a").values())
    assert there.create("a/three", b"first")
    assert not there.create("a/three", b"second")
    assert there.read("a/three") == b"first"
    for name in ("a/one", "a/b/two", "a/three", "a/three"):
        there.write(name, None)
    assert there.list("a") == {}


def test_wrong_urls():
    with pytest.raises(ValueError, match=r"unknown scheme 's4'. Did you mean 's3'"):
        transport.check_url("s4://bucket/runs")
    with pytest.raises(ValueError, match="expected s3://BUCKET/FOLDER"):
        transport.check_url("s3://")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"gs://bucket/runs needs gcsfs: pip install .*\[gcs\]"):
        transport.check_url("gs://bucket/runs")


def test_a_store_without_exclusive_leases_is_named(tmp_path):
    for store in (
        Transport("memory://late", Unconditional(), "/late"),
        Transport("elsewhere://runs", Elsewhere(), str(tmp_path)),
    ):
        with pytest.warns(RuntimeWarning, match=f"{store.address}: no exclusive lease here: let one process at a time"):
            store.check()
    assert list(tmp_path.iterdir()) == []


def test_errors_of_any_library_are_one_line():
    with pytest.raises(StoreError, match=r"^s3://b: ZeroDivisionError: two$"), transport.one_line("s3://b"):
        raise ZeroDivisionError("two\nlines")
    with pytest.raises(FileNotFoundError), transport.one_line("s3://b"):
        raise FileNotFoundError("as it is")
