"""Stacks from their seeds."""

import pytest
import torch
from norm_checks import close, draw, rounding
from normgeom.checks import Draws
from normgeom_lab.common.growth import drawn_stacks, even_stack, scaled, seeded_stack, shaken
from normgeom_lab.common.stacks import PLACEMENTS, Stack


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


def test_options_are_passed_on():
    stack = seeded_stack(0, 16, 2, "pre", heads=2, norm="none", hidden=8, eps=0.1)
    attention = stack.blocks[0].attention
    assert attention.branch.heads == 2 and isinstance(attention.before, torch.nn.Identity)
    assert stack.blocks[0].mlp.branch[0].weight.shape == (8, 16)
    with pytest.raises(ValueError, match="placement: expected one of"):
        seeded_stack(0, 16, 2, "pere")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_even_attention_is_the_mean_of_what_came_before(placement):
    stack, x = even_stack(0, 12, 2, placement).double(), draw(2, 5, 12)
    branch = stack.blocks[1].attention.branch
    drawn = seeded_stack(0, 12, 2, placement, heads=1, hidden=12).blocks[1].attention.branch.in_proj.weight[24:]
    values = x @ drawn.double().T
    mean = values.cumsum(1) / torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]
    expected = (mean @ branch.out_proj.weight.T).detach()
    tol = 4 * 50 * rounding(expected, torch.float64)
    close(branch(x), expected, tol, "attention", "Values set to 0 too? Queries or keys left? Of one block only?")


def test_the_setting_of_xiong():
    stack = even_stack(0, 12, 2, "pre", final_norm=False)
    mlp = stack.blocks[0].mlp.branch
    assert mlp[0].weight.shape == (12, 12), "An MLP 4d wide?"
    assert isinstance(mlp[1], torch.nn.ReLU) and isinstance(stack.final, torch.nn.Identity)
    assert stack.blocks[0].attention.branch.heads == 1
    assert isinstance(even_stack(0, 12, 2, "pre").final, torch.nn.Module) and even_stack(0, 12, 2, "pre").final.eps


def test_shaking_moves_gains_and_biases_and_no_matrix():
    stack, before = seeded_stack(0, 16, 2, "sandwich"), seeded_stack(0, 16, 2, "sandwich")
    assert shaken(stack, torch.Generator().manual_seed(0)) is stack
    moved = []
    for p, q in zip(stack.parameters(), before.parameters(), strict=True):
        assert (p.dim() == 1) == bool((p != q).any()), "a matrix moved, or a vector did not"
        if p.dim() == 1:
            moved.append((p - q).detach())
    spread = float(torch.cat(moved).std())
    assert spread == pytest.approx(0.3, rel=0.1), f"moved by {spread}, expected 0.3"


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_scaling_multiplies_every_matrix_of_the_branches_and_nothing_else(factor):
    stack = shaken(seeded_stack(0, 16, 2, "sandwich"), torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in stack.named_parameters()}
    assert scaled(stack, factor) is stack
    for name, p in stack.named_parameters():
        expected = factor if name.endswith("weight") and ".branch." in name else 1.0
        assert torch.equal(p, expected * before[name]), f"{name}: expected {expected} times what it was"
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"factor: expected a positive number, got {wrong}"):
            scaled(stack, wrong)


def test_drawn_stacks_differ_in_shape_weights_gains_and_eps():
    found = list(drawn_stacks(Draws(1), "pre", "post"))
    assert [name for name, _ in found] == ["pre"] * 3 + ["post"] * 3
    assert [(s.d, len(s.blocks)) for _, s in found] == [(8, 3), (16, 2), (24, 1)] * 2
    norms = [s.blocks[0].mlp.before if name == "pre" else s.blocks[0].mlp.sum for name, s in found]
    assert len({norm.eps for norm in norms}) == 6, "one ε for several"
    assert all((norm.weight != 1).all() and norm.bias.any() for norm in norms)
    again = [s for _, s in drawn_stacks(Draws(1), "pre", "post")]
    assert all(torch.equal(weights(s), weights(t)) for (_, s), t in zip(found, again, strict=True))
    other = next(s for _, s in drawn_stacks(Draws(2), "pre"))
    assert not torch.equal(weights(other), weights(found[0][1])), "the seed does not count"
    for _, stack in drawn_stacks(Draws(1), "sandwich", biases=False):
        for name, p in stack.named_parameters():
            assert name.endswith("bias") != bool(p.any()), name
