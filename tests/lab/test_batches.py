"""Figures of batch statistics: the cells that share them, and the numbers that were given."""

import numpy as np
import pytest
import torch
from normgeom_lab.batches import gaps_by_size, one_far_out


def test_gaps_are_drawn_over_their_sizes():
    figure, alt = gaps_by_size({2: 0.93, 256: 0.08, 8: 0.44, 32: 0.2})
    batch, _ = figure.axes[0].lines
    assert np.stack(batch.get_data(), -1).tolist() == [[2, 0.93], [8, 0.44], [32, 0.2], [256, 0.08]]
    assert "0.93 at 2, 0.44 at 8, 0.08 at 256" in alt


def test_the_first_example_is_marked_and_the_others_are_strokes():
    before = torch.tensor([[-9.0, 5], [0, 5], [2, 5], [1, 5]])
    batch = torch.tensor([[-1.5, 0], [0.4, 0], [0.6, 0], [0.5, 0]])
    layer = torch.tensor([[0.25, 0], [-1, 0], [1, 0], [0, 0]])
    figure, alt = one_far_out(before, batch, layer)
    (axis,) = figure.axes
    others = [line.get_xdata()[::3].tolist() for line in axis.lines if line.get_label() == "others"]
    assert others == [pytest.approx(x[1:, 0].tolist()) for x in (before, batch, layer)], "the first among the others?"
    first = [line for line in axis.lines if line.get_label() == "first"]
    assert [line.get_marker() for line in first] == ["<", "D", "D"], "off the figure: an arrow to its own side"
    texts = [text.get_text() for text in axis.texts]
    for name, deviation in (("before", "0.82"), ("batch norm", "0.08"), ("layer norm", "0.82")):
        shown = f"{name}: others' standard deviation {deviation}"
        assert shown in texts, "the first counted among the others, or d - 1?"
    assert "batch norm: the first is at -1.50, and the others have standard deviation 0.08" in alt
    assert "of 4 examples" in alt
