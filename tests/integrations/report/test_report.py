"""The report: its statistics against closed forms, its words against its statistics."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import shutil
import sys
import warnings
from statistics import fmean

import numpy as np
import pytest
from documents import ROOT
from matplotlib.text import Text
from reports import BASE, OTHER, THIRD, make, noisy

import counterpoint as cp
from counterpoint.diagnose import figure
from counterpoint.install import install
from counterpoint.integrations import report, store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.command.report import FORMATS
from counterpoint.integrations.compare.notes import write_notes
from counterpoint.integrations.report import papers, plots, statistics, tables, words
from counterpoint.integrations.report.statistics import compare
from counterpoint.integrations.report.summary import digits
from counterpoint.integrations.report.words import reading
from counterpoint.integrations.store.run import TUNING
from counterpoint.plugins.printing import visible

ADNCE = cp.objective("adnce:t=0.15,mu=0.7,sigma=1").label  # with the paper's settings for MUTAG


def papers_setup(dataset):
    (table,) = (table for table in papers._content()["tables"] if (table["paper"], table["table"]) == ("ADNCE", "10"))
    return table["setup"] | {"augment": table["setup"]["augment"][dataset]}


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
    assert (one.pairs, one.difference) == (4, pytest.approx(np.mean(gaps)))
    assert one == compare(base, {OTHER: other}, 0.5)[OTHER]
    assert column.cells[BASE].difference is None


def test_rows_are_said_to_be_chosen_where_they_were(tmp_path):
    """A search for one script says nothing of the rows of another."""
    untuned = make(tmp_path, {("a.py", BASE): noisy(70, 3)}, "compare")
    untuned += make(tmp_path, {("a.py", "host"): noisy(70, 3)}, "compare", objective="host", label="host")
    scripts = "a.py", "b.py"
    tuning = {name: make(tmp_path, {(name, BASE): noisy(70, 2)}, "compare", purpose=TUNING) for name in scripts}
    for name, said in (("a.py", True), ("b.py", False)):
        notes = " ".join(report.summarise(untuned + tuning[name]).notes)
        assert ("host is your loss as it is, the other rows were chosen" in notes) is said
        edited = make(tmp_path, {(name, BASE): noisy(70, 2)}, "compare", purpose=TUNING, code="another")
        assert "the other rows were chosen" not in " ".join(report.summarise(untuned + edited).notes)
        searched = {run.folder.name: BASE for run in untuned}
        notes = " ".join(report.summarise(untuned + tuning[name], searched=searched).notes)
        assert "the other rows were chosen" not in notes  # but they are compared with one of these


@pytest.mark.parametrize(("mean", "places"), [(412.0, 1), (-70.0, 2), (0.7, 4), (0.012, 4), (3.14e-8, 10), (0.0, 4)])
def test_small_numbers_show_three_digits(mean, places):
    assert digits([0.0, mean]) == places


def test_one_family_per_column_without_the_rows_that_train_nothing(tmp_path):
    rows = {BASE: noisy(70, 10), OTHER: noisy(71.5, 10), THIRD: noisy(70.5, 10)}
    checks = {"untrained encoder": noisy(50, 10), "bag of nodes": noisy(69.9, 10)}
    found = make(tmp_path, {("A", row): values for row, values in (rows | checks).items()})
    (column,) = report.summarise(found).columns
    assert column.compared == compare(rows[BASE], {row: rows[row] for row in (OTHER, THIRD)}, 0.5)
    assert column.checks == {check: compare(values, rows, 0.5) for check, values in checks.items()}
    (column,) = report.summarise(found, baseline="untrained encoder", margin=7).columns
    assert column.compared == compare(checks["untrained encoder"], rows, 7)
    assert list(column.checks) == ["bag of nodes"]


def test_rows_of_weight_zero_are_checks(tmp_path):
    rows = {
        BASE: noisy(70, 10),
        OTHER: noisy(71.5, 10),
        f"0*{BASE}": noisy(50, 10),
        f"0*{BASE} + {OTHER}": noisy(71, 10),
    }
    found = make(tmp_path, {("A", row): values for row, values in rows.items()})
    (column,) = report.summarise(found).columns
    assert [*column.checks] == [f"0*{BASE}"]
    assert [*column.compared] == [f"0*{BASE} + {OTHER}", OTHER]
    assert f"A: over 0*{BASE}, +" in reading(column)


def test_the_majority_class_is_no_achievement(tmp_path):
    values = {BASE: noisy(55.5, 8, 0.2), OTHER: noisy(55.4, 8, 0.2)}
    table = {("PTC", row): rows for row, rows in values.items()}
    for majority, said in ((55.8, True), (50.0, False)):
        found = make(tmp_path / str(majority), table)
        for run in found:
            with run.lock():
                run.finish(run.result, majority={"accuracy": majority})
        (column,) = report.summarise(store.find_runs(tmp_path / str(majority))).columns
        assert (column.majority, column.uninformative) == (pytest.approx(majority), said)
        sentence = "this data set tells nothing: no row is found above the majority class (55.80)"
        assert (sentence in reading(column)) == said


def test_data_sets_are_pooled(tmp_path):
    table = {(name, row): noisy(mean + i, 5) for i, name in enumerate("ABC") for row, mean in
             ((BASE, 70), (OTHER, 76), (THIRD, 69.3))}  # fmt: skip
    (pooled,) = report.summarise(make(tmp_path, table)).pooled
    columns = report.summarise(store.find_runs(tmp_path)).columns
    rows = {row: [column.compared[row] for column in columns] for row in (OTHER, THIRD)}
    assert pooled.verdicts == statistics.pool(rows, 0.5)
    said = report.terminal(report.summarise(store.find_runs(tmp_path))).replace("\n", " ")
    assert f"graph, accuracy: over 3 data sets against {BASE}: higher: {OTHER} (by " in said
    some = [run for run in store.find_runs(tmp_path) if run.arguments["dataset"] != "C"]
    assert report.summarise(some).pooled == []


@pytest.mark.parametrize(
    ("largest", "margin"), [(0.3, 0.005), (1, 0.005), (1.2, 0.05), (12, 0.5), (100, 0.5), (400, 5)]
)
def test_the_margin_is_half_a_point_of_the_scale(tmp_path, largest, margin):
    (column,) = report.summarise(
        make(tmp_path, {("A", BASE): {0: largest, 1: -2.0}, ("A", OTHER): {0: largest}})
    ).columns
    assert column.margin == pytest.approx(margin)


def test_rows_are_in_an_order_that_no_interruption_changes(tmp_path):
    table = {("A", row): {0: 1.0} for row in (OTHER, THIRD, BASE, "untrained", "degrees")}
    found = make(tmp_path, table)
    for some in (found, found[::-1]):
        (column,) = report.summarise(some).columns
        assert list(column.cells) == ["degrees", "untrained", BASE, OTHER, THIRD]


def test_other_settings_have_tables_of_their_own(tmp_path):
    for epochs in (5, 10):
        make(tmp_path, {("A", BASE): {0: 1.0 * epochs}, ("A", OTHER): {0: 2.0}}, epochs=epochs, batch=8)
    make(tmp_path, {("A", BASE): {0: 4.0}}, epochs=10, batch=8, pairing="views")  # the objective's own
    make(tmp_path, {("B", BASE): {0: 3.0}}, epochs=7, batch=9)
    make(tmp_path, {("A", "untrained"): {0: 0.5}}, epochs=0, batch=8)
    make(tmp_path, {("A", "bag"): {0: 0.5}}, epochs=0, batch=16)  # of another batch
    columns = report.summarise(store.find_runs(tmp_path)).columns
    rows = {column.title: list(column.cells) for column in columns}
    assert rows == {
        "A (batch=8, epochs=10)": ["untrained", OTHER, f"{BASE}, pairing=None", f"{BASE}, pairing=views"],
        "A (batch=8, epochs=5)": ["untrained", f"{BASE}, pairing=None", OTHER],
        "A (batch=16, epochs=0)": ["bag"],
        "B": [f"{BASE}, pairing=None"],
    }
    (short,) = (column for column in columns if "epochs=5" in column.title)
    assert short.cells[f"{BASE}, pairing=None"].mean == 5


def test_another_length_on_purpose_stands_in_the_same_table(tmp_path):
    """A row at equal time has a ``length``; other rows of another length have tables of their own."""
    base, short = noisy(70, 5), {seed: value + 3 for seed, value in noisy(70, 5).items()}
    found = make(tmp_path, {("NCI1", BASE): base}, epochs=8, every=2, batch=64)
    found += make(tmp_path, {("NCI1", "untrained encoder"): noisy(50, 5)}, epochs=0, every=2, batch=64)
    at_equal_time = {"label": "InfoNCE at equal time", "epochs": 4, "every": 1}
    equal = make(tmp_path, {("NCI1", BASE): short}, length=4, batch=64, **at_equal_time)
    (column,) = report.summarise(found + equal).columns  # the baseline is the one of the whole length
    assert list(column.cells) == ["untrained encoder", BASE, "InfoNCE at equal time"]
    assert column.compared["InfoNCE at equal time"].different
    assert set(column.checks["untrained encoder"]) == {BASE, "InfoNCE at equal time"}
    other = make(tmp_path / "b", {("NCI1", BASE): short}, batch=64, **at_equal_time)
    assert len(report.summarise(found + other, baseline=BASE).columns) == 2
    other = make(tmp_path / "c", {("NCI1", BASE): short}, length=4, batch=32, **at_equal_time)
    assert len(report.summarise(found + other, baseline=BASE).columns) == 2


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
        tmp_path, {("A", BASE): {0: {"x": 1.0, "y": 2.0}, 1: {"x": 3.0, "y": math.nan}}, ("B", BASE): {0: {"x": 5.0}}}
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
    assert all(column.cells[row].difference.different for row in (OTHER, THIRD))
    assert not any(cell.best for cell in column.cells.values())  # the two are alike
    some = [run for run in store.find_runs(tmp_path) if run.name != THIRD]
    assert [row for row, cell in report.summarise(some).columns[0].cells.items() if cell.best] == [OTHER]
    assert [row for row, cell in report.summarise(some, lower=True).columns[0].cells.items() if cell.best] == [BASE]
    (alone,) = report.summarise([run for run in some if run.name == BASE]).columns
    assert not alone.cells[BASE].best


def test_no_row_is_the_best_of_which_the_table_cannot_tell_a_difference(tmp_path):
    """Its tests against all rows find one, those against the baseline, corrected for another family, do not."""
    scores = {BASE: (45.296, 43.898, 44.332), OTHER: (46.014, 45.322, 45.309), THIRD: (43.444, 42.723, 43.329)}
    found = make(tmp_path, {("A", row): dict(enumerate(values)) for row, values in scores.items()})
    (column,) = report.summarise(found, baseline=THIRD).columns
    assert [row for row, cell in column.cells.items() if cell.best] == [OTHER]
    (column,) = report.summarise(found, baseline=BASE).columns
    assert not column.cells[OTHER].difference.different
    assert not any(cell.best for cell in column.cells.values())


def test_sentences_name_four_rows_at_most(tmp_path):
    table = {("A", f"hcl:t=0.{i}"): noisy(70 + i, 5, 0.1) for i in range(1, 8)} | {("A", BASE): noisy(60, 5, 0.1)}
    (column,) = report.summarise(make(tmp_path, table), baseline=BASE).columns
    assert reading(column).count("(by ") == 4
    assert reading(column).endswith(" and 3 more.")


def test_rows_with_few_seeds_are_not_told_apart_from_nothing(tmp_path):
    """A row without a test cannot be said to be like the baseline; and a mean has other seeds than a difference."""
    table = {
        ("A", BASE): noisy(70, 5),
        ("A", OTHER): noisy(76, 3),
        ("B", BASE): noisy(70, 2),
        ("B", OTHER): noisy(76, 2),
    }
    summary = report.summarise(make(tmp_path, table))
    said = words.overview_reading(summary.columns)
    assert "2 comparisons with a baseline in 2 columns, 1 different, 0 equivalent, 0 cannot tell, 1 with less" in said
    later = {("C", BASE): noisy(70, 3), ("C", OTHER): noisy(76, 5)}
    (column,) = report.summarise(make(tmp_path / "more", later)).columns
    verdict = column.cells[OTHER].difference
    shown = next(iter(tables.tables(report.Report([column], []), "{}"))).body
    assert f"+{verdict.difference:.2f} [{verdict.low:+.2f}, {verdict.high:+.2f}], 3 seeds" in {*shown[-1], *shown[0]}


def test_numbers_of_several_data_sets_are_in_the_overview(tmp_path):
    table = {(name, row): noisy(mean + i, 5) for i, name in enumerate("ABC") for row, mean in ((BASE, 70), (OTHER, 76))}
    summary = report.summarise(make(tmp_path, table))
    overview = next(tables.tables(summary, "{}"))
    verdict = summary.pooled[0].verdicts[OTHER]
    assert overview.head[-1] == "accuracy, minus baseline [95%, corrected], random effects"
    shown = f"{verdict.difference:+.2f} [{verdict.low:+.2f}, {verdict.high:+.2f}]"
    assert [line[-1] for line in overview.body] == ["", shown]


NEARLY = {seed: x + 0.1 * (-1) ** seed for seed, x in noisy(70, 10).items()}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({BASE: noisy(70, 10), OTHER: noisy(75, 10)}, f"A: against {BASE}, 10 paired seeds, higher: {OTHER} (by "),
        ({BASE: noisy(70, 10), OTHER: noisy(65, 10)}, f"lower: {OTHER} (by "),
        ({BASE: noisy(70, 10), OTHER: noisy(70.01, 10)}, f"10 paired seeds, cannot tell: {OTHER} (differences of "),
        ({BASE: noisy(70, 10), OTHER: noisy(70, 10)}, f"the same numbers: {OTHER}."),
        ({BASE: noisy(70, 10), OTHER: NEARLY}, f"equivalent within 0.50: {OTHER}."),
        (
            {BASE: dict.fromkeys(range(9), 70.0), OTHER: noisy(70.2, 9, 0.01)},
            f"higher: {OTHER} (by 0.20, within the margin)",
        ),
        ({BASE: noisy(70, 3), OTHER: noisy(90, 3), "untrained encoder": noisy(30, 3)}, "A: training is worth +40."),
        (
            {BASE: noisy(20, 5), OTHER: noisy(19, 5), "untrained encoder": noisy(30, 5), "bag of nodes": noisy(15, 5)},
            "training made it worse: ",
        ),
        ({BASE: noisy(20, 5), "bag of nodes": noisy(15, 5)}, "over bag of nodes, +"),
        (
            {BASE: noisy(20, 5), f"0*{BASE}": noisy(20.1, 5)},
            f"whether it is better than 0*{BASE}, for {BASE} by +0.17 [-1.95, +2.29] (differences of 2.87 or more "
            "would be found; about 214 fresh seeds would tell whether different or equivalent within 0.50).",
        ),
        (
            {BASE: noisy(20, 5), OTHER: noisy(19.8, 5), THIRD: noisy(20, 4), f"0*{BASE}": noisy(20.1, 5)},
            f"cannot tell whether it is better than 0*{BASE}, for {BASE} by +0.17 [",
        ),
        (
            {row: noisy(20, 5) for row in (BASE, OTHER, THIRD, "dcl:t=0.2")} | {f"0*{BASE}": noisy(20.1, 5)},
            f"cannot tell whether any row is better than 0*{BASE} (differences of ",
        ),
        (
            {BASE: noisy(20, 5), "untrained": noisy(20.1, 5)},
            f"cannot tell whether training helps, for {BASE} by +0.17 [",
        ),
        ({BASE: {0: 1.0}, OTHER: {0: 2.0}}, "1 paired seed, no verdict: 3 seeds are the fewest that allow a test"),
        ({BASE: noisy(70, 2), OTHER: noisy(90, 2)}, "2 paired seeds, no verdict"),
        ({BASE: {0: 1.0}, OTHER: {1: 2.0}}, f"nothing shares a seed with {BASE}."),
        ({OTHER: {0: 1.0}, THIRD: {0: 2.0}}, "no baseline (--baseline names one)."),
        ({BASE: {0: 1.0}, "infonce:t=0.1": {0: 2.0}}, "no baseline (--baseline names one)."),
        ({OTHER: {0: 1.0}}, "one row, nothing to compare."),
        ({BASE: noisy(70, 6), OTHER: noisy(70.5, 4), THIRD: noisy(70.2, 6)}, "4 to 6 paired seeds"),
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
        table = {("MUTAG", BASE): base, ("MUTAG", ADNCE): other}
        (column,) = report.summarise(make(root, table, **papers_setup("MUTAG"))).columns
        assert f"the paper's +2.24 for {ADNCE} is {where} our interval" in reading(column)


def test_notes(tmp_path, monkeypatch):
    make(tmp_path, {("A", BASE): {0: 1.0}})
    monkeypatch.setattr("counterpoint.integrations.store.run.versions", lambda: {"counterpoint": "0.0.9"})
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
    table = {("MUTAG", row): noisy(86 + i, 8, 0.2) for i, row in enumerate((BASE, ADNCE, "untrained"))}
    make(root, table, **papers_setup("MUTAG"))
    table = {("PROTEINS", row): noisy(75 + i / 10, 5) for i, row in enumerate((BASE, OTHER, THIRD))}
    make(root, table)
    return root


def test_json_holds_the_numbers_of_the_tables(study):
    found = report.summarise(store.find_runs(study))
    data = json.loads(report.RENDER["json"](found), parse_constant=pytest.fail)
    rows = [row for column in data["columns"] for row in column["rows"]]
    cells = [cell for column in found.columns for cell in column.cells.values()]
    for row, cell in zip(rows, cells, strict=True):
        assert row["mean"] == cell.mean == fmean(row["values"].values())
        assert ("trained_minus_this" in row) == (row["row"] == "untrained")
        assert (row["difference"] is None) == (cell.difference is None)
        if cell.difference:
            assert row["difference"]["corrected"] == cell.difference.corrected


HOSTILE = "\x1b]0;title\x07\x1b[31mred\n# forged\r| a | b |\u202egnp"
SHOWN = r"\x1b]0;title\x07\x1b[31mred\n# forged\r"


@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_names_cannot_move_color_or_forge_what_is_printed(form, tmp_path):
    made = make(tmp_path, {(f"data{HOSTILE}", BASE): {0: 1.0, 1: 2.0}, (f"data{HOSTILE}", HOSTILE): {0: 1.0, 1: 2.0}})
    found = report.summarise(made, baseline=HOSTILE)
    text = report.RENDER[form](found)
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e]+", text)
    assert not [line for line in text.splitlines() if line.startswith(("# forged", "| a | b |"))]
    assert SHOWN.replace("[31", r"\[31").replace("\\", r"\\").replace("\\\\[", r"\[") in text or SHOWN in text
    assert visible(made[0].title) == made[0].title


def test_markdown_has_no_html_links_formulas_or_cells_of_a_name(tmp_path):
    name = "<img src=x onerror=alert(1)> [a](javascript:b) $x$ `c` | d & \\"
    made = make(tmp_path, {("A", name): {0: 1.0, 1: 2.0}, ("A", BASE): {0: 1.0, 1: 2.0}})
    text = report.markdown(report.summarise(made, baseline=BASE))
    shown = r"&lt;img src=x onerror=alert(1)> \[a](javascript:b) \$x\$ \`c\` \| d &amp; \\"
    assert shown in text
    assert name not in text
    assert not re.search(r"<img|(?<!\\)[\[$`]", text.replace("[95%", "").replace("[80%", ""))


@pytest.mark.parametrize("label", [r"cost $\frac{ of $x", "$x$", r"$\undefined$", "a_$b", "$$"])
def test_pictures_show_names_as_they_are(label, tmp_path):
    """A dollar begins no formula, which may be broken or forged."""
    rows = {("A $_{", label): {0: 1.0, 1: 2.0}, ("A $_{", BASE): {0: 1.5, 1: 2.5}}
    (tmp_path / "runs").mkdir()
    summary = report.summarise(make(tmp_path / "runs", rows), baseline=label)
    written = [*report.write(summary, tmp_path / "out")]
    assert {path.suffix for path in written} == {".md", ".json", ".html", ".tex", ".pdf"}
    drawing = figure_of(summary.columns[0])
    drawing.savefig(tmp_path / "drawn.svg")
    assert not [text for text in drawing.findobj(Text) if text.get_parse_math()]


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
    for title in ("mean ± sd", "minus baseline", "verdict", "p, corrected", "paper"):
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
    overview = said[said.index("== ") :].partition("\n\n")[0]
    assert max(map(len, overview.splitlines())) <= tables.WIDTH
    heads = [line.partition(" (their number)")[2].split() for line in overview.splitlines() if line.startswith("mean")]
    assert len(heads) > 1
    assert [name for block in heads for name in block] == probes
    assert [name for name in probes if f"== graph: {name} ==" in said] == probes


def test_the_command(study, tmp_path, capsys):
    assert main(["report", str(study), "--out", str(tmp_path / "out"), "--baseline", "adnce:t=0.2"]) == 0
    out, err = capsys.readouterr()
    assert f"PROTEINS: against {OTHER}" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*(f"report.{end}" for end in ("html", "md", "json", "tex")), "figure-1.pdf", "figure-2.pdf"}
    assert (tmp_path / "out" / "figure-1.pdf").read_bytes().startswith(b"%PDF")
    assert err.count("wrote ") == 6
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


def test_a_copy_of_a_run_counts_once(tmp_path, capsys):
    rows = {("A", BASE): {0: 1.0, 1: 2.0, 2: 2.5}, ("A", OTHER): {0: 2.0, 1: 3.0, 2: 3.6}}
    make(tmp_path / "study", rows)
    assert main(["report", str(tmp_path), "--json"]) == 0
    alone = capsys.readouterr()
    shutil.copytree(tmp_path / "study", tmp_path / "copy")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["report", str(tmp_path), "--json"]) == 0
    both = capsys.readouterr()
    assert (alone.err, both.out) == ("", alone.out)
    assert len(re.findall(rf"^{tmp_path}/study/\S+: a copy of {tmp_path}/copy/\S+; left out$", both.err, re.M)) == 6
    make(tmp_path / "other", {("A", BASE): {0: 1.5}})
    with pytest.warns(RuntimeWarning, match="left out"), pytest.raises(ValueError, match="with other results"):
        report.summarise(store.find_runs(tmp_path))


def test_the_folder_of_a_damaged_run_cannot_move_color_or_forge_what_is_printed(tmp_path, capsys):
    made = make(tmp_path, {("A", BASE): {0: 1.0}})
    shutil.copytree(made[0].path, tmp_path / "\x1b[31mred\nfake")
    (tmp_path / "\x1b[31mred\nfake" / "run.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert r"/\x1b[31mred\nfake/run.json: not readable as JSON" in shown.err
    assert "\x1b" not in shown.err + shown.out
    assert shown.err.count("\n") == 1


def test_unfinished_and_ambiguous(tmp_path):
    with pytest.raises(store.GridError) as caught:
        store.run_grid(
            lambda run: None, [{"domain": "graph", "dataset": "A", "objective": BASE, "seed": 2}], tmp_path,
            progress=False,
        )  # fmt: skip
    with pytest.raises(ValueError, match="none of the 1 runs is done"):
        report.summarise(caught.value.runs)
    found = [run for n in (2, 4) for run in make(tmp_path, {("A", BASE): {0: 1.0}}, views=n)]
    with pytest.raises(ValueError, match=r"baseline 'infonce:t=0.2' may mean .*views=2' or .*views=4': give one"):
        report.summarise(found, baseline="infonce:t=0.2")
    (column,) = report.summarise(found, baseline=f"{BASE}, views=2").columns
    assert column.baseline == f"{BASE}, views=2"


def test_without_matplotlib(study, tmp_path, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    assert install("plots") in html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert (tmp_path / "report.json").exists()


def test_without_scipy_the_means_remain(study, tmp_path, monkeypatch, capsys):
    whole = report.summarise(store.find_runs(study))
    for module in ("scipy", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"Means only: intervals and tests need scipy: {install('report')}." in printed
    assert f"against {BASE}, 8 paired seeds, no intervals and no tests without scipy.\n" in printed
    assert "not tested without scipy" in printed
    assert not re.search("different|equivalent|cannot tell|found", printed.partition("Means only")[0])
    means = report.summarise(store.find_runs(study))
    for column, tested in zip(means.columns, whole.columns, strict=True):
        assert not any(cell.best for cell in column.cells.values())
        for row, cell in column.cells.items():
            assert (cell.values, cell.mean, cell.sd) == (
                tested.cells[row].values, tested.cells[row].mean, tested.cells[row].sd,
            )  # fmt: skip
            if cell.difference is not None:
                assert cell.difference.difference == tested.cells[row].difference.difference
                assert math.isnan(cell.difference.low)
                assert math.isnan(cell.difference.p)
    for form in report.RENDER:
        assert "nan" not in report.RENDER[form](means)


def test_without_scipy_what_needs_no_test_is_not_remarked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert report.summarise(make(tmp_path, {("A", BASE): noisy(70, 3)})).notes == []


def test_a_row_with_the_numbers_of_the_untrained_encoder_needs_no_more_seeds(tmp_path):
    none = {("A", row): dict.fromkeys(range(3), 0.0) for row in ("untrained encoder", BASE)}
    said = report.terminal(report.summarise(make(tmp_path, none | {("A", OTHER): noisy(70, 3)})))
    assert "the same numbers as untrained encoder: infonce:t=0.2" in said
    assert "training is worth" in said
    assert "would tell" not in said.partition("against")[0]


def test_a_difference_is_never_printed_as_zero(tmp_path):
    base = noisy(70, 5)
    rows = {("A", "hcl:t=0.5"): {s: v + 0.0003 + 1e-6 * s for s, v in base.items()}, ("A", BASE): base}
    text = report.terminal(report.summarise(make(tmp_path, rows), margin=0))
    assert "(by 0.0003)" in text
    assert "+0.0003 [+0.0003, +0.0003]" in text


def test_notes_of_a_comparison_are_in_every_format(tmp_path, capsys):
    """They are kept beside the runs, since a table without them hides how its rows were tuned."""
    runs = make(tmp_path, {("train.py", BASE): noisy(70, 4), ("train.py", OTHER): noisy(72, 4)}, domain="compare")
    write_notes("compare", runs[:4], ["3 seeds or fewer"], {}, None, "")  # which this comparison then went on with
    write_notes("compare", runs, ["tuned by dev: 100 % of <rows>"], {OTHER: "at the edge"}, None, "")
    printed = {}
    for form in report.RENDER:
        assert main(["report", str(tmp_path), "--format", form]) == 0
        printed[form] = capsys.readouterr().out
        assert "tuned by dev: 100 % of" in printed[form]
        assert "3 seeds or fewer" not in printed[form]
        assert "at the edge" in printed[form]
    assert "% tuned by dev: 100 % of <rows>" in printed["latex"].splitlines()
    assert r"minus infonce:t=0.2 [95\%, corrected]" in printed["latex"]
    assert main(["report", str(runs[0].path), str(runs[1].path)]) == 0
    assert "tuned by dev" not in capsys.readouterr().out  # of other runs, too
    make(tmp_path, {("other.py", BASE): noisy(70, 4), ("other.py", OTHER): noisy(72, 4)}, domain="compare")
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "train.py: tuned by dev" in said
    assert said.count("at the edge") == 1  # which the rows of the other script are not
    longer = {"script": ["train.py", "--data", "B C"]}
    rows = {("train.py", BASE): noisy(50, 4), ("train.py", OTHER): noisy(52, 4)}
    write_notes("compare", make(tmp_path, rows, domain="compare", **longer), ["of B"], {}, None, "")
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "train.py --data 'B C', 8 runs: of B" in said
    assert "(script=train.py --data 'B C')" in said
    for path in (tmp_path / "compare" / "notes").iterdir():
        path.write_text('{"runs": [')  # as a process that died leaves it
    assert main(["report", str(tmp_path)]) == 0


def test_the_baseline_of_a_comparison_is_that_of_later_reports(tmp_path, capsys):
    """Of a race it is the tuned loss: beside the script's own, whoever is tuned gains too much."""
    rows = ("host", "infonce:t=0.1", "hcl:t=0.2")
    runs = [
        run
        for row in rows
        for run in make(tmp_path, {("train.py", row): noisy(70, 4)}, "compare", objective=row, label=row)
    ]
    write_notes("compare", runs, [], {}, rows[1], "")
    shown = {}
    for flags in ([], ["--baseline", rows[2]]):
        assert main(["report", str(tmp_path), "--format", "json", *flags]) == 0
        shown[len(flags)] = json.loads(capsys.readouterr().out)["columns"][0]["baseline"]
    assert shown == {0: rows[1], 2: rows[2]}
    for row in rows:  # of another script, of which nothing is kept
        make(tmp_path, {("other.py", row): noisy(60, 4)}, "compare", objective=row, label=row)
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert {column["dataset"]: column["baseline"] for column in columns} == {"other.py": "host", "train.py": rows[1]}


