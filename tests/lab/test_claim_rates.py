"""How often chance alone would decide: the rates that docstrings state, by simulation or by counting."""

from math import comb

import numpy as np
import pandas as pd
import pytest
from normgeom_lab.scale import _STUDENT, FAILS, FEW, HOLDS, MANY, by_excess, limits, noise_overlap
from normgeom_lab.training import noise_walks, shapes

SHARES = {
    "one dimension": [1.0],
    "three": [1 / 3] * 3,
    "half of them": [1 / 32] * 32,
    "a third in one, the rest in all": [1 / 3, *[2 / 3 / 63] * 63],
    "nearly all in one": [0.9, *[0.1 / 63] * 63],
}


def in_dimensions(shares, d, count, generator):
    """Σ d·λ (uᵀe)² for random directions u: occupancies where vectors have the shares λ along orthogonal axes e."""
    u = generator.standard_normal((count, d))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    return d * (u[:, : len(shares)] ** 2) @ np.asarray(shares)


def beside_bands(shares, drawn, count=40_000, d=64):
    """Occupancies of random directions beside the quantiles of ``drawn`` others, one row a case."""
    generator = np.random.default_rng(0)
    others = in_dimensions(shares, d, count, generator).reshape(-1, drawn)
    low, median, high = np.quantile(others, [0.05, 0.5, 0.95], axis=1).repeat(drawn, axis=1)
    return pd.DataFrame(dict(occupancy=in_dimensions(shares, d, count, generator), low=low, median=median, high=high))


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize(("drawn", "one_of"), [(100, 5000), (32, 1000)])
def test_chance_hardly_exceeds_the_limit(shares, drawn, one_of):
    rows = beside_bands(shares, drawn)
    # Three standard errors of the count over the stated rate, and more would be a wrong sentence in the docstring.
    expected = len(rows) / one_of
    assert (rows.occupancy / rows.high > limits(rows)).sum() <= expected + 3 * expected**0.5
    assert 0.04 < (rows.occupancy > rows.high).mean() < 0.08


def test_twice_the_quantile_would_be_too_little_in_one_dimension():
    rows = beside_bands(SHARES["one dimension"], 100)
    assert (rows.occupancy > 2 * rows.high).mean() > 1 / 200


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_random_directions_seldom_fail_and_mostly_hold(shares):
    """Models of forty norms, each with vectors of its own."""
    rows = beside_bands(shares, 100, count=12_000)
    found = [by_excess(model) for _, model in rows.groupby(rows.index // 40)]
    assert np.mean([verdict == FAILS for verdict in found]) < 0.03
    assert np.mean([verdict == HOLDS for verdict in found]) > 0.8


def test_what_has_more_than_chance_fails():
    """A common mean along 1 that holds a third of the squared length."""
    rows = beside_bands(SHARES["a third in one, the rest in all"], 100).assign(occupancy=64 / 3)
    assert by_excess(rows[:1]) == FAILS


@pytest.mark.parametrize(("norms", "too_many", "not_few"), [(10, 7000, 14), (5, 120, 12)])
def test_how_often_a_random_direction_is_not_ordinary(norms, too_many, not_few):
    p = 0.1  # a random direction is outside of the middle nine tenths of others

    def more_than(share):
        return sum(comb(norms, n) * p**n * (1 - p) ** (norms - n) for n in range(norms + 1) if n > share * norms)

    assert 1 / more_than(MANY) == pytest.approx(too_many, rel=0.05)
    assert 1 / more_than(FEW) == pytest.approx(not_few, rel=0.05)


@pytest.mark.parametrize("pairs", range(2, 11))
def test_one_of_twenty_means_is_further_than_students_t(pairs):
    drawn = np.random.default_rng(pairs).standard_normal((100_000, pairs))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / pairs**0.5)
    assert (abs(t) > _STUDENT[pairs - 2]).mean() == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize("step", [100, 60])
def test_noise_keeps_as_many_axes_as_adamw_on_noise(step):
    walked = shapes(noise_walks(60, 64, 200, (step, 200), seed=0), centered=False)
    walked = walked[walked.step == step].overlap
    assert noise_overlap(64, 10, step, 200).mean() == pytest.approx(walked.mean(), abs=4 * walked.sem())
    assert abs(noise_overlap(64, 10, 200 - step // 2, 200).mean() - walked.mean()) > 8 * walked.sem(), "at any step"


def test_noise_overlap_ends_whole_and_begins_by_chance():
    assert (noise_overlap(64, 3, 600, 600) == 1).all()
    assert noise_overlap(64, 10, 1, 600).mean() == pytest.approx(8 / 64, abs=0.03)
    assert noise_overlap(64, 10, 300, 600).std() < noise_overlap(64, 1, 300, 600).std() / 2, "a mean over norms"
