"""The streams of published models before the final norm: logit lenses and steering."""

from contextlib import nullcontext

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.held import per_unit, projected
from normgeom.models.watch import forward, hooked
from normgeom.surgery.ablation import scales
from torch import Tensor, nn
from torch.nn.functional import normalize

from experiments.real_attribution import COUNT, LENGTH, ON, case
from experiments.real_models import LANGUAGE, PARTS, Resumed, about, blocks, direction, language_model
from experiments.registry import experiment

COUNTED, EVERY = 24_000, 12  # windows of the other text; every 12th is used for the fit
UNIFORM = 0.1  # share of the uniform distribution in the guess by frequency
RIDGE = 1e-5  # relative to the mean square of an entry
ALPHAS = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1, 4)


def read_by_blocks(network: nn.Module) -> list[ng.NormSite]:
    """Return the norms at the beginning of the blocks, and the final norm."""
    return [site for site in ng.find_norms(network) if site.name.endswith(("input_layernorm", "model.norm"))]


@torch.no_grad()
def streams(network: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Return by name what each norm of :func:`read_by_blocks` reads, ``(texts, positions, d)``."""
    found = {}
    with ng.watch(network, read_by_blocks(network), lambda site, x, _: found.update({site.name: x})):
        forward(network, dict(input_ids=ids, use_cache=False))
    return found


def normalised(site: ng.NormSite, x: Tensor) -> Tensor:
    """Return the normalised vector n with a 1 appended, ``(..., d + 1)``."""
    n = projected(site, x) * per_unit(site, x)
    return torch.cat([n, torch.ones_like(n[..., :1])], -1)


@torch.no_grad()
def translators(network: nn.Module, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Fit by norm the map from (n, 1) to the final norm's output by least squares; also return the mean final scale."""
    end, d = read_by_blocks(network)[-1], network.config.hidden_size
    sums, scale = {}, []
    for batch in ids.split(100):
        read = {name: x[:, 1:].flatten(0, 1) for name, x in streams(network, batch).items()}
        target = end.module(read[end.name])
        scale.append(scales(end, read[end.name]))
        for name, x in read.items():
            n = normalised(end, x)
            sums[name] = sums.get(name, 0) + (n.T @ torch.cat([n, target], 1)).double()
    fitted = {}
    for name, products in sums.items():
        square, cross = products.split([d + 1, d], 1)
        square = square + RIDGE * square.diagonal().mean() * torch.eye(d + 1)
        fitted[name] = torch.linalg.solve(square, cross).float()
    return fitted, torch.cat(scale).mean()


@experiment(
    "published-lens",
    "The logit lens at the input of each block and of the final norm: mean divergence, in nats, of its predictions "
    "from the model's over all positions except 0. own, final, mean: the lens divides by the scale of the stream "
    "there, the token's final scale, or the mean final scale. fitted: an affine map from the normalised stream to the "
    f"final norm's output replaces the norm, fitted by least squares on {COUNTED // EVERY} windows of {LENGTH} tokens "
    "of the other part of WikiText-2. uniform: a uniform guess instead of the lens. frequency: the frequencies of "
    f"tokens in that other part, mixed with {UNIFORM:.0%} of a uniform guess.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=15,
    corpus=ON,
    **about(*LANGUAGE),
)
@torch.no_grad()
def lens(model: str, text: str) -> pd.DataFrame:
    network, ids, *_ = case(model, text)
    (other,) = set(PARTS) - {text}
    rest = blocks(language_model(model)[1], other, COUNTED, LENGTH)
    fitted, mean = translators(network, rest[::EVERY])
    end, rows = read_by_blocks(network)[-1], []
    read = {name: x[:, 1:].flatten(0, 1) for name, x in streams(network, ids).items()}
    truth = network.lm_head(end.module(read[end.name]))
    log_p, last = truth.log_softmax(-1), scales(end, read[end.name])
    p, uniform = log_p.exp(), torch.full_like(truth[0], 1 / truth.shape[-1])
    counts = torch.bincount(rest[:, 1:].flatten(), minlength=len(uniform))
    frequency = (1 - UNIFORM) * counts / counts.sum() + UNIFORM * uniform

    def apart(z: Tensor) -> float:
        """Return the mean divergence of the predictions with logits z from the model's."""
        return float(((p * log_p).sum(-1) - (p * z).sum(-1) + z.logsumexp(-1)).mean())

    null = dict(uniform=apart(uniform.log()), frequency=apart(frequency.log()))
    for name, x in read.items():
        s, z = scales(end, x), network.lm_head(end.module(x))
        linear = network.lm_head(normalised(end, x) @ fitted[name])
        tempered = dict(final=z * (s / last)[:, None].to(z), mean=z * (s / mean)[:, None].to(z))
        kl = {lens: apart(logits) for lens, logits in dict(own=z, **tempered, fitted=linear).items()}
        rows.append(dict(site=name) | kl | null)
    return pd.DataFrame(rows).round(4)


@experiment(
    "published-steering",
    "How far a vector that is added to the stream at the middle block's input, at all positions except 0, moves the "
    "logits at the last position. moved: standard deviation over the vocabulary of their change, median over texts; "
    "infinite if float32 overflows. alpha: the vector's length over the stream's mean length there. direction: text, "
    "from the mean stream of these texts to that of the standard library's documentation; random, a random vector. of: "
    "live, norms as they are; held, all scales held as without the vector; ratio, held over live. low, high: 90 % "
    "interval over resampled texts.",
    dict(model=LANGUAGE, text=PARTS[:1]),
    minutes=4,
    corpus=ON,
    **about(*LANGUAGE),
)
@torch.no_grad()
def steering(model: str, text: str) -> list[dict]:
    network, ids, *_ = case(model, text)
    name = f"model.layers.{len(network.model.layers) // 2}.input_layernorm"
    documented = blocks(language_model(model)[1], "stdlib", COUNT, LENGTH)
    here, there = (streams(network, texts)[name][:, 1:].flatten(0, 1) for texts in (ids, documented))
    towards = normalize(there.mean(0) - here.mean(0), dim=0)
    vectors = dict(text=towards, random=direction("random_0", here.shape[-1]))
    size, moved, rows = here.norm(dim=-1).mean(), {}, []
    for norms in ("live", "held"):
        with ng.held_scales(network, ids) if norms == "held" else nullcontext():
            moved[norms] = steered(network, ids, {(way, a): a * size * v for way, v in vectors.items() for a in ALPHAS})
    for (way, alpha), live in moved["live"].items():
        held = moved["held"][way, alpha].nan_to_num(torch.inf)
        for of, values in dict(live=live, held=held, ratio=held / live).items():
            rows.append(dict(direction=way, alpha=alpha, of=of) | middle(values))
    return rows


def middle(values: Tensor) -> dict[str, float]:
    """Return the median of values, which may be infinite, and a 90 % interval of the medians of resampled values."""
    generator = torch.Generator().manual_seed(0)
    drawn = values[torch.randint(len(values), (1000, len(values)), generator=generator)].median(1).values
    low, high = (drawn.quantile(q, interpolation="nearest") for q in (0.05, 0.95))
    return dict(moved=float(values.median()), low=float(low), high=float(high))


def steered(network: nn.Module, ids: Tensor, vectors: dict) -> dict:
    """Return how far each vector, added to the stream at the middle block's input, moves the logits of each text."""
    layers = network.model.layers
    resumed, layer = Resumed(layers, lambda: forward(network, dict(input_ids=ids, use_cache=False))), len(layers) // 2

    def logits(v: Tensor) -> Tensor:
        def add(_module, args, kwargs):
            return (torch.cat([args[0][:, :1], args[0][:, 1:] + v], 1), *args[1:]), kwargs

        with hooked(before=[(layers[layer], add)]):
            return network.lm_head(network.model.norm(resumed.ends(layer)[-1])[:, -1])

    before = logits(torch.zeros(ids.shape[1] - 1, 1))
    return {name: (logits(v) - before).std(-1, correction=0) for name, v in vectors.items()}
