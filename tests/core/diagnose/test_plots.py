"""What the figures say, read back from their artists."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest
import torch

import counterpoint as cp
from counterpoint.diagnose import distances, weight_curve
from counterpoint.diagnose.plots import plot_distances, plot_weights
from counterpoint.install import install

PNG = b"\x89PNG\r\n\x1a\n"


def legend(figure):
    return [line.get_text() for line in figure.legends[0].get_texts()]


def outlines(figure):
    """Heights and labels of the histograms, without their fillings."""
    return [
        (p.get_data().values, p.get_label())
        for p in figure.axes[0].patches
        if hasattr(p, "get_data") and not p.get_fill()
    ]


def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    return torch.randn(4, 8, generator=generator)[labels] + torch.randn(40, 8, generator=generator), labels


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


def test_distances(tmp_path):
    z, _ = samples()
    figure = plot_distances([z, z + 0.1], path=str(tmp_path / "d.png"), low=0.2, high=0.4)
    assert (tmp_path / "d.png").read_bytes().startswith(PNG)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "distance D = (1 - cos) / 2"
    assert axes.get_ylabel() == "pairs per bin of 0.02 (%)"
    assert axes.get_xlim() == (0, 1)
    ((heights, label),) = outlines(figure)
    d = distances(z, z + 0.1)
    assert heights.sum() == pytest.approx(100)
    assert heights[20] == pytest.approx(100 * ((d >= 0.4) & (d < 0.42)).float().mean().item())
    inside = 100 * ((d > 0.2) & (d < 0.4)).float().mean().item()
    assert label == f"all: {2 * 40 * 39 // 2:,} pairs, {inside:.0f}% in the margin"
    margin = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (margin.x0, margin.x1) == pytest.approx((0.2, 0.4))


def test_distances_by_class_with_the_margin_of_an_objective():
    z, labels = samples()
    for embeddings, views in ((z, 1), ([z, z], 2)):
        figure = plot_distances(embeddings, "infonce + 0.1*dp:low=0.15,high=0.35", labels=labels.tolist())
        (other, first), (same, second) = outlines(figure)
        assert legend(figure)[0] == "the margin, 0.15 < D < 0.35"
        assert first.startswith(f"different classes: {views * 6 * 10 * 10:,} pairs")
        assert second.startswith(f"same class: {views * 4 * 45} pairs")
        assert other.sum() == pytest.approx(100)
        assert same.sum() == pytest.approx(100)
    centres = torch.linspace(0.01, 0.99, 50).numpy()
    assert (same * centres).sum() < (other * centres).sum() - 5
    assert "0.1*dp" in figure.axes[0].get_title()
    with pytest.raises(ValueError, match="40 integers"):
        plot_distances(z, labels=labels[:-1])
    assert "same class: 0 pairs, 0%" in legend(plot_distances(z, labels=range(40)))[-1]


@pytest.mark.parametrize("draw", [lambda: plot_weights("infonce"), lambda: plot_distances(samples()[0])])
def test_without_matplotlib_the_way_to_get_it_is_said(draw, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install("plots"))):
        draw()


def test_importing_loads_no_matplotlib_and_plotting_no_pyplot():
    code = (
        "import sys, counterpoint.diagnose.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.plot_weights('infonce')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
