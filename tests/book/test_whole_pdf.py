"""The whole book as one PDF: its outline, contents, running heads and links, and what must not stand on a page."""

import html as markup
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from press.edition.pdf import FOLDER, NAME, pages_of
from pypdf import PdfReader

pytestmark = pytest.mark.slow

MOST = 20 * 2**20
HEADING = re.compile(r"<h([12])>(.*?)<a class=\"headerlink\"", re.S)
LEAST = 60  # letters on a page, its running head included: a figure has a caption


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


@pytest.fixture(scope="module")
def texts(printed):
    """The words of each page, and what may be lost between them: spaces."""
    return [page.extract_text() for page in printed.pages]


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
    return re.sub(r"[\W_]+", "", markup.unescape(re.sub(r"<[^>]*>", "", text)))


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
            page = (html / f"chapters/{name}.html").read_text("utf-8")
            deeper = bool(caption)
            found = [(int(level) - 1 + deeper, title) for level, title in HEADING.findall(page)]
            expected += found + ([(1 + deeper, "Solutions")] if 'class="solution' in page else [])
    expected[1] = (0, "Preface")  # the front page's title is the book's
    assert [(depth, words(title)) for depth, title, _ in entries] == [(depth, words(t)) for depth, t in expected]


def test_every_link_inside_leads_somewhere_and_none_to_a_file(printed, pages):
    inside = [(number, goal["/D"]) for number, goal in links(printed) if goal.get("/D") is not None]
    assert len(inside) > 3000, "links between chapters are lost"
    lost = sorted({(number, str(goal)) for number, goal in inside if str(goal).lstrip("/") not in pages})
    assert not lost, f"page and goal of links to nothing: {lost[:10]}"
    outside = [(number, goal["/URI"]) for number, goal in links(printed) if "/URI" in goal]
    assert len(outside) > 50
    assert not [link for link in outside if not link[1].startswith(("https://", "http://"))], "only a disk has these"


def test_contents_say_the_pages_on_which_things_begin(printed, texts, pages):
    first, last = pages["contents"], min(page for name, page in pages.items() if page > pages["contents"])
    said, true = [], []
    for number in range(first, last):
        said += [int(digits) for digits in re.findall(r"(\d+)$", texts[number - 1], re.M)]
        goals = [str(goal["/D"]).lstrip("/") for page, goal in links(printed) if page == number]
        true += [pages[goal] for goal in goals if not goal.startswith(("part-", "contents"))]
    assert len(said) > 200
    assert sorted(said) == sorted(true), "the contents were filled in before the pages were known"


def test_each_page_has_its_chapter_and_its_number_in_its_head(texts, entries):
    starts = [(title, page) for depth, title, page in entries if re.match(r"Preface|\d+\. ", title)]
    starts.append(("", next(page for depth, title, page in entries if title == "Appendix")))
    for (title, first), (_, after) in pairwise(starts):
        for number in range(first, after):
            head = words(texts[number - 1].replace("\n", " ")[:200])
            assert words(title) in head, f"page {number} is not headed {title!r}"
            assert str(number) in head, f"page {number} has another number in its head"


def test_no_heading_is_left_alone_at_the_foot(texts, entries):
    titles = {words(title) for _, title, _ in entries}
    alone = [number for number, text in enumerate(texts, 1) if words(text.strip().rpartition("\n")[2]) in titles]
    assert not alone, f"pages that end with a heading: {alone}"


def test_no_page_is_all_but_empty(texts):
    bare = [number for number, text in enumerate(texts, 1) if len(text) < LEAST]
    assert not bare, f"hardly a word on pages {bare}"


def test_no_chapter_is_cut_short(book, html, texts):
    whole = words(" ".join(texts))
    for name in book.names:
        page = (html / f"chapters/{name}.html").read_text("utf-8").partition('<footer class="prev-next')[0]
        paragraphs = [words(text) for text in re.findall(r"<p>((?:(?!<p>|mathjax|class=\"math).)*?)</p>", page, re.S)]
        last = next(text[-40:] for text in reversed(paragraphs) if len(text) > 40)
        assert last in whole, f"{name}: its last sentence is missing, it ends in {last!r}"


def test_pictures_are_drawn_not_photographed(printed):
    def images(resources):
        for entry in resources.get("/XObject", {}).values():
            entry = entry.get_object()
            if entry["/Subtype"] == "/Image":
                yield entry
            elif "/Resources" in entry:
                yield from images(entry["/Resources"])

    found = [n for n, page in enumerate(printed.pages, 1) if any(images(page["/Resources"]))]
    assert not found, f"pixels on pages {found}, where the book has SVG"


def test_it_can_be_sent_by_mail(pdf):
    assert pdf.stat().st_size <= MOST, f"{pdf.stat().st_size / 2**20:.1f} MiB"
