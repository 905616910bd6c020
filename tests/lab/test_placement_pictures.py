"""Pictures of placements show the numbers that they were given, and their words say the same."""

import numpy as np
import pytest
import torch
from normgeom_lab import placement as lab
from normgeom_lab.common.growth import Growth
from normgeom_lab.common.stacks import PLACEMENTS


def drawn(axis, marker):
    """The points of each line with that marker."""
    return [np.asarray(line.get_ydata(), float) for line in axis.lines if line.get_marker() == marker]


def grown(scale=1.0):
    number = torch.arange(1.0, 9.0)
    square = torch.stack([1 + scale * torch.arange(9.0), 1 + 3 * scale * torch.arange(9.0)])
    cosine, turn = torch.linspace(1, 0.2, 9).expand(2, -1), torch.stack([10 * number, 20 * number])
    return Growth(square, cosine, torch.stack([1 / number, 3 / number]), turn)


def test_every_placement_has_a_word_and_a_look_of_its_own():
    assert list(lab.WORDS) == [*PLACEMENTS, "post-small"] and set(lab.WORDS.values()) <= set(lab.LOOKS)
    for what in ("color", "marker"):
        assert len({look[what] for look in lab.LOOKS.values()}) == len(lab.LOOKS), f"two of one {what}"


def test_gradients_with_their_powers():
    depths = (2, 8, 32)
    by_depth = {"pre-norm": torch.tensor([[v**-0.5] * 2 for v in depths])}
    figure, alt = lab.gradient_powers(depths, by_depth, {"sandwich": torch.tensor([3.0, 2.0, 1.5])})
    left, right = figure.axes
    assert np.allclose(drawn(left, "s"), [[v**-0.5 for v in depths]] * 2), "a point for each seed"
    line = next(line for line in left.lines if line.get_linestyle() == "-")
    assert np.allclose(line.get_ydata(), [v**-0.5 for v in depths]), "the fitted line"
    assert np.allclose(drawn(right, "v"), [[3.0, 2.0, 1.5]])
    assert left.get_ylim() == right.get_ylim(), "lengths that do not compare"
    for words in ("-0.50 for pre-norm", "2.00 for sandwich"):
        assert words in alt, words


def test_growth_is_the_mean_over_stacks():
    figure, alt = lab.growth_by_sublayer({"pre-norm": grown(), "DeepNorm": grown(0.0)})
    left, right = figure.axes
    assert np.allclose(drawn(left, "s"), [1 + 2 * np.arange(9)])
    attention, mlp = (line for line in right.lines if line.get_marker() == "s")
    for line, number, dash in ((attention, np.arange(1, 9, 2), "-"), (mlp, np.arange(2, 9, 2), ":")):
        assert np.allclose(line.get_data(), [number, 2 / number]) and line.get_linestyle() == dash
    law = next(line for line in left.lines if line.get_label().startswith("1 + l"))
    assert np.allclose(law.get_data(), [[0, 8], [1, 9]]) and law.get_zorder() > 2, "hidden behind what obeys it"
    assert "at the end 17 for pre-norm, 1 for DeepNorm" in alt
    row = lab.growth_rows({"pre-norm": grown()})["pre-norm"]
    expected = [17.0, 2.0, 1.0, 3.0, 2 * np.mean([1 / 5, 1 / 6, 1 / 7, 1 / 8]), 15 * 6.5, 0.2]
    assert list(row.values()) == pytest.approx(expected, rel=1e-6), "Over all sublayers? Least for most?"


def test_shares_are_those_after_so_many_sublayers():
    shares = [torch.tensor([0.6, 0.4]), torch.tensor([0.5, 0.3, 0.2])]
    later = [torch.tensor([0.3, 0.7]), torch.tensor([0.1, 0.15, 0.75])]
    figure, alt = lab.stream_shares({"pre-norm": shares, "DeepNorm": later}, 2)
    (axis,) = figure.axes
    bars = np.array([[bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height()] for bar in axis.patches])
    first, second = [[0, 0, 0.5], [0, 0.5, 0.3], [0, 0.8, 0.2]], [[1, 0, 0.1], [1, 0.1, 0.15], [1, 0.25, 0.75]]
    assert np.allclose(bars, [*first, *second]), "the input not lowest, or the newest not on top"
    assert "After 2 sublayers" in alt and "pre-norm, input 50 %, last two 50 %; DeepNorm, input 10 %" in alt
    assert axis.get_xticklabels()[1].get_text() == "DeepNorm\ninput 10 %\nlast two 90 %"
