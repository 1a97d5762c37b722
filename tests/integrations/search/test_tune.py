"""``counterpoint tune``: the search against functions whose maximum is known, and on real runs of every domain."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex

import pytest
import tiny_bert
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import make

import counterpoint as cp
from counterpoint.integrations import report, store
from counterpoint.integrations.command.main import build, main
from counterpoint.integrations.domain import NAMES, domain
from counterpoint.integrations.search import commands, coordinate, grids
from counterpoint.integrations.search.coordinate import at_edge, by_nearness
from counterpoint.integrations.search.grids import changed, numbers

ADNCE = str(cp.objective("adnce"))


def grids_of(spec, name, own=None):
    return grids.grids_of(spec, {**grids.GRIDS, **domain(name).grids}, own)


def search(start, grids, budget, measure):
    scores = coordinate.search(start, grids, budget, measure)
    return coordinate.best_of(scores), scores


def parameters(data):
    return {name for name, _ in numbers(data)}


def score(specs):
    """Best at t = 0.2, mu = 0.7, sigma = 0.5, and without any interaction."""
    found = {}
    for spec in specs:
        one = cp.objective(spec)
        found[spec] = -abs(math.log(one.temperature / 0.2)) - abs(one.mu - 0.7) - abs(one.sigma - 0.5)
    return found


def counted(measure):
    asked: list[str] = []

    def look(specs):
        asked.extend(specs)
        return measure(specs)

    return look, asked


def test_it_finds_the_maximum_where_parameters_do_not_interact():
    grids = grids_of(ADNCE, "image")
    assert list(grids) == ["temperature", "mu", "sigma"]
    look, asked = counted(score)
    best, found = search(ADNCE, grids, 40, look)
    assert cp.objective(best) == cp.ADNCE(0.2, mu=0.7, sigma=0.5)
    assert asked == list(found)
    assert len(set(asked)) == len(asked) < 40  # stops although the budget is not spent
    temperatures = [cp.objective(spec).temperature for spec in asked]
    assert set(temperatures[:6]) == {0.5, *domain("image").grids["temperature"]}  # first of all
    assert set(temperatures[6:11]) == {0.2}


def test_it_goes_round_again_where_they_do():
    def tilted(specs):
        parts = [(cp.objective(spec), spec) for spec in specs]
        return {spec: -2 * (one.temperature - one.mu / 2) ** 2 - (one.mu - 0.8) ** 2 for one, spec in parts}

    grids = {"temperature": (0.2, 0.25, 0.3, 0.35, 0.4), "mu": (0.5, 0.6, 0.7, 0.8, 0.9)}
    best, _ = search("adnce:t=0.2,mu=0.5", grids, 100, tilted)
    assert cp.objective(best) == cp.ADNCE(0.4, mu=0.8)  # from the first round's 0.25 and 0.7


@settings(deadline=None, max_examples=40)
@given(budget=st.integers(1, 30))
def test_it_keeps_its_budget_and_looks_at_the_start(budget):
    look, asked = counted(score)
    best, found = search(ADNCE, grids_of(ADNCE, "graph"), budget, look)
    assert len(asked) <= budget
    assert asked[0] == ADNCE
    assert found[best] == max(found.values())
    if budget > 8:  # each has had its share
        seen = [cp.objective(spec) for spec in asked]
        assert all(len({getattr(one, name) for one in seen}) > 1 for name in ("temperature", "mu", "sigma"))


def test_what_has_failed_is_never_the_best():
    def failing(specs):
        return {spec: math.nan if cp.objective(spec).temperature != 0.4 else 1.0 for spec in specs}

    best, found = search(ADNCE, grids_of(ADNCE, "image"), 20, failing)
    assert cp.objective(best).temperature == 0.4
    assert any(map(math.isnan, found.values()))


def test_the_values_next_to_the_best_are_tried_first():
    """A temperature sixteen times too small says little of one that is a little too small."""
    assert by_nearness((0.05, 0.1, 0.2, 0.5, 1.0), 0.2) == [0.1, 0.5, 0.05, 1.0]
    assert by_nearness((0.05, 0.1, 0.2), 0.3) == [0.2, 0.1, 0.05]
    asked: list[str] = []

    def look(specs):
        asked.extend(specs)
        return {spec: -abs(math.log(cp.objective(spec).temperature / 0.4)) for spec in specs}

    coordinate.search("infonce:t=0.1", {"temperature": (0.025, 0.05, 0.1, 0.2, 0.4)}, 3, look)
    assert asked == ["infonce:t=0.1", "infonce:t=0.05", "infonce:t=0.2"]


@pytest.mark.parametrize(
    ("peak", "budget", "expected"),
    [
        (0.2, 4, [0.2, 0.1, 0.4, 0.2]),  # between others: the last one is of another prior
        (0.8, 4, [0.2, 0.1, 0.4, 0.8]),
        (0.1, 4, [0.2, 0.1, 0.4, 0.05]),
        (3.2, 6, [0.2, 0.1, 0.4, 0.8, 1.6, 1.6]),  # the end of the grid
    ],
)
def test_a_temperature_goes_on_before_others_are_tried(peak, budget, expected):
    """Of few settings, those of the prior would tell less than the temperature beyond the best one."""
    asked: list[str] = []

    def look(specs):
        asked.extend(specs)
        return {spec: -abs(math.log(cp.objective(spec).temperature / peak)) for spec in specs}

    grids = {"temperature": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), "prior": (0.01, 0.05, 0.1), "beta": (0.5, 1.0, 2.0)}
    coordinate.search("hcl:t=0.2", grids, budget, look)
    assert [cp.objective(spec).temperature for spec in asked] == expected


def test_an_edge_is_where_nothing_was_tried_beyond():
    tried = ["hcl:t=0.1,beta=1", "hcl:t=0.2,beta=1", "hcl:t=0.4,beta=1"]
    end, few = "at the edge of its grid: temperature", "two values or fewer tried: beta"
    assert [at_edge(spec, ["temperature"], tried) for spec in tried] == [end, "", end]
    assert [at_edge(spec, ["temperature", "beta"], tried) for spec in tried] == [f"{end}; {few}", few, f"{end}; {few}"]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("infonce:t=0.1", ["temperature"]),
        ("hcl", ["temperature", "prior", "beta"]),
        ("infonce:radius=0.1", ["radius"]),
        ("infonce:t=learned(0.1) + 0.1*dp", ["weight"]),
        ("arcl(adnce):views=4", ["temperature", "mu", "sigma", "views"]),
        ("adnce:mu=auto", ["temperature", "sigma"]),
        ("dro", ["radius"]),
        ("drrl", ["margin", "weight"]),  # not the weight of a term
        ("rince", ["temperature", "q", "lam"]),  # not the lam of IntNaCl
        ("isogclr", ["temperature", "rho"]),  # not the beta of HCL
    ],
)
def test_what_is_moved(spec, names):
    grids = grids_of(spec, "image")
    assert list(grids) == names
    for name, values in grids.items():
        for value in values:
            moved = changed(cp.objective(spec).to_dict(), name, value)
            assert value in _numbers(moved)
            again = cp.from_dict(moved)  # every grid is within the parameter's range
            assert parameters(again.to_dict()) == parameters(cp.objective(spec).to_dict())


def _numbers(data):
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else [data]
    return [x for value in values for x in (_numbers(value) if isinstance(value, (dict, list)) else [value])]


@pytest.mark.parametrize("name", sorted(cp.registry))
def test_values_to_try_are_those_that_its_page_says_to_tune_first(name):
    """A parameter of one name can be another thing elsewhere: the weight of DrRL, of a term, of densities."""
    said = cp.registry[name].tune_first
    spec = f"{name}(infonce)" if issubclass(cp.registry[name], cp.Wrapper) else name
    short = {key: hyper.short for key, hyper in cp.registry[name].hyper.items()}
    for key, values in grids_of(spec, "image").items():
        if key == "temperature":  # it depends on the domain
            continue
        for low, high in re.findall(rf"\b{short.get(key, key)} \(([\d.]+) to ([\d.]+)\)", said):
            assert all(float(low) <= value <= float(high) for value in values), (key, values, said)


def test_grids_of_ones_own():
    assert grids_of("hcl", "graph", {"t": (0.1,), "beta": (3.0, 4.0)}) == {"temperature": (0.1,), "beta": (3.0, 4.0)}
    with pytest.raises(ValueError, match=r"has no number 'mu' to tune. Known: temperature, prior, beta"):
        grids_of("hcl", "graph", {"mu": (0.1,)})


GRAPH = ["tune", "graph", "--seeds", "1", "--epochs", "1", "--folds", "3", "--hidden", "8", "--objective"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    pytest.importorskip("torch_geometric")
    return tmp_path_factory.mktemp("tuned")


@pytest.mark.slow
def test_graphs(tuned, capsys):
    words = [*GRAPH, "adnce", "--budget", "5", "--baseline", "none", "--json", "--out", str(tuned)]
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)
    every = store.find_runs(tuned)
    assert len(every) == len(found["tried"]) == 5
    for run in every:  # validation data, and other seeds
        assert (run.arguments["part"], run.arguments["seed"], run.done, run.tuning) == ("tune", 1000, True, True)
    results = {run.arguments["objective"]: run.result["accuracy"] for run in every}
    assert {row["spec"]: row["mean"] for row in found["tried"]} == results
    assert results[found["best"]] == max(results.values())
    assert found["train"] == (
        f"counterpoint train graph --part report --epochs 1 --folds 3 --hidden 8 --objective {found['best']} --seeds 5"
    )
    stamps = {path: path.stat().st_mtime_ns for path in tuned.rglob("run.json")}
    assert main(words) == 0  # nothing is done twice
    assert json.loads(capsys.readouterr().out) == [found]
    assert stamps == {path: path.stat().st_mtime_ns for path in tuned.rglob("run.json")}


def test_the_baseline_is_tuned_too_and_no_report_shows_any_of_it(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    words = [*GRAPH, "adnce", "--budget", "2", "--grid", "mu=0.4", "t=0.1,0.3", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["objective"] for row in found] == [ADNCE, str(cp.InfoNCE())]
    assert [len(row["tried"]) for row in found] == [2, 2]
    assert found[1]["grids"] == {"temperature": [0.1, 0.3]}
    typed = shlex.split(found[0]["train"])
    at = typed.index("--objective")
    assert typed[at : at + 4] == ["--objective", found[0]["best"], found[1]["best"], "--seeds"]
    assert found[1]["train"] == found[0]["train"]
    assert main(words) == 0
    assert capsys.readouterr().out.count(found[0]["train"]) == 1

    assert main(["report", str(tmp_path)]) == 2  # none of these numbers is a result
    assert "of tune or race" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not results"):
        report.summarise(store.find_runs(tmp_path))
    result = make(tmp_path, {("demo", found[0]["best"]): {0: 50.0, 1: 51.0}})
    summary = report.summarise(store.find_runs(tmp_path))
    assert [len(cell.values) for column in summary.columns for cell in column.cells.values()] == [len(result)]
    assert summary.notes[0].startswith("4 of 6 runs are of tune or race, ")
    assert main(["eval", "graph", str(tmp_path)]) == 2
    assert "no finished run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_baseline_of_ones_own(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    words = ["infonce:t=0.2", "--baseline", "hcl:t=0.2", "--budget", "1", "--json", "--out", str(tmp_path)]
    assert main([*GRAPH, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cp.objective(row["objective"]).name for row in found] == ["infonce", "hcl"]


def test_what_is_said(tuned, capsys):
    words = [*GRAPH, "infonce:t=0.2", "--grid", "t=0.1,0.3", "--seeds", "2", "--budget", "6", "--out", str(tuned)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert [line.partition("]")[0] for line in err.splitlines()] == ["[1/2", "[2/2", *(f"[{i}/4" for i in range(1, 5))]
    assert out.count(" ± ") == 3
    assert "accuracy on validation data, seeds 1000, 1001" in out
    assert "infonce:t=0.2,denominator=with_positive  " in out
    assert "(start)" in out
    assert "too good" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["infonce", "--grid", "mu=1"], "no number 'mu' to tune"),
        (["infonce", "--grid", "t=0.1,-1"], "temperature must be a finite number with 0 < temperature"),
        (["dp"], "nothing to tune"),
        (["infonce", "--budget", "1", "--seeds", "2"], "--budget: expected 2 or more, one setting's runs, got 1"),
        (["infonce", "--data", "demo", "MUTAG"], "--data: one at a time"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, words, said):
    pytest.importorskip("torch_geometric")
    assert main([*GRAPH, *words, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("domain", "words", "said"),
    [
        ("image", "--subset 200", "batch: 256 images do not fit into digits with 200"),
        ("graph", "--root nowhere", "--root: nowhere is not a folder"),
    ],
)
def test_what_no_spec_can_mend_ends_the_search(tmp_path, capsys, domain, words, said):
    pytest.importorskip({"graph": "torch_geometric", "image": "lightly"}[domain])
    assert main(["tune", domain, *words.split(), "--budget", "3", "--epochs", "1", "--out", str(tmp_path)]) == 2
    *before, last = capsys.readouterr().err.splitlines()
    assert f"counterpoint tune {domain}: {said}" in last
    assert len(before) <= 1
    assert len(store.find_runs(tmp_path)) <= 1


def test_a_seed_of_ones_own_is_not_reported_again(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    words = ["infonce:t=0.2", "--seed", "3", "--seeds", "2", "--budget", "2", "--out", str(tmp_path)]
    assert main([*GRAPH, *words]) == 0
    assert " --seed 5 --seeds 5\n" in capsys.readouterr().out


AGENT = "--size 24 --crop 20 --filters 4 --hidden 16 --batch 8 --capacity 500 --random-steps 20"
OTHERS = {  # the smallest real search of each of the other domains
    "image": "--epochs 1 --batch 64 --subset 128 --width 16",
    "sentence": "--data {data}/texts.txt --model {data}/bert --pooling cls --batch 8 --lr 0.01 --steps 4 --every 2",
    "control": f"--task cartpole-balance --steps 240 --eval-every 240 --episodes 1 {AGENT}",
}


@pytest.fixture
def smallest(request, tmp_path, monkeypatch):
    """The words of such a search, in a world without test sets: who asks for one fails."""
    domain = request.param
    if domain == "image":
        pytest.importorskip("lightly")
        from counterpoint.integrations.image import data

        monkeypatch.setattr(data, "load", without("test", data.load))
    elif domain == "sentence":
        pytest.importorskip("sentence_transformers")
        tiny_bert.build(tmp_path / "bert")
        tiny_bert.write_sts(tmp_path, ("STSB-dev",))  # the others cannot be had
        (tmp_path / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40)[0]) + "\n")
        monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    else:
        request.getfixturevalue("frames")
    return domain, shlex.split(OTHERS[domain].format(data=tmp_path))


def without(split, load):
    def checked(name, asked, *rest):
        assert asked != split, f"{name}: the {split} set was asked for"
        return load(name, asked, *rest)

    return checked


@pytest.mark.parametrize(
    "smallest",
    ["image", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sentence", "control"))],
    indirect=True,
)
def test_the_other_domains(smallest, tmp_path, capsys, monkeypatch):
    """Interrupted in its second run, a search goes on, and prints the spec that the scores on validation data say."""
    domain, words = smallest
    out = tmp_path / "tuning"
    words_of_train, more = ["train", domain, *words], {"test": []} if domain == "sentence" else {}
    words = [
        "tune",
        domain,
        *words,
        "--objective",
        "infonce:t=0.3",
        "--grid",
        "t=0.1,0.5",
        "--budget",
        "3",
        "--seeds",
        "1",
    ]
    finish = store.Run.finish

    def stopping(run, *given, **more):
        if any(one.done for one in store.find_runs(out)):
            raise KeyboardInterrupt
        finish(run, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store.Run, "finish", stopping)
        assert main([*words, "--out", str(out)]) == 130
    capsys.readouterr()
    first = next(run for run in store.find_runs(out) if run.done)
    stamp = (first.path / "run.json").stat().st_mtime_ns
    assert main([*words, "--out", str(out), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (first.path / "run.json").stat().st_mtime_ns == stamp
    every = {run.arguments["objective"]: run for run in store.find_runs(out)}
    assert [cp.objective(row["spec"]).temperature for row in found["tried"]] == [0.3, 0.1, 0.5]
    assert {row["spec"]: row["mean"] for row in found["tried"]} == {
        name: run.result[found["metric"]] for name, run in every.items()
    }
    best = max(found["tried"], key=lambda row: row["mean"])
    assert found["best"] == best["spec"]
    assert {run.arguments["seed"] for run in every.values()} == {commands.FIRST_SEED}
    typed = shlex.split(found["train"])
    assert typed[:3] == ["counterpoint", "train", domain]
    parser = build(f"train {domain}")
    asked, same = parser.parse_args(words_of_train), parser.parse_args(typed[1:])
    assert vars(same) == {**vars(asked), "objective": [found["best"]], "seeds": 5, **more}


def test_no_domain_looks_at_its_test_set():
    for name in NAMES:
        one = domain(name)
        fields = {field.name for field in dataclasses.fields(one.settings)}
        assert set(one.held_out) <= fields
        if "part" in fields:
            assert one.held_out["part"] == "tune"
        if "test" in fields:
            assert one.held_out["test"] is None
