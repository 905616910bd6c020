"""Norms with a constant for their scale: the mean scale by hand, what that costs a row, and nothing else changed."""

import copy
import io
import math

import normgeom as ng
import pytest
import torch
from norm_checks import draw, rounding
from normgeom.surgery.freezing import FrozenNorm
from surgery_models import apart, logits, uneven
from tiny_models import randomise_norms, tiny, token_ids
from torch import nn

IDS = token_ids(3, 9)
FIRST, PADDING = 2, 1  # token ids
EPS = 0.5  # of telling models
LAST = {"gpt2": "transformer.ln_f", "llama": "model.norm"}
FAMILIES = pytest.mark.parametrize("family", LAST)


def texts(*lengths):
    """Token ids that begin with :data:`FIRST` and hold it nowhere else."""
    made = [token_ids(1, n, seed=n)[0].clamp(min=FIRST + 1) for n in lengths]
    for text in made:
        text[0] = FIRST
    return made


def padded(many, side="right"):
    """Texts as one batch of transformers."""
    longest = max(map(len, many))
    ids, mask = torch.full((len(many), longest), PADDING), torch.zeros(len(many), longest, dtype=torch.int64)
    for i, text in enumerate(many):
        place = slice(longest - len(text), longest) if side == "left" else slice(0, len(text))
        ids[i, place], mask[i, place] = text, 1
    return dict(input_ids=ids, attention_mask=mask)


def singly(many):
    return [dict(input_ids=text[None], attention_mask=torch.ones(1, len(text), dtype=torch.int64)) for text in many]


def telling(family, **changes):
    """A float64 model in which each token has a scale of its own, the first and padding others, and ε counts."""
    eps = {"gpt2": "layer_norm_epsilon", "llama": "rms_norm_eps"}
    model = tiny(family, **({eps[family]: EPS} if family in eps else {}), **changes).double()
    table = model.get_input_embeddings().weight.data
    table.copy_(draw(*table.shape, mean=0.4) * torch.linspace(0.3, 2.0, len(table))[:, None])
    table[FIRST] *= 30
    table[PADDING] *= 10
    return model


def inputs_of(model, name, batches):
    """What a module is given, batch by batch, in float64."""
    seen = []
    hook = model.get_submodule(name).register_forward_hook(lambda _, args, out: seen.append(args[0].detach().double()))
    with torch.no_grad():
        for batch in batches:
            model(**batch) if isinstance(batch, dict) else model(batch)
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
    return {name: float(module.scale) for name, module in copied.named_modules() if isinstance(module, FrozenNorm)}


# the scale


def means_by_hand(x, mask, centered):
    """The mean scale of the vectors that count, and the means that one would get by doing something else."""
    texts_of = [
        [(row, t == 0, not real) for t, (row, real) in enumerate(zip(rows, reals, strict=True))]
        for rows, reals in zip(x, mask.tolist(), strict=True)
    ]
    every = [place for text in texts_of for place in text]
    inner = [[row for row, first, padding in text if not first and not padding] for text in texts_of]
    rows = [row for text in inner for row in text]
    own = lambda rows, eps=EPS, kind=centered: [scale_of(row, eps, kind) for row in rows]  # noqa: E731
    return mean(own(rows)), {
        "first positions too": mean(own(row for row, _, padding in every if not padding)),
        "padding too": mean(own(row for row, first, _ in every if not first)),
        "all positions": mean(own(row for row, _, _ in every)),
        "a mean of the texts' means": mean([mean(own(text)) for text in inner]),
        "the root of the mean square": mean([s**2 for s in own(rows)]) ** 0.5,
        "the harmonic mean": 1 / mean([1 / s for s in own(rows)]),
        "ε left out": mean(own(rows, eps=0.0)),
        "ε outside the root": mean(own(rows, eps=0.0)) + EPS,
        "the other kind of norm": mean(own(rows, kind=not centered)),
    }


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "transformer.h.0.ln_1"),
        ("gpt2", "transformer.ln_f"),
        ("llama", "model.layers.0.input_layernorm"),
        ("llama", "model.norm"),
    ],
)
def test_the_scale_is_the_mean_by_hand(family, name):
    model, batch = telling(family), padded(texts(9, 3, 6))
    (x,) = inputs_of(model, name, [batch])
    expected, wrong = means_by_hand(x, batch["attention_mask"], centered=family == "gpt2")
    norm = ng.freeze_norms(model, [batch], [name]).get_submodule(name)
    assert float(norm.scale) == pytest.approx(expected, rel=1e-12, abs=0)
    for mistake, value in wrong.items():
        assert abs(value - expected) > 1e-3 * expected, f"{mistake}: the text could not tell it apart"


