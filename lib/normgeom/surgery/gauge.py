"""Changes of gauge: what lies along 1 is moved, and what a network computes is not (prop-gauge, prop-two-scenarios)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom.geometry.uniform import uniform_vector
from normgeom.models.gpt2 import read, written
from normgeom.models.layouts import layout_of
from normgeom.models.sites import find_norms
from normgeom.surgery.dropping import shifted
from normgeom.surgery.surgery import center_writers, fold_norms
from normgeom.survey.runs import of_uniform
from normgeom.survey.survey import Survey


@torch.no_grad()
def with_means_of(model: GPT2LMHeadModel, other: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of a GPT-2 in which every writer puts along 1 what the same writer of another puts there.

    Of weights, biases and embeddings the mean over the stream is the other's, and the rest is as it was.  With
    LayerNorm, what the norms put out stays the same (prop-gauge); a head that shares the embedding's matrix does not.

    Raises:
        ValueError: one of them is no GPT-2, or they have other sizes.
    """
    model = copy.deepcopy(model)
    mine, theirs = written(model), written(other)
    if [p.shape for p in mine] != [p.shape for p in theirs]:
        raise ValueError("other: expected a model of the same sizes, got one of others")
    for p, wanted in zip(mine, theirs, strict=True):
        p += wanted.to(p).mean(-1, keepdim=True) - p.mean(-1, keepdim=True)
    return model


@torch.no_grad()
def rotated(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 with RMSNorm whose stream is rotated, and which computes the same (prop-two-scenarios).

    Gains and biases are folded first (:func:`normgeom.fold_norms`).  Then everything that writes to the stream writes
    Qx where it wrote x, and everything that reads it, the head included, takes Q back.  RMSNorm without a gain commutes
    with Q, the freedom that SliceGPT uses: https://arxiv.org/abs/2401.15024.

    Args:
        model: every norm an RMSNorm; it stays as it is.
        rotation: Q, ``(d, d)``, orthogonal.

    Raises:
        ValueError: ``rotation`` has another shape or is not orthogonal; a norm is a LayerNorm, which does not commute
            with Q; the model is no GPT-2 with a language-model head.
    """
    d = written(model)[0].shape[-1]
    if rotation.shape != (d, d):
        raise ValueError(f"rotation: expected shape ({d}, {d}), got {tuple(rotation.shape)}")
    off = float((rotation.double() @ rotation.double().T - torch.eye(d, dtype=torch.float64)).abs().max())
    if not off <= d * torch.finfo(rotation.dtype).eps * 8:
        raise ValueError(f"rotation: expected an orthogonal matrix, QQᵀ is off the identity by {off:.1e}")
    if kinds := {site.kind for site in find_norms(model)} - {"rms"}:
        raise ValueError(f"model: expected RMSNorm throughout, which commutes with rotations, got {', '.join(kinds)}")
    model = fold_norms(copy.deepcopy(model))
    rows = rotation.T  # of row vectors: x → xQᵀ
    for p in (*written(model), model.lm_head.weight):
        p.copy_(p @ rows.to(p))
    for p in read(model):
        p.copy_(rotation.to(p) @ p)
    return model


def onto_uniform(direction: Tensor) -> Tensor:
    """The reflection ``(d, d)`` that takes a direction ``(d,)`` to that of 1; the identity where it lies there.

    Raises:
        ValueError: ``direction`` is no vector, or is 0.
    """
    if direction.dim() != 1 or not direction.norm() > 0:
        raise ValueError(f"direction: expected a vector that is not 0, got shape {tuple(direction.shape)}")
    across = direction / direction.norm() - _unit_uniform(direction)
    across = nn.functional.normalize(across, dim=0)
    return torch.eye(len(across), dtype=across.dtype, device=across.device) - 2 * torch.outer(across, across)


@torch.no_grad()
def scenarios(model: GPT2LMHeadModel, batch: Tensor, c: float = 10.0) -> pd.DataFrame:
    """How much or little lies along 1 at the last norm, in weights that compute what a model does (prop-two-scenarios).

    With LayerNorm, the writers are centred, or ``c`` is added to each entry of the token embedding; with RMSNorm, the
    stream is rotated until 1 is the emptiest direction at the last norm, or the fullest.

    Args:
        model: a GPT-2 with a language-model head, its norms all LayerNorm or all RMSNorm; it stays as it is.
        batch: token ids ``(batch, length)``, length at least 2.

    Returns:
        one row a set of weights: ``share``, the mean of cos² of the angle to 1 at the last norm's input, first
        positions left out; ``"change of log p"``, the largest of a log-probability at any position.

    Raises:
        ValueError: the norms are of both kinds; or as for :func:`rotated`.
    """
    kinds = {site.kind for site in find_norms(model)}
    if len(kinds) != 1:
        raise ValueError(f"model: expected norms of one kind, got {', '.join(sorted(kinds)) or 'none'}")
    if kinds == {"layer"}:
        least, most = center_writers(copy.deepcopy(model)), shifted(model, c)
    else:
        units = _directions(model, batch)
        _, vectors = torch.linalg.eigh(units.T @ units)  # ascending
        least, most = (rotated(model, onto_uniform(vectors[:, i])) for i in (0, -1))
    plain = model(batch).logits.double().log_softmax(-1)
    rows = {}
    for name, other in {"as trained": model, "least along 1": least, "most along 1": most}.items():
        units = _directions(other, batch)
        change = other(batch).logits.double().log_softmax(-1) - plain
        share = (units @ _unit_uniform(units)).square().mean()
        rows[name] = {"share": float(share), "change of log p": float(change.abs().max())}
    return pd.DataFrame.from_dict(rows, orient="index")


def _unit_uniform(like: Tensor) -> Tensor:
    one = uniform_vector(like.shape[-1]).to(like)
    return one / one.norm()


def _directions(model: nn.Module, batch: Tensor) -> Tensor:
    """What enters the last norm, scaled to length 1, ``(n, d)`` float64, first positions left out."""
    seen = []
    final = model.get_submodule(layout_of(model).final)
    hook = final.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        model(batch)
    finally:
        hook.remove()
    return nn.functional.normalize(seen[0][:, 1:].flatten(0, 1).double(), dim=-1)


@torch.no_grad()
def turned(model: nn.Module, constants: Sequence[float], batch: Tensor) -> pd.DataFrame:
    """Add c·1 to every token embedding of a model: the angle to 1 turns; does the output change?

    Args:
        model: a transformers model; its head, if it has one, is left out.
        constants: values of c.
        batch: token ids ``(batch, length)``.

    Returns:
        one row a c: ``c``; ``"angle at the last norm / degrees"``, its mean at the input, first positions left out; and
        ``"change of output"``, the length of the change of all hidden vectors behind the last norm, over their length.

    Raises:
        ValueError: there is no constant.
    """
    if not constants:
        raise ValueError("constants: expected at least one, got none")
    body = model.base_model
    plain = body(batch).last_hidden_state
    rows = []
    for c in constants:
        moved = shifted(body, c)
        angles = Survey(moved, ("uniform",)).run([batch], progress=False).table()
        change = (moved(batch).last_hidden_state - plain).norm() / plain.norm()
        angle = of_uniform(angles).mean_deg.iloc[-1]
        rows.append({"c": c, "angle at the last norm / degrees": angle, "change of output": float(change)})
    return pd.DataFrame(rows)
