"""A float64 copy of a model with drawn weights, and the residual stream that one run of it shows."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import is_dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from normgeom.models.judgement import Flow, judged
from normgeom.models.sites import default_example, find_norms
from normgeom.models.trace import WRITES, Projection, Trace, matrix_of
from normgeom.models.watch import by_its_modules, hooked


def stream(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> Flow:
    """The residual stream of a model: its norms, who reads them, and who writes to it.

    Names of classes and modules play no part.  A float64 copy of the model on the CPU, all its parameters drawn, runs
    once, which takes twice the memory of float32 weights.  A norm is of the stream if it reads a sum of what
    embeddings, linear maps, convolutions and parameters wrote.  What the run on the example does not reach, such as
    another branch of the code, is not seen.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: as in :func:`normgeom.find_norms`.

    Raises:
        ValueError: the copy does not run, or runs no norm; parameters are on the meta device or on several.
        TypeError: no example was given and none can be made for this model.

    >>> import torch
    >>> from normgeom.models.flow import stream
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    >>> flow = stream(model, torch.arange(9))
    >>> flow.writers, flow.norms[0].name, flow.norms[0].readers
    (('0',), '1', ('2',))
    """
    return Trial(model, example_inputs).flow


def written(model: nn.Module, flow: Flow) -> Iterator[tuple[Tensor, int]]:
    """All that decides what is written to a stream, in the order in which it runs, and the axis along the stream."""
    for name in flow.writers:
        module, matrix = model.get_submodule(name), matrix_of(model.get_submodule(name), WRITES)
        yield attrgetter(matrix.weight)(module), matrix.axis
        if matrix.bias and (bias := attrgetter(matrix.bias)(module)) is not None:
            yield bias, 0
    for name in flow.added:
        yield model.get_parameter(name), -1


def stream_writers(model: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of all that writes to the stream of a GPT-2 or its like, which is their last axis.

    The token embedding comes first, which may be the head's matrix too; then in the order in which they run.

    Raises:
        ValueError: something writes to the stream along another axis, as ``nn.Linear`` does; as :func:`stream`.
    """
    flow = stream(model)
    found = list(written(model, flow))
    if flow.obstacle or any(axis % tensor.dim() < tensor.dim() - 1 for tensor, axis in found):
        raise ValueError(f"model: expected a GPT-2 or its like, of embeddings and Conv1D, got a {type(model).__name__}")
    return [tensor for tensor, _ in found]


def stream_readers(model: nn.Module) -> list[nn.Parameter]:
    """The matrices that read the norms of a GPT-2 or its like but the last, whose first axis is the stream."""
    norms = stream(model).norms[:-1]
    return [model.get_submodule(name).weight for norm in norms for name in norm.readers]


def check_present(model: nn.Module) -> None:
    """Raise a ValueError unless all parameters are there, on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


class Trial:
    """A float64 copy of a model with drawn weights, on which a change is tried, and the flow that it shows."""

    def __init__(self, model: nn.Module, example_inputs: Tensor | Mapping | None):
        check_present(model)
        inputs = default_example(model) if example_inputs is None else example_inputs
        inputs = tree_map(_double, dict(inputs) if isinstance(inputs, Mapping) else inputs)
        self.call = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
        try:
            self.model = _drawn(float64_copy(model))
            with warnings.catch_warnings(action="ignore"):
                self.sites = find_norms(self.model, inputs)
            self.flow = self._traced()
        except (RuntimeError, NotImplementedError) as error:
            why, kind = str(error).partition("\n")[0], type(model).__name__
            raise ValueError(f"model: no float64 copy of this {kind} runs with gradients ({why})") from error
        if not self.sites:
            raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")

    def _traced(self) -> Flow:
        return judged(Trace(self.model, self.sites, self.answer))

    def project(self) -> None:
        """Insert a projection where the stream begins, if it begins after a nonlinear map."""
        calls = []
        look = lambda name: lambda _, args, kwargs: calls.append((name, args[0] if args else None))  # noqa: E731
        with hooked(before=[(module, look(name)) for name, module in self.model.named_modules()]):
            self.answer()
        read = next(x for name, x in calls if name == self.flow.blocked)
        holders = (name for name, x in calls if x is read and self.flow.blocked.startswith(f"{name}."))
        if read is not None and (outermost := next(holders, None)):
            project_input(self.model.get_submodule(outermost))
            if not (flow := self._traced()).obstacle:
                self.flow = replace(flow, projected=outermost)

    def answer(self, mean: float = 0.0) -> list[Tensor]:
        """What the copy answers to the example, ``mean`` added to all that its writers put out, but attention."""
        writers = map(self.model.get_submodule, self.flow.writers if mean else ())
        raised = [(m, lambda *call: call[-1] + mean) for m in writers if not isinstance(m, nn.MultiheadAttention)]
        with hooked(after=raised):
            return answer(self.model, self.call)


def project_input(module: nn.Module) -> None:
    """Let a module read its first argument less its mean; once."""
    if not hasattr(module, "projection"):
        module.projection = Projection()
        module.register_forward_pre_hook(_project)


def _project(module: nn.Module, args: tuple) -> tuple:
    return (module.projection(args[0]), *args[1:])


def answer(model: nn.Module, call: tuple, wide: bool = True) -> list[Tensor]:
    """The floating-point numbers that a model returns, but no hidden states where there are logits.

    Args:
        wide: whether it computes in float64 throughout, or as it does by itself.

    Raises:
        ValueError: there are none, or no finite ones.
    """
    args, kwargs = call
    with double_throughout() if wide else nullcontext(), by_its_modules():
        output = model(*args, **kwargs)
    if is_dataclass(output) and not isinstance(output, Mapping):
        output = vars(output)
    output = output._asdict() if hasattr(output, "_asdict") else output
    if isinstance(output, Mapping) and "logits" in output:
        output = {name: value for name, value in output.items() if "hidden_state" not in name}
    found = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
    if not any(t.isfinite().any() for t in found):
        raise ValueError(f"model: this {type(model).__name__} returns no finite numbers that could be compared")
    return found


def float64_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in evaluation mode."""
    wide = copy.deepcopy(model).cpu().double()
    wide.eval()
    if hasattr(wide, "set_experts_implementation"):
        wide.set_experts_implementation("eager")  # the others know no float64
    return wide


@torch.no_grad()
def _drawn(model: nn.Module) -> nn.Module:
    """The model itself, its parameters drawn: matrices of variance 1 over their last axis, vectors about 1/2."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        vector = parameter.dim() < 2
        parameter.copy_(0.5 + 0.3 * noise if vector else noise / parameter.shape[-1] ** 0.5)
    return model


def _double(value: object) -> object:
    value = value.cpu() if isinstance(value, Tensor) else value
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


class double_throughout(TorchFunctionMode):
    """While the block runs, a model of float64 weights computes in float64 also where its code asks for float32.

    Models of transformers cast to float32 what they hold too delicate for float16, and do so still after
    :meth:`torch.nn.Module.double`: RMSNorm in all of them, the attention of GPT-J and GPT-Neo, softmax.
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
