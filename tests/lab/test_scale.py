"""Each claim on made-up tables where it holds, where it fails and where it cannot be told; and folders of records."""

import numpy as np
import pandas as pd
import pytest
from normgeom_lab import scale as lab
from normgeom_lab.common.recording import record
from normgeom_lab.scale import FAILS, HOLDS, UNDECIDED
from normgeom_lab.training import noise_walks, shapes

LOW, MEDIAN, HIGH = 0.6, 1.2, 1.5
BAND = dict(low=LOW, median=MEDIAN, high=HIGH)
SEEDS, STEPS = (0, 1, 2), (0, 6, 60, 300, 600)
TEN = np.full(10, 0.5)


def surveyed(times, **columns):
    """A model's table; at each norm the occupancy of 1 is ``times`` the null's 95 % quantile, of others half of it."""
    rows = [
        dict(site=f"h.{number}.ln", direction=direction, mean_deg=degrees, occupancy=HIGH * factor)
        for number, of_uniform in enumerate(times)
        for direction, degrees, factor in (("uniform", 92.0, of_uniform), ("random_a", 89.0, 0.5))
    ]
    return pd.DataFrame(rows).assign(**{**dict(side="in", kind="layer", model="toy"), **BAND, **columns})


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


def forms(overlap=lambda seed: 1.0, near=lambda seed, site: 1.0, steps=STEPS[1:], sites=9, width=128):
    """Shapes over a training: overlaps of each seed before the end, and shares near the surface of each norm."""
    rows = [
        dict(step=step, site=f"ln.{site}", overlap=overlap(seed), near=near(seed, site), seed=seed)
        for seed in SEEDS
        for step in steps
        for site in range(sites)
    ]
    return pd.DataFrame(rows).assign(q05=0.98, width=width, norm="layer")


@pytest.mark.parametrize(
    ("times", "verdict", "opposite"),
    [
        (TEN, HOLDS, FAILS),
        (with_first(1.9), HOLDS, FAILS),  # one of ten above the quantile: chance
        (with_first(1.9, 1.1), UNDECIDED, UNDECIDED),
        (with_first(2.1), FAILS, HOLDS),
        (0.01 * TEN, HOLDS, FAILS),  # much less than chance is little, too
    ],
)
def test_little_along_one(times, verdict, opposite):
    found, sentence = lab.little_along_one(surveyed(times))
    assert found == verdict and lab.much_along_one(surveyed(times)) == (opposite, sentence)
    assert f"At {(times <= 1).sum()} of 10 norms" in sentence and f"at h.{times.argmax()}.ln" in sentence
    assert f"largest is {times.max():.3g} times" in sentence and "2° (to 1), 1° (to random_a)" in sentence


def test_a_skewed_null_is_exceeded_by_more():
    """Where the quantile is five times the median, four times it is 4.75 of their distances away: not beyond."""
    rows = surveyed(with_first(4.0), median=HIGH / 5)
    assert lab.little_along_one(rows)[0] == HOLDS
    rows.loc[rows.direction == "uniform", "occupancy"] *= 1.1
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
    assert f"At {below} of 10 norms the occupancy of 1 is below" in sentence and f"at {above} above" in sentence


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


@pytest.mark.parametrize(
    ("places", "end", "verdict"),
    [
        ([((None, None, "h.0.ln"), 9.0), ((None, 300, None), 9.0)], 0.5, HOLDS),  # neither the last norm nor the end
        ([((0, 600, "ln_f"), 2.7), ((1, 600, "ln_f"), 4.0)], 2.7, FAILS),
        ([((None, None, "ln_f"), 2.7)], 2.7, UNDECIDED),  # as large at the start: that is no growth
    ],
)
def test_no_growth(places, end, verdict):
    found, sentence = lab.no_growth(angles(places))
    assert found == verdict and f"to {end * HIGH / MEDIAN:.2g} times a median direction's" in sentence
    assert sentence.endswith("its rank is 7 of 40 there.")


def test_chance_may_spoil_a_seed_of_ten_and_two_seeds_tell_nothing():
    def verdict(factor, count):
        return lab.no_growth(angles([((3, 600, "ln_f"), factor)], seeds=range(count)))[0]

    assert (verdict(1.2, 10), verdict(1.2, 9), verdict(2.5, 10)) == (HOLDS, UNDECIDED, UNDECIDED)
    for factor in (0.1, 9.0):
        table = angles([((None, step, None), factor) for step in STEPS[1:]], seeds=(0, 1))
        assert lab.no_growth(table)[0] == lab.little_at_checkpoints(table)[0] == UNDECIDED


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
    others = pd.concat([losses([0.3, 0.3]).assign(part="ranks"), table.assign(part="main")])
    assert lab.comparable_losses(others) == (found, sentence), "of another part"


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
    table = forms(near=near)
    table.loc[table.step < 600, "near"] = 0.96 if verdict == FAILS else 0.5  # the end alone is judged
    found, sentence = lab.at_surface(table)
    least = min(near(seed, site) for seed in SEEDS for site in range(9))
    assert found == verdict and f"at least {least:.2%} of the outputs" in sentence


@pytest.mark.parametrize(
    ("overlaps", "verdict"), [((0.9, 0.95, 0.88), HOLDS), ((0.9, 0.95, 0.86), UNDECIDED), ((0.4, 0.45, 0.9), FAILS)]
)
def test_axes_stay(overlaps, verdict):
    table = forms(lambda seed: overlaps[seed])
    table.loc[~table.step.isin([300, 600]), "overlap"] = 0.0  # the checkpoint half-way is judged
    found, sentence = lab.axes_stay(table)
    assert found == verdict and f"with those of the end is {np.mean(overlaps):.2f} " in sentence


