"""The course of a training: ranks beside signs, shapes of norms, and their pictures, against values set by hand."""

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.training.loop import warmup_cosine
from normgeom_lab.training import (
    angles_over_steps,
    beside_signs,
    chance_of,
    losses_over_steps,
    noise_walks,
    occupancy_over_steps,
    off_uniform,
    paired,
    ranks_over_seeds,
    read_twins,
    shapes,
    shapes_over_steps,
)

NULL = [f"signs_{i}" for i in range(4)]


def survey(steps=(0, 5), sites=("a", "b"), occupancies=(2.5, 0.7, 0.9, 1, 2, 3, 4)):
    """Occupancies of 1, two random directions and four sign vectors; ten times that at first positions."""
    directions = ["uniform", "random_a", "random_b", *NULL]
    rows = [
        dict(
            step=step,
            site=site,
            side=side,
            direction=direction,
            positions=positions,
            mean_deg=90 + step,
            std_deg=3.0,
            occupancy=occupancy * (1 if positions == "rest" else 10) + (100 if side == "out" else 0),
            mean_norm=7.0,
        )
        for step in steps
        for site in sites
        for side in ("in", "out")
        for positions in ("first", "rest", "all")
        for direction, occupancy in zip(directions, occupancies, strict=True)
    ]
    return pd.DataFrame(rows)


def test_rank_and_band_are_of_the_signs_at_the_same_place():
    found = beside_signs(survey())
    assert len(found) == 2 * 2 * 2 * 3, "one row a step, site, side and direction that is no null"
    uniform = found[(found.direction == "uniform") & (found.side == "in")]
    assert set(uniform["rank"]) == {3}, "two of four sign vectors lie below 2.5"
    assert set(found[(found.direction == "random_a")]["rank"]) == {1}
    assert set(uniform["median"]) == {2.5} and set(uniform.low) == {np.quantile([1, 2, 3, 4], 0.05)}
    assert set(uniform.high) == {np.quantile([1, 2, 3, 4], 0.95)}
    assert set(found[found.side == "out"]["median"]) == {102.5}, "a null of the other side of the norm"
    assert set(uniform.occupancy) == {2.5}, "first positions are among it"


def test_a_direction_equal_to_the_smallest_of_the_null_is_first():
    found = beside_signs(survey(occupancies=(1, 5, 5, 1, 2, 3, 4)))
    assert set(found[found.direction == "uniform"]["rank"]) == {1}
    assert set(found[found.direction == "random_a"]["rank"]) == {5}, "above all four it is fifth of five"


def test_a_survey_without_signs_is_refused():
    table = survey()
    with pytest.raises(ValueError, match=r"^null: expected directions whose names begin with 'signs_' in the survey"):
        beside_signs(table[~table.direction.isin(NULL)])


def gains_table(**by_step):
    return pd.concat(
        [
            pd.DataFrame(dict(step=int(step[1:]), site=site, coordinate=range(len(weight)), weight=weight, bias=0.0))
            for step, weight in by_step.items()
            for site in ("a", "b")
        ],
        ignore_index=True,
    )


@pytest.mark.parametrize("centered", [True, False], ids=["layer norm", "rms norm"])
def test_shapes_are_those_of_the_dense_matrix(centered):
    d, top = 12, 3
    draws = torch.Generator().manual_seed(0)
    early, end = (1 + 0.4 * torch.randn(d, generator=draws, dtype=torch.float64) for _ in range(2))
    found = shapes(gains_table(s0=np.ones(d), s3=early.numpy(), s9=end.numpy()), centered, top)
    assert found[["step", "site"]].values.tolist() == [[3, "a"], [3, "b"], [9, "a"], [9, "b"]], "step 0 has no axes"

    remove = (torch.eye(d, dtype=torch.float64) - 1 / d) if centered else torch.eye(d, dtype=torch.float64)
    (u, sizes, _), (v, *_) = (torch.linalg.svd(weight[:, None] * remove) for weight in (early, end))
    rank = d - centered
    row = found.iloc[0]
    assert row.axis_ratio == pytest.approx(float(sizes[0] / sizes[rank - 1]), rel=1e-10)
    assert row.overlap == pytest.approx(float((u[:, :top].T @ v[:, :top]).square().sum() / top), rel=1e-9)
    assert row.pointing == pytest.approx(float(u[:, :top].square().amax(0).mean()), rel=1e-9)
    assert row.correlation == pytest.approx(np.corrcoef(early, end)[0, 1], rel=1e-9)
    assert (row.smallest, row.largest) == (float(early.min()), float(early.max()))
    assert row["mean"] == pytest.approx(float(early.mean())) and row.spread == pytest.approx(
        float(early.std(correction=0))
    )
    last = found.iloc[-1]
    assert last.overlap == pytest.approx(1) and last.correlation == pytest.approx(1)


