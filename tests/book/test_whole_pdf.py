"""The whole book as one PDF: its outline, contents, running heads and links, and what must not stand on a page."""

import html as markup
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest
from press.edition.pdf import FOLDER, NAME, pages_of
from pypdf import PdfReader

pytestmark = pytest.mark.slow

MOST = 20 * 2**20
HEADING = re.compile(r"<h([12])>(.*?)<a class=\"headerlink\"", re.S)
LEAST = 60  # letters on a page: a figure has a caption
RIGHT = (210 - 25) * 72 / 25.4  # points: A4 less the margin of edition.css
LINE = 4  # points: what stands that near is on one line, an index too


@pytest.fixture(scope="module")
def pdf(root, html, chromium):
    """The PDF of these pages; made anew where it is older than they are."""
    path = root / FOLDER / NAME
    if not path.exists() or path.stat().st_mtime < (html / "index.html").stat().st_mtime:
        subprocess.run([sys.executable, "-m", "press", "--root", str(root), "pdf"], check=True)
    return path


@pytest.fixture(scope="module")
def printed(pdf):
    return PdfReader(pdf)


@dataclass
class Sheet:
    """What can be read on a page: running head, all below it, the lowest line of that, where the last run begins."""

    head: str
    body: str
    foot: str
    right: float


@pytest.fixture(scope="module")
def sheets(printed):
    """Every page of the file."""
    return [read(page) for page in printed.pages]


def read(page):
    runs = []

    def see(text, page_matrix, text_matrix, *_):
        if text.strip():
            (a, b, c, d, e, f), (across, up) = page_matrix, text_matrix[4:]
            runs.append((b * across + d * up + f, a * across + c * up + e, text))

    head, _, body = page.extract_text(visitor_text=see).partition("\n")
    lowest = min((up for up, *_ in runs), default=0)
    foot = " ".join(text for up, _, text in runs if up < lowest + LINE)
    return Sheet(head, body, foot, max((right for _, right, _ in runs), default=0))


@pytest.fixture(scope="module")
def pages(printed):
    """Name → number of the page where each destination is, the first 1."""
    return pages_of(printed)


@pytest.fixture(scope="module")
def entries(printed):
    """The outline: depth, title, page."""

    def walk(items, depth=0):
        for item in items:
            if isinstance(item, list):
                yield from walk(item, depth + 1)
            else:
                yield depth, item.title, printed.get_destination_page_number(item) + 1

    return list(walk(printed.outline))


def words(text):
    """Letters and digits alone: formulas, hyphens and spaces come out of a PDF in many ways."""
    return re.sub(r"[\W_]+", "", text)


def said(source):
    """The words of HTML."""
    return words(markup.unescape(re.sub(r"<[^>]*>", "", source)))


def article(html, name):
    """The text of a built page, without what surrounds it."""
    page = (html / f"chapters/{name}.html").read_text("utf-8")
    return re.search(r"<article.*</article>", page, re.S)[0]


def links(printed):
    """Number of a page, and the action or goal of a link on it."""
    for number, page in enumerate(printed.pages, 1):
        for note in page.get("/Annots", []):
            note = note.get_object()
            if note["/Subtype"] == "/Link":
                yield number, note.get("/A", {"/D": note.get("/Dest")})


def test_the_outline_is_the_table_of_contents(book, html, entries):
    expected = [(0, "Contents")]
    for caption, names in book.parts:
        expected += [(0, caption)] if caption else []
        for name in names:
            page = article(html, name)
            deeper = bool(caption)
            found = [(int(level) - 1 + deeper, title) for level, title in HEADING.findall(page)]
            expected += found + ([(1 + deeper, "Solutions")] if 'class="solution' in page else [])
    expected[1] = (0, "Preface")  # the front page's title is the book's
    assert [(depth, words(title)) for depth, title, _ in entries] == [(depth, said(title)) for depth, title in expected]


