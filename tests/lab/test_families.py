"""Small models of families: of the sizes that are promised, and scattered so that nothing holds by a zero or a one."""

import copy

import pytest
import torch
from normgeom.checks import Draws
from normgeom.models.sites import find_norms
from normgeom_lab.common.parts import components, silenced
from normgeom_lab.common.tiny import PARALLEL, PRE_NORM, SPREAD, random_model, scattered, small_model, varied
from torch import nn

IDS = torch.arange(22).reshape(2, 11)
FAMILIES = ["gpt2", "gpt_neo", "gpt_neox", "gptj", "phi", "opt", "bert", "bloom", "llama", "gemma2"]
pytestmark = pytest.mark.filterwarnings("ignore:.*RoPE")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_runs_in_the_sizes_that_are_promised(family):
    before = torch.random.get_rng_state()
    model = small_model(family)
    assert torch.equal(torch.random.get_rng_state(), before), "the global random state was moved"
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.no_grad():
        assert model(IDS).logits.shape == (2, 11, 64), "another vocabulary"
    wide = [site for site in find_norms(model) if site.dim == 16]
    assert len(wide) in range(3, 10), f"{len(wide)} norms of the stream: another width, or another number of blocks"
    with torch.no_grad():
        earlier = model(IDS[:, :5]).logits
        assert torch.allclose(earlier, model(IDS).logits[:, :5], atol=1e-5), "no causal model: it sees what comes later"


def test_the_seed_is_of_the_weights():
    one, same, other = (small_model("gpt2", seed).lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(one, same), "not by the seed alone"
    assert not torch.equal(one, other), "the seed is not used"


def test_options_reach_the_configuration():
    assert small_model("opt", do_layer_norm_before=False).config.do_layer_norm_before is False
    assert small_model("llama", num_key_value_heads=1).config.num_key_value_heads == 1, "ours overrule the caller's"


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "llama"])
def test_what_is_added_is_drawn_and_only_embeddings_move(family):
    model = small_model(family)
    before = {name: parameter.detach().double() for name, parameter in copy.deepcopy(model).named_parameters()}
    assert scattered(model, Draws(5), offset=7.0) is model
    draw = Draws(5)
    embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    assert embeddings, "the test could not tell"
    for name, parameter in model.named_parameters():
        wanted = before[name] + SPREAD * draw(*parameter.shape)
        wanted += 7.0 if name.removesuffix(".weight") in embeddings else 0.0
        assert parameter.dtype == torch.float64, f"{name} was not made float64"
        assert torch.allclose(parameter.detach(), wanted, rtol=0, atol=1e-12), (
            f"{name}: other draws, or the offset is on what is no embedding, or not on all embeddings"
        )


def test_scattering_leaves_a_model_that_can_be_trained():
    model = scattered(small_model("gpt2"), Draws(0))
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in model.parameters())
    assert model.lm_head.weight is model.transformer.wte.weight, "the tie was cut"


@pytest.mark.parametrize("family", PRE_NORM)
def test_every_parameter_of_a_random_model_is_drawn(family):
    model = random_model(family, 0)
    for name, p in model.named_parameters():
        assert p.unique().numel() == p.numel(), f"{name} holds a constant: zeros of a padding row, a gain of 1?"
    other = random_model(family, 1)
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("family", PRE_NORM)
def test_which_blocks_are_parallel(family):
    """Only where attention and MLP follow each other does the MLP read what the attention has written."""
    model = random_model(family, 0)
    plain = components(model, IDS)["m2"]
    with silenced(model, "a2"):
        without = components(model, IDS)["m2"]
    assert bool((plain - without).abs().max() < 1e-12) == (family in PARALLEL)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "gpt_neox", "gptj", "phi", "opt", "bloom", "bert", "llama"])
def test_models_of_several_sizes_and_constants(family):
    """Which are read off by running the norms: each has its own ε."""
    models = varied(family, Draws(2))
    assert [(m.config.hidden_size, m.config.num_hidden_layers) for m in models] == [(16, 2), (32, 1), (48, 3)]
    for model in models:
        assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    found = [site.eps for model in models for site in find_norms(model)]
    assert len(set(found)) == len(found) > 6, "an ε that is shared, or left as it was"
    assert all(1e-8 < eps < 0.1 for eps in found)


def test_their_embeddings_lie_far_out():
    for near, far in zip(varied("gpt2", Draws(2)), varied("gpt2", Draws(2), offset=3.0), strict=True):
        moved = (far.get_input_embeddings().weight - near.get_input_embeddings().weight).detach()
        assert float((moved - 3).abs().max()) < 1e-12
