"""dyt and derf, entry by entry against Python's own tanh and erf, and modules that are taken for no norm."""

import math
import re

import normgeom as ng
import pytest
import torch
from norm_checks import close, draw, rounding
from torch import nn
from torch.func import jacfwd, jacrev

# the function under test, Python's of its name, and what that one's derivative is
TANH = (ng.dyt, math.tanh, lambda u: 1 - math.tanh(u) ** 2)
ERF = (ng.derf, math.erf, lambda u: 2 / math.sqrt(math.pi) * math.exp(-u * u))
BOTH = pytest.mark.parametrize(("function", "scalar", "slope"), [TANH, ERF], ids=["dyt", "derf"])
MODULES = pytest.mark.parametrize("module", [ng.DyT, ng.Derf], ids=["DyT", "Derf"])

# torch.compile's own imports warn
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def drawn(function, rows=6, d=8, dtype=torch.float64):
    """Arguments by name: entries from where the curve is straight to where it is flat, nothing at its first value."""
    given = dict(
        x=draw(rows, d, scale=2.0, dtype=dtype),
        alpha=draw(seed=1, mean=0.7, scale=0.1, dtype=dtype),
        shift=draw(seed=2, mean=0.4, scale=0.1, dtype=dtype),
        weight=draw(d, seed=3, mean=1.5, dtype=dtype),
        bias=draw(d, seed=4, dtype=dtype),
    )
    return given if function is ng.derf else {name: t for name, t in given.items() if name != "shift"}


def by_python(scalar, x, alpha, weight=None, bias=None, shift=0.0):
    """The formula in double precision, one entry at a time."""
    d = x.shape[-1]
    gain = [1.0] * d if weight is None else weight.tolist()
    beta = [0.0] * d if bias is None else bias.tolist()
    flat = x.double().flatten().tolist()
    flat = [gain[i % d] * scalar(float(alpha) * v + float(shift)) + beta[i % d] for i, v in enumerate(flat)]
    return torch.tensor(flat, dtype=torch.float64).view_as(x)


# values


@BOTH
def test_values_are_pythons(function, scalar, slope):
    given = drawn(function)
    expected = by_python(scalar, **given)
    got = function(**given)
    assert got.dtype == torch.float64
    close(got, expected, rounding(expected, torch.float64, terms=0), "values", "Computed in float32?")


@BOTH
def test_a_number_is_a_tensor_of_one_entry(function, scalar, slope):
    given = drawn(function)
    once = function(**given)
    singles = [name for name in ("alpha", "shift") if name in given]
    for of in (float, lambda t: t.reshape(1), lambda t: t.reshape(1, 1)):
        assert torch.equal(function(**given | {name: of(given[name]) for name in singles}), once)


