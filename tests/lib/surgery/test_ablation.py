"""Norms without a step: against their formulas by hand, what that costs a row, and nothing else changed."""

import copy
import io
import math

import normgeom as ng
import pytest
import torch
from norm_checks import draw, rounding
from normgeom.surgery.ablation import ReducedNorm
from surgery_models import Untouched, apart, logits, uneven
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

IDS = token_ids(3, 9)
LAST = {"gpt2": "transformer.ln_f", "llama": "model.norm"}
FAMILIES = pytest.mark.parametrize("family", LAST)
BOTH = pytest.mark.parametrize(
    "reduce",
    [
        lambda model, sites=None, x=IDS: ng.drop_mean_subtraction(model, sites, x),
        lambda model, sites=None, x=IDS: ng.freeze_norms(model, [x], sites),
    ],
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
    assert reduced(reduce(copy.deepcopy(model), iter(found))) == {site.name for site in found}, "of another model"
    assert reduced(reduce(model, found)) == {site.name for site in found}


@BOTH
def test_what_stays(reduce):
    """Gain and bias as the same parameters, the mode, which norms are one, their hooks; no others, no scale trained."""
    model = uneven("gpt2").train()
    model.transformer.h[1].ln_1 = norm = model.transformer.h[0].ln_1
    calls = []
    handle = norm.register_forward_hook(lambda *_: calls.append(1))
    reduce(model)
    calls.clear()
    logits(model)
    handle.remove()
    logits(model)
    assert len(calls) == 2, "a hook of the norm that was replaced is lost, or is there to stay"
    new = model.transformer.h[0].ln_1
    assert isinstance(new, ReducedNorm) and model.transformer.h[1].ln_1 is new
    assert new.weight is norm.weight and new.bias is norm.bias and len(list(new.parameters())) == 2
    assert all(module.training and not module._forward_hooks for module in model.modules())


@BOTH
def test_torchs_fast_path_does_not_run_past_what_was_replaced(reduce):
    """Without gradients torch runs an encoder's layers in one call, with LayerNorm whatever the modules are."""
    layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dtype=torch.float64)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), 1 + draw(2, 5, 12)
    padding = torch.arange(5).expand(2, 5) > 3
    with torch.no_grad():
        before = encoder(x)
    reduce(encoder, x=x)
    with_gradients = encoder(x).detach()
    with torch.no_grad():
        assert apart(encoder(x), before) > 0.05, "the fast path runs LayerNorm past the modules"
        assert apart(encoder(x), with_gradients) < 1e-12
        assert encoder(x, src_key_padding_mask=padding).shape == x.shape, "nested tensors"


WRONG_SITES = {
    "no such": (lambda: uneven("gpt2"), ["transformer.ln_g"], r"sites: expected (LayerN|n)orms of .*, got '.*ln_g'"),
    "no norm": (lambda: uneven("gpt2"), ["transformer.ln_f", "lm_head"], r"sites: expected .*, got 'lm_head'"),
    "no name": (lambda: uneven("gpt2"), [3], r"sites: expected (LayerN|n)orms of .*, got 3"),
    "no site": (lambda: uneven("gpt2"), [], r"model: expected one that holds .*, this GPT2LMHeadModel holds none"),
    "no model": (lambda: nn.Embedding(64, 8), None, r"model: expected one that holds .*, this Embedding holds none"),
    "meta": (lambda: tiny("gpt2").to("meta"), None, r"model: expected all its parameters on one device .*, got meta"),
}


@BOTH
@pytest.mark.parametrize(("make", "sites", "message"), WRONG_SITES.values(), ids=WRONG_SITES)
def test_what_is_no_norm_of_the_model_is_refused(reduce, make, sites, message):
    model = make()
    with Untouched(model), pytest.raises(ValueError, match=f"^{message}"):
        reduce(model, sites)


# without the mean

# the parameter acts itself: gpt2, mpt, bert, albert; there is another or none: nemotron (1 + w), cohere, olmo
ABLATED = dict(gpt2=1e-12, mpt=1e-12, phi_qk=1e-12, bert=1e-12, albert=1e-12, nemotron=1e-5, cohere=1e-5, olmo=1e-5)


