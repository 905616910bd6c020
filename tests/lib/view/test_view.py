"""Pictures: they show the numbers they were given, and their words say the same numbers."""

import importlib

import matplotlib.pyplot as plt
import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from normgeom import view
from normgeom.view import courses
from normgeom.view.turning import ellipses_in_space, outputs_in_space, three_steps

SITES = ["h.0.ln_1", "h.0.ln_2", "ln_f"]
DIRECTIONS = ["uniform", "random_a", "random_b", *(f"random_{i:03d}" for i in range(18))]


def table(run=0, lift=1.0):
    rng = np.random.default_rng(run)
    rows = [
        dict(
            site=site,
            side=side,
            direction=direction,
            positions=positions,
            mean_deg=90 + rng.normal(),
            std_deg=2.0 + rng.random(),
            occupancy=lift * rng.random() + 0.01,
            run=run,
        )
        for site in SITES
        for side in ("in", "out")
        for direction in DIRECTIONS
        for positions in ("first", "rest", "all")
    ]
    return pd.DataFrame(rows)


def test_the_null_band_is_the_quantiles_of_the_random_directions():
    frame = table()
    band = view.null_band(frame, side="out", positions="all")
    assert list(band.index) == SITES, "sites in order of use"
    for site in SITES:
        rows = frame[(frame.site == site) & (frame.side == "out") & (frame.positions == "all")]
        drawn = rows[rows.direction != "uniform"].occupancy
        expected = np.quantile(drawn, [0.05, 0.5, 0.95])
        assert np.allclose(band.loc[site, ["low", "median", "high"]].astype(float), expected)


def test_angles_show_each_direction_at_each_norm():
    frame = table()
    figure, alt = view.angles_by_layer({"a model": frame})
    assert [axis.get_title() for axis in figure.axes] == ["a model, inputs", "a model, outputs"]
    for axis, side in zip(figure.axes, ("in", "out"), strict=True):
        bars = axis.containers
        assert len(bars) == 3, "uniform and two random directions"
        uniform = frame[(frame.side == side) & (frame.positions == "rest") & (frame.direction == "uniform")]
        assert np.allclose(np.asarray(bars[0].lines[0].get_ydata(), float), uniform.mean_deg)
        low, high = uniform.mean_deg.min(), uniform.mean_deg.max()
        assert (
            f"{side}puts of a model: mean angle to the uniform vector between {low:.1f} and {high:.1f} degrees" in alt
        )
    one, _ = view.angles_by_layer({"a model": frame}, sides=["out"])
    assert [axis.get_title() for axis in one.axes] == ["a model, outputs"]


def test_occupancy_draws_a_line_a_run_and_counts_what_leaves_the_band():
    frames = pd.concat([table(0), table(1)])
    frames.loc[frames.direction == "uniform", "occupancy"] = 1e-4
    figure, alt = view.occupancy_by_layer({"a model": frames})
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(lines) == 2
    assert "below the random directions' band at 6 and above it at 0 of 6 points" in alt


def test_nulls_draw_a_band_each_and_count_what_leaves_it():
    frame = table()
    signs = frame[frame.direction == "random_a"].assign(direction="signs_a", occupancy=1e3)
    both = pd.concat([frame, signs])
    uniform = frame.query("side == 'in' and positions == 'rest' and direction == 'uniform'").set_index("site").occupancy
    bands = {null: view.null_band(both, null=null) for null in ("random_", "signs_")}
    assert (bands["signs_"] == 1e3).all(axis=None), "the band of another null"
    figure, alt = view.nulls_by_layer({"left": (uniform, bands), "right": (uniform * 1e6, bands)})
    assert [len(axis.collections) for axis in figure.axes] == [2, 2], "a band for each null"
    assert np.allclose(figure.axes[0].lines[0].get_ydata(), uniform)
    left, right = alt.split("right:")
    assert f"below the band of random signs at {len(SITES)}, above at 0" in left
    assert f"below the band of random signs at 0, above at {len(SITES)}" in right


def test_errors_leave_out_norms_that_subtract_nothing():
    frame = table().assign(drop_error=0.2, mean_abs_cos=0.1)
    frame["kind"] = np.where(frame.site == SITES[0], "rms", "layer")
    frame.loc[frame.side == "out", "drop_error"] = 9.0
    figure, alt = view.errors_by_layer({"a model": frame, "another": frame.assign(kind="rms")})
    change, cosine = figure.axes[0].lines
    assert np.allclose(change.get_ydata(), 0.2) and len(change.get_ydata()) == len(SITES) - 1
    assert np.allclose(cosine.get_ydata(), 0.1)
    assert "2 to 2 times the mean |cos|" in alt and "another: no LayerNorm" in alt


def test_show_carries_the_words(monkeypatch):
    shown = []
    style = importlib.import_module("normgeom.view.style")
    monkeypatch.setattr(style, "display", lambda data, raw, metadata: shown.append((data, metadata)))
    with view.style():
        figure, empty = plt.figure(), plt.figure()
    view.show(figure, "a line that rises")
    data, metadata = shown[0]
    assert data["image/svg+xml"].startswith("<svg")
    assert (data["text/plain"], metadata) == ("Figure: a line that rises", {"alt": "a line that rises"})
    assert plt.get_fignums() == [empty.number], "the figure is closed"
    with pytest.raises(ValueError, match="alt: expected words"):
        view.show(empty, " ")


