"""The effects of parts of published language models on a logit: credits, direct and total effects, and patching."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.attribution import COLUMNS, REPLACED, Run, effects
from normgeom.models.flow import Part, followed
from normgeom.models.held import gain_and_bias, per_unit, projected
from normgeom.models.watch import forward, hooked
from torch import Tensor, nn

from experiments.real_models import LANGUAGE, PARTS, Resumed, about, blocks, language_model, resampled
from experiments.registry import experiment

COUNT, LENGTH = 40, 10  # texts, and the number of tokens that are read in each
SETTINGS = {  # the replacement, whether a rival's logit is subtracted, and whether parts or heads are replaced
    "mean": ("mean", True, "part"),
    "zero": ("zero", True, "part"),
    "resample": ("resample", True, "part"),
    "logit": ("mean", False, "part"),
    "last": ("last", True, "part"),
    "heads": ("mean", True, "head"),
    "heads zero": ("zero", True, "head"),
    "heads resample": ("resample", True, "head"),
}
PAIRS = {"credit, direct": (0, 1), "direct, total": (1, 2), "credit, total": (0, 2)}
ON = f"WikiText-2, {COUNT} windows of {LENGTH} tokens spread over each part, each starting with BOS"


def at_the_end(y: Tensor, _other: None = None) -> Tensor:
    """Return a part's output with only the last position replaced by the mean."""
    return torch.cat([y[:, :-1], REPLACED["mean"](y)[:, -1:]], 1)


@experiment(
    "published-credits",
    {
        "published-credits": "Effects of parts on the true next token's logit minus that of the most likely other "
        "token; columns of normgeom.attribute, means over texts. setting: a part is replaced by its mean over texts "
        "and positions (mean), zero, or its output in another text (resample); logit: by the mean, for the logit "
        "alone; last: by the mean, at the last position only; heads: heads by the mean. low, high: 90 % interval of "
        "total over resampled texts. off_direct, off_total: mean |credit − direct|, mean |direct − total|.",
        "published-agreement": "How similarly two columns of published-credits rank the parts or heads of a model. "
        "rank: rank correlation over the parts of one text, averaged over texts; low, high: 90 % interval over "
        "resampled texts. other: the same with the second column taken from the next text. top: only texts in which "
        "the true next token is the most likely. late: only the last third of the parts. The pair (total, mean) "
        "compares total with total for replacement by the mean.",
        "published-patching": "Total effects of attentions and MLPs as gradients predict them, averaged over texts: "
        "live, with norms as they are; held, with all their scales held. rank_live, rank_held: rank correlation with "
        "total over the parts of one text, averaged over texts.",
    },
    [
        dict(model=LANGUAGE, text=PARTS, setting=["mean"]),
        dict(model=LANGUAGE, text=PARTS[:1], setting=["zero", "resample", "logit"]),
        dict(model=LANGUAGE, text=PARTS, setting=["last"]),
        dict(model=LANGUAGE, text=PARTS, setting=["heads"]),
        dict(model=LANGUAGE, text=PARTS[:1], setting=["heads zero", "heads resample"]),
    ],
    minutes=45,
    corpus=ON,
    **about(*LANGUAGE),
)
@patch.dict(REPLACED, last=at_the_end)
def of_parts(model: str, text: str, setting: str) -> dict[str, pd.DataFrame]:
    ablate, contrast, by = SETTINGS[setting]
    network, ids, answer, rival, top = case(model, text)
    against = rival if contrast else None
    names, values = effects(network, ids, answer, against, ablate, by)
    by_mean = effects(network, ids, answer, against)[1] if by == "part" and ablate != "mean" else None
    table = summary(names, values).round(4)
    if by == "head":  # only heads with one replacement, which keeps the record small
        table = table[table.part.str.startswith("head") & (ablate == "mean")]
    found = {"published-credits": table}
    found["published-agreement"] = agreements(names, values, by_mean, top).round(4)
    if by == "head":
        return found | {"published-patching": []}
    patched = [part.name for part in branches(network, ids)]
    total = values[2, [names.index(name) for name in patched]]
    table = pd.DataFrame(dict(part=patched, total=total.mean(1)))
    for way, norms in dict(live=nullcontext(), held=ng.held_scales(network, ids)).items():
        with norms:
            predicted = torch.stack([*predicted_totals(network, ids, answer, against, ablate).values()])
        table[way], table[f"rank_{way}"] = predicted.mean(1), correlations(predicted, total).mean()
    return found | {"published-patching": table.round(4)}


