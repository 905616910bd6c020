"""Norms taken out one at a time: in order, each frozen once, with the updates that were asked for between them."""

import copy
import itertools

import normgeom as ng
import pytest
import torch
from normgeom.models.gpt2 import gpt2
from normgeom.surgery.ablation import ReducedNorm
from normgeom.text.tokens import random_windows, windows
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import variants
from normgeom_lab.designs import removal_order, remove_norms

TEXT = torch.randint(16, (600,), generator=torch.Generator().manual_seed(0)).cumsum(0) % 16


@pytest.fixture
def model():
    return variants(gpt2(16, 12, 16, 2, 2), 0, ("layer",))["layer"]


@pytest.fixture
def held_out():
    return list(windows(TEXT[-120:], 12, 4))


def batches(seed=1):
    return random_windows(TEXT[:-120], 12, 4, seed)


def test_the_order_is_mlps_attention_and_the_last(model):
    names = [name.removeprefix("transformer.") for name in removal_order(model, next(batches()))]
    assert names == ["h.0.ln_2", "h.1.ln_2", "h.0.ln_1", "h.1.ln_1", "ln_f"]


def test_norms_go_one_by_one_and_the_losses_are_those_of_the_moment(model, held_out):
    before, order = copy.deepcopy(model), removal_order(model, next(batches()))
    table = remove_norms(model, batches(), held_out, ng.freeze_norms, 1e-3, gap=2, settle=3, order=order)
    assert table.site.tolist() == ["", *order, ""] and table.frozen.tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert table.updates.tolist() == [0, 0, 2, 4, 6, 8, 13], "another number of updates"
    assert table.loss[0] == held_out_loss(before, held_out)
    ng.freeze_norms(before, [next(batches())], [order[0]])
    assert table.loss[1] == held_out_loss(before, held_out), "measured after training, or frozen on another batch"
    assert table.loss.iloc[-1] == held_out_loss(model, held_out) and not model.training
    assert sum(isinstance(part, ReducedNorm) for part in model.modules()) == 5
    assert ng.find_norms(model, held_out[0]) == []


def test_without_an_order_it_is_plain_training(model, held_out):
    other = copy.deepcopy(model)
    table = remove_norms(model, batches(), held_out, ng.freeze_norms, 1e-3, gap=1, settle=4)
    assert table.updates.tolist() == [0, 4] and table.frozen.tolist() == [0, 0]
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    other.train()
    for ids in itertools.islice(batches(), 4):
        optimizer.zero_grad()
        other(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
    assert table.loss.iloc[-1] == pytest.approx(held_out_loss(other.eval(), held_out), rel=1e-5)


def test_gains_of_what_is_frozen_go_on_learning(model, held_out):
    (name,) = ["transformer.ln_f"]
    remove_norms(model, batches(), held_out, ng.freeze_norms, 1e-2, gap=3, settle=1, order=[name])
    frozen = model.get_submodule(name)
    assert not torch.equal(frozen.weight, torch.ones(16)), "the optimizer has lost the parameter"


@pytest.mark.parametrize("argument", ["gap", "settle"])
def test_no_updates_are_refused(model, held_out, argument):
    with pytest.raises(ValueError, match=f"{argument}: expected at least 1, got 0"):
        remove_norms(model, batches(), held_out, ng.freeze_norms, 1e-3, **{"gap": 1, "settle": 1, argument: 0})
