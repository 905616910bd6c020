"""Each refusal, seen refusing."""

import pytest
from click.testing import CliRunner
from nbformat import v4
from press.book import Book
from press.cli import main
from press.refusals import refusals
from toybook import edit


def text(old, new):
    """Replace in the source and the output of every cell."""

    def change(notebook):
        before = str(notebook)
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
            for output in cell.get("outputs", []):
                if "text" in output:
                    output.text = output.text.replace(old, new)
        assert str(notebook) != before

    return change


def metadata(number, **changes):
    """Change the metadata of a cell; None removes."""

    def change(notebook):
        cell = notebook.cells[number - 1]
        cell.metadata.update(changes)
        for key in [key for key, value in changes.items() if value is None]:
            del cell.metadata[key]

    return change


def no_alt(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("metadata"):
                output.metadata.alt = " "


def a_frame(notebook):
    notebook.cells[3].outputs[0].data["text/html"] = '<table border="1" class="dataframe">'


def no_table(notebook):
    notebook.cells[4].outputs = notebook.cells[4].outputs[:1]


def long_and_open(notebook):
    notebook.cells[4].metadata.pop("table")
    notebook.cells[4].source, notebook.cells[4].outputs = "x = 1\n" * 13, []


def a_slider(notebook):
    slider = v4.new_output("display_data", data={"text/html": '<div class="explore" id="explore-1">'})
    notebook.cells.append(v4.new_code_cell("explore()", outputs=[slider]))


MEASURED = {"measured-on": None}
ALL = ["eq-mean", "eq-short", "eq-shorter", "thm-mean"]
REPORTED = "claim-right: reported, not asserted (parameters differ from the defaults): 1; with all vectors alike"
CASES = {
    "unknown prefix": ("01-mean", text("def-centred", "dfn-centred"), "cell 1: label dfn-centred has no known prefix"),
    "no check": ("01-mean", metadata(3, verifies=ALL[1:]), "01-mean, cell 1: eq-mean has no check"),
    "empty check": ("01-mean", metadata(3, verifies=[]), "01-mean, cell 3: tagged check, but verifies no label"),
    "undefined": ("01-mean", metadata(3, verifies=[*ALL, "eq-no"]), "cell 3: verifies eq-no, which no page defines"),
    "no mutant": (
        "02-angle",
        text("; with all vectors alike 9e+00", ""),
        "02-angle, cell 3: the check of claim-right has no near miss that fails",
    ),
    "not asserted": (
        "02-angle",
        text("claim-right: value 0.05 ≤ 0.1; with all vectors alike", REPORTED),
        "02-angle, cell 3: claim-right is reported, not asserted",
    ),
    "measured on nothing": ("02-angle", metadata(3, **MEASURED), "claim-right does not say what it was measured on"),
    "image without alt": ("01-mean", no_alt, "01-mean, cell 4: a figure without alt text"),
    "a frame": ("01-mean", a_frame, "01-mean, cell 4: a data frame displayed by pandas"),
    "table without caption": ("01-mean", metadata(5, table=None), "01-mean, cell 5: a table without a name and a"),
    "caption without table": ("01-mean", no_table, "01-mean, cell 5: a caption of a table, but not exactly one table"),
    "glued mathematics": (
        "02-angle",
        text("Angles are right.", "Angles\n$$\nx\n$$\nare right."),
        "02-angle, cell 1: $$ needs an empty line before and after it, near “Angles”",
    ),
    "docstring": (
        "01-mean",
        text("thm-mean", "thm-other"),
        "lib/toy/norms.py names thm-mean, which no page defines",
    ),
    "later": (
        "01-mean",
        text("Pythagoras, with {eq}`eq-mean`", "As {prf:ref}`conj-always`"),
        "01-mean, cell 1: the proof of thm-mean uses conj-always, stated later: 02-angle, cell 1",
    ),
    "later on its page": (
        "01-mean",
        text("Pythagoras, with {eq}`eq-mean`.\n:::", "As {eq}`eq-late`.\n:::\n\n$$ y $$ (eq-late)\n"),
        "01-mean, cell 1: the proof of thm-mean uses eq-late, stated later: 01-mean, cell 1",
    ),
    "a long open cell": ("01-mean", long_and_open, "01-mean, cell 5: 13 lines stay open; the limit is 12"),
    "image without caption": ("01-mean", metadata(4, mystnb={}), "01-mean, cell 4: a figure without a name and a"),
    "slider without caption": ("02-angle", a_slider, "02-angle, cell 5: a figure without a name and a caption"),
}


def test_the_toy_book_is_not_refused(book):
    assert refusals(book) == []


def test_a_proof_may_refer_to_itself_and_to_what_it_proves(copy):
    proof = "By {prf:ref}`thm-mean` we mean {eq}`eq-shorter`, by\n\n$$ z $$ (eq-step)\n\n{eq}`eq-step`."
    edit(copy, "01-mean", text("Pythagoras, with {eq}`eq-mean`.", proof))
    assert refusals(Book(copy)) == ["01-mean, cell 1: eq-step has no check"]


def test_text_outside_of_a_proof_may_look_ahead(copy):
    edit(copy, "01-mean", text("and shorter", "as in {prf:ref}`conj-always`, and shorter"))
    edit(copy, "01-mean", text("never makes a vector longer", "shortens, see {prf:ref}`conj-always`"))
    assert refusals(Book(copy)) == []


@pytest.mark.parametrize(("page", "change", "message"), CASES.values(), ids=CASES)
def test_refuses(copy, page, change, message):
    edit(copy, page, change)
    found = refusals(Book(copy))
    assert [line for line in found if message in line], found


def test_the_command_prints_every_refusal_and_writes_no_stage(copy):
    edit(copy, "01-mean", no_alt)
    edit(copy, "02-angle", no_alt)
    before = (copy / "_build/stage/chapters/01-mean.ipynb").read_bytes()
    result = CliRunner().invoke(main, ["--root", str(copy), "pages"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "refused: 01-mean, cell 4: a figure without alt text",
        "refused: 02-angle, cell 4: a figure without alt text",
    ]
    assert (copy / "_build/stage/chapters/01-mean.ipynb").read_bytes() == before
