"""Norms taken out one at a time: in order, each frozen once, with the steps that were asked for between them."""

import copy
import itertools

import normgeom as ng
import pytest
import torch
from normgeom.surgery.ablation import ReducedNorm
from normgeom.text.tokens import random_windows, windows
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import gpt2, twin

TEXT = torch.randint(16, (600,), generator=torch.Generator().manual_seed(0)).cumsum(0) % 16
HELD_OUT = list(windows(TEXT[-120:], 12, 4))


@pytest.fixture
def model():
    return twin(gpt2(16, 12, 16, 2, 2), 0, "layer")


def batches():
    return random_windows(TEXT[:-120], 12, 4, 1)


def test_norms_go_one_by_one_and_the_losses_are_those_of_the_moment(model):
    from experiments.removal import removal_order, remove_norms

    before, order = copy.deepcopy(model), removal_order(model, next(batches()))
    names = [name.removeprefix("transformer.") for name in order]
    assert names == ["h.0.ln_2", "h.1.ln_2", "h.0.ln_1", "h.1.ln_1", "ln_f"], "MLPs, attention, the last"
    table = remove_norms(model, batches(), HELD_OUT, 1e-2, gap=2, settle=3, order=order)
    assert table.site.tolist() == ["", *order, ""] and table.frozen.tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert table.updates.tolist() == [0, 0, 2, 4, 6, 8, 13], "another number of steps"
    assert table.loss[0] == held_out_loss(before, HELD_OUT)
    ng.freeze_norms(before, [next(batches())], [order[0]])
    assert table.loss[1] == held_out_loss(before, HELD_OUT), "measured after training, or frozen on another batch"
    assert table.loss.iloc[-1] == held_out_loss(model, HELD_OUT) and not model.training
    frozen = [part for part in model.modules() if isinstance(part, ReducedNorm)]
    assert len(frozen) == 5 and ng.find_norms(model, HELD_OUT[0]) == []
    assert all((part.weight != 1).any() for part in frozen), "the optimizer has lost the parameter"


def test_without_an_order_it_is_plain_training(model):
    from experiments.removal import remove_norms

    other = copy.deepcopy(model)
    table = remove_norms(model, batches(), HELD_OUT, 1e-3, gap=1, settle=4)
    assert table.updates.tolist() == [0, 4] and table.frozen.tolist() == [0, 0]
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    other.train()
    for ids in itertools.islice(batches(), 4):
        optimizer.zero_grad()
        other(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
    assert table.loss.iloc[-1] == pytest.approx(held_out_loss(other.eval(), HELD_OUT), rel=1e-5)
