"""The course kit in a browser: what it names is on the slides, each slide fits its screen and its sheet, keys move."""

import re
from collections import Counter
from dataclasses import dataclass
from io import BytesIO

import pytest
from press.book import CHAPTERS, COURSE
from press.course import lectures
from pypdf import PdfReader

SCREEN, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
LEAST = 20  # pixels of the words on a slide of that screen
FITTED = "() => document.documentElement.dataset.fitted !== undefined"
NOW = """() => [...document.querySelectorAll('.slide')]
    .findIndex(slide => slide.checkVisibility({visibilityProperty: true}))"""
OVER = """() => [...document.querySelectorAll('.shown, .shown div.math, .shown div.math mjx-container')]
    .filter(box => box.scrollWidth > box.clientWidth + 1
        || box.matches('.shown') && box.scrollHeight > box.clientHeight + 1)
    .map(box => box.closest('.slide').id)"""
SMALL = """least => {
    const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) {
        const text = texts.currentNode.textContent.trim(), e = texts.currentNode.parentElement;
        if (!text || !e.checkVisibility() || e.closest('svg, script, mjx-container')) continue;
        const size = parseFloat(getComputedStyle(e).fontSize);
        if (size < least) found.push(`${e.closest('.slide').id}: ${text.slice(0, 30)} (${size})`);
    }
    return found;
}"""
# Of each picture the larger share of its slide's width or height that it takes.
SHARES = """() => Object.fromEntries([...document.querySelectorAll('.shown > figure')].map(figure => {
    const picture = [...figure.querySelectorAll('img, svg')].find(drawn => drawn.checkVisibility());
    const {width, height} = picture.getBoundingClientRect();
    return [figure.id, Math.max(width / innerWidth, height / innerHeight)];
}))"""


@dataclass
class Deck:
    """A lecture, its file, and what a browser said and loaded."""

    lecture: object
    page: object
    html: str
    complaints: list
    requests: list


@pytest.fixture(scope="module")
def decks(browser, book, html):
    opened = []
    for lecture in lectures(book):
        page, complaints, requests = browser.new_page(viewport=SCREEN), [], []
        page.on("pageerror", lambda error, to=complaints: to.append(str(error)))
        page.on("console", lambda said, to=complaints: to.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request, to=requests: to.append(request.url))
        page.goto((html / lecture.file).as_uri())
        page.wait_for_function(FITTED)
        opened.append(Deck(lecture, page, (html / lecture.file).read_text("utf-8"), complaints, requests))
    yield opened
    for deck in opened:
        deck.page.close()


@pytest.fixture
def first(decks):
    """The first deck at its first slide."""
    page = decks[0].page
    page.set_viewport_size(SCREEN)
    page.locator(".slide.now").focus()
    page.keyboard.press("Home")
    return page


def test_a_lecture_takes_ninety_minutes(book):
    assert len(lectures(book)) == 4
    assert {sum(part.minutes for part in lecture.parts) for lecture in lectures(book)} == {90}


def test_what_the_kit_names_is_on_the_slides(decks, html):
    kit = (html / f"{CHAPTERS}/{COURSE}.html").read_text("utf-8")
    for deck in decks:
        labels = [*deck.lecture.shown, *deck.lecture.exercises]
        shown = [slide.get_attribute("id") for slide in deck.page.locator(".slide").all()]
        assert shown == ["slide-aims", "slide-words", *(f"slide-{label}" for label in labels)]
        assert all(f'{label}"' in kit for label in labels), "the kit leads to no such place"
        empty = [slide.get_attribute("id") for slide in deck.page.locator(".slide:not(:has(.shown > *))").all()]
        assert not empty, "slides without anything on them"


def test_slides_ask_nothing_of_others_and_copy_nothing(decks, html):
    for deck in decks:
        assert not deck.complaints, deck.complaints
        assert not [url for url in deck.requests if not url.startswith(("file:", "data:"))]
        pictures = set(re.findall(r'src="\.\./(_images/[^"]+)"', deck.html))
        pages = "".join(
            (html / page).read_text("utf-8") for page in set(re.findall(r'"\.\./(chapters/\d[^"#]+)', deck.html))
        )
        assert all(f'src="../{picture}"' in pages for picture in pictures), "a picture that is on no page"
        ids = Counter(re.findall(r' id="([^"]+)"', deck.html))
        assert max(ids.values()) == 1, f"one id in two places: {ids.most_common(3)}"
    assert sorted(path.name for path in (html / "course").iterdir()) == [deck.lecture.file[7:] for deck in decks]


