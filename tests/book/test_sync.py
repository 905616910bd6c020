"""The committed notebooks and figures say what the chapters say, and what the run of ``make book`` printed and drew.

nbval runs them all again in ``make ci``; here their outputs are compared with the run that was just made.
"""

import configparser
import re

import jupytext
import nbformat
import pytest
from press.notebooks import TITLED, UNCOMPARED, notebooks
from press.stage import figures

STALE = "run `make notebooks`"
DRAWN = re.compile(r'<g id="[^"]*|xlink:href="#[^"]*-[0-9a-f]+')  # parts and letters of an SVG, in order


@pytest.fixture(scope="module")
def committed(root):
    folder = root / "notebooks"
    return {path.relative_to(folder).as_posix(): nbformat.read(path, as_version=4) for path in folder.rglob("*.ipynb")}


@pytest.fixture(scope="module")
def fresh(book):
    return {name: nbformat.reads(content.decode(), as_version=4) for name, content in notebooks(book).items()}


@pytest.fixture(scope="module")
def sanitized(root):
    """What nbval compares of a text."""
    rules = configparser.ConfigParser()
    rules.read(root / "tests/nbval.cfg")

    def sanitized(text):
        for rule in rules.values():
            if "regex" in rule:
                text = re.sub(rule["regex"], rule["replace"], text)
        return text

    return sanitized


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def written(cell):
    """Its code without the title of a folded cell."""
    head, _, rest = cell.source.partition("\n")
    return rest if head.startswith(TITLED) else cell.source


def test_every_chapter_has_its_notebook(book, committed):
    assert set(committed) == {f"{page.name}.ipynb" for page in book.notebooks}, STALE


def test_code_is_the_chapters_code(root, committed):
    for name, notebook in committed.items():
        chapter = jupytext.read(root / "chapters" / name.replace(".ipynb", ".md"))
        assert [written(cell) for cell in code(notebook)[1:]] == [cell.source for cell in code(chapter)], (
            f"{name}: {STALE}"
        )


def test_text_is_a_fresh_conversion(committed, fresh):
    for name, notebook in fresh.items():
        old, new = ([c.source for c in n.cells if c.cell_type == "markdown"] for n in (committed[name], notebook))
        assert old == new, f"{name}: {STALE}"


def shown(cell, sanitized):
    """What is compared of a cell's outputs."""
    return [
        {kind: sanitized(text) for kind, text in output.get("data", {"stdout": output.get("text", "")}).items()}
        for output in cell.outputs
    ]


def test_outputs_are_those_of_the_run(committed, fresh, sanitized):
    for name, notebook in fresh.items():
        for number, (old, new) in enumerate(zip(code(committed[name]), code(notebook), strict=True), 1):
            if UNCOMPARED not in new.metadata.get("tags", []):
                said = f"{name}, code cell {number}: {STALE}, if these outputs are right"
                assert shown(old, sanitized) == shown(new, sanitized), said


def test_figures_are_those_of_the_run(root, book):
    """By their parts and letters; coordinates differ from machine to machine."""
    old = {path.stem: path.read_text("utf-8") for path in (root / "figures").glob("*.svg")}
    new = figures(book)
    stale = [name for name in old.keys() | new if DRAWN.findall(old.get(name, "")) != DRAWN.findall(new.get(name, ""))]
    assert not stale, f"{stale}: run `make figures`, and delete what no chapter draws"


def test_nbval_compares_every_cell_and_the_setup_is_first(committed):
    """nbval silently compares nothing where the execution count is missing."""
    for name, notebook in committed.items():
        assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1)), name
        assert "setup" in code(notebook)[0].metadata.tags, name
