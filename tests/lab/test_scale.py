"""Each claim on made-up tables where it holds, where it fails and where it is undecided; and a model of one's own."""

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
from normgeom_lab import scale as lab
from normgeom_lab.scale import FAILS, HOLDS, UNDECIDED
from tiny_models import tiny, token_ids

LOW, MEDIAN, HIGH = 0.6, 1.2, 1.5
BAND = dict(low=LOW, median=MEDIAN, high=HIGH)
SEEDS, STEPS = (0, 1, 2), (0, 6, 60, 300, 600)
TEN = np.full(10, 0.5)


def surveyed(times, **columns):
    """A model's table; at each norm the occupancy of 1 is ``times`` the null's 95 % quantile."""
    rows = [dict(site=f"h.{n}.ln", mean_deg=90 + n, occupancy=HIGH * factor) for n, factor in enumerate(times)]
    return pd.DataFrame(rows).assign(**BAND | columns)


def with_first(*times):
    """Ten norms of which the first have another occupancy of 1."""
    return np.array([*times, *TEN[len(times) :]])


def angles(places=(), seeds=SEEDS, norms=("rms",)):
    """A training's angles; at (seed, step, site), None for any, the occupancy of 1 over the null's 95 % quantile."""

    def times(*here):
        fits = (all(wanted in (None, got) for wanted, got in zip(place, here, strict=True)) for place, _ in places)
        return next((factor for (_, factor), fit in zip(places, fits, strict=True) if fit), 0.5)

    rows = [
        dict(step=step, site=site, direction=direction, occupancy=HIGH * factor, norm=norm, seed=seed)
        for norm in norms
        for seed in seeds
        for step in STEPS
        for site in ("h.0.ln", "ln_f")
        for direction, factor in (("uniform", times(seed, step, site)), ("random_a", 0.5))
    ]
    return pd.DataFrame(rows).assign(side="in", mean_deg=93.0, **BAND, rank=7)


def losses(apart):
    """Final losses of pairs; RMSNorm's is ``apart`` times 3 higher, one number a seed, whatever seeds add to both."""
    rows = [
        (3 + seed - (len(apart) - 1) / 2 + rms * share * 3, norm, seed, "5M")
        for seed, share in enumerate(apart)
        for rms, norm in enumerate(("layer", "rms"))
    ]
    return pd.DataFrame(rows, columns=["loss", "norm", "seed", "part"])


def forms(near):
    """Shares near the surface of each norm over a training."""
    rows = [
        dict(step=step, site=f"ln.{site}", near=near(seed, site), seed=seed)
        for seed in SEEDS
        for step in STEPS[1:]
        for site in range(9)
    ]
    return pd.DataFrame(rows).assign(q05=0.98, norm="layer")


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        (TEN, HOLDS),
        (with_first(1.9), HOLDS),  # one of ten above the quantile: chance
        (with_first(1.9, 1.1), UNDECIDED),
        (with_first(2.1), FAILS),
        (0.01 * TEN, HOLDS),  # much less than chance is little, too
    ],
)
def test_little_along_one(times, verdict):
    found, sentence = lab.little_along_one(surveyed(times))
    assert found == verdict
    assert f"In {(times <= 1).sum()} of 10 cases" in sentence and f"at h.{times.argmax()}.ln" in sentence
    assert f"largest is {times.max():.3g} times" in sentence and "between 90.0° and 99.0°" in sentence


def test_a_skewed_null_is_exceeded_by_more():
    """Where the quantile is five times the median, four times it is 4.75 of their distances away: not beyond."""
    rows = surveyed(with_first(4.0), median=HIGH / 5)
    assert lab.little_along_one(rows)[0] == HOLDS
    rows["occupancy"] *= 1.1
    assert lab.little_along_one(rows)[0] == FAILS


