"""GPT-2 models that differ only in the norm."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from normgeom.norms.functions import RMSNorm


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
