"""Colours of lines are told apart by readers of every colour vision, as far as a simulation can say."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from daltonlens.simulate import Deficiency, Simulator_Machado2009
from normgeom.view.style import COLORS, style

APART = 10.0  # in CIELAB; two or three are just seen side by side
# Linear sRGB to XYZ over the white of D65.
TO_XYZ = np.array([[0.4339, 0.3763, 0.1898], [0.2126, 0.7152, 0.0722], [0.0178, 0.1095, 0.8728]])


def lab(colors: np.ndarray) -> np.ndarray:
    """CIELAB of colours ``(n, 3)`` in 0 to 255."""
    value = colors / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    xyz = linear @ TO_XYZ.T
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def nearest(colors: list[str], deficiency: Deficiency) -> tuple[float, str, str]:
    """The two colours that a reader with a deficiency tells apart worst, and how far apart they are."""
    shown = np.array([[[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in colors]], np.uint8)
    seen = lab(Simulator_Machado2009().simulate_cvd(shown, deficiency, severity=1.0)[0])
    pairs = combinations(range(len(colors)), 2)
    return min((float(np.linalg.norm(seen[i] - seen[j])), colors[i], colors[j]) for i, j in pairs)


def series() -> list[str]:
    with style():
        return plt.rcParams["axes.prop_cycle"].by_key()["color"]


@pytest.mark.parametrize("deficiency", Deficiency)
def test_lines_are_told_apart_in_every_colour_vision(deficiency):
    distance, *pair = nearest(series(), deficiency)
    assert distance >= APART, f"{pair} are {distance:.1f} apart for {deficiency.name}"


def test_directions_have_colours_of_the_lines():
    assert [COLORS["uniform"], COLORS["random_a"], COLORS["random_b"]] == series()[:3]


def test_a_pair_that_is_lost_is_found():
    """The red and the green of matplotlib's own cycle."""
    assert nearest(["#d62728", "#2ca02c"], Deficiency.DEUTAN)[0] < APART
