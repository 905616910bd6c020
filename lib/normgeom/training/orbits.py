"""A network whose stream is flipped or turned: the networks that this makes of it, and their trainings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom.models.gpt2 import read, written
from normgeom.models.sites import find_norms
from normgeom.models.untrained import shaken
from normgeom.models.watch import watch
from normgeom.training.centring import descend, next_token_loss
from normgeom.training.twins import train, variants

RATE = 3e-3


@torch.no_grad()
def flipped(model: GPT2LMHeadModel, signs: Tensor) -> GPT2LMHeadModel:
    """A copy whose stream has other signs: with D = diag(signs), writers become DW and Db, readers RD (thm-sign-flips).

    The bias β of a norm becomes Dβ, gains stay.  With RMSNorm no output changes and every vector h of the stream
    becomes Dh, to the last bit.

    Args:
        signs: ``(d,)``, entries 1 and −1.

    Raises:
        ValueError: ``signs`` has another size or other entries; the model is no GPT-2.
    """
    width = model.config.n_embd
    if signs.shape != (width,) or not bool((signs.abs() == 1).all()):
        raise ValueError(f"signs: expected {width} entries of 1 and −1, got {signs}")
    model = turned(model, torch.diag(signs))
    for name, p in model.named_parameters():
        if ".ln_" in name and name.endswith("bias"):
            p *= signs
    return model


@torch.no_grad()
def turned(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy whose stream is turned: with an orthogonal Q, writers become QW and Qb, readers RQᵀ (prop-rotations).

    Gains and biases of norms stay, so the function is the same where Q commutes with them, as any does with none.

    Args:
        rotation: Q, ``(d, d)``.

    Raises:
        ValueError: ``rotation`` has another size or is not orthogonal; the model is no GPT-2.
    """
    width = model.config.n_embd
    model, unit = copy.deepcopy(model), torch.eye(width, dtype=rotation.dtype)
    if rotation.shape != unit.shape or not torch.allclose(rotation @ rotation.T, unit, atol=1e-5):
        raise ValueError(f"rotation: expected an orthogonal matrix of size {width}, got {tuple(rotation.shape)}")
    turn = written(model)
    if model.lm_head.weight is not model.transformer.wte.weight:
        turn.append(model.lm_head.weight)
    for p in turn:  # the stream is the last axis
        p.copy_(p @ rotation.T.to(p))
    for matrix in read(model):
        matrix.copy_(rotation.to(matrix) @ matrix)
    return model


def moved(config: GPT2Config, norm: str, seed: int) -> GPT2LMHeadModel:
    """One of :func:`normgeom.training.twins.variants` away from its start, in float64: gains not 1, biases not 0."""
    return shaken(variants(config, seed, (norm,))[norm].double(), 0.2, seed)


def either_order(
    start: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    change: Callable[[GPT2LMHeadModel, Tensor], GPT2LMHeadModel],
    way: Tensor,
) -> tuple[Tensor, Tensor]:
    """All weights in one row, of the network that is changed and then trained, and trained and then changed.

    Trained is :func:`normgeom.training.centring.descend`, ten updates of clipped gradients; a rule for which both are
    equal treats the network as it treats the changed one (thm-sign-flips, prop-rotations).

    Args:
        ids: ``(batch, length)``.
        change: :func:`flipped` or :func:`turned`.
        way: its second argument.
    """
    first = descend(change(start, way), ids, optimizer, clip=1.0).model
    last = change(descend(start, ids, optimizer, clip=1.0).model, way)
    return tuple(nn.utils.parameters_to_vector(model.parameters()).detach() for model in (first, last))


def sign_vectors(d: int) -> Tensor:
    """All vectors of signs up to their negatives, ``(2 ** (d − 1), d)`` float32; 1 is the first.

    Raises:
        ValueError: ``d`` is below 2.
    """
    if d < 2:
        raise ValueError(f"d: expected at least 2, got {d}")
    halves = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * (d - 1)).reshape(-1, d - 1)
    return torch.cat([torch.ones(len(halves), 1), halves], dim=1)


def trained(model: GPT2LMHeadModel, batches: Sequence[Tensor], updates: int) -> GPT2LMHeadModel:
    """A copy after some updates of :func:`normgeom.training.twins.train`, at a peak rate of 0.003.

    Args:
        batches: token ids ``(batch, length)``, taken in turn.

    Raises:
        ValueError: there is no batch, or ``updates`` is below 1.
    """
    if not len(batches):
        raise ValueError("batches: expected at least one, got none")
    model = copy.deepcopy(model)
    train(model, cycle(batches), updates, RATE, description=None)
    return model


def orbit(model: GPT2LMHeadModel, batches: Sequence[Tensor], updates: int) -> list[GPT2LMHeadModel]:
    """All networks that flips make of one, each trained on the same text, in the order of :func:`sign_vectors`.

    There are 2 ** (d − 1) of them: flips of all signs together change nothing that an occupancy or a share shows.
    """
    return [trained(flipped(model, signs), batches, updates) for signs in sign_vectors(model.config.n_embd)]


@torch.no_grad()
def occupancies(model: nn.Module, ids: Tensor, vectors: Tensor) -> Tensor:
    """Occupancies (eq-occupancy) of some directions at the input of the last norm, over all tokens of a batch.

    Args:
        ids: ``(batch, length)``.
        vectors: ``(k, d)``; their lengths play no part.

    Returns:
        ``(k,)`` float64.
    """
    seen, last = [], find_norms(model)[-1]
    with watch(model, [last], lambda site, x_in, x_out: seen.append(x_in)):
        model(ids)
    hidden, units = (nn.functional.normalize(t.double(), dim=-1) for t in (seen[0], vectors))
    return last.dim * (hidden @ units.T).square().mean((0, 1))


def share_along_one(model: GPT2LMHeadModel, ids: Tensor) -> float:
    """Of the gradient of the last block's last matrix, the share of its squared length along 1 (cor-gradient-share)."""
    matrix = model.transformer.h[-1].mlp.c_proj.weight  # the stream is its last axis
    (gradient,) = torch.autograd.grad(next_token_loss(model, ids), matrix)
    gradient = gradient.double()
    return float(gradient.sum(-1).square().sum() / gradient.square().sum()) / gradient.shape[-1]
