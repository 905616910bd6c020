"""What the parts of published language models do to a logit: credits, direct and total effects, and patching."""

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

COUNT, LENGTH = 40, 10  # texts, and tokens read of each
SETTINGS = {  # what replaces a part, whether a rival's logit is subtracted, and what a part is
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
ON = f"WikiText-2, {COUNT} windows of {LENGTH} tokens spread over each of its parts, begun by BOS"


def at_the_end(y: Tensor, _other: None = None) -> Tensor:
    """What is written, replaced at the last position only."""
    return torch.cat([y[:, :-1], REPLACED["mean"](y)[:, -1:]], 1)


@experiment(
    "published-credits",
    {
        "published-credits": "What parts of a model do to the logit of the next token less that of the likeliest other "
        "one.  mean, zero, resample: replaced by their mean over texts and positions, by zero, by those of another "
        "text; logit: by the mean, for the logit alone; last: by the mean, at the last position only; heads: the "
        "heads, by their mean.  Means over texts of the columns of normgeom.attribute.  low, high: 90 % of the means "
        "of total over resampled texts.  off_direct: mean size of credit less direct; off_total: of direct less total.",
        "published-agreement": "How alike the columns of published-credits rank the parts, or the heads, of a model: "
        "rank correlations over the parts of one text, means over texts.  low, high: 90 % over resampled texts.  "
        "other: of one column with the second column of the next text.  top: over the texts in which the model finds "
        "the next token likeliest.  late: over the last third of the parts.  total, mean: of total with total for "
        "replacement by the mean, in the same text.",
        "published-patching": "What gradients predict for total of published-credits, of attentions and MLPs, means "
        "over texts: live, with norms as they are, held, with their scales held; rank_…: rank correlations with total "
        "over the parts of one text, means over texts.",
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
    if by == "head":  # only heads, and of one replacement: the record stays small
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
    "Why the total effect of a head, replaced by its mean over texts and positions, is not its credit; heads of the "
    "second half of the blocks.  mechanism: rest, what later parts change while all scales are held as in the run; "
    "inner, what the scales of all norms but the last add; final, what the last scale adds; the three add up to credit "
    "less total.  share: the sum of a mechanism over heads and texts, over a sum.  of: repair, both with the sign "
    "of credit less total; credit, both with the sign of the credit; largest, only in the text with the head's largest "
    "credit; clipped, the same, but the mean of ratios, each clipped to 0 to 1.  low, high: 90 % over resampled texts, "
    "of largest and clipped over heads.  against: the logit of the next token less that of the likeliest other one "
    "(rival) or the mean logit.",
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
    """The end of the stream, the model run again from a head's block on without that head: ``(heads, texts, d)``."""
    found = []
    for _, writer, taken, _ in heads:
        module, take = run.taking(writer, taken)
        with hooked(after=[(module, take)]):
            found.append(resumed.ends(resumed.block_of(module))[-1][:, -1].double())
    return torch.stack(found)


def split(run: Run, row: Tensor, changes: Tensor, live: Tensor, held: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Credits, and by mechanism what makes up for them, ``(heads, texts)``; live, held: ends of the stream."""
    final, x = run.stream.final, run.end
    w = row.double() * gain_and_bias(final)[0]

    def reads(v: Tensor, at: Tensor) -> Tensor:
        """v as the final norm and the unembedding read it, with the scale of ``at``."""
        return (w * projected(final, v) * per_unit(final, at)).sum(-1)

    credit, all_held, last_held = (reads(change, x) for change in (changes, x - held, x - live))
    total = reads(x, x) - reads(live, live)
    return credit, dict(rest=credit - all_held, inner=all_held - last_held, final=last_held - total)


def ratio(above: Tensor, below: Tensor) -> dict[str, float]:
    """The ratio of two sums over all entries, and its 90 % over resampled columns."""
    above, below = above.sum(0), below.sum(0)
    low, high = resampled(above, torch.Generator().manual_seed(0), over=below)
    return dict(share=float(above.sum() / below.sum()), low=float(low), high=float(high))


def case(model: str, text: str) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """The model, what it reads, the true next tokens, the likeliest others, and where the true ones are likelier."""
    network, tokenizer = language_model(model)
    ids = blocks(tokenizer, text, COUNT, LENGTH + 1)
    ids, answer = ids[:, :-1], ids[:, -1]
    with torch.no_grad():
        logits = forward(network, dict(input_ids=ids)).logits[:, -1]
    rival = logits.scatter(1, answer[:, None], -torch.inf).argmax(1)
    return network, ids, answer, rival, logits.argmax(1) == answer


def summary(names: list[str], values: Tensor) -> pd.DataFrame:
    """A row a part but the baseline."""
    credit, direct, total, _ = values = values[:, :-1]
    low, high = zip(*(map(float, resampled(row, torch.Generator().manual_seed(0))) for row in total), strict=True)
    off = dict(off_direct=credit - direct, off_total=direct - total)
    table = pd.DataFrame({"part": names[:-1], **dict(zip(COLUMNS, values.mean(-1).tolist(), strict=True))})
    return table.assign(low=low, high=high, **{name: error.abs().mean(-1).tolist() for name, error in off.items()})


def agreements(names: list[str], values: Tensor, by_mean: Tensor | None, top: Tensor) -> pd.DataFrame:
    """A row a pair of columns; only heads are ranked where there are some."""
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
    """Rank correlations over the parts of each text of two numbers ``(parts, texts)``."""
    a, b = (pd.DataFrame(t.numpy()).rank() for t in (a, b))
    return a.corrwith(b)


def branches(network: nn.Module, ids: Tensor) -> list[Part]:
    """The attentions and MLPs of a model."""
    parts = followed(network, ids).parts
    return [part for part in parts if not isinstance(network.get_submodule(part.writer), nn.Embedding)]


def predicted_totals(network: nn.Module, ids: Tensor, answer, against, ablate: str) -> dict[str, Tensor]:
    """What gradients predict for the total effect of each attention and MLP (attribution patching)."""
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
