"""Decoders of a norm's output: against least squares written out, targets of known R², and scales that are put in."""

import math

import pytest
import torch
from norm_checks import draw, rounding
from normgeom_lab.irreversibility import held_out_scores, random_layer, read_norms, scale_error
from tiny_models import tiny, token_ids
from torch import nn


def by_hand(seen, target):
    """R² of the affine decoder by the normal equations."""
    half = len(seen) // 2
    ones = torch.ones(len(seen), 1, dtype=seen.dtype)
    x = torch.cat([ones, seen], -1)
    gram = x[:half].T @ x[:half]
    guess = x[half:] @ torch.linalg.solve(gram, x[:half].T @ target[:half])
    truth = target[half:]
    spread = (truth - truth.mean(0)).square().sum()
    return 1 - float((truth - guess).square().sum() / spread)


def test_scores_are_those_of_the_normal_equations():
    seen = draw(61, 4, mean=3.0)
    targets = {"one": draw(61, 1, seed=1) + seen[:, :1], "three": draw(61, 3, seed=2, mean=-2.0) + seen[:, 1:] ** 2}
    scores = held_out_scores(seen, targets)
    assert list(scores) == ["one", "three"], "each target by its name, in order"
    for name, target in targets.items():
        expected = by_hand(seen, target)
        assert scores[name] == pytest.approx(expected, abs=4 * rounding(target.square().sum(), torch.float64, 61)), (
            f"{name}: no constant? Fitted to the rows that judge? Targets mixed up? The target's mean left in?"
        )


def test_an_affine_target_is_read_whole_and_an_independent_one_not_at_all():
    seen = draw(4000, 3)
    scores = held_out_scores(seen, {"affine": seen @ draw(3, 2, seed=1) + 5, "other": draw(4000, 1, seed=2)})
    assert scores["affine"] == pytest.approx(1, abs=1e-10)
    # a fit of four numbers to 2000 rows of noise explains some 4/2000 of it too little
    assert abs(scores["other"]) < 0.02, "Judged on the rows that it was fitted to?"


def test_half_of_the_variance_gives_one_half():
    seen = draw(20_000, 1)
    scores = held_out_scores(seen, {"t": seen + draw(20_000, 1, seed=1)})
    assert scores["t"] == pytest.approx(0.5, abs=0.05), "Correlation for its square? The residual's share?"


def test_what_rows_lie_where_is_the_first_half_and_the_second():
    """The rule changes its sign half way: a decoder of the first half does worse than the mean on the second."""
    seen = draw(1000, 1)
    target = torch.cat([seen[:500], -seen[500:]])
    assert held_out_scores(seen, {"t": target})["t"] == pytest.approx(-3, abs=0.05), "Rows shuffled? Halves swapped?"


@pytest.mark.parametrize("gain", [[1.0, 1, 1, 1, 1, 1], [1.0, 1, 1, 1, 0, 0]])
def test_dependent_columns_do_not_disturb_the_fit(gain):
    """LayerNorm's outputs sum to zero, and a zero gain leaves a column of zeros."""
    x = draw(200, 6)
    seen = (x - x.mean(-1, keepdim=True)) * torch.tensor(gain, dtype=torch.float64)
    scores = held_out_scores(seen, {"t": seen[:, :2]})
    assert scores["t"] == pytest.approx(1, abs=1e-10), "a solver that needs full rank?"


def test_the_random_layer_is_fixed_curved_and_of_the_generators_numbers():
    layer = random_layer(5, 400, torch.Generator().manual_seed(2))
    x = draw(3, 5)
    assert torch.equal(layer(x), layer(x)), "drawn anew at each call?"
    weight = torch.randn(5, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inside = x @ weight / math.sqrt(5)
    expected = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
    assert torch.allclose(layer(x), expected, rtol=0, atol=4 * rounding(expected, torch.float64, 5)), "no √d? No GELU?"


def test_what_is_read_at_a_model_s_norms():
    """Every number again from hooks of the test's own."""
    model, batches = tiny("gpt2"), [token_ids(6, 9, seed=0), token_ids(4, 9, seed=1)]
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(
                lambda m, args, out, name=name: seen.setdefault(name, []).append((args[0], out))
            )
    with torch.no_grad():
        for ids in batches:
            model(ids)
    got = read_norms(model, batches)
    assert list(got.index) == list(seen), "each norm by name, in the order of use"
    assert list(got.columns) == ["mean", "log σ", "spread"]
    for name, pairs in seen.items():
        pairs = [[t[:, 1:].reshape(-1, 32).double() for t in pair] for pair in pairs[: len(batches)]]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        mean, sigma = x.mean(-1), x.std(-1, correction=0)
        expected = held_out_scores(y, {"mean": mean[:, None], "log σ": sigma.log()[:, None]})
        assert got.loc[name, "mean"] == pytest.approx(expected["mean"], abs=1e-9), f"{name}: position 0 kept?"
        assert got.loc[name, "log σ"] == pytest.approx(expected["log σ"], abs=1e-9), f"{name}: σ for log σ? d − 1?"
        assert got.loc[name, "spread"] == pytest.approx(float(mean.std() / sigma.median()), rel=1e-12)


def test_reading_leaves_the_model_as_it_was():
    model = tiny("gpt2").train()
    read_norms(model, [token_ids(2, 6)])
    assert model.training, "left in evaluation mode"
    assert not any(m._forward_hooks for m in model.modules()), "hooks left behind"


@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 0.3])
def test_the_scale_comes_back_in_float64(sigma):
    """The error is rounding times 1 + σ²/ε (prop-amplification)."""
    error = scale_error(torch.float64, sigma, torch.Generator().manual_seed(0), d=64, rows=50)
    bound = (1 + sigma**2 / 1e-5) * 32 * torch.finfo(torch.float64).eps
    assert error < bound, f"off by {error:.1e}: ε outside the root? ρ for ρ²? d − 1? The drawn σ for the row's own?"


def test_the_error_is_that_of_a_rounded_output():
    """Each row's σ by bisection: the σ whose noiseless ρ is the one that bfloat16 leaves."""
    got = scale_error(
        torch.bfloat16, 0.01, torch.Generator().manual_seed(1), d=16, eps=1e-3, rows=9, given=torch.float32
    )
    drawn = torch.randn(9, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = (0.01 * drawn).float()
    y = nn.functional.layer_norm(x, (16,), eps=1e-3).to(torch.bfloat16).double()
    length = y.square().mean(-1).sqrt()
    low, high = torch.full_like(length, 1e-6), torch.full_like(length, 10.0)
    for _ in range(200):
        middle = (low + high) / 2
        short = middle / torch.sqrt(middle**2 + 1e-3) < length
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    true = x.double().std(-1, correction=0)
    expected = float((low / true - 1).abs().median())
    assert got == pytest.approx(expected, rel=1e-6), "Output not rounded? Input rounded to the output's format? A mean?"


def test_outputs_too_long_for_any_scale_count_as_infinite():
    """At σ = 300 rounding decides on which side of 1 the length lies; in some draws it is above in most rows."""
    errors = [scale_error(torch.bfloat16, 300.0, torch.Generator().manual_seed(s), d=8, rows=9) for s in range(8)]
    assert math.inf in errors, "no solution taken for an error of 100 %?"
    assert all(not math.isnan(e) for e in errors)
