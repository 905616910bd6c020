"""Chapter 10: what models lose when no mean is subtracted, wrong conversions, and pictures."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.models.sites import find_norms
from normgeom.models.watch import evaluating, forward, replace_module
from normgeom.surgery.ablation import drop_mean_subtraction
from normgeom.surgery.surgery import center_writers, fold_norms, to_rms_norm
from normgeom.survey.survey import Survey
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from normgeom.view.tables import table
from torch import Tensor, nn

from normgeom_lab.common.parts import _sharing, final_norm, flow_of, head_of, shifted

ALL = "all"  # in the place of a site: at every norm


def compare(model: nn.Module, changed: Mapping[str, nn.Module], batches: Iterable[Tensor]) -> pd.DataFrame:
    """Next-token losses of changed models, beside those of the model itself, on the same text.

    Returns: one row a changed model, its name as index: ``nll``, the mean negative log-probability of the next token,
    in nats; ``more``, by how much that is above the unchanged model's; ``kl``, the mean Kullback–Leibler divergence
    of its next-token distribution from the unchanged model's; and ``largest``, the largest difference of a logarithm
    of a probability. Every position of a window but the last counts once; sums are float64.
    """
    found = {name: torch.zeros(4, dtype=torch.float64) for name in changed}
    count = 0
    for ids in batches:
        before = _logits(model, ids)
        for name, other in changed.items():
            for rows in zip(before, _logits(other, ids), ids[:, 1:], strict=True):
                *sums, largest = _differences(*rows)
                found[name][:3] += torch.stack(sums)
                found[name][3] = torch.maximum(found[name][3], largest)  # keeps a NaN
        count += ids[:, 1:].numel()
    table = pd.DataFrame.from_dict(
        {name: values.tolist() for name, values in found.items()},
        orient="index",
        columns=["nll", "more", "kl", "largest"],
    )
    table.iloc[:, :3] /= count
    return table.rename_axis("model")


def least_divergence(model: nn.Module, changed: nn.Module, ids: Tensor) -> float:
    """The smallest KL at any position of token ids ``(batch, length)``, of ``changed`` from ``model``, in nats."""
    with torch.no_grad():
        p, q = (forward(m, ids).logits.double().log_softmax(-1) for m in (model, changed))
        return float((p.exp() * (p - q)).sum(-1).min())


def without_subtraction(model: nn.Module, sites: Iterable[str] | None = None) -> nn.Module:
    """A copy that shares the parameters, after :func:`normgeom.drop_mean_subtraction` at the sites of these names."""
    return drop_mean_subtraction(_sharing(model), sites)


def without_norms(model: nn.Module) -> nn.Module:
    """A copy with nothing in the place of each norm: it computes nonsense, and no replacement of norms is faster."""
    model = copy.deepcopy(model)
    for site in find_norms(model):
        replace_module(model, site.module, nn.Identity())
    return model


@torch.no_grad()
def with_head(model: nn.Module, direction: Tensor, token: int, t: float) -> nn.Module:
    r"""A copy that shares the other parameters, whose head reads more of a direction for one token's logit.

    The head is :math:`W_U+t\,e_jv^\top`, its bias :math:`b-t\,(v^\top\beta)\,e_j` with the final norm's β: the logit
    of token j moves by :math:`t\,v^\top(y-\beta)`, which is 0 behind a LayerNorm where v is :math:`G^{-1}\mathbf 1`
    (prop-any-cost).
    """
    final, (reader,) = final_norm(model), flow_of(model).norms[-1].readers
    model = _sharing(model)
    head = model.get_submodule(reader)
    old = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    chosen = torch.zeros_like(old)
    chosen[token] = t
    head.weight = nn.Parameter(head.weight + torch.outer(chosen, direction))
    head.bias = nn.Parameter(old - (direction @ final.bias) * chosen)
    return model


def by_site(model: nn.Module, batches: Sequence[Tensor]) -> pd.DataFrame:
    """The subtraction dropped at each LayerNorm alone, and at all of them at once.

    Returns: one row a LayerNorm, in their order, and one of all: ``site``, or ``"all"``; ``drop_error``, the mean
    relative change of that norm's output before the bias (eq-drop-error) in the model as it stands, for all of them
    their mean; and the columns of :func:`compare`.
    """
    errors = drop_errors(model, batches)
    changed = {site: without_subtraction(model, [site]) for site in errors.index}
    table = compare(model, changed | {ALL: without_subtraction(model)}, batches)
    table.insert(0, "drop_error", [*errors, errors.mean()])
    return table.rename_axis("site").reset_index()


def by_shift(model: nn.Module, shifts: Sequence[float], batches: Sequence[Tensor]) -> pd.DataFrame:
    """The subtraction dropped everywhere, in weights that compute one function with more and more of it along 1.

    The writers are centred first (:func:`normgeom.center_writers`); then ``c`` is added to each entry of the token
    embedding.

    Returns: one row a shift: ``c``; ``drop_error``, the mean of :func:`drop_errors`; the columns of :func:`compare`,
    the subtraction dropped at all LayerNorms; and ``kept``, the ``kl`` with the subtraction kept: what rounding makes
    of 0.
    """
    centred = center_writers(copy.deepcopy(model))
    rows = []
    for c in shifts:
        kept = shifted(centred, c)
        found = compare(model, {"kept": kept, "dropped": without_subtraction(kept)}, batches)
        error = drop_errors(kept, batches).mean()
        rows.append(dict(c=c, drop_error=error, **found.loc["dropped"], kept=found.kl["kept"]))
    return pd.DataFrame(rows)


def next_by_shift(model: nn.Module, shifts: Sequence[float], ids: Tensor) -> dict[float, dict[str, Tensor]]:
    """What :func:`by_shift` compares at one batch ``(batch, length)``, position by position.

    Returns: for each shift the log-probabilities of the next tokens, float64 ``(batch · (length − 1),)``:
    ``"before"``, by the model itself; ``"with"`` and ``"without"`` the subtraction in the shifted weights.
    """
    centred = center_writers(copy.deepcopy(model))
    before, found = _next(model, ids), {}
    for c in shifts:
        kept = shifted(centred, c)
        found[c] = {"before": before, "with": _next(kept, ids), "without": _next(without_subtraction(kept), ids)}
    return found


def drop_errors(model: nn.Module, batches: Iterable[Tensor]) -> pd.Series:
    """The mean relative change of each LayerNorm's output before the bias without the subtraction, by its name."""
    names = [site.name for site in find_norms(model) if site.kind == "layer"]
    survey = Survey(model, ["uniform"]).run(batches, progress=False).table()
    return survey[(survey.side == "in") & (survey.positions == "all")].set_index("site").drop_error[names]


