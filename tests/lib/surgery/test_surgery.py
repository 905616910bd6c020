"""Surgery: the same logits after it, other logits after each known wrong way, and nothing changed by a refusal."""

import copy
from dataclasses import replace

import normgeom as ng
import pytest
import torch
from normgeom.models import layouts
from normgeom.models.layouts import layout_of
from normgeom.surgery import steps
from normgeom.surgery.double import double_throughout
from normgeom.surgery.streams import known_flow
from normgeom.surgery.surgery import refusal
from surgery_models import CONVERTIBLE, FOLDABLE, IDS, Untouched, apart, logits, name_of, uneven, widened
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

BOUND = 1e-10  # of a logit in float64; logits here are of size 1 to 30
SURGERIES = [ng.fold_norms, ng.center_writers, ng.to_rms_norm]


# the same logits


@pytest.mark.parametrize("surgery", SURGERIES, ids=lambda surgery: surgery.__name__)
@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_the_same_logits(surgery, family, changes):
    model = uneven(family, **changes)
    before = logits(model)
    assert before.std() > 0.3, "a model that says nothing shows nothing"
    assert surgery(model) is model
    assert apart(logits(model), before) <= BOUND


@pytest.mark.parametrize(("family", "changes"), FOLDABLE, ids=name_of)
def test_an_rms_norm_model_folds(family, changes):
    model = widened(family, **changes)
    before = logits(model)
    ng.fold_norms(model)
    assert apart(logits(model), before) <= BOUND
    for _, norm, _ in layout_of(model).readers_of(model):
        assert (norm.weight == 1 - norm.offset).all()


@pytest.mark.parametrize(("family", "changes"), FOLDABLE, ids=name_of)
def test_an_rms_norm_model_as_it_comes_folds_to_float32(family, changes):
    reference = logits(widened(family, **changes))
    model = uneven(family, dtype=torch.float32, **changes)
    own = apart(logits(model), reference)
    assert 0 < own < 1e-3
    assert apart(logits(ng.fold_norms(model)), reference) <= 3 * own


@pytest.mark.parametrize("surgery", SURGERIES, ids=lambda surgery: surgery.__name__)
@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_float32_is_no_worse_than_the_models_own(surgery, family, changes):
    reference = logits(uneven(family, dtype=torch.float32, **changes).double())
    model = uneven(family, dtype=torch.float32, **changes)
    own = apart(logits(model), reference)
    assert apart(logits(surgery(model)), reference) <= 3 * own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_is_kept_and_rounded_to_once(dtype):
    """Weights are those of the same surgery in float64, rounded at its end."""
    model = uneven("gpt_neo", dtype=dtype)
    exact = ng.to_rms_norm(copy.deepcopy(model).double()).state_dict()
    ng.to_rms_norm(model)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == dtype, name
        assert torch.equal(tensor, exact[name].to(dtype)), f"{name} was rounded more than once"


@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_every_norm_of_the_stream_is_an_rms_norm_of_the_same_eps(family, changes):
    model = uneven(family, **changes)
    layout = layout_of(model)
    before = {site.name: site for site in ng.find_norms(model)}
    aside = {name for name, _ in layout.aside_of(model)}
    after = {site.name: site for site in ng.find_norms(ng.to_rms_norm(model))}
    assert after.keys() == before.keys()
    for name, site in after.items():
        assert site.kind == ("layer" if name in aside else "rms"), name
        assert site.eps == before[name].eps, f"{name} has another ε"
        if name not in aside:
            assert type(site.module) is ng.RMSNorm and (site.module.weight == 1).all()


@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_the_stream_has_no_mean_after_centring(family, changes):
    model = uneven(family, **changes)
    seen = {}
    with ng.watch(model, ng.find_norms(model), lambda site, x, y: seen.update({site.name: x.flatten(0, -2)})):
        logits(model)
        with_mean = {name: ng.angle(x, torch.ones(x.shape[-1]).double()) for name, x in seen.items()}
        ng.center_writers(model)
        logits(model)
    for name, _, _ in layout_of(model).readers_of(model):
        assert (with_mean[name] - 90).abs().max() > 10, "there was no mean to take out"
        assert (ng.angle(seen[name], torch.ones(seen[name].shape[-1]).double()) - 90).abs().max() < 1e-9


