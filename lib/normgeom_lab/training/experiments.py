"""What training does to the component along 1: orbits under sign flips, twins over time, and costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.models.twins import twins
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom_lab.common.checks import Draws
from normgeom_lab.common.loop import fit, next_token_loss, train
from normgeom_lab.common.stream import last_directions, rotate, stream_writers
from normgeom_lab.common.tiny import perturb
from normgeom_lab.common.variants import variant


def unbiased_twins(config: GPT2Config, seed: int) -> tuple[GPT2LMHeadModel, GPT2LMHeadModel]:
    """Float64 twins ``(LayerNorm, RMSNorm)`` without β and with untied heads, as thm-centred-writers requires."""
    made = []
    for model in twins(config, seed):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_parameter("bias", None)
        made.append(perturb(model.double(), Draws(seed + 1), 0.2))
    return tuple(made)


@torch.no_grad()
def centre(parameters: Iterable[Tensor]) -> None:
    """Remove the part along 1, the mean over the last axis, from each tensor, in place."""
    for p in parameters:
        p -= p.mean(-1, keepdim=True)


def descend(
    model: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    leave_out: Collection[str] = (),
    clip: float = math.inf,
) -> SimpleNamespace:
    """Train a copy of a model on the next token for ten steps, on one batch ``(batch, length)``.

    The part along 1 may be removed from the writers' ``"gradients"`` (before clipping), ``"steps"``, or both.
    """
    model = copy.deepcopy(model)
    writers, rule = stream_writers(model), optimizer(model.parameters())
    if "gradients" in leave_out:
        for writer in writers:
            writer.register_post_accumulate_grad_hook(lambda p: centre([p.grad]))
    if "steps" in leave_out:
        rule.register_step_post_hook(lambda *_: centre(writers))
    losses = fit(model, repeat(ids, 10), rule, clip=clip)
    return SimpleNamespace(model=model, losses=losses.double())


def beside_signs(survey: pd.DataFrame) -> pd.DataFrame:
    """The rows of a survey over steps except those of sign vectors, with quantiles over the latter at the same place.

    ``rank`` is 1 where no sign vector has a smaller occupancy (cor-sign-null).
    """
    rows, place = survey[survey.positions == "rest"], ["step", "site", "side"]
    drawn = rows.direction.str.startswith("signs_")
    groups = rows[drawn].groupby(place, sort=False).occupancy
    quantiles = {"low": 0.05, "median": 0.5, "high": 0.95}
    band = pd.DataFrame({name: groups.quantile(q) for name, q in quantiles.items()} | {"null": groups.agg(list)})
    columns = [*place, "direction", "mean_deg", "std_deg", "occupancy", "mean_norm"]
    table = rows.loc[~drawn, columns].merge(band, left_on=place, right_index=True)
    pairs = zip(table.null, table.occupancy, strict=True)
    table["rank"] = [1 + sum(other < mine for other in of_null) for of_null, mine in pairs]
    return table.drop(columns="null").reset_index(drop=True)


def off_uniform(ranks: Sequence[int], most: int) -> float:
    """The Kolmogorov–Smirnov distance of ranks from the uniform distribution on 1 to ``most`` (cor-sign-null)."""
    found, places = np.asarray(ranks), np.arange(1, most + 1)
    # In integers: equal distances must come out equal, or rounding would decide how ties are counted.
    apart = most * (found[:, None] <= places).sum(0) - found.size * places
    return float(np.abs(apart).max() / (found.size * most))


def chance_of(distance: float, count: int, most: int) -> float:
    """The share of 10,000 draws in which ``count`` uniform ranks from 1 to ``most`` are off by ``distance`` or more."""
    drawn = np.random.default_rng(0).integers(1, most + 1, (10_000, count))
    return float(np.mean([off_uniform(ranks, most) >= distance for ranks in drawn]))


def overlaps(gains: pd.DataFrame, centered: bool) -> pd.DataFrame:
    """‖VᵀW‖²/8 of each norm with unequal gains: V has its eight longest axes at a step, W those at the last step."""
    axes, last = {}, gains.step.max()
    for place, group in gains.groupby(["step", "site"], sort=False):
        weight = torch.tensor(group.weight.to_numpy(np.float64))
        if weight.min() < weight.max():
            axes[place] = Ellipsoid(weight, centered=centered).axes(8)
    rows = [(step, site, float((v.T @ axes[last, site]).square().sum() / 8)) for (step, site), v in axes.items()]
    return pd.DataFrame(rows, columns=["step", "site", "overlap"])


def paired(losses: pd.DataFrame, of: str = "RMSNorm", less: str = "LayerNorm") -> pd.Series:
    """The loss with one norm minus the loss with another, by ``rate`` and ``seed``, where both were trained."""
    by_seed = losses.pivot(index=["rate", "seed"], columns="norm", values="loss")
    return (by_seed[of] - by_seed[less]).dropna()


@torch.no_grad()
def flipped(model: GPT2LMHeadModel, signs: Tensor) -> GPT2LMHeadModel:
    """A copy whose stream is flipped by signs ``(d,)``, and with it the biases of norms (thm-sign-flips)."""
    model = rotate(model, torch.diag(signs))
    for name, p in model.named_parameters():
        if ".ln_" in name and name.endswith("bias"):
            p *= signs
    return model


def moved(config: GPT2Config, norm: str, seed: int) -> GPT2LMHeadModel:
    """A perturbed float64 GPT-2 with one of :data:`normgeom_lab.common.variants.NORMS`."""
    return perturb(variant(config, seed, norm).double(), Draws(seed), 0.2)


def either_order(
    start: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    change: Callable[[GPT2LMHeadModel, Tensor], GPT2LMHeadModel],
    way: Tensor,
) -> tuple[Tensor, Tensor]:
    """All weights of a network that is changed (flipped, rotated) and then trained, and after the opposite order."""
    first = descend(change(start, way), ids, optimizer, clip=1.0).model
    last = change(descend(start, ids, optimizer, clip=1.0).model, way)
    return tuple(nn.utils.parameters_to_vector(model.parameters()).detach() for model in (first, last))


def sign_vectors(d: int) -> Tensor:
    """All sign vectors up to their negatives, ``(2 ** (d − 1), d)`` float32, 1 first."""
    halves = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * (d - 1)).reshape(-1, d - 1)
    return torch.cat([torch.ones(len(halves), 1), halves], dim=1)


def orbit(model: GPT2LMHeadModel, batches: Sequence[Tensor], steps: int) -> list[GPT2LMHeadModel]:
    """One network flipped by each of :func:`sign_vectors` and then trained on the same batches."""
    networks = [flipped(model, signs) for signs in sign_vectors(model.config.n_embd)]
    for network in networks:
        train(network, batches, steps, 3e-3, description=None)
    return networks


@torch.no_grad()
def occupancies(model: nn.Module, ids: Tensor, vectors: Tensor) -> Tensor:
    """Occupancies (eq-occupancy) of directions ``(k, d)`` at the input of the final norm, over all tokens: ``(k,)``."""
    units = nn.functional.normalize(vectors.double(), dim=-1)
    return vectors.shape[-1] * (last_directions(model, ids) @ units.T).square().mean((0, 1))


def share_along_one(model: GPT2LMHeadModel, ids: Tensor) -> float:
    """The share along 1 of the squared gradient of the last block's last matrix (cor-gradient-share)."""
    matrix = model.transformer.h[-1].mlp.c_proj.weight  # the stream is its last axis
    (gradient,) = torch.autograd.grad(next_token_loss(model, ids), matrix)
    gradient = gradient.double()
    return float(gradient.sum(-1).square().sum() / gradient.square().sum()) / gradient.shape[-1]


def newton_schulz(matrix: Tensor) -> Tensor:
    """Approximately the orthogonal factor UVᵀ of a matrix USVᵀ, by a polynomial in XXᵀ times X (prop-rotations).

    Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024).
    """
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.T).T
    x = matrix / matrix.norm().clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` in full precision, extended to vectors, which step along their momentum."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, decay: float):
        super().__init__(parameters, dict(rate=rate, decay=decay))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - 0.95)
                step = p.grad.lerp(average, 0.95)
                if p.dim() == 2:
                    step = newton_schulz(step) * math.sqrt(max(1, p.shape[0] / p.shape[1]))
                p.mul_(1 - group["rate"] * group["decay"]).sub_(step, alpha=group["rate"])
