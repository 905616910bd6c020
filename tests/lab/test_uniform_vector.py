"""Figures in a plane and in space: arrows and points stand where another computation puts them; so do the words."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from normgeom_lab.common.space import seen
from normgeom_lab.uniform import length_by_spread, outputs_in_space, three_steps, towards_the_ring, two_norms

M1 = r"$m\mathbf{1}$"
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def same(got, expected):
    return np.abs(np.asarray(got) - np.asarray(expected)).max() <= 1e-12


def tips(axis):
    """Where the arrow with each name ends."""
    return {note.get_text(): np.array(note.xy) for note in axis.texts if note.get_text() not in ("", "θ")}


def series(axis, **look):
    """The points of the one line that has this label or line style."""
    (line,) = (line for line in axis.lines if all(line.properties()[name] == value for name, value in look.items()))
    return np.stack(line.get_data(), -1)


def test_centring_and_two_norms_in_the_plane_of_x_and_1():
    degrees = 20
    figure, alt = two_norms(degrees)
    left, right = map(tips, figure.axes)
    assert same(left[M1] + left["Πx"], left["x"]), "m1 + Πx is not x"
    assert left[M1][0] == left["Πx"][1] == 0, "m1 does not lie along 1, which is drawn upwards, or Πx not across it"
    cosine = left["x"][1] / np.linalg.norm(left["x"])
    assert abs(math.degrees(math.acos(cosine)) - degrees) < 1e-9, "not the angle to 1; that to the hyperplane? Radians?"
    rms, layer = right["RMSNorm(x)"], right["LN(x)"]
    assert same(np.linalg.norm(rms), np.linalg.norm(layer)), "the norms' outputs differ in length"
    assert same(rms / np.linalg.norm(rms), left["x"] / np.linalg.norm(left["x"])), (
        "RMSNorm does not keep the direction of x"
    )
    assert layer[0] > 0 == layer[1], "LayerNorm does not take that of Πx"
    share = np.linalg.norm(rms - layer) / np.linalg.norm(layer)
    assert same(share, 2 * math.sin(math.radians(90 - degrees) / 2)), "not the chord of prop-distance"
    assert f"leans {degrees:g} degrees" in alt and f"{90 - degrees:g} degrees apart" in alt


def test_the_panels_show_the_steps_of_torchs_norm():
    x, weight, bias = torch.tensor([[3.0, 0.0, 0.9], [1.3, 0.8, 0.6], [0.2, 0.4, 0.7]])
    figure, alt = three_steps(x, weight, bias)
    vectors = {"x": x, "1": torch.ones(3), M1: torch.full((3,), 1.3), "Πx": torch.tensor([1.7, -1.3, -0.4])}
    vectors["length 1"] = vectors["Πx"] / 4.74**0.5
    vectors |= {"n": F.layer_norm(x, (3,)), "y": F.layer_norm(x, (3,), weight, bias)}
    panels = ("x", "1"), ("x", M1, "Πx"), ("1", "Πx"), ("Πx", "length 1"), ("length 1", "n"), ("n", "y")
    for axis, names in zip(figure.axes, panels, strict=True):
        drawn = tips(axis)
        assert set(drawn) == set(names), axis.get_title()
        for name in names:
            assert np.allclose(drawn[name], seen(vectors[name][None])[:2, 0], atol=1e-4), name
    assert "(1.30, 1.30, 1.30)" in alt and "of length 2.18" in alt


def test_outputs_lie_on_the_ring_and_on_the_sphere():
    figure, alt = outputs_in_space(X)
    (axis,) = figure.axes
    for marker, norm, steep in (("o", F.layer_norm, False), ("s", F.rms_norm, True)):
        found = norm(X, (3,), eps=1e-12)
        right, up, near = seen(found).numpy()
        back, front = (np.stack(line.get_data()) for line in axis.lines if line.get_marker() == marker)
        assert np.allclose(front, [right[near >= 0], up[near >= 0]], atol=1e-6), "another norm, or another half"
        assert back.shape[1] + front.shape[1] == len(X)
        assert (found.sum(-1).abs().max() > 1) == steep
    along = float(F.rms_norm(X, (3,)).sum(-1).abs().max()) / 3**0.5
    assert f"up to {along:.2f}" in alt


@pytest.mark.parametrize("eps", [0.0, 1e-3, 1.0])
def test_points_stand_at_the_lengths_of_torchs_norm(eps):
    figure, alt = towards_the_ring(X, eps)
    (axis,) = figure.axes
    before, after = series(axis, label="Πx"), series(axis, label="n")
    centred = X - X.mean(-1, keepdim=True)
    n = F.layer_norm(X, (3,), eps=eps)
    for drawn, vectors, what in ((before, centred, "Πx"), (after, n, "n")):
        gram = drawn @ drawn.T  # a drawing of vectors in a plane keeps lengths and angles
        assert same(gram, vectors @ vectors.T), f"{what}: lengths or angles differ; √3 or ε lost?"
    assert same(before[:, 0], (X[:, 0] - X[:, 1]) / 2**0.5), "not along (1, −1, 0)"
    assert f"median standard deviation of {float(centred.norm(dim=-1).median()) / 3**0.5:.1g}" in alt
    assert f"{float(n.norm(dim=-1).median()) / 3**0.5:.2f} times the ring's radius" in alt


def test_the_length_follows_the_root_of_eps():
    x = X * torch.logspace(-4, 1, len(X), dtype=torch.float64)[:, None]
    figure, alt = length_by_spread(x, 1e-2, 1e-6)
    (axis,) = figure.axes
    spread = (x - x.mean(-1, keepdim=True)).square().mean(-1).sqrt()
    for name, eps, marker in (("ε = 0.01", 1e-2, "^"), ("ε = 10⁻⁶", 1e-6, "o")):
        sigma, curve = series(axis, label=name).T
        assert np.allclose(curve, sigma / np.hypot(sigma, eps**0.5), rtol=1e-6)
        assert np.allclose(sigma[[0, -1]], [spread.min(), spread.max()], rtol=1e-5)
        found = series(axis, marker=marker)[:, 1]
        assert same(found, F.layer_norm(x, (3,), eps=eps).norm(dim=-1) / 3**0.5)
    assert "0.1 for ε = 0.01, 0.001 for ε = 10⁻⁶" in alt and "markers of 40 vectors" in alt
