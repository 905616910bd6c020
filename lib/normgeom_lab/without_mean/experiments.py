"""What models lose without the mean subtraction, and wrong conversions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from normgeom.models.flow import double_throughout
from normgeom.models.sites import find_norms
from normgeom.models.watch import evaluating, forward
from normgeom.surgery.ablation import drop_mean_subtraction
from normgeom.surgery.surgery import center_writers, fold_norms, to_rms_norm
from torch import Tensor, nn

from normgeom_lab.common.checks import error
from normgeom_lab.common.parts import sharing, shifted
from normgeom_lab.common.stream import final_norm, flow_of, head_of
from normgeom_lab.common.tiny import divergence


def compare(model: nn.Module, changed: Mapping[str, nn.Module], batches: Iterable[Tensor]) -> pd.DataFrame:
    """Next-token losses of changed models on a text, compared with the unchanged model's: one row per changed model.

    Columns, in nats: ``nll``, the mean negative log-probability of the next token; ``more``, its difference from the
    unchanged model's; ``kl``, the mean divergence of the next-token distribution from the unchanged model's;
    ``largest``, the largest difference of a log-probability.  The last position of a window does not count.
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
    rows = {name: values.tolist() for name, values in found.items()}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["nll", "more", "kl", "largest"])
    table.iloc[:, :3] /= count
    return table.rename_axis("model")


def least_divergence(model: nn.Module, changed: nn.Module, ids: Tensor) -> float:
    """The smallest KL at any position of token ids ``(batch, length)``, of ``changed`` from ``model``, in nats."""
    with torch.no_grad():
        return float(divergence(*(forward(m, ids).logits for m in (model, changed))).min())


def without_subtraction(model: nn.Module, sites: Iterable[str] | None = None) -> nn.Module:
    """A copy that shares the parameters, after :func:`normgeom.drop_mean_subtraction` at the sites of these names."""
    return drop_mean_subtraction(sharing(model), sites)


@torch.no_grad()
def with_head(model: nn.Module, direction: Tensor, token: int, t: float) -> nn.Module:
    r"""A copy that shares the other parameters, whose head adds :math:`t\,v^\top(y-\beta)` to the logit of a token.

    This term is 0 after a final LayerNorm with bias β if the direction v is :math:`G^{-1}\mathbf 1` (prop-any-cost).
    """
    final, (reader,) = final_norm(model), flow_of(model).norms[-1].readers
    model = sharing(model)
    head = model.get_submodule(reader)
    old = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    chosen = torch.zeros_like(old)
    chosen[token] = t
    head.weight = nn.Parameter(head.weight + torch.outer(chosen, direction))
    head.bias = nn.Parameter(old - (direction @ final.bias) * chosen)
    return model


def by_shift(model: nn.Module, shifts: Sequence[float], batches: Sequence[Tensor]) -> pd.DataFrame:
    """The cost of dropping every subtraction in weights that compute one function: centred, plus each shift ``c``.

    One row per shift: the columns of :func:`compare`, and ``kept``, the ``kl`` with the subtraction kept, which is 0 up
    to rounding.
    """
    centred = center_writers(copy.deepcopy(model))
    rows = []
    for c in shifts:
        kept = shifted(centred, c)
        found = compare(model, {"kept": kept, "dropped": without_subtraction(kept)}, batches)
        rows.append(dict(c=c, **found.loc["dropped"], kept=found.kl["kept"]))
    return pd.DataFrame(rows)


def next_by_shift(model: nn.Module, shifts: Sequence[float], ids: Tensor) -> dict[float, dict[str, Tensor]]:
    """For each shift of :func:`by_shift`, log-probabilities of the next tokens, ``(batch · (length − 1),)`` float64.

    ``"before"``, from the model itself; ``"with"`` and ``"without"`` the subtraction, from the shifted weights.
    """
    centred = center_writers(copy.deepcopy(model))
    before, found = _next(model, ids), {}
    for c in shifts:
        kept = shifted(centred, c)
        found[c] = {"before": before, "with": _next(kept, ids), "without": _next(without_subtraction(kept), ids)}
    return found


