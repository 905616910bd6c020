"""The line behind the caption of a recorded figure."""

import nbformat
import pytest
from nbformat import v4
from press.book import Book
from press.cells import Cell
from press.sources import Sources

READ = 'one = ng.recorded("loss-of-many").table'
DRAWN = "show(draw(one))"


def code(source, **head):
    return Cell(head, source)


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "figures/data").mkdir(parents=True)
    for name in ("loss-of-many", "times", "times-again"):
        (tmp_path / f"figures/data/{name}.csv").write_text("a\n1\n", "utf-8")
    return Sources(Book(tmp_path))


def test_a_cell_shows_what_the_cells_behind_it_read(sources):
    written = [code('other = ng.recorded("times").table'), code(READ), code(DRAWN)]
    assert sources.behind(written, 2) == ["loss-of-many"], "only what the figure uses"


def test_a_head_names_what_the_library_reads(sources):
    assert sources.behind([code("show(overview())", data=["times*"])], 0) == ["times", "times-again"]


def test_the_caption_leads_to_the_data(sources):
    figure = v4.new_code_cell(DRAWN, metadata={"mystnb": {"figure": {"name": "fig-x", "caption": "Losses."}}})
    live = v4.new_code_cell("show()", metadata={"mystnb": {"figure": {"name": "fig-y", "caption": "Live."}}})
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("text"), v4.new_code_cell(READ), figure, live])
    led = sources.led(nbformat.from_dict(notebook), [code(READ), code(DRAWN), code("show()")])
    captions = [cell.metadata.mystnb.figure.caption for cell in led.cells if "mystnb" in cell.metadata]
    assert captions == [
        'Losses. <span class="sources">Data: {download}`loss-of-many </figures/data/loss-of-many.csv>`</span>',
        "Live.",
    ]
    assert set(sources.used) == {"figures/data/loss-of-many.csv"}
