"""A printed page: words, formulas and pictures on white paper, and nothing that only a screen can use."""

import io
import re
from dataclasses import dataclass

import pytest
from PIL import Image

# A4 less the margins of book.css, in pixels of CSS.
WIDTH, HEIGHT = round((210 - 2 * 16) * 96 / 25.4), round((297 - 2 * 18) * 96 / 25.4)
WIDE_SCREEN = {"width": 1920, "height": 1080}
FACTS = """() => {
    const visible = e => e.checkVisibility({opacityProperty: true, visibilityProperty: true})
        && e.getBoundingClientRect().width > 1 && e.getBoundingClientRect().height > 1;
    document.querySelectorAll("mjx-assistive-mml").forEach(spoken => spoken.remove());
    const all = selector => [...document.querySelectorAll(selector)];
    const shown = selector => all(selector).filter(visible);
    const named = e => `${e.localName}.${e.getAttribute("class") || ""} ${e.textContent.trim().slice(0, 30)}`;
    const style = (e, part) => getComputedStyle(e, part);
    const inside = e => !e.closest("svg, mjx-container *");
    const body = shown(".bd-main *").filter(inside);
    const cut = e => style(e).overflowX !== "visible" && e.clientWidth && e.scrollWidth > e.clientWidth + 1;
    const out = e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1;
    const channel = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const onWhite = color => {
        const [r, g, b] = color.match(/[\\d.]+/g).map(v => channel(v / 255));
        return 1.05 / (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05);
    };
    const words = e => [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    return {
        text: document.body.innerText,
        height: Math.max(...body.map(e => e.getBoundingClientRect().bottom)),
        controls: shown("button, input, select, textarea, summary")
            .filter(e => !e.parentElement.matches(".marks, .solution, .further")).map(named),
        pressed: shown("summary").filter(e => style(e, "::before").display !== "none").map(named),
        title: shown("h1").map(e => [e.innerText, style(e).fontFamily.includes("Serif")]),
        column: Math.max(...shown("section > p").map(e => e.getBoundingClientRect().width)) / innerWidth,
        narrow: shown("caption").filter(e => e.clientHeight > 40 && e.clientWidth < innerWidth * 0.8).map(named),
        around: shown("header, footer, aside, nav, .bd-sidebar").map(named),
        wide: body.filter(e => cut(e) || out(e)).map(named),
        closed: all(".solution details > :not(summary)").filter(e => !visible(e)).map(named),
        folds: shown("details.fold.code").map(named),
        frames: all(".explore").map(e => [...e.querySelectorAll("img")].filter(visible).length),
        mute: all(".explore output")
            .filter(e => !visible(e) || !e.textContent).map(named),
        split: all("figure, .explore, div.math, .proof, tr").filter(visible)
            .filter(e => style(e).breakInside !== "avoid").map(named),
        pale: body.filter(e => words(e) && onWhite(style(e).color) < 4.5).map(named),
    };
}"""
THEMES = """() => {
    window.themes = [];
    const note = () => themes.push(document.documentElement.dataset.theme);
    new MutationObserver(note).observe(document.documentElement, {attributeFilter: ["data-theme"]});
}"""


@dataclass
class Printed:
    """What a page looks like on paper, printed from a wide and dark screen."""

    facts: dict
    pages: int
    white: float
    themes: list[str]


# Between them they have sliders, solutions, folds and the longest tables.
FEW = ("02-uniform-vector", "11-precision-speed", "appendix/ledger")


@pytest.fixture(scope="module")
def printed(browser, html):
    """Pages of the book by their names."""
    return {name: print_out(browser, html / f"chapters/{name}.html") for name in FEW}


def print_out(browser, path) -> Printed:
    page = browser.new_page(viewport=WIDE_SCREEN)
    page.goto(path.as_uri())
    page.wait_for_function("() => window.MathJax?.startup?.promise?.then(() => true) ?? true")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate(THEMES)
    pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4", prefer_css_page_size=True)))
    themes = page.evaluate("themes")
    # As page.pdf does, but here the page can be looked at.
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint')), document.getAnimations().forEach(a => a.finish())")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    facts = page.evaluate(FACTS)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    white = sum(count for count, color in shot.getcolors(2**24) if color == (255, 255, 255)) / (WIDTH * HEIGHT)
    page.close()
    return Printed(facts, pages, white, themes)


def collect(printed, fact):
    """What was found, by page, where anything was found."""
    return {name: page.facts[fact] for name, page in printed.items() if page.facts[fact]}


def test_all_of_the_page_is_printed(printed):
    for name, page in printed.items():
        least = page.facts["height"] / HEIGHT
        assert page.pages >= 0.9 * least, f"{name}: {page.pages} pages for {least:.1f}: a part is missing"
        assert page.pages <= 1.4 * least + 1, f"{name}: {page.pages} pages for {least:.1f}: too much of them is empty"


def test_nothing_on_paper_wants_to_be_pressed(printed):
    assert not collect(printed, "controls") and not collect(printed, "pressed")
    assert not collect(printed, "around"), "what surrounds a page on the screen is printed"
    for name, page in printed.items():
        found = re.findall(
            r"Search this book|Click to \w+|Show code cell|Hide code cell|Skip to main", page.facts["text"]
        )
        assert not found, name


def test_nothing_is_wider_than_the_paper(printed):
    assert not collect(printed, "wide"), "cut off at the margin"


def test_the_text_is_as_wide_as_paper_wants_under_its_own_title(printed):
    titles = {name: page.facts["title"] for name, page in printed.items()}
    assert titles["02-uniform-vector"] == [["2. The uniform vector", True]]
    assert all(len(title) == 1 for title in titles.values()), titles
    assert all(0.8 < page.facts["column"] < 0.95 for page in printed.values())
    assert not collect(printed, "narrow"), "captions narrower than the text"
    assert "Try it yourself" not in printed["02-uniform-vector"].facts["text"]


def test_solutions_are_open_and_folded_code_is_away(printed, html):
    assert any("Solution to" in page.facts["text"] for page in printed.values()), "no page has a solution"
    assert not collect(printed, "closed"), "a solution that nobody can open"
    assert any("details class" in (html / f"chapters/{name}.html").read_text("utf-8") for name in printed)
    assert not collect(printed, "folds"), "a fold that nobody can open"


def test_sliders_print_one_frame_and_its_values(printed):
    frames = collect(printed, "frames")
    assert frames, "no page has sliders over frames"
    assert {count for counts in frames.values() for count in counts} == {1}, "frames printed of a figure with sliders"
    assert not collect(printed, "mute"), "a slider whose value is not printed"


def test_figures_and_formulas_stay_on_one_page(printed):
    assert not collect(printed, "split")


def test_a_dark_page_is_printed_in_dark_words_on_white(printed):
    for name, page in printed.items():
        assert page.themes == ["light", "dark"], f"{name}: while printing the theme is light, then what it was"
        assert page.white > 0.3, f"{name}: the paper is not white"
    assert not collect(printed, "pale"), "browsers print no backgrounds, and this is too faint on white"
