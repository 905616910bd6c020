"""The Makefile on the toy book: what runs, what does not run again, what a failure says."""

import re
from collections import Counter
from pathlib import Path

import pytest
from toybook import make

TESTS = Path(__file__).parents[1]


def ran(done):
    return re.findall(r"^running (\S+)$", done.stdout, re.M)


def test_no_two_files_of_tests_share_a_name():
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    twice = [name for name, times in names.items() if times > 1]
    assert not twice, f"`make ci` collects all rooms in one process and would mistake one for the other: {twice}"


def test_nothing_changed_nothing_runs(made):
    done = make(made, "book")
    assert done.stdout == "The book is at _build/html/index.html\n"


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [("Angles are right.", "Angles are quite right.", []), ("points: 1, 3, 2", "points: 1, 3 and 2", ["02-angle"])],
    ids=["words", "code"],
)
def test_an_edited_chapter_runs_alone_and_only_if_its_code_changed(copy, old, new, runs):
    make(copy, "--touch", "book")
    chapter = copy / "chapters/02-angle.md"
    chapter.write_text(chapter.read_text("utf-8").replace(old, new), "utf-8")
    done = make(copy, "book")
    assert done.returncode == 0, done.stderr
    assert ran(done) == runs
    page, kept = (copy / "_build/html/chapters/02-angle.html").read_text("utf-8"), "claim-right: value 0.05"
    assert new in page and kept in page, "words or outputs are lost"


def test_new_words_do_not_make_old_outputs_young(copy):
    make(copy, "--touch", "book")
    library, chapter = copy / "lib/normgeom/new.py", copy / "chapters/02-angle.md"
    library.write_text("", "utf-8")
    chapter.write_text(chapter.read_text("utf-8").replace("Angles are right.", "Angles are quite right."), "utf-8")
    assert ran(make(copy, "LIBRARY=", "figures")) == []
    assert "02-angle" in ran(make(copy, "figures")), "outputs of the old library stay"


def test_a_failed_chapter_is_named_and_leaves_no_half(copy):
    make(copy, "clean")
    chapter = copy / "chapters/02-angle.md"
    chapter.write_text(chapter.read_text("utf-8").replace("alt = ", "1 / 0\nalt = "), "utf-8")
    done = make(copy, "figures")
    assert done.returncode != 0
    assert "make: chapter 02-angle failed" in done.stdout + done.stderr
    assert not (copy / "_build/run/02-angle.ipynb").exists()


SLIPS = """
See {doc}`nowhere`, {term}`some word`, {eq}`eq-no`, {prf:ref}`thm-no`, {numref}`fig-no` and {cite:p}`nobody`.

$$ z $$ (eq-mean)

:::{prf:theorem} A label of another page
:label: thm-mean
:::
"""
WARNINGS = ["nowhere", "term not in glossary: 'some word'", "equation not found: eq-no", "not found: thm-no", "fig-no"]
WARNINGS += ["nobody", "duplicate label of equation eq-mean", "duplicate theorem label 'thm-mean'"]


def test_a_warning_of_sphinx_fails_every_time(copy):
    page = copy / "chapters/index.md"
    page.write_text(page.read_text("utf-8") + SLIPS, "utf-8")
    module = copy / "lib/toy/secular.py"
    module.write_text(module.read_text("utf-8").replace(":func:`toy.center`", ":func:`toy.hidden`"), "utf-8")
    for _ in range(2):
        done = make(copy, "book")
        assert done.returncode != 0
        for said in (*WARNINGS, "py:func reference target not found: ng.hidden"):
            assert said in done.stdout + done.stderr


def test_figures_are_written_by_name(copy):
    assert make(copy, "figures").returncode == 0
    assert (copy / "figures/fig-dot.svg").read_text("utf-8").startswith("<svg")