def test_notes_say_of_which_comparison_they_are(tmp_path, capsys):
    first = make(tmp_path, {("train.py", row): noisy(70, 4) for row in (BASE, OTHER)}, domain="compare")
    write_notes("compare", first, ["not tuned", "a step takes 1.0 s"], {}, None, "")
    later = make(tmp_path, {("train.py", row): noisy(70, 3) for row in (BASE, "dcl:t=0.2")}, domain="compare")
    write_notes("compare", later, ["not tuned", "a step takes 1.2 s"], {}, None, "")
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes.count("not tuned") == 1
    assert {"train.py, 8 runs: a step takes 1.0 s", "train.py, 6 runs: a step takes 1.2 s"} < {*notes}


@pytest.mark.parametrize(("domain", "shown"), [("compare", ["knn", "linear"]), ("image", ["knn"])])
def test_a_comparison_of_scripts_shows_all_its_metrics(tmp_path, domain, shown):
    rows = {row: {seed: {"knn": 70 + seed, "linear": 80 + seed} for seed in range(3)} for row in (BASE, OTHER)}
    runs = make(tmp_path, {("train.py", row): values for row, values in rows.items()}, domain=domain)
    assert [column.metric for column in report.summarise(runs).columns] == shown


def test_latex_is_bold_by_verdict(tmp_path):
    base = noisy(70, 5)
    better = {s: v + 2 + 0.01 * s for s, v in base.items()}
    unclear = {s: v + 3 * (-1) ** s for s, v in base.items()}
    rows = {("A", BASE): base, ("A", "hcl:t=0.5"): better, ("A", "dcl:t=0.5"): unclear}
    summary = report.summarise(make(tmp_path, rows))
    summary.remarks["dcl"] = "at the edge of its grid: t"
    text = report.RENDER["latex"](summary)
    assert r"\textbf{hcl}" in text
    assert "dcl (at the edge of its grid: t) & " in text
    assert r"$\pm$" in text
    assert text.count(r" \\") == 4
    assert r"\toprule" in text


