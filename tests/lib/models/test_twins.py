"""twins: the norm is the only difference."""

import random

import normgeom as ng
import numpy as np
import torch
from normgeom.models.twins import twin
from tiny_models import TWO_BLOCKS, logits, only_the_norms_differ, token_ids


def test_twins_by_one():
    both = ng.twins(TWO_BLOCKS, 3)
    assert [model.config.norm for model in both] == ["layer", "rms"] and not hasattr(TWO_BLOCKS, "norm")
    for model, norm in zip(both, ("layer", "rms"), strict=True):
        assert torch.equal(logits(model, token_ids(1, 8)), logits(twin(TWO_BLOCKS, 3, norm), token_ids(1, 8)))
    assert not torch.equal(logits(twin(TWO_BLOCKS, 4, "rms"), token_ids(1, 8)), logits(model, token_ids(1, 8)))


def test_the_norm_is_the_only_difference():
    reference, model = ng.twins(TWO_BLOCKS, 3)
    only_the_norms_differ(reference, reference, ("weight", "bias"), "layer")
    only_the_norms_differ(model, reference, ("weight",), "rms")
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