@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_folded_norms_do_nothing(family, changes):
    model = ng.fold_norms(uneven(family, **changes))
    for name, norm, _ in layout_of(model).readers_of(model):
        assert isinstance(norm, nn.LayerNorm), name
        assert norm.weight is None or (norm.weight == 1).all()
        assert norm.bias is None or (norm.bias == 0).all()


@pytest.mark.parametrize(("family", "changes"), CONVERTIBLE, ids=name_of)
def test_generation_with_a_cache(family, changes):
    model = uneven(family, **changes)
    converted = ng.to_rms_norm(copy.deepcopy(model))
    prompt = IDS[:, :5]
    said = dict(max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=1)
    # Some of them compute attention in float32, whose rounding hangs on where in memory a tensor lies.
    with double_throughout(), torch.no_grad():
        before, after = (m.generate(prompt, attention_mask=torch.ones_like(prompt), **said) for m in (model, converted))
        assert torch.equal(before.sequences, after.sequences) and before.sequences.shape == (3, 11)
        assert apart(torch.stack(before.logits).double(), torch.stack(after.logits).double()) <= BOUND
        whole, caches = logits(model, before.sequences), [None, None]
        for i in range(before.sequences.shape[1]):
            steps = []
            for of, m in enumerate((model, converted)):
                step = m(before.sequences[:, i : i + 1], past_key_values=caches[of], use_cache=True)
                caches[of] = step.past_key_values
                steps.append(step.logits[:, 0])
            assert apart(*steps) <= BOUND
            assert apart(steps[1], whole[:, i]) <= BOUND, "what a cache holds is not what the model computes"


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt"])
def test_padding_on_the_left(family):
    model = uneven(family)
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with torch.no_grad():
        before = model(IDS, attention_mask=mask).logits
        after = ng.to_rms_norm(model)(IDS, attention_mask=mask).logits
    assert apart(before[mask == 1], after[mask == 1]) <= BOUND


# the known wrong ways


def without(step):
    """The conversion with one of its steps left out."""

    def convert(model):
        flow = known_flow(model, layout_of(model))
        with torch.no_grad():
            for each in (steps.untie, steps.fold, steps.center, steps.swap):
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
        norms = [norm for _, norm, _ in layout_of(model).readers_of(model)]
        for norm in norms[-1:] if last else norms:
            nn.init.constant_(getattr(norm, kind), value)
        ng.to_rms_norm(model)

    return convert


WRONG = {
    "nothing is centred": without(steps.center),
    "the token embedding is not centred": restoring("wte.weight"),
    "the position embedding is not centred": restoring("wpe.weight"),
    "attention's output is not centred": restoring("attn.c_proj.weight", "attention.out_proj.weight"),
    "the MLP's output is not centred": restoring("mlp.c_proj.weight"),
    "writers' biases are not centred": restoring("c_proj.bias", "out_proj.bias"),
    "the head stays tied": without(steps.untie),
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


def test_centring_an_rms_norm_model_is_wrong():
    model = widened("llama")
    before = logits(model)
    weight = model.model.embed_tokens.weight.data
    weight -= weight.mean(1, keepdim=True)
    assert apart(logits(model), before) > 0.1


@pytest.mark.parametrize(("family", "offset"), [("gemma", 0.0), ("llama", 1.0)])
def test_the_wrong_gain_is_wrong(family, offset, monkeypatch):
    model = widened(family)
    before = logits(model)
    name = type(model).__name__
    monkeypatch.setitem(layouts.LAYOUTS, name, replace(layouts.LAYOUTS[name], offset=offset))
    assert apart(logits(ng.fold_norms(model)), before) > 0.1


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


# biases that were not there


def test_biases_are_made_where_there_were_none():
    model = uneven("gpt_neo")
    assert model.lm_head.bias is None and model.transformer.h[0].attn.attention.q_proj.bias is None
    ng.fold_norms(model)
    assert model.lm_head.bias.shape == (64,) and model.transformer.h[1].attn.attention.v_proj.bias.shape == (32,)


def test_biases_are_not_made_for_nothing():
    model = uneven("gpt_neo")
    for _, norm, _ in layout_of(model).readers_of(model):
        nn.init.zeros_(norm.bias)
    names = set(dict(model.named_parameters()))
    ng.fold_norms(model)
    assert set(dict(model.named_parameters())) - {"lm_head.weight"} == names, "a bias of zeros"


def test_what_is_trained_stays_trained_and_what_is_frozen_frozen():
    model = uneven("gpt2")
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in ng.to_rms_norm(model).parameters())
    model = ng.to_rms_norm(uneven("gpt2"))
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in model.parameters()), "a parameter that the model does not use"


