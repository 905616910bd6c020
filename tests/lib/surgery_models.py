"""Tiny models whose every weight matters and whose streams have a large mean: what surgery must stand."""

from __future__ import annotations

import torch
from tiny_models import tiny, token_ids
from torch import Tensor, nn

# pre-norm LayerNorm models: family, what its configuration changes
CONVERTIBLE = [
    ("gpt2", {}),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=0.1)),
    ("gpt2", dict(tie_word_embeddings=False)),
    ("gpt_bigcode", {}),
    ("gpt_neo", {}),
    ("gpt_neox", dict(use_parallel_residual=True)),
    ("gpt_neox", dict(use_parallel_residual=False)),
    ("gpt_neox", dict(attention_bias=False)),
    ("gpt_neox", dict(tie_word_embeddings=True)),
    ("gptj", {}),
    ("gptj", dict(tie_word_embeddings=True)),
    ("codegen", {}),
    ("phi", {}),
    ("phi_qk", {}),
    ("opt", {}),
    ("opt", dict(enable_bias=False)),
    ("opt", dict(layer_norm_elementwise_affine=False)),
    ("biogpt", {}),
    ("mpt", {}),
    ("persimmon", {}),
    ("starcoder2", {}),
]
FOLDABLE = [
    ("llama", {}),
    ("llama", dict(attention_bias=True)),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gemma", {}),
]
IDS = token_ids(3, 13)


def name_of(case) -> str:
    """An id for pytest."""
    return ",".join(f"{key}={value}" for key, value in case.items()) if isinstance(case, dict) else str(case)


def uneven(family: str, dtype: torch.dtype = torch.float64, seed: int = 1, **changes) -> nn.Module:
    """A model all of whose parameters are drawn anew, none of mean 0, embeddings far out along 1."""
    model = tiny(family, **changes)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = 0.2 + 0.3 * torch.randn(parameter.shape, generator=generator)
        if "embed" in name or "wte" in name or "wpe" in name:
            drawn += 1.5 if "pos" in name or "wpe" in name else 3
        parameter.data.copy_(drawn)
    return model.to(dtype)


class Wide(nn.Module):
    """An RMSNorm of transformers, which computes in float32 whatever it is given, in the dtype of its input."""

    def __init__(self, norm: nn.Module, offset: float):
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * (self.offset + self.weight)


def widened(family: str, **changes) -> nn.Module:
    """A float64 RMSNorm model whose norms are float64 too."""
    model = uneven(family, **changes)
    for name, module in list(model.named_modules()):
        if "RMSNorm" in type(module).__name__:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, Wide(module, offset=1.0 if family == "gemma" else 0.0))
    return model


def logits(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    """Logits in float64, without gradients."""
    with torch.no_grad():
        return model(ids).logits.double()


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference; NaN where there is one."""
    return float((a - b).abs().max())


class Untouched:
    """While the block runs nothing of a model may change: tensors, modules, which of them are one, configuration."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __enter__(self):
        self.config = self.model.config.to_dict() if hasattr(self.model, "config") else None
        self.modules = {name: (id(module), type(module)) for name, module in self.model.named_modules()}
        self.tensors = {
            name: (id(tensor), tensor.dtype, None if tensor.is_meta else tensor.detach().clone())
            for name, tensor in self._all()
        }

    def __exit__(self, *error):
        if self.config is not None:
            assert self.model.config.to_dict() == self.config, "the configuration was changed"
        assert {n: (id(m), type(m)) for n, m in self.model.named_modules()} == self.modules, "a module was replaced"
        now = dict(self._all())
        assert now.keys() == self.tensors.keys()
        for name, (identity, dtype, values) in self.tensors.items():
            assert id(now[name]) == identity and now[name].dtype == dtype, f"{name} was replaced"
            assert values is None or torch.equal(now[name], values), f"{name} was changed"

    def _all(self):
        yield from self.model.named_parameters(remove_duplicate=False)
        yield from self.model.named_buffers(remove_duplicate=False)
