"""twins: the norm is the only difference."""

import random

import normgeom as ng
import numpy as np
import pytest
import torch
from normgeom.models.twins import twin
from tiny_models import LAYER_NORMS, TWO_BLOCKS, logits, token_ids


def test_twins_by_one():
    both = ng.twins(TWO_BLOCKS, 3)
    assert [model.config.norm for model in both] == ["layer", "rms"] and not hasattr(TWO_BLOCKS, "norm")
    for model, norm in zip(both, ("layer", "rms"), strict=True):
        assert torch.equal(logits(model, token_ids(1, 8)), logits(twin(TWO_BLOCKS, 3, norm), token_ids(1, 8)))
    assert not torch.equal(logits(twin(TWO_BLOCKS, 4, "rms"), token_ids(1, 8)), logits(model, token_ids(1, 8)))


def test_the_norm_is_the_only_difference():
    reference, model = ng.twins(TWO_BLOCKS, 3)
    mine, theirs = model.state_dict(), reference.state_dict()
    assert set(mine) == set(theirs) - {f"{name}.bias" for name in LAYER_NORMS}
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), f"{name} differs"
    types = {name: type(module) for name, module in reference.named_modules()}
    for name, module in model.named_modules():
        assert name in LAYER_NORMS or type(module) is types[name], f"{name} is a {type(module).__name__}"
    assert model.lm_head.weight is model.transformer.wte.weight, "the head is not tied any more"
    for network, kind in ((reference, "layer"), (model, "rms")):
        assert not any(module.training for module in network.modules()), "evaluation mode everywhere"
        assert {(p.dtype, p.device.type) for p in network.parameters()} == {(torch.float32, "cpu")}
        sites = ng.find_norms(network)
        assert {site.name for site in sites} == LAYER_NORMS and {site.kind for site in sites} == {kind}
        assert all(site.eps == pytest.approx(3e-3) for site in sites), "ε is the default?"
    memory = {p.data_ptr() for p in reference.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert not memory, "training one would train the other"


def test_global_state_is_untouched_and_plays_no_part():
    expected = ng.twins(TWO_BLOCKS, 3)[0].state_dict()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    torch.set_default_dtype(torch.float64)
    try:
        got = ng.twins(TWO_BLOCKS, 3)[0].state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's generator moved"
    assert random.getstate() == before[1] and np.array_equal(np.random.get_state()[1], before[2])
    assert all(torch.equal(value, got[name]) for name, value in expected.items()), "drawn in the default dtype?"
