"""Write the pages of the documentation site: those of this folder, and those that the code itself can tell.

``python docs/site_pages.py`` fills build/pages, from which ``zensical build`` makes the site; ``make docs`` does both.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import pydoc
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import notebook_pages
import torch
from docstrings import as_markdown
from latex2mathml.converter import convert

import counterpoint as cp
from counterpoint.integrations import evidence
from counterpoint.integrations.command.objectives import facts
from counterpoint.integrations.domain import NAMES as DOMAINS
from counterpoint.plugins import registry
from counterpoint.plugins.inject import explain
from counterpoint.values import text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
ELSEWHERE = {  # documents of the repository that are pages of the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "core/engine/README.md": "engine.md",
    "examples/README.md": "examples.md",
    "examples/existing_repos/README.md": "hosts/index.md",
}
RECIPES = ROOT / "examples" / "existing_repos"
# sections of a long document that are pages of their own
APART = {
    "hosts/index.md": {
        "What counts as the same loss": "same_loss.md",
        "Find the loss": "find.md",
        "Code bases that were tried": "tried.md",
        "Does it help you?": "compare.md",
        "A host, or an objective, of your own": "own.md",
    }
}
# the order of the page of the API: what users call first; what objectives are written with comes last
CALLED_FIRST = ("objective", "Objective")
CALLED_NEXT = (
    "Treatment", "treatment", "margin", "threshold", "Keys", "Learned", "Schedule", "log_reports", "gather",
    "gradcache", "distances", "weight_curve", "plot_weights", "set_checks", "from_dict",
    "SpecError",
)  # fmt: skip

# from the formula of an objective's class to its LaTeX; a formula that is missing here stops the build
FORMULAS = {
    "t log u,  u <- (1 - gamma) u + gamma mean_j E(s_j - p),  E(s) = e^{s/t}": (
        r"t \log u, \quad u \leftarrow (1 - \gamma) \, u + \gamma \, \overline{E(s - p)}, \quad E(s) = e^{s/t}"
    ),
    "t (log u + rho),  t <- t - eta v,  v <- (1 - beta) v + beta dL/dt": (
        r"t \, (\log u + \rho), \quad t \leftarrow t - \eta v, \quad "
        r"v \leftarrow (1 - \beta) \, v + \beta \, \frac{\partial L}{\partial t}"
    ),
    "sum_m w_m L(z[:m])": r"\sum_m w_m \, L(z_{1 \ldots m})",
    "-log E(p) / (E(p) + N mean_j E(s_j)),  E(s) = e^{s/t}": (
        r"-\log \frac{E(p)}{E(p) + \sum_j E(s_j)}, \quad E(s) = e^{s/t}"
    ),
    "-log E(p) / (E(p) + N g1),  g1 = max{(mean E(s) - prior mean E(v)) / (1 - prior), e^{-1/t}}": (
        r"-\log \frac{E(p)}{E(p) + N g_1}, \quad "
        r"g_1 = \max\left\{\frac{\overline{E(s)} - \pi \, \overline{E(v)}}{1 - \pi}, e^{-1/t}\right\}"
    ),
    "-log E(p) / (E(p) + N g2),  g2 = DCL's g1 with mean E(s) weighted by E(s)^beta": (
        r"-\log \frac{E(p)}{E(p) + N g_2}, \quad "
        r"g_2 = \max\left\{\frac{\overline{w E(s)} - \pi \, \overline{E(v)}}{1 - \pi}, e^{-1/t}\right\}, \quad "
        r"w_j = \frac{E(s_j)^\beta}{\overline{E(s)^\beta}}"
    ),
    "-log E(p) / (E(p) + sum_j w_j E(s_j)),  w ~ exp(-(s - mu)^2 / (2 sigma^2)), mean w = 1": (
        r"-\log \frac{E(p)}{E(p) + \sum_j w_j E(s_j)}, \quad "
        r"w_j \propto e^{-(s_j - \mu)^2 / (2 \sigma^2)}, \quad \overline{w} = 1"
    ),
    "sum_j w_j / W (s_j - p),  w = e^{-(1 - s)^power / t}": (
        r"\sum_j \frac{w_j}{W} (s_j - p), \quad w_j = e^{-(1 - s_j)^{k} / t}, \quad W = \sum_j w_j"
    ),
    "-p + mean_j s_j + Var_j(s_j) / (2 t phi''(1))": (
        r"-p + \overline{s} + \frac{\mathrm{Var}_j(s_j)}{2 t \, \phi''(1)}"
    ),
    "-p + max_Q { E_Q[s] : D(Q || Q0) <= radius }": (
        r"-p + \max_Q \left\{ \mathbb{E}_Q[s] : D(Q \Vert Q_0) \le \rho \right\}"
    ),
    "-log S / (S + N G),  S = sum_j E(p_j)": r"-\log \frac{S}{S + N G}, \quad S = \sum_j E(p_j)",
    "-log E(p)/(E(p) + N G) - lam mean_j log O_j - (1 - lam) mean_j log(1 - O_j)": (
        r"-\log \frac{E(p)}{E(p) + N G} - \lambda \, \overline{\log O_j} - (1 - \lambda) \, \overline{\log(1 - O_j)}"
    ),
    "w_i * -log E(a_i) / (E(a_i) + N G),  w = 1 or the anchor's clean loss": (
        r"-w_i \log \frac{E(a_i)}{E(a_i) + N G}, \quad w_i = 1 \text{ or the clean loss of the anchor}"
    ),
    "-log E(p) / (E(p) + N G1) + alpha L_Robust(G2, w)": (
        r"-\log \frac{E(p)}{E(p) + N G_1} + \alpha L_{\mathrm{Robust}}(G_2, w)"
    ),
    "L_NaCl(G1) + alpha L_Robust(G2, w)": r"L_{\mathrm{NaCl}}(G_1) + \alpha L_{\mathrm{Robust}}(G_2, w)",
    "-(1/M) sum_j log E(p_j) / (sum_k E(p_k) + sum_i E(s_i)),  E(s) = e^{s/t}": (
        r"-\frac{1}{M} \sum_{j=1}^{M} \log \frac{E(p_j)}{\sum_k E(p_k) + \sum_i E(s_i)}, \quad E(s) = e^{s/t}"
    ),
    "(-E(p)^q + (lam (E(p) + sum_j E(s_j)))^q) / q,  E(s) = e^{s/t}": (
        r"\frac{-E(p)^q + \left(\lambda \left(E(p) + \sum_j E(s_j)\right)\right)^q}{q}, \quad E(s) = e^{s/t}"
    ),
    "-log E(p) / (E(p) + sum_j E(s_j)),  E(s) = (1 + s) / (1 - s)": (
        r"-\log \frac{E(p)}{E(p) + \sum_j E(s_j)}, \quad E(s) = \frac{1 + s}{1 - s}"
    ),
    "log mean_j sigma((s_j - p) / 2)^{1/t},  sigma(d) = tanh(d) + 1": (
        r"\log \frac{1}{N} \sum_j \sigma\left(\frac{s_j - p}{2}\right)^{1/t}, \quad \sigma(d) = \tanh(d) + 1"
    ),
    "1 - p + m + (mean_j (eps + weight (s_j - m)_+)^{w*})^{1/w*},  w* = omega / (omega - 1)": (
        r"1 - p + m + \left(\frac{1}{N} \sum_j (\epsilon + w (s_j - m)_+)^{\omega^*}\right)^{1/\omega^*}, \quad "
        r"\omega^* = \frac{\omega}{\omega - 1}"
    ),
    "-sum_j w_j log(E(s_j) / sum_k E(s_k)),  w = softmax(g / tau) or (1 + g) / 2": (
        r"-\sum_j w_j \log \frac{E(s_j)}{\sum_k E(s_k)}, \quad "
        r"w_j \propto e^{g_j / \tau} \text{ or } \frac{1 + g_j}{2}, \quad \sum_j w_j = 1"
    ),
    "M1^2 + max(0, M2 - 1/d),  M_k = mean over pairs of s^k": (
        r"M_1^2 + \max\left\{0, M_2 - \frac{1}{d}\right\}, \quad M_k = \overline{s^k}"
    ),
    "log(1 + e^{-(p / t + b)}) + sum_j log(1 + e^{s_j / t + b})": (
        r"\log\left(1 + e^{-(p / t + b)}\right) + \sum_j \log\left(1 + e^{s_j / t + b}\right)"
    ),
    "sum_{j != i} max(0, (D_ij - low)(high - D_ij)),  D = (1 - cos) / 2": (
        r"\sum_{j \ne i} \max\left(0, (D_{ij} - \mathrm{low})(\mathrm{high} - D_{ij})\right), \quad "
        r"D_{ij} = \frac{1 - \cos(z_i, z_j)}{2}"
    ),
    "L(s+, negatives),  s+ = min_{j != k} cos(z_j, z_k)": (
        r"L(s^+, \text{negatives}), \quad s^+ = \min_{j \ne k} \cos(z_j, z_k)"
    ),
    "L(s, negatives),  s = mean_{j != k} cos(z_j, z_k)": (
        r"L(\overline{s}, \text{negatives}), \quad \overline{s} = \mathrm{mean}_{j \ne k} \cos(z_j, z_k)"
    ),
    "-log R / (R + N prior P-),  R = P - (1 - prior) P-,  P = (sum E(u) + E(v) + e^{1/t}) / (N + 2)": (
        r"-\log \frac{R}{R + N \pi P^-}, \quad R = P - (1 - \pi) P^-, \quad "
        r"P = \frac{\sum E(u) + E(v) + e^{1/t}}{N + 2}"
    ),
}
SYMBOLS = (
    "`p` is the similarity of an anchor and its positive, `s_j` those of its `N` negatives (cosines), `v` those of "
    "further positives, and `E(s) = exp(s / t)`."
)

SETUP = "import torch\n\nimport counterpoint as cp\n\ntorch.manual_seed(0)\n"
ATTACKED = (
    "encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 32))\n"
    "x1, x2 = torch.rand(2, 16, 3, 8, 8)\n"
    "loss_fn = {loss}\n"
    "further = cp.views.perturbed(encoder, x1, x2, loss_fn, epsilon=8 / 255, mixed=4)\n"
    "loss = loss_fn(encoder(x1), encoder(x2), **further)\n"
)
VIEWS = "z = torch.randn({views}, 64, 32)  # views, samples, width\nloss_fn = {loss}\nloss = loss_fn(*z)\n"


def example(kind: type[cp.Objective]) -> str:
    """Return code that calls an objective with what it needs."""
    own = f"cp.{kind.__name__}"
    if issubclass(kind, cp.Wrapper):
        loss = f"{own}(cp.InfoNCE(temperature=0.5))"
    elif kind.pairing == "single":
        loss = f"cp.InfoNCE(temperature=0.5) + 0.1 * {own}()"
    elif kind is cp.Robust:
        loss = f"cp.InfoNCE(temperature=0.5) + {own}(temperature=0.5)"
    else:
        main = "radius" if kind is cp.CLDRO else "temperature"
        loss = f"{own}({f'{main}=0.5' if main in kind.hyper else ''})"
    if kind().needs == {"indexed"}:
        body = VIEWS.format(loss=loss, views=2).replace("(*z)", "(*z, index=torch.arange(64))")
    elif kind().needs:
        body = ATTACKED.format(loss=loss)
    else:
        body = VIEWS.format(loss=loss, views=4 if kind.cost == "more views" else 2)
    return f'{SETUP}\n{body}print(f"{{loss_fn}}: {{loss.item():.4f}}")'


def output(code: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(code, "an example of docs/site_pages.py", "exec"), {})
    return said.getvalue().rstrip()


def curve(objective: cp.Objective, width: int = 480, height: int = 200) -> str:
    """Draw the training weight of a negative over its similarity, in the colors of the page."""
    s, weight = cp.weight_curve(
        objective, torch.linspace(-1, 1, 121, dtype=torch.float64), negatives=torch.linspace(-1, 1, 201)
    )
    low, high = min(0.0, float(weight.min())), max(float(weight.max()), 1e-9)

    def at(x: float, y: float) -> str:
        return f"{40 + (x + 1) / 2 * (width - 60):.1f},{10 + (high - y) / (high - low) * (height - 40):.1f}"

    line = " ".join(at(x, y) for x, y in zip(s.tolist(), weight.tolist(), strict=True))
    ticks = "".join(
        f'<text x="{at(x, low).partition(",")[0]}" y="{height - 12}" text-anchor="middle">{x:g}</text>'
        for x in (-1, -0.5, 0, 0.5, 1)
    )
    ticks += "".join(
        f'<text x="34" y="{float(at(0, y).partition(",")[2]) + 4:.1f}" text-anchor="end">{y:.2g}</text>'
        for y in sorted({low, 0.0, high})
    )
    label = f"Training weight of a negative over its similarity, {objective}"
    return (
        f'<figure class="curve"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f'<path class="axis" d="M{at(-1, 0)} L{at(1, 0)}"/>'
        f'<path class="positive" d="M{at(0.8, low)} L{at(0.8, high)}"/>'
        f'<polyline points="{line}"/>{ticks}</svg><figcaption>Training weight dL/ds of a negative by its cosine s, '
        f"among 201 negatives from -1 to 1. Dashed: the positive, at 0.8. <code>{escape(str(objective))}</code>"
        "</figcaption></figure>"
    )


def linked(paper: str) -> str:
    return re.sub(r"(https?://[^\s,]+)", r"[\1](\1)", paper)


def objective_page(kind: type[cp.Objective]) -> str:
    instance = kind()
    known = facts(kind, instance)
    title, _, doc = as_markdown(known["doc"]).partition("\n\n")
    doc = doc.partition("\nArgs:\n")[0]
    docs = {key: hyper.doc for key, hyper in kind.hyper.items()}
    rows = [
        f"| `{one['name']}` | {'`' + one['short'] + '`' if one['short'] != one['name'] else ''} "
        f"| `{text(one['default'])}` | {cell(one['expected'])} | {cell(as_markdown(docs[one['name']] or ''))} |"
        for one in known["parameters"]
    ]
    code = example(kind)
    lines = [
        f"# {kind.__name__}",
        "",
        title,
        "",
        f'<div class="formula">{convert(FORMULAS[kind.formula], display="block")}</div>',
        "",
        f"In specs: `{kind.name}{'(...)' if known['wraps'] else ''}`. {SYMBOLS}",
        "",
        "| | |",
        "|---|---|",
        f"| try it if you see | {cell(known.get('use', ''))} |",
        f"| tune first | {cell(known.get('first', ''))} |",
        f"| extra cost | {cell(known.get('cost', '') or 'none')} |",
        f"| paper | {linked(kind.paper)} |",
    ]
    lines += ["", "## Example", "", "```python", code, "```", "", "```text", output(code), "```", ""]
    lines += ["## Weights", "", curve(instance.objective if kind is cp.Matryoshka else instance), ""]
    lines += ["## Parameters", "", "| name | short | default | range | |", "|---|---|---|---|---|", *rows, ""]
    if doc.strip():
        lines += ["## Details", "", doc.strip(), ""]
    lines += [f"API: [`counterpoint.{kind.__name__}`](../api/counterpoint.md#{identifier(kind.__name__)})."]
    return "\n".join(lines) + "\n"


def arrows(found: re.Match[str]) -> str:
    """A flowchart of Mermaid, whose script is another host's, as text: a line for each node, with those it leads to."""
    labels: dict[str, str] = {}
    leads: dict[str, list[str]] = {}
    for line in found[1].splitlines():
        labels |= dict(re.findall(r'(\w+)[\[{]"(.*?)"[\]}]', line))
        plain = re.sub(r'[\[{]".*?"[\]}]', "", line)
        chain = [node.strip() for node in re.split(r'-\.?->(?:\|".*?"\|)?', plain)]
        for start, end in pairwise(chain):
            leads.setdefault(start, []).append(end)

    led = {one for ends in leads.values() for one in ends}
    leads |= {node: [] for node in labels if node not in leads and node not in led}

    def label(node: str) -> str:
        return re.sub(r"<br ?/?>", ", ", labels.get(node, node.rstrip("_")))

    lines = [f"{label(node)}\n" + "".join(f"    -> {label(one)}\n" for one in ends) for node, ends in leads.items()]
    return "```text\n" + "".join(lines) + "```\n"


