"""The whole book as one PDF: its outline, contents, heads and links, and what must not stand on a page."""

import re
import subprocess
import sys

import pytest
from press.pdf import FILE, pdf
from pypdf import PdfReader

pytestmark = pytest.mark.slow

MOST = 30 * 2**20
RIGHT = (210 - 16) * 72 / 25.4  # points: A4 less the margin of book.css


@pytest.fixture(scope="module")
def file(root, html, chromium):
    """The PDF of these pages; made anew where it is older than they are."""
    path = root / FILE
    if not path.exists() or path.stat().st_mtime < (html / "index.html").stat().st_mtime:
        subprocess.run([sys.executable, "-m", "press", "--root", str(root), "pdf"], check=True)
    return path


@pytest.fixture(scope="module")
def printed(file):
    return PdfReader(file)


@pytest.fixture(scope="module")
def sheets(printed):
    """The words of each sheet, and of those beyond the margin, where they begin, in points from the left."""
    return [read(page) for page in printed.pages]


def read(page):
    beyond = []

    def see(text, page_matrix, text_matrix, *_):
        (a, _, c, _, e, _), (across, up) = page_matrix, text_matrix[4:]
        if text.strip() and (right := a * across + c * up + e) > RIGHT:
            beyond.append((round(right), text[:20]))

    return page.extract_text(visitor_text=see), beyond


@pytest.fixture(scope="module")
def texts(sheets):
    return [text for text, _ in sheets]


@pytest.fixture(scope="module")
def begins(printed):
    """Title → number of the sheet, the first 1, of each page of the book."""
    entries = [entry for entry in printed.outline if not isinstance(entry, list)]
    return [(entry.title, printed.get_destination_page_number(entry) + 1) for entry in entries]


def words(text):
    """Letters and digits alone: formulas, hyphens and spaces come out of a PDF in many ways."""
    return re.sub(r"[\W_]+", "", text)


def test_the_outline_has_every_page_in_order(book, begins):
    titles = [words(re.sub(r"^[\d.]+ ", "", title)) for title, _ in begins]
    assert titles == [words(page.title.replace("$", "")) for page in book.pages]
    assert [sheet for _, sheet in begins] == sorted({sheet for _, sheet in begins})


def test_contents_and_heads_say_the_sheets(texts, begins):
    contents = "\n".join(texts[1 : begins[0][1] - 1])
    assert [int(number) for number in re.findall(r" (\d+)$", contents, re.M)] == [sheet for _, sheet in begins]
    for number in range(begins[0][1], len(texts) + 1):
        assert str(number) in texts[number - 1].splitlines()[:3], f"sheet {number} has another number in its head"


def test_links_inside_lead_somewhere_and_none_to_a_file(printed):
    notes = [note.get_object() for page in printed.pages for note in page.get("/Annots", [])]
    goals = [note["/Dest"] for note in notes if "/Dest" in note]
    assert len(goals) > 2000, "links between chapters are lost"
    assert any(isinstance(goal[3], float) for goal in goals), "they lead to chapters and not to statements"
    addresses = [str(note["/A"]["/URI"]) for note in notes if "/A" in note]
    assert len(addresses) > 50 and all(re.match("https?://", address) for address in addresses)


def test_nothing_begins_beyond_the_margin(sheets):
    out = {number: beyond for number, (_, beyond) in enumerate(sheets, 1) if beyond}
    assert not out, f"by sheet, points from the left and words: {out}; a table or a formula is too wide"


def test_no_sheet_is_all_but_empty_and_no_chapter_cut_short(texts, book):
    assert not [number for number, text in enumerate(texts[1:], 2) if len(text) < 60]
    whole = words(" ".join(texts))
    for page in book.notebooks:
        for heading in re.findall(r"^## ([\w ,]+)$", "\n".join(c.source for c in page.cells), re.M):
            assert words(heading) in whole, f"{page.name}: {heading} is missing"


def test_without_a_browser_it_says_so_before_any_work(book, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="chromium"):
        pdf(book)


def test_it_says_whose_it_is_and_can_be_sent_by_mail(file, printed):
    assert printed.metadata.title == "The Geometry of Layer Normalization" and printed.metadata.author
    assert file.stat().st_size <= MOST, f"{file.stat().st_size / 2**20:.1f} MiB"
