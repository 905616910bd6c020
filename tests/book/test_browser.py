"""The pages in a browser, opened from disk: mathematics is set, figures stand, sliders move, nothing is asked of the
network."""

import html as markup
import io
import re

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from PIL import Image


def test_pages_open_from_disk(walks):
    for name, page in walks.items():
        assert not page.complaints, f"{name}: {page.complaints}"
        assert not page.requests, f"{name}: {page.requests}"
        assert page.seen["set"] == page.seen["formulas"], f"{name}: {page.seen}"
        assert page.seen["errors"] == 0, f"{name}: {page.seen}"


def test_no_page_weighs_more_than_seven_megabytes(walks, html):
    for name, page in walks.items():
        files = {file for file in page.files if file.is_file()}
        assert any(file.suffix == ".css" for file in files), f"{name}: what it loads was not seen"
        if 'class="network"' in (html / f"chapters/{name}.html").read_text("utf-8"):
            files.add(html / "_static/live/twins.js")  # loaded once it comes into view
        sizes = {file.name: file.stat().st_size for file in files}
        heaviest = sorted(sizes, key=sizes.get)[-3:]
        assert sum(sizes.values()) < 7e6, f"{name}: {sum(sizes.values()) / 1e6:.1f} MB, most of it in {heaviest}"


def test_no_page_is_wider_than_a_phone(walks):
    for name, page in walks.items():
        assert page.overflow <= 0, f"{name} is {page.overflow} pixels too wide"


def test_code_is_quiet(walks):
    for name, page in walks.items():
        share = page.kinds["code"] / page.kinds["all"]
        assert share < 0.15, f"{name}: {share:.0%} of the page is open code"
        assert page.kinds["prose"] > 0, f"{name}: {page.kinds}"


def test_no_proof_is_long(walks):
    assert any(page.proofs for page in walks.values()), "no proof was looked at"
    long = {name: [proof for proof in page.proofs if proof[1] > 15] for name, page in walks.items()}
    assert not {name: proofs for name, proofs in long.items() if proofs}, "shorten it, or make a lemma of its half"


def test_pictures_are_dark_in_the_dark(browser, html):
    page = browser.new_page()
    page.goto((html / "chapters/02-uniform-vector.html").as_uri())
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    still = "img:not(.hold img, .network img)"  # what is alive replaces its picture when it is seen
    for figure in page.locator(f".bd-article {still}:visible").all():
        shot = Image.open(io.BytesIO(figure.screenshot())).convert("L")
        assert np.median(shot) < 64, "a white card"
    page.close()


def test_no_formula_is_cut(walks):
    cut = {name: {width: boxes for width, boxes in page.cut.items() if boxes} for name, page in walks.items()}
    assert not {name: boxes for name, boxes in cut.items() if boxes}


def test_no_letter_of_the_pages_is_left_out_of_the_type(book, html):
    """The faces are cut to some letters; one that is missing comes from another face."""
    texts = [(html / f"chapters/{name}.html").read_text("utf-8") for name in book.names]
    words = [re.sub(r"<(script|style|svg)\b.*?</\1>|<[^>]*>", "", text, flags=re.S) for text in texts]
    letters = {letter for text in words for letter in markup.unescape(text) if letter.isalpha() and ord(letter) < 0x400}
    faces = sorted((html / "_static/vendor").glob("*.woff2"))
    assert len(faces) == 3
    for face in faces:
        asked = {letter for letter in letters if ord(letter) < 0x370 or "It" not in face.stem}  # italics have no Greek
        lost = asked - set(map(chr, TTFont(face).getBestCmap()))
        assert not lost, f"{face.name}: {sorted(lost)}"


def test_no_icon_is_missing(browser, html):
    """A missing icon stays an empty element."""
    page = browser.new_page()
    page.goto((html / "chapters/02-uniform-vector.html").as_uri())
    page.wait_for_function("() => document.querySelector('.svg-inline--fa')")
    missing = (
        "() => [...document.querySelectorAll('i[class*=fa-], .fa-missing, [data-icon=missing]')].map(e => e.outerHTML)"
    )
    assert page.evaluate(missing) == []
    page.close()


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


@pytest.fixture
def chapter(browser, html):
    page = browser.new_page()
    page.goto((html / "chapters/05-jacobians.html").as_uri())
    yield page
    page.close()


OPEN = "() => [...document.querySelectorAll('details.fold.code')].map(d => d.open)"


def test_the_switch_opens_all_code_by_keyboard_and_remembers(chapter):
    assert not any(chapter.evaluate(OPEN)), "pages begin folded"
    chapter.locator(".code-switch").focus()
    chapter.keyboard.press("Enter")
    assert all(chapter.evaluate(OPEN))
    chapter.reload()
    assert all(chapter.evaluate(OPEN)), "the switch forgets"
    assert chapter.locator(".code-switch").get_attribute("aria-pressed") == "true"
    chapter.locator(".code-switch").click()
    chapter.reload()
    assert not any(chapter.evaluate(OPEN))


def test_a_reference_shows_what_it_refers_to(chapter):
    link = chapter.locator("p a[href*='#prop-']:visible").first
    link.focus()
    chapter.wait_for_selector("#preview mjx-container")
    assert "Proposition" in chapter.locator("#preview").inner_text()
    assert link.get_attribute("aria-describedby") == "preview"
    chapter.keyboard.press("Escape")
    assert chapter.locator("#preview").count() == 0
    term = chapter.locator("a[href*='glossary.html#term-']").first
    term.hover()
    chapter.wait_for_selector("#preview")
