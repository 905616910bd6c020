"""What looks wrong with the norms of a model, judged by calls of copies and by the vectors that they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normgeom.models import sites
from normgeom.models.sheets import PLACES, NormSheet, norm_sheets, normalised, stated_eps
from normgeom.models.watch import entries, evaluating, forward, watch


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong.

    Attributes:
        site: the norm's name in the model.
        problem: what is wrong.
        effect: how much that matters in this model, predicted.
        advice: what to do.
        size: the number in ``effect``.
        note: whether it is a fact worth knowing about a sound model rather than a defect.
    """

    site: str
    problem: str
    effect: str
    advice: str
    size: float
    note: bool = False

    def __str__(self) -> str:
        return f"{'note' if self.note else 'problem'}: {self.site}: {self.problem}: {self.effect}; {self.advice}"


class Report(list[Finding]):
    """The findings; ``.norms`` has a :class:`~normgeom.models.sheets.NormSheet` for every norm, as they run."""

    norms: list[NormSheet]


def doctor(model: nn.Module, inputs: Tensor | Mapping | None = None) -> Report:
    """Examine every norm of a model and list what looks wrong.

    Each module whose output ignores the scale of a vector is copied, given random weights, and called in float32,
    bfloat16 and float16 on small, large, shifted and zero rows.  Names and classes do not matter.  Then the model
    runs on ``inputs``, which shows how large its vectors are.

    Args:
        model: any module; it is unchanged afterwards.
        inputs: as in :func:`normgeom.find_norms`.  If the model is a language model that predicts ``inputs``, its loss
            decides whether a gain should be w or 1 + w; otherwise the signs of the weights decide.

    Returns:
        a list of findings with site, problem, effect, advice, size and note, the notes last.  A note is a fact worth
        knowing about a sound model.  ``.norms`` of the list describes each norm: kind, gain (``"w"``, ``"1 + w"``),
        eps and its place, casts, scope, and which rules of weight decay reach the gain.

    Raises:
        TypeError: ``model`` is not a module, or ``inputs`` are needed and missing.
        ValueError: weights are NaN or infinite; the model runs no norm; it cannot read ``inputs``.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8, eps=0.5))
        >>> report = ng.doctor(model, torch.eye(4))
        >>> [finding.problem for finding in report], report.norms[0].gain
        (['ε dominates'], 'w')
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got a {type(model).__name__}")
    if odd := [name for name, p in model.named_parameters() if p.dtype.itemsize > 1 and not p.isfinite().all()]:
        raise ValueError(f"model: expected finite weights, got NaN or Inf in {len(odd)}, the first {odd[0]!r}")
    inputs, report = sites.default_example(model) if inputs is None else inputs, Report()
    try:
        report.norms = norm_sheets(model, inputs)
    except Exception as error:  # whatever a model says of what it cannot read
        raise ValueError(f"inputs: this {type(model).__name__} cannot read them ({error!s:.200})") from error
    if not report.norms:
        raise ValueError(f"model: expected one that runs norms, this {type(model).__name__} runs none")
    sizes = _sizes(model, report.norms, inputs)
    for sheet in report.norms:
        report += _of_one(sheet, **sizes[sheet.name])
    report += _of_gains(model, report.norms, inputs)
    names = {module: name for name, module in model.named_modules()}
    for name, kind in sites._not_measured(names, [sheet.module for sheet in report.norms]).items():
        advice = "it takes a second input, does not run, or is no norm of vectors"
        report.append(Finding(name, "not examined", f"a {kind}", advice, 0.0, note=True))
    report.sort(key=lambda finding: finding.note)
    return report


def _sizes(model: nn.Module, sheets: Sequence[NormSheet], inputs: Tensor | Mapping) -> dict[str, dict[str, float]]:
    """For the input of each norm: the median scale s of rows, the largest entry, the largest share of a row's square
    length that one entry holds (median), and the largest mean over s.
    """
    kinds, found = {sheet.name: sheet.kind for sheet in sheets}, {}

    def look(name: str, x: Tensor, _output: Tensor) -> None:
        rows = x.flatten(0, -2)
        n, s = normalised(rows, kinds[name], rows.shape[-1])
        share, far = n.square().amax(-1) / rows.shape[-1], rows.mean(-1).abs() / s[:, 0]
        found[name] = dict(
            s=float(s.median()), peak=float(rows.abs().max()), share=float(share.nanmedian()), far=float(far.max())
        )

    with evaluating(model), watch(model, list(kinds), look):
        forward(model, inputs)
    return found


def _of_one(sheet: NormSheet, s: float, peak: float, share: float, far: float) -> Iterator[Finding]:
    """What looks wrong with one norm that reads vectors of these sizes."""
    off, d, eps, stated = sheet.off, sheet.dim, sheet.eps, stated_eps(sheet.module)
    kept, length = PLACES[sheet.place][0](s, eps), abs(sheet.length - 1)

    def found(problem: str, size: float, effect: str, advice: str, note: bool = False) -> Finding:
        return Finding(sheet.name, problem, effect.format(size), advice, size, note)

    if off["others"] > 1e-3:
        effect, advice = "if one vector grows, others change by {:.1%}", "take the statistics of each vector by itself"
        yield found("the result depends on other vectors", off["others"], effect, advice)
        return
    if off["formula"] > 0.01:
        effect, advice = "outputs are up to {:.1%} off", "compare it with ng.layer_norm and ng.rms_norm"
        yield found("neither LayerNorm nor RMSNorm", off["formula"], effect, advice)
    elif off["formula"] > 1e-4 or off["unexplained"] > 0.1:
        where = "float32" if off["formula"] > 1e-4 else "bfloat16"
        effect, advice = (
            f"in {where} the scale of a vector is {{:.2%}} off (rms)",
            "compute in float32, round at the end",
        )
        yield found("statistics in 16 bits", off["scale"], effect, advice)
    if "16 bits" in sheet.casts:
        w = sheet.w.detach().bfloat16()
        lost = float(((1 + w) / (1 + w.float()) - 1).abs().max())
        if lost > 1e-4:
            yield found("1 + w in 16 bits", lost, "in bfloat16 gains are up to {:.2%} off", "add 1 in float32")
    if off["overflow"] > 0.1:
        effect = "in float16 entries from 256 on give outputs of 0; these inputs reach {:.3g}"
        yield found("squares overflow", peak, effect, "square in float32, or divide by the largest entry first")
    if off["zeros"]:
        effect, advice = "in {:.0%} of float32, bfloat16 and float16", "add ε > 0 in float32, inside the root"
        yield found("rows of zeros give NaN", off["zeros"], effect, advice)
    if off["mean"] > 0.01:
        effect = f"{{:.1e}} of the largest output off at a mean of 3000 s; these inputs reach {far:.2g} s"
        yield found("digits lost to the mean", off["mean"], effect, "subtract the mean before squaring")
    if sheet.place in ("outside the root", "after the division"):
        lost = abs(kept / PLACES["inside the root"][0](s, eps) - 1)
        effect = f"the median vector (s = {s:.2g}) comes out {{:.1e}} of its length too long or too short"
        yield found(f"ε = {eps:g} acts {sheet.place}", lost, effect, "divide by √(mean square + ε)")
    elif eps and stated and not any(math.isclose(v, eps, rel_tol=0.1) for v in stated):
        effect, advice = f"{{:.3g}} times the stated {stated[0]:g}", "add ε to the mean of the squares"
        yield found(f"ε acts as {eps:g}", eps / stated[0], effect, advice)
    if kept < 0.9:
        effect = f"the median vector (s = {s:.2g}) loses {{:.0%}} of its length"
        yield found("ε dominates", 1 - kept, effect, f"take ε below {s * s / 100:.1g}, or larger vectors")
    if length > (5e-5 if off["formula"] < 1e-4 else 0.02):
        advice = "divide the sum of the d squares by d" + (", not by d − 1" if length < 1 / d else "")
        yield found("outputs are not √d long", length, f"{sheet.length:.4g} √d, {{:.2%}} off", advice)
    if sheet.gain not in ("w", "1 + w", "none"):
        w = sheet.w.detach()
        ratio = float((int(sheet.gain[0]) + w).norm() / (1 + w).norm())
        yield found(f"the gain is {sheet.gain}", ratio, "outputs {:.2g} times as long as with 1 + w", "add 1 once")
    if share > 0.5:
        size = math.sqrt(share / max(1 - share, 1e-12) * (d - 1)) / 127
        effect = f"{share:.0%} of the squared length; 8-bit steps are {{:.1f}} times the rms of the other entries"
        yield found("one entry holds most of the length", size, effect, "quantise it separately, or rotate", note=True)
    if off["alone"]:
        effect, advice = "by {:.1e} of the largest output", "fix the order of summation if runs must repeat"
        yield found("last bits depend on the batch", off["alone"], effect, advice, note=True)


def _of_gains(model: nn.Module, sheets: Sequence[NormSheet], inputs: Tensor | Mapping) -> Iterator[Finding]:
    """Gains w that should be 1 + w, or the reverse: of all norms with the same kind and gain, or of the last norm.

    If the model predicts its inputs, its own loss decides.  Otherwise the signs of the weights do: if 1 is added,
    training leaves some of them negative; if not, almost none.
    """
    groups: dict[tuple, list[NormSheet]] = {}
    for sheet in (sheet for sheet in sheets if sheet.gain in ("w", "1 + w")):
        groups.setdefault((sheet.kind, sheet.gain), []).append(sheet)
    last = [[sheets[-1]]] if len(groups.get((sheets[-1].kind, sheets[-1].gain), ())) > 1 else []
    loss, chance = _loss(model, inputs)
    for group in [*groups.values(), *last]:
        step, weights = (1 if group[0].gain == "w" else -1), [sheet.w for sheet in group]
        other, _ = _loss(model, inputs, weights, step)
        w = torch.cat([w.detach().flatten().float() for w in weights])
        few = float((w <= 0).float().mean())
        if min(loss, other) < 0.75 * chance:
            wrong, size = loss - other > 0.1, loss - other
            effect = f"{{:.2g}} nats a token: {loss:.3g}, {other:.3g} with the other gain"
        else:
            wrong = group not in last and (few > 0.05 if step == 1 else few < 0.03 and w.median() > 0.5)
            size = float((w.norm() / (w + 1).norm()) ** step)
            effect = f"outputs {{:.2g}} times as long as with the other gain; {few:.0%} of the weights are not positive"
        if wrong:
            problem, gain = ("1 + w forgotten", "1 + w") if step == 1 else ("1 + w applied to gains", "w")
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            yield Finding(group[0].name + more, problem, effect.format(size), f"make the gain {gain}", size)


@torch.no_grad()
def _loss(
    model: nn.Module, inputs: Tensor | Mapping, weights: Sequence[Tensor] = (), step: int = 0
) -> tuple[float, float]:
    """Loss in nats a token with ``step`` added to weights, and that of a uniform guess; infinite and 0 without text."""
    ids, kept = entries(inputs).get("input_ids"), [w.clone() for w in weights]
    try:
        for w in weights:
            w += step
        with evaluating(model):
            logits = getattr(forward(model, inputs), "logits", None)
    finally:
        for w, before in zip(weights, kept, strict=True):
            w.copy_(before)
    if not isinstance(ids, Tensor) or logits is None or logits.shape[:-1] != ids.shape:
        return math.inf, 0.0
    loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten().to(logits.device))
    return float(loss), math.log(logits.shape[-1])
