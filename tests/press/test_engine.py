"""How _config.yml becomes what Sphinx is told; what runs, and what is refused, where Jupyter Book builds the folder."""

import shutil

import nbformat
import pytest
from press.book import Book
from press.engine import configuration
from press.run import run
from press.site import staged
from sphinx.errors import ExtensionError


def said(folder, text):
    (folder / "_config.yml").write_text(text, "utf-8")
    return configuration(folder)


def test_keys_are_called_as_sphinx_calls_them(tmp_path):
    text = "title: A book\nexecute: {execute_notebooks: 'off'}\nsphinx: {config: {html_context: {a: {b: 1}}}}"
    expected = {"html_title": "A book", "nb_execution_mode": "off", "html_context": {"a": {"b": 1}}}
    assert said(tmp_path, text) == expected


def test_an_unknown_key_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"any of title, .*, got html.colour, launch_buttons"):
        said(tmp_path, "title: A book\nlaunch_buttons: true\nhtml: {colour: red}")


def test_only_what_has_other_code_runs_again(copy):
    before = nbformat.read(copy / "_build/run/01-mean.ipynb", 4)
    mean, angle = (copy / f"chapters/{name}.md" for name in ("01-mean", "02-angle"))
    mean.write_text(mean.read_text("utf-8").replace("# The mean", "# The average", 1), "utf-8")
    angle.write_text(angle.read_text("utf-8") + "\n```{code-cell} ipython3\nprint(6 * 7)\n```\n", "utf-8")
    run(Book(copy))
    after = nbformat.read(copy / "_build/run/01-mean.ipynb", 4)
    assert "# The average" in after.cells[0].source
    assert after.cells[1].metadata.papermill == before.cells[1].metadata.papermill, "it ran again"
    assert nbformat.read(copy / "_build/run/02-angle.ipynb", 4).cells[-1].outputs[0].text == "42\n"


def test_what_the_book_refuses_is_refused_here(copy):
    shutil.rmtree(copy / "_build/stage")
    page = copy / "chapters/01-mean.md"
    page.write_text(page.read_text("utf-8").replace(":verifies: [", ":verifies: [eq-none, ", 1), "utf-8")
    with pytest.raises(ExtensionError, match=r"refused: .*eq-none"):
        staged(copy)
    assert not (copy / "_build/stage").exists()
