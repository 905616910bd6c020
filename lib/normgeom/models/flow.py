"""Who writes to a residual stream and who reads it, as one run of a float64 copy of the model shows."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from normgeom.models.judgement import Flow, judged
from normgeom.models.sites import NormSite, default_example, find_norms
from normgeom.models.trace import Projection, Trace
from normgeom.models.watch import by_its_modules, check_module, entries, hooked, set_mode


def stream(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> Flow:
    """The residual stream of a model: its norms, who reads them, and who writes to it.

    A float64 copy of the model on the CPU runs once with random weights; it takes twice the memory of float32 weights.
    Names of classes and modules do not matter.  A norm belongs to the stream if it reads a sum of parameters and
    outputs of embeddings, linear maps and convolutions.  Code that the run does not reach is not seen.  Model and
    example are as in :func:`normgeom.find_norms`; a ValueError says that no copy runs, and why, or runs no norm.
    """
    return judged(Trial(model, example_inputs).trace)


class Part(NamedTuple):
    """What one module adds to the stream."""

    name: str  # "wte", "attn 0", "mlp 0", …
    writer: str  # the module whose output is added, ``factor`` times
    factor: float
    map: str  # the embedding or linear map: the writer itself or, if the writer is a norm, what that norm reads
    norm: NormSite | None
    mixes: bool  # whether it combines different positions, as attention does


class Stream(NamedTuple):
    """A stream from its parts to the logits."""

    parts: list[Part]  # in the order in which they are added
    final: NormSite  # the norm that reads their sum
    head: str  # the linear map that reads the norm
    read: float  # the head reads the output of the norm times this
    factor: float  # the logits are the output of the head times this


def followed(model: nn.Module, inputs: Tensor | Mapping) -> Stream:
    """Follow the stream of a decoder with its own weights; a ValueError says where this is impossible."""
    given = inputs if isinstance(inputs, Tensor) else dict(inputs)
    count = len(entries(inputs)["input_ids"])
    shapes = {(max(count, len(x)), *x.shape[1:]) for x in tree_leaves(given) if isinstance(x, Tensor) and x.dim()}
    beginning = tree_map(lambda x: x[:2, :11] if isinstance(x, Tensor) and x.dim() == 2 else x, given)
    trace = Trial(model, beginning if len(shapes) == 1 else given, drawn=False).trace
    sites = {site.name: site for site in find_norms(model, inputs)}  # under held scales it takes no others
    ran = [name for name, _ in trace.given]
    final = [name for name in ran if name in sites][-1]
    after = ran[ran.index(final) + 1 : -1]
    reads = trace.read_by(after[0]).sources if len(after) == 1 else {}
    if reads.keys() != {final} or reads[final] is None:
        found = ", ".join(after) or "none"
        raise ValueError(f"model: expected one linear map after its final norm, {final!r}, got {found}")
    summed = trace.read_by(final)
    if summed.odd:
        raise ValueError(f"model: its stream cannot be followed to {final}, which reads {summed.odd}")
    parts = [_part(trace, sites, writer, factor) for writer, factor in summed.sources.items()]
    _, outputs = trace.given[-1]
    factor = trace.read("", outputs[:1]).sources.get(after[0])
    if factor is None:
        raise ValueError("model: expected logits that are its unembedding's outputs or a multiple, not capped or cut")
    names = [part.name for part in parts]
    parts = [part if names.count(part.name) == 1 else part._replace(name=part.writer) for part in parts]
    return Stream(parts, sites[final], after[0], reads[final], factor)


def _part(trace: Trace, sites: Mapping[str, NormSite], writer: str, factor: float) -> Part:
    norm = sites.get(writer)
    source, *more = trace.read_by(writer).sources if norm else [writer]
    if more:
        raise ValueError(f"model: expected a pre-norm model, and {writer} normalises the stream itself")
    if source in trace.parameters:
        raise ValueError(f"model: its stream cannot be followed to {source}, a parameter that is added to it")
    layer = re.search(r"\.(\d+)\.", source)
    if isinstance(trace.modules[source], nn.Embedding) or not layer:
        # TransformerLens has "_original_component"
        name = next(word for word in reversed(source.split(".")) if word[0] != "_")
        return Part(name, writer, factor, source, norm, False)
    read = trace.read_by(source).sources  # of modules, and of parameters where code calls no module
    owners = (trace.modules.get(name) or trace.modules[name.rpartition(".")[0]] for name in read)
    mixes = {trace.mixes(source, column) for column in (0, -1)}  # both if one map reads attention and MLP
    kind = "block" if len(mixes) == 2 else "attn" if True in mixes else "mlp"
    kind = "conv" if any(isinstance(owner, _ConvNd) for owner in owners) else kind
    return Part(f"{kind} {layer[1]}", writer, factor, source, norm, kind == "attn")


def check_present(model: nn.Module) -> None:
    """Raise an error unless the model can be run with gradients, all its parameters on one device."""
    check_module(model)
    if torch.is_inference_mode_enabled():
        raise ValueError("model: expected a call outside of torch.inference_mode(); torch.no_grad() does no harm")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


def call_of(model: nn.Module, example_inputs: Tensor | Mapping | None) -> tuple[tuple, dict]:
    """Arguments and keywords of a run of a model that can be copied."""
    check_present(model)
    inputs = default_example(model) if example_inputs is None else example_inputs
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


class Trial:
    """A float64 copy ``model``, with random weights if ``drawn``, run once on ``call``; ``trace`` is what it showed."""

    def __init__(self, model: nn.Module, example_inputs: Tensor | Mapping | None, drawn: bool = True):
        self.call = call_of(model, example_inputs)
        inputs = cast(self.call[1] or self.call[0][0], torch.float64, torch.device("cpu"))
        try:
            with torch.device("cpu"):
                self.model = _drawn(cpu_copy(model)) if drawn else cpu_copy(model)
                with warnings.catch_warnings(action="ignore"):
                    self.sites = find_norms(self.model, inputs)
                self.trace = Trace(self.model, self.sites, self.answer)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            why, kind = str(error).partition("\n")[0], type(model).__name__
            raise ValueError(f"model: no float64 copy of this {kind} runs with gradients ({why})") from error
        if not self.sites:
            raise ValueError(f"model: a copy of this {type(model).__name__} runs no LayerNorm or RMSNorm")

    def answer(self) -> list[Tensor]:
        return answer(self.model, self.call)

    def projected(self, flow: Flow) -> Flow:
        """The flow with a projection where the stream begins, if this makes its weights able to centre it."""
        names = {module: name for name, module in self.model.named_modules()}
        began: list[tuple[str, Tensor | None]] = []

        def look(module, args, kwargs):
            began.append((names[module], args[0] if args else None))

        with hooked(before=[(m, look) for m in names if not isinstance(m, torch.jit.ScriptModule)]):
            self.answer()
        read = next(x for name, x in began if name == flow.blocked)
        holders = [name for name, x in began if x is read and flow.blocked.startswith(f"{name}.")]
        if read is None or not holders:
            return flow
        outermost = holders[0]
        project_input(self.model.get_submodule(outermost))
        again = judged(Trace(self.model, self.sites, self.answer))
        return flow if again.obstacle else again._replace(projected=outermost)


def project_input(module: nn.Module) -> None:
    """Subtract the mean from the first argument of a module, if it is not subtracted already."""
    if not hasattr(module, "projection"):
        module.projection = Projection()
        module.register_forward_pre_hook(_project)


def _project(module: nn.Module, args: tuple) -> tuple:
    return (module.projection(args[0]), *args[1:])


def answer(model: nn.Module, call: tuple) -> list[Tensor]:
    """The floating-point tensors that a model returns, on the CPU; without hidden states if there are logits.

    The model is called in the dtype of its weights; with float64 weights it computes in float64 throughout.
    """
    args, kwargs = cast(call, dtype := dtype_of(model), device := next(model.parameters()).device)
    with device, double_throughout() if dtype == torch.float64 else nullcontext(), by_its_modules():
        found = [t.cpu() for t in returned(model(*args, **kwargs))]
    if not any(t.isfinite().any() for t in found):
        raise ValueError(f"model: this {type(model).__name__} returns no finite numbers, or none with random weights")
    return found


def returned(output: object) -> list[Tensor]:
    """The floating-point tensors in what a model returns; if there are logits, first these, and no hidden states."""
    output = output if isinstance(output, Mapping) else _attributes(output) or output
    if isinstance(output, Mapping) and "logits" in output:
        others = {name: value for name, value in output.items() if "hidden_state" not in name}
        output = {"logits": others.pop("logits"), **others}
    return [tensor for tensor in _tensors(output) if tensor.is_floating_point()]


def _tensors(value: object) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
        elif inside := _attributes(leaf):
            yield from _tensors(inside)


def _attributes(value: object) -> dict[str, object]:
    """What an object holds, such as a dataclass or a distribution, by name."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return {} if isinstance(value, (Tensor, nn.Module, type)) else getattr(value, "__dict__", {})


