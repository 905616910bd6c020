"""What a survey compares 1 with: directions drawn by name, and own vectors."""

import copy

import normgeom as ng
import pytest
import torch
from norm_checks import close
from normgeom.survey.directions import unit
from survey_truth import same_tables, table_of
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn


@pytest.fixture(scope="module")
def model():
    """Gains and shifts drawn, so that every side of every norm has second moments of its own."""
    model = tiny("gpt2")
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    return model


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
    names, ids = ["uniform", "random_a", "signs_a"], token_ids(2, 9)
    all_of_them = table_of(model, [ids], directions=names, seed=4)
    backwards = table_of(model, [ids], directions=names[::-1], seed=4)
    for name in names:
        alone = table_of(model, [ids], directions=[name], seed=4)
        for others in (all_of_them, backwards):
            same_tables(others.loc[alone.index].reset_index(), alone.reset_index())
    assert ng.Survey(model, ["uniform", "uniform"]).directions == ("uniform",)


class Uncalled(nn.Module):
    def forward(self, *_, **__):
        raise AssertionError("bad input must be found before any work")


BAD = {
    "none": ([], "directions: expected at least one, got none"),
    "unknown": (["uniform", "mean"], r"directions: expected 'uniform', .* or 'signs_…', got 'mean'"),
    "a text": ("mean", "directions: expected .*, got 'mean'"),
    "a vector": ([torch.ones(32)], "directions: expected .*; vectors takes your own"),
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
    like_weights = [ng.Survey(m, example_inputs=x, vectors={"0.weight": v}) for m in (model, copy.deepcopy(model))]
    assert like_weights[0].fingerprint == like_weights[1].fingerprint
    model[0].weight.data += 1
    assert ng.Survey(model, example_inputs=x, vectors={"0.weight": v}).fingerprint != like_weights[0].fingerprint
    model[0].weight.data -= 1
    other = ng.Survey(model, "uniform", example_inputs=x, vectors=dict(steer=2 - v))
    with pytest.raises(ValueError, match=r"^other: expected the same fingerprint"):
        survey.merge(other)


@pytest.mark.parametrize(("directions", "message"), BAD.values(), ids=BAD)
def test_bad_directions_are_found_before_the_model_runs(directions, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.Survey(Uncalled(), directions, example_inputs=torch.ones(2, 3))
