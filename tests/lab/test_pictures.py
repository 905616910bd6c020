"""Figures that chapters share: where points are seen, what is drawn of them, and words that say the same."""

import math
import re

import matplotlib.pyplot as plt
import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom_lab.common import pictures
from normgeom_lab.common.pictures import ellipses_in_space, held, hold, outputs_in_space, three_steps
from normgeom_lab.common.turning import ONE_UP, THIRD_UP, Part, Turning, seen

AT = dict(turn=0.7, tilt=0.4)


@pytest.mark.parametrize("frame", [ONE_UP, THIRD_UP], ids=["one up", "third up"])
def test_a_projection_is_a_rotation_with_its_last_row_upright(frame):
    rotation = seen(torch.eye(3), **AT, frame=frame).T
    assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-15), "lengths change"
    assert abs(float(torch.linalg.det(rotation)) - 1) < 1e-15, "a mirror image"
    right, up, near = seen(frame[2:], **AT, frame=frame)[0].tolist()
    assert abs(right) < 1e-15 and up > 0, "the upright direction leans"
    assert abs(up - math.cos(0.4)) < 1e-15 and abs(near - math.sin(0.4)) < 1e-15, "not seen from above"


def test_turning_goes_round_the_upright_direction():
    turned = [seen(torch.tensor([[0.3, -1.2, 2.0]]), turn, 0.0)[0] for turn in (0.0, 0.9, 1.8)]
    assert np.allclose(np.diff([math.atan2(-v[2], v[0]) for v in turned]) % (2 * math.pi), 0.9)


def picture():
    parts = [
        Part(torch.cat([torch.zeros(1, 3), torch.eye(3)]), dash="2 4"),
        Part(torch.eye(3), "area", at={0: 1}),
        Part(torch.tensor([[1.0, 1, 1], [-1, -1, -1]]), "dots", square=True),
        Part(torch.tensor([[1.0, 0, 0]]), "text", words="a < b", at={0: 0}),
    ]
    return Turning(parts, {"shown": ["name", "area"]}, [0], **AT)


def test_a_drawing_needs_no_script():
    page = picture().page("two lines & a name")
    assert 'role="img" aria-label="two lines &amp; a name"' in page
    line, area, dots, text = re.findall(r"<(?:path|g|text) data-x=.*", page)
    scale = 430 / 2 / 2.3
    expected = [(x * scale, -y * scale) for x, y, _ in seen(torch.eye(3), **AT).tolist()]
    corners = [tuple(map(float, corner.split(","))) for corner in re.search(r' d="M([^"]*)"', line)[1].split("L")]
    assert np.allclose(corners, [(0, 0), *expected], atol=0.051)
    assert "display:none" in area and 'd=""' in area, "drawn at another position of the slider"
    far, near = re.findall(r'<path d="([^"]*)"', dots)
    assert far.count("M") == near.count("M") == 1 and 'opacity="0.35"' in dots, "behind is as strong as before"
    assert "a &lt; b" in text and "display" not in text


DRAWN = """() => [...document.querySelectorAll("svg [d], svg [x]")].map(e => [
    e.closest("[data-x]").style.display === "none",
    e.getAttribute("d") ?? `${e.getAttribute("x")},${e.getAttribute("y")}`,
])"""