@pytest.mark.parametrize(("family", "tolerance"), ABLATED.items())
def test_the_ablation_is_its_formula(family, tolerance):
    model = uneven(family)
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    sites = [site for site in ng.find_norms(model) if site.kind == "layer"]

    def without_mean(module, args, kwargs, output):
        site = next(site for site in sites if site.module is module)
        # the probe reads float32; what the module states is exact
        own = {name: p.detach() for name, p in module.named_parameters()} if tolerance < 1e-9 else {}
        gain, bias = own.get("weight", site.weight.double()), own.get("bias", site.bias.double())
        return args[0] / (args[0].square().mean(-1, keepdim=True) + site.eps).sqrt() * gain + bias

    def output():
        with torch.no_grad():
            found = model(IDS)
        return (found.logits if "logits" in found else found.last_hidden_state).double()

    plain, hooks = output(), [s.module.register_forward_hook(without_mean, with_kwargs=True) for s in sites]
    expected = output()
    for hook in hooks:
        hook.remove()
    assert apart(plain, expected) > 1e-3, "the mean did not matter here"
    assert ng.drop_mean_subtraction(model) is model
    assert apart(output(), expected) <= tolerance
    found = {site.name: site for site in ng.find_norms(model)}
    assert all(found[site.name].kind == "rms" and found[site.name].eps == site.eps for site in sites)


def test_an_example_is_only_asked_for_where_it_is_needed():
    model, x = nn.Sequential(nn.LayerNorm(6), nn.LayerNorm(6)), torch.randn(2, 5, 6)
    ng.drop_mean_subtraction(model, ng.find_norms(model, x)[:1])
    assert [site.kind for site in ng.find_norms(model, x)] == ["rms", "layer"]
    with pytest.raises(TypeError, match=r"^example_inputs: "):
        ng.drop_mean_subtraction(model)


@pytest.mark.parametrize(
    ("family", "sites", "message"),
    [
        ("llama", None, "model: expected one that holds LayerNorms, "),
        ("llama", ["model.norm"], "sites: expected LayerNorms of this "),
        ("cohere_qk", ["model.layers.0.self_attn.q_norm"], "sites: expected LayerNorms of this "),
    ],
)
def test_what_is_no_layer_norm_with_one_gain_is_left(family, sites, message):
    model = uneven(family)
    with Untouched(model), pytest.raises(ValueError, match=f"^{message}"):
        ng.drop_mean_subtraction(model, sites)


# with one constant for the scale


def inputs_of(model, name, batches=(IDS,)):
    """What a module is given, in float64."""
    seen = []
    with ng.watch(model, [name], lambda _, x, y: seen.append(x.double())):
        for batch in batches:
            logits(model, batch)
    return seen[0]


def scale_of(row, eps, centered):
    """s of one vector, by the formula."""
    row = row.tolist()
    mean = math.fsum(row) / len(row) if centered else 0.0
    return math.sqrt(math.fsum((v - mean) ** 2 for v in row) / len(row) + eps)


def scales_of(model, batches, sites=None):
    """The scale that each norm of a copy gets, by name."""
    copied = ng.freeze_norms(copy.deepcopy(model), batches, sites)
    return {name: float(copied.get_submodule(name).scale) for name in reduced(copied)}


# family, site, what is added to its weight, which axis of its input counts tokens, and ε where it is large
SITES = {
    "gpt2, first": ("gpt2", "transformer.h.0.ln_1", 0, 1, dict(layer_norm_epsilon=0.5)),
    "gpt2, last": ("gpt2", "transformer.ln_f", 0, 1, dict(layer_norm_epsilon=0.5)),
    "llama": ("llama", "model.norm", 0, 1, dict(rms_norm_eps=0.5)),
    "gemma": ("gemma", "model.layers.0.input_layernorm", 1, 1, {}),
    "keys of Qwen 3": ("qwen3", "model.layers.0.self_attn.k_norm", 0, 1, {}),
    "a gain for each head, of Cohere": ("cohere_qk", "model.layers.0.self_attn.q_norm", 0, 1, {}),
    "heads before tokens, of Phi": ("phi_qk", "model.layers.0.self_attn.q_layernorm", 0, 2, {}),
}


