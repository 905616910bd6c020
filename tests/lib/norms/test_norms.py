"""The contract of layer_norm and rms_norm, in each of the ways in which they are computed, and of their modules."""

import os
import re
import shutil

import mpmath
import norm_checks
import normgeom as ng
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from norm_checks import close, draw, rounding, true_rms_norm
from normgeom.norms import kernels
from torch import nn
from torch.func import hessian, jacfwd, jacrev, vmap
from ways import BOTH, NORMS, large, way

__all__ = ["large", "way"]
EPS = 1e-2
# inductor compiles C++; a machine without a compiler still shows that one graph is captured
BACKEND = "inductor" if any(shutil.which(os.environ.get("CXX", c)) for c in ("g++", "clang++")) else "aot_eager"

# torch.compile's own imports warn
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@BOTH
@pytest.mark.parametrize("check", [*norm_checks.CHECKS, norm_checks.higher_derivatives], ids=lambda c: c.__name__)
def test_the_norm_passes_every_check(check, norm, truth, way):
    check(norm, truth)


# values


def exact(x, weight, bias, eps, centered):
    """The formula in 50 digits, entry by entry."""
    with mpmath.workdps(50):
        x = [mpmath.mpf(v) for v in x]
        mean = mpmath.fsum(x) / len(x) if centered else mpmath.mpf(0)
        scale = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in x) / len(x) + mpmath.mpf(eps))
        return [float(mpmath.mpf(g) * (v - mean) / scale + mpmath.mpf(b)) for v, g, b in zip(x, weight, bias, strict=1)]


@BOTH
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0])
def test_against_fifty_digits(norm, truth, eps, way):
    x, weight, bias = draw(7, scale=3e-3, mean=0.02), draw(7, seed=1), draw(7, seed=2)
    expected = exact(x.tolist(), weight.tolist(), bias.tolist(), eps, norm is ng.layer_norm)
    close(
        norm(x, weight, bias, eps),
        torch.tensor(expected, dtype=torch.float64),
        1e-12,
        f"fifty digits, ε = {eps}",
        "ε outside?",
    )


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
    bare = ng.layer_norm_steps(x)
    close(bare.output, ng.layer_norm(x), 1e-14, "without arguments", "Another default of ε?")
    assert torch.equal(bare.scaled, bare.normalized) and torch.equal(bare.output, bare.normalized)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_unit_offset_is_added_to_the_weight_before_any_rounding(dtype, way):
    """In sixteen bits 1 + w has lost digits of w."""
    x, bias = draw(16, 256, dtype=dtype), draw(256, seed=2, dtype=dtype)
    weight = draw(256, seed=1, scale=0.1, dtype=dtype)
    expected = true_rms_norm(x.double(), 1 + weight.double(), bias.double())
    got = ng.rms_norm(x, weight, bias, unit_offset=True)
    close(got, expected, rounding(expected, dtype), "Gemma's gain", "weight for 1 + weight?")
    if dtype != torch.float64:
        assert norm_checks.misrounded(got, expected) < 0.01
        assert norm_checks.misrounded(ng.rms_norm(x, 1 + weight, bias), expected) > 0.1
    with pytest.raises(ValueError, match=r"unit_offset=True adds 1 to the weight, but weight is None"):
        ng.rms_norm(x, unit_offset=True)


@BOTH
def test_shapes(norm, truth, way):
    weight = draw(6, seed=1)
    for shape in ((6,), (1, 6), (2, 3, 4, 6)):
        x = draw(*shape)
        close(norm(x, weight), truth(x, weight), 1e-13, f"shape {shape}", "Wrong axis?")
    for shape in ((0, 6), (2, 0, 6)):
        x, gain = torch.zeros(shape, requires_grad=True), torch.ones(6, requires_grad=True)
        got = norm(x, gain)
        got.sum().backward()
        assert got.shape == x.grad.shape == shape
        assert torch.equal(gain.grad, torch.zeros(6))


def test_one_feature(way):
    x = torch.tensor([[3.0], [-0.5], [1e6]], dtype=torch.float64)
    bias = torch.tensor([0.25], dtype=torch.float64)
    assert torch.equal(ng.layer_norm(x, None, bias), bias.expand(3, 1)), "d = 1 has no spread: LayerNorm gives β"
    close(ng.rms_norm(x, eps=7.0), x / (x**2 + 7).sqrt(), 1e-15, "d = 1", "Mean subtracted?")


