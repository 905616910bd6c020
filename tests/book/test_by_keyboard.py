"""By keyboard alone, without motion, enlarged: where the focus is shows, nothing is out of reach, nothing is lost."""

import io

import numpy as np
import pytest
from access import FEW, opened, settled
from PIL import Image
from walk import DESK, PHONE

FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"
# One element of each kind that can have the focus; what stands in a line of its own kind looks as its neighbour does.
KINDS = f"""() => {{
    const shown = [...document.querySelectorAll("{FOCUSABLE}")].filter((e) =>
        e.checkVisibility({{visibilityProperty: true, opacityProperty: true}}) && !e.disabled && e.tabIndex >= 0
        && !e.closest(".skip-link") && e.getBoundingClientRect().width);
    const place = (e) => e.closest(".bd-article, .bd-header-article, [class*=bd-sidebar]")?.className;
    const kind = (e) => [place(e), e.localName, e.type, e.role, e.className.baseVal ?? e.className].join();
    const kinds = new Map(shown.map((e) => [kind(e), e]));
    [...kinds.values()].forEach((e, i) => e.setAttribute("data-kind", i));
    return [...kinds.keys()];
}}"""
# How much lighter or darker a pixel has to become so that the change is seen (WCAG 1.4.11).
CONTRAST = 3
MARGIN = 6  # pixels around an element in which its focus may show
COVERED = f"""() => {{
    const covered = [];
    for (const e of [...document.querySelectorAll("{FOCUSABLE}")].reverse()) {{
        e.focus();
        if (document.activeElement !== e || e.closest(".skip-link")) continue;
        const boxes = [...e.getClientRects()];
        const seen = boxes.some((box) => [0.1, 0.5, 0.9].some((x) => [0.2, 0.5, 0.8].some((y) => {{
            const top = document.elementFromPoint(box.left + x * box.width, box.top + y * box.height);
            return top && (e.contains(top) || top.contains(e));
        }})));
        if (!seen) covered.push(e.outerHTML.slice(0, 80));
    }}
    return covered;
}}"""
# What is cut: text that its box hides, and boxes beyond the edge that nothing scrolls to.
LOST = """() => {
    const style = (e) => getComputedStyle(e);
    const shown = [...document.querySelectorAll(".bd-main *")].filter((e) =>
        e.checkVisibility({visibilityProperty: true}) && !e.closest("svg, mjx-container, .live-spoken"));
    const hides = (e) => ["hidden", "clip"].includes(style(e).overflowX);
    const cut = shown.filter((e) => hides(e) && e.scrollWidth > e.clientWidth + 1);
    const scrolls = (e) => e && (["auto", "scroll"].includes(style(e).overflowX) || scrolls(e.parentElement));
    const out = shown.filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement));
    const wide = document.documentElement.scrollWidth - innerWidth;
    const found = [...cut, ...out].map((e) => e.outerHTML.slice(0, 80));
    return wide > 0 ? [...found, `the page, by ${wide} pixels`] : found;
}"""
MOVES = """() => [document.documentElement, ...document.querySelectorAll("body *")].filter((e) => {
    const { animationName, transitionDuration, scrollBehavior } = getComputedStyle(e);
    const waits = transitionDuration.split(",").some((time) => parseFloat(time) > 0);
    return animationName !== "none" || waits || scrollBehavior === "smooth";
}).map((e) => e.outerHTML.slice(0, 80))"""


def luminance(shot: bytes) -> np.ndarray:
    value = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), float) / 255
    linear = np.where(value <= 0.03928, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def changed(page, element) -> float:
    """Pixels that change well visibly when an element gets the focus, over its circumference."""
    element.scroll_into_view_if_needed()
    box = element.bounding_box()
    left, top = max(0, box["x"] - MARGIN), max(0, box["y"] - MARGIN)
    clip = dict(x=left, y=top, width=box["width"] + 2 * MARGIN, height=box["height"] + 2 * MARGIN)
    page.evaluate("document.activeElement.blur()")
    before = luminance(page.screenshot(clip=clip))
    element.focus()
    after = luminance(page.screenshot(clip=clip))
    ratio = (np.maximum(before, after) + 0.05) / (np.minimum(before, after) + 0.05)
    return (ratio >= CONTRAST).sum() / (2 * box["width"] + 2 * box["height"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "screen"), [("index", DESK), ("05-jacobians", PHONE), ("type-here", DESK)])
def test_the_focus_shows(browser, html, name, screen, theme):
    page = opened(browser, html / f"chapters/{name}.html", viewport=screen)
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    kinds = page.evaluate(KINDS)
    page.keyboard.press("Tab")  # from here on the focus is that of a keyboard
    faint = {kind: changed(page, page.locator(f"[data-kind='{i}']")) for i, kind in enumerate(kinds)}
    assert len(faint) > 10, f"{name}: {kinds}"
    assert not {kind: share for kind, share in faint.items() if share < 0.5}, f"{name}, {theme}"
    page.close()


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("name", FEW)
def test_nothing_covers_what_has_the_focus(browser, html, name, screen):
    """Going backwards, where a bar at the top would lie over it."""
    page = opened(browser, html / f"chapters/{name}.html", viewport=screen)
    assert page.evaluate(COVERED) == []
    page.close()


def test_the_skip_link_leads_to_the_text(browser, html):
    page = opened(browser, html / "chapters/01-batch-to-layer.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to main content"
    assert page.locator(".skip-link").is_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null"), "the contents of the book are not skipped"
    page.close()


def test_nothing_moves_for_those_who_ask(browser, html):
    page = opened(browser, html / "chapters/index.html")
    assert page.evaluate(MOVES) == []
    page.close()


def test_what_moves_by_itself_can_be_stopped(browser, html):
    page = opened(browser, html / "chapters/index.html", reduced_motion="no-preference")
    button = page.locator("#moving-steps button")
    drawing = "document.querySelector('#moving-steps svg').innerHTML"
    assert button.text_content() == "pause"
    button.press("Enter")
    settled(page)
    still = page.evaluate(drawing)
    page.wait_for_timeout(300)
    assert page.evaluate(drawing) == still and button.text_content() == "play"
    button.press("Enter")
    page.wait_for_function(f"(still) => {drawing} !== still", arg=still)
    page.close()


# Enlarged two and four times on a screen of 1280 pixels.
def test_enlarged_pages_lose_nothing(browser, html):
    lost = {}
    for name in FEW:
        for width in (640, 320):
            page = opened(browser, html / f"chapters/{name}.html", viewport={"width": width, "height": 512})
            lost[name, width] = page.evaluate(LOST)
            page.close()
    assert not {where: what for where, what in lost.items() if what}
