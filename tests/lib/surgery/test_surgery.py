"""Surgery: the same answers after it, others after each known wrong way, and nothing changed by a refusal."""

import copy
import re
import warnings

import normgeom as ng
import pytest
import torch
from normgeom.models.flow import double_throughout, stream
from normgeom.surgery import surgery as room
from normgeom.surgery.surgery import refusal
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
ANY = pytest.mark.parametrize("surgery", SURGERIES, ids=lambda surgery: surgery.__name__)
ALL = pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)


def norms_of(model):
    """The modules of the norms of the stream, by name."""
    return {norm.name: model.get_submodule(norm.name) for norm in stream(model, inputs_of(model)).norms}


# the same answers


def test_there_are_thirty_families():
    assert len({family for family, _ in CONVERTIBLE + ALSO_CONVERTIBLE}) >= 30


@ANY
@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE + ALSO_CONVERTIBLE, ids=name_of)
def test_the_same_answers(surgery, family, changes):
    model = uneven(family, **changes)
    before = answer(model)
    assert before.std() > 0.01, "a model that says nothing shows nothing"
    assert surgery(model) is model
    assert apart(answer(model), before) <= BOUND * max(1.0, float(before.abs().max()) / 30)


@ALL
def test_float32_is_no_worse_than_the_models_own(family, changes):
    reference = logits(uneven(family, dtype=torch.float32, **changes).double())
    model = uneven(family, dtype=torch.float32, **changes)
    own = apart(logits(model), reference)
    assert apart(logits(ng.to_rms_norm(model)), reference) <= 3 * own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_is_kept_and_rounded_to_once(dtype):
    """Weights are those of the same surgery in float64, rounded at its end."""
    model = uneven("gpt_neo", dtype=dtype)
    exact = ng.to_rms_norm(copy.deepcopy(model).double()).state_dict()
    ng.to_rms_norm(model)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == dtype, name
        assert torch.equal(tensor, exact[name].to(dtype)), f"{name} was rounded more than once"


@ALL
def test_what_becomes_of_the_norms(family, changes):
    """Folded, those of the stream do nothing; converted, they are RMSNorms of the same ε; the others stay."""
    model = uneven(family, **changes)
    before = {site.name: site for site in ng.find_norms(model)}
    of_stream = norms_of(model)
    for norm in norms_of(ng.fold_norms(copy.deepcopy(model))).values():
        assert isinstance(norm, nn.LayerNorm) and (norm.weight is None or (norm.weight == 1).all())
        assert norm.bias is None or (norm.bias == 0).all()
    after = {site.name: site for site in ng.find_norms(ng.to_rms_norm(model))}
    assert after.keys() == before.keys()
    for name, site in after.items():
        assert site.eps == before[name].eps, f"{name} has another ε"
        if name in of_stream:
            assert type(site.module) is ng.RMSNorm and (site.module.weight == 1).all()
        else:
            assert site.module is before[name].module, f"{name} stands aside"


@ALL
def test_the_stream_has_no_mean_after_centring(family, changes):
    model = uneven(family, **changes)
    seen_there = {}
    with ng.watch(model, ng.find_norms(model), lambda site, x, y: seen_there.update({site.name: x.flatten(0, -2)})):
        logits(model)
        with_mean = {name: ng.angle(x, torch.ones(x.shape[-1]).double()) for name, x in seen_there.items()}
        ng.center_writers(model)
        logits(model)
    for name in norms_of(model):
        assert (with_mean[name] - 90).abs().max() > 10, "there was no mean to take out"
        assert (ng.angle(seen_there[name], torch.ones(seen_there[name].shape[-1]).double()) - 90).abs().max() < 1e-9