@BOTH
def test_no_epsilon_and_no_spread_is_nan(norm, truth, way):
    assert norm(torch.zeros(2, 5), eps=0.0).isnan().all(), "0/0 is NaN: a hidden ε?"
    assert norm(draw(2, 5), eps=0.0).isfinite().all()


@BOTH
def test_a_nan_and_an_overflow_stay_in_their_rows(norm, truth, way):
    x, bias = draw(4, 8, dtype=torch.float32), draw(8, seed=2, dtype=torch.float32)
    x[1, 2], x[2] = torch.nan, draw(8, scale=1e25)
    got = norm(x, None, bias)
    assert got[1].isnan().all()
    assert torch.equal(got[2], bias) or (norm is ng.layer_norm and way == "small" and got[2].isnan().all())
    expected = truth(x[[0, 3]].double(), None, bias.double())
    close(got[[0, 3]], expected, 2e-6, "the rows beside them", "Mean of the whole batch?")


# laws of the numbers, on drawn inputs that all count as large: constant rows, huge means, tiny spreads, huge scales


@pytest.fixture(scope="module")
def looked_at():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "LOOK", 0)
        yield


seeds, sizes = st.integers(0, 2**31 - 1), st.integers(2, 70)
epsilons = st.sampled_from([1e-12, 1e-8, 1e-5, 1e-3, 1.0])


@given(
    d=st.integers(1, 300),
    value=st.floats(-1e6, 1e6, width=32),
    eps=epsilons,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=seeds,
)
@example(d=3, value=0.1, eps=1e-12, dtype=torch.float32, seed=0)
@example(d=1000, value=1e6 / 3, eps=1e-12, dtype=torch.float64, seed=0)
def test_constant_rows_give_exactly_bias(looked_at, d, value, eps, dtype, seed):
    x = torch.full((2, d), value, dtype=torch.float64).to(dtype)
    weight, bias = draw(d, seed=seed, dtype=dtype), draw(d, seed=seed + 1, dtype=dtype)
    got = ng.layer_norm(x, weight, bias, eps)
    assert torch.equal(got, bias.expand(2, d)), f"off by {float((got - bias).abs().max()):.1e}. One mean only?"
    assert ng.layer_norm(x, eps=0.0).isnan().all(), "rounding taken for a spread"


@BOTH
@given(d=sizes, seed=seeds, exponent=st.integers(-12, 15), eps=st.sampled_from([0.0, 1e-30, 1e-12, 1e-5]))
def test_tiny_spreads_and_huge_scales_in_float32(looked_at, norm, truth, d, seed, exponent, eps):
    x = draw(3, d, seed=seed, scale=10.0**exponent, dtype=torch.float32)
    expected = truth(x.double(), eps=eps)
    bound = rounding(expected, torch.float32)
    # of rows of two or three entries the largest is most of the row, and all roundings are its own
    close(norm(x, eps=eps), expected, bound, f"scale 1e{exponent}, ε = {eps}", "ε outside the root?")


# derivatives


@BOTH
def test_gradcheck_and_gradgradcheck(norm, truth, way):
    inputs = [t.requires_grad_() for t in (draw(2, 4), draw(4, seed=1), draw(4, seed=2))]
    function = lambda *a: norm(*a, EPS)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True)


@BOTH
def test_hessian_is_the_same_by_every_order_of_modes(norm, truth):
    x, weight, direction = draw(5), draw(5, seed=1), draw(5, seed=2)

    def scalar(t):
        return norm(t, weight, None, EPS) @ direction

    # torch's own norm is right in reverse mode
    reference = jacrev(jacrev(lambda t: truth(t, weight, None, EPS) @ direction))(x)
    for name, derived in {
        "forward over reverse": hessian(scalar),
        "reverse over reverse": jacrev(jacrev(scalar)),
        "forward over forward": jacfwd(jacfwd(scalar)),
        "reverse over forward": jacrev(jacfwd(scalar)),
    }.items():
        close(derived(x), reference, 1e-11, f"Hessian, {name}", "A rule that is not differentiable again?")


