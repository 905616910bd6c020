"""The reference page: what the library exports, and how its docstrings read."""

import re

import click
import pytest
from press.book import Book
from press.labels import NAMED, role
from press.library import Library
from press.reference import calls, reference


@pytest.fixture(scope="module")
def objects(made):
    return {o.name: o for o in Library(Book(made)).public}


@pytest.fixture(scope="module")
def page(made):
    return reference(Book(made))


@pytest.fixture(scope="module")
def html(made):
    return (made / "_build/html/chapters/appendix/reference.html").read_text("utf-8")


def entry(page, name):
    """The lines of one name's description, without the indentation of its body."""
    block = next(block for block in page.split("````") if f":: {name}" in block)
    return [line.removeprefix("   ") for line in block.split("\n")]


def test_names_are_found_through_packages_modules_and_a_lazy_import(objects):
    where = {name: o.module.name for name, o in objects.items()}
    assert where == {
        "ng.Box": "toy.norms",
        "ng.center": "toy.norms",
        "ng.draw": "toy.view.draw",
        "ng.secular.mean": "toy.secular",
    }, "of draw, the definition is meant and not the module of the same name; of secular, what has no underscore"


def test_names_are_found_through_a_table_of_their_modules(copy, objects):
    homes = '_HOMES = {"norms": ("Box", "center"), "secular": ("secular",), "view.draw": ("draw",)}'
    names = '__all__ = ["Box", "center", "draw", "secular"]'
    (copy / "lib/toy/__init__.py").write_text(f"{homes}\n{names}\n", "utf-8")
    found = {o.name: o.module.name for o in Library(Book(copy)).public}
    assert found == {name: o.module.name for name, o in objects.items()}


def test_signatures_have_defaults_as_written_and_no_types(objects):
    assert objects["ng.center"].signature == "(x, *, times=1, tol=1e-12)"
    assert objects["ng.Box"].signature == "(size, lid='none')", "a class without __init__ is made from its fields"
    assert objects["ng.draw"].signature == "(**values)"


def test_a_constructor_hides_self(objects, copy):
    file = copy / "lib/toy/norms.py"
    made_by = "\n    def __init__(self, /, size=1e-6, *rest: int):\n        pass\n"
    file.write_text(file.read_text("utf-8").replace("\n    def forward", f"{made_by}\n    def forward"), "utf-8")
    box = next(o for o in Library(Book(copy)).public if o.name == "ng.Box")
    assert box.signature == "(size=1e-6, *rest)"


def test_members_are_the_public_ones_that_have_something_to_say(objects):
    members = [(m.name, m.kind, m.signature) for m in objects["ng.Box"].members]
    assert members == [
        ("ng.Box.full", "property", ""),
        ("ng.Box.of", "method", "(*numbers, lid='none')"),
        ("ng.Box.fill", "method", "(x)"),
    ]


def test_a_name_that_cannot_be_described_is_refused(copy):
    file = copy / "lib/toy/__init__.py"
    file.write_text(file.read_text("utf-8").replace('"draw", ', '"draw", "LIMIT", ') + "\nLIMIT = 3\n", "utf-8")
    with pytest.raises(click.ClickException, match=r"lib/toy/__init__\.py: LIMIT is no function, class or module"):
        _ = Library(Book(copy)).public


def test_the_library_is_read_and_not_run(copy):
    file = copy / "lib/toy/__init__.py"
    file.write_text(file.read_text("utf-8") + "\nraise SystemExit('imported')\n", "utf-8")
    assert len(Library(Book(copy)).public) == 4


def test_labels_are_told_from_other_words_with_hyphens():
    text = "eq-a (thm-b-c), re-eq-x, ``claim-no``, ex-, eq-…, claim-2; sub-sec-d def-e."
    assert NAMED.findall(text) == ["eq-a", "thm-b-c", "claim-2", "def-e"]