@FAMILIES
def test_batches_count_by_their_vectors(family):
    """Texts of several lengths in batches of several sizes are one text: no mean of means."""
    model, many = telling(family), texts(3, 9, 6, 7)
    whole = scales_of(model, [padded(many)])
    batches = [padded(many[:1]), padded(many[1:])]
    assert scales_of(model, iter(batches)) == pytest.approx(whole, rel=1e-9), "an iterator's first batch is lost?"
    one, other = (scales_of(model, [batch]) for batch in batches)
    for name, scale in whole.items():
        assert abs((one[name] + other[name]) / 2 - scale) > 1e-3 * scale, "the texts could not tell a mean of means"


@FAMILIES
def test_token_ids_may_come_with_a_name_or_a_mask_of_ones(family):
    model = telling(family)
    forms = [IDS, dict(input_ids=IDS), dict(input_ids=IDS, attention_mask=torch.ones_like(IDS))]
    bare, *others = (scales_of(model, [form]) for form in forms)
    assert all(other == bare for other in others)


PADDED = [
    ("gpt2", "right"),
    ("llama", "right"),
    ("qwen3", "right"),
    ("bert", "right"),
    ("llama", "left"),
    ("phi_qk", "right"),  # heads stand before tokens
    ("opt", "right"),  # tokens come flattened
]


@pytest.mark.parametrize(("family", "side"), PADDED)
def test_padding_is_not_measured(family, side):
    """Texts of four lengths, padded to one, have the scales that they have one by one."""
    model, many = telling(family), texts(9, 3, 2, 6)
    # positions that are rotated differently in norms that compute in float32 leave its rounding
    tol = 1e-6 if side == "left" else 1e-9
    assert scales_of(model, [padded(many, side)]) == pytest.approx(scales_of(model, singly(many)), rel=tol)


def test_a_decoder_has_padding_of_its_own():
    model, sources, answers = telling("bart"), texts(9, 3, 2, 6), texts(3, 9, 4, 2)

    def with_answers(batch, answer):
        return dict(batch, **{f"decoder_{name}": value for name, value in answer.items()})

    together = [with_answers(padded(sources), padded(answers))]
    one_by_one = [with_answers(*pair) for pair in zip(singly(sources), singly(answers), strict=True)]
    assert scales_of(model, together) == pytest.approx(scales_of(model, one_by_one), rel=1e-9)


def test_it_is_measured_in_evaluation_mode():
    model = uneven("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    calm = scales_of(model, [IDS])
    assert scales_of(model.train(), [IDS]) == calm
    assert ng.freeze_norms(model, [IDS]).training and model.transformer.ln_f.training, "the mode is not as it was"
    assert not any(module._forward_hooks for module in model.modules()), "hooks are left"


# what it costs


def rows_of_one_scale(kind, scale, rows=(2, 5), d=8):
    """Vectors of different directions and means, all with the same variance, or mean square."""
    x = draw(*rows, d)
    x = x - x.mean(-1, keepdim=True) if kind is ng.LayerNorm else x
    x = scale * x / x.square().mean(-1, keepdim=True).sqrt()
    return x + (draw(*rows, 1, seed=1, scale=3.0) if kind is ng.LayerNorm else 0)


KINDS = pytest.mark.parametrize("kind", [ng.LayerNorm, ng.RMSNorm])


def alone(kind, d=8, seed=3, eps=0.3):
    """A network of one norm with drawn gain and bias."""
    norm = kind(d, eps=eps, dtype=torch.float64)
    randomise_norms(norm, [norm], seed=seed)
    return nn.Sequential(norm)


@KINDS
def test_it_is_exact_where_every_scale_is_the_same(kind):
    model, x = alone(kind), rows_of_one_scale(kind, 1.7)
    before = model(x).detach()
    ng.freeze_norms(model, [x])
    assert isinstance(model[0], FrozenNorm)
    assert apart(model(x).detach(), before) < 1e-12
    assert apart(model(1.1 * x).detach(), before) > 1e-2, "the scale is not constant"


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
def test_a_frozen_norm_is_affine(kind):
    model, (x, z), a = alone(kind), (draw(2, 5, 8, seed=seed, mean=0.5) for seed in (7, 8)), -1.7

    def bent():
        f = lambda t: model(t).detach()  # noqa: E731
        return apart(f(a * x + (1 - a) * z), a * f(x) + (1 - a) * f(z))

    assert bent() > 0.1, "a norm is not affine"
    ng.freeze_norms(model, [x])
    assert bent() < 1e-12
    assert model(torch.zeros(1, 2, 8).double()).abs().max() > 0 or kind is ng.RMSNorm, "β is lost"


@KINDS
def test_the_mean_is_still_subtracted_where_it_was(kind):
    model, x = alone(kind), draw(2, 5, 8)
    ng.freeze_norms(model, [x])
    moved = apart(model(x + 10).detach(), model(x).detach())
    assert moved < 1e-12 if kind is ng.LayerNorm else moved > 1


# models


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "qwen3", "cohere_qk", "bert", "albert"])
def test_no_norm_is_left(family, recwarn):
    model = uneven(family)
    names = {site.name for site in ng.find_norms(model)}
    assert ng.freeze_norms(model, [IDS]) is model
    assert ng.find_norms(model) == [] and not len(recwarn)
    assert {name for name, module in model.named_modules() if isinstance(module, FrozenNorm)} == names


