"""The pages in a browser, opened from disk: mathematics is set, figures stand, nothing is asked of the network."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card, for turning figures
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SEEN = """() => ({
    formulas: document.querySelectorAll('.math').length,
    set: document.querySelectorAll('mjx-container').length,
    errors: document.querySelectorAll('mjx-merror').length,
    figures: document.querySelectorAll('.plotly-figure').length,
    drawn: document.querySelectorAll('.js-plotly-plot').length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""
PHONE = {"width": 390, "height": 844}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH; .ci/run installs it")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def visit(browser, address, **options):
    """What is seen on a page, what it complained about, and what it asked of other machines."""
    page = browser.new_page(**options)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.evaluate("() => window.MathJax?.startup?.promise")
    seen = page.evaluate(SEEN)
    page.close()
    return seen, complaints, [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]


def test_pages_open_from_disk(browser, book, html):
    for name in book.names:
        seen, complaints, requests = visit(browser, (html / f"chapters/{name}.html").as_uri())
        assert not complaints, f"{name}: {complaints}"
        assert not requests, f"{name}: {requests}"
        assert seen["set"] == seen["formulas"], f"{name}: {seen}"
        assert seen["errors"] == 0, f"{name}: {seen}"
        assert seen["drawn"] == seen["figures"], f"{name}: {seen}"


def test_no_page_is_wider_than_a_phone(browser, book, html):
    for name in book.names:
        seen, *_ = visit(browser, (html / f"chapters/{name}.html").as_uri(), viewport=PHONE)
        assert seen["overflow"] <= 0, f"{name} is {seen['overflow']} pixels too wide"


SHOWN = "() => [...document.querySelectorAll('.explore img')].filter(image => !image.hidden).map(image => image.alt)"


def test_sliders_move_by_keyboard_and_by_mouse(browser, book, html):
    exploring = [
        name for name in book.names if 'class="explore"' in (html / f"chapters/{name}.html").read_text("utf-8")
    ]
    assert exploring, "no page has a slider"
    for name in exploring:
        page = browser.new_page()
        page.goto((html / f"chapters/{name}.html").as_uri())
        for slider in page.locator(".explore input").all():
            before = page.evaluate(SHOWN)
            slider.focus()
            page.keyboard.press("ArrowLeft")
            by_keyboard = page.evaluate(SHOWN)
            assert by_keyboard != before, f"{name}: a slider that the keyboard does not move"
            box = slider.bounding_box()
            slider.click(position={"x": box["width"] - 2, "y": box["height"] / 2})
            assert page.evaluate(SHOWN) != by_keyboard, f"{name}: a slider that the mouse does not move"
            assert len(page.evaluate(SHOWN)) == len(before), f"{name}: one frame a figure is to be seen"
        page.close()


def test_the_front_page_opens_the_book(browser, html):
    page = browser.new_page()
    page.goto((html / "index.html").as_uri())
    page.wait_for_url("**/chapters/index.html")
    page.close()