def test_slides_lead_back_to_their_places(decks, html):
    for deck in decks:
        links = set(re.findall(r'<a href="\.\./([^"#]+)#?([^"]*)"', deck.html))
        assert len(links) > len(deck.lecture.shown)
        for page, anchor in links:
            assert not anchor or f'id="{anchor}"' in (html / page).read_text("utf-8"), f"{page}#{anchor}"


def test_each_slide_fits_its_screen(decks):
    for deck in decks:
        deck.page.set_viewport_size(SCREEN)
        assert not deck.page.evaluate(OVER)
        assert not deck.page.evaluate(SMALL, LEAST), "words too small to be read from the last row"
        shares = deck.page.evaluate(SHARES)
        assert shares and min(shares.values()) > 0.5, f"a picture smaller than half of its slide: {shares}"


@pytest.mark.slow
def test_printing_gives_one_slide_a_page(decks):
    for deck in decks:
        sheets = PdfReader(BytesIO(deck.page.pdf(prefer_css_page_size=True))).pages
        assert len(sheets) == deck.page.locator(".slide").count()
        assert sheets[0].mediabox.width > sheets[0].mediabox.height, "a slide lies on its side"
        for at, sheet in enumerate(sheets, 1):
            assert f"{at} / {len(sheets)}" in " ".join(sheet.extract_text().split()), "the foot of a slide is cut off"


def test_keys_move(first):
    last = first.locator(".slide").count() - 1
    for key, at in {
        "ArrowRight": 1,
        " ": 2,
        "PageDown": 3,
        "ArrowLeft": 2,
        "Shift+ ": 1,
        "End": last,
        "Home": 0,
    }.items():
        first.keyboard.press(key)
        assert first.evaluate(NOW) == at, f"after {key!r}"
    first.keyboard.press("ArrowLeft")
    assert first.evaluate(NOW) == 0
    assert first.locator(".slide.now").evaluate("slide => slide === document.activeElement"), "the focus is elsewhere"


def test_the_address_and_the_buttons_choose(first, html):
    first.get_by_role("button", name="Next slide").click()
    assert first.evaluate(NOW) == 1
    assert first.url.endswith("#slide-words")
    first.goto(first.url.partition("#")[0] + "#slide-fig-ring")
    assert first.locator(".slide.now").get_attribute("id") == "slide-fig-ring"


def test_a_slider_keeps_its_keys(first):
    first.goto(first.url.partition("#")[0] + "#slide-fig-ring")
    at, slider = first.evaluate(NOW), first.locator(".slide.now input[type=range]").first
    shown = "() => document.querySelector('.slide.now .explore img:not([hidden])').alt"
    before = first.evaluate(shown)
    slider.focus()
    first.keyboard.press("ArrowLeft")
    assert first.evaluate(shown) != before, "the slider does not move"
    assert first.evaluate(NOW) == at, "the deck took the slider's key"
    first.keyboard.press("Escape")
    first.keyboard.press("ArrowLeft")
    assert first.evaluate(NOW) == at - 1, "Escape does not give the keys back to the deck"


def test_a_finger_moves(browser, decks, html):
    context = browser.new_context(has_touch=True, viewport=PHONE)
    page = context.new_page()
    page.goto((html / decks[0].lecture.file).as_uri())
    page.wait_for_function(FITTED)
    swipe = """([right, on]) => {
        const target = document.querySelector(on);
        const finger = x => new Touch({identifier: 1, target, clientX: x, clientY: 400});
        const event = (name, x) => target.dispatchEvent(new TouchEvent(name,
            {bubbles: true, touches: [finger(x)], changedTouches: [finger(x)]}));
        event('touchstart', 200);
        event('touchend', 200 + right);
    }"""
    for right, at in ((-120, 1), (-120, 2), (120, 1), (-20, 1)):
        page.evaluate(swipe, [right, ".slide.now"])
        assert page.evaluate(NOW) == at, f"after a finger went {right} pixels to the right"
    wide = ".slide.now .shown > :first-child"
    style = "display: block; overflow-x: auto; width: 50px; white-space: nowrap"
    page.locator(wide).evaluate("(e, style) => { e.style = style }", style)
    page.evaluate(swipe, [-120, wide])
    assert page.evaluate(NOW) == 1, "what a finger scrolls sideways turns the slide"
    context.close()
