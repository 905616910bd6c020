"""What is folded on a page: few lines, one way to open them, with scripts and without, and by an address inside."""

import pytest
from access import settled
from bs4 import BeautifulSoup
from walk import PHONE

MOST = 120  # lines in chapters 1 to 12 that open to code, checks or records; they were 565 when each cell had its own


@pytest.fixture(scope="module")
def chapters(book, html):
    """The numbered chapters, by name."""
    names = [name for name in book.names if name[:2].isdigit() and name > "01"]
    parsed = {name: (html / f"chapters/{name}.html").read_text("utf-8") for name in names}
    return {name: BeautifulSoup(text, "html.parser").select_one("article") for name, text in parsed.items()}


def test_a_section_has_one_line_of_code_and_checks(chapters):
    lines = {name: page.select("details.code, details.result") for name, page in chapters.items()}
    assert len(lines) == 12 and sum(map(len, lines.values())) <= MOST, {n: len(found) for n, found in lines.items()}
    for name, page in chapters.items():
        for section in page.select("section:has(> details.code)"):
            (own,) = section.select(":scope > details.code")
            assert not own.find_next_siblings(), f"{name}, {section['id']}: not at the end"
        loose = [cell for cell in page.select(".cell.tag_check, details.recorded") if not cell.find_parent("details")]
        assert not loose, name


def test_a_picture_at_the_head_is_a_numbered_figure_and_seen_once(browser, chapters, html):
    heads = {name: chapter.select("article > section > figure figcaption") for name, chapter in chapters.items()}
    assert any(heads.values()) and not any(chapter.select("img.opening") for chapter in chapters.values())
    page = browser.new_page()
    for name, captions in heads.items():
        assert all(caption.select_one(".caption-number") and caption.strong for caption in captions), name
        page.goto((html / f"chapters/{name}.html").as_uri())
        shown = page.evaluate("[...document.querySelectorAll('img')].filter(e => e.checkVisibility()).map(e => e.src)")
        assert len(shown) == len(set(shown)), name
    page.close()


def test_every_statement_with_a_check_opens_to_its_words(chapters):
    for name, page in chapters.items():
        for statement in page.select(".proof[class*=known-]:not(.definition)"):
            mark = statement.select_one("details.marks")
            assert mark.summary.text[0] in "✓◦" and "ear miss" in mark.text, f"{name}: {statement['id']}"
            assert page.find(id=mark.select("p.check a")[-1]["href"][1:]).select_one(".cell_input"), (
                "a mark leads to the code"
            )


@pytest.mark.parametrize("scripts", [True, False])
def test_what_is_folded_opens(browser, html, scripts):
    page = browser.new_context(java_script_enabled=scripts).new_page()
    page.goto((html / "chapters/02-uniform-vector.html").as_uri())
    for fold in ("fold.code", "fold.solution", "further", "proposition details.marks"):
        inside = page.locator(f".{fold} > :not(summary)").first
        assert not inside.is_visible(), fold
        page.locator(f".{fold} > summary").first.click()
        assert inside.is_visible(), fold
    page.context.close()


@pytest.mark.parametrize("inside", ["#further", "#further section", "details.code .cell[id]", ".solution"])
def test_an_address_opens_what_is_around_it(browser, html, inside):
    page = browser.new_page()
    page.goto((html / "chapters/02-uniform-vector.html").as_uri())
    name = page.locator(inside).first.get_attribute("id")
    for address in (page.url + f"#{name}", "about:blank", page.url + f"#{name}"):  # in the page, and anew
        page.goto(address)
    target = page.locator(f"[id='{name}']")
    assert target.is_visible() and target.locator("p").first.is_visible()
    assert 0 <= target.bounding_box()["y"] < 300, "it is not in view"
    page.close()


@pytest.mark.parametrize(("name", "place"), [("06-placement", "prop-growth"), ("12-after-layernorm", "takeaways")])
def test_a_phone_is_led_to_a_place_and_kept_there_until_it_is_touched(browser, html, name, place):
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto((html / f"chapters/{name}.html").as_uri() + f"#{place}")
    page.evaluate("() => window.MathJax.startup.promise")
    settled(page)
    assert 0 <= page.locator(f"#{place}").bounding_box()["y"] < 100
    page.touchscreen.tap(5, 300)
    page.evaluate("scrollTo({top: 900, behavior: 'instant'}), document.querySelector('.fold').open = true")
    settled(page)
    assert page.evaluate("scrollY") < 1500, "who has touched it is led back"
    page.close()


def test_the_switch_leaves_what_is_read_where_it_is(browser, html):
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto((html / "chapters/04-irreversibility.html").as_uri())
    page.evaluate("() => window.MathJax.startup.promise")
    page.add_style_tag(content="* { overflow-anchor: none }")  # as in browsers that do not hold the place themselves
    page.evaluate("document.querySelector('#takeaways').scrollIntoView({behavior: 'instant'})")
    settled(page)
    switch, target = page.locator(".code-switch").bounding_box(), page.locator("#takeaways")
    before = target.bounding_box()["y"]
    for _ in range(2):
        page.touchscreen.tap(switch["x"] + 10, switch["y"] + 10)
        page.wait_for_timeout(300)  # formulas in what has opened are fitted
        assert abs(target.bounding_box()["y"] - before) < 2
    page.close()


def test_the_page_is_as_dark_as_the_readers_system(browser, html):
    for scheme in ("light", "dark"):
        page = browser.new_context(color_scheme=scheme).new_page()
        page.goto((html / "chapters/02-uniform-vector.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.context.close()
