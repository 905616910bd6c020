"""Training of a weight before a norm against steps written out, and figures against torch's derivatives."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from norm_checks import rounding
from normgeom_lab.jacobians import ScaleFreeRun, change_around_x, train_scale_free, turns_over_steps
from torch.func import jacrev

HOW = dict(eps=0.0, steps=30, seed=1, rate=0.1, decay=0.1)


def by_hand(start, eps, steps, seed, rate, decay):
    """The same training with the gradient by the closed form of RMSNorm's derivative, turns by an arc cosine."""
    source = torch.Generator().manual_seed(seed)
    shapes = [(16, 12), (16, 12)] + steps * [(16, 12), (16, 16)]
    teacher, w, *data = (torch.randn(*shape, generator=source, dtype=torch.float64) for shape in shapes)
    w = start * w / w.norm()
    lengths, turns = [], []
    for h, noise in zip(data[::2], data[1::2], strict=True):
        aim, x = h @ teacher.T, h @ w.T
        target = aim / aim.square().mean(-1, keepdim=True).sqrt() + noise
        r = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        n = x / r
        g = (n - target) / 16
        slope = ((g - n * (g * n).mean(-1, keepdim=True)) / r).T @ h
        new = (1 - rate * decay) * w - rate * slope
        turns.append(math.degrees(math.acos(float((new * w).sum() / new.norm() / w.norm()))))
        lengths.append(float(new.norm()))
        w = new
    return torch.tensor(lengths, dtype=torch.float64), torch.tensor(turns, dtype=torch.float64)


@pytest.mark.parametrize(("start", "eps"), [(3.0, 0.0), (0.5, 0.3)])
def test_lengths_and_turns_are_those_of_steps_written_out(start, eps):
    run = train_scale_free(start, **HOW | dict(eps=eps))
    for name, got, expected in zip(run._fields, run, by_hand(start, **HOW | dict(eps=eps)), strict=True):
        # rounding of 30 steps, each a few times that of the one before it, and an arc cosine's root of it
        off = float((got - expected).abs().max())
        assert off < 1e3 * 4 * rounding(expected, torch.float64, 12), (
            f"{name} off by {off:.1e}: sum for half the mean? Decay of the gradient too? Noise forgotten? Radians? ε?"
        )


def course(length, jump=None):
    """A weight of the same length throughout, but for one step, which turns by 1, 2, 3, … degrees."""
    lengths = torch.full((60,), float(length))
    lengths[3] = jump or length
    return ScaleFreeRun(lengths, torch.arange(1.0, 61))


def test_turns_are_means_of_twenty_steps_beside_the_lengths():
    runs = {3.0: course(2.0, jump=40.0), 10.0: course(5.0)}
    figure, alt = turns_over_steps(runs, {0.3: course(7.0)}, 8.25)
    left, right = figure.axes
    assert [line.get_label() for line in left.get_lines()] == ["start 3", "start 10"], "a length of a run with ε shown?"
    assert left.get_lines()[0].get_ydata()[[0, 4]].tolist() == [3, 40], "the start is step 0"
    *lines, level = right.get_lines()
    for line in lines:
        assert np.allclose(line.get_data(), ([10, 30, 50], [10.5, 30.5, 50.5])), "in the middle of their steps"
    assert len(lines) == 3 and list(level.get_ydata()) == [8.25, 8.25]
    assert "from 3 via 40.0 to 2.0" in alt and "from 10 via 5.0 to 5.0" in alt
    assert "45.5 (start 3)" in alt and "45.5 (ε = 0.3)" in alt and "8.2" in alt


def test_the_image_of_the_circle_is_the_jacobian_s():
    """In units where ε = 1, by autograd, for d = 2 dimensions of the plane orthogonal to 1."""
    sigma, d = 1.5, 4
    figure, alt = change_around_x(sigma)
    above, below = figure.axes
    v, w = torch.tensor([[1.0, 1, -1, -1], [1.0, -1, 1, -1]], dtype=torch.float64)
    x = sigma * v + 3
    jacobian = jacrev(lambda t: F.layer_norm(t, (d,), eps=1.0))(x)
    centre = float(F.layer_norm(x, (d,), eps=1.0) @ v) / d
    along, across = (float(u @ jacobian @ u) / d for u in (v, w))
    (image,) = [patch.get_xy() for patch in above.patches]
    assert image[:, 0].max() == pytest.approx(centre + 0.6 * along, rel=1e-5), "1/s for 1/s³ along x?"
    assert image[:, 1].max() == pytest.approx(0.6 * across, rel=1e-3), "along for across?"
    marked = next(line.get_ydata() for line in below.get_lines() if len(line.get_xdata()) == 2)
    assert list(marked) == pytest.approx([across, along])
    assert f"at {centre:.2f} inside" in alt and f"marked at {across:.2g} and {along:.2g}" in alt
