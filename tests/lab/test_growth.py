"""Stacks from their seeds, what their sublayers read, compute and add, and growth position by position."""

import math

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.growth import (
    drawn_stacks,
    even_stack,
    growth,
    seeded_stack,
    shaken,
    unroll,
)
from normgeom_lab.common.stacks import PLACEMENTS, Stack

WIDTH = 16
EACH = pytest.mark.parametrize("placement", PLACEMENTS)


def bound(x):
    """Through a few sublayers of some fifty roundings each."""
    return 4 * 300 * rounding(x, torch.float64, 64)


def weights(stack):
    return torch.cat([p.detach().flatten() for p in stack.parameters()])


def test_the_seed_decides_weights_and_what_is_drawn_next():
    first, after = weights(seeded_stack(3, 16, 2, "pre")), torch.randn(4)
    torch.randn(99)
    again, after_again = weights(seeded_stack(3, 16, 2, "pre")), torch.randn(4)
    assert torch.equal(first, again) and torch.equal(after, after_again), "The seed set behind the weights?"
    assert not torch.equal(first, weights(seeded_stack(4, 16, 2, "pre"))), "The seed left out?"
    torch.manual_seed(3)
    assert torch.equal(first, weights(Stack(16, 4, 2, "pre"))), "Not the stack's own initialisation?"


@EACH
def test_even_attention_is_the_mean_of_what_came_before(placement):
    stack, x = even_stack(0, 12, 2, placement).double(), draw(2, 5, 12)
    branch = stack.blocks[1].attention.branch
    drawn = seeded_stack(0, 12, 2, placement, heads=1, hidden=12).blocks[1].attention.branch.in_proj.weight[24:]
    mean = (x @ drawn.double().T).cumsum(1) / torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]
    expected = (mean @ branch.out_proj.weight.T).detach()
    close(branch(x), expected, bound(expected), "attention", "Values set to 0 too? Queries or keys left?")
    mlp = stack.blocks[0].mlp.branch
    assert mlp[0].weight.shape == (12, 12) and isinstance(mlp[1], torch.nn.ReLU), "An MLP 4d wide?"


def test_drawn_stacks_differ_in_shape_weights_gains_and_eps():
    found = list(drawn_stacks(Draws(1), "pre", "post"))
    assert [name for name, _ in found] == ["pre"] * 3 + ["post"] * 3
    assert [(s.d, len(s.blocks)) for _, s in found] == [(8, 3), (16, 2), (24, 1)] * 2
    norms = [s.blocks[0].mlp.before if name == "pre" else s.blocks[0].mlp.sum for name, s in found]
    assert len({norm.eps for norm in norms}) == 6, "one ε for several"
    assert all((norm.weight != 1).all() and norm.bias.any() for norm in norms)
    spread = float(torch.cat([norm.weight.detach() - 1 for norm in norms]).std())
    assert spread == pytest.approx(0.3, rel=0.2), f"moved by {spread}, expected 0.3"
    for _, stack in drawn_stacks(Draws(1), "sandwich", biases=False):
        for name, p in stack.named_parameters():
            assert name.endswith("bias") != bool(p.any()), name


@EACH
def test_steps_are_what_the_modules_do(placement):
    stack = shaken(seeded_stack(0, WIDTH, 3, placement).double(), torch.Generator().manual_seed(1))
    x = draw(2, 5, WIDTH)
    steps, streams = unroll(stack, x), [t.detach() for t in stack.streams(x)]
    assert [step.sublayer for step in steps] == stack.sublayers, "attention and MLP in order of use"
    for step, before, after in zip(steps, streams, streams[1:], strict=False):
        part, tol = step.sublayer, bound(after)
        close(step.stream, before, tol, "stream", "The stream behind it?")
        close(step.read, part.before(before), tol, "read", "The norm before the branch left out?")
        close(step.computed, part.branch(part.before(before)), tol, "computed", "The norm behind the branch applied?")
        close(step.added, part.after(step.computed), tol, "added", "The norm behind the branch left out?")
        close(part.sum(step.sum), after, tol, "sum", "α left out? The norm on the sum applied already?")


def test_growth_position_by_position():
    stacks, x = [seeded_stack(0, WIDTH, 2, "pre"), seeded_stack(1, WIDTH, 2, "post")], 2 * draw(2, 3, WIDTH)
    stacks = [stack.double() for stack in stacks]
    got = growth(stacks, x)
    expected = {name: torch.zeros(2, 5 if name in ("square", "cosine") else 4).double() for name in got._fields}
    for row, stack in enumerate(stacks):
        streams = [t.detach().reshape(6, WIDTH) for t in stack.streams(x)]
        for i, now in enumerate(streams):
            for k in range(6):
                a, b = streams[0][k], now[k]
                expected["square"][row, i] += float(b @ b) / WIDTH / 6
                expected["cosine"][row, i] += float(a @ b / (a @ a).sqrt() / (b @ b).sqrt()) / 6
                if i:
                    old = streams[i - 1][k]
                    expected["update"][row, i - 1] += float(((b - old) @ (b - old) / (old @ old)).sqrt()) / 6
                    angle = math.acos(float(old @ b / ((old @ old) * (b @ b)).sqrt()))
                    expected["turn"][row, i - 1] += math.degrees(angle) / 6
    for name, values in expected.items():
        suspects = "A length for a mean square? The stream behind for the one before? Radians? The mean's own ratio?"
        close(getattr(got, name), values, bound(values), name, suspects)
    close(got.added, (got.square[:, 4] - got.square[:, 2]) / 2, 1e-14, "added", "Of the first half? Not per sublayer?")
