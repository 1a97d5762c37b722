"""examples/digits.py: what it learns, what it repeats, what it writes and what it says."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

for needed in ("matplotlib", "scipy", "sklearn"):
    pytest.importorskip(needed)

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN, FOUR_VIEWS = "infonce:t=0.2", "arcl(infonce:t=0.2):views=4"
PICTURES = {"digits_accuracy.png", "digits_curves.png", "digits_pca.png"}


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    return importlib.import_module("digits")


@pytest.mark.slow
def test_quick_learns_and_writes_pictures_and_numbers(digits, tmp_path):
    out, objectives = tmp_path / "new" / "digits", [PLAIN, "adnce:t=0.2"]
    digits.main(["--quick", "--batch", "64", "--seed", "7", "--objectives", *objectives, "--out", str(out)])
    assert {path.name for path in out.iterdir()} == PICTURES | {"digits.json"}
    for name in PICTURES:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    result = json.loads((out / "digits.json").read_text())
    assert set(result) == {"arguments", "versions", "summary", "runs"}
    assert (result["arguments"]["seed"], result["arguments"]["batch"]) == (7, 64)
    assert {"counterpoint", "torch", "scikit-learn", "python"} <= set(result["versions"])
    names = [digits.PIXELS, digits.UNTRAINED, *objectives]
    assert [(run["seed"], run["objective"]) for run in result["runs"]] == [(s, n) for s in (7, 8) for n in names]
    for run in result["runs"]:
        assert set(run) == {"objective", "spec", "seed", "kNN", "linear", "seconds", "curve"}
        if run["curve"]:
            assert "denominator=with_positive" in run["spec"]
            assert [point["step"] for point in run["curve"]] == list(range(10, 101, 10))
            assert run["curve"][-1]["kNN"] == run["kNN"]
            assert run["curve"][-1]["loss"] < run["curve"][0]["loss"] - 0.2
    floor = result["summary"][digits.UNTRAINED]["kNN"]["mean"]
    for name in objectives:
        assert result["summary"][name]["kNN"]["mean"] > floor + 3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_in_any_order(digits):
    one, other = (
        {(run["objective"], run["seed"]): {**run, "seconds": 0} for run in result["runs"]}
        for specs in ([PLAIN, FOUR_VIEWS], [FOUR_VIEWS, PLAIN])
        for result in [digits.run(specs, seeds=2, steps=2, batch=32, progress=False)]
    )
    assert one == other
    assert one[PLAIN, 0]["curve"] != one[PLAIN, 1]["curve"]
    assert one[PLAIN, 0]["curve"] != one[FOUR_VIEWS, 0]["curve"]


def test_views_of_an_image_differ_but_stay_its_own(digits):
    images = torch.tensor(digits.load_digits().images[:200] / 16, dtype=torch.float32).unsqueeze(1)
    views = [digits.augment(images, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    z = [torch.nn.functional.normalize(v.flatten(1) - v.flatten(1).mean(0)) for v in views]
    similar = z[0] @ z[2].T
    assert similar.diagonal().mean() > similar.mean() + 0.1


def test_validation_never_sees_a_test_image(digits, monkeypatch):
    spoiled = digits.load_digits()
    spoiled.images[digits.TEST :] = float("nan")
    spoiled.target[digits.TEST :] = -1
    settings = {"objectives": [PLAIN], "seeds": 2, "steps": 1, "batch": 32, "validate": True, "progress": False}
    clean = digits.run(**settings)
    monkeypatch.setattr(digits, "load_digits", lambda: spoiled)
    assert str(digits.run(**settings)["summary"]) == str(clean["summary"])  # two seeds have no interval, but NaN


def test_a_new_writer_begins_at_the_splits(digits):
    """Each writer wrote 0 to 9 several times in order before the order changes."""
    y = digits.load_digits().target
    for row in (digits.VALIDATION, digits.TEST):
        assert y[row : row + 20].tolist() == 2 * list(range(10))
        assert y[row - 10 : row].tolist() != list(range(10))


def test_report_claims_only_what_the_interval_allows(digits):
    gains = {PLAIN: (0, 0, 0), "hcl": (1, -1, 0.5), "dcl": (2, 2.1, 1.9), "adnce": (-2, -2.1, -1.9)}
    runs = [
        {"objective": name, "seed": seed, "kNN": 80 + seed + gain, "linear": 90 + seed + gain}
        for name, gained in gains.items()
        for seed, gain in enumerate(gained)
    ]
    arguments = {"objectives": list(gains), "seeds": 3}
    text = digits.report({"arguments": arguments, "summary": digits.summarise(runs, PLAIN)})
    for measure in ("kNN", "linear"):
        said = re.search(rf"^{measure}, against {PLAIN} - (.*)\.$", text, re.M)
        assert said
        assert said[1].startswith("higher: dcl (by 2.0); lower: adnce (by 2.0); cannot tell: hcl (differences of ")
    assert "+2.0 [+1.6, +2.4]" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--objectives", "infonc"], "unknown objective 'infonc'. Did you mean 'infonce'?"),
        (["--objectives", "hcl:t=-1"], "temperature must be"),
        (["--objectives", "intnacl"], "adversarial"),
        (["--objectives", PLAIN, PLAIN], "named twice"),
        (["--seeds", "1"], "seeds must be at least 2"),
        (["--out", __file__], "File exists"),
    ],
)
def test_wrong_arguments_are_one_clear_line(digits, capsys, argv, says):
    with pytest.raises(SystemExit) as stopped:
        digits.main(argv)
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error
