"""How LayerNorm's ellipsoid lies to the coordinates: whose gains its semi-axes follow, and what its axes mix."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.uniform import angle

MOST = 0.95  # the share of the semi-axes that off_rank speaks of


def coordinate_shares(axes: Tensor, k: int) -> Tensor:
    """Of each axis, the share of its squared length that its ``k`` largest coordinates have.

    Args:
        axes: columns ``(d, m)``, of any length but zero.
        k: from 1 to d.

    Returns:
        ``(m,)``, up to 1.

    Raises:
        ValueError: another shape, or ``k`` out of range.
    """
    if axes.dim() != 2:
        raise ValueError(f"axes: expected columns (d, m), got {tuple(axes.shape)}")
    if not 1 <= k <= len(axes):
        raise ValueError(f"k: expected 1 to {len(axes)}, the dimension of the axes, got {k}")
    squares = axes.square()
    return squares.topk(k, dim=0).values.sum(0) / squares.sum(0)


def off_rank(body: Ellipsoid, shift: int = 0) -> float:
    """What 95 % of the semi-axes differ at most by from √d times the gain ``shift`` ranks below theirs, relative to it.

    The i-th longest semi-axis lies between √d times the i-th largest |γ| and the next (cor-interlacing), so for
    ``shift`` 0 and 1 this is small where neighbouring gains are alike.  Semi-axes of whose rank no gain is left, or
    one of zero, do not count.

    Raises:
        ValueError: ``body`` is that of an RMSNorm or a single point, or no gain is left after the shift.
    """
    _check_layer_norm(body)
    size = body.weight.abs().sort(descending=True).values
    size = size[size > 0]
    if not 0 <= shift < len(size):
        raise ValueError(f"shift: expected 0 to {len(size) - 1}, below the number of gains above zero, got {shift}")
    size = size[shift:][: body.dim]
    ratio = body.semi_axes[: len(size)] / (len(body.weight) ** 0.5 * size)
    return float((ratio - 1).abs().quantile(MOST))


def between_gains(body: Ellipsoid, axes: Tensor) -> float:
    """Share of the axes whose two heaviest coordinates are those whose gains enclose the semi-axis (cor-interlacing).

    Args:
        axes: :meth:`normgeom.Ellipsoid.axes` of ``body``, all of them: ``(d, dim)``.

    Raises:
        ValueError: ``body`` is that of an RMSNorm or a single point, or ``axes`` has another shape.
    """
    _check_layer_norm(body)
    expected = (len(body.weight), body.dim)
    if axes.shape != expected:
        raise ValueError(f"axes: expected shape {expected}, all axes of the body, got {tuple(axes.shape)}")
    order = body.weight.abs().argsort(descending=True)
    enclosing = torch.stack([order[: body.dim], order[1 : body.dim + 1]])
    heaviest = axes.abs().topk(2, dim=0).indices
    return float((heaviest.sort(0).values == enclosing.sort(0).values).all(0).double().mean())


def shapes(gains: Mapping[str, Tensor]) -> pd.DataFrame:
    """The ellipsoids of some LayerNorms in numbers: how long their axes are, and how they lie to the coordinates.

    Args:
        gains: for each norm's name γ ``(d,)``, floating point, not all zero; d at least 3.

    Returns:
        one row a norm: ``smallest``, ``median``, ``largest`` |γ|; ``elongation``, the longest semi-axis over the
        median one; ``angle``, of the outputs' normal G⁻¹1 to 1 in degrees (cor-normal; of the first silent coordinate
        where there is one); ``one`` and ``two``, the medians over axes of :func:`coordinate_shares`; ``off_rank``,
        ``off_next`` and ``off_second``, :func:`off_rank` with shift 0, 1 and 2; and ``enclosed``,
        :func:`between_gains`.

    Raises:
        TypeError, ValueError: as :class:`normgeom.Ellipsoid`; no gain at all, one with fewer than three entries.
    """
    if not gains:
        raise ValueError("gains: expected those of one LayerNorm or more, got none")
    for name, gain in gains.items():
        if len(gain) < 3:
            raise ValueError(f"gains: expected vectors of 3 entries or more, got {len(gain)} in {name}")
    return pd.DataFrame.from_dict({name: _shape(Ellipsoid(gain)) for name, gain in gains.items()}, orient="index")


def _shape(body: Ellipsoid) -> dict[str, float]:
    _check_layer_norm(body)
    axes, size = body.axes(), body.weight.abs()
    return dict(
        smallest=float(size.min()),
        median=float(size.median()),
        largest=float(size.max()),
        elongation=float(body.semi_axes[0] / body.semi_axes.median()),
        angle=float(angle(body.complement[:, 0], torch.ones_like(size))),
        one=float(coordinate_shares(axes, 1).median()),
        two=float(coordinate_shares(axes, 2).median()),
        off_rank=off_rank(body),
        off_next=off_rank(body, 1),
        off_second=off_rank(body, 2),
        enclosed=between_gains(body, axes),
    )


def _check_layer_norm(body: Ellipsoid) -> None:
    if not body.centered or body.dim == 0:
        raise ValueError(f"body: expected a LayerNorm's of dimension 1 or more, got {body}")
