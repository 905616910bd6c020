"""The properties of a model's norms and what looks wrong, from calls of copies with random weights and from inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normgeom.models.held import gain_and_bias, projected
from normgeom.models.probe import PLACES, ROW, as_stated, near, plain_copy, probe, sources
from normgeom.models.sites import default_example, each_norm
from normgeom.models.watch import NormSite, entries, evaluating, forward, watch


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong."""

    site: str  # the norm's name in the model
    problem: str
    effect: str  # the predicted effect on this model
    advice: str
    size: float  # the number that the effect states

    def __str__(self) -> str:
        return f"{self.site}: {self.problem}: {self.effect}; {self.advice}"


@dataclass(frozen=True, eq=False)
class NormSheet:
    """The properties of one norm, measured by calls; name, module, kind and dim as in :class:`normgeom.NormSite`."""

    name: str
    module: nn.Module = field(repr=False)
    kind: str
    dim: int
    w: Tensor | None = field(repr=False)  # the parameter that determines the gain
    gain: str  # "w", "1 + w", "2 + w", "neither w nor 1 + w"; or "none" if it is 1
    decays: list[str]  # rules under which w decays: "plain AdamW"; "names" exempts norm and bias, "shapes" vectors
    eps: float  # the ε that the outputs show
    place: str  # "inside the root", "outside the root", "after the division" or "none"
    casts: str  # when results are rounded to bfloat16: "after the gain" or "before the gain"
    measured: dict[str, float]  # deviations of its outputs, by name; size and largest coordinate of its inputs


class Report(list[Finding]):
    """The findings; ``.norms`` has a :class:`NormSheet` for every norm, in the order in which they run."""

    norms: list[NormSheet]


@torch.no_grad()
def doctor(model: nn.Module, inputs: Tensor | Mapping | None = None) -> Report:
    """Examine every norm of a model and list what looks wrong.

    Each module whose output does not depend on the scale of its input is copied.  The copy gets random weights and is
    called on small and large rows in float32, bfloat16 and float16.  Names and classes do not matter.  Then the
    size of the vectors that the norms read is measured while the model runs on ``inputs``.

    Args:
        model: any module; it is unchanged afterwards, but see the limits in :func:`normgeom.to_rms_norm`.
        inputs: as in :func:`normgeom.find_norms`, whose documentation also describes the warnings.  If the model is a
            language model, its loss on ``inputs`` shows whether a gain should be w or 1 + w.

    Returns:
        a list of findings, each with site, problem, effect, advice and size.  The list's attribute ``.norms`` describes
        each norm: its kind, gain (such as ``"1 + w"``), eps and the place of eps, casts, the rules under which the gain
        decays, and measurements such as ``"share"``, the largest coordinate's share of a vector's squared length.

    Raises:
        TypeError: ``model`` is not a module, or ``inputs`` are needed and missing.
        ValueError: weights are NaN or infinite, or the model runs no norm.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8, eps=0.5))
        >>> report = ng.doctor(model, torch.eye(4))
        >>> [finding.problem for finding in report], report.norms[0].gain
        (['ε dominates'], 'w')
    """
    sheets = each_norm(model, inputs, _sheet)
    if odd := [name for name, p in model.named_parameters() if p.dtype.itemsize > 1 and not p.isfinite().all()]:
        raise ValueError(f"model: expected finite weights, got NaN or Inf in {len(odd)}, the first {odd[0]!r}")
    if not sheets:
        raise ValueError(f"model: expected one that runs norms, but this {type(model).__name__} runs none")
    inputs, report = default_example(model) if inputs is None else inputs, Report()
    report.norms = list(sheets.values())

    def look(sheet: NormSheet, x: Tensor, _output: Tensor) -> None:
        squares = projected(sheet, x.double()).square()
        s = squares.mean(-1).sqrt()
        sheet.measured["s"] = float(s.where(s > 0, torch.nan).nanmedian().nan_to_num(0))  # a model may pad with zeros
        sheet.measured["peak"] = float(x.abs().max())
        sheet.measured["share"] = float((squares.amax(-1) / squares.sum(-1)).nanmedian())

    with evaluating(model), watch(model, report.norms, look):
        forward(model, inputs)
    for sheet in report.norms:
        report += _of_one(sheet)
    report += _of_gains(model, report.norms, inputs)
    return report


