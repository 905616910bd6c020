"""Tiny models whose every weight matters and whose streams have a large mean: what surgery must stand."""

from __future__ import annotations

import torch
import transformers
from flow_models import MORE
from normgeom.models.flow import double_throughout
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
# the same, of which no own test here tells who reads and who writes
ALSO_CONVERTIBLE = [
    (family, {})
    for family in ("falcon", "falcon_new", "stablelm", "olmo", "nemotron", "cohere", "cohere_qk", *list(MORE)[:14])
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


class Encoder(nn.Module):
    """torch's own encoder between embeddings and a head."""

    def __init__(self, norm_first=True, activation="gelu", shared=False, skip=None):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 4, 48, batch_first=True, norm_first=norm_first, activation=activation, dropout=0.0
        )
        self.words, self.places = nn.Embedding(64, 32), nn.Parameter(torch.randn(13, 32))
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head, self.skip = nn.Linear(32, 64), skip
        if shared:
            self.encoder.layers[1].linear1 = self.encoder.layers[0].linear1

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        return self.head(self.encoder(x if self.skip is None else self.skip(x)))


def uneven(family: str, dtype: torch.dtype = torch.float64, seed: int = 1, **changes) -> nn.Module:
    """A model all of whose parameters are drawn anew, none of mean 0, embeddings far out along 1."""
    if family in MORE:
        model, config, settings = MORE[family]
        model = getattr(transformers, model)(getattr(transformers, config)(**settings | changes))
    else:
        model = Encoder(**changes) if family == "encoder" else tiny(family, **changes)
    return draw_unevenly(model, seed).to(dtype).eval()


def draw_unevenly(model: nn.Module, seed: int = 1) -> nn.Module:
    """The model itself, in float64."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = 0.2 + 0.3 * torch.randn(parameter.shape, generator=generator)
        if any(word in name for word in ("embed", "wte", "wpe")):
            drawn += 1.5 if "pos" in name or "wpe" in name else 3
        parameter.data.copy_(drawn)
    return model.double()


def inputs_of(model: nn.Module, ids: Tensor = IDS) -> dict | Tensor:
    """An example for any of them."""
    generator = torch.Generator().manual_seed(4)
    kind = getattr(model, "main_input_name", "input_ids")
    if kind == "pixel_values":
        return {kind: torch.randn(2, 3, 8, 8, generator=generator)}
    if kind == "input_features":
        return {kind: torch.randn(2, 8, 18, generator=generator), "decoder_input_ids": ids[:2]}
    if not hasattr(model, "config"):
        return ids
    return {kind: ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}


def logits(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    """Logits in float64, without gradients."""
    with torch.no_grad():
        return model(ids).logits.double()


def answer(model: nn.Module) -> Tensor:
    """What a float64 model makes of its example, in float64 throughout."""
    inputs = inputs_of(model)
    with double_throughout(), torch.no_grad():
        if isinstance(inputs, Tensor):
            return model(inputs)
        found = model(**{name: t.double() if t.is_floating_point() else t for name, t in inputs.items()})
        return found.logits if "logits" in found else found[0]


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