def test_rms_norms_axes_are_coordinates_and_layer_norms_are_not():
    d = 16
    gains = gains_table(s4=np.linspace(0.9, 1.1, d))
    assert shapes(gains, centered=False).pointing.eq(1).all()
    assert (shapes(gains, centered=True).pointing < 0.999).all()


def test_pictures_of_a_course_show_its_numbers():
    table = pd.concat([beside_signs(survey(steps=(0, 4, 40))).assign(seed=seed) for seed in (0, 1)], ignore_index=True)
    figure, words = occupancy_over_steps({"LN": table, "RMS": table}, ["a", "b"])
    assert len(figure.axes) == 4
    line = figure.axes[0].lines[-1]
    assert line.get_xdata().tolist() == [0, 4, 40] and line.get_ydata().tolist() == [2.5] * 3
    assert "LN, a: from 2.5 to 2.5" in words and "band 1.1 to 3.8" in words
    assert figure.axes[2].get_xticks().tolist() == [0, 4, 40], "ticks where there is no point"

    named = table.assign(site=table.site.replace({"a": "transformer.h.2.ln_1", "b": "transformer.ln_f"}))
    titles = [axis.get_title() for axis in occupancy_over_steps({"LN": named}, named.site.unique())[0].axes]
    assert {"LN: block 2, norm 1", "LN: last norm"} <= set(titles)

    figure, words = angles_over_steps({"LN": table[table.seed == 0]}, ["b"], side="out")
    assert "output" in words and "LN, b: 130.0 ± 3.0 at the end" in words
    heights = [container.lines[0].get_ydata().tolist() for container in figure.axes[0].containers]
    assert heights == [[90, 94, 130]] * 3, "three directions, the means of the table"

    curves = pd.DataFrame(dict(step=[1, 2, 1, 2], seed=[0, 0, 1, 1], loss=[5.0, 4.0, 7.0, 2.0]))
    figure, words = losses_over_steps({"LN": curves})
    assert figure.axes[0].lines[0].get_ydata().tolist() == [6.0, 3.0], "the mean over seeds"
    assert "LN from 6.00 to 3.00 nats a token" in words


def test_the_semi_axes_are_those_of_an_ellipsoid():
    weight = torch.linspace(0.5, 1.5, 9, dtype=torch.float64)
    image = ng.Ellipsoid(weight)
    row = shapes(gains_table(s1=weight.numpy()), centered=True, top=2).iloc[0]
    assert row.axis_ratio == float(image.semi_axes[0] / image.semi_axes[-1])


# what the chapter reads and draws


def test_tables_of_twins_by_the_names_of_their_norms(tmp_path):
    for norm, loss in (("layer", 2.0), ("rms", 3.0)):
        (tmp_path / norm).mkdir()
        pd.DataFrame(dict(step=[1], loss=[loss])).to_parquet(tmp_path / norm / "loss.parquet")
    found = read_twins(tmp_path, "loss")
    assert {title: table.loss[0] for title, table in found.items()} == {"LayerNorm": 2.0, "RMSNorm": 3.0}
    with pytest.raises(ValueError, match=r"^folder: expected what normgeom train wrote, there is no .*gains.parquet$"):
        read_twins(tmp_path, "gains")


def test_pairs_are_of_one_seed_and_rate():
    rows = [("RMSNorm", 0.1, 0, 5.0), ("LayerNorm", 0.1, 0, 3.0), ("RMSNorm", 0.1, 1, 9.0), ("LayerNorm", 0.2, 1, 1.0)]
    losses = pd.DataFrame(rows, columns=["norm", "rate", "seed", "loss"])
    assert paired(losses).to_dict() == {(0.1, 0): 2.0}, "of another seed or rate? the other way round?"
    assert paired(losses, "LayerNorm", "RMSNorm").to_dict() == {(0.1, 0): -2.0}
    with pytest.raises(ValueError, match=r"^of, less: expected two of LayerNorm, RMSNorm, got 'none' and 'LayerNorm'$"):
        paired(losses, "none")
    with pytest.raises(ValueError, match="duplicate"):
        paired(pd.concat([losses, losses]))


