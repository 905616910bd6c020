"""The secular solver against dense float64 matrices and against mpmath."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from normgeom.geometry import secular

F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def pick(values, d, seed=0):
    index = torch.randint(len(values), (d,), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(values, dtype=F64)[index]


GAINS = {
    "near one": lambda d: 1 + 0.1 * draw(d),
    "signed": lambda d: draw(d),
    "lognormal": lambda d: draw(d).mul(2).exp(),
    "all equal": lambda d: torch.full((d,), -0.7, dtype=F64),
    "two equal sizes": lambda d: pick([-2.0, -1.0, 1.0, 2.0], d),
    "many equal (bfloat16)": lambda d: (1 + 0.1 * draw(d)).bfloat16().double(),
    "an ulp apart": lambda d: 1 + torch.arange(d, dtype=F64) * 2.0**-52,
    "nearly equal": lambda d: 1 + 1e-12 * draw(d),
    "one zero": lambda d: draw(d).index_fill(0, torch.tensor(0), 0.0),
    "several zeros": lambda d: pick([-2.0, 0.0, 0.0, 1.0, 2.0], d),
    "all zero": lambda d: torch.zeros(d, dtype=F64),
    "sixteen orders": lambda d: 10.0 ** (16 * torch.rand(d, generator=torch.Generator().manual_seed(0), dtype=F64) - 8),
    "huge": lambda d: 1e150 * draw(d),
    "tiny": lambda d: 1e-150 * draw(d),
}
DIRECTIONS = {
    "uniform": lambda d: None,
    "random": lambda d: draw(d, seed=1),
    "with zeros": lambda d: draw(d, seed=1).index_fill(0, torch.arange(1, d, 2), 0.0),
    "one coordinate": lambda d: torch.eye(d, dtype=F64)[d // 2],
}
DEFICITS = (0.0, 1e-12, 0.3, 1.0)
SIZES = (1, 2, 3, 17, 128)


def dense(gain, u=None, deficit=0.0):
    u = torch.ones_like(gain) if u is None else u
    u = u / u.norm()
    return torch.diag(gain**2) - (1 - deficit) * torch.outer(gain * u, gain * u)


def decomposes(gain, u, deficit):
    """``eigh``, if it is an eigendecomposition of the dense matrix."""
    matrix, size = dense(gain, u, deficit), float(gain.abs().max() ** 2) or 1.0
    values, vectors = secular.eigh(gain, u, deficit)
    assert torch.equal(values, secular.eigvalsh(gain, u, deficit)), "eigh and eigvalsh disagree"
    assert (values.diff() >= 0).all(), "not ascending"
    gap = float((values - torch.linalg.eigvalsh(matrix / size) * size).abs().max()) / size
    assert gap < 1e-12, f"deficit {deficit}: eigenvalues are off by {gap:.0e} of the largest"
    slant = float((vectors.T @ vectors - torch.eye(len(gain), dtype=F64)).abs().max())
    assert slant < 1e-12, f"deficit {deficit}: eigenvectors are orthonormal only to {slant:.0e}"
    rest = float(((matrix / size) @ vectors - vectors * (values / size)).abs().max())
    assert rest < 1e-12, f"deficit {deficit}: A v differs from λ v by {rest:.0e}"
    return values, vectors


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", GAINS)
def test_against_a_dense_matrix(kind, direction, d):
    gain, u = GAINS[kind](d), DIRECTIONS[direction](d)
    for deficit in DEFICITS:
        values, vectors = decomposes(gain, u, deficit)
        first = (vectors.abs() >= vectors.abs().amax(0) / 2).byte().argmax(0)
        assert (vectors[first, torch.arange(d)] > 0).all(), "the first entry of half the largest size is positive"
        for k in {0, 1, d // 2}:
            some, columns = secular.eigh(gain, u, deficit, largest=k)
            assert torch.equal(some, values[d - k :]) and torch.equal(columns, vectors[:, d - k :])


def exact(gain, u, deficit, digits):
    """All eigenvalues by mpmath's dense solver with ``digits`` digits; ``gain`` and ``u`` are taken as they are."""
    with mpmath.workdps(digits):
        g = [mpmath.mpf(float(v)) for v in gain]
        w = [mpmath.mpf(float(v)) for v in (torch.ones_like(gain) if u is None else u)]
        size = mpmath.sqrt(sum(v * v for v in w))
        c = 1 - mpmath.mpf(deficit)
        matrix = mpmath.matrix(len(g))
        for i in range(len(g)):
            for j in range(len(g)):
                matrix[i, j] = (g[i] ** 2 if i == j else 0) - c * g[i] * w[i] * g[j] * w[j] / size**2
        return sorted(mpmath.eigsy(matrix, eigvals_only=True))


