"""The library's functions behind a check."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell, new_notebook
from press.book import Page
from press.labels import Claims
from press.through import Through

TOY = Path(__file__).with_name("toy")
HEAD = """%matplotlib inline
import toy as ng
from toy import Box as Crate
from toy import secular
from toy.norms import center as middle
from toy.view.draw import draw"""


def behind(*cells, check="print(x)"):
    """What a check goes through that stands below these cells."""
    code = [new_code_cell(source) for source in (HEAD, *cells, check)]
    code[-1].metadata = {"tags": ["check"], "verifies": ["eq-x"]}
    later = new_code_cell("x = ng.later(1)")
    page = Page("02-x", True, new_notebook(cells=[*code, later]))
    book = SimpleNamespace(root=TOY, project={"name": "toy"}, pages=[page])
    (found,) = Claims(book).checks
    return Through(book).functions(found)


CASES = {
    "the cell itself": (["y = 1"], "ng.center([1.0])", ["ng.center"]),
    "by another name": ([], "middle([1.0])", ["norms.center"]),
    "through what a package passes on": ([], "Crate((1, 2))", ["norms.Box"]),
    "in a module": ([], "secular.mean([1.0])", ["secular.mean"]),
    "what made a name": (["x = ng.center([1.0])"], "print(x)", ["ng.center"]),
    "what made what made it": (["y = ng.center([1.0])", "x = [y]"], "print(x)", ["ng.center"]),
    "a function of the chapter": (["def f(z):\n    return ng.center(z)"], "print(f(1))", ["ng.center"]),
    "in a function of a function": (
        ["g = lambda z: middle(z)", "def f(z):\n    return g(z)"],
        "print(f(1))",
        ["norms.center"],
    ),
    "the last maker only": (["x = ng.center([1.0])", "x = 1"], "print(x)", []),
    "a maker that uses the one before": (["x = ng.center([1.0])", "x = x + 1"], "print(x)", ["ng.center"]),
    "one of two in a cell": (["x = 1\ny = ng.center([1.0])"], "print(x)", []),
    "a name of a function's own": (["z = ng.center([1.0])\nf = lambda z: z"], "print(f(1))", []),
    "a name of a comprehension's own": (["z = ng.center([1.0])"], "print([z for z in (1, 2)])", []),
    "a name of a loop's own": (["z = ng.center([1.0])"], "for z in (1, 2):\n    print(z)", []),
    "what a loop made": (["for x in ng.center([1.0]):\n    pass"], "print(x)", ["ng.center"]),
    "what filled it": (["x = {}\nfor i in (1, 2):\n    x[i] = ng.center([1.0])"], "print(x)", ["ng.center"]),
    "what was appended": (["x = []\nx.append(ng.center([1.0]))"], "print(x)", ["ng.center"]),
    "what was set on it": (["x = Crate()\nx.lid.size = ng.center([1.0])"], "print(x)", ["ng.center", "norms.Box"]),
    "other calls of a module": (["ng.center([1.0])"], "ng.draw(1)", ["ng.draw"]),
    "the services": (["ng.check_parameters(d=1)"], "draw(1)\nng.verify('eq-x', 0, 1)", []),
    "nothing unused": (["y = ng.center([1.0])"], "print(x)", []),
}


@pytest.mark.parametrize(("cells", "check", "functions"), CASES.values(), ids=CASES)
def test_it_follows(cells, check, functions):
    assert behind(*cells, check=check) == functions


def test_the_cells_own_come_first_and_each_once():
    made = ["x = middle(ng.Box((1,)))", "y = ng.center(x)"]
    assert behind(*made, check="m = ng.secular.mean(y)\nng.center(m)") == [
        "ng.secular.mean",
        "ng.center",
        "ng.Box",
        "norms.center",
    ]
