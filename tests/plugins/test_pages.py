"""The commands of pages in examples/existing_repos that need no plugin, on unmodified clones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import tiny_bert
from hosts import real_clone
from injected import differences
from processes import PATIENCE

from counterpoint.plugins.sites import functions

PAGES = Path(__file__).parents[2] / "examples" / "existing_repos"
COMMON = {
    "--max_steps": "5",
    "--per_device_train_batch_size": "4",
    "--train_group_size": "3",
    "--query_max_len": "12",
    "--passage_max_len": "12",
    "--use_cpu": "true",
    "--save_strategy": "no",
    "--report_to": "none",
}


def flagembedding(row: list[str]) -> dict:
    return {"query": row[0], "pos": [row[1]], "neg": row[2:]}


def tevatron(row: list[str]) -> dict:
    passages = [{"docid": text, "title": "", "text": text} for text in row[1:]]
    return {"query_id": "q", "query": row[0], "positive_passages": passages[:1], "negative_passages": passages[1:]}


FROM = PAGES.parents[1] / "docs" / "from"
CLONES = ("FlagEmbedding", "tevatron/src/tevatron", "gritlm", "llm2vec/llm2vec", "ms-swift", "RecBole-GNN", "SELFRec")
PLACES = [
    place
    for name in ("retrieval", "recommenders")
    for place in re.findall(r"(?:--site |--replace \"|--product )([\w/.]+:[\w.,]+)", (FROM / f"{name}.md").read_text())
]


@pytest.mark.parametrize("place", sorted({*PLACES}))
def test_the_places_that_pages_name_are_in_the_clones(place):
    file, _, name = place.rpartition(":")
    paths = [path for clone in CLONES for path in real_clone(clone).rglob(file)]
    if name[0].isdigit():  # lines of products
        ((*lines,),) = (path.read_text().splitlines() for path in paths)
        assert all(re.search(r"matmul|\*", lines[int(line) - 1]) for line in name.split(","))
    else:
        assert [path for path in paths if name in functions(str(path))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "clone", "packages", "data", "more"),
    [
        (
            "flagembedding",
            "FlagEmbedding",
            ("peft", "ir_datasets", "transformers.modeling_attn_mask_utils"),  # which transformers 5.24 removed
            flagembedding,
            ["--sentence_pooling_method", "mean"],
        ),
        ("tevatron", "tevatron/src", ("peft",), tevatron, ["--pooling", "mean"]),
    ],
)
def test_the_command_of_a_page(page, clone, packages, data, more, bert, tmp_path):
    folder = real_clone(clone)
    for package in packages:
        pytest.importorskip(package)
    (command,) = re.findall(r"^counterpoint (inject (?:.*\\\n)*.*)$", (PAGES / page / "README.md").read_text(), re.M)
    rows = zip(*tiny_bert.texts(5, 32), strict=True)
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(data([*row])) for row in rows))
    words = [word.strip('"') for word in command.replace("\\\n", " ").split()]
    places = {"data.jsonl": str(tmp_path / "data.jsonl"), "out": str(tmp_path / "out")}
    words = [places.get(word, word) for word in words]
    words[words.index("--model_name_or_path") + 1] = str(bert)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "counterpoint.plugins.inject",
            *words[1:],
            *chain(*COMMON.items()),
            *more,
        ],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "reached 5 times" in done.stderr, done.stderr
    assert max(differences(done.stderr)) < 1e-5
    assert "cosines times 50, constant, measured in 3 calls" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("AttributeError")]
    assert done.returncode == 0 or (page == "flagembedding" and "no attribute 'tokenizer'" in lines[-1])