def _logits(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """Of each window ``(length − 1, vocabulary)``, its last position left out."""
    with evaluating(model):
        return list(forward(model, ids).logits[:, :-1])


def _next(model: nn.Module, ids: Tensor) -> Tensor:
    """The log-probability of each next token, float64, on the CPU."""
    found = torch.stack(_logits(model, ids)).double().log_softmax(-1)
    return found.gather(-1, ids[:, 1:, None].to(found.device)).flatten().cpu()


def _differences(ours: Tensor, theirs: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Sums over one window, which for a large vocabulary is enough at a time: nll, more, kl; and the largest.

    The divergence is taken as Σ p (a + e⁻ᵃ − 1) with a = ln p − ln q: the same, for q sums to 1 as p does, and no term
    is negative, so a small divergence is not what rounding leaves of large terms.
    """
    p, q = (logits.double().log_softmax(-1) for logits in (ours, theirs))
    apart = p - q
    place = tokens.to(p.device)[:, None]
    # where e⁻ᵃ could overflow nothing cancels
    rest = torch.where(apart > -1, p.exp() * torch.expm1(-apart.clamp(min=-1)), q.exp() - p.exp())
    kl = (p.exp() * apart + rest).sum()
    sums = -q.gather(-1, place).sum(), apart.gather(-1, place).sum(), kl
    return tuple(value.cpu() for value in (*sums, apart.abs().max()))


@torch.no_grad()
def wrong_conversions(model: nn.Module) -> dict[str, nn.Module]:
    """:func:`normgeom.to_rms_norm` with one thing forgotten or done wrongly (thm-to-rms-norm), by its name.

    What is forgotten is the first of its kind, of the biases the last.
    """
    writers = flow_of(model).writers
    embeddings = [name for name in writers if isinstance(model.get_submodule(name), nn.Embedding)]
    last = writers[-1]
    converted = to_rms_norm(copy.deepcopy(model))
    return {
        "nothing centred": drop_mean_subtraction(fold_norms(copy.deepcopy(model))),
        "position embedding forgotten": _put_back(converted, model, f"{embeddings[1]}.weight"),
        "one matrix forgotten": _put_back(converted, model, f"{writers[len(embeddings)]}.weight"),
        "one bias forgotten": _put_back(converted, model, f"{last}.bias"),
        "tied head centred along": _head_centred_along(converted, model),
        "ε outside the root": _epsilon_outside(converted),
    }


class _Outside(nn.Module):
    """RMSNorm without gain, its ε beside the root: x / (rms(x) + ε)."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


def _put_back(converted: nn.Module, model: nn.Module, name: str) -> nn.Module:
    """The conversion, with one parameter as it was before."""
    network = copy.deepcopy(converted)
    network.get_parameter(name).copy_(model.get_parameter(name))
    return network


def _head_centred_along(converted: nn.Module, model: nn.Module) -> nn.Module:
    """The shared matrix centred for the embedding's sake, and only then folded and given to the head."""
    network = copy.deepcopy(converted)
    final, (reader,) = final_norm(model), flow_of(model).norms[-1].readers
    head, rows = network.get_submodule(reader), head_of(model).weight
    rows = rows - rows.mean(1, keepdim=True)
    head.weight.copy_(rows * final.weight)
    head.bias.copy_(rows @ final.bias)
    return network


def _epsilon_outside(converted: nn.Module) -> nn.Module:
    network = copy.deepcopy(converted)
    for site in find_norms(network):
        replace_module(network, site.module, _Outside(site.module.eps))
    return network


# What normgeom_lab.without_mean measures: the column's name in words, and its digits.
COLUMNS = {
    "drop_error": ("change of the output", ".2g"),
    "nll": ("NLL / nats", 3),
    "more": ("change of NLL / nats", ".2g"),
    "kl": ("KL / nats", ".2g"),
    "largest": ("largest change of log p", ".2g"),
    "kept": ("KL with the subtraction / nats", ".2g"),
}

# What tells its rows apart, in words.
ROWS = {
    "seed": "seed",
    "model": "model",
    "way": "the subtraction",
    "site": "norm",
    "c": "c",
    "centred": "the mean taken from",
}


def cost_table(costs: pd.DataFrame) -> None:
    """Display what a function of ``normgeom_lab.without_mean`` measured, now or for a record."""
    costs = costs if costs.index.name is None else costs.reset_index()
    names = [name for name in ROWS if name in costs]
    if "site" in names:
        numbers = {site: str(number) for number, site in enumerate(costs.site.unique(), 1)} | {ALL: ALL}
        costs = costs.assign(site=costs.site.map(numbers))
    costs = costs.set_index(names).rename_axis([ROWS[name] for name in names])
    words = [COLUMNS[name] for name in costs.columns]
    table(costs.set_axis([name for name, _ in words], axis=1), digits=dict(words), first=ROWS[names[0]])


def costs_by_site(alone: pd.DataFrame, together: pd.DataFrame, paths: pd.DataFrame) -> tuple[Figure, str]:
    """KL against the relative change of the norms' outputs, both logarithmic.

    Returns: the figure and its alt text.
    """
    first, second, *others, final = alone.site.unique()
    at = {site: alone[alone.site == site] for site in (first, second, final)}
    groups = {
        "first norm": (at[first], "s", COLORS["random_a"]),
        "second norm": (at[second], "D", "#CC79A7"),
        "final norm": (at[final], "^", COLORS["random_b"]),
        "another norm": (alone[alone.site.isin(others)], "o", COLORS["uniform"]),
        "all norms": (together, "*", COLORS["ink"]),
    }
    paths = paths[paths.c > 0]
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6))
        for name, (points, marker, color) in groups.items():
            size = 8 if marker == "*" else 5
            axes.loglog(points.drop_error, points.kl, marker, color=color, label=name, markersize=size)
        for number, (_, path) in enumerate(paths.groupby("seed")):
            label = None if number else "all norms, other weights"
            axes.loglog(path.drop_error, path.kl, color=COLORS["null"], label=label)
        reach = np.array([0.01, 0.3])
        axes.loglog(reach, 3e-8 * (reach / 0.01) ** 2, ":", color=COLORS["ink"], lw=1)
        axes.text(0.1, 1e-6, "slope 2")
        axes.set(xlabel="relative change of the norm's output", ylabel="KL / nats a byte")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        figure.legend(loc="outside upper center", ncols=2)
    words = "; ".join(
        f"{name}: change {100 * points.drop_error.min():.1f} to {100 * points.drop_error.max():.1f} %, "
        f"KL {points.kl.min():.1g} to {points.kl.max():.1g} nats"
        for name, (points, _, _) in groups.items()
    )
    return figure, (
        f"KL against relative change, both logarithmic. {words}. In other weights of the same functions, lines that "
        f"rise from {paths.kl.min():.0e} at {100 * paths.drop_error.min():.1f} %, first with slope two, to about "
        f"{paths.kl.max():.1f} nats."
    )


