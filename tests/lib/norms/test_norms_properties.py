"""Laws of the norms on drawn inputs: random shapes, constant rows, huge means, tiny spreads, huge scales, tiny ε."""

import normgeom as ng
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm, ulps
from normgeom.norms import kernels

NORMS = {"layer_norm": (ng.layer_norm, true_layer_norm), "rms_norm": (ng.rms_norm, true_rms_norm)}
BOTH = pytest.mark.parametrize(("norm", "truth"), NORMS.values(), ids=NORMS)


@pytest.fixture(autouse=True, scope="module")
def _every_mean_is_looked_at():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "LOOK", 0)
        yield


seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(2, 70)
epsilons = st.sampled_from([1e-12, 1e-8, 1e-5, 1e-3, 1.0])
shapes = st.lists(st.integers(1, 4), max_size=3).flatmap(lambda lead: sizes.map(lambda d: (*lead, d)))


def positive(low: float, high: float):
    """Numbers whose logarithm is drawn evenly."""
    return st.floats(low, high).map(lambda e: 10.0**e)


@BOTH
@given(shape=shapes, seed=seeds, eps=epsilons, spread=positive(-4, 4), mean=st.floats(-2, 2))
def test_float64_agrees_with_torch(norm, truth, shape, seed, eps, spread, mean):
    x = draw(*shape, seed=seed, scale=spread, mean=mean * spread)
    weight, bias = draw(shape[-1], seed=seed + 1), draw(shape[-1], seed=seed + 2)
    close(norm(x, weight, bias, eps), truth(x, weight, bias, eps), 1e-11, f"ε = {eps}", "ε outside the root?")


@BOTH
@given(
    shape=shapes,
    seed=seeds,
    eps=epsilons,
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    spread=positive(-2, 2),
)
def test_half_precision_is_one_rounding_away(norm, truth, shape, seed, eps, dtype, spread):
    x = draw(*shape, seed=seed, scale=spread, dtype=dtype)
    expected = truth(x.double(), eps=eps)
    # two equal float16 entries cancel in the centring: float32's own rounding shows beside zero
    clear = expected.abs() > 1e-2
    if clear.any():
        off = ulps(norm(x, eps=eps)[clear], expected.to(dtype)[clear])
        assert off <= 1, f"{dtype}: {off} ulp. Statistics in the input's dtype?"


@given(
    d=st.integers(1, 300),
    value=st.floats(-1e6, 1e6, width=32),
    eps=epsilons,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=seeds,
)
@example(d=3, value=0.1, eps=1e-12, dtype=torch.float32, seed=0)
@example(d=1000, value=1e6 / 3, eps=1e-12, dtype=torch.float64, seed=0)
def test_constant_rows_give_exactly_bias(d, value, eps, dtype, seed):
    x = torch.full((2, d), value, dtype=torch.float64).to(dtype)
    weight, bias = draw(d, seed=seed, dtype=dtype), draw(d, seed=seed + 1, dtype=dtype)
    got = ng.layer_norm(x, weight, bias, eps)
    assert torch.equal(got, bias.expand(2, d)), f"off by {float((got - bias).abs().max()):.1e}. One mean only?"


@given(d=st.integers(1, 300), value=st.floats(-1e6, 1e6, width=32))
def test_constant_rows_without_epsilon_are_nan(d, value):
    assert ng.layer_norm(torch.full((2, d), value), eps=0.0).isnan().all(), "rounding taken for a spread"


@given(d=st.integers(16, 2000), seed=seeds, mean=positive(0, 6), sign=st.sampled_from([-1, 1]))
@example(d=768, seed=0, mean=1e6, sign=1)
def test_a_huge_mean_costs_no_accuracy_in_float32(d, seed, mean, sign):
    x = draw(4, d, seed=seed, mean=sign * mean, dtype=torch.float32)
    expected = true_layer_norm(x.double())
    suspects = "E[x²]−E[x]² for the variance? The mean's own rounding left in (one mean only)?"
    close(ng.layer_norm(x), expected, rounding(expected, torch.float32), f"float32 at mean {mean:.1e}", suspects)