@BOTH
@pytest.mark.parametrize("of_rest", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_result_has_the_dtype_of_x_and_is_rounded_once(function, scalar, slope, dtype, of_rest):
    """It lies between the roundings of the double value moved down and up by what float32 may be wrong."""

    def between(got):
        return bool(((got >= (true - wide).to(dtype)) & (got <= (true + wide).to(dtype))).all())

    given = drawn(function, rows=64, d=64)
    given = {name: t.to(dtype if name == "x" else of_rest) for name, t in given.items()}
    true = by_python(scalar, **given)
    wide = rounding(true, torch.float32, terms=0)
    got = function(**given)
    assert got.dtype == dtype
    assert between(got), "arithmetic in the input's dtype, or rounded on the way?"
    assert torch.equal(function(given["x"][0], **{k: t for k, t in given.items() if k != "x"}), got[0]), "one vector"


@BOTH
def test_far_out_it_is_flat_and_finite(function, scalar, slope):
    x = torch.tensor([[-torch.inf, -3e38, 0.0, 3e38, torch.inf]])
    assert function(x, 2.0).tolist() == [[-1.0, -1.0, 0.0, 1.0, 1.0]]
    assert function(torch.full((1, 2), torch.nan), 2.0).isnan().all(), "a NaN is not hidden"


# derivatives


@BOTH
def test_derivatives_of_both_orders(function, scalar, slope):
    given = drawn(function, rows=2, d=3)
    inputs = [t.requires_grad_() for t in given.values()]
    by_place = lambda *a: function(**dict(zip(given, a, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(by_place, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(by_place, inputs, check_fwd_over_rev=True)


@BOTH
@pytest.mark.parametrize("derive", [jacrev, jacfwd], ids=["jacrev", "jacfwd"])
def test_the_jacobian_is_diagonal(function, scalar, slope, derive):
    """γ α f'(αx + s) on the diagonal and nothing, not even rounding, beside it: entries do not see each other."""
    given = drawn(function, rows=1)
    x, rest = given.pop("x")[0], given
    got = derive(lambda t: function(t, **rest))(x)
    at = [slope(float(rest["alpha"]) * v + float(rest.get("shift", 0.0))) for v in x.tolist()]
    diagonal = rest["weight"] * rest["alpha"] * torch.tensor(at, dtype=torch.float64)
    # 1 - tanh² loses digits where tanh is near 1, so that the bound is one of the largest entry's size
    close(got.diagonal(), diagonal, 1e-14, "the diagonal", "α or γ forgotten? The slope at x for that at αx + s?")
    assert torch.equal(got, torch.diag(got.diagonal())), "one entry's output changes with another's input"


# what is wrong with an argument

X, W, INT = torch.zeros(2, 3), torch.ones(3), torch.ones(3, dtype=torch.int64)
CASES = {
    "x is a list": (dict(x=[1.0]), TypeError, "x: expected a floating-point tensor, got list"),
    "weight would broadcast": (dict(weight=W[:1]), ValueError, "weight: expected shape (3,)"),
    "bias is integer": (dict(bias=INT), TypeError, "bias: expected a floating-point dtype, got torch.int64"),
    "alpha is None": (dict(alpha=None), TypeError, "alpha: expected a floating-point tensor, got NoneType"),
    "alpha is integer": (dict(alpha=INT[:1]), TypeError, "alpha: expected a floating-point dtype, got torch.int64"),
    "alpha for each entry": (dict(alpha=W), ValueError, "alpha: expected one entry, got shape (3,)"),
}
SHIFTS = {"shift for each entry": (dict(shift=W), ValueError, "shift: expected one entry, got shape (3,)")}


@pytest.mark.parametrize(
    ("function", "given", "error", "message"),
    [
        pytest.param(function, *case, id=f"{function.__name__}-{name}")
        for function, cases in ((ng.dyt, CASES), (ng.derf, CASES | SHIFTS))
        for name, case in cases.items()
    ],
)
def test_bad_input_is_named(function, given, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        function(**{"x": X, "alpha": 0.5, **given})


@MODULES
@pytest.mark.parametrize("d", [0, -3, 2.0, None])
def test_a_wrong_size_of_a_module_is_named(module, d):
    with pytest.raises(ValueError, match=rf"^d: expected one positive size, got {d}"):
        module(d)


# modules

FIRST = {"alpha": (1, 0.5), "weight": (8, 1.0), "bias": (8, 0.0), "shift": (1, 0.0)}


@pytest.mark.parametrize(("module", "scalar"), [(ng.DyT, math.tanh), (ng.Derf, math.erf)], ids=["DyT", "Derf"])
def test_names_and_first_values_are_the_authors_and_all_are_used(module, scalar):
    """As their published weights are named: so that those can be loaded."""
    made, x = module(8), draw(6, 8)
    assert list(made.state_dict()) == [name for name in FIRST if name != "shift" or module is ng.Derf]
    for name, value in made.state_dict().items():
        size, first = FIRST[name]
        assert torch.equal(value, torch.full((size,), first)), name
    made = made.double()
    with torch.no_grad():
        for i, parameter in enumerate(made.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=i, mean=0.8, scale=0.2))
    expected = by_python(scalar, x, **made.state_dict())
    got = made(x)
    close(got, expected, rounding(expected, torch.float64, terms=0), "module", "A parameter that is not used?")
    got.sum().backward()
    assert all(parameter.grad.abs().min() > 0 for parameter in made.parameters())


# no norm


@MODULES
@pytest.mark.parametrize("alpha", [0.01, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_it_is_never_taken_for_a_norm(module, alpha, dtype, recwarn):
    """Whether its curve is straight or a step where it is probed; a norm next to it is found."""
    model = nn.Sequential(nn.Linear(6, 8), module(8), nn.Linear(8, 6), module(6), nn.LayerNorm(6)).to(dtype)
    with torch.no_grad():
        for i in (1, 3):
            model[i].alpha.fill_(alpha)
            model[i].weight.copy_(draw(len(model[i].weight), seed=i, mean=1.0, scale=0.3))
            model[i].bias.copy_(draw(len(model[i].bias), seed=i + 9, scale=0.3))
    x = draw(2, 5, 6, dtype=dtype)
    assert [site.name for site in ng.find_norms(model, x)] == ["4"]
    assert not len(recwarn), "not even as a norm that is not measured"
