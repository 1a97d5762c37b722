"""Metrics: how they are named, where they are looked up, and that a number of another run is never taken."""

from __future__ import annotations

import argparse
import json
import os

import pytest
import torch.utils.tensorboard

from counterpoint.integrations.compare.metrics import SCORES, Metric, Written, read, told_apart
from counterpoint.integrations.compare.running import copy_folder

HOUR = 3600 * 10**9
OURS = "counterpoint: logits: the loss was reached 3 times\n"  # at the end of a script's output


@pytest.fixture
def written(tmp_path):
    """What a run has left: a log and a file in its folder, and one in the folder where it ran."""
    out, here = tmp_path / "run" / "out", tmp_path / "here"
    out.mkdir(parents=True)
    here.mkdir()
    (log := tmp_path / "run" / "log.txt").write_text("loss: 3\nacc = 0.25\nloss: 2.5e-1\nacc = 0.5 end\n" + OURS)
    (out / "results.json").write_text('{"test": {"acc": 0.5, "a.b": 3}, "dev.acc": "0.25", "list": [1, 2]}')
    (out / "lines.jsonl").write_text('{"acc": 1}\n{"acc": 2}\n')
    (out / "log.csv").write_text("step,acc\n1,0.1\n2,0.2\n3,\n")
    (here / "shared.json").write_text('{"acc": 7}')
    now = (here / "shared.json").stat().st_mtime_ns
    return Written(out, here, log, began=now - HOUR, ended=now + HOUR, shared=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("json:results.json:test.acc", {"acc": 0.5}),
        ("json:results.json:dev.acc", {"acc": 0.25}),
        ("second=json:results.json:list.-1", {"second": 2}),
        ("json:*.jsonl:acc", {"acc": 2}),
        ("csv:log.csv:acc", {"acc": 0.2}),
        (r"output:loss: ([\d.e-]+)", {"loss": 0.25}),
        ("output:loss:? (?P<loss>.+)", {"loss": 0.25}),
        (r"output:acc = (?P<accuracy>[\d.]+)", {"accuracy": 0.5}),
        (r"text:results.json:a\.b\W+(\d)", {"a b": 3}),
        ("json:shared.json:acc", {"acc": 7}),
    ],
)
def test_numbers_are_read(written, text, expected):
    assert read([Metric.parse(text)], written) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("json:results.json:tset.acc", "no 'tset'. Did you mean 'test'?"),
        ("json:results.json:list.2", "no '2' in a list of 2"),
        ("json:results.json:test", "'test' holds acc, a.b: add one of them"),
        ("json:results.json:list", "float.* not 'list'"),
        ("output:acc = (.+)", r"could not convert .*'0.5 end': let the group match the number alone, "),
        ("json:nowhere.json:acc", "no nowhere.json in"),
        ("json:*.json*:acc", "may mean"),
        ("csv:log.csv:ac", "no column 'ac'. Did you mean 'acc'?"),
        ("output:lsos: (.+)", r"matches. Did you mean 'output:loss: \(\[-\+\.\\de\]\+\)'\? It ends in"),
        ("output:accuracy: (.+)", r"nothing in .*log.txt, which is kept.*\. It ends in acc.* \| acc = 0.5 end$"),
    ],
)
def test_a_number_that_is_missing_is_an_error_that_names_the_nearest(written, text, error):
    with pytest.raises(ValueError, match=f"--metric .*{error}"):
        read([Metric.parse(text)], written)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("jsn:a:b", "expected KIND.*Did you mean 'json'?"),
        ("results.json", "expected KIND"),
        ("json:results.json", "expected json:FILE:KEY"),
        ("output:acc .+", r"one group .* got 0"),
        ("output:acc (.+", "not a regular expression"),
        ("json:/tmp/results.json:acc", "relative to the folder"),
        ("csv:../log.csv:acc", "relative to the folder"),
        ("python:nowhere.py:score", "no file nowhere.py"),
    ],
)
def test_what_cannot_be_read_is_told_at_once(text, error):
    with pytest.raises(argparse.ArgumentTypeError, match=error):
        Metric.parse(text)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("ndcg@10: (.+)", "ndcg@10"), (r"epoch \d+ acc (.+)", "epoch acc"), (r"val/top-1=\s*([\d.]+)", "val/top-1")],
)
def test_a_number_is_named_after_the_words_before_it(pattern, name):
    assert Metric.parse(f"output:{pattern}").name == name


