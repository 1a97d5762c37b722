"""Which objective learns the better features of handwritten digits? Any objectives you name, side by side.

A small convolutional encoder learns without labels from scikit-learn's 8 x 8 digits (bundled, nothing is
downloaded): random affine and elastic views of each image, Adam, and the loss you name. Then a nearest-neighbour
and a linear classifier are trained on its features with ten labelled images per class.

Why the comparison is fair:

- the test images are by writers who do not appear in training (a random split would test on known handwriting);
- for every objective, a seed fixes the same initial weights, batches, augmentations and labelled images, so
  differences are paired; batch size, steps and (unless you name another one) denominator are the same for all;
- each default objective was chosen from eight settings, on other writers and seeds: see OBJECTIVES.

The floor is raw pixels and the untrained encoder. ArCL's four views belong to the method and double the images per
step: to see their effect alone, add `aal(infonce:t=0.2):views=4`.

examples:
  python examples/digits.py                         five objectives, three seeds, a minute or two
  python examples/digits.py --quick --out digits/   a look in seconds, with pictures
  python examples/digits.py --objectives "infonce:t=0.2" "infonce:t=learned(0.2)" "adnce:t=0.2,mu=auto" --seeds 10
  python examples/digits.py --validate --seed 1000 --objectives infonce:t={0.05,0.1,0.2,0.5}      to tune
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.integrations.report import words
from counterpoint.integrations.report.statistics import Verdict, compare

PIXELS, UNTRAINED = "raw pixels", "untrained encoder"
MEASURES = {"kNN": KNeighborsClassifier(5), "linear": LogisticRegression(C=10, max_iter=1000)}
# The images are sorted by writer, and a new writer begins at each of these rows. Reported runs train on the rows before
# TEST and test on the rest; with --validate, runs train on the rows before VALIDATION and test on those up to TEST.
VALIDATION, TEST = 776, 1287
# Each is the best of eight by the mean of both accuracies, three seeds: `--validate --seed 1000 --objectives` with
#   infonce:t={0.05,0.07,0.1,0.15,0.2,0.3,0.5,1}         "arcl(infonce:t="{the same}"):views=4"
#   adnce:t={0.07,0.1,0.2,0.4},mu={0.5,0.9},sigma=0.5    "infonce:t="{the same}" + 0.1*dp"
#   hcl:t={0.07,0.1,0.2,0.4},beta={0.5,1}
OBJECTIVES = [
    "infonce:t=0.2",
    "adnce:t=0.4,mu=0.9,sigma=0.5",
    "hcl:t=0.4,beta=0.5",
    "arcl(infonce:t=0.2):views=4",
    "infonce:t=0.3 + 0.1*dp",
]
COLOURS = ["#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"]  # safe for colour-blind readers


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Bend, rotate and shift digits, drop some ink and add noise. No flips: they change the digit."""
    n = len(x)
    angle, size, shear, right, down = 2 * torch.rand(5, n, generator=generator) - 1
    cos, sin = (0.26 * angle).cos() * (1 + 0.15 * size), (0.26 * angle).sin() * (1 + 0.15 * size)
    affine = torch.stack([cos, 0.2 * shear - sin, 0.19 * right, sin, cos, 0.19 * down], dim=1).view(n, 2, 3)
    bend = 0.1 * torch.randn(n, 2, 3, 3, generator=generator)
    bend = F.interpolate(bend, size=8, mode="bilinear", align_corners=True).movedim(1, -1)
    x = F.grid_sample(x, F.affine_grid(affine, list(x.shape), align_corners=False) + bend, align_corners=False)
    first, pixel = torch.randint(7, (n, 2, 1), generator=generator), torch.arange(8)
    rows, columns = ((pixel >= first) & (pixel < first + 2)).unbind(1)
    x = x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0.0)
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def networks(seed: int) -> tuple[nn.Module, nn.Module]:
    """Build the encoder, whose output is evaluated, and the projection head, whose output the loss receives."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()]
    for width in (16, 32):  # no batch norm: its statistics leak information between the images of a batch
        layers += [nn.Conv2d(width, 2 * width, 3, padding=1, stride=2), nn.GroupNorm(4, 2 * width), nn.ReLU()]
    head = nn.Sequential(nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 128)), head


def train(
    spec: str, images: Tensor, y: np.ndarray, split: int, seed: int, steps: int, batch: int
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train on the rows before `split`; return the encoder and its curve. Labels are used only for the curve."""
    loss_fn, (encoder, head) = cp.objective(spec), networks(seed)
    # one random generator per view, so that the first two views are the same however many an objective needs
    views = [torch.Generator().manual_seed(100 * seed + view) for view in range(loss_fn.views or 2)]
    order = torch.Generator().manual_seed(100 * seed + 99)
    adam = torch.optim.Adam([*encoder.parameters(), *head.parameters(), *loss_fn.parameters()], lr=1e-3)
    curve: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        x = images[torch.randperm(split, generator=order)[:batch]]
        loss = loss_fn(*[head(encoder(augment(x, generator))) for generator in views])
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % max(1, steps // 10) == 0:
            watched = accuracy("kNN", features(encoder, images), y, split, seed)
            curve.append({"step": step, "loss": loss.item(), "kNN": watched})
    return encoder, curve


def features(encoder: nn.Module, images: Tensor) -> np.ndarray:
    """Embed the images, normalized to unit length as in the loss."""
    with torch.no_grad():
        return F.normalize(encoder(images)).numpy()


def accuracy(measure: str, z: np.ndarray, y: np.ndarray, split: int, seed: int) -> float:
    """Return the accuracy in percent on the rows from `split` on, with ten labels per class: the mean of five draws."""
    rng, model, scores = np.random.default_rng(seed), MEASURES[measure], []
    for _ in range(5):
        labelled = np.concatenate([rng.choice(np.flatnonzero(y[:split] == c), 10, replace=False) for c in range(10)])
        scores.append(model.fit(z[labelled], y[labelled]).score(z[split:], y[split:]))
    return float(100 * np.mean(scores))


def check(objectives: Sequence[str], seeds: int, steps: int, batch: int) -> None:
    """Fail before the first run rather than minutes later."""
    for name, value, low in (("seeds", seeds, 2), ("steps", steps, 1), ("batch", batch, 2)):
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
    if len(set(objectives)) < len(objectives):
        raise ValueError("an objective is named twice")
    for spec in objectives:
        try:
            loss_fn = cp.objective(spec)
            loss_fn(*torch.randn(loss_fn.views or 2, 8, 4))
        except (TypeError, ValueError) as error:
            raise ValueError(f"objective {spec!r}: {str(error).splitlines()[0]}") from error


@threadpool_limits.wrap(limits=1)  # matrices this small are slower on several cores
def run(
    objectives: Sequence[str] = tuple(OBJECTIVES),
    seeds: int = 3,
    steps: int = 300,
    batch: int = 128,
    seed: int = 0,
    validate: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train and evaluate every objective with the seeds `seed ... seed + seeds - 1`; write pictures to `out`.

    Returns the contents of `digits.json`. With `validate` the test images are not used, as tuning requires.
    """
    arguments = {k: v for k, v in locals().items() if k not in ("out", "progress")}
    check(objectives, seeds, steps, batch)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    data, (split, end) = load_digits(), (VALIDATION, TEST) if validate else (TEST, None)
    images, y = torch.tensor(data.images[:end] / 16, dtype=torch.float32).unsqueeze(1), data.target[:end]
    runs: list[dict[str, Any]] = []
    first_seed: dict[str, np.ndarray] = {}
    for s in range(seed, seed + seeds):
        for i, name in enumerate((PIXELS, UNTRAINED, *objectives), -1):
            start, curve = time.perf_counter(), None
            encoder = nn.Flatten() if name == PIXELS else networks(s)[0]
            if name in objectives:
                encoder, curve = train(name, images, y, split, s, steps, batch)
                if progress:
                    show_progress((s - seed) * len(objectives) + i, seeds * len(objectives))
            z = features(encoder, images)
            first_seed.setdefault(name, z[split:])
            record: dict[str, Any] = {"objective": name, "spec": str(cp.objective(name)) if curve else None, "seed": s}
            record |= {measure: accuracy(measure, z, y, split, s) for measure in MEASURES}
            runs.append({**record, "seconds": round(time.perf_counter() - start, 2), "curve": curve})
    packages = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib")
    versions = {"python": sys.version.split()[0], "counterpoint": cp.__version__} | {
        name: version(name) for name in packages
    }
    result = {"arguments": arguments, "versions": versions, "summary": summarise(runs, objectives[0]), "runs": runs}
    if out is not None:
        draw(Path(out), result, first_seed, y[split:])
    return result


def show_progress(done: int, total: int, what: str = "digits") -> None:
    """Update one line on a terminal; elsewhere print a line now and then."""
    if (terminal := sys.stderr.isatty()) or done % max(1, total // 5) == 0:
        start, end = "\r" if terminal else "", "" if terminal and done < total else "\n"
        print(f"{start}{what}: {done}/{total} runs", end=end, file=sys.stderr, flush=True)


def summarise(runs: list[dict[str, Any]], first: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return each row's mean, deviation and verdict; rows that train nothing are not in the family of tests."""
    summary: dict[str, dict[str, dict[str, Any]]] = {run["objective"]: {} for run in runs}
    for measure in MEASURES:
        values = {name: {run["seed"]: run[measure] for run in runs if run["objective"] == name} for name in summary}
        checks = [name for name in (PIXELS, UNTRAINED) if name in values]
        versus = compare(values[first], {n: x for n, x in values.items() if n not in (first, *checks)}, margin=0.5)
        for name in checks:
            versus |= compare(values[first], {name: values[name]}, margin=0.5)
        for name, seeds in values.items():
            row = {"mean": fmean(seeds.values()), "sd": stdev(seeds.values()), "values": list(seeds.values())}
            summary[name][measure] = row | {"vs_first": asdict(versus[name]) if name != first else None}
    return summary


def report(result: dict[str, Any]) -> str:
    """Format the table, and below it the conclusions that its statistics support."""
    first, seeds = result["arguments"]["objectives"][0], result["arguments"]["seeds"]
    width = max(map(len, result["summary"]))
    lines = [f"{'accuracy, %':{width}}" + "".join(f"  {m:12}  {'minus first, 95%':21}" for m in MEASURES).rstrip()]
    for name, row in result["summary"].items():
        cells = ""
        for scores in row.values():
            gap = words.with_interval(**scores["vs_first"]) if name != first else ""
            cells += f"  {scores['mean']:5.1f} ± {scores['sd']:3.1f}  {gap:21}"
        lines.append(f"{name:{width}}{cells}".rstrip())
    lines.append("")
    for measure in MEASURES:
        versus = {
            name: Verdict(**row[measure]["vs_first"])
            for name, row in result["summary"].items()
            if name not in (first, PIXELS, UNTRAINED)
        }
        if versus:
            lines.append(f"{measure}, against {first} - {'; '.join(words.verdicts(versus, 1))}.")
    more = ", --seeds 10 says more" if seeds < 10 else ""
    return "\n".join([*lines, f"({seeds} paired seeds; intervals and verdicts are corrected for the rows{more}.)"])


def draw(out: Path, result: dict[str, Any], first_seed: dict[str, np.ndarray], y: np.ndarray) -> None:
    """Plot every seed's accuracy, the learning curves, and the first seed's embeddings of the test images."""
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(result["summary"])}
    figure = Figure(figsize=(10, 0.4 * len(colours) + 1.4), layout="constrained")
    for axis, measure in zip(figure.subplots(1, 2, sharey=True), MEASURES, strict=True):
        for name, row in result["summary"].items():
            axis.plot(row[measure]["values"], [name] * len(row[measure]["values"]), "o", color=colours[name], alpha=0.5)
            axis.plot(row[measure]["mean"], name, "|", color=colours[name], markersize=22, markeredgewidth=2.5)
        axis.set_xlabel(f"{measure} accuracy, % (dots: seeds, bars: means)")
        axis.grid(axis="x", alpha=0.3)
    axis.invert_yaxis()
    figure.savefig(out / "digits_accuracy.png", dpi=120)

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    labels = {"kNN": "kNN accuracy, %", "loss": "loss, each on its own scale"}
    for axis, (key, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for name in result["arguments"]["objectives"]:
            curves = [run["curve"] for run in result["runs"] if run["objective"] == name]
            mean = np.mean([[point[key] for point in curve] for curve in curves], axis=0)
            axis.plot([point["step"] for point in curves[0]], mean, ".-", color=colours[name], label=name)
        axis.set(xlabel="step", ylabel=label)
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(out / "digits_curves.png", dpi=120)

    rows = -(-len(first_seed) // 4)
    figure = Figure(figsize=(12, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 4, squeeze=False).ravel()
    for axis, (name, z) in zip(axes, first_seed.items(), strict=False):
        points = axis.scatter(*PCA(2).fit_transform(z).T, c=y, cmap="tab10", s=6)
        axis.set_title(name, fontsize=9)
    for axis in axes:
        axis.axis("off")
    figure.legend(*points.legend_elements(), loc="outside lower center", ncols=10, title="digit")
    figure.savefig(out / "digits_pca.png", dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--objectives", nargs="+", default=OBJECTIVES, metavar="SPEC", help="the first is compared with the others")
    add("--seeds", type=int, default=3, help="runs per objective (%(default)s)")
    add("--steps", type=int, default=300, help="Adam steps per run (%(default)s)")
    add("--batch", type=int, default=128, help="images per step (%(default)s)")
    add("--seed", type=int, default=0, help="of the first run; the others count up (%(default)s)")
    add("--quick", action="store_true", help="2 seeds of 100 steps: a look, not a result")
    add("--validate", action="store_true", help="do not use the test images: for choosing settings")
    add("--out", help="a folder for digits.json and the pictures")
    arguments = vars(parser.parse_args(argv))
    arguments |= {"seeds": 2, "steps": 100} if arguments.pop("quick") else {}
    try:
        result = run(**arguments)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(report(result))
    if arguments["out"]:
        Path(arguments["out"], "digits.json").write_text(json.dumps(result, indent=1) + "\n")
        print(f"\ndigits.json and 3 pictures are in {arguments['out']}")


if __name__ == "__main__":
    main()