@pytest.mark.parametrize("deficit", (0.0, 1e-60, 1e-25, 0.3))
@pytest.mark.parametrize("direction", ("uniform", "random"))
@pytest.mark.parametrize(
    "kind", ("near one", "lognormal", "an ulp apart", "several zeros", "sixteen orders", "two equal sizes")
)
def test_each_eigenvalue_is_accurate_by_itself(kind, direction, deficit):
    gain, u = GAINS[kind](12), DIRECTIONS[direction](12)
    expected = exact(gain, u, deficit, 100)
    for got, want in zip(secular.eigvalsh(gain, u, deficit).tolist(), expected, strict=True):
        if abs(want) < mpmath.mpf(10) ** -80:
            assert got == 0.0, f"a zero eigenvalue came out as {got}"
        else:
            error = float(abs(got - want) / want)
            assert error < 2e-15, f"λ = {float(want):.3e} is off by {error:.0e}: is δ used as 1 − (1 − δ)?"


def two(gain, u, deficit):
    """Both eigenvalues of the 2×2 matrix in closed form, in 150 digits."""
    with mpmath.workdps(600):
        (a, b), (v, w) = ([mpmath.mpf(float(e)) for e in t] for t in (gain, u))
        c = (1 - mpmath.mpf(deficit)) / (v * v + w * w)
        first, second, across = a * a * (1 - c * v * v), b * b * (1 - c * w * w), c * a * b * v * w
        larger = (first + second) / 2 + mpmath.sqrt(((first - second) / 2) ** 2 + across**2)
        return (first * second - across**2) / larger, larger


@pytest.mark.parametrize("decades", (3, 7, 9, 12, 15, 30, 45))
def test_gains_weights_and_deficits_spread_together(decades):
    """Where a pole is 10⁸ times nearer than the next, and weights differ as much, a step must not stop at nothing."""
    generator = torch.Generator().manual_seed(decades)
    for _ in range(200):
        spread = 10.0 ** (-decades * torch.rand(3, generator=generator, dtype=F64) * torch.tensor([1, 1, 2]))
        gain, u = torch.tensor([1.0, spread[0]], dtype=F64), torch.tensor([1.0, spread[1]], dtype=F64)
        got = secular.eigvalsh(gain, u, float(spread[2]))
        for value, expected in zip(got.tolist(), two(gain, u, float(spread[2])), strict=True):
            assert abs(value / expected - 1) < 4e-15, f"gain {gain.tolist()}, u {u.tolist()}, deficit {spread[2]:.3e}"