@pytest.mark.parametrize(("shift", "word"), [(2, "higher"), (-2, "lower"), (0, "the same numbers")])
def test_sentence_and_table_have_one_word_for_a_verdict(shift, word, tmp_path):
    base = {seed: value - 770 for seed, value in noisy(70, 5).items()}
    rows = {("A", BASE): base, ("A", "hcl:t=0.5"): {s: v + shift * (1 + 0.01 * s) for s, v in base.items()}}
    summary = report.summarise(make(tmp_path, rows))
    said, _, table = report.terminal(summary).partition("==")
    assert f"{word}: hcl" in said
    assert re.search(rf"\b{word}\b", table)
    assert "different (" not in table
    assert summary.columns[0].margin == 5  # of numbers below zero, too


def test_the_command_offers_every_format():
    assert tuple(report.RENDER) == FORMATS


# ---- pictures ----------------------------------------------------------------------------------


def figure_of(column):
    """Draw the values of a column, its differences, and these with the rows' names."""
    drawing, looks = figure(9, 4), plots.styles(column.cells, column.checks)
    left, right, opening = drawing.subplots(1, 3)
    plots.draw_values(left, column, looks)
    plots.draw_differences(right, column, looks)
    plots.draw_opening(opening, column, looks)
    return drawing


def curve_of(column):
    """Draw the first curve of a column."""
    axes = figure(4, 4).add_subplot()
    plots.draw_curve(axes, column, plots.curves(column)[0], plots.styles(column.cells, column.checks))
    return axes


