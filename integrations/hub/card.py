"""The model card of a published run: what it is, how it was trained and scored, how to load it, and what to cite."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import counterpoint as cp
from counterpoint.names import visible
from counterpoint.registry import known

from ..report import statistics
from ..report.tables import in_markdown
from ..store.cell import dataset_name
from ..store.run import Run, find_runs

LOADING = {
    "sentence": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
embeddings = model.encode(["one text", "another"])""",
    "image": """import torch
from counterpoint.integrations.image.published import PublishedEncoder

encoder = PublishedEncoder.from_pretrained("{name}").eval()
features = encoder(torch.rand(1, 3, {size}, {size}))  # images in [0, 1]""",
    "graph": """from counterpoint.integrations.graph.published import PublishedEncoder

encoder = PublishedEncoder.from_pretrained("{name}").eval()
embeddings = encoder(batch.x, batch.edge_index, batch.batch)  # a Batch of torch_geometric""",
}
EVALUATE = {"sentence": "sts hf://{name}", "image": "image hf://{name}", "graph": "tu hf://{name}"}
SOFTWARE = """@software{counterpoint,
  title = {counterpoint: better contrastive objectives for the training code you already have},
  author = {{The counterpoint maintainers}},
  version = {%s}
}"""


def seeds_of(run: Run) -> list[Run]:
    """The finished runs of the same cell with any seed, in the order of the seeds."""
    runs = [other for other in find_runs(run.address.rpartition("/")[0]) if other.done]
    same = [other for other in runs if {**other.arguments, "seed": 0} == {**run.arguments, "seed": 0}]
    return sorted(same, key=lambda other: int(other.arguments["seed"]))


def results(runs: Sequence[Run], own: Run) -> Iterator[str]:
    """Yield the rows of the table: this run, and mean and interval over the seeds."""
    yield "| result | this model | mean over seeds | 95% interval of the mean | seeds |"
    yield "|---|---|---|---|---|"
    for name, value in (own.result or {}).items():
        values = [run.result[name] for run in runs if run.result and name in run.result]
        yield f"| {in_markdown(name)} | {value:.4g} | {fmean(values):.4g} | {_interval(values)} | {len(values)} |"


def _interval(values: Sequence[float]) -> str:
    """Student's interval of a mean; nothing where it is not defined."""
    if len(values) < 2 or not statistics.available():
        return ""
    from scipy import stats

    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values) - half:.4g} to {fmean(values) + half:.4g}"


def without_folders(value: Any) -> Any:
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


def papers(spec: str | None) -> list[str]:
    """The papers of the objectives in a spec."""
    if spec is None:
        return []
    return [kind.paper for name, kind in known().items() if re.search(rf"\b{name}\b", spec)]


def card(run: Run, name: str, pipeline: str, size: int | None = None) -> str:
    """Return the card, README.md of the repository.

    Args:
        run: the run that is published.
        name: ``owner/name`` on the hub.
        pipeline: the hub's name of the task.
        size: of images.
    """
    arguments = without_folders(run.arguments)
    domain, dataset, spec = arguments["domain"], Path(dataset_name(run.arguments)).name, arguments["objective"]
    library = "sentence-transformers" if domain == "sentence" else "pytorch"
    loading = LOADING[domain].replace("{name}", name).replace("{size}", str(size))
    settings = {key: value for key, value in arguments.items() if key not in ("domain", "dataset", "objective")}
    cited = "\n".join(f"- {paper}" for paper in papers(spec))
    tags = "".join(f"- {tag}\n" for tag in ("counterpoint", "contrastive-learning", domain))
    return f"""---
library_name: {library}
pipeline_tag: {pipeline}
tags:
{tags}---

# {name.partition("/")[2]}

An encoder of {domain}s, trained on {in_markdown(dataset)} with the contrastive objective {_code(spec or run.name)}
by counterpoint {run.record.get("versions", {}).get("counterpoint", "")}.

## Use

```python
{loading}
```

```bash
counterpoint eval {EVALUATE[domain].format(name=name)}
```

## Results

{chr(10).join(results(seeds_of(run), run))}

The seeds are runs of the same settings. Numbers on data that selected a checkpoint or settings are not test results.

## Training

```bash
{visible(without_folders(run.record.get("command") or ""))}
```

- objective: {_code(str(spec))}
- data: {in_markdown(dataset)}, checksum `{run.record.get("data")}`
- seed: {arguments["seed"]}

```json
{json.dumps(settings, indent=1, ensure_ascii=False)}
```

## Citation

{cited}

```bibtex
{SOFTWARE % cp.__version__}
```
"""
