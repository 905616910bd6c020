"""Pictures of the ellipsoid: their curves and marks lie where other formulas put them, and words say the same."""

import numpy as np
import pandas as pd
import torch
from normgeom_lab import hyperellipsoid as ellipsoids

GAIN = torch.tensor([0.9, -0.4, 1.3, 0.7], dtype=torch.float64)
SQUARES = np.sort(GAIN.numpy() ** 2)


def lines(axis, marker):
    return [line for line in axis.lines if line.get_marker() == marker]


def test_the_polynomial_turns_at_its_marks():
    figure, alt = ellipsoids.critical_points(GAIN)
    top, below = figure.axes
    t, p = top.lines[0].get_data()
    assert np.allclose(p, np.prod([t - s for s in SQUARES], axis=0), rtol=1e-9), "the curve is another polynomial"
    (roots,), (turns,) = lines(top, "o"), lines(top, "s")
    assert np.allclose(roots.get_xdata(), SQUARES)
    expected = np.sort(np.polyder(np.poly1d(SQUARES, True)).roots)
    assert np.allclose(turns.get_xdata(), expected, rtol=1e-9), "not where the derivative vanishes"
    assert np.allclose(turns.get_ydata(), np.poly1d(SQUARES, True)(expected)), "marks beside the curve"
    low, high = top.get_ylim()
    assert low < turns.get_ydata().min() and turns.get_ydata().max() < high
    assert np.allclose(lines(below, "s")[0].get_xdata(), expected)
    for value in (*SQUARES, *expected):
        assert f"{value:.2f}" in alt


def test_the_secular_equation_rises_through_its_roots():
    deficit = 0.1
    figure, alt = ellipsoids.secular_equation(GAIN, deficit)
    (axis,) = figure.axes
    exact, missing = lines(axis, "s")
    root_d = np.full((4, 1), 0.5)
    for marks, delta in ((exact, 0.0), (missing, deficit)):
        G = np.diag(GAIN.numpy())
        values = np.linalg.eigvalsh(G @ (np.eye(4) - (1 - delta) * root_d @ root_d.T) @ G)
        assert np.allclose(marks.get_xdata(), values[values > 1e-12], rtol=1e-9), "not the eigenvalues"
    for dash, delta, count in (("-", 0.0, 3), ("--", deficit, 4)):
        branches = [line for line in axis.lines if line.get_linestyle() == dash and len(line.get_xdata()) == 300]
        assert len(branches) == count, "a branch between each two poles, and one from zero with a deficit"
        for line in branches:
            t, f = line.get_data()
            assert (np.diff(f) > 0).all(), "each branch rises"
            expected = -delta / t + (1 - delta) * sum(0.25 / (s - t) for s in SQUARES)
            assert np.allclose(f, expected), "another left side"
    assert "there are 3 with one root each" in alt and f"its root at {missing.get_xdata()[0]:.3f}" in alt


def test_shares_are_drawn_as_given():
    theory = pd.DataFrame({3: np.linspace(0, 1, 101), 16: np.linspace(0, 2, 101).clip(max=1)}, np.linspace(1, 11, 101))
    found = theory.iloc[::20] + 0.02
    figure, alt = ellipsoids.shares_near_surface(found, theory, 4.25)
    (axis,) = figure.axes
    for line, column in zip([line for line in axis.lines if line.get_marker() == "None"], theory, strict=False):
        assert np.allclose(line.get_data(), (theory.index, theory[column]))
    marks = [line for line in axis.lines if line.get_marker() in ("o", "s", "^")]
    assert [line.get_label() for line in marks] == ["d = 3", "d = 16"]
    assert np.allclose(marks[1].get_ydata(), found[16])
    assert "for 3 features it climbs from 0.1 at 2.0 to 0.9 at 10.0" in alt
    assert "for 16 features it climbs from 0.1 at 1.5 to 0.9 at 5.5" in alt
    assert "marks 4.25" in alt and "within 0.02" in alt


def recorded():
    keys = [
        (norms, order, k) for norms in ("last", "all") for order in ("smallest", "random", "largest") for k in (0, 2, 8)
    ]
    return pd.DataFrame(
        [(*key, 1 - 0.01 * i) for i, key in enumerate(keys)], columns=["norms", "coordinates", "k", "mean_cosine"]
    )


def test_silenced_gains_are_drawn_as_given():
    cosines = recorded()
    losses = pd.DataFrame(
        {"smallest": [2.0, 2.1, 2.5], "random": [2.0, 2.2, 2.5], "largest": [2.0, 2.3, 2.5]}, index=[0, 4, 16]
    )
    figure, alt = ellipsoids.silenced_gains(cosines, losses)
    left, right = figure.axes
    for order, marker in (("smallest", "o"), ("random", "^"), ("largest", "s")):
        for line, norms in zip(lines(left, marker), ("last", "all"), strict=True):
            part = cosines[(cosines.norms == norms) & (cosines.coordinates == order)]
            assert np.allclose(line.get_data(), (part.k, part.mean_cosine)), f"{order} in {norms}"
            assert line.get_linestyle() == {"last": "--", "all": "-"}[norms]
        (line,) = lines(right, marker)
        assert line.get_label() == order and np.allclose(line.get_data(), (losses.index, losses[order]))
    assert "with 8 coordinates silenced the cosine is 0.98 for the smallest, 0.95 for the random" in alt
    assert "with 2 coordinates it is 0.90 for the smallest, 0.87 for the random, 0.84 for the largest" in alt
    assert "rises from 2.00 nats; with 4 gains of each norm silenced it is 2.10 for the smallest, 2.20" in alt