def test_the_picture_of_a_column_shows_its_numbers(study):
    column = report.summarise(store.find_runs(study)).columns[0]
    left, right, opening = figure_of(column).axes
    rows = list(column.cells)
    assert [label.get_text().replace("\n", "").replace(" ", "") for label in opening.get_yticklabels()] == [
        row.replace(" ", "") for row in column.compared
    ]
    drawn = {line.get_marker(): [] for line in left.lines}
    for line in left.lines:
        drawn[line.get_marker()].append((line.get_ydata()[0], list(line.get_xdata())))
    assert drawn["o"] == [(y, list(column.cells[row].values.values())) for y, row in enumerate(rows)]
    assert drawn["|"] == [(y, [column.cells[row].mean]) for y, row in enumerate(rows)]
    assert drawn["D"] == [(y, [column.cells[row].paper.value]) for y, row in enumerate(rows)]
    compared = {y: column.compared[row] for y, row in enumerate(rows) if row in column.compared}
    means = {line.get_ydata()[0]: line for line in right.lines if line.get_marker() == "o"}
    assert {y: line.get_xdata()[0] for y, line in means.items()} == {y: v.difference for y, v in compared.items()}
    filled = {y: line.get_markerfacecolor() != "none" for y, line in means.items()}
    assert filled == {y: v.different for y, v in compared.items()}
    intervals = [list(line.get_xdata()) for line in right.lines if len(set(line.get_xdata())) == 2]
    assert intervals == [[v.low, v.high] for v in compared.values()]
    (margin,) = right.patches
    assert (margin.get_x(), margin.get_width()) == (-column.margin, 2 * column.margin)


