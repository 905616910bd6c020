"""GPT-2 models that differ in the norm alone: how large, how they begin, and as a folder."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from normgeom.models.gpt2 import gpt2
from normgeom.norms.functions import LayerNorm, RMSNorm


class Centring(nn.Module):
    """LayerNorm without its division, γ ⊙ (x − mean) + β: linear in x, so no norm, and ``find_norms`` finds none."""

    def __init__(self, d: int, affine: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = x - x.mean(-1, keepdim=True)
        return y if self.weight is None else y * self.weight + self.bias


# What stands in the place of each LayerNorm.  "Plain" ones have no affine part.
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

MODEL_TYPE = "normgeom-twin"


@dataclass(frozen=True)
class Size:
    """A GPT-2 and how it is trained; with defaults one row of the paper's table 2, and what its appendix A.2 adds.

    ``rate`` is the peak of the learning rate, ``batch`` counts windows of ``length`` tokens, and a model is measured
    after 1 to 10 times ``eval_interval`` steps and then after each ten times ``eval_interval``.
    """

    layers: int
    width: int
    heads: int
    rate: float
    steps: int
    batch: int = 64
    length: int = 1024
    eval_interval: int = 1000

    def config(self, vocabulary: int) -> GPT2Config:
        return gpt2(vocabulary, self.length, self.width, self.layers, self.heads)


SIZES = {
    "0.2M": Size(4, 64, 4, 3e-3, 120, batch=16, length=64, eval_interval=3),
    "1M": Size(4, 128, 4, 1e-3, 600, batch=8, length=128, eval_interval=6),
    "5M": Size(6, 256, 8, 1e-3, 1_500, batch=16, length=256, eval_interval=15),
    "10M": Size(6, 384, 6, 1e-3, 5_000, batch=64, length=256, eval_interval=50),
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

    Example:
        >>> import torch, normgeom as ng
        >>> from transformers import GPT2Config
        >>> layer, rms = ng.twins(GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=4), seed=0)
        >>> [site.kind for site in ng.find_norms(rms)]
        ['rms', 'rms', 'rms', 'rms', 'rms']
        >>> torch.equal(layer.lm_head.weight, rms.lm_head.weight)
        True
    """
    return tuple(variants(config, seed, ("layer", "rms")).values())


def variants(config: GPT2Config, seed: int, norms: Sequence[str] = tuple(NORMS)) -> dict[str, GPT2LMHeadModel]:
    """GPT-2 models as :func:`twins` makes them, with one of :data:`NORMS` each, by its name."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        first = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    first.loss_type = "ForCausalLM"  # or transformers warns that it has to guess
    return {norm: _with_norm(copy.deepcopy(first), norm) for norm in norms}


def _with_norm(model: GPT2LMHeadModel, kind: str) -> GPT2LMHeadModel:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            norm = NORMS[kind](module).float().eval()
            norm.load_state_dict({key: module.state_dict()[key] for key in norm.state_dict()})
            model.set_submodule(name, norm)
    model.config.norm = kind
    return model


def save_twin(model: GPT2LMHeadModel, folder: str | os.PathLike) -> None:
    """Write one of :func:`variants`: with LayerNorm as transformers writes a GPT-2, else for :func:`load_twin` alone.

    The latter has a type that transformers does not know, or it would read LayerNorms into it.
    """
    model.save_pretrained(folder)
    if model.config.norm != "layer":
        about = dict(model_type=MODEL_TYPE, config=model.config.to_diff_dict())
        Path(folder, "config.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def load_twin(folder: str | os.PathLike) -> GPT2LMHeadModel:
    """A model that :func:`save_twin` wrote, on the CPU, in evaluation mode; a ValueError if it is something else."""
    try:
        about = json.loads(Path(folder, "config.json").read_text("utf-8"))
        config = about["config"] if about["model_type"] == MODEL_TYPE else about
        norm = config.get("norm", "layer")
        model = variants(GPT2Config.from_dict(config), 0, (norm,))[norm]
        load_model(model, Path(folder, "model.safetensors"))
    except Exception as error:  # files are missing or damaged, each its way
        raise ValueError(f"folder: expected what normgeom train wrote, {folder} is not that ({error})") from error
    return model
