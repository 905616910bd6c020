"""What a survey compares 1 with: directions drawn, and directions matched to a pilot."""

import itertools
import math

import normgeom as ng
import numpy as np
import pytest
import torch
from norm_checks import close, draw
from survey_truth import (
    EXACT,
    KEYS,
    QUANTILES,
    Skipping,
    assert_rows_equal,
    direction,
    directly,
    same_tables,
    stored,
    survey,
    table_of,
)
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    """Gains and shifts drawn, so that every side of every norm has second moments of its own."""
    model = tiny("gpt2")
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    return model


@pytest.mark.parametrize("d", [2, 7, 4096])
@pytest.mark.parametrize("name", ["uniform", "random_a", "signs_a"])
def test_directions_have_length_one(name, d):
    u = direction(name, d, 3)
    assert u.shape == (d,) and u.dtype == torch.float64
    assert float(u.norm()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("kind", ["random_", "signs_"])
def test_name_seed_and_width_decide_what_is_drawn(kind):
    d = 4096
    u = direction(f"{kind}a", d, 0)
    torch.manual_seed(77)
    assert torch.equal(u, direction(f"{kind}a", d, 0)), "the global generator plays a part"
    others = {
        "name": direction(f"{kind}b", d, 0),
        "seed": direction(f"{kind}a", d, 1),
        "width": direction(f"{kind}a", 2 * d, 0)[:d] * 2**0.5,
    }
    for what, other in others.items():
        assert abs(float(u @ other)) * d**0.5 < 4, f"another {what}, the same direction?"
    assert abs(float(u.mean())) * d < 4, "far from isotropic: entries from 0 to 1?"


def test_what_the_entries_are():
    """±1/√d, or Gaussian: of fourth moment 3."""
    d = 4096
    close(direction("uniform", d, 0), torch.full((d,), d**-0.5), 1e-16, "uniform", "Not the vector of ones?")
    signs, gaussian = direction("signs_a", d, 0) * d**0.5, direction("random_a", d, 0) * d**0.5
    close(signs.abs(), torch.ones(d), 1e-12, "signs", "Entries other than ±1?")
    assert 0.4 < float((signs > 0).double().mean()) < 0.6, "signs are not even"
    assert float(gaussian.square().square().mean()) == pytest.approx(3, abs=0.5), "random: not Gaussian?"
    assert float(signs @ gaussian) / d**0.5 < 4, "one draw for both?"


def test_drawn_directions_are_spread_evenly():
    """The mean of uuᵀ over many names is the identity over d."""
    for kind in ("random_", "signs_"):
        u = torch.stack([direction(f"{kind}{i}", 5, 0) for i in range(4000)])
        close(u.T @ u / 4000 * 5, torch.eye(5), 0.1, f"{kind}: the mean of uuᵀ", "One axis preferred?")


def test_order_and_company_change_no_direction(model):
    names, ids = ["uniform", "random_a", "signs_a", "matched_a", "matched_b"], token_ids(2, 9)
    given = dict(seed=4, pilot=token_ids(2, 11), vectors=dict(mine=torch.arange(32.0)))
    all_of_them = table_of(model, [ids], directions=names, **given)
    backwards = table_of(model, [ids], directions=["mine", *names[::-1], "signs_a"], **given)
    for name in (*names, "mine"):
        given["vectors"] = {"mine": torch.arange(32.0)} if name == "mine" else None
        alone = table_of(model, [ids], directions=[name], **given)
        for others in (all_of_them, backwards):
            same_tables(others.loc[alone.index].reset_index(), alone.reset_index())
    assert len(backwards) == len(all_of_them), "a name given twice is measured twice"


def test_signs_in_the_table(model):
    ids = token_ids(2, 9)
    (x, _), *_ = stored(model, ["transformer.ln_f"], [ids])["transformer.ln_f"]
    got = table_of(model, [ids], directions=["signs_x"], seed=5).loc["transformer.ln_f", "in", "signs_x", "all"]
    assert_rows_equal(got, directly(x.reshape(-1, 32), direction("signs_x", 32, 5)), 1e-9, "signs")


def matched(result, place):
    """The matched directions at a place, ``(k, d)``."""
    return result._meter._units(*place, CPU)


def places(model):
    """Each side of each norm, and the name of the norm."""
    return [((i, side), site.name) for i, site in enumerate(ng.find_norms(model)) for side in ("in", "out")]


def unit_vectors(model, name, side, batch, keep):
    (pair,) = stored(model, [name], [batch])[name]
    x = pair[side == "out"].double()[keep]
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


CHOICES = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)), dtype=torch.float64)


def nearest_choice(u, vectors):
    """How far the nearest of all sums of eight vectors with signs is from ``u``, and which it is."""
    sums = CHOICES @ vectors
    distance, which = torch.linalg.vector_norm(nn.functional.normalize(sums, dim=-1) - u, dim=-1).min(dim=0)
    return float(distance), int(which)


