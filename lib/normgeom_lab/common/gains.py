"""The gain of nGPT's queries and keys."""

from __future__ import annotations

import torch
from normgeom.norms.formula import upcast
from normgeom.norms.functions import RMSNorm
from normgeom.norms.heads import head_size
from torch import Tensor, nn


class HeadGain(nn.Module):
    """RMSNorm of each head with a gain for each entry of each head, initially 1, parametrised like nGPT's s_qk.

    The gain is ``weight / scale``, and ``weight`` starts at ``scale``.  Adam, whose steps do not depend on the size of
    what they change, then changes the gain by about the learning rate over ``scale``.

    Source: Loshchilov et al. (2025); there, queries and keys share one such gain.
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
