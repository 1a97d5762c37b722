"""CURL with other objectives on dm_control: what do encoders learn from frames, and what do agents make of it?

`smoke` and `small` need no GPU. They evaluate representations: each objective trains an encoder without rewards on
frames of short random episodes, and ridge regression maps its features to the simulator's state, with R^2 measured on
held-out episodes. The floor is the pixels' principal components and the untrained encoder. Frames have 64 x 64 pixels
and encoders 16 channels, to fit two cores.

`paper` trains agents as CURL does, for 100,000 steps on each of six tasks, with LMCL's Table 5 beside the results. That
takes hours on a GPU; interrupt it at any time, and the same command resumes it.

All objectives get the same batches, crops, steps and seeds. Objectives that expect cosines get cosines, CURL's own loss
gets its bilinear scores, and InfoNCE on cosines separates the effect of the scores from that of the objective.

examples:
  python examples/studies/curl_dmc.py --size smoke                     one task, a minute
  python examples/studies/curl_dmc.py --size small --jobs 2            six tasks, eleven rows, five seeds
  python examples/studies/curl_dmc.py --size small --tasks walker-walk --objectives "infonce:t=1" "adnce:t=0.5"
  python examples/studies/curl_dmc.py --size paper --device cuda --tasks cartpole-swingup
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grids import Grids, add_flags

from counterpoint.integrations import report, store

BASELINE = "infonce:t=1"  # CURL
COSINE = "infonce:t=0.2"
MARK = "score at 100k"
OBJECTIVES = (
    BASELINE,
    f"{BASELINE} + 0.1*dp",
    COSINE,
    "dcl:t=0.2",
    "dcl:t=0.2 + 0.1*dp",
    "hcl:t=0.2",
    "hcl:t=0.2 + 0.1*dp",
    "adnce:t=0.2",
    f"arcl({BASELINE}):views=4",
)
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {
        "tasks": ("cartpole-swingup",),
        "objectives": (BASELINE, COSINE, "adnce:t=0.2"),
        "seeds": 2,
        "settings": {"episodes": 40, "length": 20, "updates": 100},
    },
    "small": {"tasks": None, "objectives": OBJECTIVES, "seeds": 5, "settings": {}},
    "paper": {"tasks": None, "objectives": OBJECTIVES, "seeds": 3, "settings": {"steps": 100_000}},
}


def run(
    size: str = "smoke",
    tasks: Sequence[str] | None = None,
    objectives: Sequence[str] | None = None,
    seeds: int | None = None,
    out: str | Path = "curl_dmc",
    grids: Grids | None = None,
    device: str = "cpu",
    progress: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Train and evaluate; write tables, pictures and runs to ``out``. Skip everything where frames cannot be rendered.

    Returns:
        The report as plain JSON, or ``{"skipped": why}``.
    """
    grids = grids or Grids(progress=progress)
    try:
        from counterpoint.integrations.control import environment, representation, training

        environment.check_frames()
    except (ImportError, OSError) as error:
        return {"skipped": str(error)}
    preset = SIZES[size]
    tasks = list(tasks or preset["tasks"] or environment.CURL_TASKS)
    specs, count = list(objectives or preset["objectives"]), seeds or preset["seeds"]
    if count < 1:
        raise ValueError(f"seeds must be at least 1, got {count}")
    settings, folder = {**preset["settings"], "device": device, **changes}, Path(out).absolute()
    module: Any = training if size == "paper" else representation
    cells = []
    for task in tasks:
        for seed in range(count):
            for spec in specs:
                scores = {"scores": "cosine"} if spec == COSINE else {}
                cells.append(module.cell(task, spec, seed, **{**settings, **scores}))
            if size != "paper":
                for label in (representation.PCA, representation.UNTRAINED):
                    cells.append(module.cell(task, None, seed, **settings, label=label))
    train: Any = training.train
    if size != "paper":
        cache = folder / "frames"
        train = partial(representation.train, cache=cache)
        draw_episodes(simulate(tasks, cells[0], cache, grids.jobs), folder / "curl_dmc_frames.png")
    done = grids.run(train, cells, folder / "runs")
    # the metric of Table 5, if every run has reached it
    metrics = [MARK] if all(MARK in (one.result or {}) for one in done) else []
    summary = report.summarise(done, baseline=specs[0], metrics=metrics)
    for _ in report.write(summary, folder):
        pass
    return {"table": report.terminal(summary), **report.plain(summary)}


def simulate(tasks: Sequence[str], cell: dict[str, Any], cache: Path, jobs: int) -> dict[str, Any]:
    """Return the episodes of every task, from the cache or newly simulated."""
    from counterpoint.integrations.control.representation import collect

    settings = {"episodes": cell["episodes"], "length": cell["length"], "size": cell["settings"]["size"]}
    make = partial(collect, cache, **settings)
    if jobs > 1 and len(tasks) > 1:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:  # render each task once, before the grid
            pool.map(make, tasks, chunksize=1)
    return {task: make(task) for task in tasks}


def draw_episodes(episodes: dict[str, Any], path: Path) -> None:
    """Draw a few frames of one episode per task."""
    from matplotlib.figure import Figure

    shown = 6
    figure = Figure(figsize=(1.6 * shown, 1.8 * len(episodes)), layout="constrained")
    for row, (task, data) in zip(figure.subplots(len(episodes), shown, squeeze=False), episodes.items(), strict=True):
        frames = data.frames[0]
        for axes, at in zip(row, range(0, len(frames), max(1, len(frames) // shown)), strict=False):
            axes.imshow(frames[at].movedim(0, -1).numpy())
            axes.set_title(f"{task}, {at}" if at == 0 else str(at), fontsize=8)
        for axes in row:
            axes.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def table(result: dict[str, Any]) -> str:
    """Format the result."""
    if "skipped" in result:
        return f"skipped, as no frames can be drawn: {result['skipped']}"
    return str(result["table"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=SIZES, default="smoke", help="see above (%(default)s)")
    add("--tasks", nargs="+", metavar="NAME", help="tasks of dm_control's suite; the default depends on --size")
    add("--objectives", nargs="+", metavar="SPEC", help="the default depends on --size")
    add("--seeds", type=int, metavar="N", help="the default depends on --size")
    add("--out", type=Path, default=Path("curl_dmc"), metavar="FOLDER", help="tables, pictures, runs (%(default)s)")
    add_flags(parser)
    add("--device", default="cpu", help="(%(default)s)")
    add("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    as_json, chosen = args.json, ("size", "tasks", "objectives", "seeds", "out", "device")
    try:
        result = run(**{name: getattr(args, name) for name in chosen}, grids=Grids(args, progress=not as_json))
    except (OSError, ValueError, store.GridError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({k: v for k, v in result.items() if k != "table"}, indent=1) if as_json else table(result))
    return 1 if "skipped" in result else 0


if __name__ == "__main__":
    sys.exit(main())