def cell(content: str) -> str:
    return " ".join(content.replace("|", "\\|").split())


def in_the_atlas(name: str) -> str:
    """How many cells of the atlas an objective gains and loses in, of those where it is not told the fault."""
    some = [one for one in evidence.cells(objective=name) if one["row"] != "InfoNCE" and not evidence.knows(one)]
    groups = evidence.by_effect(some)
    return f"+{len(groups['helps'])}, -{len(groups['hurts'])} of {len(some)}" if some and name != "infonce" else ""


def objectives_page() -> str:
    rows = [
        f"| [{kind.__name__}]({name}.md) | `{name}` | {cell(kind.use)} | {in_the_atlas(name)} "
        f"| {cell(kind.tune_first)} | {cell(kind.cost)} |"
        for name, kind in cp.registry.items()
    ]
    return "\n".join(
        [
            "# Objectives",
            "",
            'Each is a class, and a word in a spec: `cp.objective("arcl(hcl:beta=1) + 0.1*dp")`. '
            "[Which loss for my data](../which_loss.md) starts from what you know about your data.",
            "",
            "In [the atlas](../atlas.md): the cells, with and without a fault, where it gains (+) and loses (-) "
            "against tuned InfoNCE.",
            "",
            "| objective | in specs | try it if you see | in the atlas | tune first | extra cost |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "Losses that contrast nothing, or that regress scores, are elsewhere: Barlow Twins and VICReg in "
            "[lightly](https://docs.lightly.ai/self-supervised-learning/lightly.loss.html), CoSENT, AnglE and "
            "margin-MSE in [sentence-transformers](https://sbert.net/docs/package_reference/sentence_transformer/losses.html).",
            "",
        ]
    )


