"""Claims on trained models, on tables that decide them one way, the other, or not."""

import numpy as np
import pandas as pd
import pytest
from claim_tables import HIGH, LOW, MEDIAN, surveyed
from normgeom.claims import CLAIMS, FAILS, HOLDS, UNTOLD

TEN = np.full(10, 0.5)


def with_places(**times):
    """Ten norms of which some have another occupancy of 1."""
    found = TEN.copy()
    for place, factor in times.items():
        found[int(place.removeprefix("at"))] = factor
    return found


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        (TEN, HOLDS),
        (with_places(at3=1.9), HOLDS),  # one of ten above the quantile: chance
        (with_places(at3=1.9, at4=1.1), UNTOLD),
        (with_places(at3=2.1), FAILS),
        (0.01 * TEN, HOLDS),  # much less than chance is little, too
    ],
)
@pytest.mark.parametrize(("label", "kind", "side"), [("before-layer", "layer", "in"), ("after-rms", "rms", "out")])
def test_little_along_one(label, kind, side, times, verdict):
    found = CLAIMS[label].asked(surveyed(times, side, kind))
    assert found.verdict == verdict and found.null == 1
    assert found.number == pytest.approx(times.max()) and found.spread == pytest.approx((times.min(), times.max()))
    assert f"At {(times <= 1).sum()} of 10 norms" in found.sentence and f"at h.{times.argmax()}.ln" in found.sentence
    assert "of 1 2°, of random_a 1°, of random_b 1°" in found.sentence


def test_a_skewed_null_is_exceeded_by_more():
    """Where the quantile is five times the median, four times it is 4.75 of their distances away: not beyond."""
    rows = surveyed(with_places(at3=4.0), median=HIGH / 5)
    assert CLAIMS["before-layer"].asked(rows).verdict == HOLDS
    rows.loc[rows.direction == "uniform", "occupancy"] *= 1.1
    assert CLAIMS["before-layer"].asked(rows).verdict == FAILS


@pytest.mark.parametrize(("times", "verdict"), [(with_places(at1=9), HOLDS), (TEN, FAILS), (1.1 + 0 * TEN, UNTOLD)])
def test_the_exception_is_gpt2_xl(times, verdict):
    found = CLAIMS["exception"].asked(surveyed(times, model="gpt2-xl"))
    assert found.verdict == verdict and found.number == pytest.approx(times.max())
    assert CLAIMS["exception"].asked(surveyed(times, model="gpt2")) is None


@pytest.mark.parametrize(
    ("below", "above", "verdict"),
    [(0, 0, HOLDS), (1, 1, HOLDS), (2, 1, UNTOLD), (5, 0, UNTOLD), (6, 0, FAILS), (3, 3, FAILS)],
)
def test_ordinary(below, above, verdict):
    occupancies = [LOW / 2] * below + [HIGH * 1.1] * above + [MEDIAN] * (10 - below - above)
    found = CLAIMS["ordinary-layer"].asked(surveyed(np.array(occupancies) / HIGH))
    assert found.verdict == verdict and found.null == 0.1 and found.number == pytest.approx((below + above) / 10)
    assert f"At {below} of 10 norms the vector 1 holds less" in found.sentence and f"at {above} more" in found.sentence
    assert found.spread == pytest.approx((min(occupancies) / MEDIAN, max(occupancies) / MEDIAN))


@pytest.mark.parametrize("label", ["before-layer", "ordinary-layer"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(tokens=999), "999 tokens are too few; 1000 would do."),
        (dict(drawn=29), "29 random directions are too few for quantiles; 30 would do."),
        (dict(drawn=np.nan), "The record does not say of how many random directions its quantiles are."),
        (dict(high=np.nan), "Not every row has a number for high."),
        (dict(direction="random_a"), "There are no such rows."),
    ],
)
def test_it_abstains(label, change, said):
    found = CLAIMS[label].asked(surveyed(TEN).assign(**change))
    assert (
        found.verdict == UNTOLD and found.sentence == said and np.isnan([found.number, found.null, *found.spread]).all()
    )
    as_many_as_needed = surveyed(TEN, tokens=1000, drawn=30)
    assert CLAIMS[label].asked(as_many_as_needed).verdict != UNTOLD


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_claim_is_asked_of_its_side(kind):
    rows = pd.concat([surveyed(TEN, "in", kind), surveyed(9 * TEN, "out", kind)], ignore_index=True)
    labels = "before", "after", "ordinary"
    assert [CLAIMS[f"{label}-{kind}"].asked(rows).verdict for label in labels] == [HOLDS, FAILS, HOLDS]


def test_a_claim_is_not_asked_of_other_norms():
    rows = surveyed(TEN, kind="rms")
    assert CLAIMS["before-layer"].asked(rows) is None and CLAIMS["before-rms"].asked(rows) is not None
    assert CLAIMS["training-layer"].asked(rows) is None
