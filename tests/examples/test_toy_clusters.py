"""examples/studies/toy_clusters.py: its data, its measure, its statistics, and its command line."""

import importlib
import json
from types import ModuleType

import numpy as np
import pytest

for needed in ("matplotlib", "scipy", "sklearn"):
    pytest.importorskip(needed)

PLAIN, WITH_DP = "infonce:t=0.2", "infonce:t=0.2 + 0.1*dp:reduction=batch_sum"


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    return importlib.import_module("toy_clusters")


@pytest.mark.parametrize(("data", "classes"), [("three bars", 3), ("nested moons", 2)])
def test_data_are_seeded_and_balanced(toy, data, classes):
    x, y = toy.DATA[data](300, 4)
    again, _ = toy.DATA[data](300, 4)
    other, _ = toy.DATA[data](300, 5)
    assert x.shape == (300, 2)
    assert np.bincount(y).tolist() == [300 // classes] * classes
    assert np.array_equal(x, again)
    assert not np.array_equal(x, other)


def test_bars_do_not_touch(toy):
    x, y = toy.three_bars(300, 0)
    tops, bottoms = ([f(x[y == k, 1]) for k in range(3)] for f in (np.max, np.min))
    assert tops[0] < bottoms[1]
    assert tops[1] < bottoms[2]


def test_accuracy_matches_clusters_to_classes(toy):
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = 10 * np.eye(3)[y][:, :2] + 0.1 * rng.normal(size=(90, 2))
    for permuted in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert toy.cluster_accuracy(x, np.array(permuted)[y]) == 100
    wrong = y.copy()
    wrong[:9] = (wrong[:9] + 1) % 3
    assert toy.cluster_accuracy(x, wrong) == pytest.approx(90)


def test_distances_of_known_angles(toy):
    z = np.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0]])
    assert toy.distances(z) == pytest.approx([0.5, 1.0, 0.5])


def test_learning_moves_p_and_repeats(toy):
    x, _ = toy.nested_moons(60, 0)
    settings = {"noise": 0.1, "batch": 16, "init": 0.01}
    start, end, again = (toy.learn(PLAIN, x, 7, steps=n, **settings) for n in (0, 20, 20))
    assert not np.array_equal(start, end)
    assert np.array_equal(end, again)


def test_compare_is_paired_and_signed(toy):
    first = np.array([70.0, 80.0, 60.0, 90.0])
    rows = {"first": first, "raw": first - 9, "same": first, "other": first + np.array([1.0, 2.0, 1.0, 2.0])}
    versus = toy.compare(rows, "first", checks=["raw"])
    found = versus["other"]
    assert found["difference"] == pytest.approx(1.5)
    assert 0 < found["low"] < 1.5 < found["high"]  # unpaired, a spread of 13 would swallow it
    assert found["corrected"] == pytest.approx(2 * found["p"])  # of two rows: the check is not in the family
    assert found["corrected"] < 0.05
    assert versus["same"]["kind"] == "equivalent"


def test_paper_rows(toy):
    assert toy.paper_row("infonce:t=0.2") == "InfoNCE"
    assert toy.paper_row(WITH_DP) == "InfoNCE + DP"
    assert toy.paper_row("raw points") == toy.RAW
    assert toy.paper_row("hcl + 0.1*dp") is None


def test_report_claims_only_what_the_interval_allows(toy):
    def row(gaps):
        versus = toy.compare({PLAIN: [0] * 5, "hcl": gaps}, PLAIN)["hcl"] if gaps else None
        return {"mean": 80.0, "sd": 1.0, "paper": None, "vs_first": versus}

    rows = {"a": [-1, 2, 0, 1, -2], "b": [1.9, 2, 2.1, 2, 2]}
    summary = {data: {PLAIN: row(None), "hcl": row(gaps)} for data, gaps in rows.items()}
    text = toy.report({"arguments": {"objectives": [PLAIN, "hcl"], "trials": 5}, "summary": summary})
    assert f"a, against {PLAIN}: cannot tell: hcl (differences of " in text
    assert f"b, against {PLAIN}: higher: hcl (by 2.0)." in text


@pytest.mark.slow
def test_quick_writes_pictures_and_results(toy, tmp_path, capsys):
    toy.main(["--quick", "--seed", "1000", "--out", str(tmp_path / "new" / "toy")])
    out = tmp_path / "new" / "toy"
    for name in ("three_bars", "nested_moons", "three_bars_distances", "nested_moons_distances"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((out / "results.json").read_text())
    assert set(result) == {"arguments", "specs", "versions", "summary", "trials"}
    assert result["arguments"]["seed"] == 1000
    assert set(result["specs"]) == {PLAIN, WITH_DP}
    assert len(result["trials"]) == 2 * 3 * 3  # data sets, trials, raw points and two objectives
    assert {row["seed"] for row in result["trials"]} == {1000, 1001, 1002}
    for data, rows in result["summary"].items():
        for name, row in rows.items():
            mine = [t["accuracy"] for t in result["trials"] if (t["data"], t["objective"]) == (data, name)]
            assert row["mean"] == pytest.approx(np.mean(mine))
            assert row["paper"] == list(toy.PAPER[data][toy.paper_row(name)])
    printed = capsys.readouterr()
    assert "84.2 ± 0.2" in printed.out
    assert "12/12 runs" in printed.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--objectives", "infonc"], "unknown objective 'infonc'"),
        (["--objectives", "infonce", "infonce"], "named twice"),
        (["--objectives", "intnacl"], "adversarial"),
        (["--trials", "1"], "at least 2"),
        (["--batch", "1"], "between 2 and"),
    ],
)
def test_wrong_arguments_are_one_clear_line(toy, capsys, argv, says):
    with pytest.raises(SystemExit) as stopped:
        toy.main(argv)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error
