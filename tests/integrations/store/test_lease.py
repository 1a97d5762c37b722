"""Leases on a file system of fsspec in this process."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta

import fsspec
import pytest

from counterpoint.integrations.store.errors import BusyError
from counterpoint.integrations.store.lease import Lease
from counterpoint.integrations.store.transport import connect


@pytest.fixture
def there():
    name = uuid.uuid4().hex
    yield connect(f"memory://{name}")
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)


def later(there, seconds):
    """Let the store's clock go on: what it has was written earlier."""
    for name, file in there.files.store.items():
        if name.startswith(f"{there.path}/"):
            file.modified -= timedelta(seconds=seconds)


def test_one_holder_at_a_time(there):
    first, second = Lease(there, "a"), Lease(there, "a")
    first.acquire()
    with pytest.raises(BusyError, match="held by process"):
        second.acquire()
    first.release()
    second.acquire()
    assert second.held()
    assert not first.held()
    assert sorted(there.list("a")) == ["a/.lease/00000001", "a/.lease/00000002"]


def test_a_lease_expires_when_it_is_not_renewed(there):
    first, second = Lease(there, "a"), Lease(there, "a")
    first.acquire()
    later(there, 60)
    with pytest.raises(BusyError):
        second.acquire()
    first.renew()
    later(there, 60)
    assert second.taken()
    later(there, 2)
    assert not second.taken()
    assert first.held()  # nobody has taken it
    second.acquire()
    assert not first.held()
    first.renew()
    first.release()  # changes nothing for the new holder
    assert second.held()
    assert first.taken()


def test_a_slow_process_cannot_take_an_old_number(there, monkeypatch):
    slow, first, second = (Lease(there, "a") for _ in range(3))
    look = slow._last

    def looks_early():
        found = look()
        first.acquire()  # after its look, two others hold the lease one after the other
        first.release()
        second.acquire()
        return found

    monkeypatch.setattr(slow, "_last", looks_early)
    with pytest.raises(BusyError, match="another process takes it at the same time"):
        slow.acquire()
    assert second.held()
    assert not slow.number


def test_threads_that_compete_never_hold_it_together(there, monkeypatch):
    inside, most, taken, pipe_file, one = [], [], [], there.files.pipe_file, threading.Lock()

    def exclusively(*args, **kwargs):
        """Create a file as stores do; fsspec's memory lets a thread in between its look and its writing."""
        with one:
            pipe_file(*args, **kwargs)

    monkeypatch.setattr(there.files, "pipe_file", exclusively)

    def compete():
        for _ in range(30):
            lease = Lease(there, "a")
            try:
                lease.acquire()
            except BusyError:
                continue
            inside.append(lease)
            most.append(len(inside))
            taken.append(lease.number)
            inside.remove(lease)
            lease.release()

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) > 0
    assert max(most) == 1
