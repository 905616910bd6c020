"""Surgery: the same answers after it, and nothing changed by a refusal."""

import copy
import re
import warnings

import normgeom as ng
import pytest
import torch
from normgeom.models.flow import double_throughout, stream
from normgeom.surgery.converted import save_converted
from surgery_models import (
    ALSO_CONVERTIBLE,
    CONVERTIBLE,
    FOLDABLE,
    IDS,
    Untouched,
    answer,
    apart,
    inputs_of,
    logits,
    name_of,
    uneven,
)
from tiny_models import tiny
from torch import nn
from transformers import AutoModelForCausalLM, BertForMaskedLM

BOUND = 1e-10  # of a logit in float64; logits here are of size 1 to 30
SURGERIES = [ng.fold_norms, ng.center_writers, ng.to_rms_norm]
# tied, parallel blocks, norms aside, no gain, flattened tokens, gains of heads, images, two streams; CI tests all
FIRST = ["gpt2", "gpt_neox", "phi_qk", "olmo", "opt", "cohere_qk", "vit", "pegasus"]
CASES = [(surgery, family, {}) for surgery in SURGERIES for family in FIRST] + [
    # a conversion folds and centres
    *((ng.to_rms_norm, *case) for case in CONVERTIBLE + ALSO_CONVERTIBLE if case[0] not in FIRST or case[1]),
    *((ng.fold_norms, *case) for case in FOLDABLE),
]


def norms_of(model):
    """The modules of the norms of the stream, by name."""
    return {norm.name: model.get_submodule(norm.name) for norm in stream(model, inputs_of(model)).norms}


def told_apart(surgery, family, changes):
    marks = [] if family in [*FIRST, "llama", "gemma"] and not changes else [pytest.mark.slow]
    return pytest.param(surgery, family, changes, marks=marks, id=f"{surgery.__name__}-{family}-{name_of(changes)}")


# the same answers


@pytest.mark.parametrize(("surgery", "family", "changes"), [told_apart(*case) for case in CASES])
def test_the_contract(surgery, family, changes):
    """The same answers; gains folded, the stream at right angles to 1, RMSNorms of the same ε; the rest as it was."""
    model = uneven(family, **changes)
    inputs, before, sites = inputs_of(model), answer(model), {}
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    assert before.std() > 0.01, "a model that says nothing shows nothing"
    sites, of_stream = {site.name: site for site in ng.find_norms(model, inputs)}, norms_of(model)
    assert surgery(model) is model
    assert apart(answer(model), before) <= BOUND * max(1.0, float(before.abs().max()) / 30)
    assert not any(module.training or module._forward_hooks for module in model.modules())
    seen = {}
    with ng.watch(model, of_stream, lambda name, x, y: seen.update({name: x})):
        answer(model)
    for site in ng.find_norms(model, inputs):
        assert site.eps == sites[site.name].eps, f"{site.name} has another ε"
        folded = float((site.weight - 1).abs().max() + site.bias.abs().max()) < 1e-6
        if site.name not in of_stream:
            assert site.module is sites[site.name].module and site.kind == sites[site.name].kind
            assert surgery is ng.fold_norms or torch.equal(site.weight, sites[site.name].weight), "it stands aside"
            continue
        assert folded or surgery is ng.center_writers, f"{site.name} keeps gain or bias"
        assert (type(site.module) is ng.RMSNorm) == (surgery is ng.to_rms_norm)
        if surgery is not ng.fold_norms:
            x = seen[site.name]
            assert (ng.angle(x, torch.ones(x.shape[-1]).double()) - 90).abs().max() < 1e-9, f"a mean at {site.name}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_is_kept_and_rounded_to_once(dtype):
    """Weights are those of the same surgery in float64, rounded at its end."""
    model = uneven("gpt_neo", dtype=dtype)
    exact = ng.to_rms_norm(copy.deepcopy(model).double()).state_dict()
    ng.to_rms_norm(model)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == dtype, name
        assert torch.equal(tensor, exact[name].to(dtype)), f"{name} was rounded more than once"