def test_the_mode_is_kept():
    model = ng.to_rms_norm(uneven("gpt2").train())
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in ng.to_rms_norm(uneven("gpt2").eval()).modules())


# gains and biases


def test_a_gain_that_is_the_same_everywhere_is_folded_too():
    model = uneven("gpt2")
    for _, norm, _ in layout_of(model).readers_of(model):
        nn.init.constant_(norm.weight, 2.0)
        nn.init.constant_(norm.bias, -0.5)
    before = logits(model)
    ng.fold_norms(model)
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for _, norm, _ in layout_of(model).readers_of(model))
    assert apart(logits(model), before) <= BOUND


def test_folding_twice_is_folding_once():
    model = ng.fold_norms(uneven("gpt2"))
    with Untouched(model):
        ng.fold_norms(model)


def test_a_norm_that_two_places_share_is_folded_for_both():
    model = uneven("gpt2")
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    before = logits(model)
    assert apart(logits(ng.fold_norms(model)), before) <= BOUND


# refusals


def meta():
    with torch.device("meta"):
        return tiny("gpt2")


def with_int8():
    model = uneven("gpt2")
    model.lm_head.weight = nn.Parameter(torch.ones(64, 32, dtype=torch.int8), requires_grad=False)
    return model


def with_a_note_of_quantisation():
    model = uneven("gpt2")
    model.config.quantization_config = dict(quant_method="torchao")
    return model


