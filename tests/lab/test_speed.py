"""Pictures of the recorded race: bars and points are its numbers, and so are the words."""

import normgeom as ng
import numpy as np
import pandas as pd
import pytest
from normgeom_lab.common.recording import record
from normgeom_lab.precision import on_gpu, roofline, ways_over_copy


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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where records come from during a test."""
    monkeypatch.setattr("normgeom.records.FOLDER", tmp_path)
    return tmp_path


def test_without_a_gpu_there_is_a_row_of_dashes_for_each_record(folder):
    times, records = on_gpu()
    assert list(times.index) == ["norms", "surveys", "conversion"] and times.isna().all(axis=None)
    assert records == []


def test_what_is_recorded_of_a_gpu(folder):
    """Made up: each time is a number of its own, and the last record is missing."""
    race = pd.DataFrame(
        [
            dict(threads=1, rows=rows, d=4096, dtype="bfloat16", backward=False, norm=norm, way=way, over_copy=time)
            for rows, norm, way, time in (
                (8192, "copy", "torch", 1.0),
                (8192, "rms", "normgeom", 1.25),
                (8192, "rms", "torch", 1.5),
                (8192, "rms", "compiled", 1.75),
                (4096, "rms", "normgeom", 9.0),
                (4096, "rms", "torch", 9.0),
            )
        ]
    )
    record("speed-norms-cuda", race, "made up", folder)
    seen = {"bare forward": 1.0, "Survey": 1.03, "watch": 1.1, "output_hidden_states": 1.2}
    survey = pd.DataFrame(
        [dict(model="GPT-2 small", texts=4, length=256, way=way, ratio=ratio) for way, ratio in seen.items()]
    )
    record("speed-survey-cuda", survey, "made up too", folder)
    times, records = on_gpu()
    assert times.loc["RMSNorm, bfloat16, forward, 8192 × 4096"].tolist() == ["a copy", 1.25, "torch's own", 1.5]
    assert times.loc["Survey of GPT-2 small, 4 × 256"].tolist() == [
        "the bare pass", 1.03, "output_hidden_states", 1.2
    ]  # fmt: skip
    assert times.loc["conversion"].isna().all() and len(times) == 3
    assert [of.provenance["what"] for of in records] == ["made up", "made up too"]

    turned = {"original": 1.0, "converted": 0.9, "no norms": 0.8}
    passes = [dict(model="GPT-2 small", batch=1, length=128, way=way, ratio=ratio) for way, ratio in turned.items()]
    record("speed-converted-cuda", pd.DataFrame(passes), "made up as well", folder)
    times, _ = on_gpu()
    assert times.loc["GPT-2 small converted to RMSNorm, 1 × 128"].tolist() == ["unconverted", 0.9, "no norms", 0.8]
