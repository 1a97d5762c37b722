"""``counterpoint compare`` as users type it: on a toy script, killed and continued, and on unmodified clones."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from documents import ROOT
from hosts import real_clone
from processes import PATIENCE, session

from counterpoint.integrations import report, store
from counterpoint.integrations.command.main import main

TOY = ROOT / "tests" / "support" / "toy_train.py"
LINE = next(i for i, line in enumerate(TOY.read_text().splitlines(), 1) if "cross_entropy(50" in line)
TOLD = f"logits --site train.py:{LINE} --scale 50"
READ = "--metric json:results.json:test"
COMMAND = [str(Path(sys.executable).with_name("counterpoint")), "compare"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    shutil.copy(TOY, tmp_path / "here" / "train.py")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def compare(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([*COMMAND, *shlex.split(line)], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("race --steps-flag --steps", marks=pytest.mark.slow),
        "compare --tune 3 --tune-metric json:results.json:dev",
    ],
)
def test_a_wrong_name_is_said_before_any_temperature_is_tuned(command, here, capsys):
    name, flags = command.split(maxsplit=1)
    rows = "--objective host hcl 'host; ids=lables'" if name == "compare" else "--objective 'host; ids=lables'"
    line = f"{name} {TOLD} {flags} {rows} --seed-flag --seed {READ} -- train.py --steps 40"
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr().err
    assert "--objective host; ids=lables: ids=lables: no such name here or in the callers." in said
    assert [path.parents[1].name[:8] for path in here.rglob("seed*/run.json")] == ["host-ids"]


def killed(line: str, cwd: Path, after: int, **variables: str) -> None:
    """Kill the command with SIGKILL when so many runs have ended and another one has begun to print."""
    process = session(
        [*COMMAND, *shlex.split(line)], cwd=cwd, env={**os.environ, **variables}, stderr=subprocess.DEVNULL
    )
    began = time.monotonic()

    def records(status):
        return [path for path in cwd.glob("runs/compare/*/*/seed*/run.json") if f'"{status}"' in path.read_text()]

    while len(records("done")) < after or not any(
        (path.parent / "log.txt").exists() and (path.parent / "log.txt").stat().st_size for path in records("running")
    ):
        assert process.poll() is None, "it has ended by itself"
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def plain(script: str, *words: str) -> dict[str, float]:
    """What the script computes without any of this."""
    before, sys.argv = sys.argv, [script, *words]
    try:
        runpy.run_path(script)
    finally:
        sys.argv = before
    found = json.loads(Path("results.json").read_text())
    Path("results.json").unlink()
    return found


def rows(said: str) -> dict[str, dict]:
    return {row["row"]: row for row in json.loads(said)["columns"][0]["rows"]}


def test_the_scripts_own_loss_and_another(here, capsys):
    expected = plain("train.py", "--seed", "3")["test"]
    capsys.readouterr()
    specs = "--own infonce:t=0.02 --objective host infonce:t=0.2 'host; duplicates' hcl"
    line = f"{TOLD} {specs} --seed 3 --seeds 1 --seed-flag --seed {READ} --report --json"
    assert main(["compare", *shlex.split(f"{line} -- train.py")]) == 0
    said, told = capsys.readouterr()
    found = rows(said)
    assert told.index("a better start is") < told.index("runs and logs: ")  # not only in the report
    differs = "settings of their own, where other rows have the host's: infonce:t=0.2 (temperature)"
    assert differs in (notes := json.loads(said)["notes"])
    assert "hcl has your loss's temperature; a better start is hcl:t=0.04" in notes
    assert '"host; duplicates": it left out no key, so it was your loss' in " ".join(notes)
    assert found["host; duplicates"]["remark"] == "left out no key"
    assert found["host"]["values"] == {"3": expected}
    assert found["infonce:t=0.2"]["mean"] > expected + 3
    excluded = {run.name: run.details["excluded"] for run in store.find_runs("runs")}
    assert excluded == {"host": None, "infonce:t=0.2": None, "host; duplicates": 0.0, "hcl": None}
    for run in store.find_runs("runs"):
        assert run.details["calls"] == 60
        assert [line["step"] for line in run.metrics()] == [*range(1, 61)]
        assert all(line["report/effective_negatives"] <= 63 for line in run.metrics())
        assert (run.path / "out" / "results.json").exists()


@pytest.mark.slow
def test_verdicts_over_items_are_in_later_reports(here, capsys):
    train = (
        (here / "train.py")
        .read_text()
        .replace("results = ", "hits = [float(accuracy()) for _ in range(12)]\n    results = ")
    )
    train += """
