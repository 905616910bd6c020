"""Pictures of parts: they show the numbers they were given, and their words say the same numbers."""

import pandas as pd
from normgeom_lab.reading import fading_part, lenses_by_depth, rankings

AGREEMENTS = pd.DataFrame(
    dict(
        model="M",
        replaced=["mean", "mean", "mean", "zero", "zero"],
        pair=["credit, direct", "direct, total", "credit, total", "credit, direct", "direct, total"],
        rank=[0.9, 0.2, 0.1, 0.8, 0.3],
        low=[0.85, 0.1, 0.0, 0.7, 0.25],
        high=[0.95, 0.3, 0.2, 0.85, 0.35],
        other=[0.1, -0.02, 0.0, 0.2, 0.03],
    )
)
LENSES = dict(own=[1.5, 0.2, 0.0], final=[1.6, 0.3, 0.0], mean=[1.7, 0.4, 0.1], fitted=[0.9, 0.1, 0.0])
LENS = pd.DataFrame(dict(model="M", text="valid", **LENSES, uniform=2.5, frequency=2.1))


def test_a_row_a_replacement():
    figure, alt = rankings(AGREEMENTS)
    axis = figure.axes[0]
    drawn = {line.get_marker(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines}
    assert drawn == {"o": ([0.9, 0.8], [0, 1]), "s": ([0.2, 0.3], [0, 1]), "|": ([-0.02, 0.03], [0, 1])}
    ends = [[x for x, _ in bar] for bars in axis.collections for bar in bars.get_segments()]
    assert ends == [[0.85, 0.95], [0.7, 0.85], [0.1, 0.3], [0.25, 0.35]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["mean", "zero"]
    assert "M, credit, direct: 0.80 to 0.90" in alt and "M, direct, total: 0.20 to 0.30" in alt


def test_lenses_end_before_the_prediction():
    figure, alt = lenses_by_depth(LENS)
    drawn = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert [drawn[name] for name in ("own", "final", "mean")] == [[1.5, 0.2], [1.6, 0.3], [1.7, 0.4]]
    assert drawn["fitted"] == [0.9, 0.1] and drawn["frequency"] == [2.1, 2.1]
    looks = {(line.get_linestyle(), line.get_marker(), line.get_color()) for line in figure.axes[0].lines}
    assert len(looks) == len(drawn) == 6
    assert {text.get_text(): text.xy[1] for text in figure.axes[0].texts}["uniform guess"] == 2.5
    assert "own 1.5, final 1.6" in alt and "uniform 2.5" in alt


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
    strong = [list(line.get_ydata()) for line in left.lines if line.get_linewidth() > 2]
    assert strong == [[6.0, 4.0], [6.0, 6.2], [6.0, 6.1]], "lines end at the slider"
    assert [text.get_text() for text in left.texts] == ["frozen", "truth", "tangent"], "named from the lowest upwards"
    faint = [list(line.get_ydata()) for line in left.lines if line.get_alpha()]
    assert faint == [list(FADED[name]) for name in ("frozen", "tangent", "logit")], "the whole course in faint lines"
    assert len({line.get_linestyle() for line in left.lines if line.get_alpha()}) == 3, "told apart by colour alone"
    assert left.get_xlim()[0] > left.get_xlim()[1], "the whole part is on the left"
    assert [bar.get_height() for bar in right.patches] == [3.1, 3.0]
    marks = [segment.tolist() for segment in right.collections[0].get_segments()]
    assert [ends[0][1] for ends in marks] == [4.0, 2.0], "what they contribute with the whole part"
    assert "With 0.5 of the part kept, the logit above the mean is 6.1 instead of 6.0" in alt
    assert "The drop is -0.1 in truth, 2.0 with the scale frozen, -0.2 along the tangent." in alt
    assert "The drop is 1.4 in truth, 4.0 with the scale frozen, -0.4 along the tangent." in fading_part(FADED, 0.0)[1]
    assert "The part contributes 3.1 instead of 4.0, the others 3.0 instead of 2.0." in alt
