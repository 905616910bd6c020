"""Training of the twins and their variants: losses, angles over time, and ellipsoids."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens
from normgeom_lab.common.typed import BODY, KINDS, TIED
from normgeom_lab.common.variants import NORMS, variant
from normgeom_lab.training import DIRECTIONS, SIZES, beside_signs, course, overlaps
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from experiments.registry import experiment, registry
from experiments.stamps import key, of_module

SEEDS = (0, 1, 2)
HELD_OUT = 8192  # bytes
STAGES = (1, 5, 10, 20, 50, 100)  # percentages of the training steps
RULE = (
    "AdamW, β = 0.9 and 0.95, weight decay 0.1 for matrices and embeddings, gradients clipped to norm 1, linear "
    "warm-up over a tenth of the steps (at most 2000), then a cosine to a tenth of the learning rate"
)
ANGLES = (
    "Angles in degrees, occupancies and mean lengths at the input and output (side) of each norm. low, median, high: "
    f"5, 50 and 95 % quantiles of occupancies of {len(DIRECTIONS) - 3} sign vectors; rank: 1 if none of them is lower."
)
FORMS = (
    "overlap: overlap of each ellipsoid's eight longest axes with those after training. q05, near: 5 % quantile of the "
    "outputs' distances to the centre, where 1 is the surface, and the share of distances of at least 0.95."
)
PLANS = {"main": ("1M", 1), "ranks": ("0.2M", 100), "rates": ("1M", 100)}  # size, percent between measurements
GRID = [
    dict(part=("main",), norm=("layer", "rms", "layer-plain", "rms-plain", "none"), rate=(1e-3,), seed=SEEDS),
    dict(part=("ranks",), norm=("rms",), rate=(3e-3,), seed=range(40)),
    dict(part=("ranks",), norm=("layer",), rate=(3e-3,), seed=range(10)),
]
RATES = [  # five seeds for all variants, five more for the twins
    dict(norm=tuple(NORMS), rate=(3e-3, 1e-3), seed=range(5)),
    dict(norm=KINDS, rate=(3e-3, 1e-3), seed=range(5, 10)),
]


def about(seeds: str) -> dict[str, str]:
    """Return what the notes of all these records say about the training."""
    of, small = SIZES["1M"], SIZES["0.2M"]
    return dict(
        model=f"GPT-2, {of.layers} blocks, d = {of.width} ({small.width} in the part ranks), {of.heads} heads, byte "
        "tokens, no dropout, tied embeddings; norms from normgeom_lab.common.variants.NORMS",
        corpus=f"standard library docstrings (corpus stdlib); measured on the last {HELD_OUT} bytes, held out",
        training=f"{of.steps} steps with {of.batch} windows of {of.length} bytes; in the part ranks, {small.steps} "
        f"steps with {small.batch} windows of {small.length} bytes; {RULE}",
        seeds=f"{seeds}, for weights, the order of windows and directions",
    )


def trained(
    part: str, norm: str, rate: float, seed: int, steps: int | None = None
) -> tuple[nn.Module, dict[str, pd.DataFrame]]:
    """Train a model; return it and the tables that normgeom_lab.training.course measures."""
    name, percents = PLANS[part]
    steps = steps or SIZES[name].steps
    size = replace(SIZES[name], lr=rate, steps=steps, eval_interval=max(1, percents * steps // 100))
    model = variant(size.config(256), seed, norm)
    return model, course(model, byte_tokens(load_corpus("stdlib").text), HELD_OUT, size, seed)


def at_stages(table: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows measured at step 0 and at the steps closest to :data:`STAGES`."""
    stages, last = sorted(set(table.step)), table.step.max()
    wanted = {min(stages, key=lambda step: abs(100 * step - percent * last)) for percent in STAGES}
    return table[table.step.isin({0, *wanted})]


@experiment(
    "training",
    {
        "training-loss": "Held-out loss in nats per byte after training; the part ranks has smaller models (0.2M).",
        "training-curve": "Training loss in nats per byte, averaged over ten steps, with learning rate 0.001.",
        "training-angles": ANGLES,
        "training-ranks": f"Occupancy of 1, and its rank among those of 1 and {len(DIRECTIONS) - 3} sign vectors, for "
        "many seeds. median: the median occupancy of the sign vectors.",
        "training-forms": FORMS,
    },
    GRID,
    minutes=70,
    **about("0 to 2 (part ranks: 0 to 39 with RMSNorm and 0 to 9 with LayerNorm)"),
)
def training(part: str, norm: str, rate: float, seed: int, steps: int | None = None) -> dict:
    _, tables = trained(part, norm, rate, seed, steps)
    found = {f"training-{name}": [] for name in ("loss", "curve", "angles", "ranks", "forms")}
    found["training-loss"] = end(tables)
    if part == "main":
        curve = tables["curve"]
        found["training-curve"] = curve.loss.groupby((curve.step - 1) // 10 * 10 + 10).mean().reset_index()
    if norm in KINDS:
        angles = beside_signs(tables["survey"])
        if part == "main":
            some = at_stages(angles)
            found["training-angles"] = some[(some.direction == "uniform") | (some.side == "in")]
            found["training-forms"] = overlaps(tables["gains"], norm == "layer").merge(tables["surface"])
        else:
            shown = angles.query("direction == 'uniform' and side == 'in'")
            found["training-ranks"] = shown[["step", "site", "occupancy", "median", "rank"]]
    return found


def end(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the held-out loss after the last step."""
    return tables["loss"].tail(1).drop(columns="step")


@experiment(
    "training-rates",
    "Held-out loss in nats per byte after training, for all seven variants of the norm with two learning rates.",
    RATES,
    minutes=100,
    **about("0 to 9 for the twins, 0 to 4 for the other variants"),
)
def rates(norm: str, rate: float, seed: int, steps: int | None = None) -> pd.DataFrame:
    return end(trained("rates", norm, rate, seed, steps)[1])


def halves(_: pd.DataFrame) -> dict[str, Tensor]:
    """Return the weights of the pages' twins in float16, without the head, which is the token embedding."""
    tensors = {}
    for kind in KINDS:
        tensors |= {f"{kind}.{name.removeprefix(BODY)}": w.half() for name, w in load_file(_pages(kind)).items()}
    return tensors


def _pages(kind: str) -> Path:
    return registry.kept / f"twin-{kind}-{key(of_module(__name__))}.safetensors"


@experiment(
    "twins",
    "Weights of two GPT-2 models that read bytes and differ only in the norm, rounded to float16.",
    dict(steps=(3000,)),
    minutes=40,
    summary=halves,
    model="GPT-2, 4 layers, d = 64, 4 heads; both models start from the same weights",
    layers=4,
    heads=4,
    eps="1e-05",
    corpus="the standard library's documentation strings (corpus stdlib)",
    training="3000 steps with 32 windows of 128 bytes, learning rate 0.003",
    held_out="the last 16384 bytes",
    seed=0,
)
def pages_twins(steps: int) -> dict:
    """Train the networks that run in the book's pages; return their held-out losses."""
    text, losses = byte_tokens(load_corpus("stdlib").text), {}
    size = replace(SIZES["0.2M"], steps=steps, batch=32, length=128)
    for kind in KINDS:
        model = variant(size.config(256), 0, kind)
        losses[kind] = float(end(course(model, text, 16384, size, 0)).loss.iloc[0])
        save_file({name: w for name, w in model.state_dict().items() if name != TIED}, _pages(kind))
    return losses
