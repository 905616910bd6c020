"""Pairs of twins, their surveys, changes of gauge, and pictures of angles by layer."""

import math

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
import torch
from normgeom_lab import inference as lab
from normgeom_lab.common import published
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.loop import random_windows, train
from normgeom_lab.common.pictures import null_band
from normgeom_lab.common.tiny import gpt2, perturb
from survey_truth import stored
from tiny_models import token_ids

CONFIG = gpt2(vocabulary=64, length=16, width=12, layers=2, heads=2)
IDS = token_ids(2, 8)


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# pairs


def test_pairs_are_twins_trained_on_windows_of_their_seed():
    text, keys = torch.arange(400) % 7, [(f"{norm} twin", seed) for seed in (3, 5) for norm in ("LayerNorm", "RMSNorm")]
    made = lab.pairs(CONFIG, (3, 5))
    assert list(made) == keys
    for (name, seed), network in made.items():
        assert same(network, ng.twins(CONFIG, seed)[name == "RMSNorm twin"]), f"{name} {seed} begins with another seed"
    losses = lab.train_pairs(made, text, steps=12)
    assert list(losses.index) == keys and losses.index.names == ["model", "seed"]
    for (name, seed), network in made.items():
        twin = ng.twins(CONFIG, seed)[name == "RMSNorm twin"]
        expected = train(twin, random_windows(text, 16, 16, seed=seed), 12, 3e-3, description=None)
        assert same(network, twin), "other windows, or another learning rate"
        assert losses.loc[(name, seed)].tolist() == pytest.approx([expected[0], sum(expected[2:]) / 10])


def test_what_is_measured_on_is_not_trained_on(monkeypatch):
    monkeypatch.setattr(lab.experiments, "HELD_OUT", 100)
    text = "".join(chr(48 + i % 70) for i in range(500))
    training, batches = lab.held_out_bytes(text, tokens=90, length=8)
    expected = list(text.encode())
    assert training.tolist() == expected[:-100]
    assert torch.cat(batches).flatten().tolist() == expected[-100:][:88], (
        "whole windows of the first that are asked for"
    )
    with pytest.raises(AssertionError, match=r"^tokens: 101 asked, the corpus gives 100; name a larger one$"):
        lab.held_out_bytes(text, tokens=101, length=8)


# surveys

BATCHES = [token_ids(3, 8), token_ids(2, 8) * 3 % 64]
CHOSEN = ["uniform", "random_a", "signs_a"]


@pytest.fixture(scope="module")
def networks():
    return {(name, run): twin for run in (4, 5) for name, twin in zip("ab", ng.twins(CONFIG, run), strict=True)}


@pytest.fixture(scope="module")
def angles(networks):
    return lab.survey_runs(networks, BATCHES, CHOSEN, seed=7)


def test_the_rows_are_those_of_each_survey(networks, angles):
    for (name, run), network in networks.items():
        expected = ng.Survey(network, CHOSEN, 7).run(BATCHES, progress=False).table()
        got = angles[(angles.model == name) & (angles.run == run)].drop(columns=["model", "run"])
        pd.testing.assert_frame_equal(got.reset_index(drop=True), expected)
    assert list(dict.fromkeys(zip(angles.model, angles.run, strict=True))) == list(networks), "another order"
    assert angles.index.is_unique


def test_the_state_of_a_survey_is_kept(networks, angles, tmp_path):
    lab.survey_runs({("org/a", 4): networks["a", 4]}, BATCHES, CHOSEN, 7, out=tmp_path / "new")
    kept = ng.Survey.load(tmp_path / "new" / "org--a-4.safetensors").table()
    expected = angles[(angles.model == "a") & (angles.run == 4)].drop(columns=["model", "run"])
    pd.testing.assert_frame_equal(kept, expected.reset_index(drop=True))


@pytest.mark.parametrize(("side", "positions"), [("in", "rest"), ("out", "rest"), ("in", "first")])
def test_the_uniform_vectors_rows_in_words(angles, side, positions):
    run = angles[(angles.model == "a") & (angles.run == 5)]
    got = lab.of_uniform(run, side, positions)
    assert got.site.tolist() == [*(f"transformer.h.{i}.ln_{j}" for i in (0, 1) for j in (1, 2)), "transformer.ln_f"]
    assert set(got.direction) == {"uniform"} and set(got.side) == {side} and set(got.positions) == {positions}
    assert set(got.tokens) == {5 if positions == "first" else 35}
    shown = lab.in_words(got)
    assert list(shown) == ["mean angle / degrees", "standard deviation / degrees", "occupancy"]
    assert shown.index.name == "norm" and list(shown.index) == got.site.tolist()
    assert shown["mean angle / degrees"].tolist() == got.mean_deg.tolist()


# gauge


def pair(which):
    """A twin and another of the same sizes, in float64, both away from their start."""
    return [perturb(ng.twins(CONFIG, seed)[which].double(), Draws(seed), 0.2) for seed in (3, 4)]


def hidden(model):
    with torch.no_grad():
        return model.transformer(IDS).last_hidden_state