@ALL
def test_generation_with_a_cache(family, changes):
    model = uneven(family, **changes)
    converted, prompt = ng.to_rms_norm(copy.deepcopy(model)), IDS[:, :5]
    said = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=1)
    # Some of them compute attention in float32, whose rounding hangs on where in memory a tensor lies.
    with double_throughout(), torch.no_grad():
        before, after = (m.generate(prompt, attention_mask=torch.ones_like(prompt), **said) for m in (model, converted))
        assert torch.equal(before.sequences, after.sequences) and before.sequences.shape == (3, 11)
        assert apart(torch.stack(before.logits).double(), torch.stack(after.logits).double()) <= BOUND
        assert apart(logits(model, before.sequences)[:, -2], after.logits[-1].double()) <= BOUND, "the cache lies"


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "opt"])
def test_padding_on_the_left(family):
    model = uneven(family)
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with torch.no_grad():
        before = model(IDS, attention_mask=mask).logits
        after = ng.to_rms_norm(model)(IDS, attention_mask=mask).logits
    assert apart(before[mask == 1], after[mask == 1]) <= BOUND


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_encoder_of_torch(activation):
    """Also as torch runs it without gradients, where its fast path reads LayerNorms past the modules."""
    model = uneven("encoder", activation=activation)
    with torch.no_grad():
        before = model(IDS)
        ng.to_rms_norm(model, example_inputs=IDS)
        assert apart(model(IDS), before) <= BOUND
    assert {site.kind for site in ng.find_norms(model, IDS)} == {"rms"}


def test_masks_scales_and_shapes_are_followed():
    def skip(x):
        seen_tokens = (torch.arange(13) < 9).to(x)[None, :, None]
        x = x - 0.3 * x
        return torch.cat([0.5 * (x * seen_tokens)[:, :7], x[:, 7:]], 1).transpose(0, 1).contiguous().transpose(0, 1)

    model = uneven("encoder", skip=skip)
    before = answer(model)
    ng.to_rms_norm(model, example_inputs=IDS)
    assert apart(answer(model), before) <= BOUND


# folding where nothing can be centred


@pytest.mark.parametrize(("family", "changes"), FOLDABLE, ids=name_of)
def test_an_rms_norm_model_folds(family, changes):
    model = uneven(family, **changes)
    before = answer(model)
    ng.fold_norms(model)
    assert apart(answer(model), before) <= BOUND
    for norm in norms_of(model).values():
        assert (norm.weight == (0 if family == "gemma" else 1)).all()


PARTLY = {  # the names of norms that keep gain and bias, and what a warning says of those of the stream
    "gemma2": (r"post_(attention|feedforward)_layernorm", None),
    "olmo2": (r"post_(attention|feedforward)_layernorm|[qk]_norm", None),
    "dinov2": (r"dinov2\.layernorm", r"dinov2\.layernorm, a norm, is read by classifier"),
    "whisper": ("none", None),
    "bloom": ("word_embeddings_layernorm", r"word_embeddings_layernorm, a norm, is read by .*input_layernorm"),
    "bert, with its head": (
        r"embeddings\.LayerNorm|layer\.0|attention\.output\.LayerNorm",
        r"bert\.embeddings\.LayerNorm, a norm, is read by .*output.LayerNorm",
    ),
    "t5": (
        r"decoder\.final_layer_norm",
        r"decoder\.final_layer_norm, a norm, is read by lm_head, and not only by",
    ),
    "vit_no_head": (r"^layernorm", r"layernorm, a norm, is read by the caller"),
    "gpt2, no head": ("ln_f", r"ln_f, a norm, is read by the caller"),
}


@pytest.mark.parametrize("family", PARTLY)
def test_folding_asks_for_readers_only(family):
    """Also where a norm writes to the stream, where something rescales it, and where the model has no head."""
    kept, said = PARTLY[family]
    model = uneven(family.split(",")[0].replace("vit_no_head", "vit"))
    if "no head" in family or "no_head" in family:
        model = model.base_model
    elif "with" in family:
        model = BertForMaskedLM(model.config).double().eval()
        for norm in [module for module in model.modules() if isinstance(module, nn.LayerNorm)]:
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    example = inputs_of(model)
    example = {name: t.double() if t.is_floating_point() else t for name, t in example.items()}
    before, gains = answer(model), {site.name: site.weight for site in ng.find_norms(model, example)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ng.fold_norms(model, example)
    told = [str(warning.message) for warning in caught if "keep gain and bias" in str(warning.message)]
    assert len(told) == (said is not None) and (not told or re.search(said, told[0])), told
    assert apart(answer(model), before) <= BOUND * max(1.0, float(before.abs().max()) / 30)
    for site in ng.find_norms(model, example):
        if re.search(kept, site.name):
            assert torch.allclose(site.weight, gains[site.name], atol=1e-4), f"{site.name} was folded"
        else:
            assert (site.weight - 1).abs().max() < 1e-4, f"{site.name} was not folded"


# the known wrong ways


def without(step):
    """The conversion with one of its steps left out."""

    def convert(model):
        flow = stream(model)
        with torch.no_grad():
            for each in (room._untie, room._fold, room._center, room._swap):
                if each is not step:
                    each(model, flow)

    return convert


def restoring(*endings):
    """The conversion, with the parameters whose names end so as they were before."""

    def convert(model):
        before = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith(endings)}
        assert before, "there is nothing of the kind"
        ng.to_rms_norm(model).load_state_dict(before, strict=False)

    return convert