def test_rows_that_train_nothing_stretch_no_axis(tmp_path):
    rows = {BASE: noisy(86, 5), OTHER: noisy(87, 5), "untrained": noisy(12, 5), "bag": noisy(86.5, 2, 0.1)}
    (column,) = report.summarise(make(tmp_path, {("A", row): values for row, values in rows.items()})).columns
    left, right, _ = figure_of(column).axes
    assert 80 < left.get_xlim()[0] < left.get_xlim()[1] < 95
    arrow = next(text for text in left.texts if "←" in text.get_text())
    assert arrow.get_text().strip() == f"← {column.cells['untrained'].mean:.3g}"
    assert arrow.get_position()[1] == list(column.cells).index("untrained")
    assert right.get_xlim()[0] > -10
    curves = curve_of(column)
    assert [line.get_label() for line in curves.lines] == [BASE, OTHER]


def test_curves_are_means_over_seeds(study):
    column = report.summarise(store.find_runs(study)).columns[0]
    axes = curve_of(column)
    assert "each objective's own" in axes.get_title()
    assert len(axes.lines) == len(column.cells) - len(column.checks) == 2
    for line in axes.lines:
        assert list(line.get_xdata()) == [1, 2, 3]
        assert list(line.get_ydata()) == pytest.approx([1 / step + 3.5 for step in (1, 2, 3)])  # seeds 0 to 7