@pytest.mark.parametrize("shares", [[1.0], [1 / 3] * 3, [0.9, *[0.1 / 63] * 63]], ids=["one", "three", "nearly one"])
def test_chance_hardly_exceeds_the_limit(shares):
    """Random directions, where vectors have so much of their squared length along orthogonal axes, among 100 others."""
    generator, drawn, d = np.random.default_rng(0), 100, 64

    def occupancies():
        u = generator.standard_normal((40_000, d))
        return d * ((u / np.linalg.norm(u, axis=1, keepdims=True))[:, : len(shares)] ** 2) @ np.asarray(shares)

    _, median, high = np.quantile(occupancies().reshape(-1, drawn), [0.05, 0.5, 0.95], axis=1).repeat(drawn, axis=1)
    rows = pd.DataFrame(dict(occupancy=occupancies(), median=median, high=high))
    expected = len(rows) / 5000
    assert (rows.occupancy / rows.high > lab.limits(rows)).sum() <= expected + 3 * expected**0.5
    verdicts = np.array([lab.by_excess(model) for _, model in rows.groupby(rows.index // 40)])
    assert (verdicts == FAILS).mean() < 0.03 and (verdicts == HOLDS).mean() > 0.8, "models of forty norms"


@pytest.mark.parametrize(("below", "above", "verdict"), [(1, 1, HOLDS), (5, 0, UNDECIDED), (3, 3, FAILS)])
def test_ordinary(below, above, verdict):
    occupancies = [LOW / 2] * below + [HIGH * 1.1] * above + [MEDIAN] * (10 - below - above)
    found, sentence = lab.ordinary(surveyed(np.array(occupancies) / HIGH))
    assert found == verdict
    assert f"In {below} of 10 cases the occupancy of 1 is below" in sentence and f"in {above} above them" in sentence


@pytest.mark.parametrize(("dearest", "verdict"), [(0.09, HOLDS), (0.11, FAILS)])
def test_removable_on_every_text(dearest, verdict):
    rows = [("1", "a", 0.02), ("1", "b", dearest)]
    rows += [(f"signs_{i:03d}", text, cost + i**2) for text, cost in (("a", 3), ("b", 4)) for i in range(3)]
    found, sentence = lab.removable(pd.DataFrame(rows, columns=["direction", "text", "cost"]))
    assert found == verdict and f"by 0.02 to {dearest} nats per token on 2 texts" in sentence
    assert "by 4.00 to 5.00 (" in sentence and sentence.endswith("the median of 3 sign vectors).")


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ([((None, 0, None), 9.0)], HOLDS),  # before the first step nothing is trained
        ([((None, 300, "ln_f"), 1.5)], UNDECIDED),  # one of eight places of each seed
        ([((0, 300, "ln_f"), 2.7)], UNDECIDED),  # one seed of three
        ([((0, 300, "ln_f"), 2.7), ((2, 6, "h.0.ln"), 2.7)], FAILS),
    ],
)
def test_little_at_checkpoints(places, verdict):
    found, sentence = lab.little_at_checkpoints(angles(places))
    assert found == verdict and "of 24 places (4 checkpoints, 2 norms, 3 seeds)" in sentence


def test_chance_may_spoil_a_seed_of_ten_and_two_seeds_tell_nothing():
    def verdict(factor, count):
        return lab.little_at_checkpoints(angles([((3, 600, "ln_f"), factor)], seeds=range(count)))[0]

    assert (verdict(1.2, 10), verdict(1.2, 9), verdict(2.5, 10)) == (HOLDS, UNDECIDED, UNDECIDED)
    for factor in (0.1, 9.0):
        table = angles([((None, step, None), factor) for step in STEPS[1:]], seeds=(0, 1))
        assert lab.little_at_checkpoints(table)[0] == UNDECIDED


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [
        ([0.001, -0.002, 0.002], HOLDS),
        ([-0.02, -0.021, -0.022], FAILS),
        ([0.05, -0.05, 0.0], UNDECIDED),
        ([0.001], UNDECIDED),
        ([0.0, 0.003], UNDECIDED),  # two pairs: t is 12.7
        ([0.0, 0.003] * 6, HOLDS),
    ],
)
def test_comparable_losses(apart, verdict):
    table = losses(apart)
    found, sentence = lab.comparable_losses(table)
    assert found == verdict and f"{np.mean(apart):+.2%} of 3.000 nats" in sentence
    slower, faster = (table.assign(rate=rate, loss=table.loss + add) for rate, add in ((0.1, 0.5), (0.2, -0.5)))
    assert lab.comparable_losses(pd.concat([slower, faster])) == (found, sentence), "means over learning rates"


