"""find_norms on tiny models: of each family, against what its source says, and however a model is run."""

import normgeom as ng
import pytest
import torch
from family_norms import EXPECTED
from norm_checks import close, draw
from tiny_models import FAMILIES, VOCABULARY, each_family, randomise_norms, tiny, token_ids
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:seen and not measured")
IDS = token_ids(2, 7)
DECODED = {"input_ids": IDS, "decoder_input_ids": token_ids(2, 7, seed=1)}
INPUTS = {
    **{family: {"pixel_values": draw(2, 3, 8, 8, dtype=torch.float32)} for family in ("vit", "dinov2", "swin")},
    "convnextv2": {"pixel_values": draw(2, 3, 16, 16, dtype=torch.float32)},
    "whisper": dict(input_features=draw(2, 8, 18, dtype=torch.float32), decoder_input_ids=IDS),
    "wav2vec2": dict(input_values=draw(2, 400, dtype=torch.float32)),
}
EPS = {"gpt2": "layer_norm_epsilon", "cohere_qk": "layer_norm_eps", "gemma3": "rms_norm_eps", "phimoe": "rms_norm_eps"}


def test_every_family_is_described():
    assert set(EXPECTED) == set(FAMILIES)
    assert all(len({norm.name for norm in norms}) == len(norms) for norms in EXPECTED.values())


@each_family
def test_every_norm_is_found_as_it_acts(family):
    """Kind, gain, bias and ε are those of the source, and predict what the module does with what the model feeds it."""
    model, names = tiny(family), [norm.name for norm in EXPECTED[family]]
    randomise_norms(model, [model.get_submodule(name) for name in names])
    sites = ng.find_norms(model, INPUTS[family] if family in ("whisper", "wav2vec2") else None)
    got = [site.name for site in sites]
    assert set(got) == set(names), f"missed: {set(names) - set(got)}; taken for norms: {set(got) - set(names)}"
    assert got == names, "in the order of the modules, not of the forward pass?"
    for site, norm in zip(sites, EXPECTED[family], strict=True):
        module = model.get_submodule(norm.name)
        assert site.module is module
        assert (site.kind, site.dim, site.eps) == (norm.kind, norm.dim, norm.eps), f"{norm.name}: judged by its name?"
        assert site.token_axis == norm.axis, f"{norm.name}: positions on axis {site.token_axis}. Heads or texts?"
        close(site.weight, norm.gain_of(module), 1e-4, f"{norm.name}: gain", f"It is made as {norm.gain}.")
        close(site.bias, norm.bias_of(module), 1e-4, f"{norm.name}: bias", "That of the first head? None for zeros?")
    seen = set()

    def check(site, x, y):
        seen.add(site.name)
        normalise = ng.layer_norm if site.kind == "layer" else ng.rms_norm
        for factor, output in ((1.0, y), (1e-3, site.module.forward(1e-3 * x))):
            expected = normalise(factor * x, eps=site.eps) * site.weight + site.bias
            close(expected, output, 2e-3, f"{site.name}, input times {factor}", "Gated? ε, gain or kind read wrongly?")

    inputs = INPUTS.get(family) or (DECODED if model.config.is_encoder_decoder else {"input_ids": IDS})
    with torch.no_grad(), ng.watch(model, sites, check):
        model(**inputs)
    assert seen == set(names)


@pytest.mark.parametrize(("family", "setting"), EPS.items())
def test_epsilon_of_the_configuration(family, setting):
    got = {site.eps for site in ng.find_norms(tiny(family, **{setting: 3.125e-4}))}
    assert got == {3.125e-4}, f"{got}: the usual ε of the family, or rounded?"


@pytest.mark.parametrize(("family", "gated"), [("mamba2", "mixer.norm"), ("qwen3_next", "linear_attn.norm")])
def test_gated_norms_are_counted_in_the_warning(family, gated):
    model = tiny(family)
    count = sum(name.endswith(gated) for name, _ in model.named_modules())
    with pytest.warns(UserWarning, match=rf"^seen and not measured: {count} \w+, the first at '.*{gated}'$"):
        assert not any(site.name.endswith(gated) for site in ng.find_norms(model))


def test_examples_of_one_model_agree():
    model, ids = tiny("gpt2"), token_ids(2, 9)
    expected = list(map(repr, ng.find_norms(model)))
    mask = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for example in (ids, mask, {"inputs_embeds": torch.randn(2, 9, 32)}):
        assert list(map(repr, ng.find_norms(model, example))) == expected


def test_another_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        sites = ng.find_norms(tiny("llama").to(torch.bfloat16))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [(s.kind, s.eps, s.weight.dtype) for s in sites] == [("rms", 1e-6, torch.float32)] * 5


def test_the_model_is_left_as_it_was():
    """After an error too; the user's own hook runs in the example's pass and in no probe."""
    model, calls = tiny("gpt2").train(), []
    model.transformer.h[0].eval()
    model.transformer.ln_f.register_forward_hook(lambda *_: calls.append(1))

    def state():
        return {
            name: (len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for name, m in model.named_modules()
        }

    before, random = state(), torch.get_rng_state()
    weights = {name: v.clone() for name, v in model.state_dict().items()}
    ng.find_norms(model)
    assert len(calls) == 1
    with pytest.raises(IndexError):
        ng.find_norms(model, torch.full((1, 4), VOCABULARY))
    assert state() == before, "hooks left behind, or another mode"
    assert all(torch.equal(v, weights[name]) for name, v in model.state_dict().items()), "weights changed"
    assert torch.equal(torch.get_rng_state(), random), "random numbers drawn from the global generator"


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_compiled_model(wrapped):
    """It has run before: what was compiled then knows no hooks."""
    model, ids, seen = tiny("gpt2"), token_ids(2, 5), []
    if wrapped:
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with torch.no_grad():
        model(ids)
        sites = ng.find_norms(model, ids)
        assert len(sites) == 5, "run around its modules?"
        with ng.watch(model, sites, lambda site, *_: seen.append(site.name)):
            model(ids)
    assert len(seen) == 5, "watched around its modules?"


def test_torchs_encoder_in_evaluation():
    """Its fast path runs around its modules."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    assert len(ng.find_norms(model, draw(2, 5, 8, dtype=torch.float32))) == 4
    assert torch.backends.mha.get_fastpath_enabled(), "the setting is left as it was"