class Logged:
    """A run with these lines."""

    def __init__(self, lines):
        self.metrics = lambda: lines


def test_long_curves_are_averaged_and_short_ones_of_one_seed_do_not_bend_them():
    lines = [{"step": step, "loss": float(step)} for step in range(600)]
    steps, mean, spread = plots._band([Logged(lines), Logged(lines[:480])], "loss")
    assert len(steps) == plots.POINTS
    assert steps == mean
    assert (steps[0], steps[-1]) == (3.5, 475.5)
    assert set(spread) == {0.0}


def test_numbers_that_only_some_lines_have_keep_their_steps(monkeypatch):
    lines = [
        {"step": step, "loss": 0.5 * step} | ({"accuracy": 1.0 * step} if step % 100 == 0 else {})
        for step in range(999)
    ]
    lines[7]["loss"] = math.nan
    monkeypatch.setattr(plots, "POINTS", 999)
    steps, accuracy, _ = plots._band([Logged(lines)], "accuracy")
    assert steps == accuracy == [*range(0, 999, 100)]
    steps, loss, _ = plots._band([Logged(lines)], "loss")
    assert steps == [2 * x for x in loss] == [step for step in range(999) if step != 7]


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
        axes = curve_of(again.columns[0])
        assert axes.get_xlabel() == said