def emptying(kind, value, last=False):
    """The conversion of a model whose norms have lost their gain or bias, or whose final norm has."""

    def convert(model):
        norms = list(norms_of(model).values())
        for norm in norms[-1:] if last else norms:
            nn.init.constant_(getattr(norm, kind), value)
        ng.to_rms_norm(model)

    return convert


WRONG = {
    "nothing is centred": without(room._center),
    "the token embedding is not centred": restoring("wte.weight"),
    "the position embedding is not centred": restoring("wpe.weight"),
    "attention's output is not centred": restoring("attn.c_proj.weight", "attention.out_proj.weight"),
    "the MLP's output is not centred": restoring("mlp.c_proj.weight"),
    "writers' biases are not centred": restoring("c_proj.bias", "out_proj.bias"),
    "the head stays tied": without(room._untie),
    "β is not folded": emptying("bias", 0.0),
    "β of the final norm is not folded": emptying("bias", 0.0, last=True),
    "γ is not folded": emptying("weight", 1.0),
    "γ of the final norm is not folded": emptying("weight", 1.0, last=True),
}


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_way_is_wrong_by_orders_of_magnitude(family, wrong):
    model = uneven(family)
    before = logits(model)
    WRONG[wrong](model)
    assert apart(logits(model), before) > 1e6 * BOUND, "the wrong way is not told from the right one"


# modules that do more than their weights say: exact, or refused


def part(model):
    return model.gpt_neox.layers[0]


def hook(of, change):
    """A forward hook, of blocks that give a tensor or a tuple."""

    def alter(module, args, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return lambda model: of(model).register_forward_hook(alter)


def subclassed(of, names, method):
    """Of modules of a block, one of a subclass that computes something else."""

    def alter(model):
        module = getattr(of(model), names)
        base = type(module)
        module.__class__ = type("Altered", (base,), dict(forward=lambda self, x: method(self, x, base.forward)))

    return alter


def low_rank(linear):
    def alter(model):
        module = linear(model)
        for name, shape in dict(a=(4, module.in_features), b=(module.out_features, 4)).items():
            module.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        base = type(module)
        forward = lambda self, x: base.forward(self, x) + x @ self.a.T @ self.b.T  # noqa: E731
        module.__class__ = type("LowRank", (base,), dict(forward=forward))

    return alter


def mask_token(model):
    model.gpt_neox.mask_token = nn.Parameter(torch.zeros(32, dtype=torch.float64))


STEER = torch.arange(32.0, dtype=torch.float64)
READER, WRITER = lambda model: part(model).mlp.dense_h_to_4h, lambda model: part(model).mlp.dense_4h_to_h
NORM, EMBEDDING = lambda model: part(model).post_attention_layernorm, lambda model: model.gpt_neox.embed_in
ALTERED = {  # what is done, whether it still folds, whether it still converts
    "weight norm of a reader": (lambda m: nn.utils.weight_norm(READER(m)), False, False),
    "weight norm of a writer": (lambda m: nn.utils.parametrizations.weight_norm(WRITER(m)), True, False),
    "spectral norm of a reader": (lambda m: nn.utils.parametrizations.spectral_norm(READER(m)), False, False),
    "spectral norm of a writer": (lambda m: nn.utils.spectral_norm(WRITER(m)), True, False),
    "a steered block": (hook(part, lambda x: x + STEER), True, False),
    "a rescaled block": (hook(part, lambda x: 0.5 * x), True, True),
    "a block cut off at a bound": (hook(part, lambda x: x.clamp(-1e4, 1e4)), True, False),
    "a hook on a norm": (hook(NORM, lambda x: x + STEER), False, False),
    "a hook on an embedding": (hook(EMBEDDING, lambda x: x + STEER), True, False),
    "a scaled embedding": (subclassed(lambda m: m.gpt_neox, "embed_in", lambda s, x, f: 3 * f(s, x)), True, True),
    "an embedding of length 1": (
        subclassed(lambda m: m.gpt_neox, "embed_in", lambda s, x, f: nn.functional.normalize(f(s, x), dim=-1)),
        True,
        False,
    ),
    "low rank beside a reader": (low_rank(READER), False, False),
    "low rank beside a writer": (low_rank(WRITER), True, False),
    "a rounded writer": (
        subclassed(
            lambda m: part(m).mlp,
            "dense_4h_to_h",
            lambda s, x, f: nn.functional.linear(x, (16 * s.weight).round() / 16, s.bias),
        ),
        True,
        False,
    ),
    "a token that the example does not use": (mask_token, True, False),
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


@pytest.mark.parametrize("family", ["gpt2", "opt", "biogpt", "gpt_neo", "starcoder2"])
def test_a_tied_head_stays_untied(family, tmp_path):
    model = uneven(family, dtype=torch.float32)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
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


def test_the_configuration_of_another_model_stays():
    model = uneven("gpt2")
    other = copy.deepcopy(model)
    with Untouched(other):
        ng.to_rms_norm(model)


def test_a_head_that_shares_memory_only_is_left_its_own_weight():
    """``tie_word_embeddings`` is off, the two parameters are two, their memory is one."""
    model = uneven("gpt2", tie_word_embeddings=False)
    model.lm_head.weight.data = model.transformer.wte.weight.data
    before = logits(model)
    assert apart(logits(ng.to_rms_norm(model)), before) <= BOUND


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
    model = uneven("gpt2")
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in ng.to_rms_norm(model).parameters())
    model = ng.to_rms_norm(uneven("gpt2"))
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in model.parameters()), "a parameter that the model does not use"


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_kept(training):
    model = ng.to_rms_norm(uneven("gpt2").train(training))
    assert all(module.training == training for module in model.modules())