@experiment(
    "published-repair",
    "Why a head's total effect, when its mean over texts and positions replaces it, differs from its credit; heads in "
    "the second half of the blocks. mechanism: rest, what later parts change with all scales held; inner, what the "
    "scales of all norms but the final one add; final, what the final scale adds; they add up to credit minus total. "
    "share: the mechanism divided by the quantity in of, both summed over heads and texts. of: repair, credit minus "
    "total; credit, the credit (both sums with the sign of this quantity in each term); largest, the credit, only in "
    "each head's text with the largest credit; clipped, likewise, but a mean of ratios clipped to [0, 1]. low, high: "
    "90 % interval over resampled texts (heads for largest, clipped). against: the true next token's logit minus that "
    "of the most likely other token (rival) or the mean logit.",
    dict(model=LANGUAGE, text=PARTS[:1]),
    minutes=2,
    corpus=ON,
    **about(*LANGUAGE),
)
@torch.no_grad()
def repair(model: str, text: str) -> pd.DataFrame:
    network, ids, answer, rival, _ = case(model, text)
    run, layers, rows = Run(network, ids, ids.shape), network.model.layers, []
    resumed = Resumed(layers, lambda: forward(network.model, dict(input_ids=ids, use_cache=False)))
    attentions = ((part, network.get_submodule(part.writer)) for part in run.stream.parts if part.mixes)
    late = [part for part, module in attentions if 2 * resumed.block_of(module) >= len(layers)]
    heads = [head for part in late for head in run.pieces(part, REPLACED["mean"], True)]
    live = ends(run, resumed, heads)
    with ng.held_scales(network, ids):
        held = ends(run, resumed, heads)
    unembedding, changes = network.lm_head.weight.detach(), torch.stack([change for *_, change in heads])
    for against, less in (("rival", unembedding[rival]), ("mean", unembedding.mean(0))):
        credit, mechanisms = split(run, unembedding[answer] - less, changes, live, held)
        whole, best = sum(mechanisms.values()), credit.argmax(1, keepdim=True)
        for mechanism, part in mechanisms.items():
            shares = dict(
                repair=(part * whole.sign(), whole.abs()),
                credit=(part * credit.sign(), credit.abs()),
                largest=(part.gather(1, best).T, credit.gather(1, best).T),
                clipped=((part / credit).gather(1, best).clamp(0, 1).T, torch.ones_like(credit[:, :1]).T),
            )
            rows += [dict(against=against, mechanism=mechanism, of=of) | ratio(*two) for of, two in shares.items()]
    return pd.DataFrame(rows).round(4)


def ends(run: Run, resumed: Resumed, heads: list) -> Tensor:
    """Return the end of the stream when the model runs again from a head's block without it: ``(heads, texts, d)``."""
    found = []
    for _, writer, taken, _ in heads:
        module, take = run.taking(writer, taken)
        with hooked(after=[(module, take)]):
            found.append(resumed.ends(resumed.block_of(module))[-1][:, -1].double())
    return torch.stack(found)


