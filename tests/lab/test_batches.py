"""Pictures of statistics over a batch: the cells that share them, and the gaps that were given."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from normgeom_lab.batches import doubled_weights, gaps_by_size, one_far_out, shared_statistics


def test_batch_norm_shades_a_column_and_layer_norm_a_row():
    figure, alt = shared_statistics()
    axes = {axis.get_title(): axis for axis in figure.axes}
    shades = {title: np.asarray(axis.collections[0].get_array()).reshape(5, 8) for title, axis in axes.items()}
    column, row = np.zeros((5, 8)), np.zeros((5, 8))
    column[:, 2], row[1, :] = 1, 1
    assert np.array_equal(shades["batch norm"], column), (
        "batch norm: one feature of all examples. Row and column swapped?"
    )
    assert np.array_equal(shades["layer norm"], row), "layer norm: all features of one example. Row and column swapped?"
    for axis in axes.values():
        low, high = axis.get_ylim()
        assert low > high, "the first example is not on top: which row is meant by 'the second' has changed"
        assert axis.get_xlabel() == "features"
    assert "third feature" in alt and "second example" in alt


GAPS = {2: 0.93, 256: 0.08, 8: 0.44, 32: 0.2}


def test_gaps_are_drawn_over_their_sizes_and_layer_norm_at_zero():
    figure, alt = gaps_by_size(GAPS)
    (axis,) = figure.axes
    lines = {line.get_label(): np.stack(line.get_data(), -1) for line in axis.lines}
    assert lines["batch norm"].tolist() == [[2, 0.93], [8, 0.44], [32, 0.2], [256, 0.08]], (
        "not in order of their sizes?"
    )
    assert lines["layer norm"].tolist() == [[2, 0], [8, 0], [32, 0], [256, 0]]
    assert axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2", "8", "32", "256"]
    assert "0.93 at 2, 0.44 at 8, 0.08 at 256" in alt


def test_one_gap_is_named_once():
    _, alt = gaps_by_size({4: 0.5})
    assert alt.count("0.50 at 4") == 1


BEFORE = torch.tensor([[-9.0, 5], [0, 5], [2, 5], [1, 5]])
BATCH = torch.tensor([[-1.5, 0], [0.4, 0], [0.6, 0], [0.5, 0]])
LAYER = torch.tensor([[0.25, 0], [-1, 0], [1, 0], [0, 0]])


def test_the_first_example_is_marked_and_the_others_are_strokes():
    figure, alt = one_far_out(BEFORE, BATCH, LAYER)
    (axis,) = figure.axes
    others = [line.get_xdata()[::3].tolist() for line in axis.lines if line.get_label() == "others"]
    assert others == [pytest.approx(x[1:, 0].tolist()) for x in (BEFORE, BATCH, LAYER)], "the first among the others?"
    first = [line for line in axis.lines if line.get_label() == "first"]
    assert [line.get_marker() for line in first] == ["<", "D", "D"], "off the picture: an arrow to its own side"
    assert [float(line.get_xdata()[0]) for line in first[1:]] == [-1.5, 0.25]
    assert -3.5 < float(first[0].get_xdata()[0]) < -3
    heights = [float(line.get_ydata()[0]) for line in first]
    assert heights == sorted(heights, reverse=True), "as it is on top"
    texts = [text.get_text() for text in axis.texts]
    assert "first at -9" in texts
    for name, spread in (("as it is", "0.82"), ("batch norm", "0.08"), ("layer norm", "0.82")):
        assert f"{name}: spread of the others {spread}" in texts, "the first counted among the others, or d - 1?"
    assert "batch norm, the first is at -1.50 and the others have a spread of 0.08" in alt and "of 4 examples" in alt


def test_one_far_out_asks_for_three_examples_of_one_shape():
    for tensors in ((BEFORE[:2], BATCH[:2], LAYER[:2]), (BEFORE, BATCH[:3], LAYER)):
        with pytest.raises(ValueError, match="before, batch, layer: expected one shape"):
            one_far_out(*tensors)


def gradient(times):
    """Of the norm's second output by W, for times·(3, 0, −3) and the input 1, by torch."""
    weights = (times * torch.tensor([3.0, 0.0, -3.0], dtype=torch.float64)).requires_grad_()
    F.layer_norm(weights, (3,), eps=0.0)[1].backward()
    return weights.detach(), weights.grad


def test_twice_the_weights_get_half_the_gradient_and_a_quarter_of_the_turn():
    figure, alt = doubled_weights()
    (axis,) = figure.axes
    arrows = [note for note in axis.texts if note.get_text() == ""]
    turns = [note.get_text() for note in axis.texts if "turned" in note.get_text()]
    for times, arrow, turn in zip((1, 2), arrows, turns, strict=True):
        weights, slope = gradient(times)
        (tail, foot), (head, tip) = arrow.xyann, arrow.xy
        assert abs(weights @ slope) < 1e-12 and tail == head and foot == 0, "the step is not at right angles to W"
        assert abs(tail - weights.norm()) < 1e-9, "the arrow does not start at the end of the weights"
        assert abs(tip - 6 * slope.norm()) < 1e-9, "the step is not six gradients long"
        assert turn == f"turned by {np.degrees(np.arctan(tip / tail)):.0f}°"
    assert turns == ["turned by 25°", "turned by 7°"] and "25 degrees" in alt and "7 degrees" in alt
