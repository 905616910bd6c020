"""The placement of norms in families of transformers, found from the behaviour of their blocks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from normgeom.models.watch import hooked
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from normgeom_lab.common.stacks import DESIGNS, PLACEMENTS

WORDS = {name: DESIGNS[name].words for name in (*PLACEMENTS, "post-small")}

_GROUPED = dict(num_key_value_heads=2, head_dim=16)
_LLAMA, _OPT = ("self_attn.o_proj", "mlp.down_proj"), ("self_attn.out_proj", "fc2")

# Family → its model type in transformers, the last linear maps of a block's two branches, options of its own.
FAMILIES = {
    "GPT-2": ("gpt2", ("attn.c_proj", "mlp.c_proj"), {}),
    "Llama": ("llama", _LLAMA, _GROUPED),
    "BERT": ("bert", ("attention.output.dense", "output.dense"), {}),
    "OPT": ("opt", _OPT, {}),
    "OPT, 350m": ("opt", _OPT, dict(do_layer_norm_before=False)),
    "Gemma 2": ("gemma2", _LLAMA, _GROUPED),
    "Gemma 3": ("gemma3_text", _LLAMA, _GROUPED),
    "OLMo 2": ("olmo2", _LLAMA, _GROUPED),
    "GPT-J": ("gptj", ("attn.out_proj", "mlp.fc_out"), dict(rotary_dim=8)),
    "GPT-NeoX": ("gpt_neox", ("attention.dense", "mlp.dense_4h_to_h"), {}),
    "Cohere": ("cohere", _LLAMA, _GROUPED),
}


class Behaviour(NamedTuple):
    """Relative changes in the second of two blocks, each the answer to one question.

    Attributes:
        sum: of its output with branches switched off, if the stream is multiplied by 10: 0 if a norm is on the sum.
        after: of what it adds, if a branch is multiplied by 10: 0 if norms follow both branches.
        before: of what a branch computes, if the stream is multiplied by 10: 0 if both read through norms.
        parallel: of what the MLP computes, if attention is switched off: 0 if it does not read attention's result.
        final_norm: from the block's output to the model's: 0 if no norm is in between.
    """

    sum: float
    after: float
    before: float
    parallel: float
    final_norm: float


def tiny_model(family: str, seed: int) -> tuple[PreTrainedModel, nn.ModuleList]:
    """A float64 model of two blocks of width 32, and its list of blocks, whose matrices have variance 1 over width.

    Torch's own generator draws it from ``seed``.
    """
    kind, _, options = FAMILIES[family]
    sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(seed)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **ids, **options)).double().eval()
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for parameter in blocks.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
    return model, blocks


def behaviour(family: str, seed: int, without: str | None = None) -> Behaviour:
    """Test where the second block of :func:`tiny_model` has its norms, on a random stream of mean square 9.

    ``without`` names a module of the block that is removed first.
    """
    model, (_, block) = tiny_model(family, seed)
    if without is not None:
        block.set_submodule(without, nn.Identity(), strict=True)
    writers = [block.get_submodule(name) for name in FAMILIES[family][1]]
    x = 3 * torch.randn(2, 7, 32, dtype=torch.float64)

    @torch.no_grad()
    def ask(stream, *factors):
        """The output of the block that reads ``stream``, what its branches compute before they are multiplied by
        ``factors``, and the model's output."""
        computed, out = [], []

        def enter(module, args, kwargs):
            return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

        def leave(module, args, kwargs, output):
            out.append(output[0] if isinstance(output, tuple) else output)

        def write(module, args, kwargs, output):
            computed.append(output)
            return factors[len(computed) - 1] * output

        with hooked([(block, enter)], [(block, leave), *((writer, write) for writer in writers)]):
            final = model(torch.arange(3, 17).reshape(2, 7)).last_hidden_state
        return out[0], *computed, final

    def change(a, b):
        return float((a - b).norm() / b.norm())

    out, attention, mlp, final = ask(x, 1, 1)
    alone = ask(x, 0, 1)
    return Behaviour(
        sum=change(ask(10 * x, 0, 0)[0], ask(x, 0, 0)[0]),
        after=max(change(ask(x, 10, 0)[0] - x, ask(x, 1, 0)[0] - x), change(ask(x, 0, 10)[0] - x, alone[0] - x)),
        before=max(change(ask(10 * x, 1, 1)[1], attention), change(ask(10 * x, 0, 1)[2], alone[2])),
        parallel=change(alone[2], mlp),
        final_norm=change(final, out),
    )


def name_of(behaviour: Behaviour) -> str | None:
    """The placement with these answers in words, or None; a relative change below 0.02 counts as none.

    Post-norm and DeepNorm behave alike; such a block is called post-norm.
    """
    yes = {question: getattr(behaviour, question) < 0.02 for question in behaviour._fields}
    for name, rule in PLACEMENTS.items():
        if all(yes[norm] == getattr(rule, norm) for norm in ("before", "after", "sum")):
            return WORDS[name] + ", parallel" * yes["parallel"] + ", final norm" * (not yes["final_norm"])
    return None
