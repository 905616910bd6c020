"""Each predicate on tables where it holds, where it fails, and where it abstains."""

import numpy as np
import pandas as pd
import pytest
from claim_tables import HIGH, LOW, MEDIAN, SEEDS, STEPS, angles, forms, losses, surveyed
from normgeom_lab.scale import (
    FAILS,
    HOLDS,
    UNTOLD,
    at_surface,
    axes_stay,
    comparable_losses,
    little_along_one,
    little_at_checkpoints,
    much_along_one,
    no_growth,
    ordinary,
)

TEN = np.full(10, 0.5)


def with_first(*times):
    """Ten norms of which the first have another occupancy of 1."""
    return np.array([*times, *TEN[len(times) :]])


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        (TEN, HOLDS),
        (with_first(1.9), HOLDS),  # one of ten above the quantile: chance
        (with_first(1.9, 1.1), UNTOLD),
        (with_first(2.1), FAILS),
        (0.01 * TEN, HOLDS),  # much less than chance is little, too
    ],
)
def test_little_along_one(times, verdict):
    found = little_along_one(surveyed(times))
    assert found.verdict == verdict
    assert f"At {(times <= 1).sum()} of 10 norms" in found.sentence and f"at h.{times.argmax()}.ln" in found.sentence
    assert f"at most {times.max():.3g} times" in found.sentence and "of 1 2°, of random_a 1°" in found.sentence
    opposite = {HOLDS: FAILS, FAILS: HOLDS, UNTOLD: UNTOLD}
    assert much_along_one(surveyed(times)) == (opposite[verdict], found.sentence)


def test_a_skewed_null_is_exceeded_by_more():
    """Where the quantile is five times the median, four times it is 4.75 of their distances away: not beyond."""
    rows = surveyed(with_first(4.0), median=HIGH / 5)
    assert little_along_one(rows).verdict == HOLDS
    rows.loc[rows.direction == "uniform", "occupancy"] *= 1.1
    assert little_along_one(rows).verdict == FAILS


@pytest.mark.parametrize(
    ("below", "above", "verdict"),
    [(1, 1, HOLDS), (2, 1, UNTOLD), (5, 0, UNTOLD), (6, 0, FAILS), (3, 3, FAILS)],
)
def test_ordinary(below, above, verdict):
    occupancies = [LOW / 2] * below + [HIGH * 1.1] * above + [MEDIAN] * (10 - below - above)
    found = ordinary(surveyed(np.array(occupancies) / HIGH))
    assert found.verdict == verdict
    assert f"At {below} of 10 norms the vector 1 holds less" in found.sentence and f"at {above} more" in found.sentence


@pytest.mark.parametrize("judge", [little_along_one, ordinary])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(tokens=999), "999 tokens are too few; 1000 would do."),
        (dict(drawn=29), "29 random directions are too few for quantiles; 30 would do."),
        (dict(drawn=np.nan), "The record does not say of how many random directions its quantiles are."),
        (dict(high=np.nan), "Not every row has a number for high."),
        (dict(occupancy=np.inf), "Not every row has a number for occupancy."),
        (dict(direction="random_a"), "There are no such rows."),
    ],
)
def test_models_that_tell_nothing(judge, change, said):
    assert judge(surveyed(TEN, **change)) == (UNTOLD, said)
    assert judge(surveyed(TEN, tokens=1000, drawn=30)).verdict != UNTOLD


def at(places):
    """Occupancies that differ at some (seed, step, site); None stands for any."""

    def times(*here):
        for place, factor in places.items():
            if all(wanted in (None, got) for wanted, got in zip(place, here, strict=True)):
                return factor
        return 0.5

    return times


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ({(None, 0, None): 9.0}, HOLDS),  # before the first update nothing is trained
        ({(None, 300, "ln_f"): 1.5}, UNTOLD),  # one of eight places of each seed
        ({(0, 300, "ln_f"): 2.7}, UNTOLD),  # one seed of three
        ({(0, 300, "ln_f"): 2.7, (2, 6, "h.0.ln"): 2.7}, FAILS),
    ],
)
def test_little_at_checkpoints(places, verdict):
    table = angles(at(places)).query("norm == 'rms'")
    found = little_at_checkpoints(table)
    assert found.verdict == verdict
    assert "of 24 places (4 checkpoints, 2 norms, 3 seeds)" in found.sentence


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((0, 6, 60), "2 checkpoints are too few; 3 would do."),
        ((0, 70, 300, 600), "The first checkpoint, at 70 of 600 updates, is not early."),
    ],
)
def test_checkpoints_that_are_few_or_late_tell_nothing(steps, said):
    assert little_at_checkpoints(angles(steps=steps)) == (UNTOLD, said)


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ({(None, None, "h.0.ln"): 9.0, (None, 300, None): 9.0}, HOLDS),  # neither the last norm nor the end
        ({(0, 600, "ln_f"): 1.5}, UNTOLD),
        ({(0, 600, "ln_f"): 2.7, (1, 600, "ln_f"): 4.0}, FAILS),
        ({(None, None, "ln_f"): 2.7}, UNTOLD),  # as large at the start: that is no growth
    ],
)
def test_no_growth(places, verdict):
    found = no_growth(angles(at(places)).query("norm == 'rms'"))
    end = np.array([at(places)(seed, 600, "ln_f") * HIGH / MEDIAN for seed in SEEDS])
    assert found.verdict == verdict and f"to {np.median(end):.2g} times a median direction's" in found.sentence
    assert found.sentence.endswith("its rank is 7 of 40 there.")


