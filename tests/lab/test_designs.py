"""Pictures of designs show the numbers that they were given, and their words say the same."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom_lab import designs as lab
from normgeom_lab.common.growth import Growth


def lines(axis):
    return [np.asarray(line.get_xydata(), float) for line in axis.lines]


def test_rays_are_drawn_as_the_functions_leave_them():
    figure, alt = lab.what_becomes_of_rays()
    before, norm, function, frozen = (lines(axis)[:12] for axis in figure.axes)
    for x, n, u, v in zip(before, norm, function, frozen, strict=True):
        assert np.allclose(np.linalg.matrix_rank(x, tol=1e-5), 1), "no ray"
        assert np.ptp(n, axis=0).max() < 1e-5, "no point"
        assert np.allclose((n[0] / [2**0.5, 0.6 * 2**0.5]) ** 2 @ [1, 1], 1, atol=1e-5), "not on the ellipse"
        assert np.allclose(u, np.tanh(x) * [1, 0.6], atol=1e-6)
        assert np.allclose(v / x, v[0] / x[0], atol=1e-5), "a frozen norm bends rays"
    assert "ellipse" in alt and "box" in alt


def test_steps_on_the_sphere_are_the_angles_of_vectors():
    figure, alt = lab.step_on_the_sphere(0.1, 0.4)
    (axis,) = figure.axes
    for a, curve in zip((0.1, 0.4), (lines(axis)[0], lines(axis)[3]), strict=True):
        theta = np.radians(curve[:, 0])
        y = (1 - a) * np.array([[1], [0]]) + a * np.stack([np.cos(theta), np.sin(theta)])
        assert np.allclose(curve[:, 1], np.degrees(np.arccos(y[0] / np.linalg.norm(y, axis=0))), atol=1e-5)
        assert f"{np.degrees(np.arcsin(a / (1 - a))):.1f} degrees" in alt


def test_growth_is_drawn_as_given():
    square = torch.stack([1 + torch.arange(5.0), 3 + 3 * torch.arange(5.0)])
    update = torch.stack([1 / torch.arange(1.0, 5), 3 / torch.arange(1.0, 5)])
    grown = {name: Growth(k * square, square, k * update, update) for k, name in ((1, "pre"), (2, "keel"))}
    figure, alt = lab.growth_of_designs(grown)
    size, late = figure.axes
    assert [line[-1].tolist() for line in lines(size)] == [[4, 10], [4, 20]]
    assert [line[-1].tolist() for line in lines(late)] == [[4, 0.5], [4, 1]]
    assert "pre-norm 10 and 0.5; Keel 20 and 1" in alt


def test_losses_are_in_order_with_the_best_above():
    means = (("pre", 6, 3.0), ("pre", 18, 2.8), ("dyt", 6, 2.5), ("dyt", 18, 2.6), ("none", 6, 2.1), ("none", 18, 99.0))
    columns = ["design", "layers", "mean", "low", "high"]
    table = pd.DataFrame([(*row, row[-1] - 0.1, row[-1] + 0.2) for row in means], columns=columns)
    figure, alt = lab.losses_of_designs(table, beyond=10)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["DyT", "pre-norm", "no norms"]
    assert axis.yaxis_inverted() and "DyT 2.50, 2.60; pre-norm 3.00, 2.80; no norms 2.10, beyond 10" in alt
    drawn = [line[:, 0].tolist() for line in lines(axis) if len(line) == 3]
    assert drawn == [[2.5, 3.0, 2.1], [2.6, 2.8, pytest.approx(math.nan, nan_ok=True)]]
    bars, _ = (c.get_segments() for c in axis.collections)
    assert np.allclose(bars[0][:, 0], [2.4, 2.7])


def test_the_course_of_a_removal():
    courses = {"removed": [(0, 0, 1.0), (0, 1, 1.2), (50, 2, 1.6), (90, 2, 1.4)], "kept": [(0, 0, 1.0), (90, 0, 1.1)]}
    rows = [
        (updates, frozen, loss + 0.1 * seed, arm, seed)
        for arm, course in courses.items()
        for updates, frozen, loss in course
        for seed in (0, 1)
    ]
    figure, alt = lab.removed_one_by_one(pd.DataFrame(rows, columns=["updates", "frozen", "loss", "arm", "seed"]))
    first, second = (line for line in lines(figure.axes[0]) if len(line) > 1)
    assert np.allclose(first, [[0, 1.05], [0, 1.25], [50, 1.65], [90, 1.45]])
    assert np.allclose(second, [[0, 1.05], [90, 1.15]])
    assert all(number in alt for number in ("1.050", "1.650", "1.450", "1.150", "2 seeds"))
