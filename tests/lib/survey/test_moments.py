"""Moments, histograms and quantiles of a stream against numpy on the whole of it."""

from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from norm_checks import close, draw
from normgeom.survey.moments import Moments, histogram, quantiles

ALL = torch.tensor(True)


def pieces(values, cuts):
    """The moments of each piece, merged from left to right."""
    total = Moments.zeros(*values.shape[:-1])
    for start, stop in pairwise([0, *cuts, values.shape[-1]]):
        total = total.merged(Moments.of(values[..., start:stop], ALL))
    return total


def assert_moments(got, values, tol=1e-9):
    values = values.double().numpy()
    assert torch.equal(got.count, torch.full_like(got.count, values.shape[-1])), "counts"
    close(got.mean, torch.as_tensor(values.mean(-1)), tol, "mean", "Weighted by pieces, not by counts?")
    close(got.std(), torch.as_tensor(values.std(-1)), tol, "std", "Divisor n−1? Between-piece term of Chan missing?")


def test_moments_by_hand():
    got = Moments.of(torch.tensor([1.0, 3.0, 8.0]), ALL)
    assert (float(got.count), float(got.mean), float(got.m2)) == (3.0, 4.0, 26.0)
    assert float(got.std()) == pytest.approx((26 / 3) ** 0.5, rel=1e-15)


def test_two_pieces_by_hand():
    got = Moments.of(torch.tensor([1.0, 3.0]), ALL).merged(Moments.of(torch.tensor([8.0]), ALL))
    assert float(got.count) == 3
    assert float(got.mean) == pytest.approx(4, rel=1e-15)
    assert float(got.m2) == pytest.approx(26, rel=1e-15), "the between-piece term of Chan's formula?"


@pytest.mark.parametrize("cuts", [[], [500], [1, 2, 999], [0, 0, 1000]], ids=str)
def test_pieces_are_the_whole(cuts):
    values = draw(2, 3, 1000, mean=5.0)
    assert_moments(pieces(values, cuts), values)


def test_a_small_spread_around_sixty_degrees():
    """Sums of squares would lose it: 60² against 0.01²."""
    values = draw(4, 5000, mean=60.0, scale=0.01)
    assert_moments(pieces(values, list(range(100, 5000, 100))), values)


def test_a_small_spread_in_float32_input():
    values = draw(1, 5000, mean=60.0, scale=0.01, dtype=torch.float32)
    got = pieces(values, [700, 701])
    assert got.mean.dtype == torch.float64
    assert_moments(got, values)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    mean=st.floats(-1e3, 1e3),
)
def test_any_cut_of_any_stream(seed, count, cuts, mean):
    values = draw(count, seed=seed, mean=mean)
    assert_moments(pieces(values, sorted(min(c, count) for c in cuts)), values)


def test_merging_is_symmetric_and_associative():
    a, b, c = (Moments.of(draw(n, seed=n, mean=n), ALL) for n in (3, 40, 500))
    for left, right in ((a.merged(b), b.merged(a)), (a.merged(b).merged(c), a.merged(b.merged(c)))):
        for x, y in zip(astuple(left), astuple(right), strict=True):
            close(x, y, 1e-8, "merged", "Not symmetric?")


def test_masked_values_do_not_count():
    values, keep = draw(3, 100, mean=2.0), draw(100, seed=1) > 0
    garbage = torch.where(keep, values, torch.nan)
    got = Moments.of(garbage, keep)
    assert_moments(got, values[:, keep])
    assert float(got.count[0]) == int(keep.sum())


def test_masks_broadcast():
    values = draw(2, 3, 10)
    keep = torch.ones(2, 1, 10, dtype=torch.bool)
    keep[1, :, 4:] = False
    got = Moments.of(values, keep)
    assert got.count.tolist() == [[10.0] * 3, [4.0] * 3]
    close(got.mean[1], values[1, :, :4].mean(-1), 1e-14, "mean under a mask", "Divided by n of all?")


def test_nothing_seen():
    for empty in (Moments.zeros(2), Moments.of(draw(2, 5), torch.tensor(False)), Moments.of(draw(2, 0), ALL)):
        assert empty.count.tolist() == [0.0, 0.0]
        assert empty.std().isnan().all(), "no spread of nothing"
        some = Moments.of(draw(2, 7), ALL)
        for merged in (empty.merged(some), some.merged(empty)):
            assert_moments(merged, draw(2, 7), 1e-14)
        assert empty.merged(empty).count.tolist() == [0.0, 0.0]


def test_histogram_against_numpy():
    values = draw(2, 3, 1000, mean=90.0, scale=20.0)
    got = histogram(values, ALL, 0.0, 180.0, 720)
    for i in range(2):
        for j in range(3):
            expected, _ = np.histogram(values[i, j].numpy(), bins=720, range=(0.0, 180.0))
            assert np.array_equal(got[i, j].numpy(), expected)
    assert got.dtype == torch.int64


def test_histogram_edges_masks_and_nan():
    values = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0, 9.0, torch.nan])
    keep = torch.tensor([True, True, True, True, False, False, False])
    assert histogram(values, keep, 0.0, 1.0, 4).tolist() == [1, 1, 1, 1], "both ends belong to the outer bins"
    assert histogram(values[:0], keep[:0], 0.0, 1.0, 4).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("count", [20, 100, 1001])
@pytest.mark.parametrize("scale", [0.05, 3.0, 40.0])
def test_quantiles_against_numpy_to_the_bin(count, scale):
    values = draw(4, count, mean=90.0, scale=scale).clamp(0, 180)
    counts = histogram(values, ALL, 0.0, 180.0, 720)
    q = torch.tensor([0.05, 0.25, 0.5, 0.95, 1.0], dtype=torch.float64)
    got = quantiles(counts, 0.0, 180.0, q)
    expected = np.quantile(values.numpy(), q.numpy(), axis=-1, method="inverted_cdf").T
    # margin: the width of a bin, which is what is promised
    close(got, torch.as_tensor(expected), 0.25, "quantiles", "Off by a bin? Cumulated from the other end?")


def test_quantiles_are_linear_inside_a_bin():
    counts = torch.tensor([[0, 4, 0, 4]])
    q = torch.tensor([0.125, 0.25, 0.5, 0.75, 1.0])
    assert quantiles(counts, 0.0, 4.0, q).tolist() == [[1.25, 1.5, 2.0, 3.5, 4.0]]


def test_the_smallest_quantile_is_the_first_filled_bin():
    counts = torch.tensor([0, 4, 0, 4])
    assert float(quantiles(counts, 0.0, 4.0, torch.tensor([0.0]))) == 1.0


def test_quantiles_of_nothing_are_nan():
    counts = torch.tensor([[0, 0, 0], [0, 1, 0]])
    got = quantiles(counts, 0.0, 3.0, torch.tensor([0.5]))
    assert got[0].isnan().all() and float(got[1]) == 1.5
