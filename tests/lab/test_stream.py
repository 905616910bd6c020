"""Parts of the final stream against streams caught on their way, and their effects against norms computed anew."""

from types import SimpleNamespace

import pytest
import torch
from norm_checks import close, draw
from normgeom.models.twins import twins
from normgeom_lab.common import parts as lab
from normgeom_lab.common import stream
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.tiny import gpt2, perturb
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

LAYER = ("gpt2", "gpt_neox", "gptj", "opt", "phi", "persimmon")
RMS = ("llama", "qwen3", "gemma")
PARALLEL = {
    "gpt_neox": "gpt_neox.layers.1.attention",
    "gptj": "transformer.h.1.attn",
    "phi": "model.layers.1.self_attn",
}
IDS = token_ids(2, 9)
D, EPS = 12, 1e-2


def drawn(family, **changes):
    """In float64, with norms that are not at their initial values."""
    model = tiny(family, **changes).double()
    randomise_norms(model, [model.get_submodule(norm.name) for norm in stream.flow_of(model).norms])
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 or name.endswith("bias"):
                p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    return model


def caught(model):
    """What enters each norm of the stream and each block, ``{name: tensor}``, and the logits, by hooks of our own."""
    seen = {}
    modules = {norm.name: model.get_submodule(norm.name) for norm in stream.flow_of(model).norms}
    modules |= {f"block {i}": block for i, block in enumerate(stream.blocks(model), 1)}

    def keep(name):
        def hook(module, args, kwargs):
            seen[name] = (args[0] if args else kwargs["hidden_states"]).clone()

        return hook

    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True) for name, m in modules.items()]
    with torch.no_grad():
        logits = model(IDS).logits
    for handle in handles:
        handle.remove()
    return seen, logits


def agree(got, expected, suspects, tol=1e-12):
    close(got, expected, tol, "compared with an independent way", suspects)


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture(scope="module", params=LAYER + RMS)
def case(request):
    """A model of a family, which tests do not change, its parts, and what is caught of its stream."""
    model = drawn(request.param)
    seen, logits = caught(model)
    norms = [norm.name for norm in stream.flow_of(model).norms]
    parts = lab.components(model, IDS)
    return SimpleNamespace(family=request.param, model=model, parts=parts, seen=seen, logits=logits, norms=norms)


# --- the parts ---------------------------------------------------------------------------------------------------


def test_the_parts_add_up_to_every_stream(case):
    assert all(part.shape == (2, 9, 32) and not part.requires_grad for part in case.parts.values())
    names = list(case.parts)
    assert names[names.index("a1") :] == ["a1", "m1", "a2", "m2"], "Blocks count from 1."
    total = sum(case.parts[name] for name in names[: names.index("a1")])
    for block in (1, 2):
        agree(total, case.seen[f"block {block}"], "A part counted in the wrong block? Sums from 0 to l − 1?")
        total = total + case.parts[f"a{block}"] + case.parts[f"m{block}"]
    agree(total, case.seen[case.norms[-1]], "An embedding or the last block left out?")
    assert hooks_of(case.model) == 0


def test_attention_is_told_from_mlp(case):
    if case.family in PARALLEL:
        kept = []
        attention = case.model.get_submodule(PARALLEL[case.family])
        handle = attention.register_forward_hook(lambda m, args, output: kept.append(output[0]))
        caught(case.model)
        handle.remove()
        agree(case.parts["a2"], kept[0], "Attention and MLP interchanged?")
    else:
        between = case.seen[case.norms[3]].reshape(2, 9, 32)  # OPT flattens it
        agree(case.parts["a2"], between - case.seen["block 2"], "Attention and MLP interchanged?")


@pytest.mark.parametrize(("family", "embedding", "factor"), [("gpt2", "wte", 1), ("gemma", "embed_tokens", 32**0.5)])
def test_embeddings_are_what_they_look_up(family, embedding, factor):
    model = drawn(family)
    part = lab.components(model, IDS)[embedding]
    agree(part, factor * model.get_input_embeddings().weight[IDS], "The positions too? Gemma's √d forgotten?", tol=1e-6)


def test_dropout_is_off_and_the_mode_restored():
    model = drawn("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    still = lab.components(model, IDS)
    model.train()
    model.transformer.h[0].eval()
    moving, run = lab.components(model, IDS), lab.followed(model, IDS)
    assert all(torch.equal(still[name], moving[name]) for name in still), "The model ran in training mode."
    agree(run.streams[-1], sum(still.values()), "Dropout drawn?")
    assert model.training and not model.transformer.h[0].training


@pytest.mark.parametrize("which", [0, 1], ids=["layer norm", "rms norm"])
def test_the_writers_of_a_gpt2(which):
    """All there is in a stream, in the order in which it is written; the readers see the stream by their first axis."""
    model = twins(gpt2(vocabulary=64, length=16, width=12, layers=2, heads=3), 3)[which]
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}
    perturb(model, Draws(0))
    inner = model.transformer
    written = [inner.wte.weight, inner.wpe.weight]
    written += [p for block in inner.h for part in (block.attn, block.mlp) for p in part.c_proj.parameters()]
    read = [module.weight for block in inner.h for module in (block.attn.c_attn, block.mlp.c_fc)]
    assert list(map(id, stream.stream_writers(model))) == list(map(id, written))
    assert list(map(id, stream.stream_readers(model))) == list(map(id, read))


@pytest.mark.parametrize("tied", [True, False])
def test_a_rotated_copy_has_rotated_parts(tied):
    """Writers, readers and a head of its own."""
    model = drawn("gpt2", tie_word_embeddings=tied)
    before = {name: p.clone() for name, p in model.named_parameters()}
    q = torch.linalg.qr(draw(32, 32)).Q
    other = stream.rotate(model, q)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters()), "the model was changed"
    for p, turned in zip(stream.stream_writers(model), stream.stream_writers(other), strict=True):
        agree(turned, p @ q.T, "By the inverse? A writer left out?")
    for name in (name for norm in stream.flow_of(model).norms[:-1] for name in norm.readers):
        p, turned = model.get_submodule(name).weight, other.get_submodule(name).weight
        agree(turned, q @ p, "A reader left out?")
    agree(other.lm_head.weight, model.lm_head.weight @ q.T, "The head twice, or not at all?")


# --- the readout and effects ------------------------------------------------------------------------------------


def test_the_readout_gives_the_models_logits(case):
    readout, x = lab.Readout.of(case.model), case.seen[case.norms[-1]]
    assert readout.centered == (case.family in LAYER)
    # transformers' RMSNorms compute in float32
    tol = 1e-12 if readout.centered else 1e-5 * float(case.logits.abs().max())
    agree(readout.logits(x), case.logits, "Gain, 1 + gain, β, the head's bias, or ε forgotten?", tol=tol)


def test_a_half_precision_model_is_read_in_float32():
    model = drawn("gpt2").bfloat16()
    readout, parts = lab.Readout.of(model), lab.components(model, IDS)
    assert all(part.dtype == torch.bfloat16 for part in parts.values())
    assert readout.logits(sum(parts.values())).dtype == torch.float32


def test_effects_broadcast_and_widen():
    c, x, w = (draw(*shape).bfloat16() for shape in ((4, 3, 5, D), (3, 5, D), (D,)))
    found = lab.effects(c, x, w, EPS)
    assert all(value.shape == (4, 3, 5) and value.dtype == torch.float32 for value in found)
    one_by_one = torch.stack([lab.effects(part, x, w, EPS).removed for part in c])
    agree(found.removed, one_by_one, "Parts mixed up?", tol=1e-6)
