"""The toy book as a PDF: in order, linked, numbered, with a title; and what is refused."""

import shutil

import pytest
from press import pdf
from press.book import Book
from pypdf import PdfReader
from toybook import make


@pytest.fixture(scope="module")
def printed(made, chromium):
    done = make(made, "pdf")
    assert done.returncode == 0, done.stdout + done.stderr
    return PdfReader(made / pdf.FILE)


def outline(entries, depth=0):
    for entry in entries:
        if isinstance(entry, list):
            yield from outline(entry, depth + 1)
        else:
            yield depth, entry.title


def test_the_outline_has_chapters_and_sections_once(printed):
    found = list(outline(printed.outline))
    assert found[:3] == [(0, "A toy book"), (0, "1. The mean"), (1, "1.1. Projecting")]
    assert len(set(found)) == len(found), "a heading is in the outline twice"


def test_links_between_chapters_lead_to_their_places_and_none_to_a_file(printed):
    notes = [note.get_object() for page in printed.pages for note in page.get("/Annots", [])]
    addresses = [str(note["/A"]["/URI"]) for note in notes if "/A" in note]
    assert addresses and all(address.startswith("http") for address in addresses), addresses
    front, second = printed.pages[2], next(p for p in printed.pages if p.extract_text().startswith("2. The angle"))
    goals = [note.get_object()["/Dest"] for note in second["/Annots"] if "/Dest" in note.get_object()]
    pages = [printed.get_page_number(goal[0].get_object()) for goal in goals]
    mean = next(i for i, p in enumerate(printed.pages) if p.extract_text().startswith("1. The mean"))
    assert mean in pages and any(isinstance(goal[3], float) for goal in goals), "to the theorem, not to the chapter"
    assert front["/Annots"]


def test_contents_and_heads_have_the_pages_of_their_chapters(printed, book):
    said = dict(line.rsplit(" ", 1) for line in printed.pages[1].extract_text().splitlines()[1:])
    for title in ("The mean", "The angle", "Notation"):
        sheet = printed.pages[int(said[title]) - 1].extract_text()
        assert title in sheet.splitlines()[0] and said[title] in sheet.splitlines()[:2][1], f"{title}: {sheet[:80]}"


def test_it_says_whose_it_is(printed):
    assert (printed.metadata.title, printed.metadata.author) == ("The Toy", "Ada Toy")
    first = printed.pages[0].extract_text()
    assert "The Toy" in first and "Ada Toy" in first and "Version 0" in first


def test_without_a_browser_it_says_so_before_any_work(made, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="chromium"):
        pdf.pdf(Book(made))
