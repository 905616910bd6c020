"""Pictures of parts: they show the numbers they were given, and their words say the same numbers."""

import numpy as np
import pandas as pd
from norm_checks import draw
from normgeom_lab.common.parts import Effects
from normgeom_lab.reading import effects_by_part, fading_part, frozen_against_direct, lenses_by_part

ANSWERS = pd.DataFrame(
    {
        "share κ": [0.1, 0.7, 0.2],
        "frozen": [0.5, 4.0, 0.6],
        "slope": [0.4, -0.3, -0.2],
        "direct": [0.45, 1.4, -0.1],
        "total": [3.0, 2.5, -0.05],
    },
    index=["wte", "m1", "m2"],
)
READ = pd.DataFrame(
    {
        "scale": [0.1, 0.8, 1.0],
        "KL, own scale / nats": [1.5, 0.2, 0.0],
        "KL, final scale / nats": [1.6, 0.3, 0.0],
    },
    index=["wte", "m1", "m2"],
)


def test_each_answer_has_its_marks():
    figure, alt = effects_by_part(ANSWERS)
    upper, lower = figure.axes
    marks = {line.get_label(): line for line in upper.lines if not line.get_label().startswith("_")}
    assert set(marks) == {"frozen", "direct", "slope", "total"}
    for name, line in marks.items():
        assert list(line.get_ydata()) == list(ANSWERS[name]), f"{name} shows another column"
        assert np.allclose(np.round(line.get_xdata()), [0, 1, 2]), "beside another part's place"
    assert len({line.get_marker() for line in marks.values()}) == 4, "told apart by colour alone"
    assert [bar.get_height() for bar in lower.patches] == list(ANSWERS["share κ"])
    assert [tick.get_text() for tick in lower.get_xticklabels()] == ["wte", "m1", "m2"]
    assert "m1 with 0.70; there frozen 4.00, direct 1.40, slope -0.30, total 2.50" in alt
    assert alt.endswith("differ in sign: m2.")


def test_no_part_whose_sign_turns():
    assert effects_by_part(ANSWERS.iloc[:2])[1].endswith("differ in sign: none.")


def test_lenses_and_scale():
    figure, alt = lenses_by_part(READ)
    left, right = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in left.lines}
    assert drawn == {"own scale": [1.5, 0.2], "final scale": [1.6, 0.3]}, "the last is 0, which has no logarithm"
    assert list(right.lines[0].get_ydata()) == [0.1, 0.8, 1.0]
    assert "from 1.5 nats with its own and 1.6 with the final scale behind wte to 0.2 and 0.3 behind m1" in alt
    assert "from 0.1 to 1, the largest step behind m1" in alt


def test_one_point_for_every_fourth_position():
    above, against = (Effects(*draw(5, 3, 8, seed=seed).unbind(0)) for seed in (0, 1))
    figure, alt = frozen_against_direct({"above": above, "against": against})
    for axis, (title, e) in zip(figure.axes, {"above": above, "against": against}.items(), strict=True):
        points, line = axis.lines
        assert axis.get_title() == title
        assert np.allclose(points.get_xdata(), e.frozen.flatten()[::4]), "direct along the axis of frozen?"
        assert np.allclose(points.get_ydata(), e.removed.flatten()[::4])
        assert np.array_equal(line.get_xdata(), line.get_ydata()), "on the line they are equal"
        assert f"{title}, at {100 * np.mean((e.frozen > e.removed).numpy()):.0f} % of the positions" in alt


FADED = pd.DataFrame(
    {
        "logit": [6.0, 6.1, 4.6],
        "frozen": [6.0, 4.0, 2.0],
        "tangent": [6.0, 6.2, 6.4],
        "part": [4.0, 3.1, 0.0],
        "others": [2.0, 3.0, 4.6],
    },
    index=pd.Index([1.0, 0.5, 0.0], name="m1"),
)


def test_a_part_that_fades():
    figure, alt = fading_part(FADED, 0.5)
    left, right = figure.axes
    strong = {line.get_label(): line.get_data() for line in left.lines if not line.get_label().startswith("_")}
    assert {name: list(y) for name, (x, y) in strong.items()} == {
        "frozen": [6.0, 4.0],
        "tangent": [6.0, 6.2],
        "truth": [6.0, 6.1],
    }, "lines end where the slider stands"
    faint = [list(line.get_ydata()) for line in left.lines if line.get_alpha()]
    assert faint == [list(FADED[name]) for name in ("frozen", "tangent", "logit")], "the whole course behind them"
    assert len({line.get_linestyle() for line in left.lines if line.get_alpha()}) == 3, "told apart by colour alone"
    assert left.get_xlim()[0] > left.get_xlim()[1], "the whole part is on the left"
    assert [bar.get_height() for bar in right.patches] == [3.1, 3.0]
    marks = [segment.tolist() for segment in right.collections[0].get_segments()]
    assert [ends[0][1] for ends in marks] == [4.0, 2.0], "what they bring with the whole part"
    assert "With 0.5 of m1 kept, the logit of the next token above the mean is 6.1 of 6.0" in alt
    assert "lost are in truth -0.1, with the scale frozen 2.0, along the tangent -0.2" in alt
    assert "lost are in truth 1.4, with the scale frozen 4.0, along the tangent -0.4" in fading_part(FADED, 0.0)[1]
    assert "The part brings 3.1, of 4.0, and the others 3.0, of 2.0." in alt