def costs_by_shift(paths: pd.DataFrame, standing: pd.Series) -> tuple[Figure, str]:
    """KL against the size of the shift c, both logarithmic: a band over seeds and signs, with its median.

    Returns: the figure and its alt text.
    """
    shifted = paths[paths.c != 0]
    over = shifted.kl.groupby(shifted.c.abs())
    low, middle, high = over.min(), over.median(), over.max()
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.fill_between(low.index, low, high, color=COLORS["uniform"], alpha=0.3, lw=0)
        label = f"c in each entry ({len(standing)} seeds, both signs)"
        axes.loglog(middle.index, middle, "o-", color=COLORS["uniform"], label=label)
        axes.axhspan(standing.min(), standing.max(), color=COLORS["random_a"], alpha=0.3, lw=0)
        axes.axhline(standing.median(), ls="--", color=COLORS["random_a"], label="as training left them")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        axes.set(xlabel="|c|", ylabel="KL / nats a byte")
        figure.legend(loc="outside upper center")
    sizes = paths.c.abs()
    near, far = (paths.kl[sizes == c] for c in (sizes[sizes > 0].min(), sizes.max()))
    return figure, (
        f"KL against the absolute value of c, both logarithmic, one narrow band over {len(standing)} models and both "
        f"signs: from {near.min():.1g} to {near.max():.1g} nats at {sizes[sizes > 0].min():g}, rising at first with "
        f"slope two, flattening above 0.1, and between {far.min():.1f} and {far.max():.1f} nats at {sizes.max():g}. "
        f"As the models stand: {standing.min():.1g} to {standing.max():.1g}."
    )


