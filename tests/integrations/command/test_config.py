"""``--config``: a stored run trains again to the same numbers, and files of flags are read as if they were typed."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

import pytest

from counterpoint.integrations import store
from counterpoint.integrations.command import config
from counterpoint.integrations.command.main import main
from counterpoint.integrations.domain import domain
from counterpoint.integrations.store.cell import canonical

pytest.importorskip("torch_geometric")

from counterpoint.integrations.graph import training

COMMAND = "train graph --objective hcl:t=0.3,beta=2 infonce --seeds 6 --epochs 1 --folds 3 --hidden 8 --lr 0.003"
SMALL = {"epochs": 1, "folds": 3, "hidden": 8, "lr": 0.003}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One of the runs of that command."""
    cells = [training.cell("demo", "hcl:t=0.3,beta=2", 5, **SMALL)]
    (run,) = store.run_grid(training.train, cells, tmp_path_factory.mktemp("runs"), progress=False)
    with run.lock():
        run._write(command=f"/bin/counterpoint {COMMAND} --jobs 2 --out elsewhere")
    return run


def write(folder, content, name="run.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_run_trains_again_to_the_same_numbers(run, tmp_path, capsys):
    words = ["train", "graph", "--config", str(run.path / "run.json"), "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    again = store.Run.read(tmp_path / run.path.relative_to(run.folder.root))
    assert (again.arguments, again.metrics()) == (run.arguments, run.metrics())
    for name in ("result", "details", "data"):
        assert again.record[name] == run.record[name]
    rows = {one.name for one in store.find_runs(tmp_path)}
    assert rows == {run.name, training.BAG, training.UNTRAINED}


def cell_of(words, name):
    """The cell that ``counterpoint train`` trains with these words, for its first objective."""
    where, found = domain(name), config.parser_of(f"train {name}").parse_args(words, argparse.Namespace())
    dataset = getattr(found, where.dataset) or where.default_dataset
    dataset = dataset[0] if isinstance(dataset, list) else dataset
    settings = where.module("commands").settings(found, dataset)
    return canonical(
        where.module("training").cell(dataset, (found.objective or ["infonce"])[0], found.seed, **settings)
    )


COMMANDS = [
    ("graph", "--data PROTEINS MUTAG --objective adnce:t=0.2 --probe knn --hops 2 --pairing symmetric"),
    ("graph", "--protocol official --part tune --objective infonce"),
    ("graph", "--preset adnce --data MUTAG --objective adnce:t=0.15"),
    ("image", "--data cifar10 --objective hcl --method moco --epsilons 0.1 --restarts 3 --probe knn"),
    ("image", "--data cifar10 --method moco"),
    ("sentence", "--data {texts} --objective hcl --dev none --pooling cls --negative-weight -1.5"),
    ("sentence", "--data {texts} --test STS12 STSB-test --static --objective hcl"),
    ("control", "--task cheetah-run walker-walk --objective 'infonce:t=1 + 0.1*dp' --steps 5000 --repeat 2"),
    ("control", "--scores cosine --lr 3e-4"),
]


@pytest.mark.parametrize(
    ("name", "line"), [pytest.param(*one, marks=[pytest.mark.slow] * (one[0] != "graph")) for one in COMMANDS]
)
def test_the_record_of_a_run_gives_its_cell(name, line, tmp_path):
    pytest.importorskip(
        {"image": "lightly", "sentence": "sentence_transformers", "control": "dm_control"}.get(name, "torch")
    )
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    words = shlex.split(line.format(texts=tmp_path / "texts.txt"))
    of_run = [word for word in words if word not in ("PROTEINS", "cheetah-run")]  # the last of several
    cell = cell_of([*of_run, "--seed", "3"], name)
    record = {"arguments": cell, "command": shlex.join(["counterpoint", "train", name, *words, "--seeds", "5"])}
    expanded = config.expand(f"train {name}", ["train", name, "--config", write(tmp_path, record)])
    assert cell_of(expanded[2:], name) == cell
    assert "--seeds" not in expanded


def test_typed_flags_override_the_file(run):
    path = str(run.path / "run.json")
    words = config.expand(
        "train graph", ["train", "graph", "--epochs", "7", f"--config={path}", "--objective", "mixnca"]
    )
    found = config.parser_of("train graph").parse_args(words[2:])
    assert (found.epochs, found.hidden, found.seed) == (7, 8, 5)
    assert found.objective == [store.cell.canonical({**run.arguments, "objective": "mixnca"})["objective"]]
    assert words.count("--epochs") == words.count("--objective") == 1


YAML = """
objective: [infonce:t=0.2, "adnce:t=0.2,mu=0.7"]
data: MUTAG
seeds: 3
epochs: 2
lr: 1e-3
fresh: true
on: local
track: [tensorboard, mlflow]
preset: null
"""


def test_a_file_of_flags(tmp_path):
    pytest.importorskip("yaml")
    path = write(tmp_path, YAML, "run.yaml")
    words = config.expand("train graph", ["train", "graph", "--config", path, "--resume", "--track", "wandb"])
    found = config.parser_of("train graph").parse_args(words[2:])
    assert [spec.partition(":")[0] for spec in found.objective] == ["infonce", "adnce"]
    assert (found.data, found.seeds, found.epochs, found.lr) == (["MUTAG"], 3, 2, 0.001)
    assert (found.resume, found.on, found.track) == (True, "local", ["wandb"])
    same = {"objective": "hcl", "batch": 16, "track": ["tensorboard", "mlflow"], "fresh": True}
    words = config.expand("tune graph", ["tune", "graph", "--config", write(tmp_path, same)])
    found = config.parser_of("tune graph").parse_args(words[2:])
    assert (found.batch, found.resume, found.track) == (16, False, ["tensorboard", "mlflow"])


def test_tune_and_compare_take_what_a_run_recorded(run, tmp_path):
    search = (
        "/bin/counterpoint tune graph --objective adnce hcl --budget 4 --epochs 1 --out old --jobs 2 --grid t=0.1,0.2"
    )
    path = write(tmp_path, {**run.record, "arguments": {**run.arguments, "purpose": "tuning"}, "command": search})
    words = config.expand("tune graph", ["tune", "graph", "--config", path, "--epochs", "3"])
    assert words[2:] == ["--objective", "adnce", "hcl", "--budget", "4", "--grid", "t=0.1,0.2", "--epochs", "3"]
    again = config.expand("tune graph", ["tune", "graph", "--config", str(run.path / "run.json")])
    assert again[-2:] == ["--objective", run.arguments["objective"]]
    assert not {"--seed", "--seeds", "--jobs", "--out"} & {*again}
    compare = "/bin/counterpoint compare auto --objective host hcl --seed-flag --seed --out x --metric json:r:a"
    compare += " -- t.py --out o"
    record = {**run.record, "arguments": {**run.arguments, "domain": "compare"}, "command": compare}
    words = config.expand("compare", ["compare", "--config", write(tmp_path, record), "--seeds", "2"])
    assert words[:4] == ["compare", "auto", "--objective", "host"]
    assert words[5:] == ["--seed-flag=--seed", "--metric", "json:r:a", "--seeds", "2", "--", "t.py", "--out", "o"]
    plain = {"host": "auto", "objective": ["host", "hcl"], "set_seed": True, "script": ["t.py", "--config", "x"]}
    words = config.expand("compare", ["compare", "--config", write(tmp_path, plain)])
    assert words == ["compare", "auto", "--objective", "host", "hcl", "--set-seed", "--", "t.py", "--config", "x"]
    assert config.expand("compare", words) == words  # a flag of the script's own


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"epoch": 3}, "run.json: unknown key 'epoch'. Did you mean 'epochs'?"),
        ({"epochs": "many"}, "--epochs: expected a whole number of at least 0, got 'many'"),
        ({"epochs": True}, "--epochs: expected one argument"),
        ({"fresh": "yes"}, "--fresh: ignored explicit argument 'yes'"),
        ({"augment": "dnoses"}, "--augment: unknown augment 'dnoses'. Did you mean 'dnodes'?"),
        ({"config": "other.json"}, "unknown key 'config'."),
        ([1], "expected flags with their values, or a run.json, got [1]."),
        ("{", "run.json: cannot be read: "),
        ({"arguments": {"domain": "graph"}}, "its arguments lack dataset, objective, seed."),
        ("{run} script", "it was begun by study.py, not by counterpoint train graph."),
        ("{run} image", "not by counterpoint train graph; expected counterpoint train image --config"),
        ("{run} tune", "not by counterpoint train graph; expected counterpoint tune graph --config"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, content, said, tmp_path, capsys):
    commands = {"script": "study.py", "image": "counterpoint train image", "tune": "counterpoint tune graph"}
    if str(content).startswith("{run}"):
        which = content.split()[1]
        content = {**run.record, "command": commands.get(which, run.record["command"])}
        content["arguments"] = run.arguments
    said_on_stderr(["train", "graph", "--config", write(tmp_path, content)], said, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.json"], "--config nowhere.json: cannot be read ("),
        (["x.toml"], "--config x.toml: expected a file whose name ends with .json, .yaml or .yml."),
        ([], "--config: expected one argument"),
        (["{}.json", "--config", "{}.json"], "--config: expected one file, got {}.json {}.json"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {}, "{}.json")
    said_on_stderr(["train", "graph", "--config", *words], said, capsys)


def test_yaml_is_read_safely_and_only_if_it_is_there(tmp_path, monkeypatch, capsys):
    pytest.importorskip("yaml")
    path = write(tmp_path, "epochs: !!python/object/apply:os.getcwd []", "a.yaml")
    said_on_stderr(
        ["train", "graph", "--config", path], "a.yaml: cannot be read: could not determine a constructor", capsys
    )
    monkeypatch.setitem(sys.modules, "yaml", None)
    said_on_stderr(["train", "graph", "--config", path], "needs PyYAML: pip install pyyaml", capsys)


def said_on_stderr(words, said, capsys):
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    lines = [line for line in err.splitlines() if not line.startswith("see counterpoint")]
    assert len(lines) == 1
    assert lines[0].startswith("counterpoint train graph: ")
