"""What dropping the mean costs, as a table and as pictures: they show the numbers they were given."""

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom_lab.without_mean import cost_table, costs_by_shift, costs_by_site, next_after_shift

SITES = ["stem.norm", "h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "ln_f"]  # in order of use, which is not that of names


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


def by_site():
    rng = np.random.default_rng(0)
    rows = [
        dict(seed=seed, site=site, drop_error=rng.uniform(0.01, 0.05), kl=10.0 ** rng.uniform(-8, -4))
        for seed in range(3)
        for site in [*SITES, "all"]
    ]
    return pd.DataFrame(rows)


def by_shift():
    rows = [
        dict(seed=seed, c=c, drop_error=abs(c) / 10 + 1e-8, kl=(seed + 1) * (c**2 if c > 0 else 1.5 * c**2) + 1e-13)
        for seed in range(3)
        for c in (0.0, 0.003, -0.003, 0.1, -0.1, 2.0, -2.0)
    ]
    return pd.DataFrame(rows)


def test_a_comparison_has_its_models_for_names(shown):
    costs = pd.DataFrame(
        dict(nll=[2.5, 2.49994], more=[0.0, -6e-5], kl=[0.0, 1.23e-7], largest=[0.0, 0.171]),
        index=pd.Index(["as it is", "dropped"], name="model"),
    )
    head, first, second = shown(costs)
    assert head == ["model", "NLL / nats", "change of NLL / nats", "KL / nats", "largest change of log p"]
    assert first == ["as it is", "2.500", "0", "0", "0"]
    assert second == ["dropped", "2.500", "−6e−05", "1.2e−07", "0.17"], "other digits, or columns in another order"


def test_norms_are_numbered_in_their_order(shown):
    one = by_site().query("seed == 0").drop(columns="seed")
    head, *rows = shown(one)
    assert head == ["norm", "change of the output", "KL / nats"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "all"], "by name, or all of them counted as one more"
    assert [float(row[2].replace("−", "-")) for row in rows] == pytest.approx(one.kl.tolist(), rel=0.05)


def points(axes):
    """What each line of the legend shows, as sorted pairs."""
    return {line.get_label(): sorted(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}


def test_each_norm_has_its_mark():
    sites, paths = by_site(), by_shift()
    together = sites.site == "all"
    figure, alt = costs_by_site(sites[~together], sites[together], paths)
    (axes,) = figure.axes
    drawn = points(axes)
    marks = {"first norm": SITES[:1], "second norm": SITES[1:2], "another norm": SITES[2:4], "final norm": SITES[4:]}
    for name, chosen in (marks | {"all norms": ["all"]}).items():
        rows = sites[sites.site.isin(chosen)]
        assert drawn[name] == sorted(zip(rows.drop_error, rows.kl, strict=True)), f"{name} is another's"
        low, high = 100 * rows.drop_error.min(), 100 * rows.drop_error.max()
        assert f"{name}: change {low:.1f} to {high:.1f} %" in alt
        assert f"KL {rows.kl.min():.1g} to {rows.kl.max():.1g} nats" in alt
    assert axes.get_xscale() == axes.get_yscale() == "log"
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 3 and line.get_linestyle() == "-"]
    assert len(lines) == 3, "one line a seed, of positive shifts"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels.count("all norms, other weights") == 1, "the legend repeats itself"


def test_shifts_are_one_band_beside_that_of_the_weights_as_they_stand():
    paths, standing = by_shift(), pd.Series([1e-4, 2e-4, 4e-4], index=[0, 1, 2])
    paths.loc[(paths.seed == 2) & (paths.c == -2), "kl"] = 100.0
    figure, alt = costs_by_shift(paths, standing)
    (axes,) = figure.axes
    corners = axes.collections[0].get_paths()[0].vertices
    for size, least, most in ((0.003, 9e-6, 4.05e-5), (0.1, 0.01, 0.045), (2.0, 4.0, 100.0)):
        ends = corners[corners[:, 0] == size][:, 1]
        assert (ends.min(), ends.max()) == pytest.approx((least, most)), "seed 0, c > 0, to seed 2, c < 0"
    middle = dict(zip(*axes.lines[0].get_data(), strict=True))
    assert list(middle) == [0.003, 0.1, 2.0], "no shift has no place on a logarithmic axis"
    assert middle[2.0] == pytest.approx(10.0), "the median of 4, 6, 8, 12, 12 and 100"
    level, dashed = axes.patches[0], axes.lines[1]
    assert (level.get_y(), level.get_y() + level.get_height()) == pytest.approx((1e-4, 4e-4))
    assert dashed.get_ydata()[0] == 2e-4
    assert "one narrow band over 3 models" in alt
    assert "from 9e-06 to 4e-05 nats at 0.003" in alt, "not the smallest shift"
    assert "between 4.0 and 100.0 nats at 2" in alt, "not the largest shift"
    assert "As the models stand: 0.0001 to 0.0004" in alt


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
