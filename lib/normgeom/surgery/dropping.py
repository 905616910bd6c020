"""What a language model loses when its LayerNorms do not subtract the mean: losses beside those of the model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.calls import evaluating, forward
from normgeom.models.layouts import layout_of
from normgeom.models.modules import replace_module
from normgeom.models.sites import find_norms
from normgeom.surgery.ablation import drop_mean_subtraction
from normgeom.surgery.surgery import center_writers
from normgeom.survey.survey import Survey

ALL = "all"


def compare(model: nn.Module, changed: Mapping[str, nn.Module], batches: Iterable[Tensor]) -> pd.DataFrame:
    """Next-token losses of changed models, beside those of the model itself, on the same text.

    Args:
        model, changed: causal language models of transformers with one vocabulary.
        batches: token ids ``(batch, length)``, length at least 2.

    Returns:
        one row a changed model, its name as index: ``nll``, the mean negative log-probability of the next token, in
        nats; ``more``, by how much that is above the unchanged model's; ``kl``, the mean Kullback–Leibler divergence
        of its next-token distribution from the unchanged model's; and ``largest``, the largest difference of a
        logarithm of a probability.  Every position of a window but the last counts once; sums are float64.

    Raises:
        ValueError: a batch of another shape, or none.
    """
    found = {name: torch.zeros(4, dtype=torch.float64) for name in changed}
    count = 0
    for ids in batches:
        if ids.dim() != 2 or ids.shape[1] < 2:
            raise ValueError(f"batches: expected token ids (batch, length), length at least 2, got {tuple(ids.shape)}")
        before = _logits(model, ids)
        for name, other in changed.items():
            for rows in zip(before, _logits(other, ids), ids[:, 1:], strict=True):
                *sums, largest = _differences(*rows)
                found[name][:3] += torch.stack(sums)
                found[name][3] = torch.maximum(found[name][3], largest)  # keeps a NaN
        count += ids[:, 1:].numel()
    if not count:
        raise ValueError("batches: expected at least one, got none")
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


def shifted(model: nn.Module, c: float) -> nn.Module:
    """A copy that shares the other parameters, with ``c`` added to each entry of its token embedding.

    Where every reader of the stream stands behind a LayerNorm it computes the same (prop-gauge).  A head that shares
    the embedding's weight keeps it as it was.
    """
    model = _sharing(model)
    embedding = model.get_input_embeddings()
    embedding.weight = nn.Parameter(embedding.weight.detach() + c)
    return model


@torch.no_grad()
def with_head(model: nn.Module, direction: Tensor, token: int, t: float) -> nn.Module:
    r"""A copy that shares the other parameters, whose head reads more of a direction for one token's logit.

    The head is :math:`W_U+t\,e_jv^\top`, its bias :math:`b-t\,(v^\top\beta)\,e_j` with the final norm's β: the logit of
    token j moves by :math:`t\,v^\top(y-\beta)`, which is 0 behind a LayerNorm where v is :math:`G^{-1}\mathbf 1`
    (prop-any-cost).

    Args:
        model: a language model with a ``normgeom.models.layouts.layout_of``.
        direction: v, ``(d,)``.
        token: j.

    Raises:
        ValueError: the model has no layout; ``direction`` has another shape; there is no such token.
    """
    layout = layout_of(model)
    rows, d = model.get_submodule(layout.head).weight.shape
    if direction.shape != (d,):
        raise ValueError(f"direction: expected shape ({d},), got {tuple(direction.shape)}")
    if token not in range(rows):
        raise ValueError(f"token: expected 0 to {rows - 1}, got {token}")
    model = _sharing(model)
    head, final = model.get_submodule(layout.head), model.get_submodule(layout.final)
    old = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    chosen = torch.zeros_like(old)
    chosen[token] = t
    head.weight = nn.Parameter(head.weight + torch.outer(chosen, direction))
    head.bias = nn.Parameter(old - (direction @ final.bias) * chosen)
    return model


def by_site(model: nn.Module, batches: Sequence[Tensor]) -> pd.DataFrame:
    """The subtraction dropped at each LayerNorm alone, and at all of them at once.

    Returns:
        one row a LayerNorm, in their order, and one of all: ``site``, or ``"all"``; ``drop_error``, the mean relative
        change of that norm's output before the bias (eq-drop-error) in the model as it stands, for all of them their
        mean; and the columns of :func:`compare`.
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

    Returns:
        one row a shift: ``c``; ``drop_error``, the mean of :func:`drop_errors`; the columns of :func:`compare`, the
        subtraction dropped at all LayerNorms; and ``kept``, the ``kl`` with the subtraction kept: what rounding makes
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

    Returns:
        for each shift the log-probabilities of the next tokens, float64 ``(batch · (length − 1),)``: ``"before"``, by
        the model itself; ``"with"`` and ``"without"`` the subtraction in the shifted weights.
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


def _sharing(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


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
