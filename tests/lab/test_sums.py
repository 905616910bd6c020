"""Rounded running totals: against torch's own formats, hand-made ties, and a numerical integral."""

import itertools
import math

import numpy as np
import pytest
import torch
from norm_checks import draw
from normgeom_lab.precision import octave_share, rounded, rounded_walk


@pytest.mark.parametrize(("digits", "dtype"), [(8, torch.bfloat16), (11, torch.float16), (24, torch.float32)])
def test_rounding_is_that_of_the_formats(digits, dtype):
    numbers = torch.cat([draw(500), draw(500, seed=1, scale=100.0)])
    got = [rounded(number, digits) for number in numbers.tolist()]
    expected = numbers.to(dtype).double().tolist()
    assert got == expected, "Digits counted without the first one? Truncated instead of rounded?"


def test_ties_go_to_the_even_significand():
    assert [rounded(x, 3) for x in (9.0, 11.0, 13.0, -9.0)] == [8.0, 12.0, 12.0, -8.0], "ties up, or away from zero?"
    assert rounded(0.0, 3) == 0.0
    assert rounded(1 / 3, 53) == 1 / 3, "53 digits are those of float64"


def test_a_sum_of_ones_stops_where_it_must():
    for digits in (3, 4, 6):
        totals = rounded_walk([1.0] * 200, digits)
        assert totals[: 2**digits + 1] == list(range(2**digits + 1)), "rounded before there was anything to round"
        assert set(totals[2**digits :]) == {2.0**digits}, "the tie goes to the even one: the sum stops"


def test_a_walk_is_a_sum_in_the_format():
    steps = draw(300).to(torch.bfloat16)
    total, expected = torch.zeros((), dtype=torch.bfloat16), [0.0]
    for step in steps:
        total = total + step
        expected.append(float(total))
    assert rounded_walk(steps.tolist(), 8) == expected, "Only the last total rounded? The step rounded, not the total?"


def test_with_all_digits_a_walk_is_exact():
    steps = draw(300).tolist()
    assert rounded_walk(steps, 53) == list(itertools.accumulate(steps, initial=0.0))


@pytest.mark.parametrize("spread", [1.0, 1.3, 1.9, 1e-5, 3e7])
def test_octave_share_is_an_integral(spread):
    z = np.linspace(1e-7, 12, 400_001)  # |S| = spread z; the density is even
    share = 4.0 ** np.floor(np.log2(spread * z)) * np.exp(-(z**2) / 2) * math.sqrt(2 / math.pi)
    integral = share.sum() * (z[1] - z[0]) / spread**2
    # a sum misses each of the jumps by up to a step
    assert octave_share(spread) == pytest.approx(integral, rel=3e-4), "One tail only? ln for log₂? 2^f for 4^f?"


def test_octave_share_repeats_and_has_the_mean_of_the_proof():
    assert octave_share(2.8) == pytest.approx(octave_share(1.4), rel=1e-12), (
        "it depends on the place in the octave only"
    )
    assert octave_share(1.4e-30) == pytest.approx(octave_share(1.4 * 2.0**50 * 1e-30), rel=1e-12)
    mean = sum(octave_share(2 ** (k / 64)) for k in range(64)) / 64
    assert mean == pytest.approx(3 / (8 * math.log(2)), rel=1e-6)
