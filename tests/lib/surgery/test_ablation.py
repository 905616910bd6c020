"""Norms without a step: against their formulas by hand, what that costs a row, and nothing else changed."""

import copy
import io
import math
from dataclasses import replace

import normgeom as ng
import pytest
import torch
from norm_checks import draw, rounding
from normgeom.surgery.ablation import ReducedNorm
from surgery_models import Untouched, apart, logits, uneven
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

IDS = token_ids(3, 9)
EPS = 0.5  # of telling models
LAST = {"gpt2": "transformer.ln_f", "llama": "model.norm"}
FAMILIES = pytest.mark.parametrize("family", LAST)
BOTH = pytest.mark.parametrize(
    "reduce",
    [ng.drop_mean_subtraction, lambda model, sites=None: ng.freeze_norms(model, [IDS], sites)],
    ids=["drop", "freeze"],
)


def reduced(model):
    return {name for name, module in model.named_modules() if isinstance(module, ReducedNorm)}


# what both do


@BOTH
def test_only_the_sites_that_are_asked_for_by_name_or_as_they_were_found(reduce):
    model = uneven("gpt2")
    assert reduced(reduce(copy.deepcopy(model), ["transformer.h.1.ln_1"])) == {"transformer.h.1.ln_1"}
    found = ng.find_norms(model)[1:3]
    assert reduced(reduce(model, iter(found))) == {site.name for site in found}
    copied, other = copy.deepcopy(uneven("gpt2")), ng.find_norms(uneven("gpt2"))[:1]
    assert reduced(reduce(copied, other)) == {"transformer.h.0.ln_1"}, "the norm of that name in this model"


@BOTH
def test_a_norm_that_two_places_share_is_changed_in_both(reduce):
    model = uneven("gpt2")
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    reduce(model, ["transformer.h.0.ln_1"])
    assert model.transformer.h[1].ln_1 is model.transformer.h[0].ln_1
    assert isinstance(model.transformer.h[1].ln_1, ReducedNorm)


@BOTH
def test_gain_and_bias_stay_the_same_parameters(reduce):
    model = uneven("bert")
    norm = model.embeddings.LayerNorm
    weight, bias = norm.weight, norm.bias
    reduce(model)
    assert model.embeddings.LayerNorm is not norm
    assert model.embeddings.LayerNorm.weight is weight and model.embeddings.LayerNorm.bias is bias
    assert dict(model.embeddings.LayerNorm.named_parameters()).keys() == {"weight", "bias"}, "the scale is not trained"


@BOTH
def test_the_mode_is_kept_and_no_hooks_are_left(reduce):
    model = reduce(uneven("gpt2").train())
    assert all(module.training and not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "reduce",
    [lambda model, x: ng.drop_mean_subtraction(model, example_inputs=x), lambda model, x: ng.freeze_norms(model, [x])],
    ids=["drop", "freeze"],
)
def test_torchs_fast_path_does_not_run_past_what_was_replaced(reduce):
    """Without gradients torch runs an encoder's layers in one call, with LayerNorm whatever the modules are."""
    layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dtype=torch.float64)
    encoder, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), 1 + draw(2, 5, 12)
    with torch.no_grad():
        before = encoder(x)
    reduce(encoder, x)
    with_gradients = encoder(x).detach()
    with torch.no_grad():
        assert apart(encoder(x), before) > 0.05, "the fast path runs LayerNorm past the modules"
        assert apart(encoder(x), with_gradients) < 1e-12


@BOTH
@pytest.mark.parametrize(
    ("family", "sites", "message"),
    [
        (
            "gpt2",
            ["transformer.ln_g"],
            r"^sites: expected (LayerN|n)orms of this GPT2LMHead.*, got 'transformer.ln_g'",
        ),
        ("gpt2", ["transformer.ln_f", "lm_head"], r"^sites: expected (LayerN|n)orms of .*, got 'lm_head'"),
        ("gpt2", [3], r"^sites: expected (LayerN|n)orms of .*, got 3"),
        ("gpt2", [], r"^model: expected one that holds (LayerN|n)orms, this GPT2LMHeadModel holds none"),
    ],
)
def test_what_is_no_norm_of_the_model_is_refused(reduce, family, sites, message):
    model = uneven(family)
    with Untouched(model), pytest.raises(ValueError, match=message):
        reduce(model, sites)