@pytest.mark.parametrize("family", ["gpt2", "gptj", "opt", "mpt"])
def test_generation_with_a_cache(family):
    model = uneven(family)
    converted, prompt = ng.to_rms_norm(copy.deepcopy(model)), IDS[:, :5]
    said = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=1)
    # Some of them compute attention in float32, whose rounding hangs on where in memory a tensor lies.
    with double_throughout(), torch.no_grad():
        before, after = (m.generate(prompt, attention_mask=torch.ones_like(prompt), **said) for m in (model, converted))
        assert torch.equal(before.sequences, after.sequences) and before.sequences.shape == (3, 11)
        assert apart(torch.stack(before.logits).double(), torch.stack(after.logits).double()) <= BOUND
        assert apart(logits(model, before.sequences)[:, -2], after.logits[-1].double()) <= BOUND, "the cache lies"


def changed(family, alter, **changes):
    """A model to which something is done."""

    def make():
        model = uneven(family, **changes)
        alter(model)
        return model.eval()

    return make


def masks_scales_and_shapes(x):
    seen_tokens = (torch.arange(13) < 9).to(x)[None, :, None]
    x = x - 0.3 * x
    return torch.cat([0.5 * (x * seen_tokens)[:, :7], x[:, 7:]], 1).transpose(0, 1).contiguous().transpose(0, 1)


class Crossed(nn.Module):
    """Attention whose keys may be something else than its queries, and a learned number."""

    def __init__(self, named=True):
        super().__init__()
        self.words, self.norm, self.other = nn.Embedding(64, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 64)
        self.scale, self.named = nn.Parameter(torch.tensor(0.5)), named

    def forward(self, ids):
        x = self.scale * self.words(ids)
        queries, keys = self.norm(x), torch.ones_like(x) if self.named else self.norm(x)
        x += self.attention(query=queries, key=keys, value=keys, need_weights=False)[0]  # in place
        return self.head(self.other(x))


def shares_memory(model):
    model.lm_head.weight = nn.Parameter(model.transformer.wte.weight.data)


def shares_a_norm(model):
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1


EXACT = {
    # also as torch runs it without gradients, where its fast path reads LayerNorms past the modules
    "torch's encoder": (lambda: uneven("encoder"), ng.to_rms_norm),
    "torch's encoder, ReLU": (lambda: uneven("encoder", activation="relu"), ng.to_rms_norm),
    "masks, scales and shapes": (lambda: uneven("encoder", skip=masks_scales_and_shapes), ng.to_rms_norm),
    "a learned number": (lambda: Crossed(named=False).double().eval(), ng.to_rms_norm),
    "two parameters of one memory": (changed("gpt2", shares_memory, tie_word_embeddings=False), ng.to_rms_norm),
    "a norm in two places": (changed("gpt2", shares_a_norm), ng.to_rms_norm),
    "without its mean": (changed("gpt2", ng.drop_mean_subtraction), ng.fold_norms),
}


@pytest.mark.parametrize(("make", "surgery"), EXACT.values(), ids=EXACT)
def test_exact_too(make, surgery):
    model = make()
    before = answer(model)
    assert apart(answer(surgery(model, example_inputs=inputs_of(model))), before) <= BOUND


# folding where nothing can be centred

PARTLY = {  # the norms that keep gain and bias, and what a warning says of those of the stream
    "gemma2": (r"post_(attention|feedforward)_layernorm", None),
    "dinov2": (r"dinov2\.layernorm", r"dinov2\.layernorm is read by classifier"),
    "whisper": ("none", None),
    "bloom": ("word_embeddings_layernorm", r"word_embeddings_layernorm is read by .*input_layernorm"),
    "bert": (
        r"embeddings\.LayerNorm|layer\.0|attention\.output\.LayerNorm",
        r"bert\.embeddings\.LayerNorm is read by .*output.LayerNorm",
    ),
    "t5": (r"decoder\.final_layer_norm", r"decoder\.final_layer_norm is read by lm_head; only linear"),
    "gpt2": ("ln_f", r"ln_f is read by the caller"),
}