def dtype_of(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def cast(inputs: object, dtype: torch.dtype, device: torch.device) -> object:
    """``inputs`` on a device, floating-point tensors in a dtype; others are copied, as a run may change them."""

    def there(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return copy.deepcopy(leaf)
        return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)

    return tree_map(there, inputs)


def cpu_copy(model: nn.Module) -> nn.Module:
    """A float64 copy on the CPU in evaluation mode."""
    copied = copy.deepcopy(model)
    mine, its = ({*module.parameters(), *module.buffers()} for module in (model, copied))
    if not mine.isdisjoint(its):
        raise ValueError("model: expected one that can be copied, but its copy has some of its parameters or buffers")
    copied = copied.cpu().double()
    set_mode(copied.modules(), False)
    if hasattr(copied, "set_experts_implementation"):
        copied.set_experts_implementation("eager")  # the others cannot compute in float64
    return copied


@torch.no_grad()
def _drawn(model: nn.Module) -> nn.Module:
    """The model itself with random parameters: matrices of variance 1 over their last axis, vectors about 1/2."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.5 + 0.3 * noise)
    return model


class double_throughout(TorchFunctionMode):
    """While the block runs, a model with float64 weights computes in float64 also where its code says float32.

    The models of transformers do in float32 what is too delicate for float16, even after
    :meth:`torch.nn.Module.double`: every RMSNorm, the attention of GPT-J and GPT-Neo, softmax.
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
