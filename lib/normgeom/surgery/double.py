"""Float64 where a model's code says float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class double_throughout(TorchFunctionMode):
    """While the block runs, a model of float64 weights computes in float64 also where its code asks for float32.

    Many models of transformers cast to float32 what they hold too delicate for float16: RMSNorm in all of them, the
    attention of GPT-J and GPT-Neo, softmax.  A model converted by :meth:`torch.nn.Module.double` does so still, and its
    logits are right to seven digits.  Here every request for float32 within a call of torch is one for float64, and
    that is the default.
    """

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self.default)
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.float:
            func = Tensor.double
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: object) -> object:
    return torch.float64 if value is torch.float32 else value
