"""Pictures of designs show the numbers that they were given, and their words say the same."""

import numpy as np
import torch
from normgeom_lab import designs as lab
from normgeom_lab.common.growth import Growth


def lines(axis):
    return [np.asarray(line.get_xydata(), float) for line in axis.lines]


def test_growth_is_drawn_as_given():
    square = torch.stack([1 + torch.arange(5.0), 3 + 3 * torch.arange(5.0)])
    update = torch.stack([1 / torch.arange(1.0, 5), 3 / torch.arange(1.0, 5)])
    grown = {name: Growth(k * square, square, k * update, update) for k, name in ((1, "pre"), (2, "keel"))}
    figure, alt = lab.growth_of_designs(grown)
    size, late = figure.axes
    assert [line[-1].tolist() for line in lines(size)] == [[4, 10], [4, 20]]
    assert [line[-1].tolist() for line in lines(late)] == [[4, 0.5], [4, 1]]
    assert "pre-norm 10 and 0.5; Keel 20 and 1" in alt
