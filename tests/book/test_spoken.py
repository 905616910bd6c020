"""What a screen reader says: names and values of what moves, formulas, the switch, languages and titles."""

import re

import pytest
from access import FEW, of, opened, settled, spoken

SLIDERS = ":is(input[type=range], [role=slider]):visible:enabled"
PARTS = ".explore, .hold, .network, #moving-steps"
# What a slider changes: the frame that is shown, or the drawing.
PICTURE = f"""(slider) => {{
    const part = slider.closest("{PARTS}"), frames = [...part.querySelectorAll(".explore-frames img")];
    return frames.length ? frames.find((frame) => !frame.hidden).alt : part.querySelector("svg").outerHTML;
}}"""
SEEN = """() => [...document.querySelectorAll("mjx-assistive-mml")].filter((spoken) => spoken.checkVisibility()
    && spoken.clientWidth > 1 && spoken.clientHeight > 1 && getComputedStyle(spoken).clip === "auto").length"""
SET = """() => [...document.querySelectorAll("mjx-container")].filter(
    (set) => set.checkVisibility({visibilityProperty: true})).length"""
MOVING = ("index", "type-here", "02-uniform-vector", "03-hyperellipsoid")


@pytest.mark.parametrize("name", MOVING)
def test_sliders_have_names_and_values_and_move_by_keyboard(browser, html, name):
    page = opened(browser, html / f"chapters/{name}.html")
    sliders = page.locator(f".bd-article {SLIDERS}").all()
    assert sliders, f"{name}: no slider was tried"
    for slider in sliders:
        slider.focus()
        states = []
        for key in ("Home", "ArrowRight"):
            page.keyboard.press(key)
            settled(page)
            states.append((of(page, slider), slider.evaluate(PICTURE)))
        (before, picture), (after, other) = states
        assert before.role == "slider" and before.name.strip(), f"{name}: a slider without a name"
        values = before.properties["valuetext"], after.properties["valuetext"]
        assert values[0] and values[0] != values[1], f"{name}: {before.name} says {values}"
        assert after.name == before.name, f"{name}: the value of {before.name} stands in its name, and is said twice"
        assert picture != other, f"{name}: the keyboard does not move {before.name}"
    page.close()


def test_what_a_frame_shows_is_said(browser, html):
    page = opened(browser, html / "chapters/03-hyperellipsoid.html")
    for figure in page.locator(".explore").all():
        figure.locator("input").first.focus()
        page.keyboard.press("Home")
        page.wait_for_timeout(600)
        shown = figure.locator("img:visible").get_attribute("alt")
        assert figure.get_by_role("status").last.text_content() == shown, "who does not see the frame hears nothing"
    page.close()


@pytest.mark.parametrize("name", MOVING)
def test_pictures_that_move_are_described(browser, html, name):
    page = opened(browser, html / f"chapters/{name}.html")
    drawings = page.locator(f":is({PARTS}) svg:visible").all()
    for drawing in drawings:
        node = of(page, drawing)
        assert node.role in ("image", "group", "img"), f"{name}: a drawing is a {node.role}"
        assert len(node.name) > 40, f"{name}: a drawing is described as {node.name!r}"
    assert drawings, f"{name}: no drawing was looked at"
    page.close()


def test_every_formula_is_spoken(browser, html):
    for name in FEW:
        page = opened(browser, html / f"chapters/{name}.html")
        formulas = sum(node.role == "MathMLMath" for node in spoken(page))
        assert formulas == page.evaluate(SET), f"{name}: {formulas} formulas are spoken of those that are shown"
        assert page.evaluate(SEEN) == 0, f"{name}: what is spoken is seen as well"
        page.close()


def test_the_switch_is_announced(browser, html):
    page = opened(browser, html / "chapters/05-jacobians.html")
    for pressed in ("false", "true"):
        node = of(page, page.locator(".code-switch"))
        assert (node.role, node.name, node.properties["pressed"]) == ("button", "Code", pressed)
        assert node.described == (f"{'Fold' if pressed == 'true' else 'Open'} all code and checks")
        page.keyboard.press("Enter") if pressed == "true" else page.locator(".code-switch").press("Enter")
    page.close()


def test_solutions_have_names_of_their_own(browser, html):
    page = opened(browser, html / "chapters/05-jacobians.html")
    names = [of(page, button).name for button in page.locator(".solution summary").all()]
    assert names and all(name.startswith("Solution to") for name in names), names
    assert len(names) == len(set(names)), names
    page.close()


def test_every_page_has_a_language_and_a_title_of_its_own(html):
    texts = {path.relative_to(html).as_posix(): path.read_text("utf-8") for path in html.rglob("*.html")}
    pages = {name: text for name, text in texts.items() if not name.startswith("_static/")}
    assert not [name for name, text in pages.items() if not re.search('<html[^>]* lang="en"', text)]
    titles = {name: re.search("<title>(.*?)</title>", text, re.S)[1] for name, text in pages.items()}
    twice = {title: [name for name in titles if titles[name] == title] for title in titles.values()}
    assert all(len(names) == 1 for names in twice.values()), twice
