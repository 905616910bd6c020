"""Pictures: they show the numbers they were given, and their words say the same numbers."""

import importlib
import re
from urllib.parse import unquote

import matplotlib.pyplot as plt
import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom import view
from normgeom_lab import jacobians
from normgeom_lab.common.pictures import ellipses_in_space, outputs_in_space, three_steps


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
