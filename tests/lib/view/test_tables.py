"""Tables as text and as Markdown, and provenance under one line."""

import math

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from normgeom import view
from normgeom.records import Record

ROWS = {
    "pre": {"loss": 2.3456, "layers": 12, "kind": "LayerNorm", "stuck": False},
    "<post>": {"loss": -0.004, "layers": np.int64(6), "kind": "a|b", "stuck": np.bool_(True)},
    "none": {"loss": math.nan, "layers": 1, "kind": None, "stuck": False},
}
NUMBERS = {"x": {"a": 0.12345, "b": -0.00012, "c": 0.987, "d": 1234567.0}}
LEVELS = pd.DataFrame(
    [[1.0, 2.0]] * 4,
    index=pd.MultiIndex.from_tuples(
        [(6, "pre", 0), (6, "pre", 0), (6, "post", 0), (18, "post", 0)], names=["blocks", "placement", "seed"]
    ),
    columns=pd.MultiIndex.from_product([["rate 0.1"], ["cold", "warm"]]),
)


@pytest.fixture
def shown(monkeypatch):
    """What a call displays, by kind."""
    bundles = []
    monkeypatch.setattr("normgeom.view.tables.display", lambda data, raw: raw and bundles.append(data))

    def call(function, *args, **settings):
        function(*args, **settings)
        return bundles.pop()

    return call


def test_a_table_is_text_and_markdown(shown):
    bundle = shown(view.table, ROWS, first="placement")
    assert bundle["text/plain"].split("\n") == [
        "placement  loss  layers  kind       stuck",
        "pre        2.35      12  LayerNorm  no",
        "<post>     0.00       6  a|b        yes",
        "none          –       1  –          no",
    ]
    assert bundle["text/markdown"].split("\n") == [
        "| placement | loss | layers | kind | stuck |",
        "| :-- | --: | --: | :-- | :-- |",
        "| pre | 2.35 | 12 | LayerNorm | no |",
        "| \\<post\\> | 0.00 | 6 | a\\|b | yes |",
        "| none | – | 1 | – | no |",
    ]


OUTSIDE = [
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![x](https://example.org/a.png)",
    "a|b \\| c\\",
    "`code` and ``more``",
    "$x_1$ costs $5",
    "**bold** *it* _it_ __b__ ~~gone~~ layer_norm_1 add_",
    "&lt;b&gt; &amp;",
    "{math}`x`",
]


def test_words_from_outside_are_shown_letter_by_letter(shown):
    """As a name, a heading and an entry, in the Markdown of a page and with formulas in dollar signs."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).use(dollarmath_plugin)
    for word in OUTSIDE:
        rows = pd.DataFrame({word: [word]}, index=[word])
        bundle = shown(view.table, rows, first=word)
        tokens = [t for t in parser.parse(bundle["text/markdown"]) if t.type == "inline"]
        assert ["".join(part.content for part in t.children) for t in tokens] == [word] * 4
        assert {part.type for t in tokens for part in t.children} <= {"text", "text_special"}, word
        assert word in bundle["text/plain"]


def test_no_word_controls_the_line(shown):
    rows = {"row": {"column": "a\nb\x1b[31m\u202ec"}}
    assert shown(view.table, rows)["text/plain"].split("\n")[1] == "row  a b [31m c"


@pytest.mark.parametrize(
    ("digits", "entries"),
    [
        (2, ["0.12", "0.00", "0.99", "1234567.00"]),
        (0, ["0", "0", "1", "1234567"]),
        ({"a": 4, "b": ".1e", "c": ".0%"}, ["0.1235", "−1.2·10⁻⁴", "99%", "1234567.00"]),
        (".2g", ["0.12", "−1.2·10⁻⁴", "0.99", "1.2·10⁶"]),
    ],
)
def test_digits_are_of_all_columns_or_of_one(shown, digits, entries):
    assert shown(view.table, NUMBERS, digits)["text/plain"].split("\n")[1].split() == ["x", *entries]


def test_levels_of_a_frame(shown):
    before = LEVELS.copy()
    assert shown(view.table, LEVELS, digits=1)["text/plain"].split("\n") == [
        "blocks  placement  seed  rate 0.1, cold  rate 0.1, warm",
        "6       pre        0                1.0             2.0",
        "                   0                1.0             2.0",
        "        post       0                1.0             2.0",
        "18      post       0                1.0             2.0",
    ]
    pd.testing.assert_frame_equal(LEVELS, before)
    assert shown(view.table, LEVELS, first=["M", "where", "run"])["text/plain"].split()[:3] == ["M", "where", "run"]


@pytest.mark.parametrize(
    ("rows", "digits", "message"),
    [
        ({}, 2, r"^rows: expected at least one"),
        (pd.DataFrame({"a": []}), 2, r"^rows: expected at least one"),
        (NUMBERS, {"z": 1}, r"^digits: expected columns of \['a', 'b', 'c', 'd'\], got \['z'\]"),
    ],
)
def test_bad_input(rows, digits, message):
    with pytest.raises(ValueError, match=message):
        view.table(rows, digits)


def test_provenance_is_one_line_that_opens(shown):
    record = Record(pd.DataFrame(), {"what": "losses < 1", "seeds": "0 & 1"})
    bundle = shown(view.how_recorded, record)
    assert bundle["text/markdown"] == (
        '<details class="recorded"><summary>How this was recorded</summary>'
        "<ul><li>what: losses &lt; 1</li><li>seeds: 0 &amp; 1</li></ul></details>"
    )
    assert bundle["text/plain"] == str(record)