with (args.out / "items.jsonl").open("w") as file:
    file.writelines(json.dumps({"query": i, "hit": hit}) + "\\n" for i, hit in enumerate(hits))
(args.out / "mean.json").write_text(json.dumps({"mean": sum(hits) / len(hits)}))
"""
    (here / "train.py").write_text(train)
    line = f"{TOLD} --objective host infonce:t=0.2 --seeds 1 --seed-flag --seed --items jsonl:items.jsonl:query:hit"
    line += " --metric json:mean.json:mean -- train.py --out {out}"
    assert main(["compare", *shlex.split(line)]) == 0
    said = capsys.readouterr().out
    verdict = next(
        line for line in said.splitlines() if "These models on new items: infonce:t=0.2 minus host +" in line
    )
    assert said.count("| host") + said.count("\nhost ") == 1  # the mean of the items is the metric: one table
    assert main(["report", "runs"]) == 0
    assert verdict in capsys.readouterr().out
    assert main(["report", "runs", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["these"]["infonce:t=0.2"]["kind"] == "different"
    for run in store.find_runs("runs"):
        (run.path / "out" / "items.jsonl").unlink()
    assert main(["report", "runs"]) == 0
    assert "no verdicts over items: " in capsys.readouterr().out


@pytest.mark.parametrize(("prior", "seeded"), [(0.9, True), (0.001, False)])
def test_rows_that_begin_apart_and_priors_that_are_too_large_are_said(here, capsys, prior, seeded):
    if not seeded:
        script = (here / "train.py").read_text()
        (here / "train.py").write_text(script.replace("\ncentres = ", "\ntorch.seed(); centres = "))
    line = f"{TOLD} --objective host dcl:t=1,prior={prior} --seeds 1 --seed-flag --seed {READ} -- train.py --steps 10"
    for words in ["compare", *shlex.split(line)], ["report", "runs"]:
        assert main(words) == 0
        said = capsys.readouterr().out
        assert ("rows of one seed do not begin alike: the first gradients of your loss differ by " in said) != seeded
        assert (
            f'"dcl:t=1,prior={prior}": prior= took out more than there was in 1 of its runs, at most at ' in said
        ) == seeded


def test_a_row_that_is_the_scripts_own_loss_is_said(here, capsys):
    line = f"auto --objective host infonce:t=0.02 infonce:t=0.05 hcl:t=0.02 --seeds 1 --seed-flag --seed {READ} --json"
    assert main(["compare", *shlex.split(line), "--", "train.py", "--steps", "5"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert sum(note.startswith("infonce:t=0.02 and host are one loss: they differ by rounding") for note in notes) == 1


@pytest.mark.parametrize("host", [TOLD, pytest.param("auto", marks=pytest.mark.slow)])
def test_secrets_of_the_scripts_arguments_are_passed_and_not_recorded(here, capfd, monkeypatch, host):
    script = here / "train.py"
    parsed = "args = parser.parse_args()\n"
    used = 'parser.add_argument("--wandb-key", required=True)\n' + parsed + 'assert args.wandb_key.endswith("den")\n'
    script.write_text(script.read_text().replace(parsed, used))
    host = re.sub(r"train\.py:\d+", f"train.py:{LINE + 2}", host)
    line = f"{host} --objective host infonce:t=0.2 --seeds 1 --seed-flag --seed {READ} --json -- train.py --steps 5 "
    for secret in ("covert-den", "other-covert-den"):  # which is not part of what a run is
        monkeypatch.setattr(sys, "argv", ["counterpoint", "compare", *shlex.split(line), f"--wandb-key={secret}"])
        assert main(sys.argv[1:]) == 0
        told = capfd.readouterr()
        assert "secrets in the script's arguments are passed to it, and recorded as REDACTED" in told.err
    runs = store.find_runs("runs")
    assert len(runs) == 2
    assert all("--wandb-key=REDACTED" in run.record["command"] for run in runs)
    assert not [path for path in Path("runs").rglob("*") if path.is_file() and b"covert" in path.read_bytes()]
    assert main(["report", "runs", "--out", "shown"]) == 0
    assert not [path for path in Path("shown").iterdir() if b"covert" in path.read_bytes()]
    assert main(["compare", "--config", str(runs[0].path / "run.json")]) == 2
    assert "its command had a secret, which was not recorded" in capfd.readouterr().err


def test_a_name_that_the_script_does_not_have_is_refused_before_anything_trains(here, capfd):
    shutil.copy(ROOT / "tests" / "support" / "planted_train.py", "train.py")
    line = "auto --objective host 'host; ids=dcs' --seed-flag --seed --metric json:results.json:hits -- train.py"
    assert main(["compare", *shlex.split(f"{line} --steps 5")]) == 2
    assert "host; ids=dcs: no name 'dcs' where the loss is. Did you mean 'doc'?" in capfd.readouterr().err
    assert main(["compare", *shlex.split(f"{line} --steps 5".replace("dcs", "xylophone"))]) == 2
    assert "host; ids=xylophone: no name 'xylophone' where the loss is. auto found ids=doc." in capfd.readouterr().err
    assert not list(here.rglob("run.json"))


def test_the_last_words_of_a_script_are_the_reason(here, capfd):
    """Those of sys.exit, which Python prints behind what inject says at the end."""
    text = (here / "train.py").read_text()
    (here / "train.py").write_text(f"{text}\nraise SystemExit('no disk')\n")
    line = f"{TOLD} --objective host hcl --seed-flag --seed --seeds 1 {READ} -- train.py --steps 5"
    assert main(["compare", *shlex.split(line)]) == 1
    assert "failed: ScriptError: the script ended with exit code 1: no disk" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "metric"),
    [
        pytest.param("race --objective 'host; ids=labels'", "'output:tset (.+)'", marks=pytest.mark.slow),
        pytest.param(
            "race --steps-flag --steps --objective hcl --confirm-metric json:results.json:tset",
            READ.split()[1],
            marks=pytest.mark.slow,
        ),
        ("compare --objective host hcl --tune 3 --tune-metric json:results.json:dev", "json:results.json:tset"),
    ],
)
def test_a_wrong_name_of_a_number_is_said_after_one_training(here, capsys, command, metric):
    name, flags = command.split(maxsplit=1)
    line = f"{name} {TOLD} {flags} --metric {metric} --seed-flag --seed -- train.py --steps 40"
    assert main(shlex.split(line)) == 2
    assert re.search(f"counterpoint {name}: .*--metric .*:tset", capsys.readouterr().err)
    assert len(store.find_runs(here / "runs")) == 1


@pytest.mark.parametrize(("path", "said"), [("yy", "no such name"), ("args.yy", "args has no .yy")])
def test_a_wrong_name_stops_a_named_host_at_its_first_step(here, capfd, path, said):
    """It would fail with every seed, and after the training of the host."""
    line = f"{TOLD} --objective host 'hcl; ids={path}' --seed-flag --seed --seeds 3 {READ} -- train.py --steps 5"
    assert main(["compare", *shlex.split(line)]) == 2
    shown = capfd.readouterr().err
    assert f"counterpoint compare: --objective hcl; ids={path}: ids={path}: {said}" in shown
    assert [run.title for run in store.find_runs(here / "runs")] == [f"train.py, hcl; ids={path}, seed 0"]
    assert "runs failed" not in shown


def test_secrets_do_not_go_to_a_cluster(here, capsys):
    line = f"{TOLD} --objective host hcl --seeds 1 --set-seed --copy {READ} --on slurm -- train.py --token {'a1' * 12}"
    assert main(["compare", *shlex.split(line)]) == 2
    assert "--on slurm: the script's arguments have a secret (REDACTED)" in capsys.readouterr().err
    assert not list(here.rglob("run.json"))


@pytest.mark.slow
def test_a_better_objective_is_found_and_an_equal_one_is_called_so(here):
    line = f"{TOLD} --objective host infonce:t=0.2 infonce:t=0.02 --seed-flag --seed {READ} --jobs 2 --json "
    line += "-- train.py --out {out}"
    killed(line, here, after=3)
    before = {run.path: run.record["finished"] for run in store.find_runs(here / "runs") if run.done}
    done = compare(line, here)
    assert done.returncode == 0, done.stderr
    runs = {run.path: run.record["finished"] for run in store.find_runs(here / "runs")}
    assert before.items() <= runs.items()  # which have not run again
    assert len(runs) == 15
    found = rows(done.stdout)
    assert found["host"]["values"] == {str(seed): plain("train.py", "--seed", str(seed))["test"] for seed in range(5)}
    better, equal = found["infonce:t=0.2"]["difference"], found["infonce:t=0.02"]["difference"]
    assert (better["kind"], equal["kind"]) == ("different", "equivalent")
    assert better["low"] > 3
    said = compare(line.replace(" --json", ""), here).stdout
    assert "time of a step, as a multiple of host's: " in said


@pytest.mark.slow
def test_a_seed_that_does_not_reach_the_script_stops_the_grid(here):
    """It sets one itself; the objectives then differ without doubt, of which no test must make evidence."""
    line = f"{TOLD} --objective hcl:t=0.2 host --baseline host --set-seed --seeds 5 {READ} -- train.py --steps 5"
    done = compare(line, here)
    assert done.returncode == 0
    assert "seed 1:" in done.stderr
    assert "seed 2:" not in done.stderr
    told = "all seeds give the same numbers: no verdict, only seed 0 is shown; does the script set a seed itself"
    assert f"stopped after 2 seeds: {told}" in done.stdout
    assert "no verdict: 3 seeds are the fewest" in done.stdout


WRONG = """
import sys, torch
from pathlib import Path
from torch.nn.functional import cross_entropy
seed, layer = int(sys.argv[-1]), torch.nn.Linear(8, 8)
if seed == 1:
    print("no data for seed 1")
    sys.exit(5)