@pytest.mark.parametrize("family", PARTLY)
def test_folding_asks_for_readers_only(family):
    """Also where a norm writes to the stream, where something rescales it, and where the model has no head."""
    kept, said = PARTLY[family]
    model = uneven(family)
    if family == "gpt2":
        model = model.base_model
    elif family == "bert":
        model = BertForMaskedLM(model.config).double().eval()
        for norm in [module for module in model.modules() if isinstance(module, nn.LayerNorm)]:
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    example = {name: t.double() if t.is_floating_point() else t for name, t in inputs_of(model).items()}
    before, gains = answer(model), {site.name: site.weight for site in ng.find_norms(model, example)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ng.fold_norms(model, example)
    told = [str(warning.message) for warning in caught if "keep gain and bias" in str(warning.message)]
    assert len(told) == (said is not None) and (not told or re.search(said, told[0])), told
    assert apart(answer(model), before) <= BOUND * max(1.0, float(before.abs().max()) / 30)
    for site in ng.find_norms(model, example):
        expected = gains[site.name] if re.search(kept, site.name) else torch.ones(site.dim)
        assert torch.allclose(site.weight, expected, atol=1e-4), f"{site.name} was folded, or was not"


# modules that do more than their weights say: exact, or refused


def part(model):
    return model.gpt_neox.layers[0]


def hook(of, change):
    """A forward hook, of blocks that give a tensor or a tuple."""

    def alter(module, args, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return lambda model: of(model).register_forward_hook(alter)


def altered(of, method, **shapes):
    """A module as one of a subclass that computes something else, with parameters of these shapes."""

    def alter(model):
        module = of(model)
        base = type(module)
        for name, shape in shapes.items():
            module.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        module.__class__ = type("Altered", (base,), dict(forward=lambda self, x: method(self, x, base.forward)))

    return alter


def low_rank(self, x, forward):
    return forward(self, x) + x @ self.a.T @ self.b.T


def mask_token(model):
    model.gpt_neox.mask_token = nn.Parameter(torch.zeros(32, dtype=torch.float64))


def bounded_norm(model):
    nn.init.constant_(NORM(model).weight, 100.0)
    hook(NORM, lambda x: x.clamp(-50, 50))(model)


STEER = torch.arange(32.0, dtype=torch.float64)
READER, WRITER = lambda model: part(model).mlp.dense_h_to_4h, lambda model: part(model).mlp.dense_4h_to_h
NORM, EMBEDDING = lambda model: part(model).post_attention_layernorm, lambda model: model.gpt_neox.embed_in
ALTERED = {  # what is done, whether it still folds, whether it still converts
    "weight norm of a reader": (lambda m: nn.utils.parametrizations.weight_norm(READER(m)), False, False),
    "spectral norm of a writer": (lambda m: nn.utils.spectral_norm(WRITER(m)), True, False),
    "a steered block": (hook(part, lambda x: x + STEER), True, False),
    "a rescaled block": (hook(part, lambda x: 0.5 * x), True, True),
    "a block cut off at a bound": (hook(part, lambda x: x.clamp(-1e4, 1e4)), True, False),
    "a hook on a norm": (hook(NORM, lambda x: x + STEER), False, False),
    "a hook on an embedding": (hook(EMBEDDING, lambda x: x + STEER), True, False),
    "a scaled embedding": (altered(EMBEDDING, lambda s, x, f: 3 * f(s, x)), True, True),
    "low rank beside a reader": (altered(READER, low_rank, a=(4, 32), b=(48, 4)), False, False),
    "low rank beside a writer": (altered(WRITER, low_rank, a=(4, 48), b=(32, 4)), True, False),
    "a token that the example does not use": (mask_token, True, False),
    "a block steered on long texts": (hook(part, lambda x: x + STEER * (x.shape[1] > 20)), True, False),
    "a block steered on short texts": (hook(part, lambda x: x + STEER * (x.shape[1] < 8)), True, False),
    "a norm steered on long texts": (hook(NORM, lambda x: x + STEER * (x.shape[1] > 20)), False, False),
    "a bound that large gains reach": (bounded_norm, False, False),
}


@pytest.mark.parametrize("surgery", [ng.fold_norms, ng.to_rms_norm], ids=lambda surgery: surgery.__name__)
@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_module_is_exact_or_refused(case, surgery):
    alter, folds, converts = ALTERED[case]
    model = uneven("gpt_neox")
    alter(model)
    model.eval()
    before = logits(model)
    if folds if surgery is ng.fold_norms else converts:
        assert apart(logits(surgery(model)), before) <= BOUND
    else:
        with Untouched(model), pytest.raises(ValueError, match=r"^model: "):
            surgery(model)
        assert torch.equal(logits(model), before)


# heads that were tied


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_tied_head_stays_untied(family, tmp_path):
    model = uneven(family, dtype=torch.float32)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    other = copy.deepcopy(model)
    with Untouched(other):
        for surgery in SURGERIES[:2]:
            changed = surgery(copy.deepcopy(model))
            after = logits(changed)
            assert changed.config.tie_word_embeddings is False
            changed.tie_weights()
            changed.tie_weights(recompute_mapping=False)
            assert changed.get_output_embeddings().weight is not changed.get_input_embeddings().weight
            assert torch.equal(logits(changed), after), "the head was tied again"
    # centring leaves an architecture that transformers knows
    changed.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), after), "the head was lost on the way to the disk and back"