def test_the_whole_range():
    """Gains over 90 decades and entries over 45: squares and slopes meet both ends of float64."""
    generator = torch.Generator().manual_seed(0)
    cases = [  # without the guards of the rational step these two stop at a false root
        ([1.0, 2.5e-9], [1.0, 3.2e-9], 1.7e-17),
        ([7.723794603088617e-62, 0.0004203817499608835, 7.415281640500307e-15],
         [2.7929741506251923e-37, 4.649560942416382e-20, 1.3733462798343844e-39], 9.28938709389476e-197),
    ]  # fmt: skip
    for _ in range(40):
        gain, u = (10.0 ** (-r * torch.rand(4, generator=generator, dtype=F64)) for r in (90, 45))
        cases.append((gain.tolist(), u.tolist(), 10.0 ** float(-60 * torch.rand(1, generator=generator))))
    for gain, u, deficit in cases:
        gain, u = torch.tensor(gain, dtype=F64), torch.tensor(u, dtype=F64)
        expected = exact(gain, u, deficit, 500)
        for got, want in zip(secular.eigvalsh(gain, u, deficit).tolist(), expected, strict=True):
            if want > 1e-290:
                assert abs(float(got / want) - 1) < 1e-14, f"gain {gain.tolist()}, u {u.tolist()}, {deficit}"


def test_what_does_not_fit_is_infinite_or_zero():
    assert secular.eigvalsh(torch.tensor([1e160, 2e160], dtype=F64), deficit=0.5).tolist() == [torch.inf] * 2
    assert secular.eigvalsh(torch.tensor([1, 1e-100, 2e-100], dtype=F64)).tolist() == [0.0, 0.0, pytest.approx(2 / 3)]


def test_scale_of_the_direction_does_not_count():
    gain, u = draw(20), draw(20, seed=1)
    torch.testing.assert_close(secular.eigvalsh(gain, 1e200 * u), secular.eigvalsh(gain, u), rtol=1e-14, atol=0)


def test_blocks_change_nothing(monkeypatch):
    gain = GAINS["many equal (bfloat16)"](70)
    whole = secular.eigh(gain)
    monkeypatch.setattr(secular, "BLOCK_BYTES", 1)
    parts = secular.eigh(gain)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=64).map(lambda v: v if abs(v) > 1e-6 else 0.0)


@settings(max_examples=150, deadline=None)
@given(
    gain=st.lists(NUMBERS | st.sampled_from([0.0, 1.0, -1.0, 1.0 + 2**-52]), min_size=1, max_size=12),
    deficit=st.sampled_from([0.0, 1e-30, 1e-8, 0.5, 1.0]),
    data=st.data(),
)
def test_hypothesis_looks_for_more(gain, deficit, data):
    entries = st.lists(st.floats(-1, 1), min_size=len(gain), max_size=len(gain))
    u = data.draw(st.none() | entries.filter(lambda e: any(abs(v) > 1e-3 for v in e)))
    gain = torch.tensor(gain, dtype=F64)
    u = None if u is None else torch.tensor(u, dtype=F64)
    decomposes(gain, u, deficit)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(gain=torch.tensor([])), ValueError, r"gain: expected shape \(d,\) with d ≥ 1, got \(0,\)"),
        (dict(gain=torch.ones(2, 3)), ValueError, r"gain: expected shape \(d,\).*\(2, 3\)"),
        (dict(gain=torch.tensor([1.0, torch.nan, torch.inf])), ValueError, "gain: expected finite numbers, got 2"),
        (dict(gain=torch.tensor([1, 2])), TypeError, "gain"),
        (dict(gain=torch.ones(3), u=torch.ones(2)), ValueError, r"u: expected shape \(3,\).*\(2,\)"),
        (dict(gain=torch.ones(3), u=torch.zeros(3)), ValueError, "u: expected a direction, got the zero vector"),
        (dict(gain=torch.ones(3), deficit=1.5), ValueError, "deficit: expected a number from 0 to 1, got 1.5"),
        (dict(gain=torch.ones(3), deficit=float("nan")), ValueError, "deficit: .* got nan"),
        (dict(gain=torch.ones(3), largest=-1), ValueError, "largest: expected 0 to 3, the dimension of gain, got -1"),
        (dict(gain=torch.ones(3), largest=4), ValueError, "largest: expected 0 to 3, the dimension of gain, got 4"),
    ],
)
def test_bad_input(arguments, error, words):
    with pytest.raises(error, match=words):
        secular.eigh(**arguments)
