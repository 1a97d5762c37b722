"""Random objectives, batches, texts and damaged files, and what must hold for each.

``python tests/support/fuzz.py MINUTES`` runs every check with Hypothesis, 10,000 examples a round, until the time is
over, and prints how many examples of which kind it has run; ``... MINUTES SEED NAME`` runs one check alone.
``tests/test_fuzz.py`` runs a few examples of each. The checks are in ``fuzzing/``.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads this when it is imported

import torch
from fuzzing.batches import CASES, check_objective
from fuzzing.damage import DAMAGE, check_damage
from fuzzing.draws import counts
from fuzzing.joint import JOINT, check_joint
from fuzzing.matrices import MATRICES, check_matrix
from fuzzing.texts import TEXTS, TREES, check_data, check_text
from fuzzing.treated import TREATED, check_treated
from fuzzing.ways import COMPILED, EMPTIED, FROZEN, check_compiled, check_emptied, check_frozen
from fuzzing.wrong import WRONG, check_wrong
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

ROUND = 10_000

CHECKS: dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any], int]] = {
    "objectives": (check_objective, CASES, 30),  # the check, its examples, and how many `make test` runs
    "joint": (check_joint, JOINT, 30),
    "matrices": (check_matrix, MATRICES, 15),
    "compiled": (check_compiled, COMPILED, 5),
    "frozen": (check_frozen, FROZEN, 30),
    "emptied": (check_emptied, EMPTIED, 30),
    "treated": (check_treated, TREATED, 5),
    "wrong": (check_wrong, WRONG, 60),
    "texts": (check_text, TEXTS, 150),
    "data": (check_data, TREES, 200),
    "damage": (check_damage, DAMAGE, 100),
}


def run(name: str, examples: int, seed: int, until: float = math.inf) -> None:
    """Run a check on random examples; raise for the first one that fails."""
    check, strategy, _ = CHECKS[name]

    @with_seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # the examples are small enough to be read as they are
        suppress_health_check=[*HealthCheck],
    )
    @given(strategy)
    def one(example: Any) -> None:
        if time.monotonic() > until:
            raise KeyboardInterrupt  # the only error that Hypothesis passes on at once
        counts[f"check {name}"] += 1
        check(example)

    one()


def main(minutes: float, seed: int, only: str | None = None) -> int:
    """Run all checks in turn, a part of the time each, or one of them; return the number of findings."""
    end, findings = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        for name in [only] if only else CHECKS:
            share = {"objectives": 0.4, "joint": 0.15, "matrices": 0.15}.get(name, 0.1) * 60 * minutes
            try:
                run(name, ROUND, seed, min(end, time.monotonic() + share))
            except KeyboardInterrupt:
                pass
            except Exception:
                findings += 1
                traceback.print_exc()
        seed += 1
    for what, count in sorted(counts.items()):
        print(f"{count:9,d}  {what}")
    print(f"{findings} findings in {minutes:g} minutes; the next seed is {seed}")
    return findings


if __name__ == "__main__":
    torch.set_num_threads(1)
    given_seed, given_check = int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3] if len(sys.argv) > 3 else None
    sys.exit(main(float(sys.argv[1]), given_seed, given_check) > 0)