def test_the_script_begins_with_the_same_drawing(browser):
    """What Python has drawn for pages without scripts is what the script draws before anything is turned."""
    seen = {}
    text = picture().page("words")
    for scripts, content in ((False, text[: text.index("<script>")]), (True, text)):
        page = browser.new_page()
        page.set_content(content)
        seen[scripts] = page.evaluate(DRAWN)
        page.close()
    assert len(seen[True]) == len(seen[False]) == 5, "another number of parts"
    for (hidden, by_script), (also, by_python) in zip(seen[True], seen[False], strict=True):
        assert hidden == also, "another part is shown"
        numbers = [np.array(re.findall(r"-?[\d.]+", text), float) for text in (by_script, by_python)]
        assert len(numbers[0]) == len(numbers[1]) and np.all(np.abs(numbers[0] - numbers[1]) < 0.11), by_script


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
    first, components, dropped, unit, stretched, last = (named(figure, i) for i in range(6))
    assert [set(found) for found in (first, components, dropped, unit, stretched, last)] == [
        {"x", "1"},
        {"x", "mean vector", "centred"},
        {"1", "centred"},
        {"centred", "length 1"},
        {"length 1", "normalised"},
        {"normalised", "output"},
    ], "an arrow without its name, or a name without its arrow"
    assert np.allclose(first["x"], x) and np.allclose(first["1"], 1)
    assert np.allclose(components["mean vector"], 1.3) and np.allclose(components["centred"], [1.7, -1.3, -0.4])
    assert np.allclose(unit["length 1"] * 4.74**0.5, [1.7, -1.3, -0.4], atol=1e-5)
    assert abs(np.linalg.norm(stretched["normalised"]) - 3**0.5) < 1e-4
    assert np.allclose(last["output"], torch.nn.functional.layer_norm(x, (3,), weight, bias), atol=1e-6)
    (dotted,) = (part.points for part in shown(figure, 1) if part.dash)
    assert np.allclose(dotted, [[1.3, 1.3, 1.3], [3, 0, 0.9], [1.7, -1.3, -0.4]], atol=1e-3)
    assert "(1.30, 1.30, 1.30)" in alt and "of length 2.18" in alt


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
    for position, gain in enumerate(GAINS.values()):
        body = ng.Ellipsoid(gain)
        (rim,) = (part.points for part in shown(figure, position, 0) if len(part.points) == 91)
        assert float((body.radius(rim) - 1).abs().max()) < 1e-12, "the curve is not the ellipse"
        names = named(figure, position, 0)
        assert abs(np.cross(names["normal"], 1 / gain.numpy())).max() < 1e-6, "another normal than 1/γ"
        assert np.allclose(names["1"], 1)
    assert "at flat the semi-axes are 1.83 and 0.92" in words, "1.73 and 1.73 belong to the round one"


def test_a_second_slider_chooses_among_the_points_of_each_eps():
    """Rows of standard deviation 0.8, 1, 2 and 4: within 5 % where σ² is at least 9.26 ε."""
    x = torch.tensor([[1.6], [2], [4], [8]]) * torch.tensor([-(0.375**0.5), 0, 0.375**0.5])
    figure, words = ellipses_in_space(GAINS, x, eps=(0.01, 0.1, 1.0))
    labels = [f"ε = {eps}: {share} % within 5 % of the rim" for eps, share in (("0.01", 100), ("0.1", 75), ("1", 25))]
    assert list(figure.sliders["ε"]) == labels and all(label in words for label in labels)
    for position, eps in enumerate((0.01, 0.1, 1.0)):
        (dots,) = (part.points for part in shown(figure, 1, position, kind="dots") if len(part.points) == 4)
        expected = torch.nn.functional.layer_norm(x, (3,), GAINS["flat"].float(), None, eps)
        assert torch.allclose(dots.float(), expected, atol=1e-6), "the slider shows the points of another ε"


@pytest.mark.parametrize("centered", [True, False])
def test_the_words_have_the_norms_numbers(centered):
    x, gain = torch.tensor([0.3, -1.2, 2.0]).double(), torch.tensor([1.5, 0.5, -1.0]).double()
    figure, words = held(x.tolist(), gain.tolist(), 0.01, centered)
    plt.close(figure)
    y = (ng.layer_norm if centered else ng.rms_norm)(x, gain, eps=0.01)
    assert f"y = ({', '.join(f'{v:.2f}' for v in y.tolist())})" in words
    axes = ng.Ellipsoid(gain, centered=centered).semi_axes.tolist()
    assert words.endswith(f"{', '.join(f'{a:.2f}' for a in axes)}.") and len(axes) == (2 if centered else 3)


def test_a_norm_to_hold_shows_its_arguments(monkeypatch):
    bundles = []
    monkeypatch.setattr(pictures, "display", lambda data, raw: raw and bundles.append(data))

    def output(**changes):
        hold(**changes)
        data = bundles[-1]
        assert data["text/html"].startswith('<div class="hold" data-show="norm"><img')
        return re.search(r"y = (\([^)]*\))", data["text/plain"])[1]

    x = torch.tensor([2.2, 0.4, -0.5])
    assert output() == output(x=(x + 1).tolist()), "prop-shift"
    assert output() != output(x=(x + 1).tolist(), centered=False)