def test_noise_walks_are_adam_on_normal_numbers():
    """The recursion of Adam, by hand in float64, on the same draws."""
    updates, stages = 20, (1, 2, 13, 20)
    walks = noise_walks(norms=3, width=5, updates=updates, stages=stages, seed=4)
    gains = walks.pivot(index="step", columns=["site", "coordinate"], values="weight").astype(float)
    assert list(gains.index) == list(stages) and list(gains.columns) == [
        (str(i), j) for i in range(3) for j in range(5)
    ]
    generator = torch.Generator().manual_seed(4)
    factor = warmup_cosine(torch.optim.SGD([torch.zeros(1)], lr=1.0), updates).lr_lambdas[0]
    gain, first, second = np.ones(15), np.zeros(15), np.zeros(15)
    for t in range(1, updates + 1):
        noise = torch.randn(15, generator=generator).double().numpy()
        first, second = 0.9 * first + 0.1 * noise, 0.95 * second + 0.05 * noise**2
        step = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.95**t)) + 1e-8)
        gain = gain - 0.001 * factor(t - 1) * step
        if t in stages:
            assert np.abs(gains.loc[t].to_numpy() - gain).max() < 1e-6, f"update {t}: decay? another rate or moment?"
    assert walks.equals(noise_walks(3, 5, updates, stages, seed=4)), "the seed must decide"
    assert set(shapes(walks[walks.site == "0"], centered=True, top=2).step) == set(stages), "shapes cannot read it"


@pytest.mark.parametrize("stages", [(), (0, 3), (3, 11)])
def test_stages_that_are_no_updates(stages):
    with pytest.raises(ValueError, match=r"^stages: expected updates from 1 to 10, got \["):
        noise_walks(2, 4, 10, stages, seed=0)


def test_ranks_are_drawn_as_their_distribution_function():
    ranks = {"LN": pd.Series([3, 1, 2, 2]), "RMS": pd.Series([10, 40, 25])}
    figure, words = ranks_over_seeds(ranks)
    first, second, uniform = figure.axes[0].lines
    assert first.get_xdata().tolist() == [0, 1, 2, 2, 3, 40] and first.get_ydata().tolist() == [
        0,
        0.25,
        0.5,
        0.75,
        1,
        1,
    ]
    assert second.get_xdata().tolist() == [0, 10, 25, 40, 40]
    assert uniform.get_xdata().tolist() == [0, 40] and uniform.get_ydata().tolist() == [0, 1]
    assert first.get_linestyle() != second.get_linestyle(), "not readable without colour"
    assert first.get_label() == "LN, 4 seeds" and "LN: from 1 to 3, quartiles 2, 2 and 2" in words
    assert "RMS: from 10 to 40" in words


def test_shapes_are_drawn_as_means_over_norms():
    columns = dict(step=[10, 10, 50, 50, 100, 100], spread=[1.0, 3, 2, 4, 5, 7], correlation=[0.1, 0.3, 0.5, 0.7, 1, 1])
    rows = pd.DataFrame(dict(columns, overlap=[0.2, 0.4, 0.6, 0.6, 1, 1]))
    figure, words = shapes_over_steps({"LN": rows, "RMS": rows.assign(spread=9.0)}, by_chance=0.25)
    left, right = figure.axes
    assert [line.get_ydata().tolist() for line in left.lines] == [[2, 3, 6], [9, 9, 9]]
    assert right.lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.6, 1])
    assert right.lines[1].get_ydata().tolist() == pytest.approx([0.3, 0.6, 1])
    assert set(right.lines[-1].get_ydata()) == {0.25}
    assert len(left.collections) == 1 and len(right.collections) == 2, "bands of the first model alone"
    assert "LN: spread 6.000 at the end; a tenth of the way the gains correlate with those of the end by 0.20" in words
    assert "the axes overlap by 0.30" in words and "RMS: spread 9.000" in words


@pytest.mark.parametrize(
    ("ranks", "most", "distance"),
    [((1, 2, 3, 4), 4, 0.0), ((4, 4), 4, 0.75), ((1, 1), 4, 0.75), ((1, 4), 4, 0.25), ((2,), 2, 0.5)],
)
def test_ranks_are_compared_with_uniform_ones(ranks, most, distance):
    assert off_uniform(ranks, most) == distance


def test_chance_counts_what_is_as_far_off_or_further():
    # Two ranks of 1 or 2 agree in half of the cases, and then are off by a half.
    assert chance_of(0.5, 2, 2) == pytest.approx(0.5, abs=0.03), "0.5 itself has to count"
    assert chance_of(0.0, 3, 5) == 1
    # By dynamic programming over the counts: exactly 0.1527, with rounded distances 0.11.
    assert chance_of(off_uniform([*range(1, 34), *[33] * 7], 40), 40, 40) == pytest.approx(0.153, abs=0.011)
    # Kolmogorov's limit for many ranks and places: sqrt(n) D is above 1.63 in 1 % of cases.
    assert chance_of(1.63 / 400**0.5, 400, 1000, draws=2000) == pytest.approx(0.01, abs=0.008)


@pytest.mark.parametrize("ranks", [(), (0, 1), (5,)])
def test_a_rank_is_one_of_those_that_there_are(ranks):
    with pytest.raises(ValueError, match="ranks: expected some between 1 and 4"):
        off_uniform(ranks, 4)


def test_chance_of_no_ranks():
    with pytest.raises(ValueError, match="expected at least 1, got 0 and 4"):
        chance_of(0.1, 0, 4)
