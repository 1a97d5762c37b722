"""A local object store of moto, as S3, for tests: its address, buckets, and commands on them.

``conftest.py`` of the tests of stores makes fixtures of :func:`moto_server` and :func:`new_bucket`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

PATIENCE = 900.0
COMMAND = str(Path(sys.executable).with_name("counterpoint"))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def served(words, port, log):
    """Run a server of HTTP until the end of the block; yields its address."""
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urlopen(address).close()
                break
            except HTTPError:  # it answers
                break
            except URLError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


@contextmanager
def moto_server(folder):
    """A server of moto; yields its address."""
    port = free_port()
    words = ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with served(words, port, folder / "moto.log") as address:
        yield address


def use_cache(monkeypatch, folder):
    """Let this process and its children have an empty cache and a short lease."""
    settings = {"COUNTERPOINT_CACHE": str(folder / "cache"), "COUNTERPOINT_LEASE": "3", "OMP_NUM_THREADS": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def new_bucket(server, monkeypatch, folder):
    """The URL of an empty bucket; this process and its children find it, and have an empty cache."""
    import s3fs

    settings = {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    use_cache(monkeypatch, folder)
    name = f"b-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"


def files_of(url, ends=""):
    """The objects below a URL whose names end so, with their contents."""
    import fsspec

    scheme, _, top = url.partition("://")
    files = fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
    names = [name for name in files.find(top) if name.endswith(ends)]
    contents = files.cat(names, on_error="omit") if names else {}
    return {name[len(top) + 1 :]: content for name, content in contents.items()}


def start(*words, cache, **more):
    environment = {**os.environ, "COUNTERPOINT_CACHE": str(cache), **more}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *words], env=environment, stdout=pipe, stderr=pipe, text=True)


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def command(*words):
    environment = {**os.environ}
    process = subprocess.run(
        [COMMAND, *map(str, words)],
        env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    return process.returncode, process.stdout, process.stderr
