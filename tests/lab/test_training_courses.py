"""The course of a training: ranks beside signs, axes of norms, and pictures, against values set by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom_lab import training as lab


def survey(steps=(0, 5), sites=("a", "b"), occupancies=(2.5, 0.7, 0.9, 1, 2, 3, 4)):
    """Occupancies of 1, two random directions and four sign vectors; ten times that at first positions."""
    directions = ["uniform", "random_a", "random_b", *(f"signs_{i}" for i in range(4))]
    rows = [
        dict(
            step=step,
            site=site,
            side=side,
            direction=direction,
            positions=positions,
            mean_deg=90 + step,
            occupancy=occupancy * (1 if positions == "rest" else 10) + (100 if side == "out" else 0),
        )
        for step in steps
        for site in sites
        for side in ("in", "out")
        for positions in ("first", "rest", "all")
        for direction, occupancy in zip(directions, occupancies, strict=True)
    ]
    return pd.DataFrame(rows).assign(std_deg=3.0, mean_norm=7.0)


def test_rank_and_band_are_of_the_signs_at_the_same_place():
    found = lab.beside_signs(survey())
    assert len(found) == 2 * 2 * 2 * 3, "one row a step, site, side and direction that is no vector of signs"
    uniform = found[(found.direction == "uniform") & (found.side == "in")]
    assert set(uniform["rank"]) == {3}, "two of four sign vectors lie below 2.5"
    assert set(found[(found.direction == "random_a")]["rank"]) == {1}
    assert set(uniform["median"]) == {2.5} and set(uniform.low) == {np.quantile([1, 2, 3, 4], 0.05)}
    assert set(uniform.high) == {np.quantile([1, 2, 3, 4], 0.95)}
    assert set(found[found.side == "out"]["median"]) == {102.5}, "signs of the other side of the norm"
    assert set(uniform.occupancy) == {2.5}, "first positions are among it"
    tied = lab.beside_signs(survey(occupancies=(1, 5, 5, 1, 2, 3, 4)))
    assert set(tied[tied.direction == "uniform"]["rank"]) == {1}, "equal to the smallest"
    assert set(tied[tied.direction == "random_a"]["rank"]) == {5}, "above all four it is fifth of five"


def gains_table(**by_step):
    found = [
        pd.DataFrame(dict(step=int(step[1:]), site=site, weight=weight))
        for step, weight in by_step.items()
        for site in ("a", "b")
    ]
    return pd.concat(found, ignore_index=True)


@pytest.mark.parametrize("centered", [True, False], ids=["layer norm", "rms norm"])
def test_axes_are_those_of_the_dense_matrix(centered):
    d, draws = 24, torch.Generator().manual_seed(0)
    early, end = (1 + 0.4 * torch.randn(d, generator=draws, dtype=torch.float64) for _ in range(2))
    found = lab.overlaps(gains_table(s0=np.ones(d), s3=early.numpy(), s9=end.numpy()), centered)
    assert found[["step", "site"]].values.tolist() == [[3, "a"], [3, "b"], [9, "a"], [9, "b"]], "step 0 has no axes"

    remove = (torch.eye(d, dtype=torch.float64) - 1 / d) if centered else torch.eye(d, dtype=torch.float64)
    (u, *_), (v, *_) = (torch.linalg.svd(weight[:, None] * remove) for weight in (early, end))
    expected = float((u[:, :8].T @ v[:, :8]).square().sum() / 8)
    assert found.overlap.tolist() == pytest.approx([expected, expected, 1, 1], rel=1e-9)


def test_pairs_are_of_one_seed_and_rate():
    rows = [("RMSNorm", 0.1, 0, 5.0), ("LayerNorm", 0.1, 0, 3.0), ("RMSNorm", 0.1, 1, 9.0), ("LayerNorm", 0.2, 1, 1.0)]
    losses = pd.DataFrame(rows, columns=["norm", "rate", "seed", "loss"])
    assert lab.paired(losses).to_dict() == {(0.1, 0): 2.0}, "of another seed or rate? the other way round?"
    assert lab.paired(losses, "LayerNorm", "RMSNorm").to_dict() == {(0.1, 0): -2.0}


@pytest.mark.parametrize(
    ("ranks", "most", "distance"),
    [((1, 2, 3, 4), 4, 0.0), ((4, 4), 4, 0.75), ((1, 1), 4, 0.75), ((1, 4), 4, 0.25), ((2,), 2, 0.5)],
)
def test_ranks_are_compared_with_uniform_ones(ranks, most, distance):
    assert lab.off_uniform(ranks, most) == distance


def test_chance_counts_what_is_as_far_off_or_further():
    # Two ranks of 1 or 2 agree in half of the cases, and then are off by a half.
    assert lab.chance_of(0.5, 2, 2) == pytest.approx(0.5, abs=0.03), "0.5 itself has to count"
    # By dynamic programming over the counts: exactly 0.1527, with rounded distances 0.11.
    assert lab.chance_of(lab.off_uniform([*range(1, 34), *[33] * 7], 40), 40, 40) == pytest.approx(0.153, abs=0.011)


# pictures


def test_pictures_of_a_course_show_its_numbers():
    table = pd.concat([lab.beside_signs(survey(steps=(0, 4, 40))).assign(seed=seed) for seed in (0, 1)])
    table["site"] = table.site.replace({"a": "transformer.h.2.ln_1", "b": "transformer.ln_f"})
    figure, words = lab.occupancy_over_steps({"LN": table, "RMS": table}, table.site.unique())
    titles = [f"{norm}: {site}" for site in ("block 3, norm 1", "final norm") for norm in ("LN", "RMS")]
    assert [axis.get_title() for axis in figure.axes] == titles
    line = figure.axes[0].lines[-1]
    assert line.get_xdata().tolist() == [0, 4, 40] and line.get_ydata().tolist() == [2.5] * 3
    assert "LN, block 3, norm 1: from 2.5 to 2.5" in words and "band 1.1 to 3.8" in words
    assert figure.axes[2].get_xticks().tolist() == [0, 4, 40], "ticks where there is no point"

    figure, words = lab.angles_over_steps({"LN": table[table.seed == 0]}, ["transformer.ln_f"])
    assert "LN, final norm: 130.0 ± 3.0 at the end" in words
    heights = [container.lines[0].get_ydata().tolist() for container in figure.axes[0].containers]
    assert heights == [[90, 94, 130]] * 3, "three directions, the means of the table"

    curves = pd.DataFrame(dict(step=[1, 2, 1, 2], seed=[0, 0, 1, 1], loss=[5.0, 4.0, 7.0, 2.0]))
    figure, words = lab.losses_over_steps({"LN": curves})
    assert figure.axes[0].lines[0].get_ydata().tolist() == [6.0, 3.0], "the mean over seeds"
    assert "LN from 6.00 to 3.00 nats per byte" in words
