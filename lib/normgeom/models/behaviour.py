"""The placement of a block told from what it does: tiny models of transformers' families, and questions to a block."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

_SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
_GROUPED = dict(num_key_value_heads=2, head_dim=16)
_LLAMA, _OPT = ("self_attn.o_proj", "mlp.down_proj"), ("self_attn.out_proj", "fc2")


class Family(NamedTuple):
    """A family of transformers: its model type, the last linear maps of a block's two branches, options of its own."""

    kind: str
    writers: tuple[str, str]
    options: dict[str, object]


FAMILIES = {
    "GPT-2": Family("gpt2", ("attn.c_proj", "mlp.c_proj"), {}),
    "Llama": Family("llama", _LLAMA, _GROUPED),
    "BERT": Family("bert", ("attention.output.dense", "output.dense"), {}),
    "OPT": Family("opt", _OPT, {}),
    "OPT, 350m": Family("opt", _OPT, dict(do_layer_norm_before=False)),
    "Gemma 2": Family("gemma2", _LLAMA, _GROUPED),
    "Gemma 3": Family("gemma3_text", _LLAMA, _GROUPED),
    "OLMo 2": Family("olmo2", _LLAMA, _GROUPED),
    "GPT-J": Family("gptj", ("attn.out_proj", "mlp.fc_out"), dict(rotary_dim=8)),
    "GPT-NeoX": Family("gpt_neox", ("attention.dense", "mlp.dense_4h_to_h"), {}),
    "Cohere": Family("cohere", _LLAMA, _GROUPED),
}


class Behaviour(NamedTuple):
    """Relative changes of what the second of two blocks does, each to one question.

    Attributes:
        sum: of its output, branches silent, when the stream is ten times as large: 0 if a norm stands on the sum.
        after: of what it adds when a branch computes ten times as much, the larger of both branches': 0 if norms
            stand behind both.
        before: of what a branch computes when the stream is ten times as large, the larger of both: 0 if both read
            through norms.
        parallel: of what the MLP computes when attention is silent: 0 if it does not read attention's result.
        final_norm: from the block's output to the model's: 0 if nothing stands between.
        block: the name of the block's class.
        file: the file of transformers in which that stands.
    """

    sum: float
    after: float
    before: float
    parallel: float
    final_norm: float
    block: str
    file: str


def tiny_model(family: str, seed: int) -> tuple[PreTrainedModel, nn.ModuleList]:
    """A float64 model of two blocks of width 32, from its family's configuration, and its list of blocks.

    Matrices of the blocks are normal with variance 1 over the length of their rows.  Seeds torch's own generator.

    Raises:
        ValueError: the family is not one of :data:`FAMILIES`.
    """
    kind, _, options = _family(family)
    torch.manual_seed(seed)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **_SIZES, **_IDS, **options)).double().eval()
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for parameter in blocks.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
    return model, blocks


def behaviour(family: str, seed: int, without: str | None = None) -> Behaviour:
    """Ask the second block of :func:`tiny_model`, on a random stream of mean square 9, where its norms stand.

    Args:
        family: of :data:`FAMILIES`.
        seed: of the weights and the stream.
        without: the name of a module of the block that is taken out first.

    Raises:
        ValueError: the family is not known, or the block has no such module.
    """
    writers = _family(family).writers
    model, blocks = tiny_model(family, seed)
    if without is not None:
        if not hasattr(blocks[1], without):
            raise ValueError(f"without: expected a module of {type(blocks[1]).__name__}, got {without!r}")
        setattr(blocks[1], without, nn.Identity())
    x = 3 * torch.randn(2, 7, 32, dtype=torch.float64)

    def ask(stream, *factors):
        return run_block(model, blocks[1], writers, stream, factors)

    out, attention, mlp, final = ask(x, 1, 1)
    alone = ask(x, 0, 1)
    return Behaviour(
        sum=_change(ask(10 * x, 0, 0)[0], ask(x, 0, 0)[0]),
        after=max(
            _change(ask(x, 10, 0)[0] - x, ask(x, 1, 0)[0] - x),
            _change(ask(x, 0, 10)[0] - x, alone[0] - x),
        ),
        before=max(_change(ask(10 * x, 1, 1)[1], attention), _change(ask(10 * x, 0, 1)[2], alone[2])),
        parallel=_change(alone[2], mlp),
        final_norm=_change(final, out),
        block=type(blocks[1]).__name__,
        file=type(blocks[1]).__module__.rpartition(".")[2] + ".py",
    )


@torch.no_grad()
def run_block(
    model: PreTrainedModel, block: nn.Module, writers: tuple[str, str], x: Tensor, factors: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a block of a model on a stream of one's own, what its two branches compute multiplied by factors.

    Args:
        model: runs on 2 texts of 7 tokens.
        block: of the model.
        writers: the names in the block of the branches' last linear maps, attention's first.
        x: ``(2, 7, d)``, put in the stream's place before the block.
        factors: of what both maps put out.

    Returns:
        ``(2, 7, d)`` each: the block's output, what attention and MLP computed before their factors, and the model's
        output.
    """
    computed, out = [], []

    def enter(module, args, kwargs):
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

    def leave(module, args, output):
        out.append(output[0] if isinstance(output, tuple) else output)

    def write(factor):
        def hook(module, args, output):
            computed.append(output)
            return factor * output

        return hook

    with ExitStack() as hooks:
        hooks.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        hooks.callback(block.register_forward_hook(leave).remove)
        for name, factor in zip(writers, factors, strict=True):
            hooks.callback(block.get_submodule(name).register_forward_hook(write(factor)).remove)
        final = model(torch.arange(3, 17).reshape(2, 7)).last_hidden_state
    return out[0], *computed, final


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(map(repr, FAMILIES))}, got {name!r}")
    return FAMILIES[name]
