"""Conditional writes: a process that was stopped past its lease replaces nothing of the next holder's."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import toy_grid
from buckets import PATIENCE, ended, files_of, start

from counterpoint.integrations import store
from counterpoint.integrations.store import conditional
from counterpoint.integrations.store.objects import connect

pytest.importorskip("moto", reason="counterpoint[s3-test] has moto's server")
pytest.importorskip("s3fs", reason="counterpoint[s3] has s3fs")
pytestmark = pytest.mark.slow

# a process that stops right before it sends its n-th object, after a look at its lease
STOPPING = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(toy_grid.__file__).parent)!r})
import toy_grid
from functools import partial
from counterpoint.integrations import store
from counterpoint.integrations.store import conditional
url, stop, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
write, sent = conditional.write, []
def stopping(*arguments):
    sent.append(arguments[1])
    if len(sent) == stop:
        os.kill(os.getpid(), signal.SIGSTOP)
    return write(*arguments)
conditional.write = stopping
store.run_grid(partial(toy_grid.train, pause=pause), toy_grid.cells(1)[:1], url)
"""


def wait_for(what, *processes):
    limit = time.monotonic() + PATIENCE
    while not what():
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        assert time.monotonic() < limit
        time.sleep(0.05)


def is_stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def taken_over(url):
    """Whether a lease of the second generation is there."""
    return any("/.lease/00000002-" in name for name in files_of(url))


def left(url):
    """The objects of a store, without leases."""
    return {name: content for name, content in files_of(url).items() if "/.lease/" not in name}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("stop", range(1, 13))
def test_a_stopped_process_that_continues_leaves_a_run_to_the_next(bucket, tmp_path, stop):
    """It continues when the next one has finished, or is in the middle of the run."""
    url, midway = f"{bucket}/runs", stop % 2 == 0
    first = start("-c", STOPPING, url, str(stop), "0", cache=tmp_path / "first", COUNTERPOINT_LEASE="1")
    second = None
    try:
        wait_for(lambda: is_stopped(first), first)
        pause = "0.3" if midway else "0"
        second = start("-c", STOPPING, url, "0", pause, cache=tmp_path / "second", COUNTERPOINT_LEASE="1")
        if midway:
            wait_for(lambda: taken_over(url), first, second)
        else:
            code, _, err = ended(second)
            assert code == 0, err
        before = left(url)
        os.kill(first.pid, signal.SIGCONT)
        code, _, err = ended(first)
        assert code == 0, err
        assert err.count("another process has taken over this run") == 1, err
        if midway:
            code, _, err = ended(second)
            assert code == 0, err
        else:
            assert left(url) == before
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    store.run_grid(toy_grid.train, toy_grid.cells(1)[:1], tmp_path / "here", progress=False)
    ((path, here),) = toy_grid.contents(tmp_path / "here").items()
    (run,) = store.find_runs(url)
    assert (run.record["status"], run.result, run.details, run.metrics()) == here[1:5]
    assert left(url)[f"{path.as_posix()}/metrics.jsonl"] == here[5]
    assert toy_grid.plain(run.load()) == here[6]


def test_writes_are_conditional(bucket, tmp_path):
    files, path = connect(bucket)
    file = tmp_path / "file"
    file.write_text("first")
    first = conditional.write(files, f"{path}/a", file, None)
    assert first == conditional.current(files, f"{path}/a")
    with pytest.raises(conditional.ChangedError):
        conditional.write(files, f"{path}/a", file, None)
    file.write_text("second")
    second = conditional.write(files, f"{path}/a", file, first)
    with pytest.raises(conditional.ChangedError):
        conditional.write(files, f"{path}/a", file, first)
    files.rm_file(f"{path}/a")
    with pytest.raises(conditional.ChangedError):
        conditional.write(files, f"{path}/a", file, second)
    assert conditional.current(files, f"{path}/a") is None
    with pytest.raises(FileNotFoundError):
        conditional.write(files, "no-such-bucket-here/a", file, None)
