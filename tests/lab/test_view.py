"""Pictures: they show the numbers they were given, and their words say the same numbers."""

import importlib
import re
from urllib.parse import unquote

import matplotlib.pyplot as plt
import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from normgeom import view
from normgeom_lab import inference, jacobians
from normgeom_lab import training as courses
from normgeom_lab.common.pictures import ellipses_in_space, outputs_in_space, three_steps

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
    band = inference.null_band(frame, side="out", positions="all")
    assert list(band.index) == SITES, "sites in order of use"
    for site in SITES:
        rows = frame[(frame.site == site) & (frame.side == "out") & (frame.positions == "all")]
        drawn = rows[rows.direction != "uniform"].occupancy
        expected = np.quantile(drawn, [0.05, 0.5, 0.95])
        assert np.allclose(band.loc[site, ["low", "median", "high"]].astype(float), expected)


def test_angles_show_each_direction_at_each_norm():
    frame = table()
    figure, alt = inference.angles_by_layer({"a model": frame})
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
    one, _ = inference.angles_by_layer({"a model": frame}, sides=["out"])
    assert [axis.get_title() for axis in one.axes] == ["a model, outputs"]


def test_occupancy_draws_a_line_a_run_and_counts_what_leaves_the_band():
    frames = pd.concat([table(0), table(1)])
    frames.loc[frames.direction == "uniform", "occupancy"] = 1e-4
    figure, alt = inference.occupancy_by_layer({"a model": frames})
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(lines) == 2
    assert "below the random directions' band at 6 and above it at 0 of 6 points" in alt


def test_nulls_draw_a_band_each_and_count_what_leaves_it():
    frame = table()
    signs = frame[frame.direction == "random_a"].assign(direction="signs_a", occupancy=1e3)
    both = pd.concat([frame, signs])
    uniform = frame.query("side == 'in' and positions == 'rest' and direction == 'uniform'").set_index("site").occupancy
    bands = {null: inference.null_band(both, null=null) for null in ("random_", "signs_")}
    assert (bands["signs_"] == 1e3).all(axis=None), "the band of another null"
    figure, alt = inference.nulls_by_layer({"left": (uniform, bands), "right": (uniform * 1e6, bands)})
    assert [len(axis.collections) for axis in figure.axes] == [2, 2], "a band for each null"
    assert np.allclose(figure.axes[0].lines[0].get_ydata(), uniform)
    left, right = alt.split("right:")
    assert f"below the band of random signs at {len(SITES)}, above at 0" in left
    assert f"below the band of random signs at 0, above at {len(SITES)}" in right


def test_errors_leave_out_norms_that_subtract_nothing():
    frame = table().assign(drop_error=0.2, mean_abs_cos=0.1)
    frame["kind"] = np.where(frame.site == SITES[0], "rms", "layer")
    frame.loc[frame.side == "out", "drop_error"] = 9.0
    figure, alt = inference.errors_by_layer({"a model": frame, "another": frame.assign(kind="rms")})
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


def shown(figure, *positions, kind="line"):
    """The parts of a kind that are seen at these positions of the sliders."""
    return [part for part in figure.parts if part.kind == kind and all(positions[i] == p for i, p in part.at.items())]


def named(figure, *positions):
    """Name → place, of every name that stands at the end of an arrow that is seen."""
    ends = [part.points[-1] for part in shown(figure, *positions)]
    names = {part.words: part.points[0] for part in shown(figure, *positions, kind="text")}
    return {
        words: place.double().numpy()
        for words, place in names.items()
        if not words.startswith("x") or words == "x"
        if any(torch.equal(place.float(), end.float()) for end in ends)
    }


def test_the_six_pictures_are_the_steps_of_the_norm():
    x, weight, bias = torch.tensor([3.0, 0.0, 0.9]), torch.tensor([1.3, 0.8, 0.6]), torch.tensor([0.2, 0.4, 0.7])
    figure, alt = three_steps(x, weight, bias)
    assert [len(labels) for labels in figure.sliders.values()] == [6] and list(figure.starts) == [0]
    first, components, dropped, unit, stretched, last = (named(figure, i) for i in range(6))
    assert [set(found) for found in (first, components, dropped, unit, stretched, last)] == [
        {"x", "1"},
        {"x", "mean vector", "centred"},
        {"1", "centred"},
        {"centred", "length 1"},
        {"length 1", "normalised"},
        {"normalised", "output"},
    ], "an arrow without its name, or a name without its arrow"
    assert np.allclose(first["x"], x)
    assert np.allclose(components["mean vector"], 1.3) and np.allclose(components["centred"], [1.7, -1.3, -0.4])
    assert np.allclose(dropped["centred"], components["centred"]) and np.allclose(dropped["1"], 1)
    assert np.allclose(unit["length 1"] * 4.74**0.5, [1.7, -1.3, -0.4], atol=1e-5)
    assert abs(np.linalg.norm(stretched["normalised"]) - 3**0.5) < 1e-4
    assert np.allclose(last["output"], torch.nn.functional.layer_norm(x, (3,), weight, bias), atol=1e-6)
    assert "(1.30, 1.30, 1.30)" in alt and "of length 2.18" in alt


