"""What is folded on a page: few lines, one way to open them, with scripts and without, and by an address inside."""

import pytest
from bs4 import BeautifulSoup

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


def test_no_figure_is_seen_twice(browser, chapters, html):
    page, folded = browser.new_page(), 0
    for name in chapters:
        page.goto((html / f"chapters/{name}.html").as_uri())
        shown = page.evaluate("[...document.querySelectorAll('img')].filter(e => e.checkVisibility()).map(e => e.src)")
        assert len(shown) == len(set(shown)), name
        folded += page.locator(".again").count()
    assert folded, "no chapter has a figure at its head that comes again"
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
    for fold in ("facts", "fold.code", "fold.solution", "further", "proposition details.marks"):
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


def test_the_page_is_as_dark_as_the_readers_system(browser, html):
    for scheme in ("light", "dark"):
        page = browser.new_context(color_scheme=scheme).new_page()
        page.goto((html / "chapters/02-uniform-vector.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.context.close()
