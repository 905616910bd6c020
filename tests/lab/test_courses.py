"""One training: the order of its windows, its tables, and that measuring leaves no trace."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.models.twins import twin
from normgeom_lab.common.loop import train
from normgeom_lab.training import Size, course, measure_stage, reading_order
from torch import nn

SIZE = Size(layers=1, width=16, heads=2, lr=1e-2, steps=8, batch=4, length=16, eval_interval=2)
HELD_OUT = 80
IDS = torch.from_numpy(np.random.default_rng(5).integers(0, 64, 15 * SIZE.length + 3 + HELD_OUT))
WINDOWS = IDS[: 15 * SIZE.length].view(15, SIZE.length)  # an epoch ends within a step
KEPT = list(IDS[-HELD_OUT:].view(5, SIZE.length).split(SIZE.batch))


@pytest.fixture(scope="module", params=["layer", "rms"])
def measured(request):
    """The norm, the trained model and its tables."""
    model = twin(SIZE.config(64), 3, request.param)
    return request.param, model, course(model, IDS, HELD_OUT, SIZE, 3)


def test_each_window_once_an_epoch_in_an_order_of_its_own():
    order = reading_order(40, 15, seed=0).tolist()
    epochs = [order[:15], order[15:30]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(15))] * 2, "a window is left out or read twice"
    assert len({tuple(epoch) for epoch in (*epochs, range(15))}) == 3 and len(set(order[30:])) == len(order[30:]) == 10
    assert order != reading_order(40, 15, seed=1).tolist()
    torch.manual_seed(7)
    np.random.seed(7)
    assert order == reading_order(60, 15, seed=0)[:40].tolist(), "the order is of the seed alone"


@pytest.mark.parametrize("steps", [1, 30, 31, 119])
def test_the_last_step_is_always_a_stage(steps):
    expected = {step for step in (*range(0, 30, 3), 30, 60, 90) if step < steps} | {steps}
    assert replace(SIZE, steps=steps, eval_interval=3).stages == expected


def test_a_course_is_that_of_the_training_loop(measured):
    norm, trained, tables = measured
    by_hand = twin(SIZE.config(64), 3, norm)
    batches = WINDOWS[reading_order(SIZE.steps * SIZE.batch, 15, seed=3)].split(SIZE.batch)
    losses = train(by_hand, batches, SIZE.steps, SIZE.lr, None)
    assert tables["curve"].to_dict("list") == dict(loss=losses, step=list(range(1, 9)))
    assert all(map(torch.equal, trained.parameters(), by_hand.parameters())), "measuring left a trace"
    for step, network in ((0, twin(SIZE.config(64), 3, norm)), (SIZE.steps, by_hand)):
        for name, table in measure_stage(network, KEPT, 3).items():
            assert list(tables[name].step.unique()) == [0, 2, 4, 6, 8], f"{name}: stages are missing or out of order"
            got = tables[name].query("step == @step").drop(columns="step").reset_index(drop=True)
            pd.testing.assert_frame_equal(got, table, check_exact=True, obj=f"{name} after {step} steps")


def test_a_text_that_is_too_short():
    with pytest.raises(ValueError, match=r"^tokens: expected at least one window of 16, got 10"):
        course(twin(SIZE.config(64), 0, "rms"), IDS[: HELD_OUT + 10], HELD_OUT, SIZE, 0)


def test_the_model_of_a_size():
    size = replace(SIZE, layers=3, width=24, length=20)
    model = twin(size.config(50), 0, "rms")
    assert len(model.transformer.h) == 3 and model.transformer.wte.weight.shape == (50, 24)
    assert model.transformer.wpe.weight.shape == (20, 24) and model.transformer.h[0].attn.num_heads == 2
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}, "dropout"
