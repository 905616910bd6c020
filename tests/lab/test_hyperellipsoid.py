"""Ellipsoids against dense linear algebra, and figures of them."""

import math

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from norm_checks import draw
from normgeom_lab import hyperellipsoid as lab

F64 = torch.float64
GAINS = {
    "near one": 1 + 0.1 * draw(40),
    "both signs": torch.exp(0.5 * draw(40, seed=1)) * draw(40, seed=2).sign(),
    "one zero": torch.cat([torch.zeros(1), 1 + 0.1 * draw(30)]),
}


def dense(gain):
    """Semi-axes over √d, descending, and axes of GΠG, from torch.linalg."""
    values, vectors = torch.linalg.eigh(torch.diag(gain**2) - torch.outer(gain, gain) / len(gain))
    return values[1:].flip(0).sqrt(), vectors[:, 1:].flip(1)


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
@pytest.mark.parametrize("shift", (0, 1))
def test_off_rank_against_a_loop(gain, shift):
    size = sorted(gain.abs().tolist(), reverse=True)[shift:]
    ratios = [abs(length / g - 1) for length, g in zip(dense(gain)[0].tolist(), size, strict=False) if g > 0]
    assert lab.off_rank(ng.Ellipsoid(gain), shift) == pytest.approx(np.quantile(ratios, 0.95), rel=1e-9)


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
def test_between_gains_against_a_loop(gain):
    body, (_, axes) = ng.Ellipsoid(gain), dense(gain)
    order = gain.abs().argsort(descending=True).tolist()
    heavy = [set(axis.abs().argsort(descending=True)[:2].tolist()) for axis in axes.T]
    hits = sum(pair == set(order[i : i + 2]) for i, pair in enumerate(heavy))
    assert lab.between_gains(body, body.axes()) == pytest.approx(hits / body.dim), "another rank, or order of the axes"
    assert lab.between_gains(body, body.axes().flip(1)) < 0.2, "the order of the axes does not count"


def test_shapes_are_those_of_dense_algebra():
    table = lab.shapes(GAINS)
    assert list(table.index) == list(GAINS)
    for name, gain in GAINS.items():
        row, size, body = table.loc[name], gain.abs(), ng.Ellipsoid(gain)
        lengths, axes = dense(gain)
        squares = axes.square().sort(0, descending=True).values
        normal = 1 / gain if (gain != 0).all() else torch.eye(len(gain), dtype=F64)[0]
        expected = dict(
            smallest=float(size.min()),
            median=float(size.median()),
            largest=float(size.max()),
            elongation=float(lengths[0] / lengths.median()),
            angle=math.degrees(math.acos(abs(normal.sum()) / normal.norm() / len(gain) ** 0.5)),
            one=float(squares[0].median()),
            two=float((squares[0] + squares[1]).median()),
            off_rank=lab.off_rank(body, 0),
            off_next=lab.off_rank(body, 1),
            enclosed=lab.between_gains(body, body.axes()),
        )
        assert row.to_dict() == pytest.approx(expected, rel=1e-8), name


GAIN = torch.tensor([0.9, -0.4, 1.3, 0.7], dtype=F64)
SQUARES = np.sort(GAIN.numpy() ** 2)


def lines(axis, marker):
    return [line for line in axis.lines if line.get_marker() == marker]


def test_the_polynomial_turns_at_its_marks():
    figure, alt = lab.critical_points(GAIN)
    top, below = figure.axes
    t, p = top.lines[0].get_data()
    assert np.allclose(p, np.prod([t - s for s in SQUARES], axis=0), rtol=1e-9), "the curve is another polynomial"
    (roots,), (turns,) = lines(top, "o"), lines(top, "s")
    polynomial = np.poly1d(SQUARES, True)
    expected = np.sort(np.polyder(polynomial).roots)
    assert np.allclose(roots.get_xdata(), SQUARES)
    assert np.allclose(turns.get_data(), (expected, polynomial(expected)), rtol=1e-9), "not where the derivative is 0"
    assert np.allclose(lines(below, "s")[0].get_xdata(), expected)
    assert all(f"{value:.2f}" in alt for value in (*SQUARES, *expected))


def test_the_secular_equation_rises_through_its_roots():
    deficit = 0.1
    figure, alt = lab.secular_equation(GAIN, deficit)
    (axis,) = figure.axes
    G, ones = np.diag(GAIN.numpy()), np.full((4, 4), 0.25)
    for marks, dash, delta, count in zip(lines(axis, "s"), ("-", "--"), (0.0, deficit), (3, 4), strict=True):
        values = np.linalg.eigvalsh(G @ (np.eye(4) - (1 - delta) * ones) @ G)
        assert np.allclose(marks.get_xdata(), values[values > 1e-12], rtol=1e-9), "not the eigenvalues"
        branches = [line for line in axis.lines if line.get_linestyle() == dash and len(line.get_xdata()) == 300]
        assert len(branches) == count, "a branch between each two poles, and one from zero with a deficit"
        for t, f in (line.get_data() for line in branches):
            assert (np.diff(f) > 0).all(), "each branch rises"
            assert np.allclose(f, -delta / t + (1 - delta) * sum(0.25 / (s - t) for s in SQUARES)), "another left side"
    assert "there are 3 branches with one root each" in alt and f"its root at {marks.get_xdata()[0]:.3f}" in alt


def test_shares_are_drawn_as_given():
    theory = pd.DataFrame({3: np.linspace(0, 1, 101), 16: np.linspace(0, 2, 101).clip(max=1)}, np.linspace(1, 11, 101))
    found = theory.iloc[::20] + 0.02
    figure, alt = lab.shares_near_surface(found, theory, 4.25)
    marks = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines if line.get_marker() != "None"}
    assert np.allclose(marks["d = 3"], found[3]) and np.allclose(marks["d = 16"], found[16])
    assert "rises from 0.1 at 2.0 to 0.9 at 10.0 for 3 features" in alt and "within 0.02" in alt


def test_gains_are_drawn_over_their_medians():
    rows = dict(site=["a", "b"], q00=[0.0, 1.0], q05=[0.5, 1.0], q50=[1.0, 2.0], q95=[2.0, 6.0], q100=[3.0, 16.0])
    figure, alt = lab.gains_by_norm(pd.DataFrame(rows).assign(model="M"))
    largest, smallest, zeros = (line.get_xydata() for line in figure.axes[0].lines)
    assert list(largest[:, 1]) == [3, 8] and np.array_equal(smallest[:, 1], [np.nan, 0.5], True), (
        "not the median's multiples"
    )
    (tick,) = [tick for tick in figure.axes[0].get_yticks() if tick < 1e-5]
    assert zeros.tolist() == [[1, tick]], "a gain of zero has a row of its own"
    assert "at most 8 times" in alt and "1 norms have a gain of 0" in alt
