"""Single steps of surgery on a model whose stream is known, and what is checked before the first of them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import reduce

import torch
from torch import Tensor, nn

from normgeom.models.modules import replace_module
from normgeom.norms.functions import RMSNorm
from normgeom.surgery.streams import READS, WRITES, Flow, Matrix, StreamNorm, matrix_of

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_tensors(model: nn.Module, flow: Flow) -> None:
    if getattr(getattr(model, "config", None), "quantization_config", None) is not None:
        raise ValueError("model: expected weights that are not quantised, its configuration says how they are")
    read = ((name, READS) for norm in flow.norms for name in norm.readers)
    for name, kinds in (*read, *((name, WRITES) for name in flow.writers)):
        module = model.get_submodule(name)
        matrix = matrix_of(module, kinds)
        weight = matrix and _tensor(module, matrix.weight)
        if weight is None or weight.dtype not in _DTYPES:
            raise ValueError(
                f"model: expected {name} to be {' or '.join(kind.__name__ for kind in kinds)} with weights of a "
                f"floating-point dtype, got {type(module).__name__} with {getattr(weight, 'dtype', 'none')}"
            )
    readers = (name for norm in flow.norms for name in norm.readers)
    changed = {p for name in (*readers, *flow.writers) for p in model.get_submodule(name).parameters()}
    seen: dict[Tensor, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = seen.setdefault(parameter, name)
        embeds = isinstance(model.get_submodule(first.rpartition(".")[0]), nn.Embedding)
        if first != name and parameter in changed and not (embeds and name.endswith(".weight")):
            raise ValueError(f"model: expected a weight of its own for each module, {first} and {name} are one")


def check_centred(model: nn.Module, flow: Flow) -> None:
    for norm in flow.norms:
        if not norm.centred:
            raise ValueError(
                f"model: expected LayerNorm wherever this {type(model).__name__} norms its stream, {norm.name} is a "
                f"{type(model.get_submodule(norm.name)).__name__}: if it does not subtract the mean, the mean matters"
            )


def untie(model: nn.Module, flow: Flow) -> None:
    """Give a head that shares an embedding's weight a copy of its own."""
    writers = (model.get_submodule(name) for name in flow.writers)
    written = {module.weight for module in writers if isinstance(module, nn.Embedding)}
    readers = {name for norm in flow.norms for name in norm.readers}
    others = {name: m for name, m in model.named_modules() if not isinstance(m, nn.Embedding)}
    tied = {name: module for name, module in others.items() if getattr(module, "weight", None) in written}
    for module in tied.values():
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=module.weight.requires_grad)
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        for name in (name for name in others if name in tied or name in readers):
            if others[name] is model.get_output_embeddings():
                model.config.tie_word_embeddings = False
                getattr(model, "all_tied_weights_keys", {}).pop(f"{name}.weight", None)


def fold(model: nn.Module, flow: Flow) -> None:
    """Move the gain and bias of each norm into its readers."""
    # All are read before the first is reset: two names may belong to one norm.
    found = [(norm, *_gain_and_bias(model, norm)) for norm in flow.norms]
    for norm, gain, bias in found:
        module = model.get_submodule(norm.name)
        readers = _matrices(model, norm.readers, READS)
        # The bias goes first, because it is multiplied by W as it was.
        if bias is not None and (bias != 0).any():
            for reader, matrix in readers:
                _add_to_bias(reader, matrix, bias)
            _set(getattr(module, norm.bias), torch.zeros_like(bias))
        if gain is not None and (gain != 1).any():
            for reader, matrix in readers:
                _scale(reader, matrix, gain)
            _set(getattr(module, norm.gain), torch.full_like(gain, 1 - norm.offset))


def make_biases(names: Container[str], model: nn.Module, flow: Flow) -> None:
    """Give readers without a bias one of zeros, where ``names`` has its name."""
    for name in (name for norm in flow.norms for name in norm.readers):
        reader = model.get_submodule(name)
        matrix = matrix_of(reader, READS)
        if getattr(reader, matrix.bias) is None and f"{name}.{matrix.bias}" in names:
            _make_bias(reader, matrix)


def center(model: nn.Module, flow: Flow) -> None:
    """Take the mean out of everything that is written to the stream."""
    for writer, matrix in _matrices(model, flow.writers, WRITES):
        _center(_tensor(writer, matrix.weight), matrix.axis)
        if matrix.bias is not None and (bias := _tensor(writer, matrix.bias)) is not None:
            _center(bias, 0)
    for name in flow.added:
        _center(_tensor(model, name), -1)


def swap(model: nn.Module, flow: Flow) -> None:
    """Replace each LayerNorm of the stream by an RMSNorm with its ε and gain 1."""
    for norm in flow.norms:
        _swap(model, norm)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # no fast path, which expects LayerNorm


def _matrices(model: nn.Module, names: Iterable[str], kinds: dict[type, Matrix]) -> list[tuple[nn.Module, Matrix]]:
    modules = (model.get_submodule(name) for name in names)
    return [(module, matrix_of(module, kinds)) for module in modules]


def _tensor(module: nn.Module, name: str) -> Tensor | None:
    return reduce(getattr, name.split("."), module)


def _gain_and_bias(model: nn.Module, norm: StreamNorm) -> tuple[Tensor | None, Tensor | None]:
    """What acts as gain and bias, float64; None where there is none."""
    module = model.get_submodule(norm.name)
    gain, bias = (name and getattr(module, name, None) for name in (norm.gain, norm.bias))
    return None if gain is None else _double(gain) + norm.offset, None if bias is None else _double(bias)


def _swap(model: nn.Module, of: StreamNorm) -> None:
    norm = model.get_submodule(of.name)
    like = next(norm.parameters(), next(model.parameters()))
    new = RMSNorm(of.dim, eps=of.eps, device=like.device, dtype=like.dtype)
    replace_module(model, norm, new.requires_grad_(like.requires_grad))


def _add_to_bias(reader: nn.Module, matrix: Matrix, shift: Tensor) -> None:
    weight = _double(getattr(reader, matrix.weight))
    if getattr(reader, matrix.bias) is None:
        _make_bias(reader, matrix)
    bias = getattr(reader, matrix.bias)
    _set(bias, _double(bias) + torch.tensordot(weight, shift, dims=([matrix.axis], [0])))


def _make_bias(reader: nn.Module, matrix: Matrix) -> None:
    weight = getattr(reader, matrix.weight)
    zeros = weight.new_zeros(weight.shape[1 - matrix.axis])
    setattr(reader, matrix.bias, nn.Parameter(zeros, requires_grad=weight.requires_grad))


def _scale(reader: nn.Module, matrix: Matrix, gain: Tensor) -> None:
    weight = getattr(reader, matrix.weight)
    _set(weight, _double(weight) * (gain if matrix.axis else gain[:, None]))


def _center(tensor: Tensor, axis: int) -> None:
    wide = _double(tensor)
    _set(tensor, wide - wide.mean(axis, keepdim=True))


def _double(parameter: Tensor) -> Tensor:
    device = "cpu" if parameter.device.type == "mps" else parameter.device  # which has no float64
    return parameter.detach().to(device, torch.float64)


def _set(parameter: nn.Parameter, value: Tensor) -> None:
    """A new tensor, not written into the old one, which another tensor may share."""
    parameter.data = value.to(parameter)
