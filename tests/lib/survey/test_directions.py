"""What a survey compares 1 with: directions drawn by name and matched to a pilot."""

import itertools
import math

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw
from normgeom.survey.directions import SIDES, matched, unit
from survey_truth import EXACT, Skipping, assert_rows_equal, directly, same_tables, stored, table_of
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn


@pytest.fixture(scope="module")
def model():
    """Gains and shifts drawn, so that every side of every norm has second moments of its own."""
    model = tiny("gpt2")
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    return model


# drawn by name


@pytest.mark.parametrize("kind", ["random_", "signs_"])
def test_name_seed_and_width_decide_what_is_drawn(kind):
    d = 4096
    u = unit(f"{kind}a", d, 0)
    assert u.dtype == torch.float64 and float(u.norm()) == pytest.approx(1, abs=1e-14)
    torch.manual_seed(77)
    assert torch.equal(u, unit(f"{kind}a", d, 0)), "the global generator plays a part"
    others = {"name": unit(f"{kind}b", d, 0), "seed": unit(f"{kind}a", d, 1), "width": unit(f"{kind}a", 2 * d, 0)[:d]}
    for what, other in others.items():
        assert abs(float(u @ other)) * d**0.5 < 4, f"another {what}, the same direction?"
    spread = torch.stack([unit(f"{kind}{i}", 5, 0) for i in range(4000)])
    close(
        spread.T @ spread / 4000 * 5, torch.eye(5), 0.1, "the mean of uuᵀ", "One axis preferred? Entries from 0 to 1?"
    )


def test_what_the_entries_are():
    """±1/√d, or Gaussian: of fourth moment 3."""
    d = 4096
    close(unit("uniform", d, 0), torch.full((d,), d**-0.5), 1e-16, "uniform", "Not the vector of ones?")
    signs, gaussian = unit("signs_a", d, 0) * d**0.5, unit("random_a", d, 0) * d**0.5
    close(signs.abs(), torch.ones(d), 1e-12, "signs", "Entries other than ±1?")
    assert float(gaussian.square().square().mean()) == pytest.approx(3, abs=0.5), "random: not Gaussian?"


def test_order_and_company_change_no_direction(model):
    names, ids = ["uniform", "random_a", "signs_a", "matched_a", "matched_b"], token_ids(2, 9)
    given = dict(seed=4, pilot=token_ids(2, 11))
    all_of_them = table_of(model, [ids], directions=names, **given)
    backwards = table_of(model, [ids], directions=names[::-1], **given)
    for name in names:
        alone = table_of(model, [ids], directions=[name], **given)
        for others in (all_of_them, backwards):
            same_tables(others.loc[alone.index].reset_index(), alone.reset_index())
    assert ng.Survey(model, ["uniform", "uniform"]).directions == ("uniform",)


# matched to a pilot


def by_place(model, pilot, names=("matched_a",), seed=0, example=None):
    """The matched directions at each side of each norm, ``(k, d)``."""
    found = matched(model, ng.find_norms(model, example), names, seed, pilot)
    return {place: torch.stack([*vectors.values()]) for place, vectors in found.items()}


def unit_vectors(model, name, side, batch):
    x = torch.cat([pair[side == "out"].double().flatten(0, 1) for pair in stored(model, [name], [batch])[name]])
    return nn.functional.normalize(x, dim=-1)


def nearest_choice(u, vectors):
    """How far the nearest of all sums of eight vectors with signs is from ``u``, and which it is."""
    choices = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)), dtype=torch.float64)
    sums = nn.functional.normalize(choices @ vectors, dim=-1)
    distance, which = torch.linalg.vector_norm(sums - u, dim=-1).min(dim=0)
    return float(distance), int(which)


def test_a_matched_direction_is_a_sum_of_the_pilots_unit_vectors_with_signs(model):
    """With eight vectors, one of 256 choices of signs must give it: at every place its own."""
    pilot, found = token_ids(2, 4), set()
    for (name, side), units in by_place(model, pilot, ["matched_a", "matched_b"]).items():
        vectors = unit_vectors(model, name, side, pilot)
        for u in units:
            distance, which = nearest_choice(u, vectors)
            assert distance < 1e-12, f"{name}, {side}: off by {distance:.1e}. Raw vectors? Another norm's?"
            found.add(which)
    assert len(found) > 15, f"{len(found)} choices of signs at 20 places: one draw for all?"


def test_a_norm_that_runs_twice_in_the_pilot():
    """ALBERT's layers share their modules: a direction is a sum over both passes."""
    albert, pilot = tiny("albert"), token_ids(1, 4)
    name = "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"
    for side in SIDES:
        vectors = unit_vectors(albert, name, side, pilot)
        distance, _ = nearest_choice(by_place(albert, pilot)[name, side][0], vectors)
        assert distance < 1e-12, f"{side}: off by {distance:.1e}. The last pass only?"


def test_a_matched_direction_is_measured_at_its_own_place(model):
    ids, pilot = token_ids(3, 9), token_ids(2, 11, seed=1)
    table = table_of(model, [ids], directions=["uniform", "matched_a"], pilot=pilot)
    for (name, side), units in by_place(model, pilot).items():
        (pair,) = stored(model, [name], [ids])[name]
        got, expected = table.loc[name, side, "matched_a", "all"], directly(pair[side == "out"].flatten(0, 1), units[0])
        assert_rows_equal(got, expected, f"{name}, {side}: measured with another place's direction?")