def test_the_six_pictures_are_the_steps_of_the_norm():
    x, weight, bias = torch.tensor([2.2, -1.1, 0.7]), torch.tensor([1.3, 0.8, 0.6]), torch.tensor([0.2, 0.4, 0.7])
    figure, alt = three_steps(x, weight, bias)
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == 6

    def tips(frame):
        return {
            note.text: np.array([trace.x[1], trace.y[1], trace.z[1]])
            for note in frame.layout.scene.annotations
            for trace in frame.data
            if np.allclose([trace.x[1], trace.y[1], trace.z[1]], [note.x, note.y, note.z])
        }

    first, components, dropped, unit, stretched, last = (tips(frame) for frame in figure.frames)
    assert np.allclose(first["x"], x)
    assert np.allclose(components["mean vector"] + components["Πx"], x)
    assert abs(dropped["Πx"].sum()) < 1e-6
    assert abs(np.linalg.norm(unit["Πx/‖Πx‖"]) - 1) < 1e-6
    assert abs(np.linalg.norm(stretched["n"]) - 3**0.5) < 1e-4
    assert np.allclose(last["γ⊙n + β"], torch.nn.functional.layer_norm(x, (3,), weight, bias), atol=1e-6)
    assert "(0.60, 0.60, 0.60)" in alt


def test_outputs_lie_on_the_ring_and_on_the_sphere():
    figure, _ = outputs_in_space(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    layer, rms = (np.array([trace.x, trace.y, trace.z]) for trace in figure.data[:2])
    assert np.allclose(np.linalg.norm(layer, axis=0), 3**0.5, atol=1e-4)
    assert np.allclose(np.linalg.norm(rms, axis=0), 3**0.5, atol=1e-4)
    assert np.abs(layer.sum(0)).max() < 1e-4 < np.abs(rms.sum(0)).max()


def test_ellipses_are_those_of_the_library():
    gains = {"round": torch.ones(3).double(), "flat": torch.tensor([1.2, 0.8, 0.1]).double()}
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    figure, words = ellipses_in_space(gains, x, eps=0.1)
    assert [frame.name for frame in figure.frames] == ["round", "flat"]
    for frame, gain in zip(figure.frames, gains.values(), strict=True):
        body = ng.Ellipsoid(gain)
        rim = torch.tensor([frame.data[0][c] for c in "xyz"], dtype=torch.float64).T
        assert float((body.radius(rim) - 1).abs().max()) < 1e-12, "the curve is not the ellipse"
        dots = torch.tensor([frame.data[3][c] for c in "xyz"], dtype=torch.float64).T
        assert float((dots - ng.layer_norm(x, gain, eps=0.1)).abs().max()) < 1e-3, "the points are not the outputs"
    assert "1.73 and 1.73" in words, "a round gain gives a circle of radius √3"
    assert "at flat the semi-axes are 1.83 and 0.92" in words


class Course:
    """A weight of the same length throughout, but for one step, which turns by 1, 2, 3, … degrees."""

    def __init__(self, length, steps=60, jump=None):
        self.lengths = torch.full((steps,), float(length))
        self.turns = torch.arange(1.0, steps + 1)
        if jump is not None:
            self.lengths[3] = jump


def test_turns_are_means_of_twenty_steps_beside_the_lengths():
    runs = {3.0: Course(2.0, jump=40.0), 10.0: Course(5.0)}
    figure, alt = courses.turns_over_steps(runs, {0.3: Course(7.0)}, 8.25)
    left, right = figure.axes
    assert [line.get_label() for line in left.get_lines()] == ["start 3", "start 10"], "a length of a run with ε shown?"
    assert left.get_lines()[0].get_ydata()[3] == 40
    *lines, level = right.get_lines()
    assert len(lines) == 3
    for line in lines:
        assert np.allclose(line.get_xdata(), [10, 30, 50]), "a mean stands in the middle of its steps"
        assert np.allclose(line.get_ydata(), [10.5, 30.5, 50.5]), "one step, or all, for the mean of twenty"
    assert list(level.get_ydata()) == [8.25, 8.25]
    assert "from 3 by way of 40.0 to 2.0" in alt and "from 10 by way of 5.0 to 5.0" in alt
    assert "45.5 (start 3)" in alt and "45.5 (ε = 0.3)" in alt and "8.2" in alt


def test_turns_ask_for_twenty_steps():
    with pytest.raises(ValueError, match="runs: expected at least one"):
        courses.turns_over_steps({}, {}, 8.0)
    with pytest.raises(ValueError, match="runs: expected at least 20 steps, got 19"):
        courses.turns_over_steps({1.0: Course(1.0, 19)}, {}, 8.0)
    with pytest.raises(ValueError, match="with_eps: expected at least 20 steps, got 5"):
        courses.turns_over_steps({1.0: Course(1.0)}, {0.1: Course(1.0, 5)}, 8.0)
