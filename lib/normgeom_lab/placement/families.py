"""The placement of norms in families of transformers, found from the behaviour of their blocks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from normgeom.models.watch import hooked
from torch import Tensor, nn
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
    """Relative changes that show how the second of two blocks is built.

    Attributes:
        sum: change in the output without branches if the stream is multiplied by 10: 0 if the sum is normalised.
        after: the larger change in what the block adds if one branch is multiplied by 10: 0 if norms follow both.
        before: the larger change in what a branch computes if the stream is multiplied by 10: 0 if norms precede both.
        parallel: change in what the MLP computes if attention is switched off: 0 if the MLP does not read its result.
        final_norm: difference between the outputs of the block and of the model: 0 if there is no norm in between.
    """

    sum: float
    after: float
    before: float
    parallel: float
    final_norm: float


class Answer(NamedTuple):
    """The output of a block, what its branches compute before they are multiplied, and the output of the model."""

    block: Tensor
    attention: Tensor
    mlp: Tensor
    model: Tensor


def tiny_model(family: str, seed: int) -> tuple[PreTrainedModel, nn.ModuleList]:
    """A float64 model of two blocks of width 32, drawn with torch's global generator, and the list of its blocks."""
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
    """Measure the second block of :func:`tiny_model` on a random stream of mean square 9.

    If ``without`` is the name of a module in the block, that module is removed first.
    """
    model, (_, block) = tiny_model(family, seed)
    if without is not None:
        block.set_submodule(without, nn.Identity(), strict=True)
    writers = [block.get_submodule(name) for name in FAMILIES[family][1]]
    x = 3 * torch.randn(2, 7, 32, dtype=torch.float64)

    @torch.no_grad()
    def ask(stream, attention=1, mlp=1):
        """Run the model with ``stream`` as the block's input and the block's branches multiplied by two numbers."""
        computed, out = [], []
        factors = iter((attention, mlp))

        def enter(module, args, kwargs):
            return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

        def leave(module, args, kwargs, output):
            out.append(output[0] if isinstance(output, tuple) else output)

        def write(module, args, kwargs, output):
            computed.append(output)
            return next(factors) * output

        with hooked([(block, enter)], [(block, leave), *((writer, write) for writer in writers)]):
            final = model(torch.arange(3, 17).reshape(2, 7)).last_hidden_state
        return Answer(out[0], *computed, final)

    def change(a, b):
        return float((a - b).norm() / b.norm())

    def added(attention, mlp):
        return ask(x, attention, mlp).block - x

    both, only_mlp = ask(x), ask(x, attention=0)
    return Behaviour(
        sum=change(ask(10 * x, 0, 0).block, ask(x, 0, 0).block),
        after=max(change(added(10, 0), added(1, 0)), change(added(0, 10), added(0, 1))),
        before=max(change(ask(10 * x).attention, both.attention), change(ask(10 * x, 0).mlp, only_mlp.mlp)),
        parallel=change(only_mlp.mlp, both.mlp),
        final_norm=change(both.model, both.block),
    )


def name_of(behaviour: Behaviour) -> str | None:
    """The name of the placement that behaves like this, or None. A relative change below 0.02 counts as none.

    Post-norm and DeepNorm behave alike; both are called post-norm.
    """
    unchanged = {question: change < 0.02 for question, change in behaviour._asdict().items()}
    for name, rule in PLACEMENTS.items():
        if all(unchanged[norm] == getattr(rule, norm) for norm in ("before", "after", "sum")):
            parallel = ", parallel" if unchanged["parallel"] else ""
            return WORDS[name] + parallel + ("" if unchanged["final_norm"] else ", final norm")
    return None
