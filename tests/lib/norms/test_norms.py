"""layer_norm, rms_norm and the sub-steps: from sums done by hand to shapes and dtypes."""

from itertools import pairwise

import mpmath
import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, rounding, true_layer_norm, true_rms_norm, ulps

BOTH = pytest.mark.parametrize(
    ("norm", "truth"), [(ng.layer_norm, true_layer_norm), (ng.rms_norm, true_rms_norm)], ids=["layer_norm", "rms_norm"]
)


def exact(x, weight=None, bias=None, eps=0.0, centered=True):
    """The formula in 50 digits, entry by entry."""
    with mpmath.workdps(50):
        x = [mpmath.mpf(v) for v in x]
        mean = mpmath.fsum(x) / len(x) if centered else mpmath.mpf(0)
        scale = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in x) / len(x) + mpmath.mpf(eps))
        gain = [1] * len(x) if weight is None else [mpmath.mpf(v) for v in weight]
        shift = [0] * len(x) if bias is None else [mpmath.mpf(v) for v in bias]
        return [float(g * (v - mean) / scale + b) for v, g, b in zip(x, gain, shift, strict=True)]


def test_layer_norm_by_hand():
    # mean 1, variance 1, and 1 + 0.5625 = 1.25²
    x = torch.tensor([0.0, 2.0, 0.0, 2.0], dtype=torch.float64)
    expected = torch.tensor([-0.8, 0.8, -0.8, 0.8], dtype=torch.float64)
    close(ng.layer_norm(x, eps=0.5625), expected, 1e-15, "(0, 2, 0, 2) at ε = 0.5625", "ε outside the root?")


def test_rms_norm_by_hand():
    # mean square 25, and 25 + 11 = 6²
    x = torch.tensor([1.0, 7.0], dtype=torch.float64)
    expected = torch.tensor([1 / 6, 7 / 6], dtype=torch.float64)
    close(ng.rms_norm(x, eps=11.0), expected, 1e-15, "(1, 7) at ε = 11", "ε outside the root? Mean subtracted?")


@pytest.mark.parametrize("centered", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0])
def test_against_fifty_digits(centered, eps):
    norm = ng.layer_norm if centered else ng.rms_norm
    x, weight, bias = draw(7, scale=3e-3, mean=0.2), draw(7, seed=1), draw(7, seed=2)
    expected = torch.tensor(exact(x.tolist(), weight.tolist(), bias.tolist(), eps, centered), dtype=torch.float64)
    close(norm(x, weight, bias, eps), expected, 1e-12, f"fifty digits, ε = {eps}", "ε outside the root?")


def test_four_sub_steps():
    x, weight, bias, eps = draw(3, 5, 8, mean=2.0), draw(8, seed=1), draw(8, seed=2), 0.1
    steps = ng.layer_norm_steps(x, weight, bias, eps)
    assert steps._fields == ("centered", "normalized", "scaled", "output")
    projector = torch.eye(8, dtype=torch.float64) - 1 / 8
    close(steps.centered, x @ projector, 1e-13, "centered is Πx", "Another projector?")
    sigma = steps.centered.pow(2).sum(-1, keepdim=True).div(8).add(eps).sqrt()
    close(steps.normalized, (x @ projector) / sigma, 1e-13, "normalized", "ε outside the root? Divisor d−1?")
    close(steps.scaled, steps.normalized * weight, 1e-13, "scaled", "β already added?")
    close(steps.output, steps.scaled + bias, 1e-13, "output", "β forgotten?")
    close(steps.output, ng.layer_norm(x, weight, bias, eps), 1e-14, "the last step is layer_norm", "Another order?")


def test_sub_steps_without_affine_part_end_at_the_normalised_vector():
    steps = ng.layer_norm_steps(draw(3, 8))
    assert torch.equal(steps.scaled, steps.normalized)
    assert torch.equal(steps.output, steps.normalized)


def test_unit_offset_adds_one_to_the_gain():
    x, weight, bias = draw(3, 8), draw(8, seed=1), draw(8, seed=2)
    expected = true_rms_norm(x, 1 + weight, bias, 1e-6)
    close(
        ng.rms_norm(x, weight, bias, 1e-6, unit_offset=True), expected, 1e-13, "Gemma's gain", "weight for 1 + weight?"
    )


def test_unit_offset_is_added_in_float32():
    """A bfloat16 weight of 1e-3 vanishes when 1 is added to it in bfloat16."""
    x = draw(4, 64, dtype=torch.bfloat16)
    weight = torch.full((64,), 1e-3, dtype=torch.bfloat16)
    expected = true_rms_norm(x.double(), 1 + weight.double(), None, 1e-6)
    got = ng.rms_norm(x.float(), weight, unit_offset=True)
    close(got, expected, 1e-5, "1 + w with a bfloat16 w", "1 added in the weight's dtype?")


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_has_the_dtype_of_the_input(norm, truth, dtype):
    x = draw(4, 32, dtype=dtype)
    got = norm(x, draw(32, seed=1, dtype=dtype), eps=1e-5)
    assert got.dtype == dtype
    expected = truth(x.double(), draw(32, seed=1, dtype=dtype).double(), eps=1e-5)
    # margin: the result's own rounding is a quarter of it
    close(got, expected, rounding(expected, dtype), f"values in {dtype}", "Statistics in the input's dtype?")


