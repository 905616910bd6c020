"""Reading norms before and after training: the same model, trained as elsewhere, read as elsewhere."""

import pandas as pd
import pytest
import torch
from normgeom.text.tokens import random_windows
from normgeom.training.loop import train
from normgeom.training.twins import Size, twins
from normgeom_lab.irreversibility import read_before_and_after, read_norms

SIZE = Size(layers=1, width=16, heads=2, rate=1e-2, steps=12, batch=3, length=8)
TEXT = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
HELD_OUT = list(torch.randint(0, 50, (8, 8), generator=torch.Generator().manual_seed(1)).split(4))


def test_it_is_the_twin_trained_on_windows_of_its_seed():
    got = read_before_and_after(SIZE, 3, TEXT, HELD_OUT, 50)
    model, _ = twins(SIZE.config(50), 3)
    before = read_norms(model, HELD_OUT)
    losses = train(model, random_windows(TEXT, 8, 3, 3), 12, 1e-2, None)
    after = read_norms(model, HELD_OUT)
    assert got.index.names == ["updates", "norm"]
    columns = ["mean", "log σ", "spread"]
    for updates, expected in ((0, before), (12, after)):
        rows = got.loc[updates, columns]
        pd.testing.assert_frame_equal(rows, expected, check_names=False, obj=f"after {updates} updates")
    assert got.loc[0].loss.isna().all(), "a loss before training"
    assert got.loc[12].loss.tolist() == pytest.approx([sum(losses[-10:]) / 10] * 3), "the last ten, not all"
    assert (before["log σ"] - after["log σ"]).abs().max() > 1e-3, "nothing was trained"


def test_fewer_than_ten_updates_are_averaged_over_what_there_is():
    short = Size(layers=1, width=16, heads=2, rate=1e-2, steps=2, batch=3, length=8)
    got = read_before_and_after(short, 0, TEXT, HELD_OUT, 50)
    model, _ = twins(short.config(50), 0)
    losses = train(model, random_windows(TEXT, 8, 3, 0), 2, 1e-2, None)
    assert got.loc[2].loss.iloc[0] == pytest.approx(sum(losses) / 2)
