"""Digits that a computation loses: what it gives in a format against the same in float64, in units of roundoff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import pandas as pd
import torch
from torch import Tensor

Norm = Callable[[Tensor, Tensor], Tensor]  # of rows and a gain
Draw = Callable[..., Tensor]  # standard normal numbers of a shape in float64, as normgeom.checks.Draws


def unit_roundoff(dtype: torch.dtype) -> float:
    """u = 2⁻ᵖ for a format whose significands have p binary digits: rounding moves a number by u times it at most.

    Raises:
        TypeError: ``dtype`` is no floating-point format.
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype: expected a floating-point format, got {dtype}")
    return torch.finfo(dtype).eps / 2


def formats(dtypes: Iterable[torch.dtype]) -> pd.DataFrame:
    """Digits and range of floating-point formats: a row a format, named as in torch.

    Raises:
        TypeError: a dtype is no floating-point format.
    """
    rows = {}
    for dtype in dtypes:
        unit, largest = unit_roundoff(dtype), torch.finfo(dtype).max
        rows[str(dtype).removeprefix("torch.")] = {
            "digits p": -round(math.log2(unit)),
            "unit roundoff u": unit,
            "largest": largest,
            "largest x with a finite x²": float(torch.tensor(math.sqrt(largest), dtype=dtype)),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def entry_error(got: Tensor, exact: Tensor, above: float = 0.0) -> float:
    """The largest relative error of an entry, in units of the unit roundoff of ``got``'s format.

    Args:
        got: in any floating-point format.
        exact: the same shape, float64.
        above: only entries with \\|exact\\| beyond it count: in float16 smaller ones have fewer digits.

    Raises:
        ValueError: the shapes differ, or no entry counts.
    """
    _check_shapes(got, exact)
    counts = exact.abs() > above
    if not counts.any():
        raise ValueError(f"above: expected an entry of exact beyond it, got {above}")
    off = (got.double() - exact)[counts] / exact[counts]
    return float(off.abs().max()) / unit_roundoff(got.dtype)


def rms_error(got: Tensor, exact: Tensor) -> float:
    """The root mean square of the entries' errors over that of the entries of ``exact``, in float64.

    Raises:
        ValueError: the shapes differ.
    """
    _check_shapes(got, exact)
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def errors_at_means(
    ways: Mapping[str, Callable[[Tensor], Tensor]],
    truth: Callable[[Tensor], Tensor],
    means: Iterable[float],
    rows: int,
    d: int,
    draw: Draw,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Ways to normalise, in float32, at Gaussian rows of standard deviation 1 and ever larger mean (claim-large-means).

    Args:
        ways: by name, each a function of rows ``(rows, d)``.
        truth: what all of them mean to compute; it is given the same numbers in float64.
        means: of the rows; all ways get the same draws.
        draw: standard normal numbers of a shape, in float64, such as :class:`normgeom.checks.Draws`.

    Returns:
        two frames with a row a mean and a column a way: the largest error of an entry, among rows without NaN (NaN
        where there is no such row), and the share of the rows that have a NaN.

    Raises:
        ValueError: there is no way, or no mean.
    """
    means = [float(mean) for mean in means]
    if not ways or not means:
        raise ValueError(f"ways, means: expected at least one of each, got {list(ways)} and {means}")
    off, lost = ({name: [] for name in ways} for _ in range(2))
    for mean in means:
        x = (mean + draw(rows, d)).float()
        exact = truth(x.double())
        for name, way in ways.items():
            error = (way(x).double() - exact).abs().amax(-1)
            whole = ~error.isnan()
            off[name].append(float(error[whole].max()) if whole.any() else float("nan"))
            lost[name].append(1 - float(whole.double().mean()))
    index = pd.Index(means, name="mean")
    return pd.DataFrame(off, index), pd.DataFrame(lost, index)


def ladder(
    norms: Mapping[str, tuple[Norm, Norm]],
    dtypes: Iterable[torch.dtype],
    means: Iterable[float],
    rows: int,
    d: int,
    draw: Draw,
) -> pd.DataFrame:
    """How right norms and their gradients are in each format, in units of its unit roundoff (claim-ladder-norms).

    Rows are Gaussian of standard deviation 1, gains normal around 1 with a spread of 0.2, gradients at the output
    standard normal; all are drawn in float64 and rounded to the format, and all norms get the same.

    Args:
        norms: by name a norm, a function of rows and gain, and what it means to compute, which is given the same
            numbers in float64.
        dtypes: the formats.
        means: of the rows, in units of their standard deviation.
        draw: standard normal numbers of a shape, in float64, such as :class:`normgeom.checks.Draws`.

    Returns:
        the largest error of an entry over the largest entry of its row, in units of u.  The rows of the frame are
        ``(norm, "values" or "gradient")``, the gradient that by the input; its columns are ``(format, mean)``, such as
        ``("bfloat16", "30σ")``.

    Raises:
        TypeError: a dtype is no floating-point format.
        ValueError: there is no norm, no format or no mean.
    """
    units, means = {dtype: unit_roundoff(dtype) for dtype in dtypes}, list(means)
    if not (norms and units and means):
        raise ValueError(
            f"norms, dtypes, means: expected at least one of each, got {list(norms)}, {list(units)}, {means}"
        )
    columns = {}
    for dtype, unit in units.items():
        for mean in means:
            x, g = mean + draw(rows, d), draw(rows, d)
            case = [t.to(dtype) for t in (x, 1 + 0.2 * draw(d), g)]
            exact = {truth: _both(truth, *(t.double() for t in case)) for _, truth in norms.values()}
            column = {}
            for name, (norm, truth) in norms.items():
                for what, got, true in zip(("values", "gradient"), _both(norm, *case), exact[truth], strict=True):
                    off = (got.double() - true).abs().amax(-1) / true.abs().amax(-1)
                    column[name, what] = float(off.max()) / unit
            columns[str(dtype).removeprefix("torch."), f"{mean:g}σ"] = column
    return pd.DataFrame(columns).rename_axis(["norm", "what"])


def _both(norm: Norm, x: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = norm(x, weight)
    return y.detach(), torch.autograd.grad(y, x, g)[0]


def _check_shapes(got: Tensor, exact: Tensor) -> None:
    if got.shape != exact.shape:
        raise ValueError(f"got, exact: expected one shape, got {tuple(got.shape)} and {tuple(exact.shape)}")
