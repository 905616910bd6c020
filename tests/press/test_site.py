"""The toy book's pages: numbers, alt text, scripts."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def html(made):
    def read(name):
        return (made / f"_build/html/chapters/{name}.html").read_text("utf-8")

    return read


def test_chapters_are_numbered_by_their_file_names(made):
    labels = json.loads((made / "_build/labels.json").read_text("utf-8"))["labels"]
    assert labels["eq-mean"]["ref"] == "(1.1)"
    assert labels["thm-mean"]["ref"] == "Theorem 1.1"
    assert labels["fig-dot"]["numref"] == "Fig. 1.1"
    assert labels["claim-right"]["ref"] == "Observation 2.1"
    assert labels["eq-wrong"]["ref"] == "(1)"


def test_the_number_is_the_same_in_heading_contents_and_neighbour(html):
    number = r'<span class="section-number">2\. </span>'
    assert re.search(rf"<h1>{number}The angle", html("02-angle"))
    assert re.search(r'href="02-angle.html">2\. The angle</a>', html("01-mean"))
    assert re.search(rf'prev-next-title">{number}The angle', html("01-mean"))


def test_an_image_has_its_own_alt_text(html):
    assert re.search(r'<img alt="A dot at the origin\."', html("01-mean"))


def test_a_turning_figure_comes_whole_and_described(html):
    assert '<svg role="img" aria-label="Three points: 1, 3, 2."><path d="M0,1L1,3L2,2"/></svg>' in html("02-angle")


def test_of_the_icons_those_that_are_shown_are_served(made):
    script = (made / "_build/html/_static/scripts/fontawesome.js").read_text("utf-8")
    assert re.search(r'"magnifying-glass":\[512,512,', script), "an icon of the pages is missing"
    assert '"zhihu":' not in script and len(script) < 250_000, "icons that no page shows are served"


def test_a_glossary_has_its_terms_and_no_others(made, html):
    built = json.loads((made / "_build/labels.json").read_text("utf-8"))
    assert built["terms"] == dict.fromkeys(("mean", "vector"), "chapters/appendix/notation")
    page = html("appendix/notation")
    assert page.index('id="term-mean"') < page.index('id="term-vector"')
    assert 'href="appendix/notation.html#term-mean"' in html("01-mean")
