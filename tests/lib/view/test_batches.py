"""Pictures of statistics over a batch: the cells that share them, and the gaps that were given."""

import numpy as np
import pytest
from normgeom.view.batches import gaps_by_size, shared_statistics


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


def test_no_gap_is_refused():
    with pytest.raises(ValueError, match="gaps: expected at least one batch size, got none"):
        gaps_by_size({})