@pytest.mark.parametrize(("family", "name", "offset", "tokens", "changes"), SITES.values(), ids=SITES)
def test_a_frozen_norm_by_hand(family, name, offset, tokens, changes):
    """γ ⊙ Πx/s̄ + β; s̄ is the mean of s over all heads of all tokens but the first of a text, whatever the batches."""
    model = tiny(family, **changes).double()
    table = model.get_input_embeddings().weight.data
    table.copy_(draw(*table.shape, mean=0.4) * torch.linspace(0.3, 2.0, len(table))[:, None])
    table[IDS[:, 0]] *= 30
    norm, centered = model.get_submodule(name), family in ("gpt2", "cohere_qk", "phi_qk")
    randomise_norms(model, [norm])
    (eps,) = {site.eps for site in ng.find_norms(model) if site.name == name}
    assert eps == changes.get("layer_norm_epsilon", changes.get("rms_norm_eps", 1e-5 if centered else 1e-6))
    gain, bias = (getattr(norm, parameter, torch.zeros(())).detach() for parameter in ("weight", "bias"))
    x = inputs_of(model, name)
    rows = x.movedim(tokens, 1)[:, 1:].flatten(0, -2)
    scale = math.fsum(scale_of(row, eps, centered) for row in rows) / len(rows)
    every = x.flatten(0, -2)
    assert abs(math.fsum(scale_of(row, eps, centered) for row in every) / len(every) - scale) > 1e-4 * scale
    assert scales_of(model, [dict(input_ids=IDS)], [name]) == {name: pytest.approx(scale, rel=1e-12, abs=0)}
    assert scales_of(model, iter([IDS[:1], IDS[1:]]), [name]) == {name: pytest.approx(scale, rel=1e-9)}
    centre = x - (x.mean(-1, keepdim=True) if centered else 0)
    expected = centre / scale * (offset + gain) + bias
    with torch.no_grad():
        got = ng.freeze_norms(model, [IDS], [name]).get_submodule(name)(x)
    assert apart(got, expected) < 1e-5 * float(expected.abs().max()), "the probe reads gains in float32"


def test_scales_are_those_of_the_model_before_in_evaluation_mode():
    """No norm is measured on what another one's freezing makes of its input, or on what dropout leaves."""
    model = uneven("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    together = scales_of(model.train(), [IDS])
    assert scales_of(model.eval(), [IDS]) == together
    assert all(scales_of(model, [IDS], [name]) == {name: scale} for name, scale in together.items())
    ng.freeze_norms(model, [IDS], ["transformer.h.0.ln_1"])
    assert scales_of(model, [IDS])["transformer.ln_f"] != together["transformer.ln_f"], "it makes no difference here"


@pytest.mark.parametrize("kind", [ng.LayerNorm, ng.RMSNorm])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_row_is_off_by_its_scale_over_the_mean(kind, seed):
    """‖y − ŷ‖/‖y − β‖ = |s/s̄ − 1| whatever the gain (prop-freezing-error), and along y − β; ŷ is affine in x."""
    norm = kind(8, eps=0.3, dtype=torch.float64)
    randomise_norms(norm, [norm], seed=seed)
    model, x = nn.Sequential(norm), draw(3, 6, 8, seed=seed, mean=0.5) * torch.linspace(0.2, 3.0, 6)[:, None]
    y, bias = model(x).detach(), 0 if kind is ng.RMSNorm else norm.bias.detach()
    s = torch.tensor([[scale_of(row, 0.3, kind is ng.LayerNorm) for row in text] for text in x], dtype=torch.float64)
    middle = s[:, 1:].mean()
    frozen = ng.freeze_norms(model, [x])
    assert apart(frozen(x).detach() - bias, (s / middle)[..., None] * (y - bias)) < 1e-12
    assert apart((y - frozen(x).detach()).norm(dim=-1) / (y - bias).norm(dim=-1), (s / middle - 1).abs()) < 1e-12
    assert apart(frozen(-1.7 * x).detach() - bias, -1.7 * (frozen(x).detach() - bias)) < 1e-12
    moved = apart(frozen(x + 10).detach(), frozen(x).detach())
    assert moved < 1e-12 if kind is ng.LayerNorm else moved > 1


# models


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "cohere_qk", "albert"])
def test_no_norm_is_left(family, recwarn):
    model = uneven(family)
    names = {site.name for site in ng.find_norms(model)}
    assert ng.freeze_norms(model, [IDS]) is model
    assert ng.find_norms(model) == [] and reduced(model) == names and not any(m.training for m in model.modules())
    assert not [warning for warning in recwarn if "seen and not measured" in str(warning.message)]