def test_a_gain_that_is_the_same_everywhere_is_folded_and_twice_is_once():
    model = uneven("gpt2")
    for norm in norms_of(model).values():
        nn.init.constant_(norm.weight, 2.0)
        nn.init.constant_(norm.bias, -0.5)
    before = logits(model)
    ng.fold_norms(model)
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms_of(model).values())
    assert apart(logits(model), before) <= BOUND
    with Untouched(model):
        ng.fold_norms(model)


def test_a_norm_that_two_places_share_is_folded_for_both():
    model = uneven("gpt2")
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    before = logits(model)
    assert apart(logits(ng.fold_norms(model)), before) <= BOUND


def test_a_model_without_its_mean_folds():
    model = ng.drop_mean_subtraction(uneven("gpt2"))
    before = logits(model)
    assert apart(logits(ng.fold_norms(model)), before) <= BOUND


# refusals


def with_int8():
    model = uneven("gpt2")
    model.lm_head.weight = nn.Parameter(torch.ones(64, 32, dtype=torch.int8), requires_grad=False)
    return model


def with_a_note_of_quantisation():
    model = uneven("gpt2")
    model.config.quantization_config = dict(quant_method="torchao")
    return model


def with_a_shared_block():
    model = uneven("gpt2")
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    return model


def with_a_shared_weight():
    model = uneven("gpt2")
    model.transformer.h[1].mlp.c_fc.weight = model.transformer.h[0].mlp.c_fc.weight
    return model


def with_an_adapter():
    model = uneven("opt")
    model.model.decoder.layers[1].adapter = nn.Linear(32, 32)
    return model


class Crossed(nn.Module):
    """Attention whose keys and values are not its queries."""

    def __init__(self, named=True):
        super().__init__()
        self.words, self.norm, self.other = nn.Embedding(64, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 64)
        self.scale, self.named = nn.Parameter(torch.tensor(0.5)), named

    def forward(self, ids):
        x = self.words(ids)
        queries, keys = self.norm(x), torch.ones_like(x) if self.named else self.norm(x)
        x = x + self.attention(query=queries, key=keys, value=keys, need_weights=False)[0]
        return self.scale * self.head(self.other(x))


def meta():
    with torch.device("meta"):
        return tiny("gpt2")


def encoder(skip):
    return lambda: uneven("encoder", skip=skip)


