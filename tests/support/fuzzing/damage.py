"""Stored runs with damaged files: refused by name, or read as they were written."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
import toy_grid
from hypothesis import strategies as st

from counterpoint.integrations import report, store

from .draws import counts

DAMAGE = st.fixed_dictionaries(
    {
        "file": st.sampled_from(["run.json", "metrics.jsonl", "checkpoint.pt"]),
        "flips": st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3),
        "cut": st.none() | st.floats(0, 1),
    }
)
FILES = ("run.json", "metrics.jsonl", "checkpoint.pt")


@cache
def finished() -> tuple[Path, dict[str, bytes], Any]:
    """A root of two runs, the files of the first, and the state of its checkpoint."""
    root = Path(tempfile.mkdtemp(prefix="fuzz"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    runs = []
    for spec in ("infonce:t=0.2", "hcl:t=0.2"):
        run = store.Run(root, {"domain": "toy", "dataset": "points", "objective": spec, "seed": 0})
        with run.lock():
            run.begin()
            for step in range(1, 4):
                run.log(step, loss=1 / step, uniformity=-0.5 * step)
                run.save({"net": {"weight": torch.linspace(0, step, 20)}, "rng": store.rng_state()}, step)
            run.finish({"accuracy": 70.0 + len(spec), "other": 1.0}, folds=[1.0, 2.0])
        runs.append(run)
    path = runs[0].path
    content = {name: (path / name).read_bytes() for name in FILES}
    return path, content, toy_grid.plain(torch.load(path / "checkpoint.pt", weights_only=True)["state"])


def check_damage(case: dict[str, Any]) -> None:
    """A damaged file is refused by name, or nothing that is read from it can be anything but what was written.

    ``metrics.jsonl`` has no checksum: it may be read with another digit, but nothing may crash.
    """
    path, content, last = finished()
    name = case["file"]
    damaged = bytearray(content[name])
    for where, bit in case["flips"]:
        damaged[int(where * len(damaged))] ^= 1 << bit
    if case["cut"] is not None:
        del damaged[int(case["cut"] * len(damaged)) :]
    for each in FILES:
        (path / each).write_bytes(damaged if each == name else content[each])
    outcome, said = "read", str(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = store.Run.read(path)
            assert run.record == json.loads(content["run.json"])
            run.metrics()
            summary = report.summarise(store.find_runs(path.parents[3]))
            for form in ("terminal", "markdown", "json"):
                report.RENDER[form](summary)
        except ValueError as error:
            outcome, said = "refused", str(error)
        assert str(path) in said, said
        if name == "checkpoint.pt":
            with run.lock():
                state = run.load()
            assert state is None or toy_grid.plain(state) == last, state
            outcome = "begun anew" if state is None else "the last"
    counts[f"damaged {name}: {outcome}"] += 1