@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_dtype_is_kept(family, dtype):
    model, name = tiny(family).to(dtype), LAST[family]
    randomise_norms(model, [model.get_submodule(name)])
    drawn = {parameter: t.double() for parameter, t in model.get_submodule(name).state_dict().items()}
    with torch.no_grad():
        assert ng.freeze_norms(model, [IDS])(IDS).logits.dtype == dtype
    assert {p.dtype for p in model.parameters()} == {dtype}
    norm, x = model.get_submodule(name), draw(32, 32, mean=0.5, dtype=dtype) * 0.02
    centre = x.double() - (x.double().mean(-1, keepdim=True) if family == "gpt2" else 0)
    expected = centre / norm.scale * drawn["weight"] + drawn.get("bias", 0)
    got, wide = norm(x).detach(), rounding(expected, torch.float32)
    assert got.dtype == dtype
    assert (got >= (expected - wide).to(dtype)).all() and (got <= (expected + wide).to(dtype)).all(), "rounded twice?"


def test_one_plus_a_weight_of_16_bits_keeps_the_weight():
    model = tiny("gemma").to(torch.bfloat16)
    model.model.norm.weight.data.fill_(1e-3)
    norm = ng.freeze_norms(model, [IDS]).model.norm
    with torch.no_grad():
        y = norm(torch.ones(1, 2, 32))
    assert float(y[0, 0, 0] * norm.scale) == pytest.approx(1.001, abs=1e-4)


def test_the_scale_is_saved_and_loaded():
    model, other = (ng.freeze_norms(uneven("gpt2"), [ids]) for ids in (IDS, token_ids(2, 5, seed=4)))
    assert apart(logits(model, IDS), logits(other, IDS)) > 1e-3, "the scales are the same anyway"
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(logits(other, IDS), logits(model, IDS))


# refusals


def with_nan(model):
    model.transformer.wte.weight.data[int(IDS[0, 3])] = torch.nan


def without_size(model):
    """The last norm sees nothing but zeros, and has no ε."""
    for p in model.transformer.parameters():
        p.data.zero_()
    model.transformer.ln_f = ng.LayerNorm(32, eps=0.0, dtype=torch.float64)


FIRST, PADDED = r"transformer\.h\.0\.ln_1", dict(input_ids=IDS, attention_mask=(torch.arange(9) < 7).expand(3, 9))
REFUSED = {
    "no batch": (lambda model: None, [], "batches: expected at least one, got none"),
    "one token": (lambda model: None, [IDS[:, :1]], rf"batches: the 0 scales at {FIRST} add up to 0.0, expected"),
    "another vocabulary": (lambda model: None, [IDS, IDS + 60], "batches: expected token ids from 0 to 63, got"),
    "padding": (lambda model: None, [IDS, PADDED], "batches: expected texts without padding, attention_mask leaves"),
    "frozen already": (lambda model: ng.freeze_norms(model, [IDS]), [IDS], "model: expected one that holds norms"),
    "NaN": (with_nan, [IDS], rf"batches: the 24 scales at {FIRST} add up to nan"),
    "zeros": (without_size, [IDS], r"batches: the 24 scales at transformer\.ln_f add up to 0"),
}


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


class Fused(nn.LayerNorm):
    def forward(self, x, residual=None):
        return super().forward(x)


class Annotated(nn.LayerNorm):
    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3) + self.bias


class Holder(nn.Module):
    """One norm, called somehow."""

    def __init__(self, norm, call):
        super().__init__()
        self.norm, self.call = norm, call

    def forward(self, x):
        return self.call(self.norm, x)


def in_a_closure():
    norm = nn.LayerNorm(32)
    return Holder(norm, lambda _, x: norm(x))


UNFIT = {
    "given a None": (
        lambda: Holder(Fused(32), lambda norm, x: norm(x, None)),
        r"does not run once it is changed \(Red",
    ),
    "given by name": (lambda: Holder(nn.LayerNorm(32), lambda norm, x: norm(input=x)), "does not run once it is chang"),
    "in a closure": (in_a_closure, "still runs a LayerNorm that was replaced, which it holds in a list"),
    "ε outside the root": (
        lambda: Holder(Annotated(32), lambda norm, x: norm(x)),
        "norm returns something other than a",
    ),
}


@BOTH
@pytest.mark.parametrize(("make", "message"), UNFIT.values(), ids=UNFIT)
def test_no_norm_is_replaced_where_that_says_nothing_or_something_else(reduce, make, message):
    model, x = make().double(), 0.02 * draw(3, 9, 32, mean=0.5)
    with Untouched(model), pytest.raises(ValueError, match=f"^model: .*{message}"):
        reduce(model, None, x)
