"""Check that a changed model answers as before: on an example, on half of it, on twice of it, and with padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from normgeom.models.flow import answer, dtype_of
from normgeom.models.watch import evaluating, running_without

Answers = dict[str, list[Tensor]]
BOUND = 1e-10  # in float64, of the change of an output over the largest

_LENGTHS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "half of the example": lambda text, axis: text.narrow(axis, 0, (text.shape[axis] + 1) // 2),
    "the example twice in a row": lambda text, axis: torch.cat([text, text.flip(axis)], axis),
}


def prove(
    model: nn.Module,
    take: Callable[[nn.Module], None],
    replaced: Iterable[str],
    call: tuple,
    weights: str,
    before: Answers | None = None,
) -> None:
    """Change a model by ``take``; a ValueError if it then answers differently or runs a module that was replaced."""
    dtype, before = dtype_of(model), before or answers(model, call)
    with running_without(model, list(map(model.get_submodule, replaced))):
        take(model)
        after = answers(model, call, before)
    bound = BOUND if dtype == torch.float64 else 3 * torch.finfo(dtype).eps ** 0.5  # more than rounding explains
    for length in before:
        if not (changed := change_of(after[length], before[length])) <= bound:
            raise ValueError(
                f"model: this {type(model).__name__} with {weights} in {dtype} computes something else when changed, "
                f"on {length} by {changed:.1e} of the largest output: it shares a weight between modules, holds "
                "one of them in a function, computes in fewer bits, or does more than its parameters say"
            )


def answers(model: nn.Module, call: tuple, only: Iterable[str] | None = None) -> Answers:
    """The outputs of a model for each variant of the example that it can run; with ``only``, for these, or an error."""
    found = {}
    with evaluating(model):
        for name, variant in _variants(model, call):
            with suppress(Exception) if only is None else nullcontext():
                if only is None or name in only:
                    found[name] = answer(model, variant)
    return found


def _variants(model: nn.Module, call: tuple) -> Iterator[tuple[str, tuple]]:
    """The example; half and twice of it along its first two axes; and padded, which only models with a mask can run."""
    yield "the example", call
    tensors = [leaf for leaf in tree_leaves(call) if isinstance(leaf, Tensor) and leaf.dim()]
    for axis, (name, change) in itertools.product((1, 0), _LENGTHS.items()):
        long = [tensor for tensor in tensors if tensor.dim() > axis]
        changed = {id(t): change(t, axis) for t in long if t.shape[axis] == long[0].shape[axis]}
        yield f"{name} along axis {axis}", tree_map(lambda leaf, by=changed: by.get(id(leaf), leaf), call)
    if not tensors:
        return
    args, kwargs = call
    mask = kwargs.get("attention_mask")
    mask = torch.ones_like(tensors[0], dtype=torch.long) if mask is None else mask.clone()
    mask[..., 0] = 0
    yield "the example with padding", (args, {**kwargs, "attention_mask": mask})


def change_of(after: list[Tensor], before: list[Tensor]) -> float:
    """The largest difference, relative to the largest output that changed; NaN may stay NaN."""
    changes = [torch.zeros((), dtype=torch.float64, device="cpu")]
    for pair in zip(after, before, strict=True):
        x, y = (tensor.double() for tensor in pair)
        changed = (x != y) & ~(x.isnan() & y.isnan())
        if changed.any():
            changes.append((x - y)[changed].abs().max() / y[changed].abs().max())
    return float(torch.stack(changes).max())