def test_the_seed_decides_the_signs_and_dropout_plays_no_part(model):
    dropping, pilot = tiny("gpt2", embd_pdrop=0.5, resid_pdrop=0.5), token_ids(2, 11)
    a, again = (by_place(m, pilot) for m in (dropping.eval(), dropping.train()))
    other = by_place(dropping, pilot, seed=1)
    for place, units in a.items():
        assert torch.equal(units, again[place]), "drawn from the global generator, or dropout in the pilot?"
        assert abs(float(units @ other[place].T)) < 0.99, "the seed plays no part"


def test_a_norm_that_the_pilot_does_not_reach():
    batch = dict(x=draw(2, 5, 8, dtype=torch.float32))
    settings = dict(directions=["uniform", "matched_a"], example_inputs=batch, pilot=dict(batch, both=False))
    table = table_of(Skipping(), [batch], **settings)
    row = table.loc["asked", "in", "matched_a", "all"]
    assert row[EXACT[:-1]].isna().all(), f"{row[EXACT]}: a direction of nothing has no angle"
    assert table.loc["asked", "in", "uniform", "all"].tokens == 10
    assert table.loc["always"].tokens.gt(0).all() and table.loc["always"].mean_deg.notna().all()


def test_signs_that_cancel_give_no_direction():
    """Two equal vectors with opposite signs sum to zero, which no angle can be taken with."""
    llama, pilot = tiny("llama"), torch.tensor([[5], [5]])
    place = "model.layers.0.input_layernorm", "in"
    units = torch.cat([by_place(llama, pilot, seed=seed)[place] for seed in range(8)])
    none = units.isnan().all(-1)
    assert none.any() and not none.all()
    cos = units[~none] @ units[~none].T
    close(cos.abs(), torch.ones_like(cos), 1e-12, "either of two signs", "Not ± the one vector?")


def test_rows_of_a_pilot_without_a_length_are_left_out():
    x = draw(1, 6, 8)
    x[0, 1, 3], x[0, 4, 0], x[0, 5] = math.nan, math.inf, 0.0
    net = nn.Sequential(nn.RMSNorm(8)).double()
    u = by_place(net, x, example=x)["0", "in"][0]
    rows = nn.functional.normalize(x[0, [0, 2, 3]], dim=-1).T
    weights = torch.linalg.lstsq(rows, u).solution
    close(weights.abs(), weights[0].abs().expand(3), 1e-12, "weights", "A row of NaN, Inf or zeros takes part?")


def test_a_pilot_is_run_once_and_only_where_it_is_needed(model):
    calls, pilot = [], token_ids(1, 3)
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    without = ng.Survey(model, ["uniform"], pilot=pilot)
    assert len(calls) == 1, "find_norms runs the model once"
    ng.Survey(model, ["matched_a", "matched_b"], pilot=pilot)
    assert len(calls) == 3
    handle.remove()
    assert without.merge(ng.Survey(model, ["uniform"])).batches == 0, "refused because of a pilot that was never run"


class Uncalled(nn.Module):
    def forward(self, *_, **__):
        raise AssertionError("bad input must be found before any work")


BAD = {
    "none": ([], "directions: expected at least one, got none"),
    "unknown": (["uniform", "mean"], r"directions: expected 'uniform', .* or 'matched_…', got 'mean'"),
    "a text": ("mean", "directions: expected .*, got 'mean'"),
    "a vector": ([torch.ones(32)], "directions: expected .*; vectors takes your own"),
    "no pilot": (["matched_a"], "pilot: expected a batch to match 'matched_a' with, got none"),
}


def test_own_vectors_are_measured_at_norms_of_their_width():
    v, x = torch.linspace(-1, 2, 8), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.RMSNorm(4))
    survey = ng.Survey(model, "uniform", example_inputs=x, vectors=dict(steer=v)).run([x], progress=False)
    rows = survey.table().query("direction == 'steer' and side == 'in' and positions == 'all'")
    cosines = x.double() @ v.double() / (x.double().norm(dim=-1) * v.double().norm())
    assert abs(rows.mean_deg.iloc[0] - float(cosines.acos().rad2deg().mean())) < 1e-9
    assert rows.mean_deg.isna().tolist() == [False, True], "a direction of another width"
    for wrong in (v[:5], 0 * v, v[None]):
        with pytest.raises(ValueError, match=r"^vectors: expected "):
            ng.Survey(model, example_inputs=x, vectors=dict(steer=wrong))
    other = ng.Survey(model, "uniform", example_inputs=x, vectors=dict(steer=2 - v))
    with pytest.raises(ValueError, match=r"^other: expected the same fingerprint"):
        survey.merge(other)


@pytest.mark.parametrize(("directions", "message"), BAD.values(), ids=BAD)
def test_bad_directions_are_found_before_the_model_runs(directions, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.Survey(Uncalled(), directions, example_inputs=torch.ones(2, 3))