@BOTH
def test_vmap_over_each_argument(norm, truth):
    x, weight, bias = draw(3, 4, 6), draw(3, 6, seed=1), draw(3, 6, seed=2)
    expected = torch.stack([truth(*a) for a in zip(x, weight, bias, strict=True)])
    close(vmap(norm)(x, weight, bias), expected, 1e-13, "vmap", "Axis from the front?")
    inner = vmap(norm, in_dims=(2, None, None), out_dims=2)(x.transpose(1, 2), weight[0], bias[0])
    close(inner.transpose(1, 2), truth(x, weight[0], bias[0]), 1e-13, "vmap over an inner axis", "Axis from the front?")
    rows, gain = x[0], weight[0]
    got = vmap(torch.func.grad(lambda w, row: norm(row, w).pow(3).sum()), in_dims=(None, 0))(gain, rows)
    close(got, 3 * gain**2 * truth(rows) ** 3, 1e-12, "gradient by the gain, one per example", "Summed?")


@BOTH
@pytest.mark.parametrize("dtypes", norm_checks.MIXED, ids=str)
def test_gradients_have_the_dtypes_of_what_they_are_by(norm, truth, dtypes, way):
    inputs, cotangent = norm_checks.mixed(dtypes), draw(16, 256, seed=7, dtype=dtypes[0])
    there = [i for i, t in enumerate(inputs) if t is not None]
    found = []
    for function, convert in ((norm, torch.Tensor.detach), (truth, torch.Tensor.double)):
        leaves = [None if t is None else convert(t).clone().requires_grad_() for t in inputs]
        found.append(torch.autograd.grad(function(*leaves, 1e-5), [leaves[i] for i in there], convert(cotangent)))
    wide = torch.promote_types(dtypes[0], torch.float32)
    for i, got, right in zip(there, *found, strict=True):
        assert got.dtype == inputs[i].dtype
        coarser = max(inputs[i].dtype, wide, key=lambda t: torch.finfo(t).eps)
        close(got, right, rounding(right, coarser, terms=16 + 256), f"by {('x', 'gain', 'bias')[i]}", "Rounded early?")


