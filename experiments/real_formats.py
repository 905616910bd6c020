"""Statistics of a norm in three formats, in published models: the error of the stream by depth, and its prediction."""

import torch
from torch import Tensor

from experiments.real_models import about
from experiments.real_rounding import (
    CORPUS,
    MODELS,
    Network,
    centred,
    factor,
    rms,
    short,
    squared_errors,
    unrounded,
    with_errors,
)
from experiments.registry import experiment

FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SMALL = 2.0**-9  # the largest error of a scale whose effect is measured


@experiment(
    "published-formats",
    "Relative error of the stream behind each block, root mean square (last row: behind the last norm), where squares, "
    "mean and root of every norm are rounded to a format, float16 after scaling each row by a power of two, and all "
    "else is float64.  predicted: what errors of the same mean and spread as each scale's cause, of random sign, to "
    "first order.",
    dict(model=MODELS, format=tuple(FORMATS)),
    minutes=6,
    workers=1,
    corpus=CORPUS,
    **about(*MODELS),
)
def formats(model: str, format: str) -> list[dict]:
    generator, dtype = torch.Generator().manual_seed(0), FORMATS[format]
    way = "scaled" if format == "float16" else "statistics"
    network = Network(model, torch.float64)
    exact, inputs, mean, spread = network.run(unrounded), network.inputs(), {}, {}

    def rounded(site, x: Tensor) -> Tensor:
        c = centred(site, x)
        return c * factor(c, site.eps, dtype, way) * site.weight + site.bias

    for site, x in inputs.items():
        c = centred(site, x)
        wrong = factor(c, site.eps, dtype, way) / factor(c, site.eps, torch.float64) - 1
        signs = torch.randint(2, wrong.shape, generator=generator) * 2.0 - 1
        mean[site], spread[site] = wrong.mean(), wrong.std() * signs
    small = SMALL / max(error.abs().max() for error in (*mean.values(), *spread.values()))

    def effect(errors: dict) -> Tensor:
        """Squared, of small multiples of these errors of scales, in units of the errors."""
        ends = network.run(with_errors({site: small * error for site, error in errors.items()}))
        return squared_errors(ends, exact).mean(-1) / small**2

    measured = rms(network.run(rounded), exact)
    predicted = (effect(mean) + effect(spread)).sqrt()
    columns = dict(measured=measured, predicted=predicted)
    return [dict(block=i + 1) | short({k: v[i] for k, v in columns.items()}) for i in range(len(exact))]
