"""What is folded, under which words, and how pages show it."""

import json

import pytest
from bs4 import BeautifulSoup
from nbformat import v4
from press.labels import Check, Verdict
from press.quiet import line, number, title
from press.seeds import Tried

TRIED = Tried(seeds=20, held=20, deviation=0.7, mutant=2.5, version="0")
ERROR = Verdict("thm-a", "error ≤ 1e-12", "ε outside the root", "4e-01")
VALUE = Verdict("claim-a", "value 0.031 ≤ 0.06", "no norm", "0.15")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.333333", "0.333"),
        ("1e-12", "10⁻¹²"),
        ("7e-06", "7·10⁻⁶"),
        ("3e+02", "300"),
        ("4e-01", "0.4"),
        ("0.15", "0.15"),
        ("2e+07", "2·10⁷"),
    ],
)
def test_numbers_are_written_as_one_prints_them(text, said):
    assert number(text) == said


def check(*verdicts, measured_on=""):
    return Check("02-angle", 3, [v.label for v in verdicts], measured_on, list(verdicts))


@pytest.mark.parametrize(
    ("made", "tries", "said"),
    [
        (check(ERROR), {}, "Error at most 10⁻¹²; near miss (ε outside the root): error 0.4."),
        (
            check(VALUE, measured_on="20 recorded pairs"),
            {},
            "Measured 0.031 (claimed: at most 0.06); near miss (no norm): 0.15. Measured on 20 recorded pairs.",
        ),
        (
            check(VALUE),
            {"claim-a": TRIED},
            "At most 0.042 at all 20 seeds (claimed: 0.06); near miss (no norm): at least 0.15.",
        ),
        (
            check(VALUE),
            {"claim-a": TRIED._replace(held=18)},
            "At most 0.042 at 18 of 20 seeds (claimed: 0.06); near miss (no norm): at least 0.15.",
        ),
        (
            check(VALUE, measured_on="recorded, the model of claim-b by `make bench`"),
            {},
            "Measured 0.031 (claimed: at most 0.06); near miss (no norm): 0.15. "
            "Recorded, the model of {claim-b} by make bench.",
        ),
        (
            check(ERROR, Verdict("eq-b", "error ≤ 1e-300", "LayerNorm", "2")),
            {},
            "{thm-a}: error at most 10⁻¹²; near miss (ε outside the root): error 0.4. "
            "{eq-b}: exactly equal; near miss (LayerNorm): error 2.",
        ),
    ],
    ids=["statement", "pairs", "live", "not at all seeds", "recorded", "two"],
)
def test_a_check_is_one_line_made_from_what_it_printed(made, tries, said):
    assert line(made, tries) == said


@pytest.mark.parametrize(
    ("source", "metadata", "said"),
    [
        ("d: int = 4  # width\nseed: int = 0", {"tags": ["parameters"]}, "Parameters: d, seed"),
        ("import torch", {"fold": "Imports"}, "Imports"),
        ("show()", {"mystnb": {"figure": {"name": "fig-a"}}}, "Code of this figure"),
        ("show()", {"table": {"name": "tab-a"}}, "Code of this table"),
        ("show()", {"table": {"name": "tab-a"}, "fold": "The runs"}, "The runs"),
        ("def norm(x): ...", {}, ""),
    ],
)
def test_what_is_folded_says_what_it_is(source, metadata, said):
    assert title(v4.new_code_cell(source, metadata=metadata)) == said


@pytest.fixture(scope="module")
def html(made):
    folder = made / "_build/html"
    return lambda name: BeautifulSoup((folder / f"chapters/{name}.html").read_text("utf-8"), "html.parser")


def test_a_folded_check_is_one_line_with_its_row_of_the_ledger(html):
    (check,) = html("02-angle").select("details.code p.check")
    assert check.text == (
        "Observation 2.1. At most 0.069 at all 20 seeds (claimed: 0.1); near miss (all vectors alike): at least 7.1. "
        "Measured on eight toy vectors. Ledger"
    )
    assert "claim-right: value" in check.parent.text, "what it printed is below"
    page, _, row = check.select("a")[-1]["href"].partition("#")
    assert page == "appendix/ledger.html" and html("appendix/ledger").find(id=row)


def test_several_statements_are_named_as_readers_know_them(html):
    (check,) = html("01-mean").select("details.code p.check")
    assert check.text.startswith("(1.1): error at most 10⁻¹²; near miss (the mean | forgotten): error 0.03.")
    assert "Theorem 1.1: error at most" in check.text


def test_only_what_teaches_stays_open(html):
    page = html("01-mean")
    titles = [p.text for p in page.select("details.code > .cell > p:not(.check)")]
    assert titles == ["Parameters: d, seed", "Fig. 1.1. Code of this figure", "Table 1.1. Code of this table"]
    assert not [cell for cell in page.select(".cell_input") if not cell.find_parent("details")]


def test_statements_carry_how_they_are_known(html):
    marks = {
        box["id"]: box.select_one(".marks") for box in html("01-mean").select(".proof[id]") if box.select(".marks")
    }
    assert marks["thm-mean"].summary.text == "✓ proved and checked"
    assert "Theorem 1.1: error at most" in marks["thm-mean"].text and "Uses (1.1)." in marks["thm-mean"].text
    target = marks["thm-mean"].select_one("a")["href"]
    assert html("01-mean").select_one(target), "the mark leads to the check"
    measured = html("02-angle").find(id="claim-right").select_one(".marks")
    assert measured.summary.text == "◦ measured on eight toy vectors, at each of 20 seeds"


def test_previews_hold_statements_equations_and_terms(made):
    text = (made / "_build/html/_static/previews.js").read_text("utf-8")
    shown = json.loads(text.removeprefix("previews = ").rstrip(";\n"))
    assert "Theorem 1.1" in shown["chapters/01-mean.html#thm-mean"]
    assert r"\[" in shown["chapters/01-mean.html#equation-eq-mean"]
    assert not [key for key, html in shown.items() if "<a " in html or ' id="' in html]