# biases that were not there, gains and modes


def test_biases_are_made_where_there_were_none_and_not_for_nothing():
    model = uneven("gpt_neo")
    names = set(dict(model.named_parameters()))
    assert model.lm_head.bias is None and model.transformer.h[0].attn.attention.q_proj.bias is None
    folded = ng.fold_norms(copy.deepcopy(model))
    assert folded.lm_head.bias.shape == (64,) and folded.transformer.h[1].attn.attention.v_proj.bias.shape == (32,)
    for norm in norms_of(model).values():
        nn.init.zeros_(norm.bias)
    ng.fold_norms(model)
    assert set(dict(model.named_parameters())) - {"lm_head.weight"} == names, "a bias of zeros"


def test_what_is_trained_stays_trained_and_what_is_frozen_frozen():
    model = uneven("gpt2").requires_grad_(False).train()
    assert not any(p.requires_grad for p in ng.to_rms_norm(model).parameters())
    assert all(module.training for module in model.modules()), "the mode is kept"
    model = ng.to_rms_norm(uneven("gpt2"))
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in model.parameters()), "a parameter that the model does not use"


# refusals


def int8(model):
    model.lm_head.weight = nn.Parameter(torch.ones(64, 32, dtype=torch.int8), requires_grad=False)


class Packed(nn.Parameter):
    """As quantised weights are, which say that they are of 16 bits."""


def packed(model):
    model.lm_head.weight = Packed(model.lm_head.weight.data)


def shares_a_block(model):
    model.transformer.h[1].mlp = model.transformer.h[0].mlp


def shares_a_weight(model):
    model.transformer.h[1].mlp.c_fc.weight = model.transformer.h[0].mlp.c_fc.weight


def has_an_adapter(model):
    model.transformer.h[1].adapter = nn.Linear(32, 32)


def encoder(skip):
    return lambda: uneven("encoder", skip=skip)


