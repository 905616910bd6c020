"""Who writes to a residual stream of a model and who reads its norms, from its layout or from one run of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from normgeom.models.layouts import layout_of
from normgeom.models.sites import find_norms
from normgeom.surgery.double import double_throughout
from normgeom.surgery.streams import Flow, known_flow
from normgeom.surgery.trace import Trace
from normgeom.surgery.verdict import judge


class Seen(NamedTuple):
    """A flow that was seen in a run, with the model that ran: a float64 copy, every parameter drawn, and its answer."""

    flow: Flow
    drawn: nn.Module
    answer: Callable[[], list[Tensor]]


def find_flow(model: nn.Module, example_inputs: Tensor | Mapping | None = None, centred: bool = False) -> Flow | Seen:
    """The flow of a model by its layout, or, where it has none, by its behaviour; arguments and errors as below."""
    try:
        layout = layout_of(model)
    except ValueError:
        return seen_flow(model, example_inputs, centred)
    return known_flow(model, layout)


def seen_flow(model: nn.Module, example_inputs: Tensor | Mapping | None = None, centred: bool = False) -> Seen:
    """Who writes to a stream and who reads it, from one run of a float64 copy on the CPU with drawn parameters.

    A norm is of the stream if all that it is given is a sum of what embeddings, linear maps, convolutions and bare
    parameters wrote, as a :class:`normgeom.surgery.trace.Trace` follows it.  Other norms, such as those of queries and
    keys, stand aside.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: as in :func:`normgeom.find_norms`.
        centred: whether norms must subtract the mean.

    Raises:
        ValueError: no norm reads a stream, or a norm's output is part of it; something but norms reads it, or something
            but linear maps a norm of it; something that no weight decides is added to it; a linear map reads two norms;
            the example leaves modules out.  The message says which.
    """
    check_present(model)
    drawn, called = _drawn(model), type(model).__name__
    given: list[tuple[tuple, dict]] = []
    caught = drawn.register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            sites = find_norms(drawn, example_inputs)
    except TypeError as error:
        raise ValueError(f"model: a {called} has no layout, and no run of it shows one ({error})") from error
    except (RuntimeError, NotImplementedError) as error:
        raise _does_not_run(called, "float32", error) from error
    finally:
        caught.remove()
    if not sites:
        raise ValueError(f"model: this {called} runs no LayerNorm or RMSNorm")
    drawn.double()
    args, kwargs = tree_map(_double, given[-1])

    def answer() -> list[Tensor]:
        with double_throughout(), torch.no_grad():
            return _answer(drawn(*args, **kwargs))

    trace = Trace(drawn, sites)
    try:
        with trace.watching():
            trace.returned(answer())
    except (RuntimeError, NotImplementedError) as error:
        raise _does_not_run(called, "float64", error) from error
    return Seen(judge(trace, centred), drawn, answer)


def _does_not_run(called: str, dtype: str, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"model: a copy of this {called} with drawn weights does not run in {dtype} on the CPU ({why})")


@torch.no_grad()
def _drawn(model: nn.Module) -> nn.Module:
    """A float32 copy on the CPU in evaluation mode: matrices of variance 1 over their last axis, vectors about 1/2."""
    drawn = copy.deepcopy(model).to("cpu").float().eval()
    if hasattr(drawn, "set_experts_implementation"):
        drawn.set_experts_implementation("eager")  # the others know no float64
    generator = torch.Generator().manual_seed(0)
    for parameter in drawn.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        vector = parameter.dim() < 2
        parameter.copy_(0.5 + 0.3 * noise if vector else noise / parameter.shape[-1] ** 0.5)
    return drawn


def check_present(model: nn.Module) -> None:
    """Raise a ValueError unless all parameters are there, on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


def _double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _answer(output) -> list[Tensor]:
    """The logits, or, of a model that has none, all that it returns."""
    found = getattr(output, "logits", None)
    leaves = tree_leaves(output) if found is None else [found]
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