def host_page(name: str) -> str:
    """The recipe of a host, if it has one, and what ``counterpoint inject NAME --explain`` prints."""
    recipe = RECIPES / name / "README.md"
    page = recipe.read_text(encoding="utf-8") if recipe.exists() else ""
    if name not in registry.names():
        return page
    host = registry.load(name)
    page = page or f"# {name}\n\nFor {host.title}.\n"
    return (
        f"{page.rstrip()}\n\n## Where its loss is\n\nWhat `counterpoint inject {name} --explain` prints:\n\n"
        f"```text\n{explain(host)}\n```\n"
    )


def identifier(name: str) -> str:
    """Where a public name of ``counterpoint`` is defined."""
    return f"{getattr(cp, name).__module__}.{name}"


def block(name: str, level: int = 2, **options: object) -> str:
    lines = [f"::: {name}", "    options:", f"      heading_level: {level}"]
    return "\n".join([*lines, *(f"      {key}: {value}" for key, value in options.items())]) + "\n"


def defined(package: Path) -> dict[str, str]:
    """Module of each name that a package's files define at their top level."""
    places: dict[str, str] = {}
    for file in sorted(package.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [getattr(target, "id", None) for target in targets] + [getattr(node, "name", None)]
            places.update({name: file.stem for name in names if name})
    for node in ast.walk(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:  # where several modules define a name
            places |= {one.asname or one.name: str(node.module) for one in node.names}
    return places


def public(package: Path) -> list[str]:
    """``__all__`` of a package, read without importing it."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def anchor(heading: str) -> str:
    """Return the anchor that Markdown gives to a heading."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def parted(page: str, content: str) -> dict[str, str]:
    """Return a document as its page, and the sections that are pages of their own."""
    apart = APART.get(page, {})
    start, *sections = re.split(r"^(?=## )", content, flags=re.M)
    folder, pages, kept = page.rpartition("/")[0], {}, [start]
    for section in sections:
        heading, _, body = section.removeprefix("## ").partition("\n")
        if heading in apart:
            pages[f"{folder}/{apart[heading]}"] = f"# {heading}\n{body}"
        else:
            kept.append(section)
    if pages:
        kept.append("## More\n\n" + "".join(f"- [{heading}]({name})\n" for heading, name in apart.items()))
    pages[page] = "".join(kept)
    for heading, name in apart.items():
        pages = {one: text.replace(f"](#{anchor(heading)})", f"]({name})") for one, text in pages.items()}
    return pages


def api_pages() -> Iterator[tuple[str, str]]:
    names = [name for name in cp.__all__ if name not in ("__version__", "registry", "views")]
    objectives = [kind.__name__ for kind in cp.registry.values()]
    first = [*CALLED_FIRST, *objectives, *CALLED_NEXT]
    names = [*first, *(name for name in names if name not in first)]
    yield (
        "counterpoint",
        "# counterpoint\n\nThe public names. Each is imported on first use. Examples need "
        "`import torch, counterpoint as cp`.\n\n"
        + "\n".join(block(identifier(name)) for name in names)
        + "\n"
        + block("counterpoint.views", members="[attack, mix, perturbed]"),
    )
    yield (
        "pairings",
        "# Pairings\n\n`pairing=` says who is compared with whom. Where `counterpoint inject auto` prints `--as "
        "pairing=views,anchors=first`, the anchors are the first view alone, and the negatives are of both, as in one "
        'direction of GRACE\'s loss. In Python that is `pairing="joint", directions=("query_to_doc", "query_to_query")`'
        ".\n\n" + "\n".join(block(f"counterpoint.batch.{name}", members="false") for name in ("pairings", "joint")),
    )
    plugins = [path.stem for path in sorted((ROOT / "plugins").glob("*.py"))]
    by_hand = []
    for name in plugins:
        members = [one for one in defined_in(ROOT / "plugins" / f"{name}.py") if one in BY_HAND]
        if members:
            by_hand.append(block(f"counterpoint.plugins.{name}", members=f"[{', '.join(members)}]"))
    yield (
        "plugins",
        "# counterpoint.plugins\n\nOne module per host: `patch(...)` changes code in place, `ContrastiveLoss(...)` is "
        "an object with the host's interface.\n\n" + "\n".join(by_hand),
    )
    for name in [*DOMAINS, "advise", "compare", "store", "report"]:
        package = ROOT / "integrations" / name
        places = defined(package)
        names = [f"{places[one]}.{one}" for one in public(package)] + PUBLIC.get(name, [])
        parts = [f"counterpoint.integrations.{name}.{one}" for one in names]
        intro = block(f"counterpoint.integrations.{name}", 1, members="false", show_root_full_path="true")
        full = str(not public(package)).lower()  # where several modules have an `evaluate`, or names are not exported
        yield name, intro + "\n" + "\n".join(block(part, show_root_full_path=full) for part in parts)


PUBLIC = {  # beside `__all__`, which some packages do not have
    "advise": ["data.from_arrays", "data.Pairs", "settings.Settings", "measure.measure", "advice.advise"],
    "compare": [
        "settings.Settings",
        "metrics.Metric",
        "metrics.read",
        "metrics.Written",
        "comparison.find_loss",
        "comparison.tuned",
    ],
    "report": ["statistics.compare", "statistics.Verdict"],
    "sentence": [
        "training.train",
        "training.restore",
        "presets.preset",
        "data.load",
        "model.WordDropout",
        "encode.load",
        "sts.load",
        "sts.evaluate",
        "transfer.load",
        "transfer.evaluate",
        "retrieval.evaluate",
    ],
}
BY_HAND = ("ContrastiveLoss", "CachedContrastiveLoss", "patch")


def defined_in(file: Path) -> list[str]:
    return [getattr(node, "name", "") for node in ast.parse(file.read_text(encoding="utf-8")).body]


def sources() -> dict[Path, str]:
    """Each document of the repository that is a page, and the path of that page."""
    folder = ROOT / "docs"
    found = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    found |= {ROOT / name: page for name, page in ELSEWHERE.items()}
    return found | {path: f"hosts/{path.parent.name}.md" for path in RECIPES.glob("*/README.md")}


def relinked(content: str, source: Path, page: str, pages: dict[Path, str]) -> str:
    """Links to documents become links to their pages; links to other files of the repository become their text."""

    def link(found: re.Match[str]) -> str:
        picture, label, target, heading = found.groups()
        path = (source.parent / target).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{source.relative_to(ROOT)}: no {target}")
        if path in pages:
            to = pages[path]
            moved = {f"#{anchor(one)}": name for one, name in APART.get(to, {}).items()}
            if heading in moved:
                to, heading = f"{to.rpartition('/')[0]}/{moved[heading]}", ""
            return f"[{label}]({os.path.relpath(to, Path(page).parent)}{heading or ''})"
        if picture and path.is_relative_to(ROOT / "docs"):
            place = os.path.relpath(path.relative_to(ROOT / "docs"), Path(page).parent)
            return f"[![{label}]({place})]({place})"  # a click shows it in full size
        return label

    content = re.sub(r"```mermaid\n(.*?)```\n", arrows, content, flags=re.S)
    generated = ("objectives/", "api/", "hosts/", "notebooks/")  # pages that no document of the repository is
    pattern = r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)(?!(?:\.\./)*(?:%s))([^)#\s]+)(#[^)\s]+)?\)"
    return re.sub(pattern % "|".join(generated), link, content)


def first_sentence(page: str) -> str:
    """Return the first sentence of a page's text, without its links."""
    left_out = r"<!--.*?-->|```.*?```|^(?:#|\||<|:::| {4}|\[Download this).*?$"
    text = re.sub(left_out, "", page, flags=re.S | re.M)
    paragraph = next(
        (" ".join(part.split()) for part in text.split("\n\n") if re.match(r"(?!\[!)[\w`*\[]", part.strip())), ""
    )
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).replace("**", "")
    return re.split(r"(?<=[a-z)`0-9][.?!])\s", plain, maxsplit=1)[0].rstrip(":")


def documented(found: re.Match[str]) -> str:
    """Return the signature and docstring of the name for which a page of the API stands."""
    thing = pydoc.locate(found[1])
    try:
        signature = str(inspect.signature(thing)) if callable(thing) else ""
    except ValueError:  # an exception without an __init__
        signature = ""
    return f"### {found[1]}{signature}\n\n{inspect.getdoc(thing) or ''}\n\n"


def for_assistants(written: dict[str, str], navigation: list[Any]) -> dict[str, str]:
    """Return ``llms.txt``, the list of the pages, and ``llms-full.txt``, the text of all; see https://llmstxt.org."""
    overview, _, start = written["index.md"].partition("\n")
    short = [f"{overview}\n\n> {first_sentence(start)}\n\nAll pages in one file: [llms-full.txt](llms-full.txt)\n"]
    full = []
    for entry in navigation:
        ((section, pages),) = entry.items()
        short.append(f"## {section}\n")
        for page in [pages] if isinstance(pages, str) else pages:
            title = re.search(r"^(?:#|:::) (.*)$", written[page], re.M)
            link = f"[{title[1] if title else page}]({page.removesuffix('.md')}.html)"
            short.append(f"- {link}: {first_sentence(written[page])}".rstrip(" :"))
            text = re.sub(r"^::: (\S+)\n(?: .*\n?)*", documented, written[page].strip() + "\n", flags=re.M)
            full.append(f"<!-- {page} -->\n{text}")
        short.append("")
    return {"llms.txt": "\n".join(short), "llms-full.txt": "\n".join(full)}


def main(folder: Path = PAGES, notebooks: dict[str, Any] | None = None) -> None:
    """Write the pages; ``notebooks`` are those of :mod:`notebook_pages`, by default executed, which takes a minute."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    written = {page: relinked(path.read_text(encoding="utf-8"), path, page, pages) for path, page in pages.items()}
    for name in [*registry.names(), *(path.parent.name for path in RECIPES.glob("*/README.md"))]:
        page = f"hosts/{name}.md"
        written[page] = relinked(host_page(name), RECIPES / name / "README.md", page, pages)
    for page in APART:
        written |= parted(page, written[page])
    written["objectives/index.md"] = objectives_page()
    written |= {f"objectives/{name}.md": objective_page(kind) for name, kind in cp.registry.items()}
    written |= {f"api/{name}.md": page for name, page in api_pages()}
    for page, content in written.items():
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    executed = notebook_pages.execute(notebook_pages.paths()) if notebooks is None else notebooks
    (folder / "notebooks").mkdir()
    for name, data in notebook_pages.files(executed).items():
        (folder / "notebooks" / name).write_bytes(data)
        if name.endswith(".md"):
            written[f"notebooks/{name}"] = data.decode()
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    for name, content in for_assistants(written, navigation).items():
        (folder / name).write_text(content, encoding="utf-8")
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in (".png", ".css", ".svg", ".json"):
            target = folder / path.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


if __name__ == "__main__":
    main()
