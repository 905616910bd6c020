"""Parts of the final stream against streams caught on their way, and their effects against norms computed anew."""

import math

import pytest
import torch
import torch.nn.functional as F
from norm_checks import close, draw
from normgeom_lab.common import parts as stream
from tiny_models import randomise_norms, tiny, token_ids

LAYER = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "biogpt", "mpt", "phi", "persimmon", "starcoder2")
RMS = ("llama", "mistral", "qwen2", "qwen3", "gemma")
PARALLEL = ("gpt_neox", "gptj", "phi")
EACH = pytest.mark.parametrize("family", LAYER + RMS)
BOTH = pytest.mark.parametrize("centered", (True, False))
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


def final(model):
    return stream.flow_of(model).norms[-1].name


def caught(model, ids=IDS):
    """What enters each norm of the stream and each block, ``{name: tensor}``, by hooks of this file's own."""
    seen = {}
    modules = [(norm.name, model.get_submodule(norm.name)) for norm in stream.flow_of(model).norms]
    modules += [(f"block {i + 1}", block) for i, block in enumerate(stream.blocks(model))]

    def keep(name):
        def hook(module, args, kwargs):
            seen[name] = (args[0] if args else kwargs["hidden_states"]).clone()

        return hook

    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True) for name, m in modules]
    with torch.no_grad():
        logits = model(ids).logits
    for handle in handles:
        handle.remove()
    return seen, logits


def agree(got, expected, suspects, tol):
    close(got, expected, tol, "compared with an independent way", suspects)


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# --- the parts ---------------------------------------------------------------------------------------------------


def test_the_parts_are_named_by_the_equation():
    assert list(stream.writers(tiny("gpt2"))) == ["wte", "wpe", "a1", "m1", "a2", "m2"], "Blocks count from 1."
    named, model = stream.writers(tiny("gptj")), tiny("gptj")
    assert list(named) == ["wte", "a1", "m1", "a2", "m2"]
    named = stream.writers(model)
    assert named["a2"] is model.transformer.h[1].attn.out_proj
    assert named["m1"] is model.transformer.h[0].mlp.fc_out


@EACH
def test_the_parts_add_up_to_every_stream(family):
    model = drawn(family)
    seen, _ = caught(model)
    parts = stream.components(model, IDS)
    assert all(part.shape == (2, 9, 32) for part in parts.values())
    total, names = 0, list(parts)
    for name in names[: names.index("a1")]:
        total = total + parts[name]
    for block in (1, 2):
        agree(total, seen[f"block {block}"], "A part counted in the wrong block? Sums from 0 to l − 1?", tol=1e-12)
        total = total + parts[f"a{block}"] + parts[f"m{block}"]
    agree(total, seen[final(model)], "An embedding or the last block left out?", tol=1e-12)


@pytest.mark.parametrize("family", [f for f in LAYER + RMS if f not in PARALLEL])
def test_attention_is_told_from_mlp(family):
    model = drawn(family)
    seen, _ = caught(model)
    parts = stream.components(model, IDS)
    seconds = [norm.name for norm in stream.flow_of(model).norms[1:-1:2]]
    for i in (0, 1):
        between = seen[seconds[i]].reshape(2, 9, 32)  # OPT flattens it
        agree(parts[f"a{i + 1}"], between - seen[f"block {i + 1}"], "Attention and MLP interchanged?", tol=1e-12)


@pytest.mark.parametrize(
    ("family", "attention"), [("gptj", "transformer.h.1.attn"), ("gpt_neox", "gpt_neox.layers.1.attention")]
)
def test_attention_of_parallel_blocks(family, attention):
    model, kept = drawn(family), []
    handle = model.get_submodule(attention).register_forward_hook(lambda m, a, output: kept.append(output[0]))
    parts = stream.components(model, IDS)
    handle.remove()
    agree(parts["a2"], kept[0], "Attention and MLP interchanged?", tol=1e-12)


def test_embeddings_are_what_they_look_up():
    model = drawn("gpt2")
    parts = stream.components(model, IDS)
    agree(parts["wte"], model.transformer.wte.weight[IDS], "The token embedding holds the positions too?", tol=1e-12)
    agree(parts["wpe"], model.transformer.wpe.weight[:9].expand(2, 9, 32), "Positions of one text only?", tol=1e-12)


def test_a_factor_on_the_embedding_is_in_its_part():
    model = drawn("gemma")
    part = stream.components(model, IDS)["embed_tokens"]
    agree(part, model.model.embed_tokens.weight[IDS] * math.sqrt(32), "Gemma's √d forgotten?", tol=1e-6)