def at_last(model):
    """What enters the last norm, rows of it, first positions left out."""
    return stored(model, ["transformer.ln_f"], [IDS])["transformer.ln_f"][0][0][:, 1:].flatten(0, 1)


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_turning_by_hand(which):
    """Against a copy whose embedding is moved in place and hooks of our own."""
    model, _ = pair(which)
    found = lab.turned(model, [0.0, 0.7], IDS)
    assert same(model, pair(which)[0]), "the model itself was changed"
    moved, _ = pair(which)
    with torch.no_grad():
        moved.transformer.wte.weight += 0.7
    change = float((hidden(moved) - hidden(model)).norm() / hidden(model).norm())
    rows = at_last(moved)
    angles = torch.acos(rows.sum(-1) / rows.norm(dim=-1) / math.sqrt(12)).rad2deg()
    assert found.columns.tolist() == ["c", "angle at the last norm / degrees", "change of output"]
    c, angle, changed = found.iloc[1]
    assert c == 0.7 and angle == pytest.approx(float(angles.mean()), abs=1e-5), "first positions?"
    assert changed == pytest.approx(change, abs=1e-12)
    assert (changed < 1e-12) == (which == 0), "LayerNorm must not see it, RMSNorm must"
    assert found.iloc[0, 2] == 0 and found.iloc[0, 1] > angle + 5


# pictures

SITES = ["h.0.ln_1", "h.0.ln_2", "ln_f"]


def table(run=0):
    rng = np.random.default_rng(run)
    directions = ["uniform", "random_a", "random_b", *(f"random_{i:03d}" for i in range(18))]
    rows = [
        dict(site=site, side=side, direction=direction, positions=positions, kind="layer", run=run)
        for site in SITES
        for side in ("in", "out")
        for direction in directions
        for positions in ("first", "rest", "all")
    ]
    numbers = dict(mean_deg=90 + rng.normal(size=len(rows)), std_deg=2.0 + rng.random(len(rows)))
    return pd.DataFrame(rows).assign(**numbers, occupancy=rng.random(len(rows)) + 0.01)


def test_the_null_band_is_the_quantiles_of_the_random_directions():
    frame = table()
    band = null_band(frame, side="out")
    assert list(band.index) == SITES, "sites in order of use"
    rows = frame.query("side == 'out' and positions == 'rest' and direction != 'uniform'")
    expected = [np.quantile(rows.occupancy[rows.site == site], [0.05, 0.5, 0.95]) for site in SITES]
    assert np.allclose(band[["low", "median", "high"]], expected)


def test_angles_show_each_direction_at_each_norm():
    frame = table()
    figure, alt = lab.angles_by_layer({"a model": frame})
    assert [axis.get_title() for axis in figure.axes] == ["a model, inputs", "a model, outputs"]
    for axis, side in zip(figure.axes, ("in", "out"), strict=True):
        assert len(axis.containers) == 3, "uniform and two random directions"
        uniform = lab.of_uniform(frame, side)
        assert np.allclose(np.asarray(axis.containers[0].lines[0].get_ydata(), float), uniform.mean_deg)
        low, high = uniform.mean_deg.min(), uniform.mean_deg.max()
        said = f"{side}puts of a model: mean angle to the uniform vector between {low:.1f} and {high:.1f} degrees"
        assert said in alt


def test_occupancy_draws_a_line_a_run_and_counts_what_leaves_the_band():
    frames = pd.concat([table(0), table(1)])
    frames.loc[frames.direction == "uniform", "occupancy"] = 1e-4
    figure, alt = lab.occupancy_by_layer({"a model": frames})
    assert len([line for line in figure.axes[0].lines if line.get_marker() == "o"]) == 2
    assert "below the random directions' band at 6 and above it at 0 of 6 points" in alt


def test_arrows_stand_at_the_angles_of_one_constant():
    columns = ["c", "angle at the last norm / degrees", "change of output"]
    found = {
        "LayerNorm twin": pd.DataFrame([[0.0, 90.0, 0.0], [1.0, 60.0, 2e-7]], columns=columns),
        "RMSNorm twin": pd.DataFrame([[0.0, 88.0, 0.0], [1.0, 30.0, 1.25]], columns=columns),
    }
    figure, alt = lab.turned_by(found, 1.0)
    left, right = figure.axes
    tips = [note.xy for note in left.texts if note.get_text() == ""]
    assert np.allclose(tips, [(0, 1), (np.sqrt(0.75), 0.5), (0.5, np.sqrt(0.75))]), "1 upright, angles measured from it"
    assert {"LayerNorm 60°", "RMSNorm 30°"} <= {text.get_text() for text in left.texts}
    lines = [line.get_ydata().tolist() for line in right.lines if len(line.get_xdata()) == 2]
    assert lines == [[0.0, 2e-7], [0.0, 1.25]]
    marks = {line.get_label(): np.hstack(line.get_data()).tolist() for line in right.lines if line.get_markersize() > 5}
    assert marks == {"LayerNorm twin": [1.0, 2e-7], "RMSNorm twin": [1.0, 1.25]}, "the mark of another constant"
    assert "With c = 1 " in alt and "LayerNorm twin: angle 60 degrees, change of the output 2e-07 of its length" in alt


# published models


def test_the_table_of_removed_directions_tells_signs_from_what_is_spared():
    costs = dict(none=9.0, uniform=1.0, random_000=2.0, uniform_rest=0.1, uniform_000=0.8, uniform_001=0.9)
    costs |= {f"signs_{i:03d}": float(i) for i in range(4)} | dict(signs_000_rest=0.3, signs_001_rest=0.2)
    rows = [dict(model=m, direction=d, text="test", cost=cost) for m in published.NAMES for d, cost in costs.items()]
    table = published.without_directions(pd.DataFrame(rows))
    assert set(table.columns) == {("SmolLM2", "test"), ("Gemma 3", "test")}
    assert table["Gemma 3", "test"].tolist() == [9, 1, 0, 1.5, 3, 2, 0.1, 0.3, 0.9]
    assert [name for name in table.index if name.startswith("4 sign vectors: ")] == list(table.index[2:5])
