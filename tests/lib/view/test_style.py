"""One look: ticks in letters of full size, no ground."""

import matplotlib.pyplot as plt
import pytest
from normgeom.view.style import WIDTH, style, svg, ticks_of_powers


def shown(*limits, most=5):
    """The ticks' labels within these limits of a logarithmic axis."""
    with style():
        figure, axis = plt.subplots()
        axis.set(yscale="log", ylim=limits)
        ticks_of_powers(axis.yaxis, most=most)
        figure.draw_without_rendering()
        places = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
        return [label.get_text() for place, label in places if limits[0] <= place <= limits[1]]


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((0.05, 300), ["0.1", "1", "10", "100"]),
        ((5e-6, 2e-3), ["10⁻⁵", "10⁻⁴", "0.001"]),
        ((0.3, 3), ["0.5", "1", "2"]),
        ((3e-7, 6e-6), ["5·10⁻⁷", "10⁻⁶", "2·10⁻⁶", "5·10⁻⁶"]),
    ],
)
def test_ticks_are_powers_of_ten(limits, labels):
    assert shown(*limits) == labels


def test_of_many_decades_some_have_a_tick():
    labels = shown(1e-16, 1e3)
    assert 3 <= len(labels) <= 6 and len(set(labels)) == len(labels)


def test_the_style_has_one_width_and_no_ground():
    with style():
        figure, axis = plt.subplots()
        axis.plot([0, 1], label="a line")
        axis.legend()
        assert figure.get_figwidth() == WIDTH
        assert "#ffffff" not in svg(figure), "a card glares where the page is dark"