def test_every_link_inside_leads_somewhere_and_none_to_a_file(printed, pages):
    inside = [(number, goal["/D"]) for number, goal in links(printed) if goal.get("/D") is not None]
    assert len(inside) > 3000, "links between chapters are lost"
    lost = sorted({(number, str(goal)) for number, goal in inside if str(goal).lstrip("/") not in pages})
    assert not lost, f"page and goal of links to nothing: {lost[:10]}"
    outside = [(number, goal["/URI"]) for number, goal in links(printed) if "/URI" in goal]
    assert len(outside) > 50
    assert not [link for link in outside if not link[1].startswith(("https://", "http://"))], "only a disk has these"


def test_contents_say_the_pages_on_which_things_begin(printed, sheets, pages):
    numbers = [number for number, sheet in enumerate(sheets, 1) if sheet.head.startswith("Contents")]
    printed_there = [
        int(digits) for number in numbers for digits in re.findall(r"(\d+)$", sheets[number - 1].body, re.M)
    ]
    # An entry at the end of a page has a link on the next as well.
    goals = {str(goal["/D"]).lstrip("/") for number, goal in links(printed) if number in numbers}
    true = [pages[goal] for goal in goals if not goal.startswith(("part-", "contents"))]
    assert len(true) > 200
    assert sorted(printed_there) == sorted(true), "the contents were filled in before the pages were known"


def test_each_page_has_its_chapter_and_its_number_in_its_head(book, html, sheets, entries):
    titles = ["Preface"] + [said(HEADING.search(article(html, name))[2]) for name in book.names[1:]]
    starts = [next(page for _, entry, page in entries if words(entry) == title) for title in titles]
    for title, (first, after) in zip(titles, pairwise([*starts, len(sheets) + 1]), strict=True):
        for number in range(first, after):
            head = words(sheets[number - 1].head)
            assert head == f"{title}{number}", f"page {number} of {title!r} is headed {head!r}"


def test_no_heading_is_left_alone_at_the_foot(sheets, entries):
    titles = {words(title) for _, title, _ in entries}
    alone = [(number, sheet.foot) for number, sheet in enumerate(sheets, 1) if words(sheet.foot) in titles]
    assert not alone, f"pages that end with a heading: {alone}"


def test_nothing_begins_beyond_the_margin(sheets):
    out = [(number, round(sheet.right)) for number, sheet in enumerate(sheets, 1) if sheet.right > RIGHT]
    assert not out, f"page and points from the left: {out}; a table or a formula is too wide"


def test_no_page_is_all_but_empty(sheets):
    bare = [number for number, sheet in enumerate(sheets, 1) if len(sheet.body) < LEAST]
    assert not bare, f"hardly a word on pages {bare}"


def test_no_chapter_is_cut_short(book, html, sheets):
    whole = words(" ".join(sheet.body for sheet in sheets))
    for name in book.names:
        plain = re.findall(r"<p>((?:(?!<p>|class=\"math).)*?)</p>", article(html, name), re.S)
        last = next(text[-LEAST:] for text in map(said, reversed(plain)) if len(text) > LEAST)
        assert last in whole, f"{name}: its last sentence is missing, it ends in {last!r}"


def test_pictures_are_drawn_but_for_those_that_have_pixels(printed, book, html):
    def images(resources):
        for entry in resources.get("/XObject", {}).values():
            entry = entry.get_object()
            if entry["/Subtype"] == "/Image":
                yield entry
            elif "/Resources" in entry:
                yield from images(entry["/Resources"])

    shown = [name for page in book.names for name in re.findall(r"_images/([^\"]+)", article(html, page))]
    expected = sum("<image" in (html / "_images" / name).read_text("utf-8") for name in shown)
    found = [number for number, page in enumerate(printed.pages, 1) if any(images(page["/Resources"]))]
    assert len(found) <= expected, f"pixels on pages {found}; {expected} pictures of the book have any"


def test_it_can_be_sent_by_mail(pdf):
    assert pdf.stat().st_size <= MOST, f"{pdf.stat().st_size / 2**20:.1f} MiB"
