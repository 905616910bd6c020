"""Quantisation to 8 or 4 bits of what the norms of published models pass on to matrices."""

from collections.abc import Mapping
from functools import cache
from itertools import product

import normgeom as ng
import torch
from normgeom.models.flow import stream
from torch import Tensor

from experiments.real_rounding import ABOUT, MODELS, Network, Norm, at_the_end, normalised, short, unrounded
from experiments.registry import experiment


def readers(network: Network) -> dict[ng.NormSite, Tensor]:
    """Return for all norms but the final one the matrices that read them, stacked; norms of branches have none."""
    flow, found = stream(network.model, network.example), {}
    maps = {norm.name: norm.readers for norm in flow.norms}
    for site, module in network.modules.items():
        if network.block_of(module) < len(network.blocks) - 1 and maps.get(site.name):
            found[site] = torch.cat([network.model.get_submodule(name).weight for name in maps[site.name]]).detach()
    return found


@cache
def rotation(d: int) -> Tensor:
    """Return a random rotation in ``d`` dimensions."""
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(0)))[0]


# What is quantised: a norm's output, or its normalised vector after a rotation, with the gain moved into the matrices.
FORMS = {"as trained": lambda d: None, "folded": torch.eye, "rotated": rotation}


def quantised(y: Tensor, bits: int) -> Tensor:
    """Round each row to multiples of its largest absolute entry divided by 2^(bits − 1) − 1."""
    step = y.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (y / step).round() * step


def quantising(read: Mapping[ng.NormSite, Tensor], bits: int, turn: Tensor | None) -> Norm:
    """Return the norm itself, but quantise what it passes on to matrices in one of :data:`FORMS`."""

    def norm(site: ng.NormSite, x: Tensor) -> Tensor:
        n = normalised(site, x)
        if site in read and turn is not None:
            n = quantised(n @ turn, bits) @ turn.T
        y = n * site.weight + site.bias
        return quantised(y, bits) if site in read and turn is None else y

    return norm


def one_quantised(site: ng.NormSite, x: Tensor, matrices: Tensor, bits: int, turn: Tensor | None) -> dict[str, Tensor]:
    """Describe a norm's outputs, and the error in what its matrices compute from them, measured and predicted."""
    n = normalised(site, x).flatten(0, 1)
    y = n * site.weight + site.bias
    passed, through = (y, matrices) if turn is None else (n @ turn, (matrices * site.weight) @ turn)
    largest, computed = passed.abs().amax(-1), (y @ matrices.T).norm(dim=-1)
    error = ((quantised(passed, bits) - passed) @ through.T).norm(dim=-1) / computed
    uniform = largest / (2 ** (bits - 1) - 1) / 12**0.5 * through.norm() / computed  # for errors uniform within a step
    measured, predicted = error.square().mean().sqrt(), uniform.square().mean().sqrt()
    return dict(
        crest=(largest / passed.square().mean(-1).sqrt()).median(),
        share=(n.square().amax(-1) / n.square().sum(-1)).median(),
        measured=measured,
        predicted=predicted,
        ratio=measured / predicted,
    )


@experiment(
    "published-quantised",
    {
        "published-quantised": "What norms pass on to matrices, quantised by rows to 8 or 4 bits with steps of the "
        "largest entry over 127 or 7. form: as trained; folded, with the gain in the matrices; rotated, also rotated "
        "at random. Medians over norms: crest, largest entry over root mean square; share, largest coordinate's share "
        "of the normalised vector's squared length; measured, predicted: relative error of what the matrices compute, "
        "and what uniform rounding errors predict. ratio_…: quantiles over norms of measured over predicted.",
        "published-quantised-end": "All these norms quantised at once, compared with float32. error: relative error "
        "after the final norm; kl: in nats; agree: share of positions (every fourth) with the same most likely token.",
    },
    dict(model=MODELS),
    minutes=4,
    workers=1,
    **ABOUT,
)
def int8_and_int4(model: str) -> dict[str, list[dict]]:
    network = Network(model)
    inputs, base, rows, last = network.inputs(), network.run(unrounded)[-1], [], []
    read = readers(network)
    for form, bits in product(FORMS, (8, 4)):
        q = FORMS[form](base.shape[-1])
        columns = [one_quantised(site, network.measured(inputs[site]), w, bits, q) for site, w in read.items()]
        row = {name: torch.stack([found[name] for found in columns]) for name in columns[0]}
        ratio = row.pop("ratio")
        row = {name: values.median() for name, values in row.items()} | dict(ratio_q50=ratio.median())
        row |= {f"ratio_q{at:02d}": ratio.quantile(at / 100) for at in (5, 95)}
        rows.append(dict(form=form, bits=bits) | short(row))
        end = network.run(quantising(read, bits, q))[-1]
        last.append(dict(form=form, bits=bits) | short(at_the_end(network, end, network, base)))
    return {
        "published-quantised": rows,
        "published-quantised-end": [row for row in last if "kl" in row],
    }
