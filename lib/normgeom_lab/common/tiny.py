"""Tiny models of known families with random weights, and the plainest training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.nn.functional as F
from normgeom.checks import Draws
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

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

    Returns: the model, float32, on the CPU, in evaluation mode.
    """
    config = AutoConfig.for_model(family, **_SIZES | _OWN.get(family, {}) | options)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def scattered(model: nn.Module, draw: Draws, offset: float = 0.0) -> nn.Module:
    """A float64 model whose every weight, gain and bias is its own, so that nothing holds by a zero or a one.

    A normal number of spread :data:`SPREAD` is added to each entry of each parameter; each entry of the embeddings,
    of tokens and of positions, is moved by ``offset`` besides, far out along 1.

    Returns: the model.
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

    Returns: the models, of width 16, 32 and 48 with 2, 1 and 3 blocks.
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


Model = TypeVar("Model", bound=nn.Module)


def untrained(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A transformers model without its head, with the weights it begins with: float32, on the CPU, in evaluation mode.

    The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return AutoModel.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def shaken(model: Model, size: float, seed: int) -> Model:
    """The model itself, with normal entries of standard deviation ``size`` added to all its parameters.

    What is to hold for any weights is tried there: gains are not 1 and biases not 0. A parameter that two modules
    share moves once; models whose parameters have the same shapes move alike.
    """
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p += size * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
    return model


def fit(
    model: nn.Module,
    batches: Iterable[Tensor],
    learning_rate: float,
    warmup: int = 0,
    after: Callable[[nn.Module], object] = lambda model: None,
) -> list[float]:
    """Train on each batch once with Adam (β = 0.9, 0.98), without weight decay or clipping.

    Returns: the loss of each batch before its update, in nats a token. Once it is not finite, training ends, and the
    rest is NaN.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    losses = []
    for step, ids in enumerate(batches):
        if losses and not math.isfinite(losses[-1]):
            losses.append(math.nan)
            continue
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1, (step + 1) / (warmup + 1))
        loss = next_token_loss(model, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(model)
        losses.append(float(loss.detach()))
    return losses


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each token but the first given those before it, in nats; ids ``(batch, length)``."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
