"""Gradients by a gain, derivatives of derivatives: against formulas, and backward passes that are wrong by design."""

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom_lab.precision import derivative_error, gain_gradient


def times(x, weight):
    return x.tanh() * weight


def test_gain_gradient_is_the_sum_over_rows():
    for dtype in (torch.float64, torch.float32):
        x, g = draw(50, 8, dtype=dtype), draw(50, 8, seed=1, dtype=dtype)
        expected = (g.double() * x.double().tanh()).sum(0)
        got = gain_gradient(times, x, g, threads=1)
        assert got.dtype == dtype, "the gain has the rows' dtype"
        bound = 4 * rounding(expected, dtype, terms=50)
        close(got, expected, bound, "gain gradient", "A mean instead of a sum? The gradient by x? g forgotten?")


def test_gain_gradient_runs_with_the_threads_asked_for():
    seen, before = [], torch.get_num_threads()

    def watched(x, weight):
        seen.append(torch.get_num_threads())
        return x * weight

    def fails(x, weight):
        raise RuntimeError("no")

    x = draw(4, 3)
    for threads in (1, 2, 3):
        gain_gradient(watched, x, x, threads)
        assert torch.get_num_threads() == before, "the number of threads must be what it was"
    assert seen == [1, 2, 3]
    assert torch.get_num_threads() == before, "also after an error"


class Doubled(torch.autograd.Function):
    """The identity with twice its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class FirstOnly(torch.autograd.Function):
    """The square, with a gradient that forgets that it depends on x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g


@pytest.mark.parametrize("order", [1, 2, 3])
def test_right_derivatives_agree_with_quotients(order):
    x, direction = draw(2, 5), draw(2, 5, seed=1)
    # of a quotient with two values of relative accuracy 1e-16 and steps of 1e-5, and of its square: some 1e-9
    assert derivative_error(torch.tanh, order, x, direction) < 1e-7
    assert derivative_error(lambda z: z, order, x, direction) < 1e-7


def test_a_wrong_derivative_is_off_by_what_it_is_wrong_by():
    x, direction = draw(2, 5), draw(2, 5, seed=1)
    assert derivative_error(Doubled.apply, 1, x, direction) == pytest.approx(1, abs=1e-6), "relative to the quotient"


def test_each_order_is_looked_at_alone():
    x, direction = draw(2, 5), draw(2, 5, seed=1)
    assert derivative_error(FirstOnly.apply, 1, x, direction) < 1e-7, "the first is right"
    assert derivative_error(FirstOnly.apply, 2, x, direction) > 0.01, "the second is not: was the graph kept?"
