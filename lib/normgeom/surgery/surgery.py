"""Change the weights of a pre-norm LayerNorm model so that no norm has a mean to subtract; what it computes stays."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normgeom.models.layouts import Layout, layout_of
from normgeom.models.modules import replace_module
from normgeom.norms.functions import LayerNorm, RMSNorm

_INPUT_AXIS = {nn.Linear: 1, Conv1D: 0}  # of a weight, the axis that the module's input runs along
_OUTPUT_AXIS = {nn.Linear: 0, Conv1D: 1, nn.Embedding: 1}
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


def fold_norms(model: nn.Module, dry_run: bool = False) -> nn.Module | list[Change]:
    r"""Move gain and bias of each norm of the stream into the modules that read it; what the model computes stays.

    A reader :math:`W(\gamma\odot n+\beta)+b` becomes :math:`(W\operatorname{diag}\gamma)\,n+(b+W\beta)`
    (eq-fold-norms); then γ is 1 and β is 0, both still parameters.  A reader without a bias gets one where β is not
    zero everywhere, the language-modelling head one over the vocabulary; a head that shares the embedding's weight
    gets its own.  Where the gain that acts is ``1 + weight`` (Gemma), that sum is folded and ``weight`` becomes 0.

    Args:
        model: LayerNorm or RMSNorm, with a ``normgeom.models.layouts.layout_of``.  Changed in place.
        dry_run: change nothing and list what would be changed.

    Returns:
        the model, or the list of ``Change``.  Products are float64 and cast once to the parameter's dtype.

    Raises:
        ValueError: the model has no layout, or a tensor of it cannot be changed: quantised, on the meta device, spread
            over several devices, shared by several modules.  Nothing has been changed then.
    """
    return _operate(model, (_untying, _folding), dry_run)


def center_writers(model: nn.Module, dry_run: bool = False) -> nn.Module | list[Change]:
    r"""Take the mean out of everything that writes to the residual stream of a pre-norm LayerNorm model.

    Embeddings, output matrices and their biases become :math:`\Pi W` and :math:`\Pi b` (eq-center-writers).  Each
    reader stands behind a LayerNorm, which subtracts the mean anyway, so the model computes what it did; but at every
    norm the stream is now orthogonal to 1, up to rounding.  A head that shares the embedding's weight gets its own.

    Args:
        model, dry_run: as in :func:`fold_norms`.

    Returns:
        the model, or the list of ``Change``.

    Raises:
        ValueError: as in :func:`fold_norms`; also where a norm of the stream is no LayerNorm: if nothing subtracts the
            component along 1, it is part of what the model computes.
    """
    return _operate(model, (_untying, _centering), dry_run)


def to_rms_norm(model: nn.Module, dry_run: bool = False) -> nn.Module | list[Change]:
    r"""Turn a pre-norm LayerNorm model into an RMSNorm model that computes the same (thm-to-rms-norm).

    :math:`\mathrm{LN}_\varepsilon(x)=\mathrm{RMSNorm}_\varepsilon(\Pi x)` with the same ε.  :func:`fold_norms` empties
    γ and β, :func:`center_writers` sees to it that :math:`\Pi x=x` at every norm of the stream, and then each
    LayerNorm there becomes a :class:`normgeom.RMSNorm` with its ε and gain 1.  Norms of queries and keys stay.

    Equal in exact arithmetic, in evaluation mode and on token ids: dropout on the stream, or ``inputs_embeds`` from
    elsewhere, can bring a mean that nobody subtracts any more.  In floating point the changed weights are rounded to
    their dtype, which in bfloat16 is felt.  Plain ``save_pretrained`` writes what transformers would read as a
    LayerNorm model without the biases that are new; ``normgeom convert`` writes what :func:`normgeom.load_converted`
    reads.

    Args:
        model, dry_run: as in :func:`fold_norms`.

    Returns:
        the model, or the list of ``Change``.

    Raises:
        ValueError: as in :func:`center_writers`.
    """
    return _operate(model, (_untying, _folding, _centering, _swapping), dry_run)


def refusal(model: nn.Module) -> str | None:
    """Why :func:`to_rms_norm` does not convert a model, in its words; None where it does.  Nothing is changed."""
    try:
        to_rms_norm(model, dry_run=True)
    except ValueError as reason:
        return str(reason)
    return None


def match_converted(model: nn.Module, names: Container[str]) -> nn.Module:
    """A model as its configuration makes it, given the modules that :func:`to_rms_norm` left another of its kind.

    Its values are not those: a state dict is to be loaded, in which ``names`` tells the biases that are new.
    """
    return _operate(model, (_untying, partial(_making_biases, names), _swapping), dry_run=False)


def apply(model: nn.Module, changes: list[Change], dry_run: bool) -> nn.Module | list[Change]:
    """The changes made in their order, and the model; or, as a dry run, the changes."""
    if dry_run:
        return changes
    with torch.no_grad():
        for change in changes:
            change.make()
    return model


def check_present(model: nn.Module) -> None:
    """Raise a ValueError unless all parameters are there, on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


Step = Callable[[nn.Module, Layout], list[Change]]


def _operate(model: nn.Module, steps: tuple[Step, ...], dry_run: bool) -> nn.Module | list[Change]:
    """All that can be refused is refused while the changes are listed."""
    layout = layout_of(model)
    _check_tensors(model, layout)
    return apply(model, [change for step in steps for change in step(model, layout)], dry_run)


