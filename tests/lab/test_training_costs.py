"""What training asks for: parameters counted on models that are made, work added up by hand."""

import pytest
from normgeom.training.twins import SIZES, Size, variants
from normgeom_lab.training import training_cost
from torch import nn


@pytest.mark.parametrize("length", [16, 1024])
def test_parameters_and_state_are_those_of_the_model(length):
    size = Size(layers=3, width=24, heads=2, rate=1e-3, steps=7, batch=5, length=length)
    model = variants(size.config(50257 if length == 1024 else 256), 0, ("layer",))["layer"]
    every = sum(p.numel() for p in model.parameters())
    found = training_cost(size)
    assert found["parameters / 10⁶"] == pytest.approx(every / 1e6), "embeddings count, the tied head once"
    assert found["state / GB"] == pytest.approx(16 * every / 1e9), "four numbers of four bytes"
    assert found["tokens / 10⁹"] == pytest.approx(7 * 5 * length / 1e9)
    assert (found["blocks"], found["d"]) == (3, 24)


def test_the_hours_are_those_of_products_counted_one_by_one():
    size = Size(layers=2, width=8, heads=2, rate=1e-3, steps=3, batch=4, length=16)
    model = variants(size.config(256), 0, ("rms",))["rms"]
    forward = 2 * 256 * 8  # the head
    for block in model.transformer.h:
        for part in block.modules():
            if not isinstance(part, nn.ModuleList) and getattr(part, "nf", None):  # a linear map of GPT-2
                forward += 2 * part.weight.numel()
        forward += 2 * 8 * 16  # queries times keys and attention times values: half of 16 positions each, on average
    hours = 3 * 3 * 4 * 16 * forward / 200e12 / 3600  # forward, and twice that backward
    assert training_cost(size)["time / hours"] == pytest.approx(hours)


def test_the_largest_takes_days_and_the_smallest_nothing():
    costs = {name: training_cost(size) for name, size in SIZES.items()}
    assert 20 < costs["1B"]["time / hours"] < 30 and costs["0.2M"]["time / hours"] < 1e-4
    assert costs["1B"]["parameters / 10⁶"] == pytest.approx(910, abs=1)
