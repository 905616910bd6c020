"""Claims on training, on tables that decide them one way, the other, or not."""

import numpy as np
import pandas as pd
import pytest
from claim_tables import HIGH, MEDIAN, STEPS, angles, forms, losses, pair
from normgeom.claims import CLAIMS, FAILS, HOLDS, UNTOLD

SIX = (0, 1, 2, 3, 4, 5)


def at(places, otherwise=0.5):
    """Occupancies that differ at some (seed, step, site); None stands for any."""

    def times(*here):
        for place, factor in places.items():
            if all(wanted in (None, got) for wanted, got in zip(place, here, strict=True)):
                return factor
        return otherwise

    return times


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ({}, HOLDS),
        ({(None, 0, None): 9.0}, HOLDS),  # before the first update nothing is trained
        ({(None, 300, "ln_f"): 1.5}, UNTOLD),  # one of eight places of each seed
        ({(0, 300, "ln_f"): 2.7}, UNTOLD),  # one seed of three
        ({(0, 300, "ln_f"): 2.7, (2, 6, "h.0.ln"): 2.7}, FAILS),
    ],
)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_little_at_checkpoints(norm, places, verdict):
    table = angles(at(places))
    table.loc[table.norm != norm, "occupancy"] = 50.0  # what the other norm does is another claim
    found = CLAIMS[f"training-{norm}"].asked(pair(angles=table))
    late = [max(at(places)(s, t, site) for t in STEPS[1:] for site in ("h.0.ln", "ln_f")) for s in range(3)]
    assert found.verdict == verdict and found.null == 1
    assert found.number == pytest.approx(np.median(late)) and found.spread == pytest.approx((min(late), max(late)))
    assert "of 24 places (4 checkpoints, 2 norms, 3 seeds)" in found.sentence


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((0, 6, 60), "2 checkpoints are too few; 3 would do."),
        ((0, 70, 300, 600), "at 70 of 600 updates, is not early."),
    ],
)
def test_checkpoints_that_are_few_or_late_tell_nothing(steps, said):
    found = CLAIMS["training-layer"].asked(pair(angles=angles(at({}), steps)))
    assert found.verdict == UNTOLD and said in found.sentence
    assert CLAIMS["training-layer"].asked(pair(angles=angles(at({}), (0, 60, 300, 600)))).verdict == HOLDS


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ({}, HOLDS),
        ({(None, None, "h.0.ln"): 9.0, (None, 300, None): 9.0}, HOLDS),  # neither the last norm nor the end
        ({(0, 600, "ln_f"): 1.5}, UNTOLD),
        ({(0, 600, "ln_f"): 2.7}, UNTOLD),
        ({(0, 600, "ln_f"): 2.7, (1, 600, "ln_f"): 4.0}, FAILS),
        ({(None, None, "ln_f"): 2.7}, UNTOLD),  # as large at the start: that is no growth
    ],
)
def test_no_growth(places, verdict):
    found = CLAIMS["growth-rms"].asked(pair(angles=angles(at(places))))
    end = [at(places)(seed, 600, "ln_f") * HIGH / MEDIAN for seed in range(3)]
    assert found.verdict == verdict and found.null == pytest.approx(HIGH / MEDIAN)
    assert found.number == pytest.approx(np.median(end)) and found.spread == pytest.approx((min(end), max(end)))


def test_growth_is_told_with_ranks():
    table = angles(at({}), drawn=39)
    table["rank"] = 10 + table.seed
    said = CLAIMS["growth-layer"].asked(pair(angles=table)).sentence
    assert said.startswith(
        "At ln_f the occupancy of 1 goes from 0.62 to 0.62 times a median direction's (median of 3 seeds"
    )
    assert said.endswith("its rank is 10 to 12 of 40 there.")


def test_growth_needs_a_start_and_an_end_of_each_seed():
    table = angles(at({}))
    for left in (table[table.step == 600], table[(table.step > 0) | (table.seed > 0)]):
        found = CLAIMS["growth-layer"].asked(pair(angles=left))
        assert found.verdict == UNTOLD and "a first and a last checkpoint" in found.sentence


def test_chance_may_spoil_a_seed_of_ten():
    above = at({(3, 600, "ln_f"): 1.2})
    many, few = (angles(above, seeds=range(count)) for count in (10, 9))
    assert CLAIMS["growth-rms"].asked(pair(angles=many)).verdict == HOLDS
    assert CLAIMS["growth-rms"].asked(pair(angles=few)).verdict == UNTOLD
    beyond = angles(at({(3, 600, "ln_f"): 2.5}), seeds=range(10))
    assert CLAIMS["growth-rms"].asked(pair(angles=beyond)).verdict == UNTOLD, "that is no chance"


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [
        ([0.001, -0.002, 0.002], HOLDS),
        ([0.02, 0.021, 0.022], FAILS),
        ([-0.02, -0.021, -0.022], FAILS),
        ([0.009, 0.0095, 0.012], UNTOLD),
        ([0.05, -0.05, 0.0], UNTOLD),
        ([0.001], UNTOLD),
        ([0.2], UNTOLD),
        ([0.001, 0.0012], HOLDS),
        ([0.0, 0.003], UNTOLD),  # two pairs: t is 12.7
        ([0.0, 0.003] * 6, HOLDS),
    ],
)
def test_comparable_losses(apart, verdict):
    found = CLAIMS["losses"].asked(pair(loss=losses(apart)))
    assert found.verdict == verdict and found.null == 0
    assert found.number == pytest.approx(np.mean(apart)) and found.spread == pytest.approx((min(apart), max(apart)))
    assert f"{np.mean(apart):+.2%} of 3.000 nats" in found.sentence


