"""What a norm is, found by calling copies of it on chosen rows, in three dtypes, with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normgeom.models import sites
from normgeom.norms.formula import center

# Where ε acts: the share of its full length that a row of root mean square s keeps, and ε from one such share.
PLACES: dict[str, tuple[Callable, Callable]] = {
    "inside the root": (lambda s, e: s / (s * s + e) ** 0.5, lambda s, share: s * s * (1 / share**2 - 1)),
    "outside the root": (lambda s, e: s / (s + e), lambda s, share: s * (1 / share - 1)),
    "after the division": (lambda s, e: 1 + s * e, lambda s, share: (share - 1) / s),
    "none": (lambda s, e: s / s, lambda s, share: 0 * s),
}
_SCALES = torch.logspace(-8, 6, 57, dtype=torch.float64)
_ROW, _LONG = 16.0, 200.0  # sizes of rows whose squares float16 holds, and beside which ε counts little
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class NormSheet:
    """What calls show of one norm.

    Attributes:
        name, module, kind, dim: as in :class:`normgeom.NormSite`.
        gain: how it depends on a parameter w: ``"w"``, ``"1 + w"`` or the like; ``"none"`` if it is one number.
        parameter: the name of w in the module, or None.
        eps, place: ε as it acts, and where: ``"inside the root"``, ``"outside the root"``, ``"after the division"`` or
            ``"none"``.
        casts: when results are rounded to bfloat16: ``"after the gain"`` or ``"before the gain"``.
        scope: which entries are normalised together: ``"vector"``, ``"head"`` or ``"groups of n"``.
        decays: usual rules of weight decay that reach w: ``"names"`` exempts parameters with norm or bias in their
            names, ``"shapes"`` exempts vectors.
        length: of the output without its gain, in units of √d.
        off: by how much calls deviate from what a norm should do, for each thing tried.
    """

    name: str
    module: nn.Module
    kind: str
    dim: int
    gain: str
    parameter: str | None
    eps: float
    place: str
    casts: str
    scope: str
    decays: tuple[str, ...]
    length: float
    off: dict[str, float]

    @property
    def w(self) -> Tensor | None:
        """The parameter that holds the gain."""
        return None if self.parameter is None else self.module.get_parameter(self.parameter)


def norm_sheets(model: nn.Module, inputs: Tensor | Mapping) -> list[NormSheet]:
    """A sheet for each norm that ``model`` runs on ``inputs``, in that order, faulty norms included."""
    names, found = {module: name for name, module in model.named_modules()}, {}
    batch, tokens = sites._texts(inputs)
    for module, shape in sites._maps_of_one_tensor(model, inputs).items():
        inner = any(part in found for part in module.modules())
        sheet = None if inner else _sheet(names[module], module, shape, sites._token_axis(shape, batch, tokens))
        if sheet is not None:
            found[module] = sheet
    return list(found.values())


@torch.no_grad()
def _sheet(name: str, module: nn.Module, shape: Sequence[int], token_axis: int | None) -> NormSheet | None:
    """None if a module does not act on rows as a norm does, or cannot be called on them."""
    d, generator = shape[-1], torch.Generator().manual_seed(0)
    lead = [3 if axis == token_axis else size for axis, size in enumerate(shape[:-1])][1:]
    x = _ROW * torch.randn(4, *lead, d, generator=generator)
    unit = (1.0 - 2 * (torch.arange(d) % 2)).repeat(4, *lead, 1)
    unit[1::2] *= -1
    first, bumped = (0,) * (x.dim() - 1), _ROW * unit
    bumped[first][0] *= 60
    try:
        calls, copied = _calls(module, generator)
        run = calls[torch.float32]
        y, opposite, twice, shifted, moved = map(run, (x, -x, 2 * x, x + 3 * _ROW, bumped))
        size = float(y.abs().max())
        if d < 2 or not _near(twice, y, size) or _near(opposite, y, size):
            return None
    except Exception:
        return None
    change = (moved - run(_ROW * unit)).abs() / size
    width = int((change[first] > 1e-3).sum())
    change[first] = 0.0
    if width < 2 and change.max() <= 1e-3:
        return None  # it acts on the entries one by one
    width = width if width > 1 and d % width == 0 else d
    kind = "layer" if _near(shifted, y, size) else "rms"
    n = normalised(unit[:1], kind, width)[0].float()
    plus, minus = run(_LONG * n), run(-_LONG * n)
    gain, bias = (plus - minus).double() / 2 / n, (plus + minus).double() / 2
    place, eps = _place(torch.stack([((run(float(s) * n) - bias) / (n * gain)).mean() for s in _SCALES]))
    eps = next((v for v in stated_eps(module) if math.isclose(v, eps, rel_tol=0.02)), float(f"{eps:.2g}"))
    gain = gain / PLACES[place][0](_LONG, eps)

    def exact(rows: Tensor) -> Tensor:
        n, s = normalised(rows, kind, width)
        return torch.where(s > 0, n * PLACES[place][0](s, eps), 0.0)

    def off(rows: Tensor, dtype: torch.dtype = torch.float32) -> float:
        wanted = exact(rows.to(dtype)) * gain + bias
        return float(((calls[dtype](rows.to(dtype)) - wanted).abs().max() / wanted.abs().max()).nan_to_num(math.inf))

    made, parameter, length = _made_of(copied, gain)
    half = x.bfloat16()
    casts, unexplained, scale = _rounding(calls[half.dtype](half), exact(half) * length, gain / length, bias, made)
    deviations = dict(
        others=float((change[1:] if token_axis is None else change).max()),  # rows, when one grows
        alone=float((run(x[:1]) - y[:1]).abs().max()) / size,  # a row outside its batch
        formula=off(x),
        mean=off(x / _ROW + 3000) if kind == "layer" else 0.0,
        overflow=off(300 * unit, torch.float16),
        zeros=sum(not call(torch.zeros_like(x, dtype=t)).isfinite().all() for t, call in calls.items()) / len(calls),
        unexplained=unexplained,
        scale=scale,
    )
    scope = f"groups of {width}" if width < d else "head" if len(shape) > 3 and token_axis is not None else "vector"
    decays = tuple(_decays(name, parameter, module)) if parameter else ()
    return NormSheet(name, module, kind, d, made, parameter, eps, place, casts, scope, decays, length, deviations)


def _calls(module: nn.Module, generator: torch.Generator) -> tuple[dict[torch.dtype, Callable], nn.Module]:
    """How to call copies of a module with random weights, the same in each dtype; and the copy in float32."""
    copies = {dtype: sites._plain_copy(module).to(dtype) for dtype in _DTYPES}
    for same in zip(*(copied.parameters() for copied in copies.values()), strict=True):
        drawn = (128 + torch.randint(128, same[0].shape, generator=generator)) / 512  # which bfloat16 holds
        for parameter in same:
            parameter.copy_(drawn)
    return {dtype: copied.forward for dtype, copied in copies.items()}, copies[torch.float32]


def _near(a: Tensor, b: Tensor, size: float) -> bool:
    return bool(((a - b).abs() <= 0.05 * size).all())


def normalised(x: Tensor, kind: str, width: int) -> tuple[Tensor, Tensor]:
    """Rows divided by their root mean squares, and these, in float64, without ε, in groups of ``width`` entries."""
    groups = x.double().unflatten(-1, (-1, width))
    groups = center(groups) if kind == "layer" else groups
    s = groups.square().mean(-1, keepdim=True).sqrt().expand_as(groups)
    return (groups / s).flatten(-2), s.flatten(-2)


def stated_eps(module: nn.Module) -> list[float]:
    """The values that a module stores as its ε."""
    return [v for name, v in vars(module).items() if "eps" in name.lower() and isinstance(v, float)]


def _place(shares: Tensor) -> tuple[str, float]:
    """Where ε acts, and ε: the place whose curve is nearest to the shares that rows of ``_SCALES`` keep."""
    finite, fits = shares.isfinite(), {("none", 0.0): math.inf}
    shares, scales = shares[finite], _SCALES[finite]
    for place, (curve, of_share) in PLACES.items() if finite.any() else ():
        at = -1 if place == "after the division" else (shares - 0.5).abs().argmin()  # where it is clearest
        eps = max(0.0, float(of_share(scales[at], shares[at])))
        fits[place, eps] = float(((shares - curve(scales, eps)) / curve(scales, eps).clamp(min=1)).abs().mean())
    return ("none", 0.0) if fits["none", 0.0] < 1e-4 else min(fits, key=fits.get)


def _made_of(copied: nn.Module, gain: Tensor) -> tuple[str, str | None, float]:
    """How the gain depends on a parameter w, the name of w, and the factor by which the actual gain is larger."""
    for name, parameter in copied.named_parameters():
        if parameter.numel() > 1 and parameter.shape == gain.shape[gain.dim() - parameter.dim() :]:
            w = parameter.double().expand(gain.shape).flatten()
            table = torch.stack([torch.ones_like(w), w], 1)
            constant, multiple = (fit := torch.linalg.lstsq(table, gain.flatten()).solution).tolist()
            if multiple > 0.01 and (table @ fit - gain.flatten()).abs().max() < 0.02 * gain.max():
                return f"{added} + w" if (added := round(constant / multiple)) else "w", name, multiple
    return "none", None, float(gain.mean())


def _rounding(got: Tensor, n: Tensor, gain: Tensor, bias: Tensor, made: str) -> tuple[str, float, float]:
    """When outputs are rounded to bfloat16, the share of outputs not explained by it, and the error of their scale."""

    def half(t: Tensor) -> Tensor:
        return t.bfloat16().double()

    gain, bias = ((512 * t).round() / 512 for t in (gain, bias))  # as they were drawn
    ways = {}
    for where, g in {"": gain, f", {made} in 16 bits": half(gain)}.items():
        ways[f"after the gain{where}"] = half(n * g + bias)
        ways[f"before the gain{where}"] = half(half(half(n) * g) + bias)
    missed = {way: float((got != outputs).double().mean()) for way, outputs in ways.items()}
    way = min(missed, key=missed.get)
    scale = ((got - bias) * n * gain).sum(-1) / (n * gain).square().sum(-1)
    return way, missed[way], float((scale - 1).square().mean().sqrt())


def _decays(name: str, parameter: str, module: nn.Module) -> Iterator[str]:
    if not any(word in f"{name}.{parameter}".lower() for word in ("norm", "bias")):
        yield "names"
    if module.get_parameter(parameter).dim() > 1:
        yield "shapes"
