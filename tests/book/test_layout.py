"""What the eye meets: the measure of the text, one left edge, tables that say that they scroll, ink in the dark."""

import re
from itertools import combinations

import pytest
from walk import DESK, PHONE

# Letters of each paragraph without mathematics, and its lines.
LINES = """() => [...document.querySelectorAll('section > p:not(:has(.math))')].filter(e => e.checkVisibility())
    .map(e => [e.innerText.length, Math.round(e.clientHeight / parseFloat(getComputedStyle(e).lineHeight))])"""
# Of a chapter, "Further" closed at the desk and open on the phone; a table is cut where it is wider than its place.
MOST = {"desk": {"folds": 35, "tables": 9, "figures": 9, "cut": 0}, "phone": {"cut": 9}}
SMALL = """() => {
    const all = (chosen) => [...document.querySelectorAll(chosen)].filter((e) => e.checkVisibility());
    const high = (e) => e.getBoundingClientRect().height;
    const cells = all("table.prose td:not(:first-child)");
    return {
        pressed: all(".fold > summary, .copybtn, .article-header-buttons button, label.margin-toggle")
            .filter((e) => high(e) < 39.5).map((e) => `${e.className} ${high(e)}`),
        sizes: all("div.math mjx-container").map((e) => parseFloat(getComputedStyle(e).fontSize)),
        wrapped: all(".cell_input pre").filter((e) => getComputedStyle(e).whiteSpaceCollapse !== "preserve"
            || getComputedStyle(e).textWrapMode !== "nowrap").length,
        rows: all("table.prose tr").length,
        unnamed: cells.filter((e) => getComputedStyle(e, "::before").content.length < 5).map((e) => e.innerText),
    };
}"""
DARK, LEAST = "121212", 3  # the theme's ground, and the contrast that WCAG 2 asks of drawings
INK = re.compile(r"\[style\*='stroke: #(\w+)'\] \{ stroke: #(\w+) ")
GROUNDS = {"ffffff", "f7fbff", "d6e6f2"}


@pytest.fixture(params=["02-uniform-vector", "06-placement", "11-precision-speed"])
def page(request, browser, html):
    page = browser.new_page(viewport=DESK)
    page.goto((html / f"chapters/{request.param}.html").as_uri())
    page.evaluate("() => window.MathJax?.startup?.promise")
    yield page
    page.close()


def test_lines_have_about_sixty_eight_letters(page):
    long = [(letters, lines) for letters, lines in page.evaluate(LINES) if lines >= 3]
    # The last line of a paragraph is half full.
    mean = sum(letters for letters, _ in long) / sum(lines - 0.5 for _, lines in long)
    assert len(long) > 2 and 62 <= mean <= 74


@pytest.mark.parametrize(("screen", "most"), MOST.items())
def test_a_page_has_few_parts_and_one_left_edge(walks, screen, most):
    for name, page in walks.items():
        found = page.layout[{"desk": DESK, "phone": PHONE}[screen]["width"]]
        assert len(found["edges"]) <= 1, f"{name}: left edges at {found['edges']}"
        assert not found["unsaid"], f"{name}: tables that scroll do not say so"
        assert not found["covering"], f"{name}: notes of the margin that cover something"
        if name[:2] > "00" and name[:2].isdigit():
            assert all(found[kind] <= most[kind] for kind in most), f"{name}: {found}, at most {most}"


def test_notes_are_in_the_margin_and_folded_on_a_phone(browser, html, walks):
    chapters = {name: page.layout for name, page in walks.items() if name[:2] > "00" and name[:2].isdigit()}
    assert len(chapters) == 12 and all(seen[DESK["width"]]["notes"] for seen in chapters.values())
    assert not any(seen[PHONE["width"]]["notes"] for seen in chapters.values())
    page = browser.new_page(viewport=PHONE)
    page.goto((html / "chapters/05-jacobians.html").as_uri())
    page.locator("input.margin-toggle").first.focus()
    page.keyboard.press("Space")
    assert page.locator(".sidenote").first.is_visible() and not page.locator(".sidenote").nth(1).is_visible()
    page.emulate_media(media="print")
    assert all(note.is_visible() for note in page.locator("section > p > .sidenote").all())
    page.close()


def test_fingers_and_small_screens_are_enough(browser, html):
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto((html / "chapters/12-after-layernorm.html").as_uri())
    page.evaluate("() => window.MathJax.startup.promise")
    page.wait_for_function("document.querySelector('td[data-label]')")
    found = page.evaluate(SMALL)
    assert not found["pressed"], "too small for a finger"
    assert len(found["sizes"]) > 10 and min(found["sizes"]) >= 13.9, "formulas that are too small to read"
    assert not found["wrapped"], "code whose indentation is lost"
    assert found["rows"] > 20 and not found["unnamed"], "cells of a row that have no names"
    page.goto((html / "chapters/11-precision-speed.html").as_uri())
    table = page.locator("#tab-quantised")
    table.evaluate("table => { table.scrollLeft = 100; }")
    assert table.locator("tbody tr > :first-child").first.bounding_box()["x"] >= 0, "rows whose names scroll away"
    page.close()


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def apart(one: str, other: str) -> float:
    return sum((int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) ** 2 for at in (0, 2, 4)) ** 0.5


def test_colours_of_lines_differ_in_the_dark_too(html):
    figures = list((html.parent / "stage/figures").glob("*.svg"))
    assert len(figures) > 40
    for figure in figures:
        svg = figure.read_text("utf-8")
        inks, lines = dict(INK.findall(svg.replace('"', "'"))), set(re.findall(r'style="[^"]*stroke: #(\w{6})', svg))
        pairs = [pair for pair in combinations(sorted(lines), 2) if apart(*pair) > 60]
        alike = [pair for pair in pairs if apart(*(inks.get(colour, colour) for colour in pair)) < 30]
        assert not alike, f"{figure.name}: {alike}"


def test_ink_stands_out_in_the_dark(html):
    figures, pale = list((html / "_images").glob("*.svg")), {}
    for figure in figures:
        svg = figure.read_text("utf-8")
        inks = dict(INK.findall(svg.replace('"', "'")))
        for colour in set(re.findall(r'style="[^"]*stroke: #(\w{6})', svg)) - GROUNDS:
            ratio = (luminance(inks.get(colour, colour)) + 0.05) / (luminance(DARK) + 0.05)
            if ratio < LEAST:
                pale[figure.name, colour] = round(ratio, 1)
    assert len(figures) > 40 and not pale
