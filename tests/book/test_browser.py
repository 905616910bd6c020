"""The pages in a browser, opened from disk: mathematics is set, figures stand, sliders move, nothing is asked of the
network."""

import pytest
from walk import walk


@pytest.fixture(scope="module")
def walks(browser, book, html):
    """Each page of the book by its name."""
    return {name: walk(browser, html / f"chapters/{name}.html") for name in book.names}


def test_pages_open_from_disk(walks):
    for name, page in walks.items():
        assert not page.complaints, f"{name}: {page.complaints}"
        assert not page.requests, f"{name}: {page.requests}"
        assert page.seen["set"] == page.seen["formulas"], f"{name}: {page.seen}"
        assert page.seen["errors"] == 0, f"{name}: {page.seen}"
        assert page.seen["drawn"] == page.seen["figures"], f"{name}: {page.seen}"


def test_no_page_is_wider_than_a_phone(walks):
    for name, page in walks.items():
        assert page.overflow <= 0, f"{name} is {page.overflow} pixels too wide"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(walks, theme):
    for name, page in walks.items():
        assert page.looked_at > 20, f"{name}: only {page.looked_at} pieces of text were looked at"
        assert not page.faint[theme], f"{name}, {theme}"


def test_sliders_move_by_keyboard_and_by_mouse(walks, html):
    assert any(page.sliders for page in walks.values()), "no page has a slider"
    for name, page in walks.items():
        has_sliders = 'class="explore"' in (html / f"chapters/{name}.html").read_text("utf-8")
        assert has_sliders == bool(page.sliders), f"{name}: a slider that was not tried"
        for before, by_keyboard, by_mouse in page.sliders:
            assert by_keyboard != before, f"{name}: a slider that the keyboard does not move"
            assert by_mouse != by_keyboard, f"{name}: a slider that the mouse does not move"
            assert len(by_mouse) == len(before), f"{name}: one frame a figure is to be seen"


def test_figures_turn_under_the_mouse(walks, html):
    assert any(page.cameras for page in walks.values()), "no page has a turning figure"
    for name, page in walks.items():
        has_figures = 'class="plotly-figure"' in (html / f"chapters/{name}.html").read_text("utf-8")
        assert has_figures == bool(page.cameras), f"{name}: a figure that was not tried"
        assert len(set(page.cameras)) == len(page.cameras), f"{name}: a figure that does not turn"


def test_search_finds_a_word_from_disk(browser, html):
    page = browser.new_page()
    page.goto((html / "search.html").as_uri() + "?q=antipode")
    page.wait_for_selector("#search-results li")
    assert "The uniform vector" in page.locator("#search-results").inner_text()
    page.close()


def test_the_front_page_opens_the_book(browser, html):
    page = browser.new_page()
    page.goto((html / "index.html").as_uri())
    page.wait_for_url("**/chapters/index.html")
    page.close()