def test_a_matched_direction_is_a_sum_of_the_pilots_unit_vectors_with_signs(model):
    """With eight vectors, one of 256 choices of signs must give it: at every place its own, and none of padding."""
    ids, mask = token_ids(2, 6), torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    pilot = dict(input_ids=ids, attention_mask=mask)
    result = ng.Survey(model, ["matched_a", "matched_b"], pilot=pilot)
    found = set()
    for place, name in places(model):
        vectors = unit_vectors(model, name, place[1], pilot, mask.bool())
        for u in matched(result, place):
            distance, which = nearest_choice(u, vectors)
            assert distance < 1e-12, f"{name}, {place[1]}: off by {distance:.1e}. Raw vectors? Padding? Another norm's?"
            found.add(which)
    assert len(found) > 15, f"{len(found)} choices of signs at 20 places: one draw for all?"


def test_a_norm_that_runs_twice_in_the_pilot():
    """ALBERT's layers share their modules: a direction is a sum over both passes."""
    albert, pilot = tiny("albert"), token_ids(1, 4)
    result = ng.Survey(albert, ["matched_a"], pilot=pilot)
    name = "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"
    (i,) = (i for i, site in enumerate(result.sites) if site["site"] == name)
    for side, k in (("in", 0), ("out", 1)):
        x = torch.cat([call[k][0] for call in stored(albert, [name], [pilot])[name]]).double()
        distance, _ = nearest_choice(matched(result, (i, side))[0], nn.functional.normalize(x, dim=-1))
        assert distance < 1e-12, f"{side}: off by {distance:.1e}. The last pass only?"


def test_a_matched_direction_is_measured_at_its_own_place(model):
    ids = token_ids(3, 9)
    result = ng.Survey(model, ["uniform", "matched_a"], pilot=token_ids(2, 11, seed=1)).run([ids], progress=False)
    table = result.table().set_index(KEYS)
    for place, name in places(model):
        (pair,) = stored(model, [name], [ids])[name]
        expected = directly(pair[place[1] == "out"].reshape(-1, 32), matched(result, place)[1])
        got = table.loc[name, place[1], "matched_a", "all"]
        assert_rows_equal(got, expected, 1e-9, f"{name}, {place[1]}: measured with another place's direction?")


def test_the_seed_decides_the_signs(model):
    pilot = token_ids(2, 11)
    a, again, other = (ng.Survey(model, ["matched_a"], seed=seed, pilot=pilot) for seed in (0, 0, 1))
    for place, _ in places(model):
        assert torch.equal(matched(a, place), matched(again, place)), "drawn from the global generator?"
        assert abs(float(matched(a, place) @ matched(other, place).T)) < 0.99, "the seed plays no part"


def pilot_of_uneven_rows():
    """Short rows near one axis, long ones near another: raw and unit vectors have other second moments."""
    spread = draw(1, 200, 6, seed=2) * torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5, 0.2])
    long = torch.arange(200) % 4 == 0
    spread[:, long] = 20 * spread[:, long].roll(2, dims=-1)
    return spread


def test_matched_directions_have_the_second_moments_of_unit_vectors():
    """The mean of uuᵀ over 3000 names; raw vectors in the sum, or Gaussian directions, are told apart."""
    x, names = pilot_of_uneven_rows(), [f"matched_{i}" for i in range(3000)]
    result = ng.Survey(nn.Sequential(nn.RMSNorm(6)).double(), names, example_inputs=x, pilot=x)
    u = matched(result, (0, "in")).numpy()
    got = u.T @ u / len(u)

    def expected(vectors):
        sums = np.random.default_rng(0).choice([-1.0, 1.0], (20_000, len(vectors))) @ vectors
        sums /= np.linalg.norm(sums, axis=-1, keepdims=True)
        return sums.T @ sums / len(sums)

    raw = x[0].numpy()
    truth = expected(raw / np.linalg.norm(raw, axis=-1, keepdims=True))
    off = {"unit": truth, "raw": expected(raw), "isotropic": np.eye(6) / 6}
    off = {name: np.abs(got - matrix).max() for name, matrix in off.items()}
    assert off["unit"] < 0.02, f"off by {off}: raw vectors, Gaussian directions, one sign for all?"
    assert min(off["raw"], off["isotropic"]) > 0.1, f"{off}: this pilot tells nothing apart"