def with_a_reader_of_its_own_kind():
    class Sparse(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight, self.bias = linear.weight, linear.bias

    model = uneven("gpt_neox")
    mlp = model.gpt_neox.layers[1].mlp
    mlp.dense_h_to_4h = Sparse(mlp.dense_h_to_4h)
    return model


def with_a_shared_block():
    model = uneven("gpt2")
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    return model


def with_an_adapter():
    model = uneven("opt")
    model.model.decoder.layers[1].adapter = nn.Linear(32, 32)
    return model


NONE_OF_THEM = {
    "bert": (lambda: uneven("bert"), r"\(post-norm\)"),
    "OPT-350m's placement": (lambda: uneven("opt", do_layer_norm_before=False), r"\(post-norm\)"),
    "OPT-350m": (lambda: uneven("opt", do_layer_norm_before=False, word_embed_proj_dim=16), r"\(post-norm\)"),
    "bloom": (lambda: uneven("bloom"), "normalises its embeddings"),
    "gemma2": (lambda: uneven("gemma2"), "normalises what a block adds to the stream"),
    "gemma3": (lambda: uneven("gemma3"), "normalises what a block adds to the stream"),
    "no head": (lambda: AutoModel.from_config(tiny("gpt2").config), "expected the model with its language-modelling"),
    "no transformer": (lambda: nn.Linear(3, 3), "no run of it shows one .example_inputs: none given"),
    "an adapter": (with_an_adapter, r"model\.decoder\.layers\.1\.adapter, a Linear, has no place"),
    "meta": (meta, "expected all its parameters on one device that holds data, got meta"),
    "int8": (with_int8, r"expected lm_head to be .* of a floating-point dtype, got Linear with torch.int8"),
    "quantised": (with_a_note_of_quantisation, "expected weights that are not quantised"),
    "own kind": (with_a_reader_of_its_own_kind, r"expected gpt_neox\.layers\.1\.mlp\.dense_h_to_4h .* got Sparse"),
    "shared": (with_a_shared_block, "expected a weight of its own for each module"),
}
ONLY_FOLDED = {
    "llama": (lambda: uneven("llama"), r"expected LayerNorm .*input_layernorm is a LlamaRMSNorm"),
    "gemma": (lambda: uneven("gemma"), r"expected LayerNorm .* is a GemmaRMSNorm"),
    "converted": (lambda: ng.to_rms_norm(uneven("gpt2")), r"expected LayerNorm .*ln_1 is a RMSNorm"),
    "dropped": (
        lambda: ng.drop_mean_subtraction(uneven("gpt2"), ["transformer.ln_f"]),
        r"expected LayerNorm .* transformer\.ln_f is a Uncentered",
    ),
}


@pytest.mark.parametrize(
    ("surgery", "make", "reason"),
    [
        pytest.param(surgery, make, reason, id=f"{surgery.__name__}-{case}")
        for refused, surgeries in ((NONE_OF_THEM, SURGERIES), (ONLY_FOLDED, SURGERIES[1:]))
        for case, (make, reason) in refused.items()
        for surgery in surgeries
    ],
)
def test_a_refusal_says_why_and_leaves_everything_as_it_was(surgery, make, reason):
    model = make()
    with Untouched(model), pytest.raises(ValueError, match=rf"^model: .*{reason}"):
        surgery(model)


def test_a_model_without_its_mean_folds():
    model = ng.drop_mean_subtraction(uneven("gpt2"))
    before = logits(model)
    assert apart(logits(ng.fold_norms(model)), before) <= BOUND


# the ablation


def by_hand(site, x):
    """A norm's output if the mean were not subtracted, from the gain and bias that find_norms saw."""
    scale = (x.square().mean(-1, keepdim=True) + site.eps).sqrt()
    return x / scale * site.weight.to(x.dtype) + site.bias.to(x.dtype)


def output_of(model):
    with torch.no_grad():
        found = model(IDS)
    return (found.logits if "logits" in found else found.last_hidden_state).double()


# the parameter acts itself: gpt2, mpt, bert, albert; there is another or none: nemotron (1 + w), cohere, olmo
ABLATED = [("gpt2", 1e-12), ("mpt", 1e-12), ("phi_qk", 1e-12), ("bert", 1e-12), ("albert", 1e-12)]
ABLATED += [("nemotron", 1e-5), ("cohere", 1e-5), ("olmo", 1e-5)]


@pytest.mark.parametrize(("family", "tolerance"), ABLATED)
def test_the_ablation_is_its_formula(family, tolerance):
    model = uneven(family)
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    plain = output_of(model)
    sites = [site for site in ng.find_norms(model) if site.kind == "layer"]
    # the probe reads float32; what the module states is exact
    stated = [
        replace(
            site,
            weight=site.module.weight.detach() if tolerance < 1e-9 else site.weight,
            bias=site.bias if getattr(site.module, "bias", None) is None else site.module.bias.detach(),
        )
        for site in sites
    ]
    hooks = [
        s.module.register_forward_hook(lambda _, args, out, s=s: by_hand(s, args[0]).to(out.dtype)) for s in stated
    ]
    expected = output_of(model)
    for hook in hooks:
        hook.remove()
    assert apart(plain, expected) > 1e-3, "the mean did not matter here"
    assert ng.drop_mean_subtraction(model) is model
    assert apart(output_of(model), expected) <= tolerance
    found = {site.name: site for site in ng.find_norms(model)}
    for site in sites:
        assert found[site.name].kind == "rms", f"{site.name} still subtracts a mean"
        assert found[site.name].eps == site.eps
        torch.testing.assert_close(found[site.name].weight, site.weight, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[site.name].bias, site.bias, rtol=1e-4, atol=1e-4)


def test_only_the_named_sites_are_changed():
    model = uneven("gpt2")
    ng.drop_mean_subtraction(model, ["transformer.h.1.ln_1"])
    assert [site.name for site in ng.find_norms(model) if site.kind == "rms"] == ["transformer.h.1.ln_1"]


def test_sites_may_be_what_was_found():
    class Own(nn.Module):
        """Not of transformers: no example can be made for it."""

        def __init__(self):
            super().__init__()
            self.norm, self.other = nn.LayerNorm(6), nn.LayerNorm(6)

        def forward(self, x):
            return self.other(self.norm(x) + 1)

    model, x = Own(), torch.randn(2, 5, 6)
    first = ng.find_norms(model, x)[0]
    ng.drop_mean_subtraction(model, [first])
    assert [site.kind for site in ng.find_norms(model, x)] == ["rms", "layer"]
    with pytest.raises(TypeError, match=r"^example_inputs: "):
        ng.drop_mean_subtraction(model)


def test_a_norm_that_two_places_share_is_changed_in_both():
    model = uneven("gpt2")
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    ng.drop_mean_subtraction(model, ["transformer.h.0.ln_1"])
    assert model.transformer.h[1].ln_1 is model.transformer.h[0].ln_1
    assert [site.kind for site in ng.find_norms(model)] == ["rms", "layer", "layer", "layer"]


def test_it_costs_nothing_where_there_is_no_mean():
    model = ng.center_writers(uneven("gpt2"))
    before = logits(model)
    assert apart(logits(ng.drop_mean_subtraction(model)), before) <= BOUND


def test_gain_and_bias_stay_the_same_parameters():
    model = uneven("bert")
    norm = model.embeddings.LayerNorm
    weight, bias = norm.weight, norm.bias
    ng.drop_mean_subtraction(model)
    assert model.embeddings.LayerNorm is not norm
    assert model.embeddings.LayerNorm.weight is weight and model.embeddings.LayerNorm.bias is bias


@pytest.mark.parametrize(
    ("family", "sites", "message"),
    [
        ("gpt2", ["transformer.ln_g"], r"^sites: expected LayerNorms of this GPT2LMHeadModel, got 'transformer.ln_g'"),
        ("gpt2", ["transformer.ln_f", "lm_head"], r"^sites: expected LayerNorms of .*, got 'lm_head'"),
        ("gpt2", [3], r"^sites: expected LayerNorms of .*, got 3"),
        ("llama", ["model.norm"], r"^sites: expected LayerNorms of this LlamaForCausalLM, got 'model.norm'"),
        ("llama", None, r"^model: expected one with LayerNorms, this LlamaForCausalLM runs none"),
        ("cohere_qk", None, r"^sites: expected LayerNorms of .*, got 'model.layers.0.self_attn.q_norm'"),
    ],
)
def test_what_is_no_layer_norm_is_refused(family, sites, message):
    model = uneven(family)
    with Untouched(model), pytest.raises(ValueError, match=message):
        ng.drop_mean_subtraction(model, sites)


def test_a_site_of_another_model_is_refused():
    site = ng.find_norms(uneven("gpt2"))[0]
    model = uneven("gpt2")
    with Untouched(model), pytest.raises(ValueError, match=r"^sites: .* got 'transformer.h.0.ln_1'"):
        ng.drop_mean_subtraction(model, [site])


def test_a_model_without_data_is_refused():
    with pytest.raises(
        ValueError, match=r"^model: expected all its parameters on one device that holds data, got meta"
    ):
        ng.drop_mean_subtraction(meta())


def test_ids_here_are_no_padding():
    assert isinstance(tiny("gpt2"), PreTrainedModel) and token_ids(3, 13).min() >= 2


@pytest.mark.parametrize("family", ["bloom", "gemma2", "llama"])
def test_a_refusal_in_the_words_of_the_conversion(family):
    model = uneven(family)
    with pytest.raises(ValueError) as refused:
        ng.to_rms_norm(copy.deepcopy(model))
    with Untouched(model):
        assert refusal(model) == str(refused.value)


def test_no_refusal_of_what_can_be_converted():
    model = uneven("gpt2")
    with Untouched(model):
        assert refusal(model) is None, "converted on the way, or a refusal where there is none"


def test_torchs_fast_path_does_not_run_past_what_was_replaced():
    """Without gradients torch runs an encoder's layers in one call, with LayerNorm whatever the modules are."""
    layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = 1 + torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = encoder(x)
    ng.drop_mean_subtraction(encoder, ng.find_norms(encoder, x))
    with_gradients = encoder(x).detach()
    with torch.no_grad():
        assert apart(encoder(x), before) > 0.1, "the fast path runs LayerNorm past the modules"
        assert apart(encoder(x), with_gradients) < 1e-12
