"""What a page makes of a cell's outputs, without running a notebook."""

import pytest
from nbformat import v4

pytest.importorskip("markdown_it")
from normgeom.view.page import page

TABLE = "| norm | mean \\|cos\\| |\n| :-- | --: |\n| h.0.ln_1 | 0.25 |\n| $x$ | –  |"


def shown(*bundles):
    outputs = [v4.new_output("display_data", data=data) for data in bundles]
    return page("t", "<h1>t</h1>", [v4.new_code_cell("code", outputs=outputs)])


def test_a_table_is_a_table_and_not_its_text():
    html = shown({"text/plain": "norm  aligned", "text/markdown": TABLE})
    assert "<table>" in html and "norm  aligned" not in html, (
        "the text beside the table is for where there is only text"
    )
    assert "<th>mean |cos|</th>" in html.replace(' style="text-align:right"', ""), "the pipe of a head ends the cell?"
    assert '<td style="text-align:right">0.25</td>' in html, "numbers are aligned to the right"
    assert '<td style="text-align:left">h.0.ln_1</td>' in html, "a name is not emphasis"
    assert r"\(x\)" in html, "a formula in a cell"


def test_how_a_measurement_was_recorded_stays_folded():
    folded = "<details><summary>How recorded: it</summary><ul><li>seed: 0</li></ul></details>"
    assert folded in shown({"text/plain": "what: it", "text/markdown": folded})


def test_a_picture_and_html_come_before_markdown():
    assert "<b>made</b>" in shown({"text/html": "<b>made</b>", "text/markdown": TABLE, "text/plain": "x"})
    assert "<table>" not in shown({"image/svg+xml": "<svg/>", "text/markdown": TABLE, "text/plain": "x"})


def test_headings_of_an_output_are_not_sections():
    html = shown({"text/markdown": "## no section", "text/plain": "x"})
    assert "#section-1" not in html
