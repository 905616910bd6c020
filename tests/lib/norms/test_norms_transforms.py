"""Derivatives of the norms: gradcheck, torch.func, forward mode in forward mode, torch.compile."""

import os
import shutil

import mpmath
import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, true_layer_norm, true_rms_norm
from torch.func import hessian, jacfwd, jacrev, jvp, vjp, vmap

BOTH = pytest.mark.parametrize(
    ("norm", "truth"), [(ng.layer_norm, true_layer_norm), (ng.rms_norm, true_rms_norm)], ids=["layer_norm", "rms_norm"]
)
EPS = 1e-2
# inductor compiles C++; a machine without a compiler still shows that one graph is captured
BACKEND = "inductor" if any(shutil.which(os.environ.get("CXX", c)) for c in ("g++", "clang++")) else "aot_eager"

# torch.compile's own imports warn
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def dense_jacobian(x, weight, eps, centered):
    """diag(γ)(Π − nnᵀ/d)/s for LayerNorm, diag(γ)(I − nnᵀ/d)/r for RMSNorm, as matrices."""
    d = x.numel()
    start = torch.eye(d, dtype=x.dtype) - (1 / d if centered else 0)
    centre = start @ x
    s = (centre @ centre / d + eps).sqrt()
    n = centre / s
    return weight[:, None] * (start - torch.outer(n, n) / d) / s


def mixed_second_derivative(x, weight, u, v, centered):
    """∂²/∂a∂b of the norm at x + a·u + b·v, by differences in 60 digits: good to 1e-20."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -15
        xs, us, vs, ws = ([mpmath.mpf(float(e)) for e in t] for t in (x, u, v, weight))
        eps = mpmath.mpf(EPS)

        def f(a, b):
            p = [xi + a * ui + b * vi for xi, ui, vi in zip(xs, us, vs, strict=True)]
            mean = mpmath.fsum(p) / len(p) if centered else mpmath.mpf(0)
            s = mpmath.sqrt(mpmath.fsum((e - mean) ** 2 for e in p) / len(p) + eps)
            return [w * (e - mean) / s for w, e in zip(ws, p, strict=True)]

        corners = [(f(h, h), 1), (f(h, -h), -1), (f(-h, h), -1), (f(-h, -h), 1)]
        sums = [mpmath.fsum(sign * c[i] for c, sign in corners) / (4 * h * h) for i in range(len(xs))]
        return torch.tensor([float(s) for s in sums], dtype=torch.float64)


@BOTH
def test_gradcheck(norm, truth):
    inputs = [draw(2, 4), draw(4, seed=1), draw(4, seed=2)]
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *a: norm(*a, EPS), inputs, check_forward_ad=True, check_batched_grad=True)


@BOTH
def test_gradgradcheck(norm, truth):
    inputs = [t.requires_grad_() for t in (draw(2, 4), draw(4, seed=1), draw(4, seed=2))]
    assert torch.autograd.gradgradcheck(lambda *a: norm(*a, EPS), inputs, check_fwd_over_rev=True)


@BOTH
@pytest.mark.parametrize("derive", [jacrev, jacfwd], ids=["jacrev", "jacfwd"])
def test_jacobian_against_the_matrix_formula(norm, truth, derive):
    x, weight = draw(6), draw(6, seed=1)
    got = derive(lambda t: norm(t, weight, None, EPS))(x)
    close(got, dense_jacobian(x, weight, EPS, norm is ng.layer_norm), 1e-13, "Jacobian", "Detached statistics?")


@BOTH
def test_jvp_and_vjp_against_the_matrix_formula(norm, truth):
    x, weight, v = draw(6), draw(6, seed=1), draw(6, seed=2)
    matrix = dense_jacobian(x, weight, EPS, norm is ng.layer_norm)
    _, forward = jvp(lambda t: norm(t, weight, None, EPS), (x,), (v,))
    _, pull = vjp(lambda t: norm(t, weight, None, EPS), x)
    close(forward, matrix @ v, 1e-13, "jvp", "Detached statistics?")
    close(pull(v)[0], matrix.T @ v, 1e-13, "vjp", "Transposed? Gain on the wrong side?")


@BOTH
def test_jvp_in_jvp(norm, truth):
    """Not compared with torch's own layer_norm: its nested forward mode is wrong in torch 2.13."""
    x, weight, u, v = draw(5), draw(5, seed=1), draw(5, seed=2), draw(5, seed=3)

    def along_u(t):
        return jvp(lambda s: norm(s, weight, None, EPS), (t,), (u,))[1]

    got = jvp(along_u, (x,), (v,))[1]
    expected = mixed_second_derivative(x, weight, u, v, norm is ng.layer_norm)
    close(got, expected, 1e-11, "jvp of jvp", "A custom jvp that does not nest?")


