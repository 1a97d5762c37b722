"""Evaluate a model that counterpoint has trained with mteb: it is an ordinary SentenceTransformer.

mteb is not installed with counterpoint: pip install mteb. Its tasks come from the hub; files in COUNTERPOINT_DATA
replace the download, and mteb does everything else.

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

# the name of a task in mteb: the name of the set here
TASKS = {f"STS{year}": f"STS{year}" for year in range(12, 17)} | {"STSBenchmark": "STSB-test", "SICK-R": "SICKR-all"}


def local(task: Any, name: str) -> Any:
    """Return mteb's task with the pairs of a local set in place of its download."""
    from datasets import Dataset

    pairs = load_sts(name)
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold}
    task.dataset, task.data_loaded = {"test": Dataset.from_dict(columns)}, True
    return task


def run(model: str, task: str, hub: bool = False, pooling: str | None = None) -> dict[str, float]:
    """Return mteb's score and that of `counterpoint eval sts`, both times 100."""
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
    add("--pooling", help="for a plain checkpoint of transformers")
    add("--task", choices=TASKS, default="STS16", help="its name in mteb (%(default)s)")
    add("--hub", action="store_true", help="use mteb's own download")
    args = parser.parse_args(argv)
    try:
        scores = run(args.model, args.task, args.hub, args.pooling)
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    for name, score in scores.items():
        print(f"{args.task}, {name}: {score:.2f}")


if __name__ == "__main__":
    main()
