"""How axes lie to coordinates: against dense linear algebra, loops over axes, and cases worked out by hand."""

import math

import normgeom as ng
import pytest
import torch
from norm_checks import draw
from normgeom_lab.hyperellipsoid import between_gains, coordinate_shares, off_rank, shapes

F64 = torch.float64
GAINS = {
    "near one": 1 + 0.1 * draw(40),
    "both signs": torch.exp(0.5 * draw(40, seed=1)) * draw(40, seed=2).sign(),
    "one zero": torch.cat([torch.zeros(1), 1 + 0.1 * draw(30)]),
}


def dense(gain):
    """Semi-axes over √d, descending, and axes of GΠG, from torch.linalg."""
    values, vectors = torch.linalg.eigh(torch.diag(gain**2) - torch.outer(gain, gain) / len(gain))
    return values[1:].flip(0).sqrt(), vectors[:, 1:].flip(1)


def test_shares_by_hand():
    axes = torch.tensor([[0.6, 1.0, 3.0], [0.0, 1.0, 0.0], [-0.8, 1.0, -4.0]], dtype=F64)
    third = 1 / 3
    for k, expected in {1: [0.64, third, 0.64], 2: [1.0, 2 * third, 1.0], 3: [1.0, 1.0, 1.0]}.items():
        found = coordinate_shares(axes, k).tolist()
        assert found == pytest.approx(expected, rel=1e-14), f"k = {k}: not squared, not the largest, or not of columns"


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
@pytest.mark.parametrize("shift", (0, 1, 2))
def test_off_rank_against_a_loop(gain, shift):
    lengths, _ = dense(gain)
    size = sorted(gain.abs().tolist(), reverse=True)
    ratios = []
    for i, length in enumerate(lengths.tolist()):
        if i + shift < len(size) and size[i + shift] > 0:
            ratios.append(abs(length / size[i + shift] - 1))
    # the quantile as it is defined, between the two ranks around it
    ratios.sort()
    place = 0.95 * (len(ratios) - 1)
    low = math.floor(place)
    expected = ratios[low] + (place - low) * (ratios[min(low + 1, len(ratios) - 1)] - ratios[low])
    assert off_rank(ng.Ellipsoid(gain), shift) == pytest.approx(expected, rel=1e-9), "another rank, √d, or quantile"


def test_off_rank_of_equal_gains_is_nothing():
    body = ng.Ellipsoid(torch.full((7,), -3.0, dtype=F64))
    assert off_rank(body) < 1e-14 and off_rank(body, 1) < 1e-14, "interlacing leaves no room"


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
def test_between_gains_against_a_loop(gain):
    body = ng.Ellipsoid(gain)
    size = gain.abs()
    order = size.argsort(descending=True).tolist()
    hits = 0
    _, axes = dense(gain)
    for i in range(body.dim):
        heavy = set(axes[:, i].abs().argsort(descending=True)[:2].tolist())
        hits += heavy == {order[i], order[i + 1]}
    assert between_gains(body, body.axes()) == pytest.approx(hits / body.dim), "another rank, or order of the axes"
    assert between_gains(body, body.axes().flip(1)) < 0.2, "the order of the axes does not count"


def test_two_coordinates_are_always_between():
    body = ng.Ellipsoid(torch.tensor([0.5, -2.0], dtype=F64))
    assert between_gains(body, body.axes()) == 1


def test_shapes_are_those_of_dense_algebra():
    table = shapes(GAINS)
    assert list(table.index) == list(GAINS)
    for name, gain in GAINS.items():
        row, size = table.loc[name], gain.abs()
        lengths, axes = dense(gain)
        squares = axes.square().sort(0, descending=True).values
        normal = 1 / gain if (gain != 0).all() else torch.eye(len(gain), dtype=F64)[0]
        cosine = float(normal.sum() / normal.norm() / len(gain) ** 0.5)
        expected = dict(
            smallest=float(size.min()),
            median=float(size.median()),
            largest=float(size.max()),
            elongation=float(lengths[0] / lengths.median()),
            angle=math.degrees(math.acos(cosine)),
            one=float(squares[0].median()),
            two=float((squares[0] + squares[1]).median()),
        )
        for column, value in expected.items():
            assert row[column] == pytest.approx(value, rel=1e-8), f"{name}: {column}"
        body = ng.Ellipsoid(gain)
        assert [row.off_rank, row.off_next, row.off_second] == [off_rank(body, s) for s in range(3)]
        assert row.enclosed == between_gains(body, body.axes())
    assert table.off_rank.max() < table.off_second.max(), "interlaced semi-axes are nearer to their own gains"


def test_the_share_of_equally_spaced_squares():
    """prop-pairs: 4/π² for each of two in the middle."""
    axes = ng.Ellipsoid(torch.sqrt(1 + 1e-7 * torch.arange(600, dtype=F64))).axes()[:, 290:310]
    assert float(coordinate_shares(axes, 2).median()) == pytest.approx(8 / math.pi**2, abs=1e-3)
