"""The folder that is pushed: weights as safetensors, configuration, the run's record, and the model card."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import counterpoint as cp
from counterpoint.names import known
from counterpoint.plugins.printing import visible

from ..domain import domain
from ..report import statistics
from ..report.tables import in_markdown
from ..store.cell import dataset_name
from ..store.files import atomic, signed
from ..store.run import Run, find_runs

EVALUATIONS = {"sentence": "sts", "image": "image", "graph": "graph"}  # of the domains that can be pushed
TASKS = {"sentence": "sentence-similarity", "image": "image-feature-extraction", "graph": "graph-ml"}  # by the hub
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
RECORD = ("arguments", "status", "result", "details", "versions", "command", "data", "axis")  # not the machine


def write(run: Run, name: str, folder: Path) -> Path:
    """Write the folder of a finished run, for ``owner/name`` on the hub; files of the same names are replaced."""
    if run.arguments["domain"] not in EVALUATIONS:
        raise ValueError(f"{run.path}: a run of {run.arguments['domain']}; expected one of {', '.join(EVALUATIONS)}.")
    if not run.done:
        raise ValueError(f"{run.path}: not finished; the command that trains it resumes it.")
    domain(run.arguments["domain"]).module("published").publish(run).save_pretrained(str(folder))  # which creates it
    if pickled := [path.name for path in folder.rglob("*") if path.suffix in PICKLED]:
        raise ValueError(f"{folder}: {pickled[0]} is pickled; expected safetensors only.")
    config = folder / "config.json"
    size = json.loads(config.read_text(encoding="utf-8")).get("size") if config.exists() else None
    record = signed({key: without_folders(run.record.get(key)) for key in RECORD})
    files = {"run.json": json.dumps(record, indent=1) + "\n", "README.md": card(run, name, size)}
    for file_name, text in files.items():
        with atomic(folder / file_name) as file:
            file.write(text.encode())
    return folder


def card(run: Run, name: str, size: int | None = None) -> str:
    """Return the model card, README.md of the repository: the training, the scores, and the papers to cite.

    ``name`` is ``owner/name``, ``size`` that of images.
    """
    from huggingface_hub import ModelCard, ModelCardData

    arguments, spec = without_folders(run.arguments), run.arguments["objective"]
    library = "sentence-transformers" if arguments["domain"] == "sentence" else "pytorch"
    tags = ["counterpoint", "contrastive-learning", arguments["domain"]]
    data = ModelCardData(library_name=library, pipeline_tag=TASKS[arguments["domain"]], tags=tags)
    settings = {key: value for key, value in arguments.items() if key not in ("domain", "dataset", "objective")}
    made = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md.jinja")),
        name=name,
        arguments=arguments,
        record=run.record,
        dataset=in_markdown(Path(dataset_name(run.arguments)).name),
        objective=_code(spec or run.name),
        spec=_code(str(spec)),
        size=size,
        evaluation=EVALUATIONS[arguments["domain"]],
        results=list(results(seeds_of(run), run)),
        command=visible(without_folders(run.record.get("command") or "")),
        settings=json.dumps(settings, indent=1, ensure_ascii=False),
        papers=[kind.paper for name, kind in known().items() if re.search(rf"\b{name}\b", spec or "")],
        version=cp.__version__,
    )
    return f"{made}\n"


def seeds_of(run: Run) -> list[Run]:
    """Return the finished runs of the same cell with any seed, in the order of the seeds."""
    runs = [other for other in find_runs(run.address.rpartition("/")[0]) if other.done]
    same = [other for other in runs if {**other.arguments, "seed": 0} == {**run.arguments, "seed": 0}]
    return sorted(same, key=lambda other: int(other.arguments["seed"]))


def results(runs: Sequence[Run], own: Run) -> Iterator[list[str]]:
    """Yield for each result its name, the value of this run, mean and interval over the seeds, and their number."""
    for name, value in (own.result or {}).items():
        values = [run.result[name] for run in runs if run.result and name in run.result]
        interval = ""
        if len(values) > 1 and statistics.available():
            interval = "{:.4g} to {:.4g}".format(*statistics.mean_interval(values))
        yield [in_markdown(name), f"{value:.4g}", f"{fmean(values):.4g}", interval, str(len(values))]


def without_folders(value: object) -> Any:
    """Replace the paths of this machine by the names of their files or folders, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"(?<![\w:/.~-])[~/][^\s'\"]*/([^\s'\"/]+)", r"\1", value)


def _code(text: str) -> str:
    return f"`{visible(text).replace('`', chr(39))}`"
