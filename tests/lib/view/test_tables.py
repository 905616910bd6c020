"""Tables as text and as Markdown, and provenance under one line."""

import math

import numpy as np
import pandas as pd
import pytest
from normgeom import view
from normgeom.records import Record


@pytest.fixture
def shown(monkeypatch):
    """What a call displays, by kind."""
    bundles = []
    monkeypatch.setattr("normgeom.view.tables.display", lambda data, raw: bundles.append(data))

    def call(function, *args, **settings):
        function(*args, **settings)
        return bundles.pop()

    return call


ROWS = {
    "pre": {"loss": 2.3456, "layers": 12, "kind": "LayerNorm", "stuck": False},
    "post": {"loss": -0.004, "layers": np.int64(6), "kind": "a|b", "stuck": np.bool_(True)},
}


def test_as_text(shown):
    assert shown(view.table, ROWS, first="placement")["text/plain"].split("\n") == [
        "placement  loss  layers  kind       stuck",
        "pre        2.35      12  LayerNorm  no",
        "post       0.00       6  a|b        yes",
    ]


def test_as_markdown(shown):
    assert shown(view.table, ROWS, first="placement")["text/markdown"].split("\n") == [
        "| placement | loss | layers | kind | stuck |",
        "| :-- | --: | --: | :-- | :-- |",
        "| pre | 2.35 | 12 | LayerNorm | no |",
        "| post | 0.00 | 6 | a\\|b | yes |",
    ]


def test_a_name_cannot_bring_html_into_a_page(shown):
    text = shown(view.table, {"<img src=x>": {"<b>": "<i>"}})["text/markdown"]
    assert text.split("\n")[::2] == ["|  | &lt;b> |", "| &lt;img src=x> | &lt;i> |"]


def test_digits_are_of_all_columns_or_of_one(shown):
    rows = {"x": {"a": 0.12345, "b": -0.00012, "c": 0.987, "d": 1234567.0}}

    def line(**settings):
        return shown(view.table, rows, **settings)["text/plain"].split("\n")[1].split()

    assert line() == ["x", "0.12", "0.00", "0.99", "1234567.00"]
    assert line(digits=0) == ["x", "0", "0", "1", "1234567"]
    assert line(digits={"a": 4, "b": ".1e", "c": ".0%"}) == ["x", "0.1235", "−1.2e−04", "99%", "1234567.00"]
    with pytest.raises(ValueError, match=r"^digits: expected columns of \['a', 'b', 'c', 'd'\], got \['z'\]"):
        view.table(rows, digits={"z": 1})


def test_missing_numbers_are_a_dash_and_stay_numbers(shown):
    text = shown(view.table, {"x": {"a": math.nan}, "long": {"a": 10.0}})["text/plain"].split("\n")
    assert text == ["          a", "x         –", "long  10.00"]


def test_levels_of_a_frame(shown):
    frame = pd.DataFrame(
        [[1.0, 2.0]],
        index=pd.MultiIndex.from_tuples([(6, "pre")], names=["blocks", "placement"]),
        columns=pd.MultiIndex.from_product([["rate 0.1"], ["cold", "warm"]]),
    )
    before = frame.copy()
    assert shown(view.table, frame, digits=1)["text/plain"].split("\n") == [
        "blocks  placement  rate 0.1, cold  rate 0.1, warm",
        "6       pre                   1.0             2.0",
    ]
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("rows", [{}, pd.DataFrame({"a": []})])
def test_no_rows(rows):
    with pytest.raises(ValueError, match=r"^rows: expected at least one"):
        view.table(rows)


def test_provenance_is_one_line_that_opens(shown):
    record = Record(pd.DataFrame(), {"what": "losses < 1", "seeds": "0 & 1", "date": "2026-01-01"})
    bundle = shown(view.how_recorded, record)
    assert bundle["text/markdown"] == (
        '<details class="recorded"><summary>How this was recorded</summary>'
        "<ul><li>what: losses &lt; 1</li><li>seeds: 0 &amp; 1</li><li>date: 2026-01-01</li></ul></details>"
    )
    assert bundle["text/plain"] == str(record)