@BOTH
def test_hessian_is_the_same_by_every_order_of_modes(norm, truth):
    x, weight, direction = draw(5), draw(5, seed=1), draw(5, seed=2)

    def scalar(t):
        return norm(t, weight, None, EPS) @ direction

    reference = torch.zeros(5, 5, dtype=torch.float64)
    for i, a in enumerate(torch.eye(5)):
        for j, b in enumerate(torch.eye(5)):
            reference[i, j] = mixed_second_derivative(x, weight, a, b, norm is ng.layer_norm) @ direction
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
    got = vmap(norm)(x, weight, bias)
    close(
        got, torch.stack([truth(*a) for a in zip(x, weight, bias, strict=True)]), 1e-13, "vmap", "Axis from the front?"
    )
    inner = vmap(norm, in_dims=(2, None, None), out_dims=2)(x.transpose(1, 2), weight[0], bias[0])
    close(inner.transpose(1, 2), truth(x, weight[0], bias[0]), 1e-13, "vmap over an inner axis", "Axis from the front?")


@BOTH
def test_per_example_gradients(norm, truth):
    x, weight = draw(4, 6), draw(6, seed=1)
    got = vmap(torch.func.grad(lambda w, row: norm(row, w).pow(3).sum()), in_dims=(None, 0))(weight, x)
    expected = 3 * weight**2 * truth(x) ** 3
    close(got, expected, 1e-12, "gradient by the gain, one per example", "Summed over the batch?")


@BOTH
def test_gradients_of_a_float16_input_are_finite_and_right(norm, truth):
    x16 = draw(8, 64, dtype=torch.float16).requires_grad_()
    x64 = x16.detach().double().requires_grad_()
    (got,) = torch.autograd.grad(norm(x16, eps=1e-5), x16, draw(8, 64, seed=1, dtype=torch.float16))
    (expected,) = torch.autograd.grad(truth(x64, eps=1e-5), x64, draw(8, 64, seed=1, dtype=torch.float16).double())
    assert got.dtype == torch.float16
    close(got, expected, 4e-3, "float16 gradient", "Backward pass in float16?")


@BOTH
def test_constant_rows_have_finite_gradients(norm, truth):
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(norm(x, eps=1e-4), x, draw(2, 5))
    (expected,) = torch.autograd.grad(truth(x, eps=1e-4), x, draw(2, 5))
    close(got, expected, 1e-10, "gradient at zero", "A square root differentiated at 0?")


@pytest.fixture(scope="module", params=["layer_norm", "rms_norm"])
def compiled(request, tmp_path_factory):
    """Compiled once with dynamic sizes, in one graph: a graph break raises."""
    norm = getattr(ng, request.param)
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        # what torch 2.13 keeps on disk does not say for which vectors it was compiled, and is taken for any
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield torch.compile(norm, fullgraph=True, dynamic=True, backend=BACKEND), norm


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("shape", [(4, 32), (9, 48)], ids=str)
def test_compiled_forward_and_backward(compiled, shape):
    fast, norm = compiled
    results = []
    for function in (fast, norm):
        inputs = [draw(*shape), draw(shape[-1], seed=1), draw(shape[-1], seed=2)]
        inputs = [t.requires_grad_() for t in inputs]
        y = function(*inputs, 1e-5)
        results.append((y.detach(), *torch.autograd.grad(y, inputs, draw(*shape, seed=3))))
    for name, got, expected in zip(("values", "by x", "by weight", "by bias"), *results, strict=True):
        close(got, expected, 1e-12, f"compiled, {name}", "Recompiled to something else?")


@BOTH
def test_compiled_in_bfloat16_is_one_graph(norm, truth):
    torch._dynamo.reset()
    fast = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x = draw(4, 32, dtype=torch.bfloat16)
    assert torch.equal(fast(x, draw(32, seed=1, dtype=torch.bfloat16)), norm(x, draw(32, seed=1, dtype=torch.bfloat16)))
