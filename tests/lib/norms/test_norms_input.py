"""Bad input to the norms: the error names the argument, what came and what was expected."""

import re

import normgeom as ng
import pytest
import torch

X = torch.zeros(2, 3)
W = torch.ones(3)
INT = torch.ones(3, dtype=torch.int64)

# what is given, the error, and the message from its beginning
CASES = {
    "x is a list": (dict(x=[1.0, 2.0]), TypeError, "x: expected a floating-point tensor, got list"),
    "x is None": (dict(x=None), TypeError, "x: expected a floating-point tensor, got NoneType"),
    "x is integer": (dict(x=INT), TypeError, "x: expected a floating-point dtype, got torch.int64"),
    "x is bool": (dict(x=INT.bool()), TypeError, "x: expected a floating-point dtype, got torch.bool"),
    "x is complex": (
        dict(x=torch.zeros(3, dtype=torch.complex64)),
        TypeError,
        "x: expected a floating-point dtype, got torch.complex64",
    ),
    "x is a scalar": (dict(x=torch.tensor(1.0)), ValueError, "x: expected shape (..., d) with d >= 1, got ()"),
    "x has no features": (
        dict(x=torch.zeros(4, 0)),
        ValueError,
        "x: expected shape (..., d) with d >= 1, got (4, 0)",
    ),
    "weight is a number": (dict(weight=1.0), TypeError, "weight: expected a floating-point tensor, got float"),
    "weight is integer": (dict(weight=INT), TypeError, "weight: expected a floating-point dtype, got torch.int64"),
    "weight is too long": (
        dict(weight=torch.ones(4)),
        ValueError,
        "weight: expected shape (3,), the last dimension of x, got (4,)",
    ),
    "weight would broadcast": (
        dict(weight=torch.ones(1)),
        ValueError,
        "weight: expected shape (3,), the last dimension of x, got (1,)",
    ),
    "weight is a matrix": (
        dict(weight=torch.ones(2, 3)),
        ValueError,
        "weight: expected shape (3,), the last dimension of x, got (2, 3)",
    ),
    "bias is a list": (dict(bias=[0.0] * 3), TypeError, "bias: expected a floating-point tensor, got list"),
    "bias is integer": (dict(bias=INT), TypeError, "bias: expected a floating-point dtype, got torch.int64"),
    "bias is a scalar": (
        dict(bias=torch.tensor(0.0)),
        ValueError,
        "bias: expected shape (3,), the last dimension of x, got ()",
    ),
    "eps is negative": (dict(eps=-1e-5), ValueError, "eps: expected a number >= 0, got -1e-05"),
    "eps is NaN": (dict(eps=float("nan")), ValueError, "eps: expected a number >= 0, got nan"),
    "eps is None": (dict(eps=None), TypeError, "eps: expected a number, got NoneType"),
    "eps is text": (dict(eps="1e-5"), TypeError, "eps: expected a number, got str"),
    "eps is a tensor": (dict(eps=torch.tensor(1e-5)), TypeError, "eps: expected a number, got Tensor"),
}


@pytest.mark.parametrize("function", [ng.layer_norm, ng.layer_norm_steps, ng.rms_norm], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("given", "error", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_named(function, given, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        function(**{"x": X, **given})


def test_unit_offset_needs_a_weight():
    with pytest.raises(ValueError, match=r"unit_offset=True adds 1 to the weight, but weight is None"):
        ng.rms_norm(X, unit_offset=True)


def test_integer_epsilon_is_a_number():
    assert torch.equal(ng.layer_norm(X, W, eps=1), ng.layer_norm(X, W, eps=1.0))
