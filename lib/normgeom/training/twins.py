"""Models that differ in the norm alone, and a short training loop for them."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from normgeom.models.gpt2 import gpt2
from normgeom.models.modules import replace_module
from normgeom.models.pretrained import load_pretrained
from normgeom.norms.formula import center, widen
from normgeom.norms.functions import LayerNorm, RMSNorm


class Centring(nn.Module):
    """LayerNorm without its division, γ ⊙ (x − mean) + β: linear in x, so no norm, and ``find_norms`` finds none.

    Args:
        d: size of the last axis, over which the mean is taken.
        affine: whether it has a gain γ, ones at first, and a bias β, zeros at first, both ``(d,)``.
    """

    def __init__(self, d: int, affine: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``(..., d)`` to ``(..., d)``, in the dtype of ``x``; computed in at least float32."""
        y = center(widen(x))
        return (y if self.weight is None else y * self.weight + self.bias).to(x.dtype)


# What stands in the place of each LayerNorm, by name.  Those without an affine part are "plain".
NORMS: dict[str, Callable[[nn.LayerNorm], nn.Module]] = {
    "layer": lambda norm: norm,
    "rms": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps),
    "layer-plain": lambda norm: LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "rms-plain": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "centre": lambda norm: Centring(*norm.normalized_shape),
    "centre-plain": lambda norm: Centring(*norm.normalized_shape, affine=False),
    "none": lambda norm: nn.Identity(),
}

# What the text calls them.
TITLES = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "layer-plain": "LayerNorm, plain",
    "rms-plain": "RMSNorm, plain",
    "centre": "centring only",
    "centre-plain": "centring only, plain",
    "none": "no norm",
}

MODEL_TYPE, CONFIG, WEIGHTS = "normgeom-twin", "config.json", "twin.safetensors"


@dataclass(frozen=True)
class Size:
    """A GPT-2 and how it is trained: one row of the paper's table 2 and what its appendix A.2 adds.

    ``rate`` is the peak of the learning rate, ``batch`` counts windows of ``length`` tokens, and measurements are
    taken after 1 to 10 times ``spacing`` updates and then after each ten times ``spacing``.
    """

    layers: int
    width: int
    heads: int
    rate: float
    steps: int
    batch: int = 64
    length: int = 1024
    spacing: int = 1000

    def config(self, vocabulary: int) -> GPT2Config:
        """Of its GPT-2, for so many tokens."""
        return gpt2(vocabulary, self.length, self.width, self.layers, self.heads)


SIZES = {
    "0.2M": Size(4, 64, 4, 3e-3, 120, batch=16, length=64, spacing=3),
    "1M": Size(4, 128, 4, 1e-3, 600, batch=8, length=128, spacing=6),
    "5M": Size(6, 256, 8, 1e-3, 1_500, batch=16, length=256, spacing=15),
    "10M": Size(6, 384, 6, 1e-3, 5_000, batch=64, length=256, spacing=50),
    "70M": Size(6, 512, 8, 1e-3, 100_000),
    "160M": Size(12, 768, 12, 6e-4, 100_000),
    "410M": Size(24, 1024, 16, 3e-4, 50_000),
    "1B": Size(16, 2048, 8, 3e-4, 50_000),
}


def twins(config: GPT2Config, seed: int) -> tuple[GPT2LMHeadModel, GPT2LMHeadModel]:
    """Two GPT-2 models with the same initial weights, one with LayerNorm and one with RMSNorm.

    The second has :class:`normgeom.RMSNorm` in place of each ``nn.LayerNorm``, with the same ε and gain; the bias β,
    which RMSNorm does not have, is dropped.  The global random state is left as it was.

    Args:
        config: sizes of both models.
        seed: of the initial weights.

    Returns:
        ``(layer_norm_model, rms_norm_model)``, float32, on the CPU, in evaluation mode.
    """
    return tuple(variants(config, seed, ("layer", "rms")).values())


def variants(config: GPT2Config, seed: int, norms: Sequence[str] = tuple(NORMS)) -> dict[str, GPT2LMHeadModel]:
    """GPT-2 models with the same initial weights and one of :data:`NORMS` each, by its name; as :func:`twins`.

    Raises:
        ValueError: a norm that is not among :data:`NORMS`.
    """
    for norm in norms:
        if norm not in NORMS:
            raise ValueError(f"norms: expected some of {', '.join(NORMS)}, got {norm!r}")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        first = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    first.loss_type = "ForCausalLM"  # or transformers warns that it has to guess
    return {norm: _with_norm(copy.deepcopy(first), NORMS[norm]) for norm in norms}


