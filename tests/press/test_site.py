"""The toy book's pages: numbers, alt text, scripts."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def html(made):
    def read(name):
        return (made / f"_build/html/chapters/{name}.html").read_text("utf-8")

    return read


def test_the_number_is_the_same_in_heading_contents_and_neighbour(html):
    number = r'<span class="section-number">2\. </span>'
    assert re.search(rf"<h1>{number}The angle", html("02-angle"))
    assert re.search(r'href="02-angle.html">2\. The angle</a>', html("01-mean"))
    assert re.search(rf'prev-next-title">{number}The angle', html("01-mean"))


def test_a_glossary_has_its_terms_and_no_others(made, html):
    built = json.loads((made / "_build/labels.json").read_text("utf-8"))
    assert built["terms"] == dict.fromkeys(("mean", "vector"), "chapters/appendix/notation")
    page = html("appendix/notation")
    assert page.index('id="term-mean"') < page.index('id="term-vector"')
    assert 'href="appendix/notation.html#term-mean"' in html("01-mean")