def test_the_occupancy_of_matched_directions(model):
    """Over the pilot itself, of second moments C: that of Gaussian vectors of covariance C, scaled to length 1.

    Where C is round, this is about d·tr(C²)/tr(C)².
    """
    pilot = token_ids(16, 30)
    result = ng.Survey(model, [f"matched_{i}" for i in range(400)], pilot=pilot).run([pilot], progress=False)
    got = result.table().query("positions == 'all'").groupby(["site", "side"]).occupancy.mean()
    gaussian, expected = draw(20_000, 32), []
    for (_, side), name in places(model):
        u = unit_vectors(model, name, side, pilot, slice(None)).reshape(-1, 32)
        c = u.T @ u / len(u)
        v = gaussian @ torch.linalg.cholesky(c).T
        expected.append(32 * float(((v @ c * v).sum(-1) / v.square().sum(-1)).mean()))
        assert got[name, side] == pytest.approx(expected[-1], rel=0.1), f"{name}, {side}. That of another place?"
        if expected[-1] < 2:
            assert expected[-1] == pytest.approx(32 * float((c @ c).trace()), rel=0.1)
    assert min(expected) < 1.5 and max(expected) > 2.5, f"{expected}: places too alike for a test"


def test_a_norm_that_the_pilot_does_not_reach():
    batch = dict(x=draw(2, 5, 8, dtype=torch.float32))
    table = table_of(
        Skipping(),
        [batch],
        directions=["uniform", "matched_a"],
        example_inputs=batch,
        pilot=dict(batch, both=False),
    )
    row = table.loc["asked", "in", "matched_a", "all"]
    of_angle = [name for name in (*EXACT, *QUANTILES) if name not in ("mean_norm", "top_share")]
    assert row.tokens == 0 and row[of_angle].isna().all(), f"{row[of_angle]}: a direction of nothing has no angle"
    assert table.loc["asked", "in", "uniform", "all"].tokens == 10
    assert table.loc["always"].tokens.gt(0).all() and table.loc["always"].mean_deg.notna().all()


def test_signs_that_cancel_give_no_direction():
    """Two equal vectors with opposite signs sum to zero, which no angle can be taken with."""
    llama, ids = tiny("llama"), token_ids(2, 5)
    pilot = torch.tensor([[5], [5]])
    tables = [table_of(llama, [ids], directions=["matched_a"], seed=seed, pilot=pilot) for seed in range(8)]
    angles = np.array([t.loc["model.layers.0.input_layernorm", "in", "matched_a", "all"].mean_deg for t in tables])
    assert np.isnan(angles).any() and not np.isnan(angles).all(), f"{angles}: 90° to a vector of length zero?"
    same = angles[~np.isnan(angles)]
    close(torch.tensor(np.minimum(same, 180 - same)), torch.tensor(min(same[0], 180 - same[0])).expand(len(same)), 1e-9,
          "either of two signs", "Not ± the one vector?")  # fmt: skip


def test_rows_of_a_pilot_without_a_length_are_left_out():
    x = draw(1, 6, 8)
    poisoned = x.clone()
    poisoned[0, 1, 3], poisoned[0, 4, 0], poisoned[0, 5] = math.nan, math.inf, 0.0
    net = nn.Sequential(nn.RMSNorm(8)).double()
    good = x[:, [0, 2, 3]]
    clean, dirty = (ng.Survey(net, ["matched_a"], example_inputs=x, pilot=p) for p in (good, poisoned))
    rows = (good[0] / good[0].norm(dim=-1, keepdim=True)).T
    weights = torch.linalg.lstsq(rows, matched(dirty, (0, "in"))[0]).solution
    close(weights.abs(), weights[0].abs().expand(3), 1e-12, "weights", "A row of NaN, Inf or zeros takes part?")
    assert matched(clean, (0, "in")).isfinite().all()


def test_a_pilot_is_run_in_evaluation_mode():
    model = tiny("gpt2", embd_pdrop=0.5, resid_pdrop=0.5)
    a, b = (ng.Survey(m, ["matched_a"], pilot=token_ids(2, 7)) for m in (model.eval(), model.train()))
    for place, _ in places(model):
        assert torch.equal(matched(a, place), matched(b, place)), "dropout in the pilot"


def test_a_pilot_is_run_once_and_only_where_it_is_needed(model):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    counted = {}
    for directions in (["uniform"], ["matched_a", "matched_b"]):
        calls.clear()
        ng.Survey(model, directions, pilot=token_ids(1, 3))
        counted[directions[0]] = len(calls)
    handle.remove()
    assert counted == {"uniform": 1, "matched_a": 2}, "find_norms runs the model once, the pilot once more"


def test_a_pilot_that_nothing_is_matched_to_plays_no_part(model):
    ids = token_ids(2, 5)
    with_it, without = (survey(model, [ids], pilot=pilot) for pilot in (token_ids(1, 3), None))
    same_tables(with_it.table(), without.table(), tol=0, quantiles=0)
    assert with_it.merge(without).batches == 2, "refused because of a pilot that was never run"