def _sheet(name: str, module: nn.Module, read: Tensor, token_axis: int | None) -> NormSheet | None:
    """The properties of a module that acts on rows as a norm does; None for other modules."""
    copies = _drawn(module)
    run, run_bfloat16, run_float16 = (copied.forward for copied in copies)
    acts = probe(copies[0], read.shape, token_axis)
    if acts is None or not near(run(2 * acts.rows), acts.outputs, size := acts.outputs.abs().max()):
        return None
    first, grown = (0,) * (read.dim() - 1), acts.rows.clone()
    grown[first][0] = 60 * ROW
    change = (run(grown) - acts.outputs).abs() / size
    own = float(change[first].median())
    change[first] = 0.0
    others = float((change[1:] if token_axis is None else change).max())
    alone = float((run(acts.rows[:1]) - acts.outputs[:1]).abs().max() / size)
    if max(own, others) < 1e-3:
        return None  # it acts on the entries one by one, or on groups of them
    fits = {place: acts.fit(place) for place in PLACES}
    place = "none" if fits["none"][1] < 1e-4 else min(fits, key=lambda place: fits[place][1])
    eps = as_stated(module, fits[place][0], torch.float32)

    def exact(rows: Tensor) -> Tensor:
        wide = projected(acts, rows.double())
        s = wide.square().mean(-1, keepdim=True).sqrt()
        return wide / s * PLACES[place][0](s, eps)

    found = acts.acting(place, eps)
    by = sources(copies[0], *found, near=1e-3)
    site = NormSite(name, copies[0], acts.kind, *found, eps, read.shape[-1], token_axis, by)
    gain, bias = (acting.double() for acting in gain_and_bias(site))
    source, _ = by
    parameter, added = source or (None, 0)
    made = "none" if source else "neither w nor 1 + w"
    if parameter:
        made = f"{added:g} + w" if added else "w"
    half = acts.rows.bfloat16()
    casts, unexplained = _rounding(run_bfloat16(half), exact(half), gain, bias)
    large = run_float16(300 * acts.unit.half()) - bias
    measured = dict(
        batch=max(others, alone),
        formula=float((exact(acts.rows) * gain + bias - acts.outputs).abs().max() / size),
        overflow=1 - float(large.nan_to_num(0, 0, 0).abs().max() / acts.surface.abs().max()),
        unexplained=unexplained,
        gain=float(gain.mean()),
    )
    w = parameter and module.get_parameter(parameter)
    unnamed = not any(word in f"{name}.{parameter}".lower() for word in ("norm", "bias"))
    rules = {"plain AdamW": True, "names": unnamed, "shapes": parameter and w.dim() > 1}
    decays = [rule for rule, reaches in rules.items() if parameter and reaches]
    return NormSheet(name, module, site.kind, site.dim, w, made, decays, eps, place, casts, measured)


