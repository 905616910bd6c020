"""The committed notebooks say what the chapters say."""

import jupytext
import nbformat
import pytest
from press.notebooks import notebooks

STALE = "run `make notebooks`"


@pytest.fixture(scope="module")
def committed(root):
    folder = root / "notebooks"
    return {path.relative_to(folder).as_posix(): nbformat.read(path, as_version=4) for path in folder.rglob("*.ipynb")}


def sources(notebook, kind):
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def test_every_chapter_has_its_notebook(book, committed):
    assert set(committed) == {f"{page.name}.ipynb" for page in book.notebooks}, STALE


def test_code_is_the_chapters_code(root, committed):
    for name, notebook in committed.items():
        chapter = jupytext.read(root / "chapters" / name.replace(".ipynb", ".md"))
        assert sources(notebook, "code")[1:] == sources(chapter, "code"), f"{name}: {STALE}"


def test_text_is_a_fresh_conversion(book, committed):
    for name, content in notebooks(book).items():
        fresh = nbformat.reads(content.decode(), as_version=4)
        assert sources(committed[name], "markdown") == sources(fresh, "markdown"), f"{name}: {STALE}"


def test_nbval_compares_every_cell(committed):
    """nbval silently compares nothing where the execution count is missing."""
    for name, notebook in committed.items():
        counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
        assert counts == list(range(1, len(counts) + 1)), name


def test_the_setup_cell_is_first(committed):
    for name, notebook in committed.items():
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert "setup" in code[0].metadata.tags, name
