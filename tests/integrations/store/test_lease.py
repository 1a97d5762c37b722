"""Leases on a file system of fsspec in this process."""

from __future__ import annotations

import threading

import fsspec
import pytest

from counterpoint.integrations.store import lease as module
from counterpoint.integrations.store.errors import BusyError
from counterpoint.integrations.store.lease import Lease


@pytest.fixture
def files():
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    yield memory
    if memory.exists("/leases"):
        memory.rm("/leases", recursive=True)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test advances."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_one_holder_at_a_time(files):
    first, second = Lease(files, "/leases/a"), Lease(files, "/leases/a")
    first.acquire()
    with pytest.raises(BusyError, match="held by process"):
        second.acquire()
    first.release()
    second.acquire()
    assert second.held()
    assert not first.held()
    assert len(files.ls("/leases/a/.lease")) == 1  # earlier generations are deleted


def test_a_lease_expires_only_while_it_is_watched_and_not_renewed(files, clock):
    first, second = Lease(files, "/leases/a", seconds=60), Lease(files, "/leases/a")
    first.acquire()
    for renewed in (True, False):
        clock[0] += 1000
        with pytest.raises(BusyError):
            second.acquire()
        clock[0] += 59
        with pytest.raises(BusyError):
            second.acquire()
        if renewed:
            assert first.renew()
    clock[0] += 1
    second.acquire()
    assert not first.renew()
    assert second.renew()
    first.release()  # changes nothing for the new holder
    assert second.held()


def test_a_holder_that_is_known_to_have_ended_is_replaced_at_once(files):
    first, second = Lease(files, "/leases/a"), Lease(files, "/leases/a")
    first.acquire()
    second.acquire(last=first.name)
    assert second.held()
    assert not first.held()


def test_of_two_that_put_at_the_same_time_none_overlaps(files, monkeypatch):
    first, second = Lease(files, "/leases/a"), Lease(files, "/leases/a")
    put = Lease._put

    def put_both(lease, released=False):
        put(lease, released)
        if lease is first:  # the other one has looked before, and puts now
            other = b'{"owner": "b", "seconds": 60, "released": false}'
            files.pipe_file(f"/leases/a/.lease/{lease.name[:8]}-other", other)

    monkeypatch.setattr(Lease, "_put", put_both)
    with pytest.raises(BusyError, match="held by b"):
        first.acquire()
    assert files.ls("/leases/a/.lease", detail=False) == ["/leases/a/.lease/00000001-other"]
    with pytest.raises(BusyError):
        second.acquire()


def test_a_slow_process_cannot_take_an_old_generation(files, monkeypatch):
    slow, first, second = (Lease(files, "/leases/a") for _ in range(3))
    names, looks = slow._names, []

    def looks_early():
        found = names()
        if not looks:  # after its first look, two others hold the lease one after the other
            looks.append(found)
            first.acquire()
            first.release()
            second.acquire()
        return found

    monkeypatch.setattr(slow, "_names", looks_early)
    with pytest.raises(BusyError):
        slow.acquire()
    assert second.held()


def test_threads_that_compete_never_hold_it_together(files):
    inside, most, taken = [], [], []

    def compete():
        for _ in range(30):
            lease = Lease(files, "/leases/a")
            try:
                lease.acquire()
            except BusyError:
                continue
            inside.append(lease)
            most.append(len(inside))
            taken.append(lease.name)
            inside.remove(lease)
            lease.release()

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken
    assert max(most) == 1
