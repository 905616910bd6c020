"""What the eye meets: the measure of the text, one left edge, tables that say that they scroll, ink in the dark."""

import re

import pytest
from walk import DESK, PHONE

# Letters of each paragraph without mathematics, and its lines.
LINES = """() => [...document.querySelectorAll('section > p:not(:has(.math))')].filter(e => e.checkVisibility())
    .map(e => [e.innerText.length, Math.round(e.clientHeight / parseFloat(getComputedStyle(e).lineHeight))])"""
EDGES = """() => [...document.querySelectorAll(
        'section > :is(p, h2, h3, details, ul, figure, .math), figure, figcaption, .cell_input, caption')]
    .filter(e => e.checkVisibility() && !e.closest('li, .proof, .admonition, details > *'))
    .map(e => Math.round(e.getBoundingClientRect().left))"""
SCROLLING = """() => [...document.querySelectorAll('table:has(caption)')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => getComputedStyle(e.querySelector('caption'), '::after').content)"""
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


def test_a_page_has_one_left_edge(page):
    for screen in (DESK, PHONE):
        page.set_viewport_size(screen)
        edges = page.evaluate(EDGES)
        assert len(edges) > 20 and max(edges) - min(edges) <= 1, sorted(set(edges))


def test_a_table_says_that_it_scrolls(page):
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(300)
    assert all("Scrolls" in said for said in page.evaluate(SCROLLING))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
