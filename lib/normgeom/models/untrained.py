"""Models with random weights, fixed by a seed."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

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

    What is to hold for any weights is tried there: gains are not 1 and biases not 0.  A parameter that two modules
    share moves once; models whose parameters have the same shapes move alike.

    Raises:
        ValueError: ``size`` is not positive.
    """
    if not size > 0:
        raise ValueError(f"size: expected a positive number, got {size}")
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p += size * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
    return model
