"""Small GPT-2s by their sizes."""

import normgeom as ng
import pytest
from normgeom.models.gpt2 import gpt2
from torch import nn


def test_the_sizes_are_those_asked_for():
    model, _ = ng.twins(gpt2(vocabulary=64, length=16, width=12, layers=2, heads=3), 3)
    assert model.transformer.wte.weight.shape == (64, 12) and model.transformer.wpe.weight.shape == (16, 12)
    assert len(model.transformer.h) == 2 and model.transformer.h[0].attn.num_heads == 3
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}, "dropout"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(layers=0), "^layers: expected at least 1, got 0$"),
        (dict(vocabulary=-1), "^vocabulary: expected at least 1, got -1$"),
        (dict(heads=5), "^heads: expected a divisor of the width 12, got 5$"),
    ],
)
def test_sizes_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        gpt2(**{**dict(vocabulary=64, length=16, width=12, layers=2, heads=3), **change})