def test_runs_that_logged_nothing_have_no_curves(tmp_path):
    cell = {"domain": "graph", "dataset": "A", "objective": BASE, "seed": 0}
    found = store.run_grid(lambda run: run.finish({"x": 1.0}), [cell], tmp_path, progress=False)
    assert plots.curves(report.summarise(found).columns[0]) == []


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


def test_a_papers_number_stands_only_beside_its_setup(tmp_path):
    setup = papers_setup("MUTAG")
    for changes, specs in (
        ({}, [(BASE, "86.80±1.34"), (ADNCE, "89.04±1.30"), ("untrained", "87.39±1.09"), ("adnce:t=0.15,mu=0.8", None)]),
        ({"epochs": 19}, [(BASE, None), ("untrained", "87.39±1.09")]),
        ({"part": "report"}, [(BASE, None), ("untrained", None)]),
        ({"probe": "svm"}, [(BASE, None)]),
    ):
        for spec, printed in specs:
            number = papers.paper_number("graph", "MUTAG", spec, "accuracy", setup | changes, same_setup=True)
            assert (number and number.printed) == printed
    bert = {"model": "bert-base-uncased", "epochs": 1, "steps": None, "static": False, "head": "training"}
    bert |= {"max_length": 32, "dev": "STSB-dev", "word_dropout": 0.0}
    about = ("sentence", "wiki1m_for_simcse.txt", "infonce:t=0.05", "STS-B")
    assert papers.paper_number(*about, bert, same_setup=True).row == "SimCSE-BERT-base (τ_0)"
    assert papers.paper_number(*about, bert | {"model": "roberta-base"}, same_setup=True).row.startswith("SimCSE-RoB")
    for change in ({"model": "tiny"}, {"steps": 100}, {"static": True}):
        assert papers.paper_number(*about, bert | change, same_setup=True) is None


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


