"""How a module acts on chosen rows, from which find_norms and doctor tell whether it is a norm of the last axis."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.models.watch import Source, set_mode
from normgeom.norms.functions import layer_norm, rms_norm

NORMS = {"layer": layer_norm, "rms": rms_norm}
ROW, LONG = 16.0, 8192.0  # sizes of rows: squares that float16 holds, and so large that ε counts little
# Where ε acts: the share of its full length that a row of root mean square s keeps, and ε from the ratio to LONG's.
PLACES: dict[str, tuple[Callable, Callable]] = {
    "inside the root": (lambda s, e: s / (s * s + e) ** 0.5, lambda s, share: s * s * (1 / share**2 - 1)),
    "outside the root": (lambda s, e: s / (s + e), lambda s, share: s * (1 / share - 1)),
    "after the division": (lambda s, e: 1 + s * e, lambda s, share: (share - 1) / (s - share * LONG)),
    "none": (lambda s, e: s / s, lambda s, share: 0 * s),
}
SCALES = torch.logspace(-8, 6, 113, dtype=torch.float32).double()  # which float32 holds


class Probe(NamedTuple):
    """What calls of a module show."""

    kind: str  # "layer" if a shift along 1 changes nothing, else "rms"
    rows: Tensor  # random, their entries of mean and standard deviation ROW
    outputs: Tensor  # the module's outputs for them
    unit: Tensor  # a row of ±1, for LayerNorm less its mean, of root mean square 1
    surface: Tensor  # half the difference of the outputs for ±LONG · unit
    bias: Tensor  # half their sum
    shares: Tensor  # the share of ``surface`` in the output for SCALES · unit

    def acting(self, place: str, eps: float) -> tuple[Tensor, Tensor]:
        """γ and β of a norm whose ε acts at this place."""
        gain = self.surface.double() / self.unit / PLACES[place][0](LONG, eps)
        return _of_each_head(gain.float()), _of_each_head(self.bias.float())

    def again(self, drawn: nn.Module) -> Probe:
        """This probe, with surface and bias as those of a copy of the module with random parameters."""
        return self._replace(**_ends(drawn.forward, self.unit))

    def fit(self, place: str) -> tuple[float, float]:
        """ε, from the row that loses half of its square length, and how far the others are from the place's curve."""
        curve, eps_of = PLACES[place]
        finite = self.shares.isfinite()
        shares, scales = self.shares[finite], SCALES[finite]
        if not len(shares):
            return 0.0, math.inf
        # without ε the first, where rounding weighs least
        clearest = -1 if place == "after the division" else (shares**2 - 0.5).abs().clamp(max=0.49).argmin()
        eps = max(0.0, float(eps_of(scales[clearest], shares[clearest])))
        expected = (curve(scales, eps) / curve(LONG, eps)) ** 2
        return eps, float(((shares**2 - expected) / expected.clamp(min=1)).abs().max())


@torch.no_grad()
def probe(copied: nn.Module, shape: Sequence[int], token_axis: int | None, dtype=torch.float32) -> Probe | None:
    """What a copy from :func:`plain_copy` makes of inputs of ``shape``; None if its output ignores their sign.

    Raises what the module raises; a module that takes another shape or more arguments is more than a norm.
    """
    *lead, d = shape
    # A gain may differ from head to head, but not from text to text or from position to position.
    few, one = ([*(n if axis in (0, token_axis) else size for axis, size in enumerate(lead)), d] for n in (4, 1))
    drawn = torch.randn(few, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    rows = (ROW * (1 + drawn)).to(dtype)  # with means, of which a norm might subtract a part
    run = copied.forward  # without hooks
    outputs = run(rows)
    size = (outputs - run(-rows)).abs().max() / 2  # without the bias
    if d < 2 or not size > 1e-4 * outputs.abs().max():
        return None
    kind = "layer" if near(outputs, run(rows + 3 * ROW), size) else "rms"
    unit = NORMS[kind](1 - 2 * (torch.arange(d) % 2).to(dtype), eps=0.0).expand(one)
    ends = _ends(run, unit)
    small = run(SCALES.to(dtype).view(-1, *(1 for _ in lead)) * unit) - ends["bias"]
    full = ends["surface"].flatten().double()
    shares = small.flatten(1).double() @ full / full.square().sum()
    return Probe(kind, rows, outputs, unit, **ends, shares=shares)


def _ends(run: Callable, unit: Tensor) -> dict[str, Tensor]:
    plus, minus = run(LONG * unit), run(-LONG * unit)
    return dict(surface=(plus - minus) / 2, bias=(plus + minus) / 2)


def sources(drawn: nn.Module, gain: Tensor, bias: Tensor, near: float) -> tuple[Source, Source]:
    """The parameters that act as γ and β, as :class:`NormSite` names them, of a module with random parameters."""
    left = dict(drawn.named_parameters())

    def of(acts: Tensor, offsets: tuple[float, ...], none: float) -> Source:
        for offset, (name, parameter) in itertools.product(offsets, left.items()):
            shown = parameter.detach().float() + offset
            if parameter.shape == acts.shape and torch.allclose(shown, acts, rtol=near, atol=near):
                del left[name]
                return name, offset
        return (None, 0.0) if torch.allclose(acts, torch.full_like(acts, none), atol=near) else None

    return of(gain, (0.0, 1.0, 2.0), 1.0), of(bias, (0.0,), 0.0)


def near(a: Tensor, b: Tensor, size: Tensor) -> bool:
    """Whether two outputs of this size agree to a twentieth of it."""
    return bool(((a - b).abs() <= 0.05 * size).all())


def plain_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy on the CPU in evaluation mode, without hooks."""
    copied = copy.deepcopy(module).to(device="cpu", dtype=dtype)
    for part in copied.modules():
        part._forward_hooks.clear()  # the user's
        part._forward_pre_hooks.clear()
    set_mode(copied.modules(), False)
    return copied


def as_stated(module: nn.Module, eps: float, dtype: torch.dtype) -> float:
    """A measured ε: the attribute of the module, or the machine epsilon, that is close to it; else two digits."""
    stated = [v for v in vars(module).values() if isinstance(v, float)]
    exact = (v for v in (*stated, torch.finfo(dtype).eps) if math.isclose(v, eps, rel_tol=0.01))
    return next(exact, float(f"{eps:.2g}"))


def _of_each_head(vector: Tensor) -> Tensor:
    """``(dim,)`` if all heads have the same; else without the leading axes of size one."""
    first = vector.flatten(0, -2)[0]
    if torch.allclose(vector, first):
        return first
    return vector.reshape(vector.shape[next(axis for axis, size in enumerate(vector.shape) if size > 1) :])