def with_input(model, name, x):
    """Logits of the model while a norm is given ``x``."""
    hook = model.get_submodule(name).register_forward_pre_hook(lambda *_: (x,))
    found = logits(model, IDS)
    hook.remove()
    return found


@FAMILIES
def test_with_the_final_norm_frozen_the_logits_are_affine_in_its_input(family):
    model, name, a = uneven(family), LAST[family], -1.7
    (x,), z = inputs_of(model, name, [IDS]), draw(3, 9, 32, mean=0.3)
    others = [site.name for site in ng.find_norms(model) if site.name != name]

    def bent():
        return apart(
            with_input(model, name, a * x + (1 - a) * z),
            a * with_input(model, name, x) + (1 - a) * with_input(model, name, z),
        )

    assert bent() > 0.1, "a norm is not affine"
    ng.freeze_norms(model, [IDS], [name])
    assert bent() < 1e-10
    assert [site.name for site in ng.find_norms(model)] == others, "another norm was frozen too"


@FAMILIES
def test_sites_may_be_what_was_found(family):
    model = uneven(family)
    sites = ng.find_norms(model)[1:3]
    ng.freeze_norms(model, [IDS], iter(sites))
    frozen = {name for name, module in model.named_modules() if isinstance(module, FrozenNorm)}
    assert frozen == {site.name for site in sites}


def test_scales_are_those_of_the_model_before():
    """No norm is measured on what another one's freezing makes of its input."""
    model = telling("gpt2")
    together = scales_of(model, [IDS])
    assert all(scales_of(model, [IDS], [name]) == {name: scale} for name, scale in together.items())
    ng.freeze_norms(model, [IDS], ["transformer.h.0.ln_1"])
    assert scales_of(model, [IDS])["transformer.ln_f"] != together["transformer.ln_f"], "it makes no difference here"


def test_a_norm_that_two_places_share_is_frozen_in_both():
    model = uneven("gpt2")
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    both = torch.cat([x[:, 1:].flatten(0, 1) for x in inputs_of(model, "transformer.h.0.ln_1", [IDS])])
    expected = mean([scale_of(row, 1e-5, True) for row in both])
    ng.freeze_norms(model, [IDS], ["transformer.h.0.ln_1"])
    assert model.transformer.h[1].ln_1 is model.transformer.h[0].ln_1
    assert float(model.transformer.h[0].ln_1.scale) == pytest.approx(expected, rel=1e-12), "of one place alone"


def test_gain_and_bias_stay_the_same_parameters():
    model = uneven("gpt2")
    weight, bias = model.transformer.ln_f.weight, model.transformer.ln_f.bias
    norm = ng.freeze_norms(model, [IDS]).transformer.ln_f
    assert norm.weight is weight and norm.bias is bias
    assert dict(norm.named_parameters()).keys() == {"weight", "bias"}, "the scale is not trained"
    assert norm.scale.numel() == 1 and not norm.scale.requires_grad


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
    assert torch.equal(copy.deepcopy(model).get_submodule(LAST[family]).scale, model.get_submodule(LAST[family]).scale)


# gains that are not a parameter as it stands