def test_a_race_and_a_comparison_of_its_runs_keep_the_notes_of_both(tmp_path, capsys):
    """The comparison, of one more row, tuned nothing and has no baseline of its own: the race's is searched."""
    rows = ("host", "infonce:t=0.1", "hcl:t=0.2")
    runs = {row: make(tmp_path, {("train.py", row): noisy(70, 4)}, "compare", objective=row, label=row) for row in rows}
    raced = [*runs["host"], *runs["infonce:t=0.1"]]
    write_notes("race", raced, ["race: nothing that was tried beats your loss"], {rows[1]: "at the edge"}, rows[1], "")
    for done in (raced, [run for some in runs.values() for run in some]):
        write_notes("compare", done, ["compare tuned nothing"], {}, None, "")
    assert main(["report", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["columns"][0]["baseline"] == rows[1]
    notes = " ".join(found["notes"])
    assert "race: nothing that was tried beats your loss" in notes
    assert notes.count("compare tuned nothing") == 1  # of the comparison that went on with one more row
    assert [row["remark"] for row in found["columns"][0]["rows"] if row["row"] == rows[1]] == ["at the edge"]


def test_the_public_fields_of_files_are_there(tmp_path, capsys):
    section = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8").partition("## For programs")[2]
    lines = [line for line in section.splitlines() if re.match(r"\| `\w+\.json`", line)]
    of_run, of_report = ({*re.findall(r"`(\w+)`", line.split(" | ", 1)[1])} for line in lines)
    (run, *_) = make(tmp_path, {("train.py", row): noisy(70, 3) for row in (BASE, OTHER)}, "compare")
    record = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    assert of_run <= {*record, *record["arguments"]}
    assert main(["report", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (column,) = found["columns"]
    rows = {key for row in column["rows"] for key in (*row, *(row["difference"] or {}))}
    assert of_report <= {*found, "items", *column, *rows}  # items are there if there are some
    assert {"reading", "corrected"} < of_report
