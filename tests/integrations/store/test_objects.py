"""Addresses of stores, and what is said of those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from counterpoint.integrations.store import objects


class Late(MemoryFileSystem):
    """Lists objects some time after they are written."""

    protocol = "memory"

    def ls(self, path, detail=True, **kwargs):
        return []


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
    assert objects.plain(place) == expected


@pytest.mark.parametrize("place", ["hf://owner/name", "file:///a", "runs", Path("runs")])
def test_no_url(place):
    assert not objects.is_url(place)


def test_wrong_urls():
    with pytest.raises(ValueError, match=r"unknown scheme 's4'. Did you mean 's3'"):
        objects.check_url("s4://bucket/runs")
    with pytest.raises(ValueError, match="expected s3://BUCKET/FOLDER"):
        objects.check_url("s3://")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"gs://bucket/runs needs gcsfs: pip install .*\[gcs\]"):
        objects.check_url("gs://bucket/runs")


def test_a_store_without_exclusive_leases_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "connect", lambda url: (Late(), "/late"))
    with pytest.warns(RuntimeWarning, match="memory://late: no exclusive lease here .a listing misses"):
        objects.check("memory://late")
    monkeypatch.setattr(objects, "connect", lambda url: (Elsewhere(), str(tmp_path)))
    with pytest.warns(RuntimeWarning, match="elsewhere is not known to list at once"):
        objects.check("elsewhere://runs")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_any_library_are_one_line():
    with pytest.raises(objects.StoreError, match=r"^s3://b: ZeroDivisionError: two$"), objects.one_line("s3://b"):
        raise ZeroDivisionError("two\nlines")
    with pytest.raises(FileNotFoundError), objects.one_line("s3://b"):
        raise FileNotFoundError("as it is")
