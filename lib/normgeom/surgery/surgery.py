"""Change the weights of a pre-norm LayerNorm model so that no norm has a mean to subtract; what it computes stays."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from normgeom.surgery.flow import Seen, check_present, find_flow
from normgeom.surgery.steps import center, check_centred, check_tensors, fold, make_biases, swap, untie
from normgeom.surgery.streams import Flow

Step = Callable[[nn.Module, Flow], None]
_CONVERSION = (untie, fold, center, swap)
_BOUND = 1e-10  # in float64, of the change of an output over the largest


def fold_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Move gain and bias of each norm of the stream into the modules that read it; what the model computes stays.

    A reader :math:`W(\gamma\odot n+\beta)+b` becomes :math:`(W\operatorname{diag}\gamma)\,n+(b+W\beta)`
    (eq-fold-norms); then γ is 1 and β is 0, both still parameters.  A reader without a bias gets one where β is not
    zero everywhere, the language-modelling head one over the vocabulary; a head that shares the embedding's weight
    gets its own.  Where the gain that acts is ``1 + weight`` (Gemma), that sum is folded and ``weight`` becomes 0.

    Args:
        model: LayerNorm or RMSNorm; changed in place.  Where no ``normgeom.models.layouts.layout_of`` says who writes
            to its stream and who reads it, a float64 copy with drawn weights is run and watched
            (``normgeom.surgery.flow.seen_flow``), and changed first: what it computes may not change by more than 1e-10
            of its largest output.
        example_inputs: what that copy is run on; as in :func:`normgeom.find_norms`.

    Returns:
        the model.  Products are float64 and cast once to the parameter's dtype.

    Raises:
        ValueError: no norm reads a stream of which all is known; or a tensor cannot be changed: quantised, on the meta
            device, spread over several devices, shared by several modules.  Nothing has been changed then.
    """
    return _operate(model, (untie, fold), example_inputs)


def center_writers(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Take the mean out of everything that writes to the residual stream of a pre-norm LayerNorm model.

    Embeddings, output matrices and their biases become :math:`\Pi W` and :math:`\Pi b` (eq-center-writers).  Each
    reader stands behind a LayerNorm, which subtracts the mean anyway, so the model computes what it did; but at every
    norm the stream is now orthogonal to 1, up to rounding.  A head that shares the embedding's weight gets its own.

    Args:
        model, example_inputs: as in :func:`fold_norms`.

    Returns:
        the model.

    Raises:
        ValueError: as in :func:`fold_norms`; also where a norm of the stream is no LayerNorm: if nothing subtracts the
            component along 1, it is part of what the model computes.
    """
    return _operate(model, (untie, center), example_inputs)


def to_rms_norm(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> nn.Module:
    r"""Turn a pre-norm LayerNorm model into an RMSNorm model that computes the same (thm-to-rms-norm).

    :math:`\mathrm{LN}_\varepsilon(x)=\mathrm{RMSNorm}_\varepsilon(\Pi x)` with the same ε.  :func:`fold_norms` empties
    γ and β, :func:`center_writers` sees to it that :math:`\Pi x=x` at every norm of the stream, and then each
    LayerNorm there becomes a :class:`normgeom.RMSNorm` with its ε and gain 1.  Norms that stand aside stay, such as
    those of queries and keys.

    Equal in exact arithmetic, in evaluation mode and on token ids: dropout on the stream, or ``inputs_embeds`` from
    elsewhere, can bring a mean that nobody subtracts any more.  In floating point the changed weights are rounded to
    their dtype, which in bfloat16 is felt.  Plain ``save_pretrained`` writes what transformers would read as a
    LayerNorm model without the biases that are new; ``normgeom convert`` writes what :func:`normgeom.load_converted`
    reads.

    Args:
        model, example_inputs: as in :func:`fold_norms`.

    Returns:
        the model.

    Raises:
        ValueError: as in :func:`center_writers`.
    """
    return _operate(model, _CONVERSION, example_inputs)


def refusal(model: nn.Module) -> str | None:
    """Why :func:`to_rms_norm` does not convert a model, in its words; None where it does.  Nothing is changed."""
    try:
        _check(model, _CONVERSION)
    except ValueError as reason:
        return str(reason)
    return None


def match_converted(model: nn.Module, names: Container[str]) -> nn.Module:
    """A model as its configuration makes it, given the modules that :func:`to_rms_norm` left another of its kind.

    Its values are not those: a state dict is to be loaded, in which ``names`` tells the biases that are new.
    """
    flow = find_flow(model)
    flow = flow.flow if isinstance(flow, Seen) else flow
    check_tensors(model, flow)
    return _apply(model, flow, (untie, partial(make_biases, names), swap))


def _operate(model: nn.Module, steps: tuple[Step, ...], example_inputs: Tensor | Mapping | None) -> nn.Module:
    return _apply(model, _check(model, steps, example_inputs), steps)


def _check(model: nn.Module, steps: tuple[Step, ...], example_inputs: Tensor | Mapping | None = None) -> Flow:
    """The flow of a model that the steps can change, or a ValueError that says why they cannot; nothing is changed."""
    check_present(model)
    found = find_flow(model, example_inputs, centred=center in steps)
    flow = found.flow if isinstance(found, Seen) else found
    check_tensors(model, flow)
    if center in steps:
        check_centred(model, flow)
    if isinstance(found, Seen):
        _try(found, steps)
    return flow


@torch.no_grad()
def _apply(model: nn.Module, flow: Flow, steps: tuple[Step, ...]) -> nn.Module:
    for step in steps:
        step(model, flow)
    return model


def _try(seen: Seen, steps: tuple[Step, ...]) -> None:
    """Change the copy that was seen; a ValueError unless it computes what it did."""
    before = seen.answer()
    _apply(seen.drawn, seen.flow, steps)
    off = [(x - y).abs().max() / y.abs().max() for x, y in zip(seen.answer(), before, strict=True)]
    if not (found := float(torch.stack(off).max())) <= _BOUND:
        raise ValueError(
            f"model: a copy of this {type(seen.drawn).__name__} with drawn weights computes something else "
            f"when changed: its output differs by {found:.1e} of the largest, expected {_BOUND:g}; a run shows not all"
        )
