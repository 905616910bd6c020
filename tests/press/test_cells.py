"""The cells of a chapter: what each makes and uses, and what a cell is made from."""

import pytest
from press.cells import Cell, behind, through

MAKES = {
    "a = b + 1": {"a"},
    "import x.y as z, w.v": {"z", "w"},
    "def f(u):\n    inner = u\n    return inner": {"f"},
    "[i for i in rows]": set(),
    "for i, j in rows:\n    k = i": {"i", "j", "k"},
    "with f() as g:\n    pass": {"g"},
}
USES = {
    "a = b + 1": {"b"},
    "def f(u):\n    inner = u\n    return inner + outer": {"outer"},
    "def f(u=default):\n    return u": {"default"},
    "{i: j for i, j in rows if i in seen}": {"rows", "seen"},
    "g = lambda a: a + b": {"b"},
    "ng.secular.mean(x)": {"ng", "x", "ng.secular", "ng.secular.mean"},
    "x = f(x)\ny = x": {"f", "x"},
    "x = f(z)\ny = x": {"f", "z"},
    "for row in rows:\n    row.sort()": {"rows"},
    "%matplotlib inline\nx.y(z)": {"x", "z"},
}


def cell(code, **head):
    return Cell(head, code)


@pytest.mark.parametrize("code", MAKES)
def test_what_a_cell_makes(code):
    assert cell(code).makes == MAKES[code], "a name of a scope inside, or one that is missing"


@pytest.mark.parametrize("code", USES)
def test_what_a_cell_uses(code):
    assert cell(code).names == USES[code], "a name that is bound inside, or one that is missing"


def test_behind_a_cell_stand_those_that_made_what_it_uses():
    first = cell("d = 3", tags=["parameters"])
    old, rows, other, last = cell("rows = 1"), cell("rows = [d]"), cell("x = 2"), cell("y = rows\nz = x")
    written = [first, old, rows, other, last]
    assert list(behind(written, 4)) == [(other, {"x"}), (rows, {"rows"})], "the nearest cell that makes a name counts"


def test_a_check_goes_through_what_the_cells_behind_it_name():
    written = [cell("x = ng.center(1)"), cell("y = ng.draw(2)"), cell("check_parameters(d=1)\nx = ng.mean(x)")]
    written.append(cell("ng.verify('eq-x', ng.angle(x), 1)"))
    assert through(written, 3) == ["ng.angle", "ng.center"], "its own first; set-up and verify are no statement's"
