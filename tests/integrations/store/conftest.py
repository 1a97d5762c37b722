"""Fixtures of the tests of stores."""

from __future__ import annotations

import buckets
import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a local server that is an S3 to its clients."""
    with buckets.moto_server(tmp_path_factory.mktemp("moto")) as address:
        yield address


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """The URL of an empty bucket there."""
    return buckets.new_bucket(server, monkeypatch, tmp_path)
