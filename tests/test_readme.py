"""The README: its Python blocks run in order, its tables agree with the code, and it is short."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest
from documents import too_long

import counterpoint
from counterpoint import objective, registry, views
from counterpoint.batch.options import BatchOptions

README = Path(__file__).resolve().parent.parent / "README.md"


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for i, block in enumerate(blocks):
        exec(compile(block, f"README.md, Python block {i + 1}", "exec"), names)


TABLE = re.search(r"(?:^\|.*\n)+", README.read_text().partition("## Which objective for which problem")[2], re.M)[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_of_objectives_agrees_with_their_classes(row):
    _, suggested, _, cost, tune_first = row
    specs = [re.sub(r"\(\.\.\.\)|\.\.\. \+ [\d.]+\*", "", code) for code in re.findall(r"`([^`]+)`", suggested)]
    specs = [spec for spec in specs if not spec.endswith("=")]  # arguments of the call, such as ids=
    kinds = [registry[re.match(r"\w+", spec)[0]] for spec in specs]
    for spec, kind in zip(specs, kinds, strict=True):
        if ":" in spec:
            objective(spec)
        else:
            assert kind.cost in cost
    for name in re.findall(r"`(\w+)`", tune_first):
        assert any(re.search(rf"\b{name}\b", kind.tune_first) for kind in kinds), name


# objectives that only the page of objectives and docs/which_loss.md name; of these the atlas has measured two
ELSEWHERE = {"rince", "psl"} | {"arctanh", "gor", "soft", "sogclr", "isogclr", "matryoshka"}


def test_the_table_names_the_objectives_of_every_paper():
    named = set(re.findall(r"\w+", " ".join(row[1] for row in ROWS))) & set(registry)
    paper = {name: (re.findall(r"https?://[^\s,]+", kind.paper) or [kind.paper])[0] for name, kind in registry.items()}
    others = {"alphacl", *ELSEWHERE}  # the first is a baseline of the ADNCE paper
    assert {*paper.values()} - {paper[name] for name in named} == {paper[name] for name in others}


CODE = [
    code
    for table in re.findall(r"(?:^\|.*\n)+", README.read_text(), re.M)
    for line in table.splitlines()[2:]
    for code in re.findall(r"`([^`]+)`", line)
]
CALLS = [code for code in CODE if code.startswith("counterpoint.")]


def test_the_tables_name_calls_and_known_words():
    """Every piece of code in a table is a call that the next test tries, or a name that the library knows."""
    parameters = {
        short for kind in registry.values() for short in (*kind.hyper, *(h.short for h in kind.hyper.values()))
    }
    words = {*registry, *parameters, *BatchOptions.__annotations__, *signature(views.perturbed).parameters}
    assert len(CALLS) >= 5
    for code in set(CODE) - set(CALLS):
        assert set(re.findall(r"[a-z]\w+", code)) <= words, code


@pytest.mark.parametrize("code", CALLS)
def test_the_calls_in_the_tables_can_be_typed_after_import_counterpoint(code):
    """The name resolves, the arguments fit, and the spec can be read."""
    name, arguments, spec = *code.partition("(")[::2], re.search(r'"(.*?)"', code)[1]
    assert objective(spec).terms()
    try:
        called = eval(name, {"counterpoint": counterpoint})
    except ImportError as error:
        pytest.skip(str(error))
    bind = signature(called).bind
    eval(f"bind({arguments}", {"bind": bind, "model": object(), "agent": object()})


def test_it_has_two_screens_of_short_sentences():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    assert too_long(text) == []