@BOTH
@given(d=sizes, seed=seeds, exponent=st.integers(-12, 15), eps=st.sampled_from([0.0, 1e-30, 1e-12, 1e-5]))
def test_tiny_spreads_and_huge_scales_in_float32(norm, truth, d, seed, exponent, eps):
    x = draw(3, d, seed=seed, scale=10.0**exponent, dtype=torch.float32)
    expected = truth(x.double(), eps=eps)
    bound = rounding(expected, torch.float32)
    # margin: of rows of two or three entries the largest is most of the row, and all roundings are its own
    close(norm(x, eps=eps), expected, bound, f"scale 1e{exponent}, ε = {eps}", "ε outside the root?")


@given(shape=shapes, seed=seeds, eps=epsilons, shift=st.floats(-1e3, 1e3))
def test_a_shift_along_the_uniform_vector_does_nothing(shape, seed, eps, shift):
    x = draw(*shape, seed=seed)
    got, expected = ng.layer_norm(x + shift, eps=eps), ng.layer_norm(x, eps=eps)
    # rounding of x + shift, seen at the smallest spread of a row
    spread = float((x.var(-1, correction=0) + eps).sqrt().min())
    close(got, expected, 1e-12 + 1e-12 / spread, f"shift by {shift}", "Mean not subtracted?")


@BOTH
@given(shape=shapes, seed=seeds, eps=epsilons, factor=positive(-3, 3), sign=st.sampled_from([-1, 1]))
def test_a_scale_acts_as_its_sign_and_on_epsilon(norm, truth, shape, seed, eps, factor, sign):
    x, a = draw(*shape, seed=seed), sign * factor
    got, expected = norm(a * x, eps=eps), sign * norm(x, eps=eps / a**2)
    close(got, expected, 1e-10, f"N_ε(ax) against sign(a)·N_(ε/a²)(x), a = {a}", "ε outside the root? ε scaled by a?")


@given(shape=shapes, seed=seeds, eps=epsilons, spread=positive(-4, 3))
def test_the_length_is_that_of_the_formula(shape, seed, eps, spread):
    x, d = draw(*shape, seed=seed, scale=spread), shape[-1]
    variance = x.var(-1, correction=0)
    got = ng.layer_norm(x, eps=eps).norm(dim=-1)
    close(got, (d / (1 + eps / variance)).sqrt(), 1e-11, "‖n‖ = √d/√(1 + ε/σ²)", "Divisor d−1: radius √(d−1)?")


@given(shape=shapes, seed=seeds, eps=epsilons)
def test_layer_norm_is_rms_norm_of_the_projection(shape, seed, eps):
    x, d = draw(*shape, seed=seed, mean=1.0), shape[-1]
    weight, bias = draw(d, seed=seed + 1), draw(d, seed=seed + 2)
    projector = torch.eye(d, dtype=torch.float64) - torch.ones(d, d, dtype=torch.float64) / d
    got, expected = ng.rms_norm(x @ projector, weight, bias, eps), ng.layer_norm(x, weight, bias, eps)
    close(got, expected, 1e-10, "LN(x) = RMSNorm(Πx) with the same ε", "Another ε? Divisor d−1?")


@BOTH
@given(shape=shapes, seed=seeds)
def test_rows_do_not_see_each_other(norm, truth, shape, seed):
    x = draw(2, *shape, seed=seed)
    disturbed = torch.cat([x[:1], 100 * x[1:] + 7])
    assert torch.equal(norm(x)[0], norm(disturbed)[0]), "a row changed with its neighbour. Mean of the whole batch?"


@BOTH
@given(d=sizes, seed=seeds, permutation=st.randoms(use_true_random=False))
def test_features_may_be_permuted(norm, truth, d, seed, permutation):
    order = list(range(d))
    permutation.shuffle(order)
    x, weight, bias = draw(3, d, seed=seed), draw(d, seed=seed + 1), draw(d, seed=seed + 2)
    got = norm(x[:, order], weight[order], bias[order])
    close(got, norm(x, weight, bias)[:, order], 1e-12, "permuted features", "A feature treated apart?")