def test_the_last_step_of_tensorboard_counts(written):
    for name, value in (("old", 1.0), ("new", 2.0)):
        with torch.utils.tensorboard.SummaryWriter(str(written.folder / "tb" / name)) as writer:
            writer.add_scalar("eval/acc", value, 10 if name == "new" else 5)
    assert read([Metric.parse("tensorboard:tb:eval/acc")], written) == {"eval/acc": 2}
    with pytest.raises(ValueError, match=r"no tag 'acc'. Did you mean 'eval/acc'\?"):
        read([Metric.parse("tensorboard:tb:acc")], written)


def test_functions_measure_the_folder_and_the_script(written, tmp_path):
    (tmp_path / "helper.py").write_text("FACTOR = 2\n")
    file = tmp_path / "score.py"
    file.write_text("import helper\ndef score(out):\n    return {'files': helper.FACTOR * len(list(out.iterdir()))}\n")
    (written.out.parent / SCORES).write_text(json.dumps({f"script:{file}:knn": 0.75}))
    found = [Metric.parse(f"python:{file}:score"), Metric.parse(f"script:{file}:knn")]
    assert read(found, written) == {"files": 6, "knn": 0.75}
    with pytest.raises(ValueError, match=r"has no function 'scor'. Did you mean 'score'\?"):
        read([Metric.parse(f"python:{file}:scor")], written)
    with pytest.raises(ValueError, match="the script ran without it; --fresh"):
        read([Metric.parse(f"script:{file}:linear")], written)


@pytest.mark.parametrize(("hours", "when"), [(-2, "before this run began"), (2, "after this run had ended")])
def test_a_file_of_another_run_is_refused(written, hours, when):
    time = (written.began + written.ended) // 2 + hours * HOUR
    os.utime(written.folder / "shared.json", ns=(time, time))
    with pytest.raises(ValueError, match=f"shared.json was written {when}"):
        written.text("shared.json")
    assert not (written.out / "shared.json").exists()


def test_a_file_is_kept_with_the_run(written):
    """So that what the next run writes in the same place changes nothing."""
    assert read([Metric.parse("json:shared.json:acc")], written) == {"acc": 7}
    assert read([Metric.parse("json:{out}/shared.json:acc")], written) == {"acc": 7}
    (written.folder / "shared.json").write_text('{"acc": 8}')
    assert read([Metric.parse("json:shared.json:acc")], written) == {"acc": 7}


def test_a_folder_that_runs_share_is_not_read(written):
    shared = Written(written.out, written.folder, written.log, written.began, written.ended, shared=True)
    with pytest.raises(ValueError, match=r"may be of another run: let the script write it to \{out\}.*--copy"):
        shared.text("shared.json")
    assert shared.text("results.json") == (written.out / "results.json").read_text()


def test_a_copy_leaves_out_the_store_and_links_what_is_large(tmp_path):
    here = tmp_path / "here"
    for name in ("train.py", "data/big.bin", "runs/compare/x.txt", ".git/config", "src/a.py", "src/__pycache__/a.pyc"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    copy = here / "runs" / "work"
    copy_folder(here, copy, ["data"], without=here / "runs")
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    assert files == {"train.py", "src/a.py"}
    assert (copy / "data").resolve() == here / "data"
    (copy / "train.py").write_text("changed")
    assert (here / "train.py").read_text() == "train.py"


@pytest.mark.parametrize(
    ("first", "other", "names"),
    [
        ("json:r.json:dev.ndcg", "json:r.json:test.ndcg", ["dev.ndcg", "test.ndcg"]),
        ("json:dev.json:ndcg", "json:test.json:ndcg", ["dev.json:ndcg", "test.json:ndcg"]),
        ("acc=output:dev ([\\d.]+)", "acc=output:test ([\\d.]+)", ["dev ([\\d.]+)", "test ([\\d.]+)"]),
        ("json:r.json:dev", "json:r.json:test", ["dev", "test"]),
        ("json:r.json:acc", "json:r.json:acc", ["acc", "acc"]),
    ],
)
def test_the_number_that_chooses_and_the_one_that_confirms_have_two_names(first, other, names):
    """Else a table, a sentence and a picture say of both "ndcg"."""
    assert [one.name for one in told_apart(Metric.parse(first), Metric.parse(other))] == names
