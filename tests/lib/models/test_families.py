"""Random models: every weight drawn, none of them at the value in which a mistake would hide."""

import pytest
import torch
from normgeom.models import families
from normgeom.models.layouts import layout_of
from normgeom.models.stream import components, silenced

IDS = torch.arange(3, 17).reshape(2, 7)
EACH = pytest.mark.parametrize("family", families.FAMILIES)


@EACH
def test_every_parameter_is_drawn(family):
    model = families.random_model(family, 0)
    assert not model.training
    assert model.config.model_type == family
    assert len(model.get_submodule(layout_of(model).blocks)) == 3
    for name, p in model.named_parameters():
        assert p.dtype == torch.float64, f"{name}: float64 is what a bound of 1e-12 needs"
        assert p.unique().numel() == p.numel(), f"{name} holds a constant: zeros of a padding row, a gain of 1?"


@EACH
def test_how_they_are_drawn(family):
    """Over all parameters the mean of n numbers is off by 0.3/√n: five times that is allowed, and a tenth of 0.3."""
    parameters = list(families.random_model(family, 1).parameters())
    for dim, mean in ((1, 1.0), (2, 0.0)):
        drawn = torch.cat([p.detach().flatten() for p in parameters if p.dim() == dim])
        assert abs(float(drawn.mean()) - mean) < 5 * 0.3 / len(drawn) ** 0.5, "Gains around 0, or matrices around 1?"
        assert abs(float(drawn.std()) - 0.3) < 0.03, "Another spread?"


def test_the_seed_decides_and_the_global_state_stays():
    before = torch.random.get_rng_state()
    first, again, other = (families.random_model("gpt2", seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator has moved"
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@EACH
def test_which_blocks_are_parallel(family):
    """Only where attention and MLP follow each other does the MLP read what the attention has written."""
    model = families.random_model(family, 0)
    plain = components(model, IDS)["m2"]
    with silenced(model, "a2"):
        without = components(model, IDS)["m2"]
    unmoved = bool((plain - without).abs().max() < 1e-12)
    assert unmoved == (family in families.PARALLEL)


def test_an_unknown_family():
    with pytest.raises(ValueError, match="family: expected one of gpt2, opt, gpt_neox, gptj, llama, got 'bert'"):
        families.random_model("bert", 0)
