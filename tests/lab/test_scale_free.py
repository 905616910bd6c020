"""Training of a weight before a norm: against updates written out, and what a scale-free loss entails."""

import math

import pytest
import torch
from norm_checks import rounding
from normgeom_lab.jacobians import train_scale_free

HOW = dict(eps=0.0, steps=30, seed=1, rate=0.1, decay=0.1)


def by_hand(start, eps, steps, seed, rate, decay):
    """The same training with the gradient by the closed form of RMSNorm's derivative, turns by an arc cosine."""
    source = torch.Generator().manual_seed(seed)
    teacher, w, *data = (
        torch.randn(*shape, generator=source, dtype=torch.float64)
        for shape in [(16, 12), (16, 12)] + steps * [(16, 12), (16, 16)]
    )
    w = start * w / w.norm()
    lengths, turns = [], []
    for h, noise in zip(data[::2], data[1::2], strict=True):
        aim = h @ teacher.T
        target = aim / aim.square().mean(-1, keepdim=True).sqrt() + noise
        x = h @ w.T
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
def test_lengths_and_turns_are_those_of_updates_written_out(start, eps):
    run = train_scale_free(start, **HOW | dict(eps=eps))
    lengths, turns = by_hand(start, **HOW | dict(eps=eps))
    for name, got, expected in (("lengths", run.lengths, lengths), ("turns", run.turns, turns)):
        # rounding of 30 updates, each a few times that of the one before it, and an arc cosine's root of it
        off = float((got - expected).abs().max())
        assert off < 1e3 * 4 * rounding(expected, torch.float64, 12), (
            f"{name} off by {off:.1e}: sum for half the mean? Decay of the gradient too? Noise forgotten? Radians? ε?"
        )


def test_both_have_one_entry_a_step_and_no_graph():
    run = train_scale_free(3.0, **HOW)
    assert run.lengths.shape == run.turns.shape == (30,)
    assert run.lengths.dtype == run.turns.dtype == torch.float64
    assert not run.lengths.requires_grad and not run.turns.requires_grad


def test_the_first_step_follows_pythagoras():
    """With ε = 0 the gradient is orthogonal to W (prop-effective-rate), so a step without decay only lengthens it."""
    run = train_scale_free(3.0, **HOW | dict(decay=0.0))
    before = torch.cat([torch.tensor([3.0], dtype=torch.float64), run.lengths[:-1]])
    expected = torch.rad2deg(torch.acos(before / run.lengths))
    assert (run.lengths > before).all(), "a gradient with a radial part?"
    assert torch.allclose(run.turns, expected, rtol=0, atol=1e-6), "the turn from the start for that of the step?"


def test_a_longer_start_is_a_smaller_rate():
    """Item 2 of prop-effective-rate: twice the length and four times the rate is the same path of directions."""
    one = train_scale_free(2.0, **HOW | dict(decay=0.0))
    two = train_scale_free(4.0, **HOW | dict(decay=0.0, rate=0.4))
    assert torch.allclose(one.turns, two.turns, rtol=0, atol=1e-8)
    assert torch.allclose(2 * one.lengths, two.lengths, rtol=1e-10)


def test_the_same_stream_of_data_for_every_start_and_another_for_another_seed():
    again = [train_scale_free(3.0, **HOW | dict(seed=seed)).turns for seed in (1, 1, 2)]
    assert torch.equal(again[0], again[1]), "not repeated"
    assert not torch.equal(again[0], again[2]), "the seed is not used"