def test_a_model_without_norms_or_data_is_refused():
    with torch.device("meta"):
        model = tiny("gpt2")
    for reduce in (ng.drop_mean_subtraction, lambda model: ng.freeze_norms(model, [IDS])):
        with pytest.raises(ValueError, match=r"^model: expected all its parameters on one device .*, got meta"):
            reduce(model)
    for model in (nn.Linear(8, 8), ng.LayerNorm(8)):
        with pytest.raises(ValueError, match=r"^model: expected one that holds norms, this \w+ holds none"):
            ng.freeze_norms(model, [torch.randn(2, 5, 8)])


# without the mean


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


def test_it_costs_nothing_where_there_is_no_mean():
    model = ng.center_writers(uneven("gpt2"))
    before = logits(model)
    assert apart(logits(ng.drop_mean_subtraction(model)), before) <= 1e-10


class Own(nn.Module):
    """Not of transformers: no example can be made for it."""

    def __init__(self):
        super().__init__()
        self.norm, self.other = nn.LayerNorm(6), nn.LayerNorm(6)

    def forward(self, x):
        return self.other(self.norm(x) + 1)


def test_an_example_is_taken_and_only_asked_for_where_it_is_needed():
    x = torch.randn(2, 5, 6)
    assert {site.kind for site in ng.find_norms(ng.drop_mean_subtraction(Own(), example_inputs=x), x)} == {"rms"}
    model = Own()
    ng.drop_mean_subtraction(model, ng.find_norms(model, x)[:1])
    assert [site.kind for site in ng.find_norms(model, x)] == ["rms", "layer"]
    with pytest.raises(TypeError, match=r"^example_inputs: "):
        ng.drop_mean_subtraction(model)


@pytest.mark.parametrize("family", ["llama", "cohere_qk"])
def test_what_is_no_layer_norm_with_one_gain_is_left(family):
    model = uneven(family)
    if family == "llama":
        with (
            Untouched(model),
            pytest.raises(ValueError, match=r"^model: expected one that holds LayerNorms, "),
        ):
            ng.drop_mean_subtraction(model)
    with Untouched(model), pytest.raises(ValueError, match=r"^sites: expected LayerNorms of this "):
        ng.drop_mean_subtraction(model, ["model.norm" if family == "llama" else "model.layers.0.self_attn.q_norm"])


# with one constant for the scale


def telling(family):
    """A float64 model in which each token has a scale of its own, the first of a text another, and ε counts."""
    eps = {"gpt2": "layer_norm_epsilon", "llama": "rms_norm_eps"}
    model = tiny(family, **{eps[family]: EPS}).double()
    table = model.get_input_embeddings().weight.data
    table.copy_(draw(*table.shape, mean=0.4) * torch.linspace(0.3, 2.0, len(table))[:, None])
    table[IDS[:, 0]] *= 30
    return model


def inputs_of(model, name, batches):
    """What a module is given, batch by batch, in float64."""
    seen = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, args, out: seen.append(args[0].detach().double()))
    for batch in batches:
        logits(model, batch)
    hook.remove()
    return seen


def scale_of(row, eps, centered):
    """s of one vector, by the formula."""
    row = row.tolist()
    mean = math.fsum(row) / len(row) if centered else 0.0
    return math.sqrt(math.fsum((v - mean) ** 2 for v in row) / len(row) + eps)


def mean(values):
    return math.fsum(values) / len(values)


def scales_of(model, batches, sites=None):
    """The scale that each norm of a copy gets, by name."""
    copied = ng.freeze_norms(copy.deepcopy(model), batches, sites)
    return {name: float(copied.get_submodule(name).scale) for name in reduced(copied)}