def refusal(model: nn.Module) -> str | None:
    """The message with which :func:`normgeom.to_rms_norm` refuses a model; None if it converts the model."""
    try:
        to_rms_norm(copy.deepcopy(model))
    except (ValueError, TypeError) as reason:
        return str(reason)
    return None


def logit_errors(model: nn.Module, dtype: torch.dtype, batches: Sequence[Tensor]) -> dict[str, float]:
    """The largest error of a logit: in ``dtype`` ``before`` and ``after`` conversion to RMSNorm; in float64, ``exact``.

    All are differences from the logits of the model, its weights rounded to ``dtype``, computed in float64 throughout.
    """

    def logits(network: nn.Module) -> Tensor:
        with evaluating(network):
            return torch.cat([forward(network, ids).logits.double() for ids in batches])

    rounded = copy.deepcopy(model).to(dtype)
    wide = copy.deepcopy(rounded).double()
    with double_throughout():
        right = logits(wide)
        exact = error(logits(to_rms_norm(wide)), right)
    before = error(logits(rounded), right)
    return dict(exact=exact, before=before, after=error(logits(to_rms_norm(rounded)), right))


def _logits(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """The logits of each window, ``(length − 1, vocabulary)``, without its last position."""
    with evaluating(model):
        return list(forward(model, ids).logits[:, :-1])


def _next(model: nn.Module, ids: Tensor) -> Tensor:
    """The log-probability of each next token, float64, on the CPU."""
    found = torch.stack(_logits(model, ids)).double().log_softmax(-1)
    return found.gather(-1, ids[:, 1:, None].to(found.device)).flatten().cpu()


def _differences(ours: Tensor, theirs: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Sums of nll, more and kl over one window, and the largest difference.  All windows at once may be too large."""
    p, q = (logits.double().log_softmax(-1) for logits in (ours, theirs))
    place, apart = tokens.to(p.device)[:, None], p - q
    sums = -q.gather(-1, place).sum(), apart.gather(-1, place).sum(), divergence(ours, theirs).sum()
    return tuple(value.cpu() for value in (*sums, apart.abs().max()))


@torch.no_grad()
def wrong_conversions(model: nn.Module) -> dict[str, nn.Module]:
    """:func:`normgeom.to_rms_norm` with one step omitted or done wrongly (thm-to-rms-norm), by name.

    An omitted weight is the first of its kind, an omitted bias the last.
    """
    flow, converted = flow_of(model), to_rms_norm(copy.deepcopy(model))
    embeddings = [name for name in flow.writers if isinstance(model.get_submodule(name), nn.Embedding)]

    def changed(**values: Tensor) -> nn.Module:
        """The conversion with other values of some parameters."""
        network = copy.deepcopy(converted)
        for name, value in values.items():
            network.get_parameter(name).copy_(value)
        return network

    def omitted(name: str) -> nn.Module:
        return changed(**{name: model.get_parameter(name)})

    # the shared matrix, centred as the embedding needs it, and only then folded and given to the head
    final, head, (reader,) = final_norm(model), head_of(model), flow.norms[-1].readers
    rows = head.weight - head.weight.mean(1, keepdim=True)
    head = {f"{reader}.weight": rows * final.weight, f"{reader}.bias": rows @ final.bias}

    outside = copy.deepcopy(converted)
    for site in find_norms(outside):
        site.module.register_forward_hook(
            lambda norm, x, y: x[0] / (x[0].square().mean(-1, keepdim=True).sqrt() + norm.eps)
        )
    return {
        "nothing centred": drop_mean_subtraction(fold_norms(copy.deepcopy(model))),
        "position embedding not centred": omitted(f"{embeddings[1]}.weight"),
        "one matrix not centred": omitted(f"{flow.writers[len(embeddings)]}.weight"),
        "one bias not centred": omitted(f"{flow.writers[-1]}.bias"),
        "tied head centred too": changed(**head),
        "ε outside the root": outside,
    }
