"""Pictures of the recorded race: bars and points are its numbers, and so are the words."""

import normgeom as ng
import numpy as np
import pytest
from normgeom.view.speed import roofline, ways_over_copy


@pytest.fixture(scope="module")
def race():
    return ng.recorded("speed-norms").table


def one(race, rows, d, **where):
    rows = race[(race.rows == rows) & (race.d == d) & (race.threads == 1)]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    (row,) = rows.itertuples()
    return row


def test_bars_are_times_over_a_copy(race):
    figure, alt = ways_over_copy(race, 512, 16384)
    for axes, backward, floor in zip(figure.axes, (False, True), (1, 2.5), strict=True):
        heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
        assert {way: len(bars) for way, bars in heights.items()} == dict(
            normgeom=4, compiled=4, torch=4, transformers=2
        ), "transformers has no LayerNorm of its own"
        cells = [(norm, dtype) for norm in ("layer", "rms") for dtype in ("float32", "bfloat16")]
        for (norm, dtype), height in zip(cells, heights["normgeom"], strict=True):
            row = one(race, 512, 16384, norm=norm, dtype=dtype, backward=backward, way="normgeom")
            assert height == row.over_copy, "another size, pass or format"
        llama = one(race, 512, 16384, norm="rms", dtype="bfloat16", backward=backward, way="transformers")
        assert heights["transformers"][1] == llama.over_copy
        assert axes.patches[-1].get_x() > 2.5, "the last way's bars stand in the groups of RMSNorm"
        assert list(axes.lines[0].get_ydata()) == [floor, floor]
    ours = one(race, 512, 16384, norm="rms", dtype="bfloat16", backward=True, way="normgeom").over_copy
    torchs = one(race, 512, 16384, norm="rms", dtype="bfloat16", backward=True, way="torch").over_copy
    assert f"RMSNorm in bfloat16, forward and back, {ours:.1f} against {torchs:.1f}" in alt


def test_points_stand_under_the_roof(race):
    rows, d, peak = 4096, 4096, 50.0
    figure, alt = roofline(race, peak, rows, d)
    roof, *points = figure.axes[0].lines
    copy = one(race, rows, d, norm="copy", dtype="float32", backward=False)
    bandwidth = 8 * rows * d / copy.seconds / 1e9
    q = roof.get_xdata()
    assert np.allclose(roof.get_ydata(), np.minimum(peak, q * bandwidth)), "a copy reads and writes: 8 bytes an entry"
    ours = dict(zip(points[0].get_xdata(), points[0].get_ydata(), strict=True))
    assert points[0].get_label() == "normgeom"
    for norm, dtype, operations, bytes_ in (
        ("rms", "float32", 4, 4),
        ("rms", "bfloat16", 4, 2),
        ("layer", "float32", 7, 4),
        ("layer", "bfloat16", 7, 2),
    ):
        row = one(race, rows, d, norm=norm, dtype=dtype, backward=False, way="normgeom")
        rate = operations * rows * d / row.seconds / 1e9
        assert ours[operations / (2 * bytes_)] == pytest.approx(rate), f"{norm}, {dtype}"
    share = ours[0.5] / (0.5 * bandwidth)
    assert f"RMSNorm in float32 reaches of the roof {share:.0%} with normgeom" in alt
    assert f"rises to {peak / bandwidth:.1f} operations per byte" in alt
    assert "between 0.5 and 1.75" in alt


def test_a_size_that_was_not_run(race):
    for draw in (lambda: ways_over_copy(race, 7, 768), lambda: roofline(race, 50.0, 7, 768)):
        with pytest.raises(ValueError, match="threads, rows, d: expected one of"):
            draw()