@pytest.mark.filterwarnings("ignore:.* divide by a constant")
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "transformer.h.0.ln_1"),
        ("gpt2", "transformer.ln_f"),
        ("llama", "model.layers.0.input_layernorm"),
        ("llama", "model.norm"),
    ],
)
def test_the_scale_is_the_mean_by_hand_over_all_tokens_but_the_first(family, name):
    model, centered = telling(family), family == "gpt2"
    (x,) = inputs_of(model, name, [IDS])
    rows, every = x[:, 1:].flatten(0, 1), x.flatten(0, 1)
    own = lambda rows, eps=EPS, kind=centered: [scale_of(row, eps, kind) for row in rows]  # noqa: E731
    expected = mean(own(rows))
    wrong = {
        "first positions too": mean(own(every)),
        "the root of the mean square": mean([s**2 for s in own(rows)]) ** 0.5,
        "the harmonic mean": 1 / mean([1 / s for s in own(rows)]),
        "ε left out": mean(own(rows, eps=0.0)),
        "ε outside the root": mean(own(rows, eps=0.0)) + EPS,
        "the other kind of norm": mean(own(rows, kind=not centered)),
    }
    norm = ng.freeze_norms(model, [dict(input_ids=IDS)], [name]).get_submodule(name)
    assert float(norm.scale) == pytest.approx(expected, rel=1e-12, abs=0)
    for mistake, value in wrong.items():
        assert abs(value - expected) > 1e-3 * expected, f"{mistake}: the text could not tell it apart"


@pytest.mark.filterwarnings("ignore:.* divide by a constant")
@FAMILIES
def test_batches_count_by_their_vectors(family):
    """Texts in batches of several sizes are one text: no mean of means."""
    model, batches = telling(family), [IDS[:1], IDS[1:]]
    whole = scales_of(model, [IDS])
    assert scales_of(model, iter(batches)) == pytest.approx(whole, rel=1e-9), "an iterator's first batch is lost?"
    one, other = (scales_of(model, [batch]) for batch in batches)
    for name, scale in whole.items():
        assert abs((one[name] + other[name]) / 2 - scale) > 1e-3 * scale, "the texts could not tell a mean of means"