def _drawn(module: nn.Module) -> list[nn.Module]:
    """Copies of a module in float32, bfloat16 and float16, with the same random weights."""
    drawn, generator = plain_copy(module, torch.float32), torch.Generator().manual_seed(0)
    for parameter in drawn.parameters():
        parameter.copy_((128 + torch.randint(128, parameter.shape, generator=generator)) / 512)  # exact in 16 bits
    return [plain_copy(drawn, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]


def _rounding(got: Tensor, n: Tensor, gain: Tensor, bias: Tensor) -> tuple[str, float]:
    """The point at which outputs are rounded to bfloat16, and the share of outputs that this does not explain."""
    half = lambda t: t.bfloat16().double()  # noqa: E731
    ways = {}
    for where, g in {"": gain, ", the gain in 16 bits": half(gain)}.items():
        ways[f"after the gain{where}"] = half(n * g + bias)
        ways[f"before the gain{where}"] = half(half(half(n) * g) + bias)
    missed = {way: float((got != outputs).double().mean()) for way, outputs in ways.items()}
    way = min(missed, key=missed.get)
    return way, missed[way]


def _of_one(sheet: NormSheet) -> Iterator[Finding]:
    off, eps, s = sheet.measured, sheet.eps, sheet.measured["s"]
    kept = PLACES[sheet.place][0](s, eps)
    stated = [v for name, v in vars(sheet.module).items() if "eps" in name.lower() and isinstance(v, float)]
    meant = min(stated, key=lambda v: abs(v - eps), default=eps)

    def found(problem: str, size: float, effect: str, advice: str) -> Finding:
        return Finding(sheet.name, problem, effect.format(size), advice, size)

    if off["batch"]:
        effect, advice = "by up to {:.1e} of the largest output", "sum over each vector by itself, in one order"
        yield found("the result depends on other vectors", off["batch"], effect, advice)
    if off["batch"] > 1e-3:
        return
    if off["formula"] > 1e-4 or off["unexplained"] > 0.1:
        effect = f"in bfloat16 {{:.0%}} of outputs differ from the rounded formula, in float32 by {off['formula']:.2%}"
        advice = "compute in float32 and round at the end, as ng.layer_norm and ng.rms_norm do"
        yield found("statistics in 16 bits, or another formula", off["unexplained"], effect, advice)
    if sheet.gain == "1 + w" and "16 bits" in sheet.casts:
        w = sheet.w.detach().bfloat16()
        lost = float(((1 + w) / (1 + w.float()) - 1).abs().max())
        yield found("1 + w in 16 bits", lost, "in bfloat16 gains are up to {:.2%} off", "add 1 in float32")
    if off["overflow"] > 0.5:
        effect = "in float16 entries from 256 on give outputs of 0; these inputs reach {:.3g}"
        yield found("squares overflow", off["peak"], effect, "square in float32, or divide by the largest entry first")
    if eps and not (sheet.place == "inside the root" and math.isclose(meant, eps, rel_tol=0.1)):
        lost = abs(kept / PLACES["inside the root"][0](s, meant) - 1)
        effect = f"the median vector (s = {s:.2g}) is longer or shorter by {{:.1e}} of its length than with {meant:g}"
        yield found(f"ε acts as {eps:g} ({sheet.place})", lost, effect, "divide by √(mean square + ε)")
    if kept < 0.9:
        effect = f"the median vector (s = {s:.2g}) loses {{:.0%}} of its length"
        yield found("ε dominates", 1 - kept, effect, f"use an ε below {s * s / 100:.1g}, or larger vectors")
    if sheet.gain not in ("w", "1 + w", "none"):
        effect, advice = "{:.3g} on average where w is 0.37", "add 1 once or not at all, average the squares"
        yield found(f"the gain is {sheet.gain}", off["gain"], effect, advice)


def _of_gains(model: nn.Module, sheets: list[NormSheet], inputs: Tensor | Mapping) -> Iterator[Finding]:
    """Gains w that should be 1 + w, or the reverse, judged by the loss of a model that predicts its input tokens."""
    known = [sheet for sheet in sheets if sheet.gain in ("w", "1 + w")]
    groups = [tuple(sheet for sheet in known if sheet.gain == gain) for gain in ("w", "1 + w")]
    loss, chance = _loss(model, inputs)
    for group in filter(None, dict.fromkeys([*groups, tuple(known[-1:])])):
        step = 1 if group[0].gain == "w" else -1
        weights = {sheet.w: sheet.w.data for sheet in group}  # norms may share one
        try:
            for w in weights:
                w.data = w.data + step
            other, _ = _loss(model, inputs)
        finally:
            for w, data in weights.items():
                w.data = data
        if other < min(loss - 0.1, 0.75 * chance):
            problem, gain = ("1 + w forgotten", "1 + w") if step == 1 else ("1 + w applied to gains", "w")
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            effect = f"{loss - other:.2g} nats per token: {loss:.3g}, {other:.3g} with the other gain"
            yield Finding(group[0].name + more, problem, effect, f"make the gain {gain}", loss - other)


def _loss(model: nn.Module, inputs: Tensor | Mapping) -> tuple[float, float]:
    """The loss in nats per token, and that of a uniform guess; infinite and 0 if no text is predicted."""
    with evaluating(model):
        logits, ids = getattr(forward(model, inputs), "logits", None), entries(inputs).get("input_ids")
    if not isinstance(ids, Tensor) or logits is None or logits.shape[:-1] != ids.shape:
        return math.inf, 0.0
    loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten().to(logits.device))
    return float(loss), math.log(logits.shape[-1])
