"""Converted models that an architecture of transformers computes as it is, RMSNorm in the place of LayerNorm."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, LlamaConfig, OlmoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from normgeom.norms.functions import RMSNorm
from normgeom.surgery.double import double_throughout

_BOUND = 1e-10  # of a logit in float64, over the largest
_OF_A_CLASS = ("model_type", "architectures", "transformers_version")


def as_plain(model: nn.Module) -> PreTrainedModel | None:
    """The same function of an architecture of transformers with RMSNorm; None where none fits exactly.

    Of transformers 5.23, OLMo without ``clip_qkv`` is Llama: its LayerNorm has neither gain nor bias, all else is
    Llama's.  What nearly fits:

    - StarCoder2 and Jais 2, without sliding windows, are Arcee (biases, MLP without a gate), but β of their final norm
      becomes a bias of the head, which Arcee's has not.  Nemotron too, which turns only a part of each head besides.
    - StableLM with sequential blocks would be Llama, but for the part of each head that it turns and the head's bias.
    - Ernie 4.5 MoE and Zaya alone have a head with a bias behind RMSNorm; of what converts, Ernie's gated MLP is
      StableLM's alone, but it turns neighbouring coordinates of queries and keys where StableLM turns halves.
    - Cohere needs no bias, but attention and MLP side by side on one norm; Phi, GPT-J, CodeGen, Falcon and GPT-NeoX
      have such blocks too, and biases; MPT needs ALiBi, the others learned positions: none of these was found with
      RMSNorm.

    Args:
        model: that :func:`normgeom.to_rms_norm` changed, on the CPU.

    Returns:
        a model of its dtype whose logits are those of ``model``, both computed in float64, to 1e-10 of the largest.
    """
    make = _PLAIN.get(type(model).__name__)
    config = make and make(model)
    if config is None:
        return None
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        plain, told = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
            None, config=config, state_dict=state, dtype=model.dtype, output_loading_info=True
        )
    finally:
        logging.set_verbosity(verbosity)
    if any(told.values()) or not _same(model, plain):
        return None
    plain.generation_config = model.generation_config
    return plain.eval()


def is_plain(model: nn.Module) -> bool:
    """Whether a model is of transformers alone, with no norm of ours."""
    return not any(isinstance(module, RMSNorm) for module in model.modules())


def _llama(model: nn.Module) -> LlamaConfig | None:
    config: OlmoConfig = model.config
    if config.clip_qkv is not None:
        return None
    known = LlamaConfig().to_dict().keys() - set(_OF_A_CLASS)
    settings = {name: value for name, value in config.to_dict().items() if name in known}
    return LlamaConfig(**settings | dict(rms_norm_eps=model.model.norm.eps, mlp_bias=False))


_PLAIN: dict[str, Callable[[nn.Module], PreTrainedConfig | None]] = {"OlmoForCausalLM": _llama}


def _same(model: nn.Module, plain: nn.Module) -> bool:
    ids = torch.arange(2 * 11).reshape(2, 11) % model.config.vocab_size
    with double_throughout(), torch.no_grad():
        one, other = (copy.deepcopy(of).double().eval()(ids).logits for of in (model, plain))
    return float((one - other).abs().max()) <= _BOUND * float(one.abs().max())
