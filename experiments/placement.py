"""How byte models train with different placements, designs, depths, learning rates and warm-ups."""

import math
from functools import cache
from itertools import product

import pandas as pd
import torch
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens
from normgeom_lab.common.loop import next_token_loss, random_windows
from normgeom_lab.common.stacks import DESIGNS, LanguageModel
from normgeom_lab.placement import BYTE_HEADS, BYTE_LENGTH, BYTE_WIDTH, first_over_last, train_bytes, varying_share
from torch import Tensor

from experiments.registry import experiment

BATCH = 8  # windows per step
LAST = 20  # the recorded loss is the mean over this many last steps
HELD_OUT = 64  # windows that are measured after training
TRAINED = ("pre", "post", "post-small", "deepnorm")
THREE_SEEDS = (0, 1, 2)


@cache
def text() -> Tensor:
    """Return the training text of all models here, as bytes."""
    return byte_tokens("".join(load_corpus("stdlib").texts()))


def about(batch: int, seeds: str, layer_norm: str = "LayerNorm", rest: str = "") -> dict:
    """Return what the notes of all byte models say about model, corpus and optimizer."""
    return dict(
        model=f"byte language model, d = {BYTE_WIDTH}, {BYTE_HEADS} heads, {layer_norm}; initial weights: "
        f"Xavier-normal matrices, embeddings and output head with standard deviation 1/√d{rest}",
        corpus="the standard library's documentation strings (corpus stdlib), "
        f"batches of {batch} windows of {BYTE_LENGTH - 1} predicted bytes",
        optimizer="Adam, β = 0.9 and 0.98, no weight decay, no clipping; linear warm-up, then a constant learning rate",
        seeds=seeds,
    )


@experiment(
    "sweep-placement",
    f"Training loss in nats per byte, averaged over the last {LAST} of 200 steps, for each placement of the norms, "
    "number of blocks (layers), learning rate, number of warm-up steps and seed.",
    dict(placement=TRAINED, layers=(6, 18), rate=(3e-4, 1e-3, 3e-3), warmup=(0, 100), seed=THREE_SEEDS),
    minutes=30,
    **about(BATCH, "0, 1, 2, for weights and batches"),
)
def sweep(placement: str, layers: int, rate: float, warmup: int, seed: int, steps: int = 200) -> dict:
    """Measure one model; its initial weights and batches depend only on the seed."""
    losses = train_bytes(text(), placement, layers, rate, steps, seed, warmup, BATCH)[1]
    return dict(loss=sum(losses[-LAST:]) / LAST)


@experiment(
    "deep-placement",
    "Training loss in nats per byte, averaged over ten steps, of stacks of 48 blocks; learning rate 0.001, no warm-up.",
    dict(placement=TRAINED, layers=(48,), seed=THREE_SEEDS),
    minutes=7,
    **about(BATCH, "0, 1, 2, for weights and batches"),
)
def deep(placement: str, layers: int, seed: int, steps: int = 150) -> list[dict]:
    losses = train_bytes(text(), placement, layers, 1e-3, steps, seed, 0, BATCH)[1]
    return [dict(step=i + 10, loss=sum(losses[i : i + 10]) / 10) for i in range(0, steps, 10)]


@experiment(
    "starts-placement",
    "Stacks of 6 blocks after 120 steps without warm-up. loss: training loss in nats per byte over the last ten "
    "steps. varying: share of the final stream's mean square that varies from token to token. first_over_last: length "
    "of the gradient with respect to the first block's W₂, divided by that for the last block's.",
    dict(rate=(1.5e-3, 2e-3, 3e-3), seed=range(21), placement=("post", "deepnorm")),
    minutes=8,
    **about(4, "0 to 20, for weights and batches"),
)
def start(rate: float, seed: int, placement: str, steps: int = 120) -> dict:
    torch.set_default_dtype(torch.float64)  # the chapter draws weights in this dtype
    model, losses = train_bytes(text(), placement, 6, rate, steps, seed)
    probe = next(random_windows(text(), BYTE_LENGTH, HELD_OUT, seed + 1000))
    varying, ratio = varying_share(model, probe), first_over_last(model, probe)
    return dict(loss=sum(losses[-10:]) / 10, varying=varying, first_over_last=ratio)


SEEDS = (3, 4, 5, 6, 7)  # for the reported means; no setting was chosen with them


@experiment(
    "designs-training",
    f"Each design after 200 steps. loss: training loss in nats per byte, averaged over the last {LAST} steps. "
    f"held_out: loss on {HELD_OUT} other random windows of the text. score: largest absolute attention score before "
    "the softmax on these windows. Values that were not a number (NaN) are recorded as infinite.",
    dict(design=tuple(DESIGNS), layers=(6, 18, 24)),
    minutes=250,
    **about(
        BATCH,
        "for weights and batches; learning rate and warm-up are chosen by held-out loss with seeds 0 to 2 (6 blocks) "
        "or 0 (18 and 24 blocks), then measured with seeds 3 to 7",
        "LayerNorm unless the design has another norm",
        "; DeepNorm's are scaled by its β, on the sphere rows or columns have length 1, and W_O and W₂ of post-small "
        "and hybrid-small are multiplied by 1/√(2M) for M blocks",
    ),
)
def designs(design: str, layers: int) -> pd.DataFrame:
    """Train with all settings, then more seeds with the best by held-out loss; two designs tolerate higher rates."""
    rates = (3e-4, 1e-3, 3e-3, 1e-2, *((3e-2, 1e-1) if design in ("sphere", "post-alpha") else ()))
    settings = product(rates, (0, 100), THREE_SEEDS if layers == 6 else THREE_SEEDS[:1])
    tried = pd.DataFrame([trained(design, layers, *setting) for setting in settings])
    warmup, rate = tried.groupby(["warmup", "rate"]).held_out.mean().idxmin()
    return pd.concat([tried, pd.DataFrame([trained(design, layers, rate, int(warmup), seed) for seed in SEEDS])])


def trained(design: str, layers: int, rate: float, warmup: int, seed: int, steps: int = 200) -> dict:
    """Train one model of a design and return its row of measurements."""
    model, losses = train_bytes(text(), design, layers, rate, steps, seed, warmup, BATCH)
    probe = next(random_windows(text(), BYTE_LENGTH, HELD_OUT, seed + 1000))
    with torch.no_grad():
        held_out = float(next_token_loss(model, probe))
    measured = dict(loss=sum(losses[-LAST:]) / LAST, held_out=held_out, score=largest_score(model, probe))
    found = {name: math.inf if math.isnan(value) else value for name, value in measured.items()}
    return dict(rate=rate, warmup=warmup, seed=seed) | found


@torch.no_grad()
def largest_score(model: LanguageModel, ids: Tensor) -> float:
    """Return the largest absolute attention score in all blocks, heads and positions; NaN if any score is NaN."""
    x, largest = model.embed(ids), torch.tensor(0.0)
    for block in model.stack.blocks:
        scores, _ = block.attention.branch.scores_and_values(block.attention.read(x))
        largest = torch.maximum(largest, scores[~scores.isneginf()].abs().max())
        x = block(x)
    return float(largest)