def test_it_is_measured_in_evaluation_mode():
    model = uneven("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    calm = scales_of(model, [IDS])
    assert scales_of(model.train(), [IDS]) == calm


def test_scales_are_those_of_the_model_before():
    """No norm is measured on what another one's freezing makes of its input."""
    model = uneven("gpt2")
    together = scales_of(model, [IDS])
    assert all(scales_of(model, [IDS], [name]) == {name: scale} for name, scale in together.items())
    ng.freeze_norms(model, [IDS], ["transformer.h.0.ln_1"])
    assert scales_of(model, [IDS])["transformer.ln_f"] != together["transformer.ln_f"], "it makes no difference here"


def test_a_constant_far_from_the_scales_is_told():
    x = draw(2, 40, 8) * torch.logspace(-1, 1, 40)[:, None]
    with pytest.warns(UserWarning, match=r"^1 of 1 norms divide by a constant that is far from .*: those at 0 "):
        ng.freeze_norms(nn.Sequential(ng.RMSNorm(8, dtype=torch.float64)), [x])


# what that costs


KINDS = pytest.mark.parametrize("kind", [ng.LayerNorm, ng.RMSNorm])


def alone(kind, d=8, seed=3, eps=0.3):
    """A network of one norm with drawn gain and bias."""
    norm = kind(d, eps=eps, dtype=torch.float64)
    randomise_norms(norm, [norm], seed=seed)
    return nn.Sequential(norm)


@KINDS
def test_it_is_exact_where_every_scale_is_the_same(kind):
    x = draw(2, 5, 8)
    x = x - x.mean(-1, keepdim=True) if kind is ng.LayerNorm else x
    x = 1.7 * x / x.square().mean(-1, keepdim=True).sqrt()
    model, x = alone(kind), x + (draw(2, 5, 1, seed=1, scale=3.0) if kind is ng.LayerNorm else 0)
    before = model(x).detach()
    ng.freeze_norms(model, [x])
    assert apart(model(x).detach(), before) < 1e-12
    assert apart(model(1.1 * x).detach(), before) > 1e-2, "the scale is not constant"


@pytest.mark.filterwarnings("ignore:.* divide by a constant")
@KINDS
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_elsewhere_a_row_is_off_by_its_scale_over_the_mean(kind, seed):
    """‖y − ŷ‖/‖y − β‖ = |s/s̄ − 1| whatever the gain (prop-freezing-error), and along y − β."""
    model, x = alone(kind, seed=seed), draw(3, 6, 8, seed=seed, mean=0.5) * torch.linspace(0.2, 3.0, 6)[:, None]
    y, bias, gain = model(x).detach(), getattr(model[0], "bias", None), model[0].weight.detach()
    bias = torch.zeros(8).double() if bias is None else bias.detach()
    s = torch.tensor([[scale_of(row, 0.3, kind is ng.LayerNorm) for row in text] for text in x], dtype=torch.float64)
    middle = s[:, 1:].mean()
    frozen = ng.freeze_norms(model, [x])(x).detach()
    share = (y - frozen).norm(dim=-1) / (y - bias).norm(dim=-1)
    assert apart(share, (s / middle - 1).abs()) < 1e-12
    assert apart(frozen - bias, (s / middle)[..., None] * (y - bias)) < 1e-12, "another direction"
    assert apart((y - frozen).norm(dim=-1) / y.norm(dim=-1), share) > 1e-3 or kind is ng.RMSNorm, "β does not matter"
    assert apart((middle / s - 1).abs(), share) > 1e-2 and gain.std() > 0.1, "the test could not tell s/s̄ from s̄/s"


@KINDS
def test_a_frozen_norm_is_affine_and_still_subtracts_the_mean_where_it_did(kind):
    model, (x, z), a = alone(kind), (draw(2, 5, 8, seed=seed, mean=0.5) for seed in (7, 8)), -1.7
    f = lambda t: model(t).detach()  # noqa: E731
    bent = lambda: apart(f(a * x + (1 - a) * z), a * f(x) + (1 - a) * f(z))  # noqa: E731
    assert bent() > 0.1, "a norm is not affine"
    ng.freeze_norms(model, [x])
    assert bent() < 1e-12
    assert model(torch.zeros(1, 2, 8).double()).abs().max() > 0 or kind is ng.RMSNorm, "β is lost"
    moved = apart(f(x + 10), f(x))
    assert moved < 1e-12 if kind is ng.LayerNorm else moved > 1


# models


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "qwen3", "cohere_qk", "bert", "albert"])
def test_no_norm_is_left(family, recwarn):
    model = uneven(family)
    names = {site.name for site in ng.find_norms(model)}
    assert ng.freeze_norms(model, [IDS]) is model
    assert ng.find_norms(model) == [] and reduced(model) == names
    assert not [warning for warning in recwarn if "divide by" not in str(warning.message)]


@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_dtype_is_kept(family, dtype):
    model, name = tiny(family).to(dtype), LAST[family]
    randomise_norms(model, [model.get_submodule(name)])
    drawn = {parameter: t.double() for parameter, t in model.get_submodule(name).state_dict().items()}
    with torch.no_grad():
        assert ng.freeze_norms(model, [IDS])(IDS).logits.dtype == dtype
    assert model.dtype == dtype and {p.dtype for p in model.parameters()} == {dtype}
    norm, x = model.get_submodule(name), draw(32, 32, mean=0.5, dtype=dtype) * 0.02
    centre = x.double() - (x.double().mean(-1, keepdim=True) if family == "gpt2" else 0)
    expected = centre / norm.scale * drawn["weight"] + drawn.get("bias", 0)
    got, wide = norm(x).detach(), rounding(expected, torch.float32)
    assert got.dtype == dtype
    assert (got >= (expected - wide).to(dtype)).all() and (got <= (expected + wide).to(dtype)).all(), "rounded twice?"


@FAMILIES
def test_the_scale_is_saved_and_loaded(family):
    model, other = (ng.freeze_norms(uneven(family), [ids]) for ids in (IDS, token_ids(2, 5, seed=4)))
    assert apart(logits(model, IDS), logits(other, IDS)) > 1e-3, "the scales are the same anyway"
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(logits(other, IDS), logits(model, IDS))


# family, site, what is added to its weight, and which axis of its input counts tokens
SITES = {
    "gemma": ("gemma", "model.layers.0.input_layernorm", 1, 1),
    "keys of Qwen 3": ("qwen3", "model.layers.0.self_attn.k_norm", 0, 1),
    "a gain for each head, of Cohere": ("cohere_qk", "model.layers.0.self_attn.q_norm", 0, 1),
    "heads before tokens, of Phi": ("phi_qk", "model.layers.0.self_attn.q_layernorm", 0, 2),
}


