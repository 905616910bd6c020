"""Logarithmic axes have few ticks, in letters of full size; names at the ends of lines do not meet."""

import itertools

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text
from normgeom.view.style import style
from normgeom_lab.common.axes import label_ends, ticks_of_powers

TICKS = {
    (0.05, 300): ["0.1", "1", "10", "100"],
    (5e-6, 2e-3): ["10⁻⁵", "10⁻⁴", "0.001"],
    (0.3, 3): ["0.5", "1", "2"],
    (3e-7, 6e-6): ["5·10⁻⁷", "10⁻⁶", "2·10⁻⁶", "5·10⁻⁶"],
    (1e-16, 1e3): ["10⁻¹⁶", "10⁻¹²", "10⁻⁸", "10⁻⁴", "1"],
}


@pytest.mark.parametrize(("limits", "labels"), TICKS.items())
def test_ticks_are_few_powers_of_ten(limits, labels):
    with style():
        figure, axis = plt.subplots()
        axis.set(yscale="log", ylim=limits)
        ticks_of_powers(axis.yaxis)
        figure.draw_without_rendering()
        places = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
        assert [label.get_text() for place, label in places if limits[0] <= place <= limits[1]] == labels


@pytest.mark.parametrize("ends", [(1.0, 2.0, 3.0), (1.0, 1.0, 1.0), (1e-3, 1.0, 1.01)])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_names_stand_at_the_ends_of_lines_in_their_order(ends, scale):
    with style():
        figure, axis = plt.subplots()
        for k, end in enumerate(ends):
            axis.plot([0, 1, 2], [2, 5, end], label=f"line {k}, dropped")
        axis.errorbar([0, 2], [1, 4], yerr=0.1, label="bars")
        axis.fill_between([0, 2], [6, 7], [7, 9], label="band")
        axis.set_yscale(scale)
        label_ends(axis)
        figure.draw_without_rendering()
    names = sorted(axis.texts, key=lambda text: Text.get_window_extent(text).y0)
    boxes = [Text.get_window_extent(text) for text in names]  # without the line that leads to it
    assert [text.get_text() for text in names[3:]] == ["bars", "band"], "the band's middle ends above the bars"
    assert {text.get_text() for text in names[:3]} == {f"line {k},\ndropped" for k in range(3)}
    assert all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(boxes)), "names overprint"
    assert all(axis.bbox.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in boxes), "names leave their margin"
    plt.close(figure)
