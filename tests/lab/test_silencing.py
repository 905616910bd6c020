"""Silenced gains: against weights set by hand and losses written out."""

import copy

import normgeom as ng
import pytest
import torch
from norm_checks import rounding
from normgeom_lab.hyperellipsoid import ORDERS, loss_without_gains, silenced, silencing_order
from surgery_models import IDS, Untouched, logits, uneven
from tiny_models import tiny
from torch import nn


def site(name, weight, module=None):
    weight = torch.as_tensor(weight)
    module = module or nn.LayerNorm(weight.shape[-1])
    if isinstance(module, nn.LayerNorm):
        module.weight.data = weight.clone()
    return ng.NormSite(name, module, "layer", weight, torch.zeros_like(weight), 1e-5, weight.shape[-1], 1)


@pytest.fixture
def model():
    return uneven("gpt2")


def test_orders_by_size():
    norms = [site("a", [0.3, -2.0, 0.1, 1.0]), site("b", [4.0, 3.0, -5.0, 1.0])]
    smallest, largest = silencing_order(norms, "smallest"), silencing_order(norms, "largest")
    assert smallest["a"].tolist() == [2, 0, 3, 1], "by size, the sign does not count"
    assert largest["a"].tolist() == [1, 3, 0, 2]
    assert smallest["b"].tolist() == [3, 1, 0, 2] and largest["b"].tolist() == [2, 0, 1, 3]


def test_the_random_order_is_each_norms_own_and_the_seeds():
    norms = [site(name, torch.ones(40)) for name in "ab"]
    first, again, other = (silencing_order(norms, "random", seed) for seed in (0, 0, 1))
    for name in "ab":
        assert sorted(first[name].tolist()) == list(range(40)), "each coordinate once"
        assert torch.equal(first[name], again[name]), "the same seed, another order"
        assert not torch.equal(first[name], other[name]), "the seed does not count"
    assert not torch.equal(first["a"], first["b"]), "one order for all norms"


def test_a_silenced_coordinate_puts_out_its_bias(model):
    norms = ng.find_norms(model)
    x = torch.randn(5, 32, dtype=torch.float64)
    before = [norm.module(x).detach() for norm in norms]
    index = {norm.name: torch.tensor([i, 7]) for i, norm in enumerate(norms)}
    with silenced(norms[1:], index):
        for i, (norm, y) in enumerate(zip(norms, before, strict=True)):
            now = norm.module(x).detach()
            gone = [i, 7] if i else []
            kept = [j for j in range(32) if j not in gone]
            assert torch.equal(now[:, gone], norm.module.bias.detach()[gone].expand(5, -1)), f"{norm.name}: not β"
            assert torch.equal(now[:, kept], y[:, kept]), f"{norm.name}: others changed, or a norm that was not asked"


def test_gains_come_back_to_the_bit(model):
    norms = ng.find_norms(model)
    index = silencing_order(norms, "largest")
    with Untouched(model), silenced(norms, index):
        pass
    assert all(norm.module.weight.requires_grad for norm in norms)


@pytest.mark.parametrize("order", ORDERS)
def test_losses_are_those_of_weights_set_by_hand(model, order):
    counts = (0, 3, 32)
    with Untouched(model):
        found = loss_without_gains(model, IDS, counts, seed=4)
    assert list(found.columns) == list(ORDERS) and list(found.index) == list(counts)
    generator = torch.Generator().manual_seed(4)
    changed = {count: copy.deepcopy(model) for count in counts}
    for norm in ng.find_norms(model):
        drawn = torch.randperm(32, generator=generator)
        gain = norm.module.weight.detach().abs()
        for count, other in changed.items():
            ranked = {"smallest": gain.argsort(), "random": drawn, "largest": gain.argsort(descending=True)}[order]
            other.get_submodule(norm.name).weight.data[ranked[:count]] = 0
    for count, other in changed.items():
        scores = logits(other)[:, :-1]
        expected = -float(scores.log_softmax(-1).gather(-1, IDS[:, 1:, None]).mean())
        bound = rounding(scores, torch.float32)  # transformers takes losses in it
        assert abs(found.loc[count, order] - expected) < bound, "other coordinates, or not of every norm"


def test_dropout_is_off():
    model = tiny("gpt2", resid_pdrop=0.5).train()
    losses = loss_without_gains(model, IDS, (0,))
    assert losses.nunique(axis=1).item() == 1, "with dropout no two losses are alike"
    assert model.training, "the mode is not restored"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "coordinates: expected some for b, got those of"),
        ({"b": torch.tensor([0, 3])}, r"coordinates: expected 0 to 2 for b, got \[0, 3\]"),
        ({"b": torch.tensor([-1])}, r"coordinates: expected 0 to 2 for b, got \[-1\]"),
    ],
)
def test_refusals_of_coordinates_leave_all_as_it_was(index, message):
    norms = [site("a", torch.ones(3)), site("b", torch.ones(3))]
    assert all(bool((norm.module.weight == 1).all()) for norm in norms), "half of the work was done"