def test_losses_are_compared_within_pairs_of_the_main_part():
    far, near = losses([0.3, 0.3]), losses([0.001, 0.002])
    # What two pairs have in common falls out of their difference.
    near["loss"] += near.seed
    others = pd.DataFrame(dict(loss=[9.0, 9.0], norm="none", seed=[0, 1]))
    rows = pd.concat([far.assign(part="ranks"), near.assign(part="main"), others.assign(part="main")])
    assert CLAIMS["losses"].asked(pair(loss=rows)).verdict == HOLDS
    lone = near[near.norm != "rms"]
    assert CLAIMS["losses"].asked(pair(loss=lone)).sentence == "No LayerNorm and RMSNorm network make a pair."


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        (lambda seed, site: 1.0, HOLDS),
        (lambda seed, site: 0.951, HOLDS),
        (lambda seed, site: 0.93 if (seed, site) == (1, 4) else 1.0, UNTOLD),
        (lambda seed, site: 0.5 if (seed, site) == (1, 4) else 1.0, UNTOLD),
        (lambda seed, site: 0.89 if seed and site == 4 else 1.0, FAILS),
    ],
)
def test_at_surface(near, verdict):
    found = CLAIMS["surface"].asked(pair(forms=forms(near=near)))
    least = [min(near(seed, site) for site in range(9)) for seed in range(3)]
    assert found.verdict == verdict and found.number == min(least) and found.null == 1
    assert found.spread == (min(least), max(least))


def test_the_surface_is_asked_for_at_the_end():
    table = forms()
    table.loc[table.step < 600, "near"] = 0.5
    assert CLAIMS["surface"].asked(pair(forms=table)).verdict == HOLDS
    table["near"] = 1.5 - table.near
    assert CLAIMS["surface"].asked(pair(forms=table)).verdict == FAILS


@pytest.mark.parametrize(
    ("overlaps", "verdict"), [((0.9, 0.95, 0.88), HOLDS), ((0.9, 0.95, 0.86), UNTOLD), ((0.4, 0.45, 0.9), FAILS)]
)
def test_axes_stay(overlaps, verdict):
    found = CLAIMS["axes"].asked(pair(forms=forms(lambda seed, step: overlaps[seed] if step == 300 else 0.0)))
    assert found.verdict == verdict and 0.6 < found.null < 0.75
    assert found.number == pytest.approx(np.mean(overlaps))
    assert found.spread == pytest.approx((min(overlaps), max(overlaps)))


def test_axes_that_noise_would_leave_as_well_tell_nothing():
    """At 70 % of the updates noise leaves nearly all axes of a narrow network."""
    table = forms(lambda seed, step: 0.9, steps=(6, 420, 600), norms=1)
    assert CLAIMS["axes"].asked(pair(forms=table, width=16)).verdict == UNTOLD
    table = forms(lambda seed, step: 0.99, steps=(6, 300, 600))
    assert CLAIMS["axes"].asked(pair(forms=table, width=16)).verdict == HOLDS


def test_axes_need_a_checkpoint_half_way_and_a_width():
    found = CLAIMS["axes"].asked(pair(forms=forms(steps=(6, 60, 600))))
    assert found.verdict == UNTOLD and found.sentence == "There is no checkpoint near half of the 600 updates."
    found = CLAIMS["axes"].asked(pair(forms=forms(), width="many"))
    assert found.verdict == UNTOLD and "how wide" in found.sentence


@pytest.mark.parametrize("label", [label for label, claim in CLAIMS.items() if claim.needs == "pair"])
def test_it_abstains_without_its_table(label):
    found = CLAIMS[label].asked(pair())
    assert found.verdict == UNTOLD and found.sentence == "There are no such rows."


def test_few_signs_and_holes_tell_nothing():
    found = CLAIMS["training-layer"].asked(pair(angles=angles(at({}), drawn=29)))
    assert found.verdict == UNTOLD and "29 random directions are too few" in found.sentence
    holes = {"forms": ("near", forms()), "loss": ("loss", losses([0.001, 0.002]))}
    for label, (part, (column, table)) in zip(("surface", "losses"), holes.items(), strict=True):
        table.loc[0, column] = np.nan
        found = CLAIMS[label].asked(pair(**{part: table}))
        assert found.verdict == UNTOLD and found.sentence == f"Not every row has a number for {column}."


def test_the_other_norm_has_no_part_in_shapes():
    table = forms()
    table.loc[table.norm == "rms", ["near", "overlap"]] = 0.0
    assert {CLAIMS[label].asked(pair(forms=table)).verdict for label in ("surface", "axes")} == {HOLDS}


@pytest.mark.parametrize("label", ["training-layer", "training-rms", "growth-layer", "growth-rms"])
@pytest.mark.parametrize("factor", [0.1, 9.0])
def test_two_seeds_tell_nothing(label, factor):
    table = angles(at({(None, step, None): factor for step in STEPS[1:]}), seeds=(0, 1))
    found = CLAIMS[label].asked(pair(angles=table))
    assert found.verdict == UNTOLD and np.isfinite(found.number), "the numbers are told all the same"
