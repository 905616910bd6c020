"""find_norms on a tiny model of each family, against what the architectures are known to be."""

import normgeom as ng
import pytest
import torch
from norm_checks import close
from tiny_models import FAMILIES, randomise_norms, tiny

# family: kind, ε of its default configuration, what the gain is made of
EXPECTED = {
    "gpt2": ("layer", 1e-5, "weight"),
    "gpt_neo": ("layer", 1e-5, "weight"),
    "gpt_neox": ("layer", 1e-5, "weight"),
    "gptj": ("layer", 1e-5, "weight"),
    "opt": ("layer", 1e-5, "weight"),
    "bloom": ("layer", 1e-5, "weight"),
    "phi": ("layer", 1e-5, "weight"),
    "llama": ("rms", 1e-6, "weight"),
    "mistral": ("rms", 1e-6, "weight"),
    "qwen3": ("rms", 1e-6, "weight"),
    "gemma": ("rms", 1e-6, "1 + weight"),
    "gemma2": ("rms", 1e-6, "1 + weight"),
    "olmo": ("layer", 1e-5, "none"),
    "olmo2": ("rms", 1e-5, "weight"),
    "cohere": ("layer", 1e-5, "weight"),
    "nemotron": ("layer", 1e-5, "1 + weight"),
    "t5": ("rms", 1e-6, "weight"),
    "bert": ("layer", 1e-12, "weight"),
    "vit": ("layer", 1e-12, "weight"),
}

# name, size, token axis: in the order in which they run; the models have two blocks (T5: one), width 32, heads of 8
_LLAMA = [
    *(
        (f"model.layers.{i}.{norm}", 32, 1)
        for i in range(2)
        for norm in ("input_layernorm", "post_attention_layernorm")
    ),
    ("model.norm", 32, 1),
]
_GPT = [
    *((f"transformer.h.{i}.{norm}", 32, 1) for i in range(2) for norm in ("ln_1", "ln_2")),
    ("transformer.ln_f", 32, 1),
]
SITES = {
    "gpt2": _GPT,
    "gpt_neo": _GPT,
    "gptj": [("transformer.h.0.ln_1", 32, 1), ("transformer.h.1.ln_1", 32, 1), ("transformer.ln_f", 32, 1)],
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "gemma": _LLAMA,
    "nemotron": _LLAMA,
    "olmo": _LLAMA,
    "cohere": [
        ("model.layers.0.input_layernorm", 32, 1),
        ("model.layers.1.input_layernorm", 32, 1),
        ("model.norm", 32, 1),
    ],
    # the second norm of an OPT block sees the tokens flattened
    "opt": [
        ("model.decoder.layers.0.self_attn_layer_norm", 32, 1),
        ("model.decoder.layers.0.final_layer_norm", 32, None),
        ("model.decoder.layers.1.self_attn_layer_norm", 32, 1),
        ("model.decoder.layers.1.final_layer_norm", 32, None),
        ("model.decoder.final_layer_norm", 32, 1),
    ],
    # queries and keys are normalised head by head, (batch, token, head, 8)
    "qwen3": [
        *(
            (f"model.layers.{i}.{norm}", size, 1)
            for i in range(2)
            for norm, size in (
                ("input_layernorm", 32),
                ("self_attn.q_norm", 8),
                ("self_attn.k_norm", 8),
                ("post_attention_layernorm", 32),
            )
        ),
        ("model.norm", 32, 1),
    ],
    # queries and keys over all heads at once (4 and 2 heads of 8); no norm before attention
    "olmo2": [
        *(
            (f"model.layers.{i}.{norm}", size, 1)
            for i in range(2)
            for norm, size in (
                ("self_attn.q_norm", 32),
                ("self_attn.k_norm", 16),
                ("post_attention_layernorm", 32),
                ("post_feedforward_layernorm", 32),
            )
        ),
        ("model.norm", 32, 1),
    ],
    "t5": [
        ("encoder.block.0.layer.0.layer_norm", 32, 1),
        ("encoder.block.0.layer.1.layer_norm", 32, 1),
        ("encoder.final_layer_norm", 32, 1),
        ("decoder.block.0.layer.0.layer_norm", 32, 1),
        ("decoder.block.0.layer.1.layer_norm", 32, 1),
        ("decoder.block.0.layer.2.layer_norm", 32, 1),
        ("decoder.final_layer_norm", 32, 1),
    ],
    "bert": [
        ("embeddings.LayerNorm", 32, 1),
        ("encoder.layer.0.attention.output.LayerNorm", 32, 1),
        ("encoder.layer.0.output.LayerNorm", 32, 1),
        ("encoder.layer.1.attention.output.LayerNorm", 32, 1),
        ("encoder.layer.1.output.LayerNorm", 32, 1),
    ],
}
# how many norms run in the others
COUNTS = {"gpt_neox": 5, "bloom": 6, "phi": 3, "gemma2": 9, "vit": 5}

