"""Pictures of a plane: points where the formulas of torch put them, words with the same numbers."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from normgeom_lab.irreversibility import errors_of_scale, fibres_of_layer_norm, sinking_key
from normgeom_lab.jacobians import change_around_x
from torch.func import jacrev


def named(axis, label):
    (line,) = [line for line in axis.get_lines() if line.get_label() == label]
    return np.array(line.get_data(), dtype=float)


def test_shades_are_what_layer_norm_makes_of_each_point():
    figure, alt = fibres_of_layer_norm(0.0, 0.25)
    u = math.sqrt(3) * F.normalize(torch.tensor([1.0, 0.5, -1.5], dtype=torch.float64), dim=0)
    for axis, eps in zip(figure.axes, (0.0, 0.25), strict=False):
        shown = torch.as_tensor(axis.images[0].get_array().filled(math.nan))[0].double()
        along = torch.linspace(-2, 2, 401, dtype=torch.float64)
        n = F.layer_norm(along[:, None] * u + 7, (3,), eps=eps) @ u / 3
        off_zero = along.abs() > 1e-6
        assert (shown - n)[off_zero].abs().max() < 1e-5, f"ε = {eps}: ε outside the root?"
        assert axis.get_title() == f"ε = {eps:g}"
    points = [(0.5, 0.25), (0.5, 0.25), (1.4, 0.25)]
    values = [f"{s / math.sqrt(s * s + e):.2f}" for s, e in points]
    assert f"at the points it is {', '.join(values)}." in alt and "1.00, 1.00, 1.00" in alt


def test_the_image_of_the_circle_is_the_jacobian_s():
    """In units where ε = 1, by autograd, for d = 2 dimensions of the plane orthogonal to 1."""
    sigma, d = 1.5, 4
    figure, alt = change_around_x(sigma)
    left, right = figure.axes
    v = torch.tensor([1.0, 1, -1, -1], dtype=torch.float64)
    w = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)
    x = sigma * v + 3
    jacobian = jacrev(lambda t: F.layer_norm(t, (d,), eps=1.0))(x)
    n = F.layer_norm(x, (d,), eps=1.0)
    centre, half_axes = float(n @ v) / d, [float(u @ jacobian @ u) / d for u in (v, w)]
    (image,) = [patch.get_xy() for patch in left.patches]
    assert image[:, 0].max() == pytest.approx(centre + 0.6 * half_axes[0], rel=1e-5), "1/s for 1/s³ along x?"
    assert image[:, 1].max() == pytest.approx(0.6 * half_axes[1], rel=1e-3), "along for across?"
    assert named(left, "n and the image")[0] == pytest.approx(centre)
    assert named(left, "Πx and changes")[0] == pytest.approx(sigma)
    marked = next(line.get_ydata() for line in right.get_lines() if len(line.get_xdata()) == 2)
    assert sorted(marked) == pytest.approx(sorted(half_axes))
    assert f"at {centre:.2f} inside" in alt
    assert f"marked at {half_axes[1]:.2g} and {half_axes[0]:.2g}" in alt


def hexagon(own):
    """One token at angle 0 with σ ``own``, and six around it with σ = 1."""
    turn = torch.arange(6, dtype=torch.float64) * math.pi / 3 + math.pi / 6
    around = torch.stack([turn.cos(), turn.sin()], -1)
    around = torch.cat([torch.tensor([[own, 0.0]], dtype=torch.float64), around])
    a, b = torch.tensor([1.0, -1, 0]).double(), torch.tensor([1.0, 1, -2]).double()
    return 3**0.5 * around @ torch.stack([a / a.norm(), b / b.norm()])


@pytest.mark.parametrize(("own", "verdict"), [(1.0, "selectable"), (0.1, "not selectable"), (1e-3, "not selectable")])
def test_a_key_that_sinks_is_said_to(own, verdict):
    """The hull's edge at angle 0 lies at cos 30° = 0.87 of the others' distance."""
    eps = 1e-2
    figure, alt = sinking_key(hexagon(own), eps)
    axis = figure.axes[0]
    assert axis.get_title() == verdict
    assert re.search(rf"It is {verdict}: the query of length 1", alt)
    n = F.layer_norm(hexagon(own), (3,), eps=eps)
    assert named(axis, f"σ = {own:.2g}")[0] == pytest.approx(float(n[0].norm()), rel=1e-9)
    assert f"one at {float(n[0].norm()):.2f}" in alt
    edge = math.cos(math.pi / 6) * float(n[1].norm())
    margin = float(n[0].norm()) - edge  # of the query along the key, the best as long as the others are symmetric
    if verdict == "selectable":
        assert f"scores it {margin:.2f} above the best" in alt


def test_the_mean_of_the_tokens_does_not_matter():
    one, two = (sinking_key(hexagon(1.0) + shift, 1e-3)[1] for shift in (0, 5))
    assert one == two


def test_errors_of_the_scale_are_marked_beside_their_lines():
    sigmas = [0.1, 1.0, 10.0]
    found = {"float16": [0.001, 0.01, 0.2], "float64": [1e-16, 1e-15, 1e-14]}
    predicted = {"float16": [0.002, 0.02, 0.2], "float64": [2e-16, 2e-15, 2e-14]}
    figure, alt = errors_of_scale(sigmas, found, predicted, eps=0.04)
    (axis,) = figure.axes
    for name, errors in found.items():
        assert named(axis, name).tolist() == [sigmas, errors]
    lines = [line for line in axis.get_lines() if line.get_marker() == "None" and len(line.get_xdata()) == 3]
    assert [list(line.get_ydata()) for line in lines] == list(predicted.values())
    (root,) = (line for line in axis.get_lines() if line.get_linestyle() == ":")
    assert root.get_xdata()[0] == 0.2
    assert "float16 passes 10 % between σ = 1 and 10" in alt and "float64 goes from 1e-16 to 1e-14 at σ = 10" in alt
