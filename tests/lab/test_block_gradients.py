"""Gradients at initialisation against losses differentiated text by text, and powers known beforehand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw, rounding
from normgeom_lab.common.growth import even_stack, seeded_stack, shaken
from normgeom_lab.common.stacks import PLACEMENTS
from normgeom_lab.placement import (
    block_gradients,
    depth_sweep,
    last_gradient,
    mean_block_gradients,
    power_law,
    width_sweep,
)

WIDTH = 12
TOL = 4 * 200 * rounding(torch.ones(64), torch.float64)  # of gradients below 1, through some hundred roundings


def small(placement, final_norm=None):
    stack = seeded_stack(0, WIDTH, 2, placement, final_norm=final_norm).double()
    return shaken(stack, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_parts_of_the_last_gradient(placement):
    """g by the softmax, a and the norm's input by hand, the matrix by autograd of a loss written out."""
    stack, x, head = small(placement), draw(4, WIDTH), draw(7, WIDTH, seed=1)
    matrix, hidden, after, normed = last_gradient(stack, x, head, 3)
    mlp, stream = stack.blocks[-1].mlp, stack.streams(x)[-2]
    inner = mlp.branch[1](mlp.branch[0](mlp.before(stream)))
    total = mlp.alpha * stream + mlp.after(mlp.branch[2](inner))
    norm = mlp.sum if PLACEMENTS[placement].sum else stack.final
    logits = norm(total)[-1] @ head.T
    (expected,) = torch.autograd.grad(logits.logsumexp(0) - logits[3], mlp.branch[2].weight)
    p = logits.softmax(0).detach() - F.one_hot(torch.tensor(3), 7)
    close(matrix, expected, TOL, "gradient of W₂", "Another position? Another matrix?")
    close(hidden, inner[-1].detach(), TOL, "a", "The branch's input for W₂'s? Another position?")
    close(normed, total[-1].detach(), TOL, "what is normed", "The norm's output for its input?")
    close(after, p @ head, TOL, "g", "By the input of the norm? The other norm?")


def test_last_gradient_refuses():
    head = draw(7, WIDTH)
    with pytest.raises(ValueError, match="stack: expected a norm on the last sum or behind the last block"):
        last_gradient(small("pre", final_norm=False), draw(4, WIDTH), head, 3)
    for target in (7, -1):
        with pytest.raises(ValueError, match=f"target: expected a row of the head, 0 to 6, got {target}"):
            last_gradient(small("pre"), draw(4, WIDTH), head, target)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_block_gradients_text_by_text(placement):
    stack, x, head, targets = small(placement), draw(3, 4, WIDTH), draw(7, WIDTH, seed=1), torch.tensor([2, 0, 6])
    lengths, sizes = block_gradients(stack, x, head, targets)
    matrices = [block.mlp.branch[2].weight for block in stack.blocks]
    expected = torch.zeros(2, dtype=torch.float64)
    for text, target in zip(x, targets, strict=True):
        loss = F.cross_entropy(stack(text)[-1] @ head.T, target)
        expected += torch.stack([g.square().sum().sqrt() for g in torch.autograd.grad(loss, matrices)]) / 3
    close(lengths, expected, TOL, "lengths", "Length of the mean for the mean of lengths? Loss averaged over texts?")
    behind = torch.stack([t.detach().square().mean().sqrt() for t in stack.streams(x)[2::2]])
    close(sizes, behind, TOL, "sizes", "Before the block? A mean square for its root?")
    assert not any(block.mlp.branch[2]._forward_hooks or block._forward_hooks for block in stack.blocks), "hooks left"
    assert all(m.grad is None for m in matrices), "gradients left in the stack"


def test_block_gradients_refuse():
    with pytest.raises(ValueError, match=r"targets: expected one for each text of x.* got \(2,\) for \(3, 4, 12\)"):
        block_gradients(small("pre"), draw(3, 4, WIDTH), draw(7, WIDTH), torch.tensor([1, 2]))


def test_means_are_over_seeds():
    def make(seed):
        return even_stack(seed, WIDTH, 2, "pre")

    singles = [mean_block_gradients(make, [seed]) for seed in (5, 6)]
    both = mean_block_gradients(make, (seed for seed in (5, 6)))
    for got, first, second in zip(both, *singles, strict=True):
        assert torch.allclose(got, (first + second) / 2, rtol=1e-5), "A sum? One seed only?"
        assert not torch.allclose(first, second, rtol=1e-2), "the seed does not matter"
    doubled = mean_block_gradients(make, [5], tau=1e-4)[0] / mean_block_gradients(make, [5], tau=0.5e-4)[0]
    assert torch.allclose(doubled, torch.full_like(doubled, 2.0), rtol=1e-3), "a small head's gradient goes like τ"
    with pytest.raises(ValueError, match="seeds: expected at least one, got none"):
        mean_block_gradients(make, [])


def test_sweeps_are_the_last_blocks_of_their_stacks():
    depths = depth_sweep("pre", (1, 3), WIDTH, range(10, 12), tau=0.1, final_norm=False)
    assert depths.shape == (2, 2), "(depths, seeds)"
    expected = mean_block_gradients(lambda k: even_stack(k, WIDTH, 3, "pre", False), [11 + 3], tau=0.1)[0][-1]
    assert torch.equal(depths[1, 1], expected), "Another block? final_norm or τ left out? Another seed?"
    widths = width_sweep("post", (8, 16), 2, (10, 11), lambda w: 1 / w)
    expected = mean_block_gradients(lambda k: even_stack(k, 16, 2, "post"), [10 + 16], tau=1 / 16)[0][-1]
    assert widths.shape == (2, 2) and torch.equal(widths[1, 0], expected), "τ of another width?"
    for refused in (lambda: depth_sweep("pre", (), 8, [1]), lambda: width_sweep("pre", (8,), 1, [], lambda w: 1.0)):
        with pytest.raises(ValueError, match=r"(depths|seeds): expected at least one, got none"):
            refused()


def test_an_exact_power_is_found():
    x = (2, 4, 8, 24)
    sizes = torch.tensor([[3 * v**-0.5, 3 * v**-0.5] for v in x], dtype=torch.float64)
    slope, band = power_law(x, sizes)
    assert slope == pytest.approx(-0.5, abs=1e-12), "Logarithms left out? Of one side only?"
    assert band < 1e-12


def test_the_band_is_numpys():
    x = (2, 4, 8, 24)
    sizes = torch.tensor(x)[:, None] * draw(4, 5).exp()
    (slope, _), covariance = np.polyfit(
        np.log(np.repeat(x, 5)), np.log(sizes.numpy().ravel()), 1, cov=True
    )  # an independent least squares
    got = power_law(x, sizes)
    assert got == pytest.approx((slope, 2 * math.sqrt(covariance[0, 0])), rel=1e-10), "One standard error? n for n − 2?"


@pytest.mark.parametrize(
    ("values", "sizes", "message"),
    [
        ((2, 4), torch.ones(3, 2), r"expected \(values, seeds\) with two values or more, got \(3, 2\) for 2 values"),
        ((2, 2), torch.ones(2, 2), "two values or more"),
        ((2, 4), torch.ones(2, 1), "two values or more"),
        ((2, 4), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "expected positive numbers"),
        ((0, 4), torch.ones(2, 2), "expected positive numbers"),
    ],
)
def test_powers_of_what_has_none(values, sizes, message):
    with pytest.raises(ValueError, match=message):
        power_law(values, sizes)