WRITES = "normalises what stays on the stream, and no gain takes its mean out"
ODD = "otherwise than as a summand, so that no weight centres"
BARE = "reads a sum with a part that comes from no map or parameter"
NO_SURGERY = {
    "bert": (lambda: uneven("bert"), r"embeddings\.LayerNorm"),
    "an adapter": (with_an_adapter, r"model\.decoder\.layers\.1\.adapter\.weight, of a Linear, has no place"),
    "another head": (lambda: uneven("pegasus, decoder"), r"encoder_attn\S*\.weight, of a \w+, has no place"),
    "meta": (meta, "expected all its parameters on one device that holds data, got meta"),
    "int8": (with_int8, r"does not run"),
    "quantised": (with_a_note_of_quantisation, "expected weights that are not quantised"),
}
NO_CENTRING = {
    "post-norm": (lambda: uneven("opt", do_layer_norm_before=False), WRITES),
    "post-norm, an encoder of torch": (lambda: uneven("encoder", norm_first=False), rf"norm1 {WRITES}"),
    "bart": (lambda: uneven("bart"), WRITES),
    "bloom": (lambda: uneven("bloom"), rf"word_embeddings_layernorm {WRITES}"),
    "swin": (lambda: uneven("swin"), rf"embeddings\.norm {WRITES}"),
    "gemma2": (lambda: uneven("gemma2"), rf"post_attention_layernorm {WRITES}"),
    "gemma3": (lambda: uneven("gemma3"), WRITES),
    "llama": (lambda: uneven("llama"), r"expected LayerNorm .*input_layernorm is a LlamaRMSNorm"),
    "gemma": (lambda: uneven("gemma"), r"expected LayerNorm .* is a GemmaRMSNorm"),
    "t5": (lambda: uneven("t5"), r"expected LayerNorm .* is a T5LayerNorm"),
    "converted": (lambda: ng.to_rms_norm(uneven("gpt2")), r"expected LayerNorm .*ln_1 is a RMSNorm"),
    "dropped": (
        lambda: ng.drop_mean_subtraction(uneven("gpt2"), ["transformer.ln_f"]),
        r"expected LayerNorm .* transformer\.ln_f is a ReducedNorm",
    ),
    "ctrl": (lambda: uneven("ctrl"), rf"h\.0\.layernorm1 {BARE}"),
    "whisper": (
        lambda: uneven("whisper"),
        rf"encoder\.layers\.0\.self_attn_layer_norm reads model\.encoder\.conv2 {ODD}",
    ),
    "dinov2": (lambda: uneven("dinov2"), rf"layer_scale1\.lambda1 {ODD}"),
    "mixtral": (lambda: uneven("mixtral"), ODD),
    "the mean is read": (encoder(lambda x: x + x.var(-1, keepdim=True)), rf"norm1 reads \S+ {ODD}"),
    "something is added": (encoder(lambda x: x + torch.ones(32).to(x)), BARE),
    "rows are shortened": (encoder(lambda x: x.flatten(0, 1).renorm(2, 0, 1.0).view_as(x)), rf"norm1 reads \S+ {ODD}"),
    "an activation": (encoder(torch.relu), rf"norm1 reads \S+ {ODD}"),
    "no norm at the end": (lambda: uneven("opt", _remove_final_layer_norm=True), "read without a norm, by lm_head"),
}
NO_CONVERSION = {
    "no head": (lambda: uneven("gpt2").base_model, r"ln_f, a norm, is read by the caller, and not"),
    "clip": (lambda: uneven("clip"), r"final_layer_norm, a norm, is read by the caller"),
    "keys by name": (lambda: Crossed().double(), r"read by attention, and not only"),
    "one map, two norms": (lambda: uneven("encoder", shared=True), r"linear1, and not only"),
    "a shared block": (with_a_shared_block, r"c_fc, and not only"),
    "a shared weight": (with_a_shared_weight, r"a copy .* computes something else when changed, by \d.*share a weight"),
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
    if surgery is ng.to_rms_norm:
        with Untouched(model):
            assert refusal(model, inputs_of(model)) == str(refused.value)


def test_no_refusal_of_what_can_be_converted():
    model = uneven("gpt2")
    with Untouched(model):
        assert refusal(model) is None, "converted on the way, or a refusal where there is none"


def test_a_model_that_needs_an_example():
    with pytest.raises(TypeError, match=r"^example_inputs: none given"):
        ng.to_rms_norm(nn.Linear(3, 3))
    assert refusal(nn.Linear(3, 3)).startswith("example_inputs: none given")


def test_a_learned_number_is_no_part_of_the_stream():
    model = Crossed(named=False).double().eval()
    before = answer(model)
    ng.to_rms_norm(model, example_inputs=IDS)
    assert apart(answer(model), before) <= BOUND
