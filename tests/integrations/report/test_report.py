"""The report: its statistics against closed forms, its words against its statistics."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shutil
import sys
from statistics import fmean

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import BASE, OTHER, THIRD, make, noisy

import counterpoint as cp
from counterpoint.install import install
from counterpoint.integrations import report, store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.command.report import FORMATS
from counterpoint.integrations.report import papers, plots, statistics, summary, tables, words
from counterpoint.integrations.report.statistics import bootstrap_interval, holm, sign_flip_p
from counterpoint.integrations.report.words import reading

FINITE = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))


# ---- statistics --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 12))
def test_the_exact_test_counts_all_signs(n):
    x = np.random.default_rng(n).normal(0.6, 1, n)
    x[0] = x[1]  # ties
    signs = np.array(list(itertools.product((-1, 1), repeat=n)))
    expected = (np.abs(signs @ x) >= abs(x.sum()) - 1e-9).mean()
    assert sign_flip_p(x.tolist()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [17, 30])
def test_many_pairs_are_drawn(n):
    x = np.random.default_rng(n).normal(0.45, 1, n)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (200_000, n))
    expected = (np.abs(signs @ x) >= abs(x.sum())).mean()
    assert sign_flip_p(x.tolist()) == pytest.approx(expected, abs=5 * math.sqrt(expected / 20_000))
    assert 0 < sign_flip_p([1.0] * n) < 1e-3


def test_closed_forms():
    for n in range(1, 10):
        assert sign_flip_p([0.1] * n) == 2 / 2**n
        assert sign_flip_p([0.0] * n) == 1
    assert sign_flip_p([0.3, -0.1, -0.2]) == 1  # sums of zero, whatever the rounding
    assert sign_flip_p([0.1, 0.2, 0.3, -0.3]) == 12 / 16
    assert math.isnan(sign_flip_p([]))
    assert bootstrap_interval([2.5] * 6) == (2.5, 2.5)
    assert all(map(math.isnan, bootstrap_interval([1.0])))


@settings(deadline=None, max_examples=60)
@given(st.lists(FINITE, min_size=1, max_size=8), st.randoms(), st.floats(0.1, 10))
def test_the_test_knows_no_order_sign_or_unit(x, rng, unit):
    p = sign_flip_p(x)
    shuffled = rng.sample(x, len(x))
    assert sign_flip_p([-unit * one for one in shuffled]) == pytest.approx(p)
    assert 2.0 ** (1 - len(x)) <= p <= 1


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p):
    """A hypothesis is rejected when Bonferroni rejects each set of hypotheses that it is in."""
    expected = []
    for i in range(len(p)):
        rest = [j for j in range(len(p)) if j != i]
        sets = [{i, *more} for k in range(len(p)) for more in itertools.combinations(rest, k)]
        expected.append(min(1.0, max(len(one) * min(p[j] for j in one) for one in sets)))
    assert holm(p) == pytest.approx(expected)


def test_holm_passes_over_what_was_not_tested():
    assert holm([0.01, math.nan, 0.02])[0] == 0.02
    assert math.isnan(holm([0.01, math.nan])[1])


def within(count, of, probability):
    """Whether so many of so many are what that probability gives: 4.5 standard deviations."""
    return abs(count - of * probability) <= 4.5 * math.sqrt(of * probability * (1 - probability))


def test_the_test_holds_its_level_and_is_not_timid():
    """With 8 pairs and no difference p is uniform on the multiples of 1/128, for normal and for skewed noise alike."""
    rng = np.random.default_rng(0)
    noises = (rng.normal(size=(1500, 8)), rng.exponential(size=(1500, 8)) - rng.exponential(size=(1500, 8)))
    for x in noises:
        p = np.array([sign_flip_p(row.tolist()) for row in x])
        for k in (2, 6, 12, 64):
            assert within((p <= k / 128 + 1e-9).sum(), len(p), k / 128)


def columns_of_noise(count, rows, seeds, effect=0.0):
    """Values per row and seed, with a part that a seed's rows share; ``effect`` is the last row's."""
    rng = np.random.default_rng(rows)
    for _ in range(count):
        x = rng.normal(size=(rows, seeds)) + 2 * rng.normal(size=seeds)
        x[-1] += effect
        yield {str(row): dict(enumerate(values)) for row, values in enumerate(x.tolist())}


def test_false_discoveries_are_rare(monkeypatch):
    """Of columns without any difference, at most one in twenty names one; the best is marked as rarely."""
    monkeypatch.setattr(statistics, "DRAWS", 10)  # of the intervals, which do not matter here
    named = marked = power = 0
    for values in columns_of_noise(400, 4, 10):
        named += any(one.significant for one in summary._differences(values, "0", ["1", "2", "3"]).values())
        marked += summary._best(values, False) is not None
    for values in columns_of_noise(60, 4, 10, effect=4.0):
        power += summary._best(values, False) == "3"
    assert named <= 400 * 0.05 + 4.5 * math.sqrt(400 * 0.05 * 0.95)
    assert named > 400 * 0.01  # comparisons with one baseline depend on each other: below 5%, but not by much
    assert marked <= named + 10
    assert power > 50


@pytest.mark.parametrize("n", range(2, 8))
def test_intervals_of_few_pairs_are_students(n):
    x = np.random.default_rng(n).normal(0.3, 1, n)
    expected = scipy.stats.t.interval(0.95, n - 1, x.mean(), x.std(ddof=1) / math.sqrt(n))
    assert bootstrap_interval(x.tolist()) == pytest.approx(expected, rel=1e-3)


def test_intervals_cover(monkeypatch):
    """The plain percentile interval of 8 pairs covers the mean in about 88 of 100 cases."""
    rng = np.random.default_rng(0)
    with monkeypatch.context() as quicker:
        quicker.setattr(statistics, "DRAWS", 2000)
        for n in (3, 8, 20):
            inside = 0
            for x in rng.normal(1.0, 2.0, (500, n)).tolist():
                low, high = bootstrap_interval(x)
                inside += low <= 1.0 <= high
            assert 0.92 <= inside / 500 <= 0.98
    x = rng.normal(size=40)
    expected = scipy.stats.t.interval(0.95, 39, x.mean(), x.std(ddof=1) / math.sqrt(40))
    assert bootstrap_interval(x.tolist()) == pytest.approx(expected, abs=0.02)


# ---- from runs to numbers ----------------------------------------------------------------------


def test_numbers_by_hand(tmp_path):
    base, other = noisy(70, 8), noisy(72, 6, start=4)
    found = make(tmp_path, {("NCI1", BASE): base, ("NCI1", OTHER): other})
    (column,) = report.summarise(found).columns
    assert (column.baseline, list(column.cells), column.title) == (BASE, [BASE, OTHER], "NCI1")
    cell = column.cells[OTHER]
    assert (cell.mean, cell.sd) == (
        pytest.approx(np.mean(list(other.values()))),
        pytest.approx(np.std(list(other.values()), ddof=1)),
    )
    gaps = [other[seed] - base[seed] for seed in (4, 5, 6, 7)]
    one = cell.difference
    assert (one.pairs, one.mean) == (4, pytest.approx(np.mean(gaps)))
    assert (one.low, one.high) == bootstrap_interval(gaps)
    assert one.p == one.corrected == sign_flip_p(gaps)
    assert column.cells[BASE].difference is None
    assert cell.paper.printed == "79.30±0.67"


def test_corrected_within_a_column(tmp_path):
    table = {("A", BASE): noisy(70, 10), ("A", OTHER): noisy(71.5, 10), ("A", THIRD): noisy(70.5, 10)}
    (column,) = report.summarise(make(tmp_path, table)).columns
    differences = [column.cells[row].difference for row in (OTHER, THIRD)]
    assert [one.corrected for one in differences] == holm([one.p for one in differences])


def test_rows_are_in_an_order_that_no_interruption_changes(tmp_path):
    table = {("A", row): {0: 1.0} for row in (OTHER, THIRD, BASE, "untrained", "degrees")}
    found = make(tmp_path, table)
    for some in (found, found[::-1]):
        (column,) = report.summarise(some).columns
        assert list(column.cells) == ["degrees", "untrained", BASE, OTHER, THIRD]


def test_what_else_differs_names_rows(tmp_path):
    for epochs in (5, 10):
        make(tmp_path, {("A", BASE): {0: 1.0 * epochs}, ("A", OTHER): {0: 2.0}}, epochs=epochs, batch=8)
    make(tmp_path, {("B", BASE): {0: 3.0}}, epochs=7, batch=9)
    first, second = report.summarise(store.find_runs(tmp_path)).columns
    assert list(first.cells) == [f"{row}, epochs={n}" for row in (OTHER, BASE) for n in (10, 5)]
    assert list(second.cells) == [f"{BASE}, epochs=7"]  # its batch differs from the other data's, as it may
    assert first.cells[f"{BASE}, epochs=10"].mean == 10


def test_a_label_gathers_what_each_data_set_needs(tmp_path):
    for dataset, spec in (("A", "adnce:mu=0.2"), ("B", "adnce:mu=0.9")):
        make(tmp_path, {(dataset, spec): {0: 1.0}}, label="tuned")
    columns = report.summarise(store.find_runs(tmp_path)).columns
    assert [list(column.cells) for column in columns] == [["tuned"], ["tuned"]]
    make(tmp_path, {("A", "adnce:mu=0.3"): {0: 1.0}}, label="tuned")
    columns = report.summarise(store.find_runs(tmp_path)).columns
    assert len(columns[0].cells) == 2
    assert all(row.startswith("tuned, objective=adnce:") for row in columns[0].cells)


def test_several_metrics_and_missing_numbers(tmp_path):
    found = make(
        tmp_path,
        {("A", BASE): {0: {"x": 1.0, "y": 2.0}, 1: {"x": 3.0, "y": math.nan}}, ("B", BASE): {0: {"x": 5.0}}},
    )
    assert [column.title for column in report.summarise(found).columns] == ["A", "B"]
    columns = report.summarise(found, metrics=["y", "x"]).columns
    assert [column.title for column in columns] == ["A y", "A x", "B x"]
    assert columns[0].cells[BASE].values == {0: 2.0}
    assert [c.title for c in report.summarise(found[:2], metrics=["y", "x"]).columns] == ["y", "x"]


def test_losses_of_different_objectives_are_not_compared(tmp_path):
    losses = {row: {k: {"loss": v} for k, v in noisy(mean, 10, 0.3).items()} for row, mean in ((BASE, 3), (OTHER, 9))}
    found = make(tmp_path, {("A", row): values for row, values in losses.items()})
    for baseline in (None, BASE):
        (column,) = report.summarise(found, baseline=baseline).columns
        assert column.baseline is None
        assert not any(cell.best or cell.difference for cell in column.cells.values())
        assert "losses are not compared" in reading(column)
    (column,) = report.summarise(found, lower=True).columns
    assert [row for row, cell in column.cells.items() if cell.best] == [BASE]
    found = make(tmp_path, {("B", BASE): {0: {"loss": 3.0, "STSB": 80.0}}})
    assert [column.metric for column in report.summarise(found).columns] == ["STSB"]


def test_what_could_not_be_computed_is_said(tmp_path):
    table = {BASE: {0: 70.0, 1: 71.0}, OTHER: {0: math.nan, 1: 72.0}, THIRD: {0: math.nan, 1: math.nan}}
    found = make(tmp_path, {("A", row): values for row, values in table.items()})
    (said,) = report.summarise(found).notes
    assert said == f"A: no accuracy could be computed for {OTHER} (1 run), {THIRD} (2 runs): left out of all means."
    nothing = report.summarise([run for run in found if run.name == THIRD])
    assert nothing.columns == []
    assert f"no accuracy could be computed for {THIRD} (2 runs)" in report.terminal(nothing)


def test_the_best_is_marked_where_the_test_says_so(tmp_path):
    table = {("A", BASE): noisy(70, 10, 0.3), ("A", OTHER): noisy(74, 10, 0.3), ("A", THIRD): noisy(74.01, 10, 0.3)}
    (column,) = report.summarise(make(tmp_path, table)).columns
    assert all(column.cells[row].difference.significant for row in (OTHER, THIRD))
    assert not any(cell.best for cell in column.cells.values())  # the two are alike
    some = [run for run in store.find_runs(tmp_path) if run.name != THIRD]
    assert [row for row, cell in report.summarise(some).columns[0].cells.items() if cell.best] == [OTHER]
    assert [row for row, cell in report.summarise(some, lower=True).columns[0].cells.items() if cell.best] == [BASE]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({BASE: noisy(70, 10), OTHER: noisy(75, 10)}, f"A: against {BASE}, 10 paired seeds, higher: {OTHER} (by "),
        ({BASE: noisy(70, 10), OTHER: noisy(65, 10)}, f"lower: {OTHER} (by "),
        ({BASE: noisy(70, 10), OTHER: noisy(70.01, 10)}, f"10 paired seeds, no difference found for {OTHER}."),
        (
            {BASE: noisy(70, 5), OTHER: noisy(90, 5), THIRD: noisy(80, 5)},
            "no difference found for any of 2 rows; with so few seeds none could be: 2 comparisons need 7.",
        ),
        ({BASE: noisy(70, 5), OTHER: noisy(90, 5)}, "one comparison needs 6."),
        ({BASE: {0: 1.0}, OTHER: {0: 2.0}}, "1 paired seed, no interval and no test: one seed says nothing about"),
        ({BASE: {0: 1.0}, OTHER: {1: 2.0}}, f"nothing shares a seed with {BASE}."),
        ({OTHER: {0: 1.0}, THIRD: {0: 2.0}}, "no baseline (--baseline names one)."),
        ({BASE: {0: 1.0}, "infonce:t=0.1": {0: 2.0}}, "no baseline (--baseline names one)."),
        ({OTHER: {0: 1.0}}, "one row, nothing to compare."),
        (
            {BASE: noisy(70, 6), OTHER: noisy(70.5, 4), THIRD: noisy(70.2, 6)},
            "4 to 6 paired seeds",
        ),
    ],
)
def test_readings(tmp_path, table, said):
    (column,) = report.summarise(make(tmp_path, {("A", row): values for row, values in table.items()})).columns
    assert said in reading(column)
    assert reading(column).startswith("A: ")
    assert reading(column).endswith(".")


def test_a_reading_says_whether_the_papers_difference_is_ours(tmp_path):
    base = noisy(86, 8, 0.5)
    for shift, where in ((2.24, "in"), (0.0, "not in")):
        other = {seed: value + shift + 0.1 * (-1) ** seed for seed, value in base.items()}
        root = tmp_path / where
        (column,) = report.summarise(make(root, {("MUTAG", BASE): base, ("MUTAG", OTHER): other})).columns
        assert f"the paper's +2.24 for {OTHER} is {where} our interval" in reading(column)


def test_the_smallest_number_of_seeds_that_can_show_a_difference():
    for tests in (1, 3, 9):
        n = words._seeds_needed(tests)
        assert holm([sign_flip_p([1.0] * n)] * tests)[0] < summary.LEVEL
        assert holm([sign_flip_p([1.0] * (n - 1))] * tests)[0] >= summary.LEVEL


def test_notes(tmp_path, monkeypatch):
    make(tmp_path, {("A", BASE): {0: 1.0}})
    monkeypatch.setattr(cp, "__version__", "0.0.9")
    make(tmp_path, {("A", BASE): {1: 1.0}})
    with pytest.raises(store.GridError):
        store.run_grid(
            lambda run: None, [{"domain": "graph", "dataset": "A", "objective": BASE, "seed": 2}], tmp_path,
            progress=False,
        )  # fmt: skip
    notes = report.summarise(store.find_runs(tmp_path)).notes
    assert notes[0] == "1 of 3 runs are left out: 1 failed."
    assert notes[1].startswith("Runs of several versions of counterpoint: 0.0.9, ")


# ---- in every form -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    table = {("MUTAG", row): noisy(86 + i, 8, 0.2) for i, row in enumerate((BASE, OTHER, "untrained"))}
    table |= {("PROTEINS", row): noisy(75 + i / 10, 5) for i, row in enumerate((BASE, OTHER, THIRD))}
    make(root, table)
    return root


def test_csv_and_json_hold_the_same_numbers(study):
    found = report.summarise(store.find_runs(study))
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(found))))
    data = json.loads(report.RENDER["json"](found), parse_constant=pytest.fail)
    rows = [(column, row) for column in data["columns"] for row in column["rows"]]
    assert len(lines) == len(rows) == 6
    for line, (column, row) in zip(lines, rows, strict=True):
        assert (line["dataset"], line["row"], line["best"]) == (column["dataset"], row["row"], str(int(row["best"])))
        assert float(line["mean"]) == row["mean"] == fmean(row["values"].values())
        one = row["difference"]
        assert (line["p_corrected"] == "") == (one is None)
        if one:
            assert [float(line[k]) for k in ("pairs", "difference", "low", "high", "p", "p_corrected")] == list(
                one.values()
            )
        assert line["paper"] == ("" if row["paper"] is None else str(row["paper"]["value"]))


def test_csv_holds_no_formulas(tmp_path):
    rows = ("=1+1", "+1", "-1", "@x", "\tx", "\rx", "plain=1", "'=1")
    make(tmp_path, {("=cmd|' /C calc'!A0", row): {0: -1.5, 1: -2.5} for row in rows})
    text = tables.as_csv(report.summarise(store.find_runs(tmp_path)))
    for line in csv.DictReader(io.StringIO(text, newline="")):
        assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in line.values())
        assert line["dataset"] == "'=cmd|' /C calc'!A0"
        assert line["row"] in {f"'{row}" for row in rows[:5]} | {"' x"} | set(rows[6:])
        assert float(line["mean"]) == -2.0  # numbers stay numbers
        assert [name for name, cell in line.items() if cell.startswith("-")] == ["mean"]


def test_markdown_is_a_table_with_the_best_in_bold(study):
    found = report.summarise(store.find_runs(study))
    text = report.markdown(found)
    tables = [list(group) for is_row, group in itertools.groupby(text.splitlines(), lambda x: x[:1] == "|") if is_row]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
        assert set(table[1]) <= set("| -")
    best = [cell for column in found.columns for cell in column.cells.values() if cell.best]
    assert len(best) == 1
    assert text.count("**") == 2 * 2 * len(best)  # in the table of all columns and in its own
    assert f"| **{best[0].mean:.2f} ± {best[0].sd:.2f} (8)** |" in text
    assert "(ADNCE, Table 10, NO PRE-TRAIN)" in text


def test_terminal_columns_are_aligned(study):
    text = report.terminal(report.summarise(store.find_runs(study)))
    block = text.split("== graph: MUTAG, accuracy ==\n")[1].split("\n\n")[0].splitlines()
    header = block[0]
    for title in ("mean ± sd", "minus baseline", "p, corrected", "paper"):
        at = header.index(title)
        assert all(line[at - 2 : at].strip() == "" for line in block[1:])
    assert f"{BASE} (baseline)" in text


def test_all_results_of_a_training_are_shown_within_the_width(tmp_path, capsys):
    probes = [f"probe{i}" for i in range(9)]
    found = make(
        tmp_path, {("A", BASE): {0: dict.fromkeys(probes, 1.0)}, ("A", "hcl"): {0: dict.fromkeys(probes, 2.0)}}
    )
    report.show(found, as_json=False)
    said = capsys.readouterr().out
    overview = said.partition("\n\n")[0]
    assert max(map(len, overview.splitlines())) <= tables.WIDTH
    heads = [line.partition(" (their number)")[2].split() for line in overview.splitlines() if line.startswith("mean")]
    assert len(heads) > 1
    assert [name for block in heads for name in block] == probes
    assert [name for name in probes if f"== graph: {name} ==" in said] == probes


def test_the_command(study, tmp_path, capsys):
    assert main(["report", str(study), "--out", str(tmp_path / "out"), "--baseline", "adnce:t=0.2"]) == 0
    out, err = capsys.readouterr()
    assert f"against {OTHER}" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"graph-{name}-{kind}.png" for name in ("MUTAG", "PROTEINS") for kind in ("accuracy", "curves")}
    assert names == {"report.html", "report.md", "report.csv", "report.json", *pictures}
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert err.count("wrote ") == 8
    for form in report.RENDER:
        assert main(["report", str(study / "graph" / "MUTAG"), "--format", form]) == 0
        out = capsys.readouterr().out
        assert "MUTAG" in out
        assert "PROTEINS" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{empty}"], "no runs in "),
        (["{empty}/nothing"], "no such folder"),
        (["{study}", "--metric", "acuracy"], "unknown metric 'acuracy'. Did you mean 'accuracy'?"),
        (["{study}", "--baseline", "untraind"], "unknown baseline 'untraind'. Did you mean 'untrained'?"),
        (["{study}", "--baseline", "dcl"], "unknown baseline 'dcl'."),
        (["{study}", "{copy}"], "are the same run: name one of the folders only."),
        (["{study}", "--out", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(study, tmp_path, capsys, words, said):
    shutil.copytree(study, tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    folders = {"study": study, "empty": tmp_path / "empty", "copy": tmp_path / "copy"}
    assert main(["report", *(word.format(**folders) for word in words)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_unfinished_and_ambiguous(tmp_path):
    with pytest.raises(store.GridError) as caught:
        store.run_grid(
            lambda run: None, [{"domain": "graph", "dataset": "A", "objective": BASE, "seed": 2}], tmp_path,
            progress=False,
        )  # fmt: skip
    with pytest.raises(ValueError, match="none of the 1 runs is done"):
        report.summarise(caught.value.runs)
    found = [run for n in (1, 2) for run in make(tmp_path, {("A", BASE): {0: 1.0}}, epochs=n)]
    with pytest.raises(ValueError, match=r"baseline 'infonce:t=0.2' may mean .*epochs=1' or .*epochs=2': give one"):
        report.summarise(found, baseline="infonce:t=0.2")
    (column,) = report.summarise(found, baseline=f"{BASE}, epochs=2").columns
    assert column.baseline == f"{BASE}, epochs=2"


def test_without_matplotlib(study, tmp_path, monkeypatch, capsys):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    assert f"no pictures: plots need matplotlib: {install('plots')}\n" in capsys.readouterr().err
    assert (tmp_path / "report.csv").exists()


def test_without_scipy_the_means_remain(study, tmp_path, monkeypatch, capsys):
    whole = report.summarise(store.find_runs(study))
    for module in ("scipy", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"Means only: intervals and tests need scipy: {install('report')}." in printed
    assert f"against {BASE}, 8 paired seeds, no intervals and no tests without scipy." in printed
    assert "not tested without scipy" in printed
    assert "found" not in printed.partition("Means only")[0]
    means = report.summarise(store.find_runs(study))
    for column, tested in zip(means.columns, whole.columns, strict=True):
        assert not any(cell.best for cell in column.cells.values())
        for row, cell in column.cells.items():
            assert (cell.values, cell.mean, cell.sd) == (
                tested.cells[row].values, tested.cells[row].mean, tested.cells[row].sd,
            )  # fmt: skip
            if cell.difference is not None:
                assert cell.difference.mean == tested.cells[row].difference.mean
                assert math.isnan(cell.difference.low)
                assert math.isnan(cell.difference.p)
    for form in report.RENDER:
        assert "nan" not in report.RENDER[form](means)
    with pytest.raises(ImportError, match=re.escape(install("report"))):
        sign_flip_p([1.0, 2.0])


def test_without_scipy_what_needs_no_test_is_not_remarked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert report.summarise(make(tmp_path, {("A", BASE): noisy(70, 3)})).notes == []


def test_the_command_offers_every_format():
    assert tuple(report.RENDER) == FORMATS


# ---- pictures ----------------------------------------------------------------------------------


def test_the_picture_of_a_column_shows_its_numbers(study):
    column = report.summarise(store.find_runs(study)).columns[0]
    left, right = plots.plot_column(column).axes
    rows = list(column.cells)
    assert [label.get_text().replace("\n", "").replace(" ", "") for label in left.get_yticklabels()] == [
        row.replace(" ", "") for row in rows
    ]
    drawn = {line.get_marker(): [] for line in left.lines}
    for line in left.lines:
        drawn[line.get_marker()].append((line.get_ydata()[0], list(line.get_xdata())))
    assert drawn["o"] == [(y, list(column.cells[row].values.values())) for y, row in enumerate(rows)]
    assert drawn["|"] == [(y, [column.cells[row].mean]) for y, row in enumerate(rows)]
    assert drawn["D"] == [(y, [column.cells[row].paper.value]) for y, row in enumerate(rows)]
    compared = {y: column.cells[row].difference for y, row in enumerate(rows) if row != column.baseline}
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in right.patches}
    assert {y: bar.get_width() for y, bar in bars.items()} == {y: pytest.approx(d.mean) for y, d in compared.items()}
    assert {y: bar.get_facecolor()[3] > 0 for y, bar in bars.items()} == {y: d.significant for y, d in compared.items()}
    intervals = [list(line.get_xdata()) for line in right.lines if len(set(line.get_xdata())) == 2]
    assert intervals == [[d.low, d.high] for d in compared.values()]


def test_curves_are_means_over_seeds(study):
    column = report.summarise(store.find_runs(study)).columns[0]
    figure = plots.plot_curves(column)
    (axes,) = figure.axes
    assert "each objective's own" in axes.get_title()
    assert len(axes.lines) == len(column.cells)
    for line in axes.lines:
        assert list(line.get_xdata()) == [1, 2, 3]
        assert list(line.get_ydata()) == pytest.approx([1 / step + 3.5 for step in (1, 2, 3)])  # seeds 0 to 7


def test_long_curves_are_averaged_and_short_ones_of_one_seed_do_not_bend_them():
    lines = [{"step": step, "loss": float(step)} for step in range(600)]
    steps, mean, spread = plots._band([plots._by_name(lines), plots._by_name(lines[:480])], "loss")
    assert len(steps) == plots.POINTS
    assert steps == mean
    assert (steps[0], steps[-1]) == (3.5, 475.5)
    assert set(spread) == {0.0}


def test_curves_say_what_they_run_over(tmp_path):
    def train(run):
        if run.arguments["seed"] < 2:
            run.counts("epoch")
        for step in (1, 2):
            run.log(step, loss=step)
        run.finish({"x": 1.0})

    cell = {"domain": "graph", "dataset": "A", "objective": BASE}
    for seeds, said in (((0, 1), "epoch"), ((1, 2), "epoch or step"), ((2, 3), "step")):
        store.run_grid(train, [{**cell, "seed": seed} for seed in seeds], tmp_path / said, progress=False)
        again = report.summarise(store.find_runs(tmp_path / said))  # as a report reads them
        (axes,) = plots.plot_curves(again.columns[0]).axes
        assert axes.get_xlabel() == said


def test_runs_that_logged_nothing_have_no_curves(tmp_path):
    cell = {"domain": "graph", "dataset": "A", "objective": BASE, "seed": 0}
    found = store.run_grid(lambda run: run.finish({"x": 1.0}), [cell], tmp_path, progress=False)
    assert plots.plot_curves(report.summarise(found).columns[0]) is None


# ---- the papers --------------------------------------------------------------------------------


def test_curls_numbers_are_of_bilinear_scores():
    for spec, printed in (("infonce:t=1", "680±32"), ("infonce:t=1 + 0.1*dp", "682±13")):
        about = ("control", "cartpole-swingup", spec, "score at 100k")
        assert papers.paper_number(*about, {"scores": "bilinear"}).printed == printed
        assert papers.paper_number(*about, {"scores": "cosine"}) is None


@pytest.mark.parametrize(
    ("domain", "dataset", "objective", "metric", "printed", "source"),
    [
        ("graph", "NCI1", "adnce", "accuracy", "79.30±0.67", "ADNCE, Table 10, ADNCE"),
        ("graph", "IMDB-BINARY", "infonce:t=0.2", "svm", "71.14±0.44", "ADNCE, Table 10, GRAPHCL"),
        ("graph", "REDDIT-BINARY", "infonce:t=0.15", "accuracy", "90.7±0.6", "ADNCE, Table 5, GraphCL (τ^*)"),
        ("graph", "MUTAG", "Untrained", "accuracy", "87.39±1.09", "ADNCE, Table 10, NO PRE-TRAIN"),
        ("sentence", "wiki", "adnce:mu=0.4,t=0.07", "avg", "77.03", "ADNCE, Table 4, ADNCE-BERT-base"),
        ("sentence", "wiki", "infonce:t=0.05", "STS-B", "76.85", "ADNCE, Table 4, SimCSE-BERT-base (τ_0)"),
        ("sentence", "books", "hcl + 0.1*dp", "mrpc", "74.2", "LMCL, Table 4, LMCL(HCL+DP)"),
        ("control", "reacher-easy", "infonce:t=1 + 0.1*dp", "score", "926±73", "LMCL, Table 5, LMCL(CURL+DP)"),
        ("image", "cifar10", "adnce:t=0.4", "linear", "91.88", "ADNCE, Table 3, ADNCE"),
        ("image", "imagenet-100", "dcl", "linear_top5", "92.08", "LMCL, Table 2, DCL"),
        ("image", "imagenet", "arcl(infonce):views=3", "finetune:cars", "86.34",
         "ArCL, Table 3, MoCo + ArCL(views=3), 800+50 epochs"),
        ("image", "cifar10", "arcl(infonce):views=8", "aug 3", "90.98",
         "ArCL, Table 2, SimCLR + ArCL(views=8), batch 512"),
        ("image", "mnist-cifar", "aal(infonce):views=5", "accuracy", "86.3", "ArCL, Table 7, SimCLR + AAL(views=5)"),
        ("image", "cifar100", "mixnca:g=g0,lam=0.9", "fgsm", "30.95±0.36",
         "IntNaCl, Table 2, MIXNCA(g0, λ = 0.9), M = 2"),
        ("image", "cifar10", "debpos:aggregation=group_mean", "top5", "98.86",
         "debiased positives, Table 1, DebiasedPos, pos-grouping, M = 2, batch 512"),
    ],
)  # fmt: skip
def test_paper_numbers(domain, dataset, objective, metric, printed, source):
    found = papers.paper_number(domain, dataset, objective, metric)
    assert (found.printed, found.source) == (printed, source)
    value, _, spread = printed.partition("±")
    assert (found.value, found.spread) == (float(value), float(spread) if spread else None)


def test_arguments_choose_among_rows():
    chosen = [
        papers.paper_number("image", "cifar100", "intnacl:base=mixnca,lam=0.7", "linear", {"positives": m}).printed
        for m in (2, 5)
    ]
    assert chosen == ["58.00±0.18", "58.37±0.14"]
    assert papers.paper_number("image", "cifar10", "infonce", "aug 1", {"batch": 512}).printed == "88.62"


@pytest.mark.parametrize(
    ("domain", "dataset", "objective", "metric"),
    [
        ("graph", "PROTEINS", "hcl", "accuracy"),
        ("graph", "PROTEINS", "adnce", "knn"),  # another measure than the paper's
        ("graph", "demo", "adnce", "accuracy"),
        ("image", "PROTEINS", "adnce", "accuracy"),
        ("graph", "MUTAG", "node degrees", "accuracy"),
        ("image", "cifar10", "nca", "linear"),  # CIFAR10 there is what CIFAR100's representation is transferred to
        ("graph", "NCI1", "arcl(adnce)", "accuracy"),
    ],
)
def test_no_number_where_the_papers_have_none(domain, dataset, objective, metric):
    assert papers.paper_number(domain, dataset, objective, metric) is None


def test_settings():
    assert papers.paper_settings("image", "cifar10") == {"t": 0.4, "mu": 0.7, "sigma": 0.5}
    assert papers.paper_settings("sentence", "RoBERTa-base") == {"t": 0.06, "mu": 2.0, "sigma": 1.0}
    assert papers.paper_settings("graph", "IMDB-BINARY") == {"t": 0.5, "mu": 0.7, "sigma": 1.0}
    assert papers.paper_settings("graph", "ENZYMES") is None


def patterns(pattern):
    if isinstance(pattern, dict):
        yield pattern
    for part in pattern.values() if isinstance(pattern, dict) else pattern if isinstance(pattern, list) else ():
        yield from patterns(part)


def test_every_table_is_whole():
    for table in papers._content()["tables"]:
        columns = table["columns"]
        assert set(table.get("datasets", {})) <= set(columns)
        assert not isinstance(table["metrics"], dict) or set(table["metrics"]) <= set(columns)
        for row in table["rows"]:
            assert len(row["values"]) == len(columns), row
            for printed in row["values"]:
                assert printed == "-" or papers.PaperNumber("", "", "", "", "", printed).value >= 0
            for pattern in patterns(row.get("is")):
                if pattern["name"] != "sum":
                    assert set(pattern) <= {"name", "objective", *cp.registry[pattern["name"]].hyper}, pattern


def test_averages_are_those_of_the_rows():
    """A digit mistaken in copying would show; three averages do not agree in the papers themselves."""
    printed_so = {"ADNCE-RoBERTa-base", "INFOGRAPH", "MoCo + ArCL(views=2), 200 epochs"}
    off = set()
    for table in papers._content()["tables"]:
        at = [i for i, column in enumerate(table["columns"]) if column.lower().startswith("avg")]
        for row in table["rows"] if at else ():
            numbers = [float(x.partition("±")[0]) for x in row["values"]]
            rest = [x for x, column in zip(numbers, table["columns"], strict=True) if column != "ImageNet"]
            if abs(fmean(rest[:-1]) - rest[-1]) > 0.0101:
                off.add(row["row"])
    assert off == printed_so
