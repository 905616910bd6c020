"""How many tokens a model takes at once, by asking its architecture, without its weights."""

from __future__ import annotations

import copy
import itertools

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from transformers import AutoModel, PreTrainedConfig

_SHORT = 8  # tokens, that any model takes


def longest_window(config: PreTrainedConfig, wanted: int) -> int:
    """The most tokens that a model of this configuration takes at once, or ``wanted`` if that is less.

    What a configuration states as its number of positions is believed: a model with rotary positions runs beyond
    what it has been trained on.  Beyond that the architecture is run, on shapes where there are no weights: a table of
    positions that ends and a bias of a fixed size are errors, whatever the configuration calls them.  Where it cannot
    be run so, not even on a short text, what is stated decides.

    Args:
        config: of a model of transformers that reads text.
        wanted: at least 1.
    """
    text = config.get_text_config()
    stated = getattr(text, "max_position_embeddings", None) or 0
    most = min(wanted, stated) if stated > 0 else wanted
    model = _without_weights(text)
    if most <= _SHORT or not _takes(model, _SHORT) or _takes(model, most):
        return most
    taken, refused = _SHORT, most
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if _takes(model, middle) else (taken, middle)
    return taken


def _without_weights(config: PreTrainedConfig) -> nn.Module:
    """The model with one block of each kind: blocks do not differ in how long a text may be."""
    with init_empty_weights():  # bfloat16, for products of many experts know no other shapes
        model = AutoModel.from_config(copy.deepcopy(config), dtype=torch.bfloat16).eval()
    stacks = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for name, stack in stacks.items():
        if not any(name.startswith(f"{outer}.") for outer in stacks):
            kept = list({type(block): block for block in reversed(stack)}.values())[::-1]
            del stack[:]
            stack.extend(kept)
    return model


def _takes(model: nn.Module, length: int) -> bool:
    word = next(i for i in itertools.count() if i != model.config.pad_token_id)  # padding may have no position
    ids = torch.full((1, length), word)
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    try:
        with torch.no_grad(), _WithoutWeights():
            model(input_ids=ids, **decoder, use_cache=False)
    except Exception:
        return False
    return True


class _WithoutWeights(TorchDispatchMode):
    """Where a weight takes part, shapes alone are computed, after a look whether a table has the rows asked for."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten.embedding.default and not args[1].is_meta and int(args[1].max()) >= len(args[0]):
            raise IndexError("index out of range")
        if any(isinstance(x, Tensor) and x.is_meta for x in tree_iter((args, kwargs))):
            args, kwargs = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (args, kwargs))
        elif kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": "cpu"}  # numbers of positions are numbers, wherever the weights are
        return function(*args, **kwargs)
