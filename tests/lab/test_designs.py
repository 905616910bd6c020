"""Pictures of designs show the numbers that they were given, and their words say the same."""

import numpy as np
import pandas as pd
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


def test_losses_stay_with_their_designs_and_so_do_counts_of_failures():
    rows = [("keel", 6, 2.0), ("keel", 24, 2.1), ("pre", 6, 1.5), ("pre", 24, 2e5), ("post", 6, 3.0), ("post", 24, 3.5)]
    best = pd.DataFrame(rows, columns=["design", "layers", "mean"])
    failed = best.assign(n=range(6)).pivot(index="design", columns="layers", values="n")
    figure, alt = lab.losses_of_designs(best.assign(low=best["mean"] - 0.1, high=best["mean"] + 0.2), failed, 3.2, 8)
    (axis,) = figure.axes
    order = [label.get_text() for label in axis.get_yticklabels()]
    assert order == ["Keel", "post-norm", "pre-norm"]
    shallow, deep = (bars.lines[0].get_xdata() for bars in axis.containers)
    assert list(shallow) == [2.0, 3.0, 1.5] and list(deep[:2]) == [2.1, 3.5] and np.isnan(deep[2]), "2e5 is drawn"
    counts = [text.get_text() for text in axis.texts]
    assert counts[1:5] == ["6", "0", "4", "2"] and counts[6:10] == ["24", "1", "5", "3"]
    assert (
        "Keel 2.00, 2.10, failed 0, 1; post-norm 3.00, 3.50, failed 4, 5; pre-norm 1.50, beyond 10, failed 2, 3" in alt
    )
