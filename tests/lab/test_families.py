"""Tiny models: of the sizes that are promised, drawn so that nothing holds by a zero or a one; and divergences."""

import copy

import mpmath
import pytest
import torch
from norm_checks import draw
from normgeom.models.sites import find_norms
from normgeom.models.watch import hooked
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.parts import components
from normgeom_lab.common.stream import writers
from normgeom_lab.common.tiny import (
    PARALLEL,
    PRE_NORM,
    divergence,
    perturb,
    random_model,
    scattered,
    small_model,
    varied,
)
from torch import nn
from transformers import GPT2LMHeadModel

IDS = torch.arange(22).reshape(2, 11)
pytestmark = pytest.mark.filterwarnings("ignore:.*RoPE")


def test_small_models_are_those_of_transformers():
    before = torch.get_rng_state()
    model = small_model("gpt2", 3)
    assert torch.equal(torch.get_rng_state(), before), "the global generator moved"
    torch.manual_seed(3)
    for p, q in zip(model.parameters(), GPT2LMHeadModel(model.config).parameters(), strict=True):
        assert torch.equal(p, q), "other weights than the seed gives"
    assert not model.training
    assert small_model("llama", num_key_value_heads=1).config.num_key_value_heads == 1, "ours overrule the caller's"


@pytest.mark.parametrize(
    "family", ["gpt2", "gpt_neo", "gpt_neox", "gptj", "phi", "opt", "bert", "bloom", "llama", "gemma2"]
)
def test_a_family_runs_in_the_sizes_that_are_promised(family):
    model = small_model(family)
    with torch.no_grad():
        logits, earlier = model(IDS).logits, model(IDS[:, :5]).logits
    assert logits.shape == (2, 11, 64), "another vocabulary"
    assert torch.allclose(earlier, logits[:, :5], atol=1e-5), "no causal model: it sees what comes later"
    wide = [site for site in find_norms(model) if site.dim == 16]
    assert len(wide) in range(3, 10), f"{len(wide)} norms of the stream: another width, or another number of blocks"


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_noise_is_drawn_and_only_embeddings_are_offset(family):
    model = small_model(family)
    before = {name: p.detach().double() for name, p in copy.deepcopy(model).named_parameters()}
    embeddings = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    single = perturb(copy.deepcopy(model), Draws(5), 0.1)
    assert scattered(model, Draws(5), offset=7.0) is model
    drawn, smaller = Draws(5), Draws(5)
    for (name, p), q in zip(model.named_parameters(), single.parameters(), strict=True):
        wanted = before[name] + 0.3 * drawn(*p.shape) + 7.0 * (name in embeddings)
        assert p.dtype == torch.float64 and q.dtype == torch.float32
        assert torch.allclose(p.detach(), wanted, rtol=0, atol=1e-12), f"{name}: other draws, or another offset"
        assert torch.allclose(q.detach().double(), before[name] + 0.1 * smaller(*q.shape), atol=1e-6), name
    tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied, "the tie was cut, or one made"


@pytest.mark.parametrize("family", PRE_NORM)
def test_random_models_and_which_of_them_are_parallel(family):
    """Only where attention and MLP follow each other does the MLP read what the attention has written."""
    model = random_model(family, 0)
    for name, p in model.named_parameters():
        assert p.unique().numel() == p.numel(), f"{name} holds a constant: zeros of a padding row, a gain of 1?"
    plain = components(model, IDS)["m2"]
    with hooked(after=[(writers(model)["a2"], lambda _module, _args, _kwargs, output: torch.zeros_like(output))]):
        without = components(model, IDS)["m2"]
    assert bool((plain - without).abs().max() < 1e-12) == (family in PARALLEL)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "gpt_neox", "gptj", "phi", "opt", "bloom", "bert", "llama"])
def test_models_of_several_sizes_and_constants(family):
    """Each norm has its own ε, read off by running it."""
    models = varied(family, Draws(2))
    assert [(m.config.hidden_size, m.config.num_hidden_layers) for m in models] == [(16, 2), (32, 1), (48, 3)]
    found = [site.eps for model in models for site in find_norms(model)]
    assert len(set(found)) == len(found) > 6, "an ε that is shared, or left as it was"
    assert all(1e-8 < eps < 0.1 for eps in found)


# divergence


def test_divergence_is_torchs_and_not_the_other_way_round():
    z, others = 3 * draw(4, 5, 9), draw(4, 5, 9, seed=1)
    p, q = (torch.distributions.Categorical(logits=v) for v in (z, others))
    torch.testing.assert_close(divergence(z, others), torch.distributions.kl_divergence(p, q), rtol=1e-12, atol=0)
    assert not torch.allclose(divergence(z, others), divergence(others, z), rtol=1e-3)
    assert divergence(z, z + 7).max() < 1e-13, "a number added to all logits changes nothing"


def test_a_divergence_of_second_order_is_not_lost_in_terms_of_first():
    z, near = draw(8), draw(8) + 1e-9 * draw(8, seed=1)
    with mpmath.workdps(50):
        p, q = ([mpmath.exp(mpmath.mpf(x)) for x in row.tolist()] for row in (z, near))
        p, q = ([x / sum(values) for x in values] for values in (p, q))
        exact = float(sum(x * mpmath.log(x / y) for x, y in zip(p, q, strict=True)))
    assert 1e-20 < exact < 1e-17
    assert float(divergence(z, near)) == pytest.approx(exact, rel=1e-5, abs=0), "terms of 1e-9, which should cancel"


def test_a_divergence_of_what_the_other_rules_out_is_finite():
    z = torch.tensor([0.0, 2000.0])
    assert float(divergence(z, z.flip(0))) == pytest.approx(2000.0), "an infinity times nothing"