# the setting of ε in the configuration, by which it is moved away from its default
EPS_SETTINGS = {
    "layer_norm_epsilon": ("gpt2", "gpt_neo", "gptj", "bloom", "t5"),
    "layer_norm_eps": ("gpt_neox", "phi", "cohere", "bert", "vit"),
    "rms_norm_eps": ("llama", "mistral", "qwen3", "gemma", "gemma2", "olmo2"),
    "norm_eps": ("nemotron",),
}


def test_every_family_is_described():
    assert set(EXPECTED) == set(FAMILIES) == set(SITES) | set(COUNTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_kind_and_epsilon(family):
    kind, eps, _ = EXPECTED[family]
    sites = ng.find_norms(tiny(family))
    assert {site.kind for site in sites} == {kind}, f"{family}: {[(s.name, s.kind) for s in sites]}"
    assert {site.eps for site in sites} == {eps}, f"{family}: {[(s.name, s.eps) for s in sites]}"
    assert len(sites) == COUNTS.get(family, len(SITES.get(family, ())))


@pytest.mark.parametrize("family", SITES)
def test_names_sizes_and_token_axes(family):
    sites = ng.find_norms(tiny(family))
    assert [(site.name, site.dim, site.token_axis) for site in sites] == SITES[family]


def test_positions_behind_the_heads():
    """Phi's optional norms of queries and keys see (batch, head, token, 8)."""
    axes = {site.name: site.token_axis for site in ng.find_norms(tiny("phi", qk_layernorm=True))}
    for name, axis in axes.items():
        assert axis == (2 if ".self_attn." in name else 1), f"{name}: axis {axis}. Heads taken for positions?"
    assert sum(".self_attn." in name for name in axes) == 4


@pytest.mark.parametrize(("setting", "family"), [(s, f) for s, families in EPS_SETTINGS.items() for f in families])
def test_epsilon_of_the_configuration(setting, family):
    assert {site.eps for site in ng.find_norms(tiny(family, **{setting: 3e-4}))} == {3e-4}


@pytest.mark.parametrize("family", FAMILIES)
def test_gains_and_shifts_as_they_act(family):
    model, made_of = tiny(family), EXPECTED[family][2]
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    sites = ng.find_norms(model)
    assert len(sites) == COUNTS.get(family, len(SITES.get(family, ()))), "a random gain hides a norm"
    for site in sites:
        weight = getattr(site.module, "weight", None)
        expected = {"weight": weight, "1 + weight": 1 + weight if weight is not None else None}.get(made_of)
        expected = torch.ones(site.dim) if expected is None else expected
        bias = getattr(site.module, "bias", None)
        close(site.weight, expected, 1e-4, f"{site.name}: gain", f"The gain of {family} is {made_of}.")
        close(site.bias, torch.zeros(site.dim) if bias is None else bias, 1e-4, f"{site.name}: shift", "β as it acts?")


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma", "nemotron", "olmo", "t5"])
def test_a_site_predicts_its_module(family):
    """Kind, gain, shift and ε together say what the module does, small rows included."""
    model = tiny(family)
    randomise_norms(model, [site.module for site in ng.find_norms(model)])
    generator = torch.Generator().manual_seed(5)
    for site in ng.find_norms(model):
        norm = ng.layer_norm if site.kind == "layer" else ng.rms_norm
        for scale in (1e-3, 1.0, 30.0):
            x = scale * torch.randn(2, 3, site.dim, generator=generator)
            got = norm(x, site.weight, site.bias, site.eps)
            close(got, site.module(x), 1e-3, f"{site.name} at scale {scale}", "ε, gain or kind read wrongly?")
