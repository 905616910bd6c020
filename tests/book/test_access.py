"""No barrier: what axe-core finds against WCAG 2.2 AA and good practice with every fold open, on a few pages in light
and dark, at a desk and on a phone, and on all pages in each theme and on each screen once."""

import pytest
from access import FEW, opened, settled
from axe_playwright_python.sync_playwright import Axe
from walk import DESK, PHONE

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPTIONS = {"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]}
SCREENS = {"desk": DESK, "phone": PHONE}
STATES = [(theme, screen) for screen in SCREENS for theme in ("light", "dark")]
# Built beside the chapters, by Sphinx.
OTHERS = ("../search", "../genindex", "../index")
# Where axe-core errs: a head that is a formula.  A screen reader reads its MathML, of which axe takes no text.
ERRS = {"empty-table-header": "math"}
# What would be found: a rule, and how to break it.
BARRIERS = {
    "image-alt": "document.querySelector('.findings img').removeAttribute('alt')",
    "color-contrast": "document.querySelector('.live-question').style.color = '#999'",
    "target-size": "document.querySelector('.live-set').style.font = '8px/8px serif';"
    "document.querySelectorAll('.live-set *').forEach((e) => Object.assign(e.style, { minHeight: 0, margin: 0 }))",
}


def barriers(page, where: str) -> list[str]:
    """What axe-core finds on a page as it is: where, against which rule, which element, and why."""
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return [
        f"{where}: {rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary'].split(chr(10))[-1]}"
        for rule in found
        for node in rule["nodes"]
        if not (rule["id"] in ERRS and page.locator(node["target"][0]).locator(ERRS[rule["id"]]).count())
    ]


# The contrast of WCAG 2 between words or lines of a drawing and the page, where it is too small; axe leaves SVG out.
PALE = """() => {
    const channel = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const luminance = (color) => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => channel(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const page = luminance(getComputedStyle(document.body).backgroundColor);
    const ratio = (color) => {
        const [low, high] = [luminance(color), page].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const shown = (kind) => [...document.querySelectorAll(`:is(${kind})`)].filter((e) => e.checkVisibility());
    const words = shown(".bd-article svg text").map((e) => [e.textContent, ratio(getComputedStyle(e).fill)]);
    return [words.length, words.filter(([, is]) => is < 4.5).map(([what, is]) => `${what} (${is.toFixed(1)})`)];
}"""


def show(page, theme: str, screen: str) -> None:
    page.set_viewport_size(SCREENS[screen])
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    settled(page)


def look(browser, html, name: str, states: list) -> list[str]:
    """The barriers on a page in these states, all its folds open."""
    page = opened(browser, html / f"chapters/{name}.html")
    page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    found = []
    for theme, screen in states:
        show(page, theme, screen)
        found += barriers(page, f"{name}, {theme}, {screen}")
    page.close()
    return found


@pytest.mark.parametrize("amount", ["a few", pytest.param("all", marks=pytest.mark.slow)])
def test_no_page_has_a_barrier(amount, browser, book, html):
    names, states = (FEW, STATES) if amount == "a few" else ((*book.names, *OTHERS), STATES[1:3])
    found = [barrier for name in names for barrier in look(browser, html, name, states)]
    assert not found, f"{len(found)} barriers:\n" + "\n".join(found[:40])


def test_barriers_are_found(browser, html):
    page = opened(browser, html / "chapters/index.html")
    for broken in BARRIERS.values():
        page.evaluate(broken)
    found = barriers(page, "broken")
    missed = [rule for rule in BARRIERS if not any(f" {rule}:" in barrier for barrier in found)]
    assert not missed, f"broken on purpose and not found; found were {found}"
    page.close()


# What opens over a page, and how.
OPENED = {
    "the contents of the book": ".primary-toggle",
    "the contents of the page": ".secondary-toggle",
    "the search": ".article-header-buttons .search-button",
}


def test_what_opens_has_no_barrier(browser, html):
    for what, opens in OPENED.items():
        page = opened(browser, html / "chapters/01-batch-to-layer.html", viewport=PHONE)
        page.locator(opens).press("Enter")
        page.wait_for_selector("dialog[open]")
        found = barriers(page, what)
        assert not found, "\n".join(found)
        page.close()


def test_a_preview_has_no_barrier(browser, html):
    page = opened(browser, html / "chapters/05-jacobians.html")
    page.locator("p a[href*='#prop-']:visible").first.focus()
    page.wait_for_selector("#preview mjx-container")
    for theme, screen in STATES[1:3]:  # each theme and each screen once
        show(page, theme, screen)
        found = barriers(page, f"a preview, {theme}, {screen}")
        assert not found, "\n".join(found)
    page.close()


@pytest.mark.parametrize("name", ["index", "02-uniform-vector", "03-hyperellipsoid", "type-here"])
def test_drawings_stand_out(name, browser, html):
    page = opened(browser, html / f"chapters/{name}.html")
    for theme in ("light", "dark"):
        show(page, theme, "desk")
        looked_at, pale = page.evaluate(PALE)
        assert looked_at > 3 and not pale, f"{name}, {theme}: {sorted(set(pale))} of {looked_at}"
    page.close()
