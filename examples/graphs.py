"""Separate six kinds of random graphs without labels: GraphCL's encoder, trained with any objectives you name.

networkx generates the graphs, of similar size and density, with a tenth of their edges rewired: uniform, preferential
attachment, the same with triangles, small world, communities, geometric. GIN learns from pairs of a graph and an
augmented copy (nodes dropped, or a subgraph); a linear SVM then classifies its embeddings in three-fold
cross-validation. For every objective, a seed fixes the same initial weights, batches, views and folds, so differences
are paired.

The floor is chance, counts of degrees, and the untrained encoder. This data set is easy on purpose; for a meaningful
comparison see studies/graphcl_tu.py.

examples:
  python examples/graphs.py                                   four objectives, three seeds, half a minute
  python examples/graphs.py --seeds 5 --objectives "infonce:t=0.2" "dcl:t=0.2" --out graphs/
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from digits import COLOURS, show_progress
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler, normalize
from threadpoolctl import threadpool_limits

from counterpoint.integrations import graph
from counterpoint.integrations.graph.data import KINDS
from counterpoint.integrations.graph.training import BAG, UNTRAINED, build, cell
from counterpoint.integrations.report import words
from counterpoint.integrations.report.statistics import compare

CHANCE, FOLDS = 100 / len(KINDS), 3
OBJECTIVES = [
    "infonce:t=0.2,denominator=negatives",
    "adnce:t=0.2,mu=0.7,denominator=negatives",
    "hcl:t=0.2,denominator=negatives",
    "arcl(infonce:t=0.2,denominator=negatives):views=4",
]


@threadpool_limits.wrap(limits=1)  # matrices this small are slower on several cores
def run(
    objectives: Sequence[str] = tuple(OBJECTIVES),
    seeds: int = 3,
    epochs: int = 15,
    graphs: int = 240,
    out: str | Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train and evaluate every objective with the seeds `0 ... seeds - 1`; write the picture to `out`."""
    arguments = {k: v for k, v in locals().items() if k not in ("out", "progress")}
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2, got {seeds}")
    data = graph.demo(graphs)
    y, accuracies = data.y.numpy(), {name: [] for name in (BAG, UNTRAINED, *objectives)}
    first: dict[str, np.ndarray] = {}
    for seed in range(seeds):
        for number, name in enumerate(accuracies):
            if name == BAG:
                z = graph.bag_of_nodes(data)
            else:
                model = build(cell("demo", name if name in objectives else None, seed), data.x.shape[1])
                if name in objectives:
                    graph.pretrain(model, data, epochs, seed=seed)
                z = graph.embed(model.encoder, data)
            first.setdefault(name, z)
            accuracies[name].append(graph.evaluate(z, y, folds=FOLDS, seed=seed).accuracy)
            if progress:
                show_progress(seed * len(accuracies) + number + 1, seeds * len(accuracies), "graphs")
    by_seed = {name: dict(enumerate(values)) for name, values in accuracies.items()}
    versus = compare(by_seed.pop(UNTRAINED), by_seed, margin=0.5)
    summary = {
        name: {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)),
            "values": values,
            "vs_untrained": None if name == UNTRAINED else asdict(versus[name]),
        }
        for name, values in accuracies.items()
    }
    result = {"arguments": arguments, "summary": summary}
    if out is not None:
        draw(Path(out), data, result, first)
    return result


def report(result: dict[str, Any]) -> str:
    """Format the table, and below it the conclusions that its statistics support."""
    width = max(map(len, result["summary"]))
    lines = [
        f"{f'accuracy, % (SVM, {FOLDS} folds)':{width}}  {'':12}  minus untrained, 95%, corrected",
        f"{'chance':{width}}  {CHANCE:5.1f}",
    ]
    higher = []
    for name, row in result["summary"].items():
        versus, gap = row["vs_untrained"], ""
        if versus is not None:
            gap = words.with_interval(**versus)
            higher += [name] * (versus["low"] > 0 and name in result["arguments"]["objectives"])
        lines.append(f"{name:{width}}  {row['mean']:5.1f} ± {row['sd']:3.1f}  {gap}".rstrip())
    return "\n".join([*lines, "", f"Better than the untrained encoder: {', '.join(higher) or 'none'}."])


def draw(out: Path, data: graph.GraphSet, result: dict[str, Any], first: dict[str, np.ndarray]) -> None:
    """Draw a graph of each kind, every seed's accuracy, and the embeddings before and after training."""
    out.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(12, 7.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 2])
    for kind, (name, axis) in enumerate(zip(KINDS, top.subplots(1, len(KINDS)), strict=True)):
        one = data.batch((data.y == kind).nonzero()[0])
        drawn = networkx.Graph(one.edge_index.T.tolist())
        place = networkx.kamada_kawai_layout(drawn)
        networkx.draw(drawn, place, axis, node_size=14, width=0.6, node_color=COLOURS[kind], edge_color="0.5")
        axis.set_title(name, fontsize=10, color=COLOURS[kind])
    bars, before, after = bottom.subplots(1, 3, width_ratios=[1.3, 1, 1])
    bars.axvline(CHANCE, color="0.6", linestyle=":")
    for name, row in result["summary"].items():
        label = name.replace(",denominator=negatives", "")
        bars.plot(row["values"], [label] * len(row["values"]), "o", color=COLOURS[1], alpha=0.6)
        bars.plot(row["mean"], label, "|", color="black", markersize=20, markeredgewidth=2)
    bars.invert_yaxis()
    bars.set_xlabel("accuracy, % (dots: seeds, bars: means, dotted: chance)")
    bars.grid(axis="x", alpha=0.3)
    trained = result["arguments"]["objectives"][0]
    for axis, name in ((before, UNTRAINED), (after, trained)):
        points = PCA(2).fit_transform(StandardScaler().fit_transform(normalize(first[name])))
        for kind, (label, colour) in enumerate(zip(KINDS, COLOURS, strict=False)):
            axis.scatter(*points[data.y.numpy() == kind].T, s=10, color=colour, label=label)
        axis.set_title(name.replace(",denominator=negatives", ""), fontsize=10)
        axis.axis("off")
    figure.savefig(out / "graphs.png", dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--objectives", nargs="+", default=OBJECTIVES, metavar="SPEC", help="any that train without further views")
    add("--seeds", type=int, default=3, help="runs per objective (%(default)s)")
    add("--epochs", type=int, default=15, help="of each run (%(default)s)")
    add("--graphs", type=int, default=240, help="how many (%(default)s)")
    add("--out", help="a folder for graphs.json and the picture")
    arguments = vars(parser.parse_args(argv))
    try:
        result = run(**arguments)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {str(error).splitlines()[0]}\n")
    print(report(result))
    if arguments["out"]:
        Path(arguments["out"], "graphs.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