@pytest.mark.parametrize("pairs", [2, 5, 10])
def test_one_of_twenty_means_is_further_than_students_t(pairs):
    drawn = np.random.default_rng(pairs).standard_normal((100_000, pairs))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / pairs**0.5)
    assert (abs(t) > lab.STUDENT[pairs - 2]).mean() == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("near", "verdict"),
    [
        (lambda seed, site: 0.951, HOLDS),
        (lambda seed, site: 0.5 if (seed, site) == (1, 4) else 1.0, UNDECIDED),
        (lambda seed, site: 0.89 if seed and site == 4 else 1.0, FAILS),
    ],
)
def test_at_surface(near, verdict):
    table = forms(near)
    table.loc[table.step < 600, "near"] = 0.96 if verdict == FAILS else 0.5  # the end alone is judged
    found, sentence = lab.at_surface(table)
    least = min(near(seed, site) for seed in SEEDS for site in range(9))
    assert found == verdict and f"at least {least:.2%} of the outputs" in sentence


# models and pairs


def test_a_survey_of_ones_own_is_judged_beside_the_book(tmp_path):
    (tmp_path / "mine").mkdir()
    names = ["uniform", *(f"random_{i:03d}" for i in range(20))]
    table = ng.Survey(tiny("gpt2"), names).run([token_ids(4, 8)], progress=False).table()
    table.to_parquet(tmp_path / "mine/table.parquet")
    rows = lab.models(tmp_path)["mine"]
    rest = table[table.positions == "rest"].set_index(["side", "site", "direction"]).occupancy.sort_index()
    assert len(rows) == 2 * rest.index.get_level_values("site").nunique()
    for row in rows.itertuples():
        at = rest[row.side, row.site]
        assert row.occupancy == at["uniform"]
        assert [row.low, row.median, row.high] == pytest.approx(np.quantile(at.drop("uniform"), [0.05, 0.5, 0.95]))
    found = lab.judged(tmp_path)
    assert len(found) == len(lab.judged()) + 3
    shown = lab.overview(found[found.evidence != lab.PAIRS])
    assert list(shown.index) == ["SmolLM2", "Gemma 3", "Whisper base", "mine"]
    assert list(shown) == ["before", "after", "ordinary", lab.OUR_TEST]
    assert shown.after[:3].isna().all() and shown[lab.OUR_TEST]["mine"] is None


def test_what_the_book_has_recorded():
    judged = lab.judged().set_index(["claim", "evidence"])
    found, sentences = judged.verdict, judged.sentence
    assert found["before"].to_dict() == {"SmolLM2": HOLDS, "Gemma 3": HOLDS, "Whisper base": FAILS}
    assert found[lab.OUR_TEST].to_dict() == {"SmolLM2": HOLDS, "Gemma 3": FAILS, "Whisper base": FAILS}
    assert sentences[lab.OUR_TEST].str.contains("on 3 texts").all()
    assert found["losses"].to_dict() == {lab.PAIRS: HOLDS}


def test_a_norm_without_a_number_tells_nothing(monkeypatch):
    monkeypatch.setattr(lab, "models", lambda surveys: dict(toy=surveyed([0.5, np.nan], side="in")))
    found = lab.judged().query("evidence == 'toy'").set_index("claim")
    assert found.verdict["before"] == UNDECIDED and found.sentence["before"] == "Not every row has a number."
