"""What the figures say, read back from their artists."""

from __future__ import annotations

import pickle
import re
import sys

import pytest
import torch
from processes import fresh

import counterpoint as cp
from counterpoint.diagnose import plot_weights, weight_curve
from counterpoint.install import install

PNG = b"\x89PNG\r\n\x1a\n"


def legend(figure):
    return [line.get_text() for line in figure.legends[0].get_texts()]


def test_a_notebook_shows_the_figures():
    figure = plot_weights("infonce")
    assert figure._repr_png_().startswith(PNG)
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(PNG)


def test_weights(tmp_path):
    given = ["infonce:t=0.3", cp.ADNCE(0.3, mu=0.2, sigma=0.3), "dp"]
    figure = plot_weights(given, tmp_path / "w.png", positive=0.6)
    assert (tmp_path / "w.png").read_bytes().startswith(PNG)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "similarity s of the negative (cosine)"
    assert "training weight dL/ds" in axes.get_ylabel()
    curves = {line.get_label(): line for line in axes.lines}
    specs = [(cp.objective(o) if isinstance(o, str) else o).label for o in given]
    assert legend(figure) == ["the positive, s = 0.6", *specs]
    assert list(curves["the positive, s = 0.6"].get_xdata()) == [0.6, 0.6]
    for objective, spec in zip(given, specs, strict=True):
        s, weight = weight_curve(objective, positive=0.6)
        assert curves[spec].get_xdata() == pytest.approx(s.tolist())
        assert curves[spec].get_ydata() == pytest.approx(weight.tolist())
    assert len({(curves[s].get_color(), curves[s].get_linestyle()) for s in specs}) == 3


def test_weights_of_one_objective_over_given_similarities_in_order():
    figure = plot_weights("infonce", similarities=torch.tensor([0.5, -0.5, 0.0]), negatives=torch.tensor([0.1, 0.2]))
    line = figure.axes[0].lines[-1]
    assert list(line.get_xdata()) == [-0.5, 0.0, 0.5]
    assert list(line.get_ydata()) == sorted(line.get_ydata())


def test_a_long_spec_breaks_and_still_reads_back():
    spec = str(
        cp.objective("arcl(adnce:t=0.2,sigma=0.5,mu=0.25):denominator=worst,views=4 + 0.1*dp:reduction=batch_sum")
    )
    figure = plot_weights([spec])
    shown = legend(figure)[-1]
    assert max(map(len, shown.splitlines())) < 70 < len(shown)
    assert str(cp.objective(shown)) == spec
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_without_matplotlib_the_way_to_get_it_is_said(monkeypatch):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install("plots"))):
        plot_weights("infonce")


def test_importing_loads_no_matplotlib_and_plotting_no_pyplot():
    code = (
        "import sys, counterpoint.diagnose as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.plot_weights('infonce')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    fresh(code)