def test_dropout_is_off_and_the_mode_restored():
    model = drawn("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    still = stream.components(model, IDS)
    model.train()
    model.transformer.h[0].eval()
    moving = stream.components(model, IDS)
    assert all(torch.equal(still[name], moving[name]) for name in still), "The model ran in training mode."
    assert model.training and not model.transformer.h[0].training


def test_parts_carry_no_gradient_and_no_hook_stays():
    model = drawn("gpt2")
    parts = stream.components(model, IDS)
    assert not any(part.requires_grad for part in parts.values())
    assert hooks_of(model) == 0


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_rounding_is_no_second_writer(dtype):
    model = drawn("gpt2").to(dtype)
    parts = stream.components(model, IDS)
    assert all(part.dtype == dtype for part in parts.values())


@pytest.mark.parametrize("size", (1.0, 1e-9))
def test_something_else_that_writes_is_noticed(size):
    model = drawn("gpt2")
    model.transformer.h[1].register_forward_hook(lambda m, args, output: output + size)
    assert hooks_of(model) == 1, "A hook stayed behind after the error."


# --- the stream on its way -------------------------------------------------------------------------------------


@EACH
def test_followed_keeps_the_stream_and_what_leaves_the_final_norm(family):
    model = drawn(family)
    seen, logits = caught(model)
    run = stream.followed(model, IDS)
    assert len(run.streams) == 3, "h⁰ to hᴸ: one stream more than blocks"
    for got, name in zip(run.streams, ("block 1", "block 2", final(model)), strict=True):
        agree(got, seen[name], "What leaves a block in the place of what enters it?", tol=0)
    agree(run.logits, logits, "Not the model's logits?", tol=0)
    with torch.no_grad():
        agree(stream.head_of(model)(run.normalized), logits, "Before the final norm?", tol=1e-12)
    assert hooks_of(model) == 0


def test_followed_runs_in_evaluation_mode_and_leaves_no_hook_behind():
    model = drawn("gpt2", resid_pdrop=0.5).train()
    agree(stream.followed(model, IDS).logits, stream.followed(model, IDS).logits, "Dropout drawn?", tol=0)
    assert model.training, "not put back into training mode"
    assert hooks_of(model) == 0


def test_lengths_of_parts_at_right_angles_and_on_one_line():
    one, two = (torch.tensor(v, dtype=torch.float64)[None] for v in ([3.0, 0.0, 0.0], [0.0, 4.0, 0.0]))
    found = stream.lengths({"a": one, "b": two})
    assert found == pytest.approx({"the sum": 5, "if orthogonal": 5, "if all along one line": 7})
    assert stream.lengths({"a": one, "b": -one})["the sum"] == 0
    assert stream.lengths({"a": one, "b": one}) == pytest.approx(
        {"the sum": 6, "if orthogonal": math.sqrt(18), "if all along one line": 6}
    )


def test_lengths_are_means_over_positions():
    parts = draw(3, 2, 5, D, seed=4)
    found = stream.lengths(dict(zip("abc", parts, strict=True)))
    by_hand = [math.dist(v, [0] * D) for v in parts.sum(0).flatten(0, 1).tolist()]
    assert found["the sum"] == pytest.approx(sum(by_hand) / 10), "The length of the mean, or of one text?"
    roots = [math.sqrt(float((parts[:, i, j] ** 2).sum())) for i in range(2) for j in range(5)]
    assert found["if orthogonal"] == pytest.approx(sum(roots) / 10), "The root of the mean square?"


# --- silencing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "name"), [("gpt2", "m1"), ("gpt2", "wpe"), ("gptj", "a1"), ("llama", "m2")])
def test_silenced_is_a_writer_of_zeros(family, name):
    model, other = drawn(family), drawn(family)
    _, plain = caught(model)
    for p in stream.writers(other)[name].parameters():
        p.data.zero_()
    with stream.silenced(model, name):
        _, without = caught(model)
    agree(without, caught(other)[1], "Another writer silenced, or one only in part?", tol=1e-12)
    assert (without - plain).abs().max() > 1e-3
    assert torch.equal(caught(model)[1], plain), "It is still silent."


def test_silencing_ends_with_an_error():
    model = drawn("gpt2")
    assert hooks_of(model) == 0


# --- the readout -------------------------------------------------------------------------------------------------


@EACH
def test_the_readout_gives_the_models_logits(family):
    model = drawn(family)
    seen, logits = caught(model)
    readout = stream.Readout.of(model)
    x = seen[final(model)]
    assert readout.centered == (family in LAYER)
    # transformers' RMSNorms compute in float32
    suspects = "Gain, 1 + gain, β, the head's bias, or ε forgotten?"
    agree(readout.logits(x), logits, suspects, tol=1e-12 if readout.centered else 1e-5 * float(logits.abs().max()))
    agree(readout.logits(x, readout.scale(x)), readout.logits(x), "Its own scale is another one?", tol=1e-12)


@BOTH
def test_scale_and_constant(centered):
    readout = some_readout(centered)
    x = draw(3, 5, D, mean=0.7)
    truth = (x.var(-1, correction=0) if centered else x.square().mean(-1)) + EPS
    agree(readout.scale(x), truth.sqrt()[..., None], "ε outside the root, or s for r?", tol=1e-13)
    nothing = readout.logits(x, torch.tensor(1e30, dtype=torch.float64))
    agree(readout.constant.expand_as(nothing), nothing, "β or the head's bias forgotten?", tol=1e-13)


@BOTH
def test_direction_reads_logits_above_their_mean(centered):
    readout = some_readout(centered)
    x, tokens = draw(3, 5, D, mean=0.7), torch.randint(7, (3, 5))
    n = readout.projected(x) / readout.scale(x)
    z = readout.logits(x) - readout.constant
    above = z.gather(-1, tokens[..., None]).squeeze(-1) - z.mean(-1)
    agree((readout.direction(tokens) * n).sum(-1), above, "The gain forgotten, or the mean row?", tol=1e-12)


def test_a_half_precision_model_is_read_in_float32():
    model = drawn("gpt2").bfloat16()
    readout = stream.Readout.of(model)
    x = sum(stream.components(model, IDS).values())
    assert readout.gain.dtype == readout.bias.dtype == readout.unembedding.dtype == torch.float32
    assert readout.logits(x).dtype == torch.float32
    assert readout.scale(x).dtype == torch.float32


def some_readout(centered):
    return stream.Readout(draw(D, seed=1), draw(D, seed=2), EPS, centered, draw(7, D, seed=3), draw(7, seed=4))


# --- effects -----------------------------------------------------------------------------------------------------


def truth(c, x, w, eps, centered):
    """The five numbers by torch's norm, by removal and by autograd."""
    norm = F.layer_norm if centered else F.rms_norm

    def reads(v):
        return norm(v, v.shape[-1:], eps=eps) @ w

    def seen(v):
        return v - v.mean(-1, keepdim=True) if centered else v

    def scale(v):
        return (seen(v).square().mean(-1) + eps).sqrt()

    t = torch.zeros(c.shape[:-1], dtype=c.dtype, requires_grad=True)
    # along c from x: the slope, and how the scale moves
    slope = torch.autograd.grad(reads(x + t[..., None] * c).sum(), t)[0]
    share = torch.autograd.grad(scale(x + t[..., None] * c).log().sum(), t)[0]
    return (seen(c) @ w / scale(x), reads(x) - reads(x - c), slope, share, scale(x - c) / scale(x))


@BOTH
@pytest.mark.parametrize("eps", (0.0, 1e-5, 1.0))
@pytest.mark.parametrize("size", (1e-3, 1.0, 100.0))
def test_effects_by_removal_and_by_derivative(centered, eps, size):
    x, w = draw(40, D, seed=5, mean=0.5), draw(D, seed=6)
    c = size * draw(40, D, seed=7, mean=0.3)
    found = stream.effects(c, x, w, eps, centered)
    for name, value, wanted in zip(found._fields, found, truth(c, x, w, eps, centered), strict=True):
        agree(value, wanted, f"{name}: ε, the centring or the scale's own part?", tol=1e-10 * max(1.0, size))


@BOTH
def test_sums_over_the_parts(centered):
    parts, w = draw(6, 40, D, seed=8, mean=0.3), draw(D, seed=9)
    x = parts.sum(0)
    found = stream.effects(parts, x, w, EPS, centered)
    seen = x - x.mean(-1, keepdim=True) if centered else x
    square = seen.square().mean(-1) + EPS
    whole = seen @ w / square.sqrt()
    agree(found.frozen.sum(0), whole, "Each part by its own scale?", tol=1e-12)
    agree(found.share.sum(0), 1 - EPS / square, "Shares sum to 1 − ε/s².", tol=1e-12)
    agree(found.slope.sum(0), whole * EPS / square, "Slopes sum to ε/s² of the whole.", tol=1e-12)


def test_a_part_along_the_uniform_vector_does_nothing_to_layer_norm():
    x, w, one = draw(5, D), draw(D), torch.ones(D, dtype=torch.float64)
    for value, nothing in zip(stream.effects(3 * one, x, w, EPS), (0, 0, 0, 0, 1), strict=True):
        agree(value, torch.full((5,), float(nothing), dtype=torch.float64), "The mean is no part of it.", tol=1e-13)
    assert stream.effects(3 * one, x, w, EPS, centered=False).removed.abs().min() > 1e-3


def test_all_of_the_stream_taken_out_leaves_epsilon():
    x, w = draw(5, D), draw(D)
    found = stream.effects(x, x, w, EPS)
    agree(found.removed, F.layer_norm(x, (D,), eps=EPS) @ w, "n(0) is 0 for ε > 0.", tol=1e-12)
    agree(found.ratio, (EPS / (x.var(-1, correction=0) + EPS)).sqrt(), "s(0) is √ε.", tol=1e-12)


def test_effects_broadcast_and_widen():
    c, x, w = draw(4, 3, 5, D).float(), draw(3, 5, D).float(), draw(D).float()
    found = stream.effects(c.bfloat16(), x.bfloat16(), w.bfloat16(), EPS)
    assert all(value.shape == (4, 3, 5) and value.dtype == torch.float32 for value in found)
    one_by_one = torch.stack([stream.effects(part, x, w, EPS).removed for part in c])
    agree(stream.effects(c, x, w, EPS).removed, one_by_one, "Parts mixed up?", tol=1e-6)