WRITES = "normalises what stays on the stream, and no gain can remove the mean of its output"
ODD = "otherwise than as a summand, so that no weight centres"
NO_SURGERY = {
    "bert": (lambda: uneven("bert"), r"embeddings\.LayerNorm"),
    "an adapter": (changed("gpt2", has_an_adapter), r"not use \S*h\.1\.adapter\.weight, a parameter of a Linear"),
    "another head": (lambda: uneven("pegasus, decoder"), r"not use \S*encoder_attn\S*\.weight, a parameter of a \w+"),
    "meta": (lambda: tiny("gpt2").to("meta"), "expected all its parameters on one device that holds data, got meta"),
    "int8": (changed("gpt2", int8), "no float64 copy of this GPT2LMHeadModel runs with gradients"),
    "packed": (changed("gpt2", packed), "expected plain parameters of 16 bits or more, lm_head.weight is a Packed of"),
}
NO_CENTRING = {
    "post-norm": (lambda: uneven("opt", do_layer_norm_before=False), WRITES),
    "bart": (lambda: uneven("bart"), WRITES),
    "bloom": (lambda: uneven("bloom"), rf"word_embeddings_layernorm {WRITES}"),
    "gemma2": (lambda: uneven("gemma2"), rf"post_attention_layernorm {WRITES}"),
    "llama": (lambda: uneven("llama"), r"expected LayerNorms .*input_layernorm, a LlamaRMSNorm"),
    "converted": (lambda: ng.to_rms_norm(uneven("gpt2")), r"expected LayerNorms .*ln_1, a RMSNorm"),
    "dropped": (
        lambda: ng.drop_mean_subtraction(uneven("gpt2"), ["transformer.ln_f"]),
        r"expected LayerNorms .* transformer\.ln_f, a ReducedNorm",
    ),
    "dinov2": (lambda: uneven("dinov2"), rf"layer_scale1\.lambda1 {ODD}"),
    "mixtral": (lambda: uneven("mixtral"), ODD),
    "no norm at the end": (lambda: uneven("opt", _remove_final_layer_norm=True), "read without a norm, by lm_head"),
}
NO_CONVERSION = {
    "no head": (lambda: uneven("gpt2").base_model, r"ln_f is read by the caller; only"),
    "clip": (lambda: uneven("clip"), r"final_layer_norm is read by the caller"),
    "keys by name": (lambda: Crossed().double(), r"read by attention; only"),
    "one map, two norms": (lambda: uneven("encoder", shared=True), r"linear1; only linear maps"),
    "a shared block": (changed("gpt2", shares_a_block), r"c_fc; only linear maps"),
    "a shared weight": (
        changed("gpt2", shares_a_weight),
        r"with random weights in torch.float64 computes .* when changed, on the example by \d.*shares a weight",
    ),
}


@pytest.mark.parametrize(
    ("surgery", "make", "reason"),
    [
        pytest.param(surgery, make, reason, id=f"{surgery.__name__}-{case}")
        for refused, first in ((NO_SURGERY, 0), (NO_CENTRING, 1), (NO_CONVERSION, 2))
        for case, (make, reason) in refused.items()
        for surgery in SURGERIES[first:]
    ],
)
def test_a_refusal_says_why_and_leaves_everything_as_it_was(surgery, make, reason):
    model = make()
    with Untouched(model), pytest.raises(ValueError, match=rf"^model: .*{reason}") as refused:
        surgery(model, inputs_of(model))
    assert "\n" not in str(refused.value)


PROJECTED = {
    "whisper": (lambda: uneven("whisper"), "model.encoder.layers.0"),
    "ctrl": (lambda: uneven("ctrl"), "transformer.h.0"),
    "the mean is read": (encoder(lambda x: x + x.var(-1, keepdim=True)), "encoder"),
    "something is added": (encoder(lambda x: x + torch.ones(32).to(x)), "encoder"),
    "rows are shortened": (encoder(lambda x: x.flatten(0, 1).renorm(2, 0, 1.0).view_as(x)), "encoder"),
    "an activation": (encoder(torch.relu), "encoder"),
}


@pytest.mark.parametrize("surgery", (ng.center_writers, ng.to_rms_norm))
@pytest.mark.parametrize(("make", "where"), PROJECTED.values(), ids=PROJECTED)
def test_one_projection_centres_what_no_weights_do(make, where, surgery):
    model, means = make(), []
    before, names = answer(model), [norm.name for norm in stream(model, inputs_of(model)).norms]
    with pytest.warns(UserWarning, match=rf"^no weights centre the input of {where}, so a projection does$"):
        surgery(model, inputs_of(model))
    with ng.watch(model, names, lambda name, x, y: means.append(float(x.mean(-1).abs().max() / x.abs().max()))):
        after = answer(model)
    assert apart(after, before) < 1e-11 * float(before.abs().max())
    assert len(means) == len(names) and max(means) < 1e-14


@pytest.mark.filterwarnings("ignore:no weights centre")
def test_a_projection_is_written_and_read(tmp_path):
    model = ng.to_rms_norm(uneven("ctrl"))
    save_converted(model, tmp_path / "out")
    assert torch.equal(logits(ng.load_converted(tmp_path / "out")), logits(model))
