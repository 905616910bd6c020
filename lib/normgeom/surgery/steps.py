"""Single steps of surgery, as lists of changes of a model whose stream is known; nothing is changed by listing them."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial, reduce

import torch
from torch import Tensor, nn

from normgeom.models.modules import replace_module
from normgeom.norms.functions import RMSNorm
from normgeom.surgery.streams import READS, WRITES, Flow, Matrix, StreamNorm, matrix_of

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Attributes:
        name: of a parameter, a module or, after ``config.``, an entry of the configuration.
        what: becomes of it.
    """

    name: str
    what: str
    make: Callable[[], None] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def apply(model: nn.Module, changes: list[Change], dry_run: bool) -> nn.Module | list[Change]:
    """The changes made in their order, and the model; or, as a dry run, the changes."""
    if dry_run:
        return changes
    with torch.no_grad():
        for change in changes:
            change.make()
    return model


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


def _tensor(module: nn.Module, name: str) -> Tensor | None:
    return reduce(getattr, name.split("."), module)


def untying(model: nn.Module, flow: Flow) -> list[Change]:
    def untie(module: nn.Module):
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=module.weight.requires_grad)

    def forget(name: str):
        model.config.tie_word_embeddings = False
        getattr(model, "all_tied_weights_keys", {}).pop(name, None)

    writers = (model.get_submodule(name) for name in flow.writers)
    written = {module.weight for module in writers if isinstance(module, nn.Embedding)}
    readers = {name for norm in flow.norms for name in norm.readers}
    others = {name: m for name, m in model.named_modules() if not isinstance(m, nn.Embedding)}
    tied = {name: module for name, module in others.items() if getattr(module, "weight", None) in written}
    changes = [
        Change(f"{name}.weight", "a copy of its own, no longer the embedding's", partial(untie, module))
        for name, module in tied.items()
    ]
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        for name in (name for name in others if name in tied or name in readers):
            if others[name] is model.get_output_embeddings():
                changes.append(Change("config.tie_word_embeddings", "False", partial(forget, f"{name}.weight")))
    return changes


def folding(model: nn.Module, flow: Flow) -> list[Change]:
    changes = []
    for norm in flow.norms:
        module = model.get_submodule(norm.name)
        readers = [(name, model.get_submodule(name), matrix) for name, matrix in _matrices(model, norm.readers, READS)]
        weight, bias = (name and getattr(module, name, None) for name in (norm.gain, norm.bias))
        gain = None if weight is None else _double(weight) + norm.offset
        shift = None if bias is None else _double(bias)
        # the bias first: it takes W as it was
        if shift is not None and (shift != 0).any():
            changes += [
                Change(f"{of}.{matrix.bias}", f"b + Wβ, β of {norm.name}", partial(_add_to_bias, reader, matrix, shift))
                for of, reader, matrix in readers
            ]
            changes.append(Change(f"{norm.name}.{norm.bias}", "0", partial(_set, bias, torch.zeros_like(shift))))
        if gain is not None and (gain != 1).any():
            changes += [
                Change(f"{of}.{matrix.weight}", f"W diag(γ), γ of {norm.name}", partial(_scale, reader, matrix, gain))
                for of, reader, matrix in readers
            ]
            neutral = torch.full_like(gain, 1 - norm.offset)
            changes.append(Change(f"{norm.name}.{norm.gain}", f"{1 - norm.offset:g}", partial(_set, weight, neutral)))
    return changes


def _matrices(model: nn.Module, names: tuple[str, ...], kinds: dict[type, Matrix]) -> list[tuple[str, Matrix]]:
    return [(name, matrix_of(model.get_submodule(name), kinds)) for name in names]


def making_biases(names: Container[str], model: nn.Module, flow: Flow) -> list[Change]:
    return [
        Change(f"{of}.{matrix.bias}", "new", partial(_make_bias, reader, matrix))
        for norm in flow.norms
        for of, matrix in _matrices(model, norm.readers, READS)
        if getattr(reader := model.get_submodule(of), matrix.bias) is None and f"{of}.{matrix.bias}" in names
    ]


def centering(model: nn.Module, flow: Flow) -> list[Change]:
    for norm in flow.norms:
        if not norm.centred:
            raise ValueError(
                f"model: expected LayerNorm wherever this {type(model).__name__} norms its stream, {norm.name} is a "
                f"{type(model.get_submodule(norm.name)).__name__}: if it does not subtract the mean, the mean matters"
            )
    changes = []
    for name, matrix in _matrices(model, flow.writers, WRITES):
        writer = model.get_submodule(name)
        for of, axis, what in ((matrix.weight, matrix.axis, "ΠW, no mean over what it writes"), (matrix.bias, 0, "Πb")):
            if of is not None and (tensor := _tensor(writer, of)) is not None:
                changes.append(Change(f"{name}.{of}", what, partial(_center, tensor, axis)))
    for name in flow.added:
        changes.append(Change(name, "Πv, no mean in what is added", partial(_center, _tensor(model, name), -1)))
    return changes


def swapping(model: nn.Module, flow: Flow) -> list[Change]:
    changes = [
        Change(norm.name, f"RMSNorm with ε = {norm.eps:g}, gain 1", partial(_swap, model, norm)) for norm in flow.norms
    ]
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            without = partial(setattr, module, "activation_relu_or_gelu", 0)
            changes.append(
                Change(f"{name}.activation_relu_or_gelu", "0: no fast path, which expects LayerNorm", without)
            )
    return changes


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