def next_after_shift(found: Mapping[float, Mapping[str, Tensor]], c: float) -> tuple[Figure, str]:
    """Log-probabilities of the next tokens in shifted weights against the model's own: with the subtraction, without.

    Returns: the figure and its alt text.
    """
    before, words = found[c]["before"], []
    lowest = min(float(values.min()) for each in found.values() for values in each.values())
    looks = {"with": ("o", COLORS["uniform"]), "without": ("s", COLORS["random_a"])}
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5, 3.2), sharey=True)
        for axis, (which, (marker, color)) in zip(panels, looks.items(), strict=True):
            apart = float((found[c][which] - before).abs().mean())
            axis.plot([lowest, 0], [lowest, 0], color=COLORS["null"], lw=1)
            axis.plot(before, found[c][which], marker, color=color, ms=3, alpha=0.6)
            axis.set(title=f"{which} the subtraction\n{apart:.2f} nats off", xlabel="ln p before")
            words.append(f"{which} the subtraction they are {apart:.2g} nats off on average")
        panels[0].set(ylabel=f"ln p, c = {c:g}", ylim=(1.05 * lowest, 0.5), xlim=(1.05 * float(before.min()), 0.5))
        panels[1].set(xlim=panels[0].get_xlim())
    return figure, (
        f"Log-probabilities of {len(before)} next tokens with c = {c:g} on every entry, against those of the model as "
        f"it was: {'; '.join(words)}."
    )