# family, site, what is added to its weight, and which axis of its input counts tokens
SITES = {
    "gemma": ("gemma", "model.layers.0.input_layernorm", 1, 1),
    "queries of Qwen 3": ("qwen3", "model.layers.0.self_attn.q_norm", 0, 1),
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
    assert len(counted) == x.shape[:-1].numel() * 8 // 9, "which axis counts tokens?"
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


def as_it_is(model):
    return model


def with_nan(model):
    model.transformer.wte.weight.data[int(IDS[0, 3])] = torch.nan
    return model


def with_infinity(model):
    model.transformer.wpe.weight.data[2, 5] = torch.inf
    return model


def with_a_gain_of_nan(model):
    model.transformer.h[0].ln_1.weight.data[3] = torch.nan
    return model


def without_size(model):
    """The last norm sees nothing but zeros, and has no ε."""
    model.transformer.ln_f = nn.Sequential(Zero(), ng.LayerNorm(32, eps=0.0, dtype=torch.float64))
    return model


class Zero(nn.Module):
    def forward(self, x):
        return x * 0


def having_frozen(*names):
    return lambda model: ng.freeze_norms(model, [IDS], names or None)


ONE = "transformer.h.1.ln_1"
REFUSED = {
    "no batch": (as_it_is, [], None, "batches: expected at least one, got none"),
    "batches of one token": (
        as_it_is,
        [IDS[:, :1], IDS[:, 1:2]],
        None,
        r"batches: transformer\.h\.0\.ln_1 saw no vector",
    ),
    "padding alone": (
        as_it_is,
        [dict(input_ids=IDS, attention_mask=torch.zeros_like(IDS))],
        None,
        r"batches: transformer\.h\.0\.ln_1 saw no vector",
    ),
    "an unknown site": (
        as_it_is,
        [IDS],
        [ONE, "transformer.ln_g"],
        "sites: expected norms of this GPT2LMHeadModel, got '",
    ),
    "no norm": (as_it_is, [IDS], [ONE, "lm_head"], "sites: expected norms of this GPT2LMHeadModel, got 'lm_head'"),
    "no name": (as_it_is, [IDS], [3], "sites: expected norms of this GPT2LMHeadModel, got 3"),
    "no site": (as_it_is, [IDS], [], "model: expected one with norms, this GPT2LMHeadModel runs none"),
    "frozen already": (having_frozen(ONE), [IDS], ["transformer.ln_f", ONE], rf"sites: {ONE} is frozen already"),
    "all are frozen": (having_frozen(), [IDS], None, "model: expected one with norms, .* or all are frozen"),
    "NaN": (with_nan, [IDS], None, r"batches: the scales at transformer\.h\.0\.ln_1 add up to nan"),
    "NaN in a gain": (with_a_gain_of_nan, [IDS], None, r"batches: the scales at transformer\.h\.0\.ln_2 add up to nan"),
    "infinity": (with_infinity, [IDS], None, r"batches: the scales at transformer\.h\.0\.ln_1 add up to (nan|inf)"),
    "zeros": (without_size, [IDS], None, r"batches: the scales at transformer\.ln_f\.1 add up to 0"),
}


@pytest.mark.filterwarnings("ignore:seen and not measured:UserWarning")
@pytest.mark.parametrize(("of", "batches", "sites", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_leaves_everything_as_it_was(of, batches, sites, message):
    model = of(uneven("gpt2"))
    before, tensors, modules = logits(model, IDS), copy.deepcopy(model.state_dict()), list(model.modules())
    with pytest.raises(ValueError, match=f"^{message}"):
        ng.freeze_norms(model.train(), batches, sites)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True)), "a module was replaced"
    assert all(module.training for module in modules), "the mode is not as it was"
    assert not any(module._forward_hooks for module in modules), "hooks are left"
    same = dict(rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), **same)
    torch.testing.assert_close(logits(model.eval(), IDS), before, **same)


def test_a_model_without_data_is_refused():
    with torch.device("meta"):
        model = tiny("gpt2")
    with pytest.raises(ValueError, match=r"^model: expected all its parameters on one device .*, got meta"):
        ng.freeze_norms(model, [IDS])


def test_a_model_without_norms_is_refused():
    with pytest.raises(ValueError, match=r"^model: expected one with norms, this Linear runs none"):
        ng.freeze_norms(nn.Linear(8, 8), [torch.randn(2, 5, 8)])


# what is refused elsewhere, and not here


def test_a_site_of_another_model_is_refused():
    site, model = ng.find_norms(uneven("gpt2"))[0], uneven("gpt2")
    with pytest.raises(ValueError, match=r"^sites: .* got 'transformer\.h\.0\.ln_1'"):
        ng.freeze_norms(model, [IDS], [site])


def test_a_norm_that_is_the_model_is_refused():
    with pytest.raises(ValueError):
        ng.freeze_norms(ng.LayerNorm(8), [draw(2, 5, 8, dtype=torch.float32)])


def test_an_encoder_of_torch():
    """Also as torch runs it without gradients, where its fast path reads LayerNorms past the modules."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), draw(2, 5, 8)
    ng.freeze_norms(model, [x])
    with_gradients = model(x).detach()
    with torch.no_grad():
        assert apart(model(x), with_gradients) < 1e-12
