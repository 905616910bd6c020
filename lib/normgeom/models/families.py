"""Small models of transformers' families, their weights drawn: what a statement about networks is tried on."""

from __future__ import annotations

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from normgeom.checks import Draws

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
# What a family's configuration must be told besides, or its sizes do not fit these.
_OWN = {
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]),
    "gptj": dict(rotary_dim=4),
    "opt": dict(word_embed_proj_dim=16),
    "bert": dict(is_decoder=True),
    "llama": dict(num_key_value_heads=2),
    "gemma2": dict(num_key_value_heads=2, head_dim=8),
}
SPREAD = 0.3  # of what is added to each parameter
PRE_NORM = ("gpt2", "opt", "gpt_neox", "gptj", "llama")  # families whose blocks read the stream through a norm
PARALLEL = ("gpt_neox", "gptj")  # of these, attention and MLP read the same stream


def small_model(family: str, seed: int = 0, **options) -> nn.Module:
    """A causal language model of two blocks of width 16 and 64 tokens, weights as its family draws them.

    Args:
        family: a ``model_type`` of transformers.
        seed: of the weights; the global random state is left as it was.
        options: of the family's configuration.

    Returns:
        the model, float32, on the CPU, in evaluation mode.

    Raises:
        ValueError: ``family`` is none, or has no language models.
    """
    if family not in CONFIG_MAPPING:
        raise ValueError(f"family: expected a model_type of transformers such as 'gpt2', got {family!r}")
    config = AutoConfig.for_model(family, **_SIZES | _OWN.get(family, {}) | options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def scattered(model: nn.Module, draw: Draws, offset: float = 0.0) -> nn.Module:
    """A float64 model whose every weight, gain and bias is its own, so that nothing holds by a zero or a one.

    A normal number of spread :data:`SPREAD` is added to each entry of each parameter; each entry of the embeddings, of
    tokens and of positions, is moved by ``offset`` besides, far out along 1.

    Args:
        model: changed in place.
        draw: where the numbers come from.

    Returns:
        the model.
    """
    model = model.double()
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    for parameter in model.parameters():
        parameter += SPREAD * draw(*parameter.shape)
        if parameter in embeddings:
            parameter += offset
    return model


def varied(family: str, draw: Draws, seed: int = 0, offset: float = 0.0) -> list[nn.Module]:
    """Three :func:`small_model` s of one family, :func:`scattered`: other widths and depths, each norm with its own ε.

    Args:
        family, seed: as in :func:`small_model`.
        draw: where the ε come from (:meth:`normgeom.checks.Draws.eps`), and what is added to the weights.
        offset: as in :func:`scattered`.

    Returns:
        the models, of width 16, 32 and 48 with 2, 1 and 3 blocks.
    """
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
    """A :func:`small_model`, :func:`scattered`, both from one seed; errors are as there."""
    return scattered(small_model(family, seed), Draws(seed))
