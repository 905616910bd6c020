"""GPT-2 models that differ in the norm alone: how large, how trained, how they begin, and as a folder."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from normgeom.norms.functions import RMSNorm
from normgeom.surgery.converted import save_converted


@dataclass(frozen=True)
class Size:
    """A GPT-2 and how it is trained; ``lr`` is the peak of the learning rate, ``batch`` the windows of a step."""

    layers: int
    width: int
    heads: int
    lr: float
    steps: int
    batch: int
    length: int
    eval_interval: int = 1000
    decay: float = 0.1

    def config(self, vocabulary: int) -> GPT2Config:
        return gpt2(vocabulary, self.length, self.width, self.layers, self.heads)

    @property
    def stages(self) -> set[int]:
        """The steps after which the model is measured: 0 to 10 intervals, then each tenth interval, and the last."""
        each, last = self.eval_interval, self.steps
        return {step for step in (*range(0, 11 * each, each), *range(0, last, 10 * each)) if step < last} | {last}


def gpt2(vocabulary: int, length: int, width: int, layers: int, heads: int) -> GPT2Config:
    """The configuration of a GPT-2 without dropout: with it, no statement about gradients along 1 holds exactly."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


SIZES = {
    "0.2M": Size(4, 64, 4, 3e-3, 120, batch=16, length=64, eval_interval=3),
    "1M": Size(4, 128, 4, 1e-3, 600, batch=8, length=128, eval_interval=6),
    "5M": Size(6, 256, 8, 1e-3, 1_500, batch=16, length=256, eval_interval=15),
    "10M": Size(6, 384, 6, 1e-3, 5_000, batch=64, length=256, eval_interval=50),
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
    return twin(config, seed, "layer"), twin(config, seed, "rms")


def twin(config: GPT2Config, seed: int, norm: str) -> GPT2LMHeadModel:
    """One of :func:`twins`: ``norm`` is ``"layer"`` or ``"rms"``."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
    model.loss_type = "ForCausalLM"  # or transformers warns that it has to guess
    model.config.norm = norm
    if norm == "rms":
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.LayerNorm):
                model.set_submodule(name, RMSNorm(module.normalized_shape, eps=module.eps, dtype=torch.float32).eval())
    return model


def save_twin(model: GPT2LMHeadModel, folder: str | os.PathLike) -> None:
    """Write one of :func:`twins`: with LayerNorm as transformers writes a GPT-2, else for ``ng.load_converted``."""
    if model.config.norm == "layer":
        logging.disable_progress_bar()
        model.save_pretrained(folder)
    else:
        save_converted(model, folder)
