"""What dropping the mean costs, as a table and as pictures: they show the numbers they were given."""

import pandas as pd
import pytest
import torch
from normgeom_lab.without_mean import cost_table, next_after_shift


@pytest.fixture
def shown(monkeypatch):
    """The text of a table, as lists of words."""
    bundles = []
    monkeypatch.setattr("normgeom.view.tables.display", lambda data, raw: bundles.append(data["text/markdown"]))

    def call(costs):
        cost_table(costs)
        lines = bundles.pop().split("\n")
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]

    return call


def test_a_comparison_has_its_models_for_names(shown):
    costs = pd.DataFrame(
        dict(nll=[2.5, 2.49994], more=[0.0, -6e-5], kl=[0.0, 1.23e-7], largest=[0.0, 0.171]),
        index=pd.Index(["as it is", "dropped"], name="model"),
    )
    head, first, second = shown(costs)
    assert head == ["model", "NLL / nats", "change in NLL / nats", "KL / nats", "largest change in log p"]
    assert first == ["as it is", "2.500", "0", "0", "0"]
    assert second == ["dropped", "2.500", "−6.0·10⁻⁵", "1.2·10⁻⁷", "0.17"], "other digits, or columns in another order"


def test_predictions_with_the_subtraction_and_without():
    before = torch.tensor([-1.0, -2.0, -4.0])
    found = {
        0.0: {"before": before, "with": before, "without": before},
        10.0: {"before": before, "with": before, "without": torch.tensor([-3.0, -3.0, -7.0])},
    }
    figure, alt = next_after_shift(found, 10.0)
    kept, dropped = figure.axes
    assert [list(kept.lines[1].get_data()[i]) for i in (0, 1)] == [[-1, -2, -4], [-1, -2, -4]]
    assert [list(dropped.lines[1].get_data()[i]) for i in (0, 1)] == [[-1, -2, -4], [-3, -3, -7]], "without for before"
    assert kept.lines[1].get_marker() != dropped.lines[1].get_marker()
    for axis in figure.axes:
        diagonal = axis.lines[0]
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [-7, 0]
    assert kept.get_title() == "with the subtraction\n0.00 nats off"
    assert dropped.get_title() == "without the subtraction\n2.00 nats off", "the mean of absolute differences"
    assert "of 3 next tokens with c = 10" in alt and "without the subtraction they are 2 nats off on average" in alt
    other, _ = next_after_shift(found, 0.0)
    assert other.axes[0].get_ylim() == kept.get_ylim(), "frames of other scales jump"
