"""The book built from its own folder, as by ``jupyter-book build .``: chapters run without make."""

import shutil

import nbformat
import pytest
from press.book import Book
from press.run import run
from press.site import staged
from sphinx.errors import ExtensionError


@pytest.fixture
def clone(made, tmp_path):
    """The toy book as it was before anything was built."""
    ignored = shutil.ignore_patterns("_build", ".venv")
    return shutil.copytree(made, tmp_path / "clone", symlinks=True, ignore=ignored)


def files(folder):
    """What a folder holds; of notebooks, the cells with what they gave."""
    found = {}
    for path in folder.rglob("*"):
        if path.suffix == ".ipynb":
            found[path.relative_to(folder)] = [(c.source, c.get("outputs")) for c in nbformat.read(path, 4).cells]
        elif path.is_file():
            found[path.relative_to(folder)] = path.read_bytes()
    return found


def test_a_folder_that_nothing_was_built_in_gives_the_stage_of_make(made, clone):
    assert files(staged(clone)) == files(made / "_build/stage")


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


def test_what_the_book_refuses_is_refused_here(clone):
    page = clone / "chapters/01-mean.md"
    page.write_text(page.read_text("utf-8").replace(":verifies: [", ":verifies: [eq-none, ", 1), "utf-8")
    with pytest.raises(ExtensionError, match=r"refused: .*eq-none"):
        staged(clone)
    assert not (clone / "_build/stage").exists()
