"""Every command on a store of S3: a local server of moto, and processes as a user starts them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
import tiny_bert
import torch
from buckets import COMMAND, PATIENCE, command, files_of, start
from dask_cluster import dask
from documents import ROOT
from safetensors.torch import load_file

from counterpoint.integrations import store

pytest.importorskip("moto", reason="the group s3-test has moto's server")
pytest.importorskip("s3fs", reason="counterpoint-losses[s3] has s3fs")
pytestmark = pytest.mark.slow

GRAPHS = ["--data", "demo", "--probe", "knn", "--folds", "3", "--epochs", "1", "--hidden", "8"]
TRAIN = ["train", "graph", *GRAPHS, "--objective", "infonce"]
SCRIPT = ROOT / "tests" / "support" / "toy_train.py"
LINE = next(i for i, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "cross_entropy(50" in line)
COMPARE = shlex.split(
    f"compare logits --site train.py:{LINE} --scale 50 --objective host infonce:t=0.2 --seeds 2 --seed-flag --seed "
    "--metric json:results.json:test"
)


def works(*words):
    """Run a command that must succeed; returns what it printed."""
    code, out, err = command(*words)
    assert code == 0, err
    return out


def one_run(url, objective=True):
    """The URL of a run with an objective."""
    return next(run.address for run in store.find_runs(url) if bool(run.arguments["objective"]) == objective)


def same_weights(*files):
    """Compare the tensors of two files, whose headers list their metadata in any order."""
    there, here = map(load_file, files)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)


def another_machine(monkeypatch, tmp_path, name="another"):
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / name))


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    shutil.copy(SCRIPT, tmp_path / "here" / "train.py")
    monkeypatch.chdir(tmp_path / "here")


def values(table):
    rows = json.loads(table)["columns"][0]["rows"]
    return {row["row"]: row["values"] for row in rows}


def test_compare_is_killed_and_resumed_by_another_machine(bucket, here, tmp_path, monkeypatch):
    url = f"{bucket}/runs"
    process = start(COMMAND, *COMPARE, "--out", url, "--", "train.py", cache=tmp_path / "killed")
    limit = time.monotonic() + PATIENCE
    while sum(b'"done"' in content for content in files_of(url, "run.json").values()) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {name: content for name, content in files_of(url, "run.json").items() if b'"done"' in content}
    assert len(before) in (2, 3)

    another_machine(monkeypatch, tmp_path)
    out = works(*COMPARE, "--out", url, "--json", "--", "train.py")
    local = works(*COMPARE, "--out", tmp_path / "runs", "--json", "--", "train.py")
    assert values(out) == values(local)
    after = files_of(url)
    assert all(after[name] == content for name, content in before.items())  # not run again
    assert sum(name.endswith("/log.txt") for name in after) == 4
    (one, *_) = [name for name in after if name.endswith("/run.json")]
    assert values(works("compare", "--config", f"{url}/{one}", "--out", url, "--json")) == values(local)


def test_what_auto_finds_is_in_the_store(bucket, here, tmp_path, monkeypatch):
    words = ["auto" if word == "logits" else word for word in COMPARE]
    del words[words.index("--site") : words.index("--objective")]
    words[words.index("--seeds") + 1] = "1"
    works(*words, "--out", f"{bucket}/runs", "--", "train.py")
    (found,) = [name for name in files_of(f"{bucket}/runs") if re.fullmatch(r"compare/auto-\w+\.json", name)]
    another_machine(monkeypatch, tmp_path)
    code, _, err = command(*words, "--out", f"{bucket}/runs", "--", "train.py")
    assert code == 0, err
    assert "watched" not in err  # the script does not run again
    assert "2 of 2 runs are done already" in err
    assert list(files_of(f"{bucket}/runs", found)) == [found]


def test_an_image_run_is_pushed_and_evaluated(bucket, tmp_path, monkeypatch):
    pytest.importorskip("lightly")
    pytest.importorskip("huggingface_hub")
    words = ["train", "image", "--data", "digits", "--objective", "infonce:t=0.5", "--backbone", "conv4", "--batch"]
    words += ["32", "--subset", "64", "--probe", "knn", "--width", "16", "--epochs", "1"]
    works(*words, "--out", f"{bucket}/runs")
    works(*words, "--out", tmp_path / "runs")
    url, local = one_run(f"{bucket}/runs"), one_run(tmp_path / "runs")
    another_machine(monkeypatch, tmp_path)
    for place, name in ((url, "there"), (local, "here")):
        works("push", place, "me/digits", "--folder", tmp_path / name)
    same_weights(*(tmp_path / name / "model.safetensors" for name in ("there", "here")))
    card = (tmp_path / "there" / "README.md").read_text()
    assert "infonce:t=0.5" in card
    assert str(tmp_path) not in card
    evaluation = ["--probe", "knn", "--json"]
    rows = [json.loads(works("eval", "image", place, *evaluation)) for place in (url, local)]
    strip = [[{k: v for k, v in row.items() if k not in ("run", "seconds")} for row in r] for r in rows]
    assert strip[0] == strip[1]


def test_a_sentence_run_is_pushed_and_evaluated(bucket, tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("huggingface_hub")
    tiny_bert.build(tmp_path / "bert")
    (tmp_path / "data").mkdir()
    tiny_bert.write_sts(tmp_path / "data", tiny_bert.STS)
    (tmp_path / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40, seed=2)[0]) + "\n")
    words = ["train", "sentence", "--data", tmp_path / "texts.txt", "--model", tmp_path / "bert", "--pooling", "cls"]
    words += ["--batch", "8", "--steps", "3", "--dev", "none", "--max-length", "12", "--objective", "infonce:t=0.05"]
    words += ["--root", tmp_path / "data"]
    works(*words, "--out", f"{bucket}/runs")
    works(*words, "--out", tmp_path / "runs")
    url, local = one_run(f"{bucket}/runs"), one_run(tmp_path / "runs")
    another_machine(monkeypatch, tmp_path)
    for place, name in ((url, "there"), (local, "here")):
        works("push", place, "me/texts", "--folder", tmp_path / name)
    same_weights(*(tmp_path / name / "model.safetensors" for name in ("there", "here")))
    evaluation = ["--root", tmp_path / "data", "--sets", tiny_bert.STS[0], "--json"]
    reports = [json.loads(works("eval", "sts", place, *evaluation)) for place in (url, local)]
    for report in reports:
        report.pop("seconds")
        report.pop("model", None)
    assert reports[0] == reports[1]


def test_workers_of_dask_that_share_no_folder(bucket, tmp_path):
    """The workers have a file system of their own where the command has its cache."""
    cache = tmp_path / "cache"
    cache.mkdir()
    hidden = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(cache)]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and permission for mounts")
    words = [*TRAIN, "adnce", "--seeds", "2"]
    (tmp_path / "dask").mkdir()
    with dask(tmp_path / "dask", hidden) as place:
        works(*words, "--on", place, "--out", f"{bucket}/runs")
    assert not list(cache.rglob("checkpoint.pt"))  # nothing was trained where the command ran
    assert not [name for name in files_of(f"{bucket}/runs") if ".grid-" in name]
    works(*words, "--out", tmp_path / "runs")
    there, here = (
        {run.title: run.result for run in store.find_runs(at)} for at in (f"{bucket}/runs", tmp_path / "runs")
    )
    assert there == here
    assert len(there) == 8


def test_workers_that_do_not_reach_the_store(bucket, tmp_path, monkeypatch):
    """They have no keys: each run is given up after three attempts, with the reason, and none is trained."""
    keyless = ["env", "-u", "AWS_ACCESS_KEY_ID", "-u", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED=true"]
    (tmp_path / "dask").mkdir()
    with dask(tmp_path / "dask", [*keyless, f"HOME={tmp_path}"]) as place:
        code, _, err = command(*TRAIN, "--on", place, "--out", f"{bucket}/runs")
    assert code == 1, err
    (line,) = [line for line in err.splitlines() if "counterpoint train graph: " in line]
    assert line.count("Unable to locate credentials") == 3
    assert "Traceback" not in err
    assert not [run for run in store.find_runs(f"{bucket}/runs") if run.done]


def test_the_command_of_a_run_and_its_record_as_configuration(bucket, tmp_path, monkeypatch):
    url = f"{bucket}/runs"
    works(*TRAIN, "--lr", "0.02", "--out", url)
    one = one_run(url)
    another_machine(monkeypatch, tmp_path)
    shown = works("show", one)
    assert works("show", f"{one}/run.json") == shown
    line = shown.splitlines()[0]
    for number, words in enumerate((shlex.split(line)[1:], ["train", "graph", "--config", f"{one}/run.json"])):
        works(*words, "--out", f"{bucket}/again{number}")
        again = one_run(f"{bucket}/again{number}")
        runs = [store.Run.read(place) for place in (one, again)]
        assert runs[0].arguments == runs[1].arguments
        assert runs[0].result == runs[1].result
        assert runs[0].arguments["lr"] == 0.02
    (tmp_path / "one.json").write_text(json.dumps({"dataset": "demo", "epochs": 3}))
    works("train", "graph", "--config", (tmp_path / "one.json").as_uri(), *GRAPHS, "--out", "seen")


def test_events_of_tensorboard_are_in_the_store(bucket, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    works(*TRAIN, "--epochs", "3", "--track", "tensorboard", "--out", f"{bucket}/runs")
    run = store.Run.read(one_run(f"{bucket}/runs"))
    events = files_of(f"{run.address}/tensorboard")
    for name, content in events.items():
        (tmp_path / name).write_bytes(content)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    lines = run.metrics()
    for name in {name for line in lines for name in line} - {"step"}:
        expected = [(line["step"], pytest.approx(line[name])) for line in lines if name in line]
        assert [(event.step, event.value) for event in accumulator.Scalars(name)] == expected
    assert accumulator.Scalars("result/accuracy")[-1].value == pytest.approx(run.result["accuracy"])


@pytest.mark.parametrize(
    ("url", "environment", "line"),
    [
        ("s4://bucket/runs", {}, "Protocol not known: s4"),
        ("s3://", {}, "expected s3://BUCKET/FOLDER."),
        ("memory://bucket/runs", {}, "lost when this process ends; expected a folder, or s3://BUCKET/FOLDER."),
        ("s3://no-such-bucket-here/runs", {}, ("no such bucket", "does not exist")),
        ("s3://any/runs", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "Unable to locate credentials"),
        ("s3://any/runs", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
)
def test_errors_are_one_line(bucket, here, monkeypatch, tmp_path, url, environment, line):
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    config = ["train", "graph", "--config", f"{url}/run.json"]
    for words in (
        [*COMPARE, "--json", "--out", url, "--", "train.py"],
        ["tune", "graph", *GRAPHS, "--objective", "infonce", "--budget", "2", "--out", url],
        ["push", url, "me/name", "--folder", tmp_path / "pushed"],
        ["eval", "graph", url],
        ["eval", "image", url],
        ["eval", "sts", url],
        ["show", url],
        *([] if url.startswith("memory") else [config]),
    ):
        code, out, err = command(*words)
        assert code == 2, (words, out, err)
        lines = [text for text in err.splitlines() if not text.startswith(("see counterpoint", "2 objectives"))]
        assert len(lines) == 1, (words, err)
        assert any(part in lines[0] for part in ([line] if isinstance(line, str) else line)), (words, err)
    assert not (tmp_path / "encoder").exists()


def test_somebody_elses_bucket_writes_only_into_the_cache(bucket, tmp_path):
    """A model of a run with an object whose key leads to a file of the home folder."""
    import fsspec

    works(*TRAIN, "--seeds", "1", "--out", f"{bucket}/runs")
    address = one_run(f"{bucket}/runs")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.pipe_file(f"{address.removeprefix('s3://')}/model/" + "../" * 12 + str(tmp_path / "planted")[1:], b"planted")
    code, _, err = command("eval", "sts", address)
    assert code == 2
    assert "refused: a store's name must stay below its folder" in err
    assert not (tmp_path / "planted").exists()