def test_a_dotted_line_joins_x_to_its_two_components():
    figure, _ = three_steps(torch.tensor([3.0, 0.0, 0.9]), torch.ones(3), torch.zeros(3))
    dotted = [[part.points for part in shown(figure, i) if part.dash] for i in range(6)]
    assert [len(found) for found in dotted] == [0, 1, 0, 0, 0, 0], "the line belongs to the second picture"
    assert np.allclose(dotted[1][0], [[1.3, 1.3, 1.3], [3, 0, 0.9], [1.7, -1.3, -0.4]], atol=1e-3)


def test_outputs_lie_on_the_ring_and_on_the_sphere():
    figure, _ = outputs_in_space(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    rms, layer = (part.points.T.numpy() for part in shown(figure, kind="dots") if len(part.points) == 50)
    assert np.allclose(np.linalg.norm(layer, axis=0), 3**0.5, atol=1e-4)
    assert np.allclose(np.linalg.norm(rms, axis=0), 3**0.5, atol=1e-4)
    assert np.abs(layer.sum(0)).max() < 1e-4 < np.abs(rms.sum(0)).max()


GAINS = {"round": torch.ones(3).double(), "flat": torch.tensor([1.2, 0.8, 0.1]).double()}


def test_ellipses_are_those_of_the_library():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    figure, words = ellipses_in_space(GAINS, x, eps=(0.1, 0.7))
    assert list(figure.sliders["gain"]) == ["round", "flat"] and list(figure.starts) == [0, 1]
    for position, gain in enumerate(GAINS.values()):
        body = ng.Ellipsoid(gain)
        (rim,) = (part.points for part in shown(figure, position, 0) if len(part.points) == 91)
        assert float((body.radius(rim) - 1).abs().max()) < 1e-12, "the curve is not the ellipse"
        for i, eps in enumerate((0.1, 0.7)):
            (dots,) = (part.points for part in shown(figure, position, i, kind="dots") if len(part.points) == 20)
            assert torch.equal(dots, ng.layer_norm(x, gain, eps=eps)), "the points are not the outputs"
        names = named(figure, position, 0)
        assert abs(np.cross(names["normal"], 1 / gain.numpy())).max() < 1e-6, "another normal than 1/γ"
        assert np.allclose(names["1"], 1)
    assert "1.73 and 1.73" in words, "a round gain gives a circle of radius √3"
    assert "at flat the semi-axes are 1.83 and 0.92" in words


def test_a_second_slider_chooses_among_the_points_of_each_eps():
    """Rows of standard deviation 0.8, 1, 2 and 4: within 5 % where σ² is at least 9.26 ε."""
    x = torch.tensor([[1.6], [2], [4], [8]]) * torch.tensor([-(0.375**0.5), 0, 0.375**0.5])
    figure, words = ellipses_in_space(GAINS, x, eps=(0.01, 0.1, 1.0))
    labels = [f"ε = {eps}: {share} % within 5 % of the rim" for eps, share in (("0.01", 100), ("0.1", 75), ("1", 25))]
    assert list(figure.sliders["ε"]) == labels and all(label in words for label in labels)
    assert figure.starts[1] == 1
    for position, eps in enumerate((0.01, 0.1, 1.0)):
        (dots,) = (part.points for part in shown(figure, 1, position, kind="dots") if len(part.points) == 4)
        expected = torch.nn.functional.layer_norm(x, (3,), GAINS["flat"].float(), None, eps)
        assert torch.allclose(dots.float(), expected, atol=1e-6), "the slider shows the points of another ε"


class Course:
    """A weight of the same length throughout, but for one step, which turns by 1, 2, 3, … degrees."""

    def __init__(self, length, steps=60, jump=None):
        self.lengths = torch.full((steps,), float(length))
        self.turns = torch.arange(1.0, steps + 1)
        if jump is not None:
            self.lengths[3] = jump


def test_turns_are_means_of_twenty_steps_beside_the_lengths():
    runs = {3.0: Course(2.0, jump=40.0), 10.0: Course(5.0)}
    figure, alt = jacobians.turns_over_steps(runs, {0.3: Course(7.0)}, 8.25)
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
        jacobians.turns_over_steps({}, {}, 8.0)
    with pytest.raises(ValueError, match="runs: expected at least 20 steps, got 19"):
        jacobians.turns_over_steps({1.0: Course(1.0, 19)}, {}, 8.0)
    with pytest.raises(ValueError, match="with_eps: expected at least 20 steps, got 5"):
        jacobians.turns_over_steps({1.0: Course(1.0)}, {0.1: Course(1.0, 5)}, 8.0)


def test_arrows_stand_at_the_angles_of_one_constant():
    columns = ["c", "angle at the last norm / degrees", "change of output"]
    found = {
        "LayerNorm twin": pd.DataFrame([[0.0, 90.0, 0.0], [1.0, 60.0, 2e-7]], columns=columns),
        "RMSNorm twin": pd.DataFrame([[0.0, 88.0, 0.0], [1.0, 30.0, 1.25]], columns=columns),
    }
    figure, alt = inference.turned_by(found, 1.0)
    left, right = figure.axes
    tips = [note.xy for note in left.texts if note.get_text() == ""]
    assert np.allclose(tips, [(0, 1), (np.sqrt(0.75), 0.5), (0.5, np.sqrt(0.75))]), "1 upright, angles measured from it"
    assert {"LayerNorm 60°", "RMSNorm 30°"} <= {text.get_text() for text in left.texts}
    lines = [line.get_ydata().tolist() for line in right.lines if len(line.get_xdata()) == 2]
    assert lines == [[0.0, 2e-7], [0.0, 1.25]]
    marks = {line.get_label(): np.hstack(line.get_data()).tolist() for line in right.lines if line.get_markersize() > 5}
    assert marks == {"LayerNorm twin": [1.0, 2e-7], "RMSNorm twin": [1.0, 1.25]}, "the mark of another constant"
    assert "With c = 1 " in alt and "LayerNorm twin: angle 60 degrees, change of the output 2e-07 of its length" in alt
    assert "RMSNorm twin: angle 30 degrees" in alt
    inference.turned_by({"one of yours": found["LayerNorm twin"]}, 0.0)


def test_a_dot_a_seed_in_columns_of_five():
    rows = [
        dict(norm=norm, seed=seed, step=step, site=site, rank=rank if (step, site) == (120, "b") else 20)
        for norm, ranks in {"LayerNorm": [1, 5, 6], "RMSNorm": [3, 36, 40, 18]}.items()
        for seed, rank in enumerate(ranks)
        for step in (0, 120)
        for site in ("b", "a")  # the order of the rows is that of use
    ]
    figure, alt = courses.rank_dots(pd.DataFrame(rows), norm=1, updates=120)
    dots = [sorted(zip(*axis.lines[0].get_data(), strict=True)) for axis in figure.axes]
    assert dots == [[(3, 1), (3, 2), (8, 1)], [(3, 1), (18, 1), (38, 1), (38, 2)]], "a rank in its neighbour's column?"
    even = [axis.lines[1].get_ydata()[0] for axis in figure.axes]
    assert even == pytest.approx([3 / 8 + 0.5, 4 / 8 + 0.5]), "seeds over columns, between dots"
    assert [axis.get_title() for axis in figure.axes] == ["LayerNorm, 3 seeds", "RMSNorm, 4 seeds"]
    assert "After 120 updates, at norm 1. LayerNorm, 3 seeds: median rank 5, 67 % of them among the lowest five" in alt
    assert "RMSNorm, 4 seeds: median rank 27, 25 % of them among the lowest five, 50 % among the highest" in alt
    assert "median rank 20" in courses.rank_dots(pd.DataFrame(rows), norm=2, updates=120)[1]
    assert "median rank 20" in courses.rank_dots(pd.DataFrame(rows), norm=1, updates=0)[1]


def test_a_drawing_is_spared_what_nobody_sees():
    """Every number stays within a hundredth of a point of what matplotlib writes, glyphs' own units included."""
    style = importlib.import_module("normgeom.view.style")
    numbers = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")

    def written():
        with view.style():
            figure, axis = plt.subplots()
            axis.plot(np.linspace(0, 1, 50), np.random.default_rng(0).random(50))
            axis.set_title("x² − y")
        return figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "_spare", lambda text: text)
        plain = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", style.svg(written()), flags=re.DOTALL)
    spare = style.svg(written())
    assert len(spare) < 0.9 * len(plain) and spare.count("<") == plain.count("<"), "an element is lost"
    before, after = ([float(v) for v in numbers.findall(text)] for text in (plain, spare))
    assert len(before) == len(after) and np.abs(np.subtract(before, after)).max() <= 0.005 + 1e-9
    uri = style.data_uri(spare)
    assert unquote(uri.removeprefix("data:image/svg+xml,")) == spare.replace('"', "'") and not set('"#<>') & set(uri)
