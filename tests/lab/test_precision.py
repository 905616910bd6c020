"""Errors in units of roundoff: hand-made deviations, and norms that are wrong by a known amount."""

import math

import pytest
import torch
from normgeom.checks import Draws
from normgeom_lab.precision import entry_error, errors_at_means, formats, ladder, rms_error, unit_roundoff

FORMATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
U32 = 2.0**-24


@pytest.mark.parametrize(("dtype", "digits"), list(zip(FORMATS, (8, 11, 24, 53), strict=True)))
def test_unit_roundoff(dtype, digits):
    u = unit_roundoff(dtype)
    assert u == 2.0**-digits, "eps is twice that; the first digit counts although it is not stored"
    one, more = (torch.tensor(1 + k * u, dtype=torch.float64).to(dtype) for k in (0.99, 1.01))
    assert (float(one) == 1 and float(more) == 1 + 2 * u) or dtype == torch.float64


def test_formats_say_digits_and_range():
    table = formats(FORMATS)
    assert list(table.index) == ["bfloat16", "float16", "float32", "float64"]
    assert list(table["digits p"]) == [8, 11, 24, 53]
    for dtype in FORMATS:
        row = table.loc[str(dtype).removeprefix("torch.")]
        assert row["unit roundoff u"] == unit_roundoff(dtype)
        largest, square = row["largest"], row["largest x with a finite x²"]
        assert torch.tensor(largest, dtype=torch.float64).to(dtype) == torch.finfo(dtype).max
        below = torch.tensor(square, dtype=dtype)
        above = torch.nextafter(below, torch.tensor(math.inf, dtype=dtype))
        assert float(below) == square, f"{dtype}: not one of its numbers"
        assert below.square().isfinite() and above.square().isinf(), f"{dtype}: not the largest with a finite square"


def test_entry_error_is_the_worst_entry_in_units():
    exact = torch.tensor([1.0, -2.0, 4.0, 1e-6], dtype=torch.float64)
    got = torch.tensor([1 + 2 * U32, -2 - 8 * U32, 4, 2e-6], dtype=torch.float64).float()
    assert entry_error(got, exact, above=1e-3) == pytest.approx(4), "relative to its entry, in units of u = eps / 2"
    assert entry_error(got, exact) == pytest.approx(1 / U32, rel=1e-6), "nothing is left out unless asked for"
    assert entry_error(got.bfloat16(), exact, above=1e-3) == 0, "those are all numbers of bfloat16 but for roundoff"


def test_entry_error_sees_nan_and_refuses():
    exact = torch.ones(3, dtype=torch.float64)
    assert math.isnan(entry_error(torch.tensor([1.0, math.nan, 1.0]), exact)), "NaN is not right"


def test_rms_error_by_hand():
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert rms_error(torch.tensor([3.3, 4.4], dtype=torch.float64), exact) == pytest.approx(0.1)
    assert rms_error(torch.tensor([3.0, 4.5]), exact) == pytest.approx(0.1), "of all entries together, not the largest"


def test_errors_at_means_by_ways_with_known_errors():
    seen = []

    def holes(x, share):
        y = x.clone()
        y[: round(share * len(x)), 3] = math.nan
        return y

    def watched(x):
        seen.append(x)
        return x

    ways = {
        "right": watched,
        "off": lambda x: x + torch.tensor([0.0, -0.5]).repeat(8),
        "a quarter lost": lambda x: holes(x, 0.25),
        "all lost": lambda x: holes(x, 1.0),
    }
    means = (0.0, 16.0, 1024.0)
    off, lost = errors_at_means(ways, lambda x: x, means, 40, 16, Draws(0))
    assert list(off.index) == list(lost.index) == list(means)
    assert (off["right"] == 0).all(), "the truth was given other numbers than the ways"
    assert off["off"].to_list() == pytest.approx([0.5] * 3, abs=4 * 1024 * U32 * 2), "the largest |error|, with no sign"
    assert lost["right"].max() == lost["off"].max() == 0
    assert lost["a quarter lost"].to_list() == pytest.approx([0.25] * 3), "rows with a NaN, not entries"
    assert (off["a quarter lost"] == 0).all(), "rows with NaN must not count, nor hide the others"
    assert off["all lost"].isna().all() and (lost["all lost"] == 1).all()
    for mean, x in zip(means, seen, strict=True):
        assert x.dtype == torch.float32 and x.shape == (40, 16)
        assert float(x.mean()) == pytest.approx(mean, abs=0.2), "the rows' mean"
        assert float(x.std()) == pytest.approx(1, abs=0.1), "the spread stays 1"
    assert not torch.allclose(seen[1] - 16, seen[0], atol=1e-3), "new rows at each mean"


def product(x, weight):
    return x * weight


def test_ladder_measures_known_errors():
    """In float32 a factor 1 + 16u is 16 units, of an entry and of a gradient; a rounding or two come on top."""

    def shifted(x, weight):
        y = x * weight
        return y + 2.0**-20 * y.detach().abs().amax(-1, keepdim=True)

    norms = {
        "right": (product, product),
        "scaled": (lambda x, w: x * w * (1 + 2.0**-20), product),
        "shifted": (shifted, product),
    }
    rungs = ladder(norms, (torch.float32,), (0, 30), 50, 64, Draws(0))
    assert list(rungs.columns) == [("float32", "0σ"), ("float32", "30σ")]
    assert list(rungs.index[:2]) == [("right", "values"), ("right", "gradient")]
    assert (rungs.loc["right"] <= 1).all(axis=None), "one rounding is one unit at most"
    assert ((rungs.loc["scaled"] > 14) & (rungs.loc["scaled"] < 18)).all(axis=None), "u is half of eps"
    assert ((rungs.loc[("shifted", "values")] - 16).abs() <= 2).all(), "over the largest entry of the row"
    assert (rungs.loc[("shifted", "gradient")] <= 1).all(), "the gradient is by the input alone"


def test_ladder_gives_all_the_same_numbers_in_the_format():
    seen = []

    def watched(x, weight):
        seen.append((x.detach(), weight))
        return x * weight

    norms = {"one": (watched, product), "other": (watched, product)}
    rungs = ladder(norms, (torch.bfloat16, torch.float16), (0, 30), 200, 64, Draws(0))
    assert rungs.loc["one"].equals(rungs.loc["other"])
    assert [x.dtype for x, _ in seen] == [torch.bfloat16] * 4 + [torch.float16] * 4
    for (x, weight), mean in zip(seen[::2], (0, 30, 0, 30), strict=True):
        assert x.shape == (200, 64) and weight.shape == (64,) and weight.dtype == x.dtype
        assert float(x.float().mean()) == pytest.approx(mean, abs=0.1)
        assert float(x.float().std()) == pytest.approx(1, abs=0.1)
        assert float(weight.float().mean()) == pytest.approx(1, abs=0.1)
        assert 0.1 < float(weight.float().std()) < 0.3
