"""``counterpoint show``: the printed commands train what is stored, and nothing else."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch_geometric")

import counterpoint as cp
from counterpoint.integrations import store
from counterpoint.integrations.command import show
from counterpoint.integrations.command.main import main
from counterpoint.integrations.graph import training

HCL, INFONCE = str(cp.objective("hcl:t=0.3")), str(cp.objective("infonce:t=0.2"))


def stored(root, cells, command="python study.py"):
    """Finished runs, which nothing has trained."""
    runs = []
    for number, cell in enumerate(cells):
        run = store.Run(root, cell)
        with run.lock():
            run.begin()
            run._write(command=command)
            run.finish({"accuracy": 50.0 + number})
        runs.append(run)
    return runs


def test_a_grid_is_one_command(tmp_path):
    cells = [training.cell("MUTAG", spec, seed) for seed in (4, 5) for spec in (HCL, INFONCE)]
    typed = f"counterpoint train graph --data MUTAG --objective {HCL} {INFONCE} --seed 4 --seeds 2"
    runs = stored(tmp_path, [*cells, training.bag("MUTAG", 4)], f"/bin/{typed} --out x --jobs 2")
    assert show.commands(runs) == ([typed], {})
    assert show.commands(runs[:1]) == ([f"counterpoint train graph --data MUTAG --seed 4 --objective {HCL}"], {})


def test_a_run_is_shown_whole(tmp_path, capsys):
    (run,) = stored(
        tmp_path, [training.cell("demo", HCL, 2, batch=16)], "counterpoint train graph --root . --out x --batch 16"
    )
    assert main(["show", str(run.path)]) == 0
    first, empty, *lines = capsys.readouterr().out.splitlines()
    assert first == f"counterpoint train graph --root . --batch 16 --seed 2 --objective {HCL}"
    assert empty == ""
    for line in ("status     done", "result     accuracy 50", "  batch      16", "  hops       null"):
        assert line in lines
    assert any(line.startswith("versions   python 3") for line in lines)
    assert main(["show", str(run.path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["commands"] == [first]
    (row,) = content["runs"]
    assert (row["arguments"], row["result"], row["status"]) == (run.arguments, {"accuracy": 50.0}, "done")
    assert row["reason"] is None
    assert {"versions", "host", "recorded", "started", "seconds"} <= set(row)


def test_runs_of_tune_compare_and_studies(tmp_path, capsys):
    tuning = stored(
        tmp_path, [{**training.cell("demo", HCL, 9), "purpose": "tuning"}], "counterpoint tune graph --out x"
    )
    other = {"domain": "compare", "dataset": "t.py", "objective": "host", "seed": 0}
    command = "/x/counterpoint compare auto --objective host hcl --seeds 1 --json -- t.py --out y"
    compared = stored(tmp_path, [{**other, "seed": seed} for seed in (0, 1)], command)
    study = stored(tmp_path, [{**training.cell("demo", HCL, 0), "encoder": "gcn"}])
    alone = stored(tmp_path, [training.bag("MUTAG", 0)], "counterpoint train graph --seeds 2 --data MUTAG")
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert set(out.splitlines()[:3]) == {
        "counterpoint compare auto --objective host hcl --seeds 1 -- t.py --out y",
        "counterpoint tune graph",
        "counterpoint train graph --seeds 2 --data MUTAG",
    }
    assert f"no command for {study[0].path}: it was begun by python study.py" in out
    assert show.commands([*tuning, *compared, *alone])[1] == {}


def test_a_run_that_failed_says_why(tmp_path, capsys):
    run = store.Run(tmp_path, training.cell("demo", HCL, 0))
    with run.lock():
        run.begin()
        run.fail("ValueError: no", "")
    assert main(["show", str(tmp_path)]) == 0
    assert "error      ValueError: no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "counterpoint show: nowhere: no such folder."),
        (["."], "counterpoint show: no runs in .: no folder there has a run.json."),
        ([], "counterpoint show: the following arguments are required: RUN"),
        (["--jsn", "."], "counterpoint show: unknown flag --jsn. Did you mean '--json'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["show", *words])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().err.startswith(said)