def split(run: Run, row: Tensor, changes: Tensor, live: Tensor, held: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return credits and, by mechanism, what compensates them, ``(heads, texts)``; live, held: from :func:`ends`."""
    final, x = run.stream.final, run.end
    w = row.double() * gain_and_bias(final)[0]

    def reads(v: Tensor, at: Tensor) -> Tensor:
        """Return how the final norm and the unembedding read v, with the scale of ``at``."""
        return (w * projected(final, v) * per_unit(final, at)).sum(-1)

    credit, all_held, last_held = (reads(change, x) for change in (changes, x - held, x - live))
    total = reads(x, x) - reads(live, live)
    return credit, dict(rest=credit - all_held, inner=all_held - last_held, final=last_held - total)


def ratio(above: Tensor, below: Tensor) -> dict[str, float]:
    """Return the ratio of two sums over all entries, and its 90 % interval over resampled columns."""
    above, below = above.sum(0), below.sum(0)
    low, high = resampled(above, torch.Generator().manual_seed(0), over=below)
    return dict(share=float(above.sum() / below.sum()), low=float(low), high=float(high))


def case(model: str, text: str) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """Return model, input ids, true next tokens, the most likely others, and whether the true token is most likely."""
    network, tokenizer = language_model(model)
    ids = blocks(tokenizer, text, COUNT, LENGTH + 1)
    ids, answer = ids[:, :-1], ids[:, -1]
    with torch.no_grad():
        logits = forward(network, dict(input_ids=ids)).logits[:, -1]
    rival = logits.scatter(1, answer[:, None], -torch.inf).argmax(1)
    return network, ids, answer, rival, logits.argmax(1) == answer


def summary(names: list[str], values: Tensor) -> pd.DataFrame:
    """Return one row per part, without the baseline."""
    credit, direct, total, _ = values = values[:, :-1]
    low, high = zip(*(map(float, resampled(row, torch.Generator().manual_seed(0))) for row in total), strict=True)
    off = dict(off_direct=credit - direct, off_total=direct - total)
    table = pd.DataFrame({"part": names[:-1], **dict(zip(COLUMNS, values.mean(-1).tolist(), strict=True))})
    return table.assign(low=low, high=high, **{name: error.abs().mean(-1).tolist() for name, error in off.items()})


def agreements(names: list[str], values: Tensor, by_mean: Tensor | None, top: Tensor) -> pd.DataFrame:
    """Return one row per pair of columns; if there are heads, only heads are ranked."""
    heads = [i for i, name in enumerate(names) if name.startswith("head")]
    chosen = heads or [*range(len(names) - 1)]
    pairs = {name: (values[i, chosen], values[j, chosen]) for name, (i, j) in PAIRS.items()}
    if by_mean is not None:
        pairs["total, mean"] = values[2, chosen], by_mean[2, chosen]
    rows, late = [], 2 * len(chosen) // 3
    for pair, (a, b) in pairs.items():
        ranks = torch.tensor(correlations(a, b).to_numpy())
        low, high = resampled(ranks, torch.Generator().manual_seed(0))
        row = dict(pair=pair, rank=ranks.mean(), low=low, high=high, other=correlations(a, b.roll(-1, 1)).mean())
        row |= dict(top=ranks[top].mean(), late=correlations(a[late:], b[late:]).mean())
        rows.append({name: value if isinstance(value, str) else float(value) for name, value in row.items()})
    return pd.DataFrame(rows)


def correlations(a: Tensor, b: Tensor) -> pd.Series:
    """Return for each text the rank correlation over parts of two tensors ``(parts, texts)``."""
    a, b = (pd.DataFrame(t.numpy()).rank() for t in (a, b))
    return a.corrwith(b)


def branches(network: nn.Module, ids: Tensor) -> list[Part]:
    """Return the attentions and MLPs of a model."""
    parts = followed(network, ids).parts
    return [part for part in parts if not isinstance(network.get_submodule(part.writer), nn.Embedding)]


def predicted_totals(network: nn.Module, ids: Tensor, answer, against, ablate: str) -> dict[str, Tensor]:
    """Return what gradients predict for the total effect of each attention and MLP (attribution patching)."""
    written = {}

    def keep(name: str, _module, _args, _kwargs, output) -> None:
        written[name] = output

    after = [(network.get_submodule(part.writer), partial(keep, part.name)) for part in branches(network, ids)]
    with torch.enable_grad(), hooked(after=after):
        logits = network(input_ids=ids, use_cache=False).logits[:, -1]
        wanted = logits.gather(1, answer[:, None])
        wanted = wanted if against is None else wanted - logits.gather(1, against[:, None])
        slopes = torch.autograd.grad(wanted.sum(), list(written.values()))
    products = {}
    for slope, (name, y) in zip(slopes, written.items(), strict=True):
        products[name] = (slope * (y - REPLACED[ablate](y))).detach().sum((1, 2)).double()
    return products
