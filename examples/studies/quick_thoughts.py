"""Quick-thought with any objective: neighbouring sentences as positives, evaluated by transfer. LMCL's Table 4.

The comparison is fair for the reasons given in `simcse_sts.py`. Temperatures are chosen by STS-B dev, which is
not in the table; fixed are a prior of 0.01, beta 1, and the paper's weight 0.1 and thresholds 0.1 and 0.5 of DP.

sizes:
  smoke   a few steps of two objectives: to see that it runs
  small   trains the table of 30,522 word pieces of all-MiniLM-L6-v2 on *Pride and Prejudice*, 5951 sentences instead
          of BookCorpus' 74 million; a sentence is the mean of its pieces. Of the paper's six tasks it takes the one
          whose classifier is quick to fit, MRPC (the paper's MSRP), and STS-B. 8 seeds
  paper   the preset lmcl-quick-thought on text of your own, all six tasks: for a GPU, with the hub

The study resumes where it stopped.

examples:
  COUNTERPOINT_DATA=... python examples/studies/quick_thoughts.py --size small --jobs 2
  python examples/studies/quick_thoughts.py --size paper --data books.txt --device cuda
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from grids import AGAIN
from simcse_sts import Size, Template, main_of, minilm, tuned

from counterpoint.integrations.sentence import training
from counterpoint.integrations.sentence.presets import preset
from counterpoint.integrations.sentence.settings import TRANSFER
from counterpoint.integrations.store.run import Run

SIZES = {
    "smoke": Size(2, 1, ("MRPC", "STSB-test")),
    "small": Size(8, 2, ("MRPC", "STSB-test")),
    "paper": Size(5, 0, TRANSFER),
}
TEMPERATURES = (0.1, 0.2, 0.5)
BASES = {"QT": "infonce:t={t}", "DCL": "dcl:t={t},prior=0.01", "HCL": "hcl:t={t},prior=0.01,beta=1"}
ROWS: dict[str, Template] = {**BASES, **{f"{name} + DP": f"{spec} + 0.1*dp" for name, spec in BASES.items()}}
ROWS["QT" + AGAIN] = ROWS["QT"]
SMALL: dict[str, Any] = {
    "static": True,
    "positives": "next-sentence",
    "lr": 1e-3,
    "batch": 64,
    "epochs": 1,
    "every": 23,
    "save": 0,
    "keep": False,
    "test": ["STSB-test", "MRPC"],
}


def study(args: argparse.Namespace) -> tuple[list[Run], dict[str, float]]:
    """Return the runs of the table, and the dev scores that chose the temperatures."""
    if args.size == "paper":
        more = {**preset("lmcl-quick-thought").settings, "device": args.device, "test": list(TRANSFER)}
        cells = [
            training.cell(args.data, spec.format(t=0.05), seed, **more, label=row)
            for row, spec in ROWS.items()
            for seed in range(args.seeds)
        ]
        return args.grids.run(training.train, cells, Path(args.out, "test")), {}
    rows, temperatures, settings = ROWS, TEMPERATURES, {**SMALL, "model": args.model or minilm()}
    if args.size == "smoke":
        rows, temperatures = {row: ROWS[row] for row in ("QT", "QT + DP")}, TEMPERATURES[1:2]
        settings |= {"steps": 4, "every": 4}
    return tuned(rows, temperatures, settings, args, SIZES[args.size].tuning_seeds)


if __name__ == "__main__":
    main_of(__doc__, study, SIZES, "books/pride-and-prejudice.txt", "runs/quick_thoughts")
