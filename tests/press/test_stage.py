"""What the pages are built from, and what it does not have to read again."""

import nbformat
from nbformat import v4
from press.book import Book
from press.stage import put, stage, still


def test_the_stage_holds_every_page(book):
    files = stage(book)
    assert {name for name in files if name.startswith("chapters/")} == {
        "chapters/index.md",
        "chapters/01-mean.ipynb",
        "chapters/02-angle.ipynb",
        "chapters/appendix/notation.md",
        "chapters/appendix/errata.ipynb",
        "chapters/appendix/ledger.md",
        "chapters/appendix/reference.md",
        "chapters/appendix/bibliography.md",
        "chapters/references.bib",
    }
    assert {"_static/book.css", "figures/fig-dot.svg", "manifest.json"} <= set(files)


def test_what_did_not_change_keeps_its_time(made, tmp_path):
    put(tmp_path, stage(Book(made)))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    put(tmp_path, stage(Book(made)))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_is_gone_goes(tmp_path):
    put(tmp_path, {"a/old": b"1", "kept": b"2"})
    put(tmp_path, {"kept": b"2"})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["kept"]


def test_traces_of_the_run_are_left_out():
    widget = {"application/vnd.jupyter.widget-view+json": {}}
    bar, slider = widget | {"text/plain": "a progress bar"}, widget | {"text/html": "frames"}
    cell = v4.new_code_cell(
        "x",
        metadata={"papermill": {"duration": 1.5}, "execution": {}, "tags": ["check"]},
        outputs=[v4.new_output("display_data", data=data) for data in (bar, slider)],
    )
    notebook = v4.new_notebook(
        cells=[cell], metadata={"papermill": {}, "widgets": {}, "language_info": {"name": "python"}}
    )
    left = still(notebook)
    assert left.metadata == {"language_info": {"name": "python"}}
    assert left.cells[0].metadata == {"tags": ["check"]}
    assert [output.data for output in left.cells[0].outputs] == [{"text/html": "frames"}]
    assert "papermill" in cell.metadata


def test_a_table_with_a_caption_becomes_one_with_a_number(book, made):
    staged = nbformat.reads(stage(book)["chapters/01-mean.ipynb"].decode(), as_version=4)
    at = next(n for n, cell in enumerate(staged.cells) if "before the table" in cell.source)
    assert [output.get("name") for output in staged.cells[at].outputs] == ["stdout"]
    assert staged.cells[at + 1].source == (
        "::::{table} Squares, see {eq}`eq-mean`.\n:name: tab-squares\n\n| n | square |\n| --: | --: |\n| 3 | 9 |\n::::"
    )
    page = (made / "_build/html/chapters/01-mean.html").read_text("utf-8")
    assert "Table 1.1" in page and 'id="tab-squares"' in page