seen = Path(f"seen{seed}")
steps = 4 if seen.exists() and seed == 2 else 5
seen.touch()
for step in range(0 if seed == 3 else steps):
    z = torch.nn.functional.normalize(layer(torch.randn(16, 8)))
    cross_entropy(10 * z @ z.T, torch.arange(16)).backward()
if seed != 4:
    Path("out.txt").write_text(f"acc {seed}")
"""


def test_where_no_row_gives_a_number_no_other_seed_is_trained(here, capfd):
    script = (here / "train.py").read_text()
    (here / "train.py").write_text(script.replace('"test": ', '"test": float("nan") * '))
    line = f"{TOLD} --objective host hcl:t=0.2 --seed-flag --seed {READ} -- train.py --steps 5"
    assert main(["compare", *shlex.split(line)]) == 1
    told = capfd.readouterr()
    assert "the first runs have failed or gave no number, so no others were started" in told.err
    assert "all seeds give the same numbers" not in told.out
    assert len(list(store.find_runs(here / "runs"))) == 2


@pytest.mark.slow
def test_where_the_first_run_fails_no_other_is_started(here):
    (here / "train.py").write_text(WRONG)
    line = "logits --site train.py:14 --scale 10 --objective host hcl:t=0.1 --seed-flag --seed "
    done = compare(line + "--metric 'text:out.txt:accuracy (.+)' -- train.py", here)
    assert done.returncode == 1
    assert "the first runs have failed or gave no number, so no others were started" in done.stderr
    assert "counterpoint compare: 1 of 1 run failed; stopped, 9 not started: ValueError: --metric" in done.stderr
    assert "out.txt" in done.stderr
    assert len(list(store.find_runs(here / "runs"))) == 1


@pytest.mark.slow
def test_what_goes_wrong_is_named_and_the_rest_goes_on(here):
    (here / "train.py").write_text(WRONG)
    line = "logits --site train.py:14 --scale 10 --objective host hcl:t=0.1 --seed-flag --seed "
    line += "--metric 'text:out.txt:acc (.+)' -- train.py"
    done = compare(line, here)
    assert done.returncode == 1
    assert "compare: 6 of 10 runs failed" in done.stderr
    assert done.stderr.count("runs failed") == 1
    assert "the script ended with exit code 5: no data for seed 1" in done.stderr
    assert "ended with exit code 3: nothing was replaced: the script never reached" in done.stderr
    assert "out.txt was written before this run began, so it is not of this run" in done.stderr
    assert "-- train.py, host, seed 1, the end of" in done.stderr
    assert "hcl:t=0.1, seed 2: the loss was reached 4 times, with host 5 times; left out" in done.stderr
    assert re.search(r"^host .* 1\.0+ ± 1\.41\d* \(2\)", done.stdout, re.M)
    assert re.search(r"^hcl:t=0.1 .* 0\.0+ \(1\)", done.stdout, re.M)
    assert "compare tuned nothing" in done.stdout
    (failed,) = [run for run in store.find_runs(here / "runs") if "seed 1" in run.title and run.name == "host"]
    assert "no data for seed 1" in (failed.path / "error.txt").read_text()
    # a number that was not read at first is read without another run, and one that was left is read again
    for run in store.find_runs(here / "runs"):
        if run.arguments["seed"] == 4:
            (run.path / "out" / "out.txt").write_text("acc 4")
    done = compare(line.replace("--seed-flag", "--seeds 1 --any-length --seed 4 --seed-flag"), here)
    assert (done.returncode, "host" in done.stdout) == (0, True), done.stderr
    done = compare(line.replace("acc (.+)", "(?P<digit>\\d)").replace("--seed-flag", "--seeds 1 --seed-flag"), here)
    assert (done.returncode, "train.py, digit" in done.stdout) == (0, True), done.stderr
    assert done.stderr.count("2 of 2 runs are done already") == 1


@pytest.mark.slow
def test_found_tuned_and_copied(here):
    """The site by ``auto``, the temperature by ``--tune``; each run in a copy of the folder."""
    (here / "data").mkdir()
    (here / "slow.py").write_text("import time\n")
    line = f"auto --objective host infonce:t=1 --tune 3 --grid t=0.2,0.5 --tune-metric json:results.json:dev {READ} "
    line += "--seeds 3 --seed-flag --seed --copy --link data --jobs 2 -- train.py --steps 40"
    killed(line, here, after=1)
    done = compare(line, here)
    assert done.returncode == 0, done.stderr
    assert "which another tuning may not find: infonce:t=1" in done.stdout
    assert "compare tuned nothing" not in done.stdout
    assert "infonce:t=0.2" in done.stdout
    assert not (here / "results.json").exists()
    runs = store.find_runs(here / "runs")
    assert {run.arguments["host"] for run in runs} == {"logits"}
    assert not [run.path for run in runs if (run.path / "work").exists()]
    assert sum(run.tuning for run in runs) == 12  # infonce:t=1 and its placebo, with two seeds each
    host = [run for run in runs if run.name == "host"]
    assert {run.arguments["seed"]: run.result["test"] for run in host} == {
        seed: plain("train.py", "--steps", "40", "--seed", str(seed))["test"] for seed in range(3)
    }


@pytest.mark.slow
def test_runs_are_counted_as_one_whole_and_rows_that_are_not_tuned_are_named(here):
    """The placebo has chosen the same setting, so its runs would be those of its twin."""
    line = f"{TOLD} --objective host 'infonce:t=host; duplicates' --tune 2 --tune-seeds 1 --grid t=0.2 {READ} "
    line += "--seeds 1 --tune-metric json:results.json:dev --seed-flag --seed -- train.py --steps 40"
    done = compare(line, here)
    assert done.returncode == 0, done.stderr
    assert "3 rows, 1 seed: 3 runs; what they print" in done.stderr
    assert re.findall(r"^\[(\d/\d)\]", done.stderr, re.M) == ["1/2", "2/2", "1/2", "2/2", "1/3", "2/3", "3/3"]
    assert 'not tuned, as they have no number to try: host, "infonce:t=host; duplicates"' in done.stdout
    assert "placebo: infonce tuned once more by other seeds: infonce:t=0.2, the same setting" in done.stdout
    assert "2 settings each with 1 seed;" in done.stdout
    again = compare(line, here)
    assert re.findall(r".*done already", again.stderr) == ["3 of 3 runs are done already"]


def test_sigterm_stops_as_ctrl_c_does(here):
    (here / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    line = f"logits --site train.py:3 --scale 1 --objective host hcl --set-seed {READ} -- train.py"
    process = session([*COMMAND, *shlex.split(line)], cwd=here)
    printed = []
    while not printed:
        assert process.poll() is None, process.communicate()
        printed = [number for log in here.rglob("log.txt") for number in re.findall(r"^\d+$", log.read_text(), re.M)]
        time.sleep(0.1)
    process.terminate()
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    said = "counterpoint compare: stopped; 0 of 10 runs have ended; the same command resumes"
    assert errors.splitlines()[-1] == said
    with pytest.raises(ProcessLookupError):
        os.kill(int(printed[0]), 0)  # the script has ended, too


@pytest.mark.slow
def test_a_race_that_is_stopped_counts_all_of_its_runs(here):
    line = f"race {TOLD} --objective hcl --steps-flag --steps --seed-flag --seed {READ} -- train.py --steps 40"
    process = session([COMMAND[0], *shlex.split(line)], cwd=here)
    ended = 0
    for text in process.stderr:
        ended += text.startswith("[")
        if ended == 4:  # of which three are of the first part
            break
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    ended += len(re.findall(r"^\[", errors, re.M))
    said = f"counterpoint race: stopped; runs that have ended: {ended}; the same command resumes"
    assert errors.splitlines()[-1] == said


# ---- unmodified clones -----------------------------------------------------------------------------


def killed_and_resumed(line: str, cwd: Path, runs: int, **variables: str) -> str:
    killed(line, cwd, after=1, **variables)
    done = compare(line, cwd, **variables)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [run for run in store.find_runs(cwd / "runs") if not run.tuning]
    assert len(found) == runs
    assert all(run.done and run.details["calls"] for run in found)
    assert "time of a step, as a multiple of host's" in done.stdout
    return done.stdout


@pytest.mark.slow
def test_graphcl_on_mutag(tmp_path):
    pytest.importorskip("seaborn")  # which the host imports
    data = Path(os.environ.get("COUNTERPOINT_DATA", ""), "tu", "MUTAG", "raw")
    if not data.is_dir():
        pytest.skip("no MUTAG in COUNTERPOINT_DATA")
    clone = tmp_path / "clone"
    places = ("GraphCL/unsupervised_TU", "graphcl/unsupervised_TU", "graphcl")
    shutil.copytree(real_clone(*places, holds="gsimclr.py"), clone, ignore=shutil.ignore_patterns("data", "logs"))
    shutil.copytree(data, clone / "data" / "MUTAG" / "MUTAG" / "raw")
    (clone / "logs").mkdir()
    line = r"""graphcl --objective host hcl:t=0.2 --seeds 3 --seed-flag --seed
        --metric 'accuracy=text:logs/log_MUTAG_random2:"test": \[.*, ([\d.e-]+)\]' --copy --jobs 2
        -- gsimclr.py --DS MUTAG --lr 0.01 --local --num-gc-layers 3 --aug random2"""
    said = killed_and_resumed(line, clone, 6)
    assert "compare: gsimclr.py, accuracy" in said
    numbers = [run.result["accuracy"] for run in store.find_runs(clone / "runs")]
    assert all(0.6 < number < 1 for number in numbers)


UNIFORMITY = """
import torch
from pathlib import Path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer


def spread(out):
    model = SentenceTransformer(modules=[Transformer(str(out)), Pooling(16)], device="cpu")
    z = model.encode(Path("text.txt").read_text().splitlines(), convert_to_tensor=True, normalize_embeddings=True)
    return -torch.pdist(z).square().mul(-2).exp().mean().log().item()
"""


@pytest.mark.slow
def test_simcse_tells_a_collapse_from_its_own_loss_by_another_name(tmp_path, bert):
    """SimCSE's loss is InfoNCE at its temperature; with such a prior, DCL's estimate of the negatives is none at all.

    The metric is the uniformity of Wang and Isola (2020), which SimCSE reports, upside down: 0 is a collapse.
    """
    import tiny_bert
    import transformers

    clone = tmp_path / "clone"
    shutil.copytree(real_clone("simcse", "SimCSE", holds="train.py"), clone)
    (clone / "text.txt").write_text("\n".join(tiny_bert.texts(1, 96, seed=1)[0]) + "\n")
    (clone / "score.py").write_text(UNIFORMITY)
    cpu = "--use_cpu" if hasattr(transformers.TrainingArguments, "use_cpu") else "--no_cuda"
    line = f"""simcse --objective host infonce:t=0.05 dcl:t=0.05,prior=0.9 --seeds 3 --seed-flag --seed
        --metric python:score.py:spread
        -- train.py --model_name_or_path {bert} --train_file text.txt --output_dir {{out}} --max_steps 40
        --per_device_train_batch_size 16 --learning_rate 3e-3 --max_seq_length 12 --pooler_type avg --do_train
        --report_to none {cpu}"""
    said = killed_and_resumed(line, clone, 9, HF_HUB_OFFLINE="1")
    assert "compare: train.py, spread" in said
    (column,) = report.summarise(store.find_runs(clone / "runs")).columns
    found = {row.partition(":")[0]: verdict for row, verdict in column.compared.items()}
    assert {row: verdict.kind for row, verdict in found.items()} == {"infonce": "equivalent", "dcl": "different"}
    assert found["dcl"].high < -1


# lightly's examples download CIFAR-10, have no seed, and store nothing: here are a few images, a seed and a score
SITE = """
import torch
import torchvision
from PIL import Image


