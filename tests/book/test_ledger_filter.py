"""The ledger's filter in a browser, from disk."""

import json
from collections import Counter

import pytest

LEDGER = "chapters/appendix/ledger.html"
DESK, PHONE = {"width": 1300, "height": 900}, {"width": 390, "height": 844}
CHAPTER = "Where outputs lie"
ROWS = """() => [...document.querySelectorAll("#the-ledger tbody tr")].filter(row => row.checkVisibility())
    .map(row => [row.closest("section").querySelector("h2").firstChild.textContent, row.cells[1].textContent.trim()])"""


@pytest.fixture(scope="module")
def rows(html):
    """Chapter and status of every row that the manifest asks for."""
    content = json.loads((html / "manifest.json").read_text("utf-8"))
    listed = [entry for entry in content["statements"] if entry["status"] != "definition"]
    return [(content["pages"][entry["page"]], entry["status"]) for entry in listed]


@pytest.fixture
def ledger(browser, html):
    page = browser.new_page(viewport=DESK)
    page.goto((html / LEDGER).as_uri())
    yield page
    page.close()


def shown(page):
    return [(chapter, status.split(" on ")[0]) for chapter, status in page.evaluate(ROWS)]


def said(page):
    return page.locator(".ledger-filter output").inner_text()


def test_all_is_shown_at_first(ledger, rows):
    assert shown(ledger) == rows
    assert said(ledger) == f"{len(rows)} statements"


def test_it_offers_the_statuses_and_chapters_that_there_are(ledger, rows):
    offered = [ledger.get_by_label(name).locator("option").all_inner_texts() for name in ("Status", "Chapter")]
    assert offered == [["all", *sorted({s for _, s in rows})], ["all", *dict.fromkeys(c for c, _ in rows)]]


def test_it_shows_what_is_chosen_and_counts_it(ledger, rows):
    for status, count in Counter(status for _, status in rows).items():
        ledger.get_by_label("Status").select_option(status)
        assert shown(ledger) == [row for row in rows if row[1] == status]
        assert said(ledger) == f"{count} of {len(rows)} statements: {status}"
    ledger.get_by_label("Status").select_option("proved and checked")
    ledger.get_by_label("Chapter").select_option(CHAPTER)
    both = [row for row in rows if row == (CHAPTER, "proved and checked")]
    assert shown(ledger) == both
    assert said(ledger) == f"{len(both)} of {len(rows)} statements: proved and checked, in “{CHAPTER}”"
    headings = ledger.locator("#the-ledger h2")
    assert [heading.inner_text().rstrip("#") for heading in headings.all() if heading.is_visible()] == [CHAPTER]


def test_nothing_to_show_is_said(ledger, rows):
    empty = next(c for c, _ in rows if (c, "measured") not in rows)
    ledger.get_by_label("Chapter").select_option(empty)
    ledger.get_by_label("Status").select_option("measured")
    assert shown(ledger) == []
    assert said(ledger) == f"0 of {len(rows)} statements: measured, in “{empty}”"


def test_the_keyboard_is_enough(ledger, rows):
    ledger.get_by_label("Status").focus()
    ledger.keyboard.press("ArrowDown")
    first = sorted({status for _, status in rows})[0]
    assert shown(ledger) == [row for row in rows if row[1] == first]
    ledger.keyboard.press("Tab")
    ledger.keyboard.press("ArrowDown")
    assert shown(ledger) == [row for row in rows if row == (rows[0][0], first)]


def test_a_link_to_a_hidden_chapter_shows_all_again(ledger, rows):
    ledger.get_by_label("Chapter").select_option("The mean subtraction during training")
    link = ledger.locator("#the-ledger h2 a.headerlink").nth(2).get_attribute("href")
    ledger.evaluate("link => { location.hash = link }", link)
    assert shown(ledger) == rows
    assert ledger.locator(link).evaluate("e => Math.abs(e.getBoundingClientRect().top) < innerHeight / 2")


def test_without_scripts_the_whole_table_stands_there(browser, html, rows):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((html / LEDGER).as_uri())
    assert page.locator("#the-ledger tbody tr:visible").count() == len(rows)
    assert page.locator(".ledger-filter").count() == 0
    context.close()
