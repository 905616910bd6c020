"""The reference page: what the library exports, and how its docstrings read."""

import re

import pytest
from bs4 import BeautifulSoup
from press.book import Book
from press.labels import NAMED, role
from press.reference import linked, public, reference


@pytest.fixture(scope="module")
def page(made):
    return reference(Book(made))


@pytest.fixture(scope="module")
def html(made):
    text = (made / "_build/html/chapters/appendix/reference.html").read_text("utf-8")
    return BeautifulSoup(text, "html.parser").article


def test_names_are_found_through_packages_modules_and_a_lazy_import(made):
    assert {p.name: p.value.__module__ for p in public("toy")} == {
        "ng.Box": "toy.norms",
        "ng.center": "toy.norms",
        "ng.draw": "toy.view.draw",
        "ng.secular.mean": "toy.secular",
    }, "of draw, the definition is meant and not the module of the same name; of secular, what it exports"


def test_labels_are_told_from_other_words_with_hyphens():
    text = "eq-a (thm-b-c), re-eq-x, ``claim-no``, ex-, eq-…, claim-2; sub-sec-d def-e."
    assert NAMED.findall(text) == ["eq-a", "thm-b-c", "claim-2", "def-e"]
    roles = {"eq-a": "eq", "thm-a": "prf:ref", "err-a": "prf:ref", "fig-a": "numref", "sec-a": "ref", "ex-a": "ref"}
    assert {label: role(label) for label in roles} == roles


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


def test_a_docstring_becomes_links():
    said = linked("Of :class:`toy.Box` (eq-mean, eq-short); never longer (thm-mean).", "toy")
    assert said == "Of :class:`ng.Box` :eq:`eq-mean`, :eq:`eq-short`; never longer (:prf:ref:`thm-mean`)."


def test_modules_stand_in_order_with_the_first_words_of_their_docstrings(page):
    assert re.findall(r"^## (.*)$", page, re.M) == ["norms", "secular", "view.draw"]
    assert "````{eval-rst}\nWhat takes the mean away.\n````" in page
    assert page.index("autofunction:: ng.center") < page.index("autoclass:: ng.Box"), "in the order of the file"


def test_the_page_shows_names_signatures_links_and_no_markup(html):
    for name in ("ng.center", "ng.Box", "ng.Box.of", "ng.Box.full", "ng.Box.fill", "ng.secular.mean", "ng.draw"):
        assert html.find(id=name), f"{name} has no place to link to"
    assert not html.find(id="ng.Box.forward"), "a member without a docstring has nothing to say"
    text = " ".join(html.get_text().split())
    assert "(x, *, times=1, tol=1e-12)" in text, "defaults as written, no types"
    assert "never longer (Theorem 1.1)" in text and "(1.1), (1.2); never longer" in text
    assert "a claim-no in code is no label" in text and "how often." in text
    assert not re.findall(r":(?:eq|ref|prf:ref|func|class|meth|param|raises)\b[ :]", text), "reST that nobody rendered"
    links = {a["href"] for a in html.select("a[href]")}
    assert {"../01-mean.html#equation-eq-mean", "../01-mean.html#check-01-mean-3"} <= links
