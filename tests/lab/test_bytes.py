"""A small GPT-2 on bytes: what it is, what it has learnt, and what it has not seen."""

import math

import pytest
import torch
from normgeom.training.loop import train
from normgeom.training.twins import Size, twins
from normgeom_lab import reading as on_bytes

SIZE = Size(layers=1, width=16, heads=2, rate=1e-2, steps=12, batch=4, length=8)
TEXT = "abcd" * 30 + "xyz" * 20  # 120 bytes and 60
SMALL = 60


@pytest.fixture(autouse=True)
def _little_held_out(monkeypatch):
    monkeypatch.setattr(on_bytes, "HELD_OUT", SMALL)


def test_the_end_of_the_text_is_held_out(monkeypatch):
    seen = []

    def keep(model, batches, steps, rate):
        seen.extend(ids for ids, _ in zip(batches, range(200), strict=False))
        return [0.0] * steps

    monkeypatch.setattr(on_bytes, "train", keep)
    made = on_bytes.train_on_bytes(SIZE, TEXT, seed=0)
    assert bytes(made.held_out.tolist()).decode() == "xyz" * 20
    shown = set(torch.cat(seen).unique().tolist())
    assert shown == set(b"abcd"), "Bytes that are held out were trained on, or some were never."
    assert seen[0].shape == (4, 8)


def test_it_is_a_twin_trained_as_twins_are():
    made = on_bytes.train_on_bytes(SIZE, TEXT, seed=3)
    reference, _ = twins(SIZE.config(256), 3)
    for a, b in zip(made.untrained.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b), "Another seed, or the trained model twice?"
    bytes_ = torch.tensor(list(TEXT.encode())[:-SMALL])
    generator = torch.Generator().manual_seed(3)
    starts = [torch.randint(len(bytes_) - 7, (4, 1), generator=generator) for _ in range(12)]
    losses = train(reference, (bytes_[s + torch.arange(8)] for s in starts), 12, 1e-2, description=None)
    assert made.losses == pytest.approx(losses, rel=1e-4), "Other batches, another rate or another number of updates?"
    assert not made.model.training and not made.untrained.training


def test_it_learns():
    made = on_bytes.train_on_bytes(SIZE, TEXT, seed=0)
    assert len(made.losses) == 12
    assert made.losses[0] == pytest.approx(math.log(256), rel=0.05), "Untrained, all bytes are equally likely."
    assert made.losses[-1] < made.losses[0] - 0.3
