"""The uniform vector, projections and angles against dense matrices and fifty digits."""

import re

import mpmath
import normgeom as ng
import pytest
import torch
from norm_checks import close, draw


def exact_angle(x, direction):
    with mpmath.workdps(50):
        x, u = ([mpmath.mpf(float(e)) for e in t] for t in (x, direction))
        dot, xx, uu = mpmath.fdot(x, u), mpmath.fdot(x, x), mpmath.fdot(u, u)
        return float(mpmath.degrees(mpmath.acos(dot / mpmath.sqrt(xx * uu))))


def test_angles_known_by_heart():
    x = torch.tensor([[1.0, 0], [1, 1], [0, 1], [-1, 1], [-1, 0], [-1, -1]], dtype=torch.float64)
    got = ng.angle(x, torch.tensor([1.0, 0], dtype=torch.float64))
    expected = torch.tensor([0.0, 45, 90, 135, 180, 135], dtype=torch.float64)
    close(got, expected, 1e-13, "angles in the plane", "Radians? Folded into 0 to 90?")


@pytest.mark.parametrize("turn", [1.0, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_angles_against_fifty_digits(turn, sign):
    """An arc cosine gives 0 below 1e-6 degrees."""
    direction, x = draw(9, seed=1), draw(9, seed=1) + turn * draw(9, seed=2)
    expected = exact_angle(sign * x, direction)
    got = float(ng.angle(sign * x, direction))
    distance = 180 - expected if sign < 0 else expected
    assert abs(got - expected) <= max(1e-7 * distance, 4e-14), f"{got} for {expected}. Arc cosine?"


def test_lengths_play_no_part():
    x, direction = draw(5, 8), draw(8, seed=1)
    for a, b in ((1e-12, 1.0), (1.0, 1e-12), (1e12, 1e-12), (3.0, 1e12)):
        close(ng.angle(a * x, b * direction), ng.angle(x, direction), 1e-12, "angle of scaled vectors", "Length?")
        close(ng.project_out(x, b * direction), ng.project_out(x, direction), 1e-13, "projection", "uuᵀ for uuᵀ/‖u‖²?")


def test_the_zero_vector_has_no_angle():
    x = torch.stack([torch.zeros(4), torch.ones(4)])
    got = ng.angle(x, ng.uniform_vector(4))
    assert got[0].isnan(), "0 or 90 degrees for the zero vector"
    assert got[1] == 0
    assert ng.angle(x, torch.zeros(4)).isnan().all(), "no angle to a zero direction"


def test_project_out_against_the_matrix():
    x, u = draw(2, 3, 8), draw(8, seed=1)
    projector = torch.eye(8, dtype=torch.float64) - torch.outer(u, u) / (u @ u)
    close(ng.project_out(x, u), x @ projector, 1e-13, "projection", "Direction not normalised?")
    close(ng.project_out(ng.project_out(x, u), u), ng.project_out(x, u), 1e-14, "projected twice", "Not a projection?")


def test_nothing_is_left_along_the_direction_in_float32():
    x = draw(20, 768, mean=1e5, dtype=torch.float32)
    one = ng.uniform_vector(768)
    left = ng.project_out(x, one).double() @ one.double() / 768**0.5
    assert float(left.abs().max()) < 1e-4, "rounding of a large component left behind: projected once only?"
    close(ng.angle(ng.project_out(x, one), one), torch.full((20,), 90.0), 1e-3, "angle afterwards", "Once only?")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes(dtype):
    x, u = draw(3, 8, dtype=dtype), draw(8, seed=1, dtype=dtype)
    assert ng.project_out(x, u).dtype == dtype
    got = ng.angle(x, u)
    assert got.dtype == torch.promote_types(dtype, torch.float32), "angles are at least float32"
    close(got, ng.angle(x.double(), u.double()), 1e-4, f"angle in {dtype}", "Computed in the input's dtype?")


def test_leading_dimensions():
    x, u = draw(2, 3, 4, 8), draw(8, seed=1)
    assert ng.angle(x, u).shape == (2, 3, 4)
    assert ng.angle(x[0, 0, 0], u).shape == ()
    assert ng.angle(x[:0], u).shape == (0, 3, 4)
    close(ng.angle(x, u)[1, 2, 3], ng.angle(x[1, 2, 3], u), 1e-13, "one row of many", "Wrong axis?")


@pytest.mark.parametrize("function", [ng.angle, ng.project_out], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("x", "direction", "error", "message"),
    [
        (torch.ones(3).long(), torch.ones(3), TypeError, "x: expected a floating-point dtype, got torch.int64"),
        (torch.ones(3), torch.ones(3).int(), TypeError, "direction: expected a floating-point dtype, got torch.int32"),
        (torch.ones(2, 3), torch.ones(4), ValueError, "direction: expected shape (3,), the last dimension of x, got"),
        (torch.ones(2, 3), torch.ones(2, 3), ValueError, "direction: expected shape (3,)"),
        ([1.0, 2.0, 3.0], torch.ones(3), TypeError, "x: expected a floating-point"),
        (torch.tensor(1.0), torch.ones(3), ValueError, "direction: expected shape ()"),
    ],
    ids=["integer x", "integer direction", "another size", "a matrix", "a list", "a scalar"],
)
def test_bad_input_is_named(function, x, direction, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        function(x, direction)


def test_the_uniform_vector():
    assert torch.equal(ng.uniform_vector(16, dtype=torch.float64), torch.ones(16, dtype=torch.float64))
    assert ng.uniform_vector(3, device="meta").is_meta
    with pytest.raises(ValueError, match=r"^d: expected at least 1, got 0"):
        ng.uniform_vector(0)
