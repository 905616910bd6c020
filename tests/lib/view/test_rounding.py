"""Pictures of rounding: the lines are the numbers, and the words name them."""

import math

import pandas as pd
import pytest
from normgeom.bench.sums import rounded_walk
from normgeom.view.rounding import errors_over_means, walk

STEPS = [0.3, -1.1, 2.7, 0.9, 5.7]


def test_a_walk_beside_the_exact_one():
    figure, alt = walk(STEPS, 2)
    exact, path = (line.get_ydata() for line in figure.axes[0].lines)
    assert list(exact) == rounded_walk(STEPS, 53) and list(path) == rounded_walk(STEPS, 2)
    off = abs(path[-1] - exact[-1])
    assert off > 0 and f"{off:.2g} apart" in alt
    assert "5 steps" in alt and "2 digits" in alt
    with pytest.raises(ValueError, match="digits: expected 1 to 53"):
        walk(STEPS, 0)


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


def test_more_ways_than_markers():
    off = pd.DataFrame({str(k): [1.0] for k in range(5)}, index=[1.0])
    with pytest.raises(ValueError, match="off: expected at most 4 ways"):
        errors_over_means(off, 1e-7)
