"""Tiny models of known families with random weights, and how far apart the predictions of two models are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, PreTrainedModel

from normgeom_lab.common.checks import Draws

_SIZES = dict(
    vocab_size=64,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

# What else the configuration of a family needs, to fit these sizes.
_OWN = {
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "gptj": dict(rotary_dim=4),
    "opt": dict(word_embed_proj_dim=16),
    "bert": dict(is_decoder=True),
    "llama": dict(num_key_value_heads=2),
    "gemma2": dict(num_key_value_heads=2, head_dim=8),
}

PRE_NORM = ("gpt2", "opt", "gpt_neox", "gptj", "llama")  # families whose blocks read the stream through a norm

PARALLEL = ("gpt_neox", "gptj")  # those of them whose attention and MLP read the same stream


def gpt2(vocabulary: int, length: int, width: int, layers: int, heads: int) -> GPT2Config:
    """The configuration of a GPT-2 without dropout, with which no statement about gradients along 1 would be exact."""
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


def small_model(family: str, seed: int = 0, **options) -> PreTrainedModel:
    """An untrained causal language model of two blocks of width 16 and 64 tokens; no global random state changes."""
    config = AutoConfig.for_model(family, **_SIZES | _OWN.get(family, {}) | options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def perturb(model: nn.Module, draw: Draws, size: float = 0.3) -> nn.Module:
    """Add a normal number of standard deviation ``size`` to each entry of each parameter; return the same model."""
    for p in model.parameters():
        p += (size * draw(*p.shape)).to(p)
    return model


@torch.no_grad()
def scattered(model: nn.Module, draw: Draws, offset: float = 0.0) -> nn.Module:
    """Turn a model into float64, perturb it and add ``offset``, a multiple of 1, to its embeddings; return it."""
    perturb(model.double(), draw)
    for weight in {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}:
        weight += offset
    return model


def varied(family: str, draw: Draws, seed: int = 0, offset: float = 0.0) -> list[nn.Module]:
    """Three scattered models of one family, of width 16, 32 and 48 with 2, 1 and 3 blocks, each norm with its own ε."""
    models = []
    for width, blocks in ((16, 2), (32, 1), (48, 3)):
        own = {"opt": dict(word_embed_proj_dim=width), "gpt_neo": dict(attention_types=[[["local"], blocks]])}
        model = small_model(family, seed, hidden_size=width, num_hidden_layers=blocks, **own.get(family, {}))
        for module in model.modules():
            for name in ("eps", "variance_epsilon"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, draw.eps())
        models.append(scattered(model, draw, offset))
    return models


def random_model(family: str, seed: int) -> nn.Module:
    """A :func:`small_model` after :func:`scattered`, both with one seed."""
    return scattered(small_model(family, seed), Draws(seed))


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    r"""The Kullback–Leibler divergence :math:`\sum_tp_t\ln(p_t/q_t)` of ``others`` q from ``logits`` p, in nats.

    Takes ``(..., vocabulary)``, returns ``(...)`` in float64.  The sum computed is Σ p (a + e⁻ᵃ − 1) with
    a = ln p − ln q.  Its terms are not negative, so that nothing cancels when the divergence is small.
    """
    log_p, log_q = (z.double().log_softmax(-1) for z in (logits, others))
    apart = log_p - log_q
    # where e⁻ᵃ could overflow, nothing cancels
    rest = torch.where(apart > -1, log_p.exp() * torch.expm1(-apart.clamp(min=-1)), log_q.exp() - log_p.exp())
    return (log_p.exp() * apart + rest).sum(-1)
