"""Pictures of rounding: the lines are the numbers, and the words name them."""

import math

import numpy as np
import pandas as pd
import pytest
from normgeom_lab.precision import errors_over_means, rounded_walk, walk

WALKS = np.array([[0.3, -1.1, 2.7, 0.9, 5.7], [0.1, 0.1, 0.1, 0.1, 0.1], [9.0, 1.0, 1.0, 1.0, 1.0]])


def test_a_walk_beside_the_exact_one():
    figure, alt = walk(WALKS, 2, lambda k, u: u)
    exact, path = (line.get_ydata() for line in figure.axes[0].lines)
    assert list(exact) == pytest.approx([0, 0.3, -0.8, 1.9, 2.8, 8.5])
    assert list(path) == rounded_walk(WALKS[0].tolist(), 2) == [0, 0.25, -0.75, 2, 3, 8]
    assert "of 5 steps" in alt and "2 digits" in alt and "at the end they are 0.5 apart" in alt


def test_errors_of_all_walks_stand_in_the_band_of_the_law():
    """Rounded to two digits the sums are 8, 0.5 and 8 for 8.5, 0.5 and 13; the law is 2u √k here, so the band 2u k."""
    figure, alt = walk(WALKS, 2, lambda k, u: 2 * u * k**0.5)
    below = figure.axes[1]
    *others, first = (line.get_ydata() for line in below.lines)
    assert list(first) == pytest.approx([0, -0.05, 0.05, 0.1, 0.2, -0.5])
    ends = [line[-1] for line in others]
    assert ends == pytest.approx([-0.5, rounded_walk([0.1] * 5, 2)[-1] - 0.5, -5.0])
    (band,) = below.collections
    corners = band.get_paths()[0].vertices
    edge = max(corners[:, 1])
    assert edge == pytest.approx(5 / 2) and min(corners[:, 1]) == pytest.approx(-5 / 2), "u = 2⁻ᵖ, k = 5"
    middle = corners[np.isclose(corners[:, 0], 3), 1]
    assert sorted(middle) == pytest.approx([-1.5, 1.5]), "a band that does not grow with the terms"
    low, high = below.get_ylim()
    assert low < -edge and edge < high
    assert below.get_title() == "2 of 3 errors end within ±2.5" and "2 end within the band of the law, 2.5" in alt


def test_errors_and_what_rounding_promises():
    means = [1.0, 100.0, 1e4, 1e6]
    off = pd.DataFrame({"one pass": [1e-6, 1e-2, 3.0, math.nan], "two": [1e-6, 2e-6, 2e-4, 5e-2]}, index=means)
    figure, alt = errors_over_means(off, 1e-7)
    one, two, linear, squared = figure.axes[0].lines
    assert list(two.get_ydata()) == off["two"].to_list() and list(two.get_xdata()) == means
    assert math.isnan(one.get_ydata()[-1])
    assert list(linear.get_ydata()) == pytest.approx([1e-7 * m for m in means])
    assert list(squared.get_ydata()) == pytest.approx([1e-7 * m**2 for m in means[:3]])
    assert "one pass from 1e-06 at mean 1 to 3e+00 at 10000" in alt, "NaN has no place in words"
    assert "two from 1e-06 at mean 1 to 5e-02 at 1e+06" in alt