def test_axes_that_noise_would_leave_as_well_tell_nothing():
    """At 70 % of the steps noise leaves nearly all axes of a narrow network."""
    assert lab.axes_stay(forms(lambda seed: 0.9, steps=(6, 420, 600), sites=1, width=16))[0] == UNDECIDED
    assert lab.axes_stay(forms(lambda seed: 0.99, steps=(6, 300, 600), width=16))[0] == HOLDS


def test_noise_keeps_as_many_axes_as_adamw_on_noise():
    step = 60
    walked = shapes(noise_walks(60, 64, 200, (step, 200), seed=0), centered=False)
    walked = walked[walked.step == step].overlap
    assert lab.noise_overlap(64, 10, step, 200).mean() == pytest.approx(walked.mean(), abs=4 * walked.sem())
    assert abs(lab.noise_overlap(64, 10, 200 - step // 2, 200).mean() - walked.mean()) > 8 * walked.sem(), "at any step"
    assert lab.noise_overlap(64, 10, step, 200).std() < lab.noise_overlap(64, 1, step, 200).std() / 2, "no mean"


# folders of records


def write_model(folder, name, times=(0.5, 0.6), kind="layer"):
    """The two records of a model."""
    table = pd.concat([surveyed(times, side=side, kind=kind) for side in ("in", "out")]).drop(columns=[*BAND, "model"])
    places = table[["site", "side"]].drop_duplicates()
    others = pd.concat([table.assign(positions="first", occupancy=60.0), table.assign(positions="rest")])
    nulls = pd.concat([places.assign(**BAND, null="random_"), places.assign(low=0, median=0, high=0, null="signs_")])
    record(f"angles-{name}", others, "Angles.", folder, model=name)
    record(f"nulls-{name}", nulls, "100 directions of each null.", folder, model=name)


def write_pair(folder, size):
    """The records of a pair in which nothing happens."""
    tables = dict(angles=angles(norms=("layer", "rms")), loss=losses([0.001, 0.002, -0.001]), forms=forms())
    for part, table in tables.items():
        table = table.drop(columns=["width"], errors="ignore")
        record(f"pair-{size}-{part}", table, "Beside 39 random sign vectors.", folder, model="GPT-2, d = 128")


def test_a_folder_is_judged(tmp_path):
    write_model(tmp_path, "gpt2-xl", times=(0.5, 3.0))
    write_model(tmp_path, "mine", kind="rms")
    write_pair(tmp_path, "70M")
    found = lab.judged(tmp_path)
    assert found.set_index(["claim", "evidence"]).verdict.to_dict() == {
        ("after-layer", "gpt2-xl"): FAILS,  # there is no "before-layer": GPT-2 XL is excepted
        ("exception", "gpt2-xl"): HOLDS,
        ("before-rms", "mine"): HOLDS,
        ("after-rms", "mine"): HOLDS,
        ("training-layer", "70M"): HOLDS,
        ("training-rms", "70M"): HOLDS,
        ("growth-layer", "70M"): HOLDS,
        ("growth-rms", "70M"): HOLDS,
        ("ordinary-layer", "gpt2-xl"): UNDECIDED,
        ("ordinary-rms", "mine"): HOLDS,
        ("losses", "70M"): HOLDS,
        ("surface", "70M"): HOLDS,
        ("axes", "70M"): HOLDS,
    }
    of_models = lab.overview(found, "model")
    assert list(of_models.index) == [*lab.PAPER["model"], "mine"], "the paper's come first, in its order"
    assert list(of_models) == ["before", "after", "exception", "ordinary", "measured"]
    assert of_models.loc["gpt2-xl"].tolist() == [None, FAILS, HOLDS, UNDECIDED, "yes"]
    assert of_models.loc["llama-2-7b"].tolist() == [None] * 4 + ["make experiments ONLY=llama-2-7b"]
    of_pairs = lab.overview(found, "pair")
    assert list(of_pairs.index) == ["70M", "160M", "410M", "1B"] and set(of_pairs.loc["70M"]) == {HOLDS, "yes"}
    ends = lab.ends(lab.pairs(tmp_path)).loc["70M"]
    assert ends.tolist() == pytest.approx([3, 3, 0.5 * HIGH / MEDIAN, 3.002, 0.5 * HIGH / MEDIAN])


def test_a_norm_without_nulls_tells_nothing(tmp_path):
    write_model(tmp_path, "toy")
    path = tmp_path / "nulls-toy.csv"
    pd.read_csv(path)[1:].to_csv(path, index=False)
    found = lab.judged(tmp_path).set_index("claim")[["verdict", "sentence"]]
    assert found.loc["before-layer"].tolist() == [UNDECIDED, "Not every row has a number."]
    assert found.verdict["after-layer"] == HOLDS


def test_nothing_is_measured(tmp_path):
    for needs in ("model", "pair"):
        assert lab.overview(lab.judged(tmp_path), needs).measured.str.startswith("make experiments ONLY=").all()


def test_observations_in_units_of_their_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "FOLDER", tmp_path)
    tries = pd.DataFrame(dict(claim=["claim-a", "claim-a", "claim-b"], seed=[0, 1, 0], deviation=[0.2, 0.7, 0.1]))
    record("claims-10", tries, "w", tmp_path)
    for name, deviation in (("gpt2", 3.0), ("mine", 1.0)):
        rows = pd.DataFrame(dict(claim=["claim-a"], deviation=[deviation], bound=[2.0]))
        record(f"observed-10-{name}", rows, "w", tmp_path)
    assert lab.observations().T.to_dict() == {"claim-a": dict(small=0.7, gpt2=1.5, mine=0.5)}, "claim-b is nowhere else"