def _with_norm(model: GPT2LMHeadModel, make: Callable[[nn.LayerNorm], nn.Module]) -> GPT2LMHeadModel:
    for module in [module for module in model.modules() if isinstance(module, nn.LayerNorm)]:
        norm = make(module).float()
        norm.load_state_dict({key: module.state_dict()[key] for key in norm.state_dict()})
        replace_module(model, module, norm)
    return model


def save_twin(model: GPT2LMHeadModel, folder: str | os.PathLike) -> None:
    """Write one of :func:`variants`: with LayerNorm as transformers writes a GPT-2, else for :func:`load_twin` alone.

    Of the latter transformers knows neither the type nor the file: it refuses to read LayerNorms into it.
    """
    folder, norm = Path(folder), _norm_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    if norm == "layer":
        model.save_pretrained(folder, max_shard_size="1TB")
    else:
        save_model(model, folder / WEIGHTS)
        about = dict(model_type=MODEL_TYPE, norm=norm, config=model.config.to_diff_dict())
        (folder / CONFIG).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load_twin(folder: str | os.PathLike) -> GPT2LMHeadModel:
    """A model that :func:`save_twin` wrote, on the CPU, in evaluation mode.

    Raises:
        ValueError: the folder holds something else.
    """
    folder = Path(folder)
    try:
        about = json.loads((folder / CONFIG).read_text("utf-8"))
        if about["model_type"] == "gpt2":
            model, amiss = load_pretrained(GPT2LMHeadModel, folder)
            if amiss:
                raise ValueError(f"its weights are not those of its configuration: {amiss}")
            return model
        if about["model_type"] != MODEL_TYPE:
            raise ValueError(f"its model_type is {about['model_type']!r}")
        model = variants(GPT2Config(**about["config"]), 0, (about["norm"],))[about["norm"]]
        load_model(model, folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"folder: expected what normgeom train wrote, {folder} is not that ({error})") from error
    return model


def _norm_of(model: GPT2LMHeadModel) -> str:
    def kind(norm: nn.Module) -> tuple[type, bool]:
        return type(norm), getattr(norm, "weight", None) is None

    found = kind(model.transformer.ln_f)
    return next(name for name, make in NORMS.items() if kind(make(nn.LayerNorm(1))) == found)


def adamw(model: nn.Module, rate: float, decay: float = 0.1) -> torch.optim.AdamW:
    """AdamW, β = 0.9 and 0.95; matrices and embeddings decay, gains and biases do not."""
    groups = {True: [], False: []}
    for parameter in model.parameters():
        groups[parameter.dim() > 1].append(parameter)
    decays = [dict(params=params, weight_decay=decay * matrices) for matrices, params in groups.items() if params]
    return torch.optim.AdamW(decays, lr=rate, betas=(0.9, 0.95))


def warmup_cosine(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The rate of an optimizer over ``steps`` updates, by :func:`rate_factor`."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_factor, steps=steps))


def rate_factor(step: int, steps: int) -> float:
    """Of the peak rate: a linear warm-up over a tenth of the steps, at most 2000, then a cosine to a tenth."""
    warmup = max(1, min(2000, steps // 10))
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(
    model: GPT2LMHeadModel,
    batches: Iterable[Tensor],
    steps: int,
    learning_rate: float,
    description: str | None = "train",
) -> list[float]:
    """Next-token training by :func:`adamw` and :func:`warmup_cosine`, gradients clipped to norm 1.

    Args:
        model: trained in place; left in evaluation mode.
        batches: token ids ``(batch, length)``, at least ``steps`` of them.
        steps: how many updates.
        learning_rate: its peak.
        description: stands before the progress bar; None for no bar.

    Returns:
        the loss of each step in nats a token.

    Raises:
        ValueError: ``steps`` is below 1, or ``batches`` ends before ``steps`` updates.
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    optimizer = adamw(model, learning_rate)
    schedule = warmup_cosine(optimizer, steps)
    losses = []
    model.train()
    for _, ids in zip(tqdm(range(steps), desc=description, disable=description is None), batches, strict=False):
        ids = ids.to(model.device)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    model.eval()
    if len(losses) < steps:
        raise ValueError(f"batches: expected {steps}, got {len(losses)}")
    return torch.stack(losses).tolist()