@BOTH
def test_constant_rows_have_finite_gradients(norm, truth, way):
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(norm(x, eps=1e-4), x, draw(2, 5))
    (expected,) = torch.autograd.grad(truth(x, eps=1e-4), x, draw(2, 5))
    close(got, expected, 1e-10, "gradient at zero", "A square root differentiated at 0?")


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_under_autocast_the_dtype_is_that_of_x(norm, truth, dtype, way):
    x, weight = draw(4, 8, dtype=dtype), draw(8, seed=1, dtype=torch.float32)
    plain = norm(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(norm(x, weight), plain) and plain.dtype == dtype


# compiled


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("name", NORMS)
def test_compiled_forward_and_backward(name, tmp_path, monkeypatch):
    """Compiled once with dynamic sizes, in one graph: a graph break raises."""
    # what torch 2.13 keeps on disk does not say for which vectors it was compiled, and is taken for any
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    norm = NORMS[name][0]
    fast = torch.compile(norm, fullgraph=True, dynamic=True, backend=BACKEND)
    for shape in ((4, 32), (9, 48)):
        results = []
        for function in (fast, norm):
            inputs = [t.requires_grad_() for t in (draw(*shape), draw(shape[-1], seed=1), draw(shape[-1], seed=2))]
            y = function(*inputs, 1e-5)
            results.append((y.detach(), *torch.autograd.grad(y, inputs, draw(*shape, seed=3))))
        for what, got, expected in zip(("values", "by x", "by weight", "by bias"), *results, strict=True):
            close(got, expected, 1e-12, f"compiled, {what}", "Recompiled to something else?")


@BOTH
def test_compiled_in_bfloat16_is_one_graph(norm, truth):
    torch._dynamo.reset()
    fast = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x, weight = draw(4, 32, dtype=torch.bfloat16), draw(32, seed=1, dtype=torch.bfloat16)
    exact = truth(x.double(), weight.double())
    assert norm_checks.misrounded(fast(x, weight), exact) < 0.02, "rounded on the way?"


# what is wrong with an argument

X, W, INT = torch.zeros(2, 3), torch.ones(3), torch.ones(3, dtype=torch.int64)
TENSOR, DTYPE = "expected a floating-point tensor, got", "expected a floating-point dtype, got torch."
SHAPE, D = "expected shape (3,), the last dimension of x, got", "expected shape (..., d) with d >= 1, got"
# what is given, the error, and the message from its beginning
CASES = {
    "x is a list": (dict(x=[1.0, 2.0]), TypeError, f"x: {TENSOR} list"),
    "x is integer": (dict(x=INT), TypeError, f"x: {DTYPE}int64"),
    "x is a scalar": (dict(x=torch.tensor(1.0)), ValueError, f"x: {D} ()"),
    "x has no features": (dict(x=torch.zeros(4, 0)), ValueError, f"x: {D} (4, 0)"),
    "weight is integer": (dict(weight=INT), TypeError, f"weight: {DTYPE}int64"),
    "weight is too long": (dict(weight=torch.ones(4)), ValueError, f"weight: {SHAPE} (4,)"),
    "weight would broadcast": (dict(weight=torch.ones(1)), ValueError, f"weight: {SHAPE} (1,)"),
    "bias is a list": (dict(bias=[0.0] * 3), TypeError, f"bias: {TENSOR} list"),
    "bias is a scalar": (dict(bias=torch.tensor(0.0)), ValueError, f"bias: {SHAPE} ()"),
    "eps is negative": (dict(eps=-1e-5), ValueError, "eps: expected a number >= 0, got -1e-05"),
    "eps is NaN": (dict(eps=float("nan")), ValueError, "eps: expected a number >= 0, got nan"),
    "eps is None": (dict(eps=None), TypeError, "eps: expected a number, got NoneType"),
    "eps is a tensor": (dict(eps=torch.tensor(1e-5)), TypeError, "eps: expected a number, got Tensor"),
}


@pytest.mark.parametrize("function", [ng.layer_norm, ng.layer_norm_steps, ng.rms_norm], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("given_", "error", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_named(function, given_, error, message, way):
    with pytest.raises(error, match="^" + re.escape(message)):
        function(**{"x": X, **given_})


# modules

PAIRS = pytest.mark.parametrize(
    ("ours", "torchs"), [(ng.LayerNorm, nn.LayerNorm), (ng.RMSNorm, nn.RMSNorm)], ids=["LayerNorm", "RMSNorm"]
)


@PAIRS
@pytest.mark.parametrize("settings", [{}, dict(elementwise_affine=False)], ids=str)
def test_a_module_stands_in_for_torchs(ours, torchs, settings):
    mine, theirs = (kind(8, eps=1e-3, dtype=torch.float64, **settings) for kind in (ours, torchs))
    for i, parameter in enumerate(mine.parameters()):
        parameter.data.copy_(draw(*parameter.shape, seed=1 + i))
    theirs.load_state_dict(mine.state_dict())
    x = draw(2, 3, 8, mean=1.0)
    close(mine(x), theirs(x), 1e-13, "module", "eps not passed on? Weight not passed on?")
    assert mine.float()(x.bfloat16()).dtype == torch.bfloat16, "the output follows x, not the weight"


@PAIRS
def test_sizes_and_what_is_wrong_with_them(ours, torchs):
    for size in (8, [8], (8,), torch.Size([8]), np.int64(8)):
        assert ours(size).normalized_shape == torchs(size).normalized_shape == (8,)
    assert ours(1)(torch.ones(2, 1)).shape == (2, 1)
    for size in (0, -3, (2, 3), (), 8.5, None):
        with pytest.raises((TypeError, ValueError), match=r"^d: expected one positive size, got"):
            ours(size)
    for eps, error in ((-1e-5, ValueError), (float("nan"), ValueError), ("1e-5", TypeError)):
        with pytest.raises(error, match=r"^eps: expected a number"):
            ours(8, eps=eps)
    with pytest.raises(ValueError, match=r"^weight: expected shape \(7,\), the last dimension of x, got \(8,\)"):
        ours(8)(torch.zeros(2, 7))
