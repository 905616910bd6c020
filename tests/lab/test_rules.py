"""Muon against torch's own, against singular values, and under rotations."""

import math

import pytest
import torch
from norm_checks import close
from normgeom_lab.training import COEFFICIENTS, Muon, newton_schulz


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (1, 5)])
def test_each_singular_value_goes_through_the_polynomial(shape):
    matrix = draw(*shape)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    a, b, c = COEFFICIENTS
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    close(newton_schulz(matrix), u @ torch.diag(s) @ v, 1e-11, "orthogonalised", "Another factor? Not transposed back?")
    assert newton_schulz(torch.zeros(shape)).eq(0).all() and newton_schulz(matrix.float()).dtype == torch.float32


def test_rotations_go_through():
    matrix, (q, _), (p, _) = draw(5, 8), torch.linalg.qr(draw(5, 5, seed=4)), torch.linalg.qr(draw(8, 8, seed=5))
    close(newton_schulz(q @ matrix @ p), q @ newton_schulz(matrix) @ p, 1e-11, "turned", "Entry by entry?")


def test_no_matrix():
    with pytest.raises(ValueError, match=r"^matrix: expected two axes, got a tensor of shape \(3,\)$"):
        newton_schulz(torch.ones(3))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(4, 6), (9, 2)])
def test_its_steps_are_those_of_torchs(shape):
    """Torch orthogonalises in bfloat16: to some hundredths of a step."""
    mine, theirs = (torch.nn.Parameter(draw(*shape).float()) for _ in range(2))
    rules = Muon([mine], 0.1, 0.9, decay=0.5), torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.5)
    for i in range(4):
        mine.grad = draw(*shape, seed=10 + i).float()
        theirs.grad = mine.grad.clone()
        for rule in rules:
            rule.step()
    off = float((mine - theirs).detach().abs().max())
    assert off < 4 * 0.1 * 0.05 * math.sqrt(max(1, shape[0] / shape[1])), f"off by {off:.3f}: momentum? decay? scale?"


def test_vectors_step_along_their_momentum():
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    rule, average = Muon([p], 0.1, 0.5), torch.zeros(3, dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for i in range(3):
        p.grad = draw(3, seed=i)
        rule.step()
        average = 0.5 * average + 0.5 * p.grad
        expected = expected - 0.1 * (0.5 * p.grad + 0.5 * average)
    close(p.detach(), expected, 1e-15, "vector", "Orthogonalised? Without momentum?")


def test_a_parameter_without_a_gradient_stays():
    p = torch.nn.Parameter(draw(2, 2))
    Muon([p], 0.1, decay=0.5).step()
    assert torch.equal(p.detach(), draw(2, 2))


@pytest.mark.parametrize("given", [dict(rate=-1.0), dict(rate=float("nan")), dict(rate=0.1, momentum=1.5)])
def test_settings_that_cannot_be(given):
    with pytest.raises(ValueError, match=r"^rate, momentum: expected at least 0 and from 0 to 1, got "):
        Muon([torch.nn.Parameter(torch.ones(1))], **given)
