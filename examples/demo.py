"""What the objectives do on data that needs no download: the studies of this folder, each in a short form.

Prints a table per study, draws its pictures, and writes every number to `results.json`.

examples:
  python examples/demo.py                         all studies, three minutes or so; what `make demo` runs
  python examples/demo.py --studies digits        one of them
  python examples/demo.py --quick --out trial     to see that everything runs; the numbers mean nothing

For more seeds, other objectives and all settings run the studies themselves, e.g. `python examples/digits.py --help`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import curl_dmc
import digits
import graphs
import sentences
import toy_clusters
from threadpoolctl import threadpool_limits


class Study(NamedTuple):
    title: str
    run: Callable[..., dict[str, Any]]  # takes the settings, out= for the pictures and progress=; returns every number
    report: Callable[[dict[str, Any]], str]  # its result as a table, and in words
    settings: dict[str, Any]
    quick: dict[str, Any]


STUDIES = {
    "toy_clusters": Study(
        "Clusters in the plane: InfoNCE with and without distance polarization",
        toy_clusters.run,
        toy_clusters.report,
        settings={"trials": 3, "steps": 1000},
        quick={"trials": 2, "steps": 10},
    ),
    "digits": Study(
        "Handwritten digits of unseen writers, ten labels per class",
        digits.run,
        digits.report,
        settings={},
        quick={"seeds": 2, "steps": 2},
    ),
    "graphs": Study(
        "Six kinds of random graphs: GraphCL with other objectives",
        graphs.run,
        graphs.report,
        settings={},
        quick={"seeds": 2, "epochs": 1, "graphs": 60},
    ),
    "control": Study(
        "How much of a simulated robot's state is in the features that frames have taught?",
        lambda out, **settings: curl_dmc.run(out=out / "control", **settings),  # it leaves files in plenty
        curl_dmc.table,
        settings={"size": "smoke"},
        quick={"size": "smoke", "episodes": 8, "length": 6, "updates": 2, "batch": 8},
    ),
    "sentences": Study(
        "Synthetic sentences from a grammar, whose similarity is known",
        sentences.run,
        sentences.report,
        settings={},
        quick={"seeds": 2, "steps": 2},
    ),
}


@threadpool_limits.wrap(limits=1)  # all matrices here are so small that sharing them between cores only costs
def run(studies: Sequence[str], out: Path, quick: bool = False) -> dict[str, Any]:
    """Runs the studies, prints their tables, and leaves pictures and `results.json` in `out`."""
    results: dict[str, Any] = {}
    for name in studies:
        study, start = STUDIES[name], time.perf_counter()
        print(f"== {study.title} ==", flush=True)
        result = study.run(**(study.quick if quick else study.settings), out=out, progress=True)
        seconds = round(time.perf_counter() - start, 1)
        results[name] = {"seconds": seconds, **result}
        print(f"{study.report(result)}\n\n{name}: {seconds:.0f} s\n", flush=True)
        # after each study, so that a later one that stops takes nothing away; a study's own file of this name goes
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    return results


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--studies", nargs="+", choices=STUDIES, default=list(STUDIES), metavar="NAME", help=", ".join(STUDIES))
    add("--quick", action="store_true", help="a few steps of everything")
    add("--out", type=Path, default=Path("demo"), help="a folder for the pictures and results.json (%(default)s)")
    arguments = parser.parse_args(argv)
    start = time.time()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        run(**vars(arguments))
    except OSError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print("written:")
    for path in sorted(arguments.out.iterdir()):
        if path.stat().st_mtime >= start - 1:  # not what an earlier run left; some clocks of files are coarse
            print(f"  {path}")


if __name__ == "__main__":
    main()
