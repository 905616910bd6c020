"""One look: ticks in letters of full size, no ground, colours that every colour vision tells apart."""

import importlib
import re
from itertools import combinations
from urllib.parse import unquote

import matplotlib.pyplot as plt
import numpy as np
import pytest
from daltonlens.simulate import Deficiency, Simulator_Machado2009
from normgeom import view
from normgeom.view.style import COLORS, WIDTH, style, svg


def test_the_style_has_one_width_and_no_ground():
    with style():
        figure, axis = plt.subplots()
        axis.plot([0, 1], label="a line")
        axis.legend()
        assert figure.get_figwidth() == WIDTH
        assert "#ffffff" not in svg(figure), "a card glares where the page is dark"


# Linear sRGB to XYZ over the white of D65.
TO_XYZ = np.array([[0.4339, 0.3763, 0.1898], [0.2126, 0.7152, 0.0722], [0.0178, 0.1095, 0.8728]])


def nearest(colors: list[str], deficiency: Deficiency) -> float:
    """The distance in CIELAB of the two colours that a reader with a deficiency tells apart worst."""
    shown = np.array([[[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in colors]], np.uint8)
    value = Simulator_Machado2009().simulate_cvd(shown, deficiency, severity=1.0)[0] / 255
    xyz = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4) @ TO_XYZ.T
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(lab, 2))


@pytest.mark.parametrize("deficiency", Deficiency)
def test_lines_are_told_apart_in_every_colour_vision(deficiency):
    """Colours 2 to 3 apart are just told apart side by side.  The red and green of matplotlib's own cycle fail."""
    with style():
        lines = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    assert nearest(lines, deficiency) >= 10 > nearest(["#d62728", "#2ca02c"], Deficiency.DEUTAN)
    assert [COLORS["uniform"], COLORS["random_a"], COLORS["random_b"]] == lines[:3]


def test_show_carries_the_words(monkeypatch):
    shown = []
    style = importlib.import_module("normgeom.view.style")
    monkeypatch.setattr(style, "display", lambda data, raw, metadata: raw and shown.append((data, metadata)))
    with view.style():
        figure, empty = plt.figure(), plt.figure()
    view.show(figure, "a line that rises")
    data, metadata = shown[0]
    assert data["image/svg+xml"].startswith("<svg")
    assert (data["text/plain"], metadata) == ("Figure: a line that rises", {"alt": "a line that rises"})
    assert plt.get_fignums() == [empty.number], "the figure is closed"
    with pytest.raises(ValueError, match="alt: expected words"):
        view.show(empty, " ")


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
        patch.setattr(style, "_shortened", lambda text: text)
        plain = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", style.svg(written()), flags=re.DOTALL)
    spare = style.svg(written())
    assert len(spare) < 0.9 * len(plain) and spare.count("<") == plain.count("<"), "an element is lost"
    before, after = ([float(v) for v in numbers.findall(text)] for text in (plain, spare))
    assert len(before) == len(after) and np.abs(np.subtract(before, after)).max() <= 0.005 + 1e-9
    uri = style.data_uri(spare)
    assert unquote(uri.removeprefix("data:image/svg+xml,")) == spare.replace('"', "'") and not set('"#<>') & set(uri)
