"""A model that counterpoint has trained goes through mteb unchanged, since it is an ordinary SentenceTransformer.

mteb is not installed with counterpoint: pip install mteb. Its tasks are the hub's; where the files of COUNTERPOINT_DATA
are at hand they take the place of the download, and mteb does everything else.

examples:
  COUNTERPOINT_DATA=... python examples/mteb_sts.py --model runs/sentence/wiki.txt/NAME/seed0/model
  python examples/mteb_sts.py --model sentence-transformers/all-MiniLM-L6-v2 --task SICK-R --hub
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from counterpoint.integrations.sentence import sts
from counterpoint.integrations.sentence.data import load_sts
from counterpoint.integrations.sentence.encode import load

# mteb's task: our set
TASKS = {f"STS{year}": f"STS{year}" for year in range(12, 17)} | {"STSBenchmark": "STSB-test", "SICK-R": "SICKR-all"}


def local(task: Any, name: str) -> Any:
    """mteb's task with the pairs of a local set in the place of its download."""
    from datasets import Dataset

    pairs = load_sts(name)
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold}
    task.dataset, task.data_loaded = {"test": Dataset.from_dict(columns)}, True
    return task


def run(model: str, task: str, hub: bool = False, pooling: str | None = None) -> dict[str, float]:
    """The score that mteb finds, and the one of `counterpoint eval sts`, both times 100."""
    try:
        import mteb
    except ImportError as error:
        raise ImportError("this example needs mteb: pip install mteb") from error
    encoder = load(model, pooling)
    chosen = mteb.get_task(task)
    chosen = chosen if hub else local(chosen, TASKS[task])
    result = mteb.evaluate(encoder, chosen, cache=None, show_progress_bar=False)
    ours = sts.evaluate(encoder, [TASKS[task]], "hub" if hub else None, progress=False).sets[TASKS[task]]
    return {"mteb": 100 * result.task_results[0].get_score(), "counterpoint": ours.spearman or float("nan")}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="a SentenceTransformer")
    add("--pooling", help="for a checkpoint that is none")
    add("--task", choices=TASKS, default="STS16", help="as mteb calls it (%(default)s)")
    add("--hub", action="store_true", help="let mteb download its own copy")
    given = parser.parse_args(argv)
    try:
        found = run(given.model, given.task, given.hub, given.pooling)
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    for name, score in found.items():
        print(f"{given.task}, {name}: {score:.2f}")


if __name__ == "__main__":
    main()
