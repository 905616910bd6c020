"""The gain of nGPT's queries and keys."""

from __future__ import annotations

import torch
from normgeom.norms.formula import upcast
from normgeom.norms.functions import RMSNorm
from normgeom.norms.heads import head_size
from torch import Tensor, nn


class HeadGain(nn.Module):
    """RMSNorm of each head with a gain for each number of each head, ones at first, as nGPT's s_qk is parametrised.

    The gain is ``weight / scale``, and ``weight`` begins at ``scale``: Adam, whose steps do not know the size of what
    they move, changes the gain by its rate over ``scale``.

    Source: Loshchilov et al. (2025), whose queries and keys share one of these.
    """

    def __init__(self, d: int, heads: int, scale: float):
        super().__init__()
        self.heads, self.factor = heads, 1.0 / scale
        self.norm = RMSNorm(head_size(d, heads), eps=0.0, elementwise_affine=False)
        self.weight = nn.Parameter(torch.full((d,), scale))

    def forward(self, x: Tensor) -> Tensor:
        wide = upcast(x)
        normed = self.norm(wide.unflatten(-1, (self.heads, -1))).flatten(-2)
        return (normed * (self.factor * self.weight.to(wide.dtype))).to(x.dtype)
