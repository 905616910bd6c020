"""Jacobians of the norms against torch's own derivatives, dense decompositions and eighty digits."""

import re

import mpmath
import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, true_layer_norm, true_rms_norm
from normgeom.geometry.jacobian import NormJacobian
from torch.func import jacrev, jvp, vjp

BOTH = pytest.mark.parametrize("centered", [True, False], ids=["layer_norm", "rms_norm"])
GAINS = {
    "none": lambda d: None,
    "signed": lambda d: draw(d, seed=11),
    "lognormal": lambda d: torch.exp(2 * draw(d, seed=12)) * draw(d, seed=13).sign(),
    "one zero": lambda d: draw(d, seed=14) * (torch.arange(d) != d // 2),
    "many zeros": lambda d: draw(d, seed=15) * (torch.arange(d) % 3 != 0),
    "all zero": lambda d: torch.zeros(d, dtype=torch.float64),
    "repeated": lambda d: torch.tensor([2.0, -2.0, 0.5, 0.5, 0.0], dtype=torch.float64).repeat(d // 5 + 1)[:d],
}
INPUTS = {
    "random": lambda d: draw(d, seed=21, mean=0.5),
    "small": lambda d: draw(d, seed=22, scale=1e-4),
    "large": lambda d: draw(d, seed=23, scale=1e4, mean=1e4),
    "huge": lambda d: draw(d, seed=25, scale=1e8, mean=1e8),
    "one massive coordinate": lambda d: draw(d, seed=24) + 1e4 * (torch.arange(d) == d - 1),
    "constant but one": lambda d: 1.0 + (torch.arange(d) == 0).double(),
}


def truth(x, weight, eps, centered):
    """The Jacobian by torch's reverse mode through torch's own norm."""
    norm = true_layer_norm if centered else true_rms_norm
    return jacrev(lambda t: norm(t, weight, None, eps))(x)


def exact_singular_values(x, weight, eps, centered):
    """Singular values, descending, of the matrix built and decomposed in eighty digits."""
    d = len(x)
    xs, gains = ([mpmath.mpf(float(e)) for e in t] for t in (x, torch.ones(d) if weight is None else weight))
    mean = mpmath.fsum(xs) / d if centered else mpmath.mpf(0)
    s = mpmath.sqrt(mpmath.fsum((e - mean) ** 2 for e in xs) / d + mpmath.mpf(eps))
    n = [(e - mean) / s for e in xs]
    start = mpmath.mpf(1) / d if centered else mpmath.mpf(0)
    matrix = mpmath.matrix(d, d)
    for i in range(d):
        for j in range(d):
            matrix[i, j] = gains[i] * ((i == j) - start - n[i] * n[j] / d) / s
    squares = mpmath.eigsy(matrix * matrix.T, eigvals_only=True)
    return sorted((mpmath.sqrt(max(e, 0)) for e in squares), reverse=True)


@BOTH
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("place", INPUTS)
def test_the_matrix_is_torchs_derivative(place, gain, centered):
    for d in (1, 2, 7, 64):
        x, weight = INPUTS[place](d), GAINS[gain](d)
        for eps in (1e-5, 1.0):
            expected = truth(x, weight, eps, centered)
            tol = 1e-12 * max(1.0, float(expected.abs().max()))
            got = NormJacobian(x, weight, eps, centered).dense()
            suspects = "Transposed? Gain on the wrong side? ε missing from n? Π for I? 1/s forgotten?"
            close(got, expected, tol, f"J at d = {d}, ε = {eps}", suspects)


@BOTH
@pytest.mark.parametrize("place", INPUTS)
def test_products_are_those_of_torch_func(place, centered):
    x, weight, v = INPUTS[place](64), draw(64, seed=1), draw(64, seed=2, mean=3.0)
    norm = true_layer_norm if centered else true_rms_norm
    jacobian = NormJacobian(x, weight, 1e-5, centered)
    _, forward = jvp(lambda t: norm(t, weight, None, 1e-5), (x,), (v,))
    _, pull = vjp(lambda t: norm(t, weight, None, 1e-5), x)
    suspects = "Gain on the wrong side? matvec for rmatvec? n instead of nnᵀ/d?"
    for name, got, expected in (("Jv", jacobian.matvec(v), forward), ("Jᵀv", jacobian.rmatvec(v), pull(v)[0])):
        close(got, expected, 1e-12 * max(1.0, float(expected.abs().max())), name, suspects)


@BOTH
def test_leading_dimensions_broadcast(centered):
    x, weight = draw(2, 3, 5, mean=1.0), draw(5, seed=1)
    jacobian = NormJacobian(x, weight, 1e-2, centered)
    matrices = jacobian.dense()
    assert matrices.shape == (2, 3, 5, 5)
    assert jacobian.singular_values().shape == (2, 3, 5)
    for shape in [(5,), (3, 5), (2, 1, 5), (2, 3, 5), (4, 2, 3, 5)]:
        v = draw(*shape, seed=2)
        for product, matrix in ((jacobian.matvec, matrices), (jacobian.rmatvec, matrices.mT)):
            expected = (matrix @ v.unsqueeze(-1)).squeeze(-1)
            close(product(v), expected, 1e-13, f"v of shape {shape}", "One row's statistics for all?")
    one = NormJacobian(x[1, 2], weight, 1e-2, centered)
    assert one.singular_values().shape == (5,)
    close(one.dense(), matrices[1, 2], 1e-14, "one row of many", "Wrong axis?")
    close(one.singular_values(), jacobian.singular_values()[1, 2], 1e-14, "one row of many", "Wrong order of rows?")
    assert NormJacobian(x[:0], weight, 1e-2, centered).singular_values().shape == (0, 3, 5)
    assert NormJacobian(x[:0], weight, 1e-2, centered).dense().shape == (0, 3, 5, 5)


@BOTH
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("place", INPUTS)
def test_singular_values_against_a_decomposition(place, gain, centered):
    for d in (1, 2, 3, 16, 256):
        x, weight = INPUTS[place](d), GAINS[gain](d)
        for eps in (1e-5, 1.0):
            jacobian = NormJacobian(x, weight, eps, centered)
            got, expected = jacobian.singular_values(), torch.linalg.svdvals(jacobian.dense())
            assert got.dtype == torch.float64
            scale = 1.0 if weight is None else float(weight.abs().max())
            rate = float(jacobian.x.var(correction=0) if centered else jacobian.x.square().mean()) + eps
            tol = 1e-13 * scale * rate**-0.5  # the matrix itself is rounded to this, whatever cancels in it
            suspects = "Not descending? Squares? 1/s forgotten? One rank-one term for two? Deficit for its root?"
            close(got, expected, tol, f"singular values at d = {d}, ε = {eps}", suspects)


@BOTH
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("place", INPUTS)
def test_every_singular_value_to_full_relative_accuracy(place, gain, centered):
    """At rms 1e4 and ε = 1e-5 the smallest is 1e-13 of the others, and a decomposition has no digit of it."""
    with mpmath.workdps(80):
        for d, eps in ((1, 1e-5), (4, 1e-5), (9, 1e-2)):
            x, weight = INPUTS[place](d), GAINS[gain](d)
            got = NormJacobian(x, weight, eps, centered).singular_values().tolist()
            expected = exact_singular_values(x, weight, eps, centered)
            zero = mpmath.mpf(10) ** -35 * max(expected[0], mpmath.mpf(10) ** -300)  # √ of the digits that eigsy has
            for i, (g, e) in enumerate(zip(got, expected, strict=True)):
                off = float(abs(g - e) / e) if e > zero else g
                assert off <= 1e-14, (
                    f"σ_{i} of {d} is {g}, off by {off:.1e} of itself, ε = {eps}. 1 − δ passed for the deficit δ? "
                    "Coordinates that cancel at small gains?"
                )


@BOTH
def test_a_row_without_direction(centered):
    """Πx = 0 (or x = 0) leaves the linear map GΠ/√ε (or G/√ε); without ε there is no derivative."""
    d = 6
    weight = draw(d, seed=1)
    x = torch.full((d,), 0.1 if centered else 0.0, dtype=torch.float64)
    start = torch.eye(d, dtype=torch.float64) - (1 / d if centered else 0)
    for eps in (1.0, 1e-1, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):  # for some, ε(1/√ε)² rounds to more than 1
        expected = weight[:, None] * start / eps**0.5
        jacobian = NormJacobian(x, weight, eps, centered)
        tol = 1e-13 / eps**0.5
        close(jacobian.dense(), expected, tol, "J without a direction", "NaN where ε > 0?")
        close(jacobian.singular_values(), torch.linalg.svdvals(expected), tol, "its singular values", "0/0?")
    rows = NormJacobian(torch.stack([x, draw(d)]), weight, 0.0, centered)
    for what in (rows.dense(), rows.singular_values(), rows.matvec(draw(d)), rows.rmatvec(draw(d))):
        assert what[0].isnan().all(), "ε = 0 and no direction: NaN, as the norm itself"
        assert what[1].isfinite().all(), "one bad row spoils the others"
    assert float(rows.singular_values()[1, -1]) == 0, "σ_min at ε = 0"


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes_are_computed_wide_and_rounded_once(dtype, centered):
    x, weight, v = draw(4, 64, mean=0.5, dtype=dtype), draw(64, seed=1, dtype=dtype), draw(64, seed=2, dtype=dtype)
    got, wide = (NormJacobian(*(t.to(k) for t in (x, weight)), 1e-5, centered) for k in (dtype, torch.float64))
    for name in ("matvec", "rmatvec"):
        result = getattr(got, name)(v)
        assert result.dtype == dtype, f"{name}: {dtype} in, {result.dtype} out"
        expected = getattr(wide, name)(v.double())
        allowed = 0.51 * torch.finfo(dtype).eps * expected.abs() + 2e-6 * expected.abs().max()
        worst = float(((result.double() - expected).abs() / allowed).max())
        assert worst <= 1, f"{name} in {dtype}: {worst:.1f} roundings, one allowed. Statistics in the input's dtype?"
    assert got.dense().dtype == dtype
    assert got.singular_values().dtype == torch.float64
    close(got.singular_values(), wide.singular_values(), 1e-12, "singular values", "From float32 statistics?")


@BOTH
def test_products_can_be_differentiated(centered):
    inputs = [t.requires_grad_() for t in (draw(2, 4, mean=1.0), draw(4, seed=1), draw(2, 4, seed=2))]

    def both(x, weight, v):
        jacobian = NormJacobian(x, weight, 1e-2, centered)
        return jacobian.matvec(v), jacobian.rmatvec(v)

    assert torch.autograd.gradcheck(both, inputs, check_forward_ad=True, check_batched_grad=True)


class OfGemma(torch.nn.Module):
    """Its gain is 1 + weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(0.3 * draw(6, seed=1).float())

    def forward(self, x):
        return ng.rms_norm(x, self.weight, eps=0.1, unit_offset=True)


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm(6, eps=0.1), OfGemma()], ids=["layer", "gemma"])
def test_the_jacobian_at_a_site_of_a_model(norm):
    (site,) = ng.find_norms(torch.nn.Sequential(torch.nn.Linear(6, 6), norm), torch.randn(2, 3, 6))
    x = draw(2, 6, mean=0.5)
    got = NormJacobian.of(site, x).dense()
    expected = torch.stack([jacrev(norm.double())(row) for row in x])
    close(got, expected, 1e-5, "J at a site", "1 + w forgotten? The default ε? The other kind?")
    with pytest.raises(ValueError, match=r"^weight: expected shape \(5,\), the last dimension of x, got \(6,\)"):
        NormJacobian.of(site, x[:, :5])


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X.long(),), TypeError, "x: expected a floating-point dtype, got torch.int64"),
        ((X, torch.ones(4)), ValueError, "weight: expected shape (3,), the last dimension of x, got (4,)"),
        ((torch.tensor(1.0),), ValueError, "x: expected shape (..., d) with d >= 1, got ()"),
        ((X, None, -1e-5), ValueError, "eps: expected a number >= 0, got -1e-05"),
    ],
)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        NormJacobian(*arguments)


@pytest.mark.parametrize("product", ["matvec", "rmatvec"])
@pytest.mark.parametrize("shape", [(4,), (2, 1), (5, 3), ()], ids=str)
def test_a_bad_vector_is_named(product, shape):
    product = getattr(NormJacobian(X), product)
    message = f"v: expected a shape that broadcasts with (2, 3), that of x, got {shape}"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        product(torch.ones(shape))
    with pytest.raises(TypeError, match=r"^v: expected a floating-point dtype"):
        product(torch.ones(shape).long())


@BOTH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_nan_for_singular_values(bad, centered):
    rows = torch.stack([draw(3), torch.tensor([0.0, bad, 1.0]).double()])
    values = NormJacobian(rows, draw(3, seed=1), centered=centered).singular_values()
    assert values[0].isfinite().all(), "one bad row spoils the others"
    assert values[1].isnan().all(), f"{bad} must not become a number"


@BOTH
def test_gains_far_below_the_largest_count_as_zero(centered):
    """What the solver takes for zero must be zero for the coordinates too."""
    x, weight = draw(8, mean=0.5), draw(8, seed=1)
    tiny = weight.clone()
    tiny[[2, 5, 6]] = 1e-100 * weight[[2, 5, 6]]
    weight[[2, 5, 6]] = 0.0
    got, expected = (NormJacobian(x, w, 1e-3, centered).singular_values() for w in (tiny, weight))
    decomposed = torch.linalg.svdvals(NormJacobian(x, tiny, 1e-3, centered).dense())
    close(expected, decomposed, 1e-13, "gains of 0", "What G erases forgotten?")
    close(got, expected, 1e-15, "gains of 1e-100", "Zero for the solver, but not for the coordinates of x?")


@BOTH
@pytest.mark.parametrize("factor", [2.0**-580, 2.0**580])
def test_singular_values_scale_with_the_gain_far_beyond_squares(factor, centered):
    x, weight = draw(8, mean=0.5), draw(8, seed=1)
    got = NormJacobian(x, factor * weight, 1e-3, centered).singular_values() / factor
    expected = NormJacobian(x, weight, 1e-3, centered).singular_values()
    close(got, expected, 0.0, f"gains times {factor:.0e}", "Their squares out of range? Not scaled back?")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
@BOTH
def test_on_a_gpu(centered):
    x, weight, v = draw(3, 64, mean=1.0), draw(64, seed=1), draw(3, 64, seed=2)
    here, there = (NormJacobian(x.to(k), weight.to(k), 1e-5, centered) for k in ("cpu", "cuda"))
    for name, arguments in (("matvec", (v,)), ("rmatvec", (v,)), ("dense", ()), ("singular_values", ())):
        got = getattr(there, name)(*(a.cuda() for a in arguments))
        assert got.is_cuda, f"{name} left the GPU"
        close(got.cpu(), getattr(here, name)(*arguments), 1e-12, f"{name} on the GPU", "Another definition?")