def test_growth_needs_a_start_and_an_end_of_each_seed():
    table = angles().query("norm == 'rms'")
    for left in (table[table.step == 600], table[(table.step > 0) | (table.seed > 0)]):
        assert no_growth(left) == (UNTOLD, "There is not a first and a last checkpoint of each seed.")


def test_chance_may_spoil_a_seed_of_ten():
    def verdict(factor, count):
        return no_growth(angles(at({(3, 600, "ln_f"): factor}), seeds=range(count)).query("norm == 'rms'")).verdict

    assert (verdict(1.2, 10), verdict(1.2, 9), verdict(2.5, 10)) == (HOLDS, UNTOLD, UNTOLD), "2.5 times is no chance"


@pytest.mark.parametrize("judge", [little_at_checkpoints, no_growth])
@pytest.mark.parametrize("factor", [0.1, 9.0])
def test_two_seeds_tell_nothing(judge, factor):
    table = angles(at({(None, step, None): factor for step in STEPS[1:]}), seeds=(0, 1)).query("norm == 'rms'")
    assert judge(table).verdict == UNTOLD


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [
        ([0.001, -0.002, 0.002], HOLDS),
        ([0.02, 0.021, 0.022], FAILS),
        ([-0.02, -0.021, -0.022], FAILS),
        ([0.05, -0.05, 0.0], UNTOLD),
        ([0.001], UNTOLD),
        ([0.0, 0.003], UNTOLD),  # two pairs: t is 12.7
        ([0.0, 0.003] * 6, HOLDS),
    ],
)
def test_comparable_losses(apart, verdict):
    found = comparable_losses(losses(apart))
    assert found.verdict == verdict and f"{np.mean(apart):+.2%} of 3.000 nats" in found.sentence


def test_losses_are_compared_within_pairs_of_the_main_part():
    far, near = losses([0.3, 0.3]), losses([0.001, 0.002])
    near["loss"] += near.seed  # what two networks of a pair have in common falls out of their difference
    rows = pd.concat([far.assign(part="ranks"), near.assign(part="main")])
    assert comparable_losses(rows).verdict == HOLDS
    assert comparable_losses(near[near.norm != "rms"]) == (UNTOLD, "No LayerNorm and RMSNorm network make a pair.")


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        (lambda seed, site: 0.951, HOLDS),
        (lambda seed, site: 0.93 if (seed, site) == (1, 4) else 1.0, UNTOLD),
        (lambda seed, site: 0.5 if (seed, site) == (1, 4) else 1.0, UNTOLD),
        (lambda seed, site: 0.89 if seed and site == 4 else 1.0, FAILS),
    ],
)
def test_at_surface(near, verdict):
    table = forms(near=near)
    table.loc[table.step < 600, "near"] = 0.96 if verdict == FAILS else 0.5  # the end alone is judged
    found = at_surface(table)
    least = min(near(seed, site) for seed in SEEDS for site in range(9))
    assert found.verdict == verdict and f"at least {least:.2%} of the outputs" in found.sentence


@pytest.mark.parametrize(
    ("overlaps", "verdict"), [((0.9, 0.95, 0.88), HOLDS), ((0.9, 0.95, 0.86), UNTOLD), ((0.4, 0.45, 0.9), FAILS)]
)
def test_axes_stay(overlaps, verdict):
    table = forms(lambda seed: overlaps[seed])
    table.loc[~table.step.isin([300, 600]), "overlap"] = 0.0  # the checkpoint half-way is judged
    found = axes_stay(table)
    assert found.verdict == verdict and f"share {np.mean(overlaps):.2f} with those of the end" in found.sentence


def test_axes_that_noise_would_leave_as_well_tell_nothing():
    """At 70 % of the updates noise leaves nearly all axes of a narrow network."""
    assert axes_stay(forms(lambda seed: 0.9, steps=(6, 420, 600), sites=1, width=16)).verdict == UNTOLD
    assert axes_stay(forms(lambda seed: 0.99, steps=(6, 300, 600), width=16)).verdict == HOLDS


def test_axes_need_a_checkpoint_half_way_and_a_width():
    assert axes_stay(forms(steps=(6, 60, 600))) == (UNTOLD, "There is no checkpoint near half of the 600 updates.")
    assert axes_stay(forms(width=np.nan)) == (UNTOLD, "The record's note does not say how wide the network is.")


@pytest.mark.parametrize("judge", [little_at_checkpoints, no_growth, comparable_losses, at_surface, axes_stay])
def test_a_table_that_is_missing_tells_nothing(judge):
    assert judge(None) == (UNTOLD, "There are no such rows.")
