"""Selectable keys: corners of hulls in the plane, found by angles, and keys that a norm makes of one length."""

import math

import pytest
import torch
from norm_checks import draw
from normgeom_lab.irreversibility import HEADS, selectable, selectable_shares


def circle(angles):
    return torch.stack([torch.cos(angles), torch.sin(angles)], -1)


def in_the_plane(points):
    """Selectable by hand: some open half-plane's border through a point leaves all others on one side."""
    found = []
    for j, point in enumerate(points):
        others = torch.cat([points[:j], points[j + 1 :]]) - point
        angles = torch.atan2(others[:, 1], others[:, 0]).sort().values
        gaps = torch.diff(angles, append=angles[:1] + 2 * math.pi)
        found.append(bool(gaps.max() > math.pi))
    return torch.tensor(found)


@pytest.mark.parametrize("seed", range(3))
def test_keys_of_the_plane_are_the_corners_of_their_hull(seed):
    points = draw(40, 2, seed=seed)
    expected = in_the_plane(points)
    assert 3 <= expected.sum() < 20, "the case says nothing"
    found = selectable(points, rounds=3000)  # a corner that hardly stands out takes long
    assert torch.equal(found, expected), "A key in the hull called selectable? Own score not left out?"
    assert not (selectable(points, rounds=20) & ~expected).any(), "a key in the hull called selectable early on"


def test_a_key_is_compared_with_the_others_and_not_with_itself():
    assert selectable(torch.tensor([[1.0, 2.0]])).tolist() == [True], "one key has no rival"
    assert selectable(draw(1, 3).expand(2, 3)).tolist() == [False, False], "of two equal keys neither is strictly above"


def test_a_mean_of_others_is_never_selectable():
    points = circle(torch.arange(6) * math.pi / 3)
    inside = (0.2 * points[:5].sum(0))[None]
    assert selectable(torch.cat([inside, points])).tolist() == [False] + 6 * [True]


def test_keys_that_do_not_select_themselves_are_found_by_the_walk():
    """A short key between long ones: the key itself as a query prefers another."""
    points = torch.tensor([[0.0, -0.1], [3.0, 1.0], [-3.0, 1.0], [0.0, 5.0]])
    assert (points[0] @ points.T).argmax() == 0, "found by the first query after all"
    points += torch.tensor([0.0, 2.0])
    assert (points[0] @ points.T).argmax() != 0
    assert selectable(points).tolist() == [True] * 4, "Only the key itself tried? No walk?"
    assert not selectable(points, rounds=1)[0], "rounds not counted?"


def test_affinely_independent_keys_of_any_length_are_selectable():
    points = draw(7, 1).exp() * draw(7, 6, seed=1)
    assert selectable(points).all()


def test_keys_are_not_changed_and_any_format_will_do():
    points = draw(9, 4, dtype=torch.float32)
    before = points.clone()
    assert selectable(points).dtype == torch.bool
    assert torch.equal(points, before), "in-place arithmetic?"


def test_shares_are_those_of_the_same_draws():
    """With the generator in step, the three kinds of keys by torch's own norms."""
    generator = torch.Generator().manual_seed(3)
    shares = selectable_shares((2, 3), 2, torch.Generator().manual_seed(3), count=6, d=8)
    assert tuple(shares) == HEADS
    for width in (2, 3):
        expected = torch.zeros(3, dtype=torch.float64)
        for _ in range(2):
            sizes = torch.randn(6, 1, generator=generator, dtype=torch.float64).exp()
            x = sizes * torch.randn(6, 8, generator=generator, dtype=torch.float64)
            w = torch.randn(8, width, generator=generator, dtype=torch.float64) / 8**0.5
            y = torch.nn.functional.layer_norm(x, (8,), eps=0.0) @ w
            kinds = x @ w, y, y / y.square().mean(-1, keepdim=True).sqrt()
            expected += torch.stack([selectable(k).double().mean() for k in kinds]) / 2
        got = torch.tensor([shares[name][width] for name in HEADS], dtype=torch.float64)
        assert torch.allclose(got, expected), f"width {width}: {got}, expected {expected}. Sum for mean? Kinds swapped?"


def test_a_norm_after_the_matrix_makes_all_keys_selectable():
    shares = selectable_shares((3,), 1, torch.Generator().manual_seed(0), count=30, d=20)
    assert shares["norm, W, norm"][3] == 1
    assert shares["no norm"][3] < 0.9
