"""Logarithmic axes have few ticks, in letters of full size."""

import matplotlib.pyplot as plt
import pytest
from normgeom.view.style import style
from normgeom_lab.common.axes import ticks_of_powers

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