@BOTH
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_another_dtype(norm, truth, x_dtype, weight_dtype):
    x, weight, bias = draw(4, 32, dtype=x_dtype), draw(32, seed=1, dtype=weight_dtype), draw(32, seed=2)
    got = norm(x, weight, bias.to(weight_dtype), 1e-5)
    expected = truth(x.double(), weight.double(), bias.to(weight_dtype).double(), 1e-5)
    assert got.dtype == x_dtype, f"{x_dtype} in, {got.dtype} out: promoted by the weight?"
    # margin: the result's own rounding is a quarter of it
    close(
        got,
        expected,
        rounding(expected, x_dtype),
        f"{x_dtype} with a {weight_dtype} weight",
        "Gain rounded to the input's dtype?",
    )


@BOTH
def test_half_precision_is_one_rounding_away_from_float64(norm, truth):
    x = torch.cat([draw(8, 768, dtype=torch.bfloat16), draw(8, 768, seed=1, scale=1e-2, dtype=torch.bfloat16)])
    expected = truth(x.double(), eps=1e-5).to(torch.bfloat16)
    clear = expected.abs() > 1e-2
    assert ulps(norm(x, eps=1e-5)[clear], expected[clear]) <= 1, "more than one rounding: statistics in bfloat16?"


@BOTH
def test_float16_squares_do_not_overflow(norm, truth):
    x = draw(4, 64, scale=1e4, dtype=torch.float16)  # squares near 1e8, float16 ends at 65504
    close(norm(x), truth(x.double()), 4e-3, "float16 entries near 1e4", "Squares in float16?")


@BOTH
def test_shapes_and_strides(norm, truth):
    weight = draw(6, seed=1)
    for x in (
        draw(6),
        draw(1, 6),
        draw(2, 3, 4, 6),
        draw(6, 5).T,
        draw(4, 12)[:, ::2],
        draw(6).expand(3, 6),
        draw(2, 6, 3).permute(0, 2, 1),
    ):
        close(norm(x, weight), truth(x, weight), 1e-13, f"shape {tuple(x.shape)}, strides {x.stride()}", "Wrong axis?")


@BOTH
@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6)])
def test_empty_batches(norm, truth, shape):
    x, weight = torch.zeros(shape, requires_grad=True), torch.ones(6, requires_grad=True)
    got = norm(x, weight)
    assert got.shape == shape
    got.sum().backward()
    assert x.grad.shape == shape
    assert torch.equal(weight.grad, torch.zeros(6))


def test_one_feature():
    x = torch.tensor([[3.0], [-0.5], [1e6]], dtype=torch.float64)
    bias = torch.tensor([0.25], dtype=torch.float64)
    assert torch.equal(ng.layer_norm(x, None, bias), bias.expand(3, 1)), "d = 1 has no spread: LayerNorm gives β"
    close(ng.rms_norm(x, eps=7.0), x / (x**2 + 7).sqrt(), 1e-15, "d = 1", "Mean subtracted?")


@BOTH
def test_no_epsilon_and_no_spread_is_nan(norm, truth):
    assert norm(torch.zeros(2, 5), eps=0.0).isnan().all(), "0/0 is NaN: a hidden ε?"
    assert norm(draw(2, 5), eps=0.0).isfinite().all()


@BOTH
def test_an_overflowing_row_comes_out_as_bias(norm, truth):
    x = torch.stack([draw(8, dtype=torch.float32), draw(8, scale=1e25, dtype=torch.float32)])
    bias = draw(8, seed=2, dtype=torch.float32)
    got = ng.layer_norm_steps(x, None, bias).output if norm is ng.layer_norm else norm(x, None, bias)
    assert torch.equal(got[1], bias)
    close(got[0], truth(x[0].double(), None, bias.double()), 2e-6, "the row beside it", "Mean of the whole batch?")


@BOTH
def test_a_nan_stays_in_its_row(norm, truth):
    x = draw(3, 8)
    x[1, 2] = torch.nan
    got = norm(x)
    assert got[1].isnan().all()
    close(got[[0, 2]], truth(x[[0, 2]]), 1e-13, "rows beside a NaN", "Mean of the whole batch?")


def test_larger_epsilon_pushes_inward():
    x = draw(16)
    lengths = [float(ng.layer_norm(x, eps=eps).norm()) for eps in (1e-6, 1e-3, 1e-1, 10.0)]
    assert all(a > b for a, b in pairwise(lengths)), f"lengths {lengths} must fall as ε grows"