@pytest.mark.parametrize(("family", "name", "offset", "tokens"), SITES.values(), ids=SITES)
def test_the_gain_that_acts_is_kept(family, name, offset, tokens):
    """γ ⊙ Πx/s̄ + β, s̄ over all heads of all tokens but the first, at a site whose input freezing it does not change."""
    model = tiny(family).double()
    norm = model.get_submodule(name)
    randomise_norms(model, [norm])
    gain, bias = (getattr(norm, parameter, torch.zeros(())).detach() for parameter in ("weight", "bias"))
    centered, eps = (True, 1e-5) if family in ("cohere_qk", "phi_qk") else (False, 1e-6)
    (x,) = inputs_of(model, name, [IDS])
    counted = x.movedim(tokens, 1)[:, 1:].flatten(0, -2)
    scale = mean([scale_of(row, eps, centered) for row in counted])
    centre = x - (x.mean(-1, keepdim=True) if centered else 0)
    expected = centre / scale * (offset + gain) + bias
    with torch.no_grad():
        got = ng.freeze_norms(model, [IDS], [name]).get_submodule(name)(x)
    assert apart(got, expected) < 1e-5 * float(expected.abs().max()), "the probe reads gains in float32"
    assert apart(got, centre / scale * (1 - offset + gain) + bias) > 0.1, "w and 1 + w are the same here"


def test_one_plus_a_weight_of_16_bits_keeps_the_weight():
    model = tiny("gemma").to(torch.bfloat16)
    model.model.norm.weight.data.fill_(1e-3)
    norm = ng.freeze_norms(model, [IDS]).model.norm
    with torch.no_grad():
        y = norm(torch.ones(1, 2, 32))
    assert float(y[0, 0, 0] * norm.scale) == pytest.approx(1.001, abs=1e-4)


# refusals


def with_nan(model):
    model.transformer.wte.weight.data[int(IDS[0, 3])] = torch.nan


def with_a_gain_of_nan(model):
    model.transformer.h[0].ln_1.weight.data[3] = torch.nan


def without_size(model):
    """The last norm sees nothing but zeros, and has no ε."""
    model.transformer.wte.weight.data.zero_()
    for p in model.transformer.parameters():
        p.data.zero_()
    model.transformer.ln_f = ng.LayerNorm(32, eps=0.0, dtype=torch.float64)


FIRST, PADDED = r"transformer\.h\.0\.ln_1", dict(input_ids=IDS, attention_mask=(torch.arange(9) < 7).expand(3, 9))
REFUSED = {
    "no batch": (lambda model: None, [], "batches: expected at least one, got none"),
    "one token": (lambda model: None, [IDS[:, :1]], rf"batches: the 0 scales at {FIRST} add up to 0.0, expected"),
    "padding": (lambda model: None, [IDS, PADDED], "batches: expected texts without padding, an attention_mask leaves"),
    "frozen already": (lambda model: ng.freeze_norms(model, [IDS]), [IDS], "model: expected one that holds norms"),
    "NaN": (with_nan, [IDS], rf"batches: the 24 scales at {FIRST} add up to nan"),
    "NaN in a gain": (with_a_gain_of_nan, [IDS], r"batches: the 24 scales at transformer\.h\.0\.ln_2 add up to nan"),
    "zeros": (without_size, [IDS], r"batches: the 24 scales at transformer\.ln_f add up to 0"),
}


@pytest.mark.filterwarnings("ignore:seen and not measured:UserWarning")
@pytest.mark.parametrize(("alter", "batches", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_to_freeze_leaves_everything_as_it_was(alter, batches, message):
    model = uneven("gpt2")
    alter(model)
    tensors, modules = copy.deepcopy(model.state_dict()), list(model.modules())
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.freeze_norms(model.train(), batches)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True)), "a module was replaced"
    assert all(module.training and not module._forward_hooks for module in modules), "mode or hooks are not as before"
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), rtol=0, atol=0, equal_nan=True)
