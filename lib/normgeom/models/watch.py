"""Run a model and look at its modules: temporary hooks, and the inputs and outputs of norms."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

# if torch lacks this name, what fails under vmap fails with torch's own message
is_batchedtensor = getattr(torch._C._functorch, "is_batchedtensor", lambda _: False)
Hooks = Iterable[tuple[nn.Module, Callable]]
Source = tuple[str | None, float] | None  # see NormSite.sources


@dataclass(frozen=True, eq=False)
class NormSite:
    """One norm of a model, described by its behaviour.

    Attributes:
        name: the module's name in the model.
        module: the module itself.
        kind: ``"layer"`` (removes the mean) or ``"rms"`` (does not).
        weight: the effective gain γ, ``(dim,)`` float32 on the CPU: ``1 + w`` for Gemma, ones if there is none; if
            each head has its own (Cohere's queries and keys), ``(heads, dim)``, which broadcasts with the norm's input.
        bias: the effective bias β, of the same shape, zeros if there is none.
        eps: the effective ε inside the root (eq-layer-norm, eq-rms-norm).
        dim: d, the number of entries of the vectors.
        token_axis: the axis of the norm's input that counts positions; None for flattened tokens and for images.
        sources: for γ and for β, the name of the parameter that acts and the number that is added to it; (None, 0) if
            none is needed, None if something else acts.

    Example:
        >>> import torch, normgeom as ng
        >>> (site,) = ng.find_norms(torch.nn.LayerNorm(4, eps=1e-3), torch.ones(2, 5, 4))
        >>> site.kind, site.eps, site.weight.tolist(), site.token_axis
        ('layer', 0.001, [1.0, 1.0, 1.0, 1.0], 1)
    """

    name: str
    module: nn.Module
    kind: str
    weight: Tensor
    bias: Tensor
    eps: float
    dim: int
    token_axis: int | None
    sources: tuple[Source, Source]

    def __repr__(self) -> str:
        kind = {"layer": "LayerNorm", "rms": "RMSNorm"}[self.kind]
        return f"NormSite({self.name!r}, {kind}, dim={self.dim}, eps={self.eps:g})"


@contextmanager
def watch(
    model: nn.Module,
    sites_or_names: Iterable[NormSite | str],
    callback: Callable[[NormSite | str, Tensor, Tensor], None],
) -> Iterator[None]:
    """While the block runs, call ``callback(site, x_in, x_out)`` whenever one of these norms runs.

    The tensors ``(..., dim)`` are the norm's own, detached, on its device and in its dtype; copy what you want to keep.
    Inside the block, torch uses neither compiled code nor its fast path for encoders, so that hooks run.  The hooks are
    removed at the end, also after an error.

    Args:
        model: the model that will run.
        sites_or_names: a list of what :func:`normgeom.find_norms` found in this model or in the model that it was
            copied from, or of names of modules as in ``model.named_modules()``; or one of them.
        callback: its first argument is the name if a name was given, else a site whose module belongs to this model.

    Raises:
        ValueError: ``model`` has no module of that name.  Inside the block: a site's norm reads vectors of another
            length, or runs under ``torch.vmap``.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        >>> with ng.watch(model, ["1"], lambda name, x, y: print(name, tuple(x.shape), f"{float(y.std()):.1f}")):
        ...     _ = model(torch.randn(100, 4))
        1 (100, 8) 1.0
    """
    modules = dict(model.named_modules())

    def hook(given: NormSite | str) -> tuple[nn.Module, Callable]:
        name = getattr(given, "name", given)
        if name not in modules:
            raise ValueError(f"sites_or_names: this {type(model).__name__} has no module {name!r}")
        module = modules[name]
        seen = given if isinstance(given, str) or given.module is module else replace(given, module=module)

        def call(_, args, kwargs, output):
            x = next(iter((*args, *kwargs.values())))
            x = x.detach() if isinstance(x, Tensor) else output.detach()  # some position embeddings take a length
            if is_batchedtensor(x):
                raise ValueError(f"model: {name} runs under torch.vmap, where its vectors cannot be looked at")
            if x.shape[-1] != getattr(seen, "dim", x.shape[-1]):
                expected = f"vectors of length {seen.dim} in all calls of {name}"
                raise ValueError(f"model: expected {expected}, got {x.shape[-1]}")
            callback(seen, x, output.detach())

        return module, call

    with hooked(after=[hook(given) for given in listed(sites_or_names)]), by_its_modules():
        yield


def listed(one_or_more: Iterable | NormSite | str) -> list:
    """A list of sites, names or directions, or of the one that is given."""
    return [one_or_more] if isinstance(one_or_more, (str, NormSite)) else list(one_or_more)


def check_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got a {type(model).__name__}")


def entries(inputs: Tensor | Mapping) -> Mapping[str, object]:
    """The entries of a batch, by name."""
    return inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}


def check_texts(argument: str, model: nn.Module, batch: Tensor | Mapping) -> None:
    """Refuse padding, and token ids outside the vocabulary, which end the process on a GPU."""
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = entries(batch).get(name)
        if mask is not None and not mask.all():
            raise ValueError(f"{argument}: expected texts without padding, {name} leaves tokens out")
    if nested := next((name for name, value in entries(batch).items() if isinstance(value, Mapping)), None):
        raise ValueError(f"{argument}: expected tensors, got a mapping as {nested}")
    ids, vocabulary = entries(batch).get("input_ids"), getattr(getattr(model, "config", None), "vocab_size", None)
    if ids is None or vocabulary is None:
        return
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() < 2:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{argument}: expected integer token ids (batch, length), got {got}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        expected = f"{argument}: expected token ids from 0 to {vocabulary - 1}, got {low} to {high}"
        raise ValueError(f"{expected}; is the tokenizer another model's?")


def forward(model: nn.Module, inputs: Tensor | Mapping):
    """``model(inputs)``, or ``model(**inputs)`` for a mapping, on the model's device and without gradients."""
    if not isinstance(inputs, (Tensor, Mapping)):
        raise TypeError(f"inputs: expected a tensor, or a mapping of arguments, got a {type(inputs).__name__}")
    there = (tensor.device for tensor in itertools.chain(model.parameters(), model.buffers()))
    if (device := next(there, torch.device("cpu"))).type == "meta":
        raise ValueError("model: expected parameters that hold data, got some on the meta device")
    moved = {name: v.to(device) if isinstance(v, Tensor) else copy.deepcopy(v) for name, v in entries(inputs).items()}
    with torch.no_grad(), by_its_modules():
        return model(**moved) if isinstance(inputs, Mapping) else model(*moved.values())


def set_mode(modules: Iterable[nn.Module], training: bool) -> None:
    """Set the mode of these modules without calling their ``train`` and ``eval``, which may do more."""
    for module in modules:
        module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode; at the end, every module gets its former mode back."""
    training = [module for module in model.modules() if module.training]
    set_mode(training, False)
    try:
        yield
    finally:
        set_mode(training, True)


@contextmanager
def by_its_modules() -> Iterator[None]:
    """Make every module run, so that hooks are called: no fast path of torch's encoders, no compiled code."""
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and loading it takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def hooked(before: Hooks = (), after: Hooks = (), prepend: bool = False) -> Iterator[None]:
    """Hooks while the block runs: ``hook(module, args, kwargs)`` before a module, or after it with the output as well.

    A value that a hook returns replaces ``(args, kwargs)`` or the output.  With ``prepend``, hooks after a module run
    before those that it has already.  Of copies that share a module's hooks, only those of nn.DataParallel run them.
    """

    def only(module: nn.Module, hook: Callable) -> Callable:
        return lambda ran, *given: hook(ran, *given) if ran is module or hasattr(ran, "_is_replica") else None

    with ExitStack() as hooks:
        for module, hook in before:
            hooks.callback(module.register_forward_pre_hook(only(module, hook), with_kwargs=True).remove)
        for module, hook in after:
            registered = module.register_forward_hook(only(module, hook), with_kwargs=True, prepend=prepend)
            hooks.callback(registered.remove)
        yield


@contextmanager
def undone_by_errors(model: nn.Module) -> Iterator[None]:
    """If the block ends in an error, restore the model's parameters, buffers, modules, hooks and settings."""
    owners = [getattr(owner, "__dict__", {}) for owner in (*model.modules(), getattr(model, "config", None))]
    held = [d for owner in owners for d in (owner, *owner.values()) if isinstance(d, dict)]
    contents, data = [(d, dict(d)) for d in held], [(t, t.data) for t in (*model.parameters(), *model.buffers())]
    try:
        yield
    except BaseException:
        for d, content in contents:
            d.clear()
            d.update(content)
        for tensor, before in data:
            tensor.data = before
        raise


@contextmanager
def running_without(model: nn.Module, replaced: Iterable[nn.Module]) -> Iterator[None]:
    """A block in which a changed model runs; a ValueError if it fails, or runs a module that was replaced."""
    kind = type(model).__name__

    def look(module, args, kwargs):
        where = "which it holds in a list, a dict or another object too"
        raise ValueError(f"model: this {kind} still runs a {type(module).__name__} that was replaced, {where}")

    try:
        with hooked(before=[(old, look) for old in replaced]):
            yield
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("model: "):
            raise
        raise ValueError(f"model: this {kind} does not run once it is changed ({error})") from error


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new``, in the mode of ``old`` and with its hooks, wherever ``model`` holds ``old``.

    Torch's own encoders then run their modules, and not the fast path, which treats norms as LayerNorms.
    """
    new.train(old.training)
    of_hooks = ("_forward_", "_backward_", "_is_full_backward")
    vars(new).update({name: hooks for name, hooks in vars(old).items() if name.startswith(of_hooks)})
    for parent in list(model.modules()):
        for attribute, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, attribute, new)
                if isinstance(parent, nn.TransformerEncoderLayer):
                    parent.activation_relu_or_gelu = 0
        if isinstance(parent, nn.TransformerEncoder):
            parent.use_nested_tensor = False