class Squares(torch.utils.data.Dataset):
    def __init__(self, root, transform=None, **_):
        self.transform = transform
        self.labels = torch.arange(64) % 4
        draw = torch.Generator().manual_seed(0)
        edges, noise = torch.rand(4, 3, 32, 32, generator=draw), torch.rand(64, 3, 32, 32, generator=draw)
        self.images = ((0.2 * edges[self.labels] + 0.8 * noise) * 255).byte()

    def __len__(self):
        return 64

    def __getitem__(self, i):
        image = Image.fromarray(self.images[i].permute(1, 2, 0).numpy())
        return self.transform(image), int(self.labels[i])


torch.set_num_threads(1)
torchvision.datasets.CIFAR10 = Squares


class Few(torch.utils.data.DataLoader):
    def __init__(self, data, **_):
        super().__init__(data, batch_size=32, shuffle=True, drop_last=True)


torch.utils.data.DataLoader = Few
"""
SCORE = """
import torch


def nearest(script):
    script.model.eval()
    with torch.no_grad():
        z = torch.nn.functional.normalize(script.backbone(script.dataset.images / 255.0).flatten(1))
    same = (z @ z.T).fill_diagonal_(-1).argmax(1)
    return 100 * (script.dataset.labels[same] == script.dataset.labels).float().mean().item()
"""


@pytest.mark.slow
def test_an_example_of_lightly(tmp_path):
    pytest.importorskip("lightly")
    script = real_clone("lightly", holds="examples") / "examples" / "pytorch" / "simclr.py"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    (tmp_path / "score.py").write_text(SCORE)
    line = f"""lightly --objective host hcl:t=0.5 --seeds 2 --set-seed --metric script:score.py:nearest -- {script}"""
    said = killed_and_resumed(line, tmp_path, 4, PYTHONPATH=str(tmp_path / "site"))
    assert "compare: simclr.py, nearest" in said