def _check_tensors(model: nn.Module, layout: Layout) -> None:
    check_present(model)
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError("model: expected weights that are not quantised, its configuration says how they are")
    readers = [(pair, _INPUT_AXIS) for _, _, pairs in layout.readers_of(model) for pair in pairs]
    for (name, module), axes in [*readers, *((pair, _OUTPUT_AXIS) for pair in layout.writers_of(model))]:
        if not any(isinstance(module, known) for known in axes) or module.weight.dtype not in _DTYPES:
            weight = getattr(module, "weight", None)
            raise ValueError(
                f"model: expected {name} to be {' or '.join(known.__name__ for known in axes)} with weights of a "
                f"floating-point dtype, got {type(module).__name__} with {getattr(weight, 'dtype', 'none')}"
            )
    tied = f"{layout.head}.weight"
    seen: dict[Tensor, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = seen.setdefault(parameter, name)
        if first != name and not (name == tied and first.rpartition(".")[0] in layout.embeddings):
            raise ValueError(f"model: expected a weight of its own for each module, {first} and {name} are one")


def _untying(model: nn.Module, layout: Layout) -> list[Change]:
    head, name = model.get_submodule(layout.head), f"{layout.head}.weight"

    def untie():
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)

    def forget():
        model.config.tie_word_embeddings = False
        getattr(model, "all_tied_weights_keys", {}).pop(name, None)

    embeddings = (model.get_submodule(of) for of in layout.embeddings)
    changes = []
    if any(head.weight is embedding.weight for embedding in embeddings):
        changes.append(Change(name, "a copy of its own, no longer the embedding's", untie))
    if getattr(model.config, "tie_word_embeddings", False):
        changes.append(Change("config.tie_word_embeddings", "False", forget))
    return changes


def _folding(model: nn.Module, layout: Layout) -> list[Change]:
    changes = []
    for name, norm, readers in layout.readers_of(model):
        weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
        gain = None if weight is None else _double(weight) + layout.offset
        shift = None if bias is None else _double(bias)
        # the bias first: it takes W as it was
        if shift is not None and (shift != 0).any():
            changes += [
                Change(f"{of}.bias", f"b + Wβ, β of {name}", partial(_add_to_bias, reader, shift))
                for of, reader in readers
            ]
            changes.append(Change(f"{name}.bias", "0", partial(_set, bias, torch.zeros_like(shift))))
        if gain is not None and (gain != 1).any():
            changes += [
                Change(f"{of}.weight", f"W diag(γ), γ of {name}", partial(_scale, reader, gain))
                for of, reader in readers
            ]
            neutral = torch.full_like(gain, 1 - layout.offset)
            changes.append(Change(f"{name}.weight", f"{1 - layout.offset:g}", partial(_set, weight, neutral)))
    return changes


def _making_biases(names: Container[str], model: nn.Module, layout: Layout) -> list[Change]:
    return [
        Change(f"{of}.bias", "new", partial(_make_bias, reader))
        for _, _, readers in layout.readers_of(model)
        for of, reader in readers
        if reader.bias is None and f"{of}.bias" in names
    ]


def _centering(model: nn.Module, layout: Layout) -> list[Change]:
    for name, norm in layout.norms_of(model):
        if type(norm) not in (nn.LayerNorm, LayerNorm):  # a subclass may compute anything
            raise ValueError(
                f"model: expected LayerNorm wherever this {type(model).__name__} norms its stream, {name} is a "
                f"{type(norm).__name__}: if it does not subtract the mean, the mean matters"
            )
    changes = []
    for name, writer in layout.writers_of(model):
        changes.append(Change(f"{name}.weight", "ΠW, no mean over what it writes", partial(_center_weight, writer)))
        if getattr(writer, "bias", None) is not None:
            changes.append(Change(f"{name}.bias", "Πb", partial(_center_bias, writer)))
    return changes


def _swapping(model: nn.Module, layout: Layout) -> list[Change]:
    return [
        Change(name, f"RMSNorm with ε = {norm.eps:g}, gain 1", partial(_swap, model, norm))
        for name, norm in layout.norms_of(model)
    ]


def _swap(model: nn.Module, norm: nn.Module) -> None:
    like = next(norm.parameters(), next(model.parameters()))
    new = RMSNorm(norm.normalized_shape, eps=norm.eps, device=like.device, dtype=like.dtype)
    replace_module(model, norm, new.requires_grad_(like.requires_grad))


def _add_to_bias(reader: nn.Module, shift: Tensor) -> None:
    weight = _double(reader.weight)
    if reader.bias is None:
        _make_bias(reader)
    _set(reader.bias, _double(reader.bias) + torch.tensordot(weight, shift, dims=([_axis(reader, _INPUT_AXIS)], [0])))


def _make_bias(reader: nn.Module) -> None:
    weight = reader.weight
    zeros = weight.new_zeros(weight.shape[1 - _axis(reader, _INPUT_AXIS)])
    reader.bias = nn.Parameter(zeros, requires_grad=weight.requires_grad)


def _scale(reader: nn.Module, gain: Tensor) -> None:
    shape = [1, 1]
    shape[_axis(reader, _INPUT_AXIS)] = -1
    _set(reader.weight, _double(reader.weight) * gain.reshape(shape))


def _center_weight(writer: nn.Module) -> None:
    weight = _double(writer.weight)
    _set(writer.weight, weight - weight.mean(_axis(writer, _OUTPUT_AXIS), keepdim=True))


def _center_bias(writer: nn.Module) -> None:
    bias = _double(writer.bias)
    _set(writer.bias, bias - bias.mean())


def _axis(module: nn.Module, axes: dict[type, int]) -> int:
    return next(axis for known, axis in axes.items() if isinstance(module, known))


def _double(parameter: Tensor) -> Tensor:
    device = "cpu" if parameter.device.type == "mps" else parameter.device  # which has no float64
    return parameter.detach().to(device, torch.float64)


def _set(parameter: nn.Parameter, value: Tensor) -> None:
    """A new tensor, not written into the old one, which another tensor may share."""
    parameter.data = value.to(parameter)
