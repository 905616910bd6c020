"""What sublayers read, compute and add, against unrolled sums, derivatives and cases made by hand."""

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom.norms.functions import RMSNorm
from normgeom_lab.common.growth import seeded_stack, shaken, unroll
from normgeom_lab.common.stacks import PLACEMENTS, Stack
from normgeom_lab.placement import composition, jacobian_matrix, path_factors
from torch import nn

EACH = pytest.mark.parametrize("placement", PLACEMENTS)
WIDTH, BLOCKS = 16, 3


def small(placement):
    stack = seeded_stack(0, WIDTH, BLOCKS, placement).double()
    return shaken(stack, torch.Generator().manual_seed(1))


def bound(x):
    """Of a stack's streams: a sublayer is some fifty roundings of sums of 64 terms."""
    return 4 * 50 * BLOCKS * rounding(x, torch.float64, 64)


@EACH
def test_steps_are_what_the_modules_do(placement):
    stack, x = small(placement), draw(2, 5, WIDTH)
    steps, streams = unroll(stack, x), stack.streams(x)
    assert [step.sublayer for step in steps] == stack.sublayers, "attention and MLP in order of use"
    for i, step in enumerate(steps):
        part, before, after = step.sublayer, streams[i].detach(), streams[i + 1].detach()
        tol = bound(after)
        close(step.stream, before, tol, f"stream before sublayer {i}", "The stream behind it?")
        close(step.read, part.before(before), tol, "read", "The norm before the branch left out?")
        close(step.computed, part.branch(part.before(before)), tol, "computed", "The norm behind the branch applied?")
        close(step.added, part.after(step.computed), tol, "added", "The norm behind the branch left out?")
        close(part.sum(step.sum), after, tol, "sum", "α left out? The norm on the sum applied already?")
        assert not step.sum.requires_grad, "gradients kept"


def test_unrolled_streams_end_where_the_stack_does():
    stack, x = small("pre"), draw(2, 5, WIDTH)
    end = stack.streams(x)[-1].detach()
    close(x + sum(step.added for step in unroll(stack, x)), end, bound(end), "x₀ and all that is added", "One missing?")


def test_unroll_refuses():
    with pytest.raises(TypeError, match="stack: expected a Stack, got Linear"):
        unroll(nn.Linear(2, 2), draw(3, 2))
    with pytest.raises(ValueError, match=r"x: expected shape \(\.\.\., length, 16\), got \(16,\)"):
        unroll(small("pre"), draw(16))


def test_the_jacobian_of_a_linear_map_is_its_matrix():
    matrix, x = draw(5, 6), draw(2, 3)
    got = jacobian_matrix(lambda t: (matrix @ t.flatten()).reshape(5, 1), x)
    assert torch.equal(got, matrix), "Transposed? Rows of inputs?"


def test_the_jacobian_is_the_limit_of_differences():
    x, step = draw(4), 1e-6
    slopes = [(torch.sin(x + step * e) - torch.sin(x - step * e)) / (2 * step) for e in torch.eye(4).double()]
    close(jacobian_matrix(torch.sin, x), torch.stack(slopes, 1), 1e-8, "derivative", "Transposed? Not at x?")


@EACH
def test_summands_add_up_to_the_centred_stream(placement):
    """Summands carried along by hand; shares are of their mean squared lengths."""
    stack, x = seeded_stack(0, WIDTH, BLOCKS, placement).double(), draw(2, 5, WIDTH)
    streams, shares = [t.detach() for t in stack.streams(x)], composition(stack, x)
    parts = [x]
    for i, (step, share) in enumerate(zip(unroll(stack, x), shares, strict=True)):
        divisor = 1.0
        if PLACEMENTS[placement].sum:
            divisor = (step.sum.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        parts = [part * step.sublayer.alpha / divisor for part in parts] + [step.added / divisor]
        centred = [part - part.mean(-1, keepdim=True) for part in parts]
        whole = streams[i + 1] - streams[i + 1].mean(-1, keepdim=True)
        close(sum(centred), whole, bound(whole), f"sum of the summands after {i + 1}", "Test's own slip")
        squares = torch.stack([part.square().sum(-1).mean() for part in centred])
        expected = squares / squares.sum()
        close(share, expected, bound(expected), f"shares after {i + 1}", "Means left in? α or 1/s left out?")


def test_pre_norm_keeps_the_ratio_of_old_summands():
    shares = composition(seeded_stack(0, WIDTH, BLOCKS, "pre").double(), draw(2, 5, WIDTH))
    ratios = torch.stack([share[1] / share[0] for share in shares])
    close(ratios, ratios[:1].expand_as(ratios), bound(ratios), "b₁'s share over x₀'s", "Divided where no norm stands?")


def test_composition_refuses_gains_on_the_sum():
    with pytest.raises(ValueError, match="stack: expected LayerNorms of gain 1 and bias 0 on the sum"):
        composition(small("post"), draw(2, WIDTH))
    with pytest.raises(ValueError, match="stack: expected LayerNorms"):
        composition(Stack(WIDTH, 4, 1, "post", norm="rms").double(), draw(2, WIDTH))
    assert isinstance(Stack(WIDTH, 4, 1, "post", norm="rms").sublayers[0].sum, RMSNorm)
    composition(small("pre"), draw(2, WIDTH))  # gains before a branch do not matter


@pytest.mark.parametrize("placement", ["post", "deepnorm"])
def test_path_factors_are_the_gain_of_a_direction_that_no_norm_removes(placement):
    """Against automatic differentiation of the norms alone, along a direction orthogonal to all that they remove."""
    stack, x = seeded_stack(3, WIDTH, BLOCKS, placement).double(), draw(5, WIDTH)
    factor, law = path_factors(stack, x)
    sums = [step.sum for step in unroll(stack, x)]
    for t in range(5):
        removed = torch.stack([torch.ones(WIDTH, dtype=torch.float64), *(total[t] for total in sums)])
        v = torch.linalg.svd(removed).Vh[-1]
        moved = v
        for sublayer, total in zip(stack.sublayers, sums, strict=True):
            moved = torch.func.jvp(sublayer.sum, (total[t],), (sublayer.alpha * moved,))[1].detach()
        close(moved, factor[t] * v, 1e-10, f"{placement}, token {t}", "α left out? ε? The variance with d−1?")
    pairs = zip(stack.sublayers, stack.streams(x)[:-1], strict=True)
    spread = [sublayer.branch(stream).var(-1, correction=0) for sublayer, stream in pairs]
    alpha = stack.sublayers[0].alpha
    expected = torch.stack([1 + v / alpha**2 for v in spread]).prod(0).rsqrt().detach()
    close(law, expected, 1e-12, "the law", "α² left out? A root?")


def test_path_factors_need_norms_on_the_sums():
    with pytest.raises(ValueError, match="stack: expected a norm on every sum"):
        path_factors(seeded_stack(0, WIDTH, 1, "pre").double(), draw(5, WIDTH))