@pytest.mark.parametrize(
    ("label", "expected"),
    {"eq-a": "eq", "thm-a": "prf:ref", "err-a": "prf:ref", "fig-a": "numref", "sec-a": "ref", "ex-a": "ref"}.items(),
)
def test_each_kind_of_label_has_its_role(label, expected):
    assert role(label) == expected


def test_the_table_leads_from_statement_to_function_to_check(page):
    table = [line for line in page.splitlines() if line.startswith("| {")]
    check = "{ref}`chapter 1, cell 3 <check-01-mean-3>`"
    assert table == [
        f"| {{eq}}`eq-mean` | {{py:obj}}`ng.center` | {check} |",
        f"| {{eq}}`eq-short` | {{py:obj}}`ng.center` | {check} |",
        "| {prf:ref}`def-centred` (Centred) | {py:obj}`ng.Box` |  |",
        f"| {{prf:ref}}`thm-mean` (The norm $\\|x\\|$ shrinks) | {{py:obj}}`ng.center` | {check} |",
        "| {ref}`ex-shorter` (Shorter still) | {py:obj}`ng.Box` |  |",
    ], "in the order of the book; what a method names is its class's, what private code names is nobody's"


def test_a_docstring_becomes_links_and_fields(page):
    lines = entry(page, "center")
    assert (
        r"``x`` without its mean, :math:`x-\mu` :eq:`eq-mean`, :eq:`eq-short`; never longer (:prf:ref:`thm-mean`)."
        in lines
    ), "numbers of equations bring their own parentheses, other numbers do not"
    assert ":param x: the numbers; see :class:`ng.Box`." in lines
    assert ":returns: as many numbers." in lines
    assert ":raises ValueError: ``times`` is negative." in lines
    assert lines.index(":param times: how often.") < lines.index(":returns: as many numbers.")


def test_checks_that_call_a_function_are_named_with_what_they_verify(page):
    called = "Called in the checks of :eq:`eq-mean`, :eq:`eq-short`, :eq:`eq-shorter`, :prf:ref:`thm-mean` "
    for name in ("center", "mean"):
        lines = entry(page, f"{name}(")
        line = lines.index(f"{called}(:ref:`chapter 1, cell 3 <check-01-mean-3>`).")
        assert lines[line - 1] == "", f"{name}: without an empty line it would continue the sentence before"
    assert not [line for line in entry(page, "Box") if line.startswith("Called")]


def test_a_call_of_a_member_is_a_call_of_its_class_and_not_of_a_namesake():
    assert calls("ng.Box", "ng.Box")
    assert calls("ng.Box.of", "ng.Box")
    assert not calls("ng.Boxes", "ng.Box"), "another name that begins alike"
    assert not calls("ng.Box", "ng.Box.of")


def test_modules_stand_in_order_with_the_first_words_of_their_docstrings(page):
    assert re.findall(r"^## (.*)$", page, re.M) == [
        "norms",
        "secular",
        "view.draw",
    ]
    assert "````{eval-rst}\nWhat takes the mean away.\n````" in page
    assert page.index(":: center(") < page.index(":: Box("), "in the order of the file"


def test_the_page_shows_names_links_and_no_markup(html):
    for name in ("ng.center", "ng.Box", "ng.Box.of", "ng.Box.full", "ng.secular.mean", "ng.draw"):
        assert f'id="{name}"' in html, f"{name} has no place to link to"
    text = re.sub(r"<[^>]+>", "", html)
    assert "never longer (Theorem 1.1)" in text
    assert "(1.1), (1.2); never longer" in text
    assert "classmethod ng.Box.of" in " ".join(text.split()) or "classmethod of(" in " ".join(text.split())
    assert "a claim-no in code is no label" in text
    assert not re.findall(r":(?:eq|ref|prf:ref|func|class|meth|param|raises)\b[ :]", text), "reST that nobody rendered"
    assert 'href="../01-mean.html#equation-eq-mean"' in html
    assert 'href="../01-mean.html#check-01-mean-3"' in html
