"""The toy book as a PDF: in order, linked, numbered, with a title; and what is refused."""

import re
import shutil

import pytest
from press.book import Book
from press.edition import pdf as edition
from press.edition.joined import joined
from pypdf import PdfReader
from toybook import make

REPOSITORY, PAGES = "https://github.com/ada/toy", "https://ada.example/toy/"
URLS = f'\n[project.urls]\nRepository = "{REPOSITORY}"\nDocumentation = "{PAGES}"\n'


@pytest.fixture(scope="module")
def document(made):
    return joined(Book(made))


@pytest.fixture(scope="module")
def printed(made, chromium):
    done = make(made, "pdf")
    assert done.returncode == 0, done.stdout + done.stderr
    return PdfReader(made / edition.FOLDER / edition.NAME)


def outline(entries, depth=0):
    for entry in entries:
        if isinstance(entry, list):
            yield from outline(entry, depth + 1)
        else:
            yield depth, entry.title


def test_the_outline_has_contents_parts_chapters_and_sections_once(printed):
    found = list(outline(printed.outline))
    expected = [(0, "Contents"), (0, "Preface"), (0, "Part I"), (1, "1. The mean"), (2, "1.1. Projecting")]
    assert found[: len(expected)] == expected
    assert [title for depth, title in found if depth == 0][-1] == "Appendix"
    assert len(set(found)) == len(found), "a heading is in the outline twice"


def test_each_id_is_there_once_and_every_link_has_its_place(document):
    ids = re.findall(r' id="([^"]+)"', document)
    assert len(set(ids)) == len(ids), f"ids of several elements: {sorted({i for i in ids if ids.count(i) > 1})}"
    goals = set(re.findall(r'href="#([^"]+)"', document))
    assert "eq-mean" in " ".join(goals)
    assert goals <= set(ids), f"links to nothing: {goals - set(ids)}"


def test_without_an_address_no_link_leaves_for_a_page_or_a_file(document):
    article = document.partition("<article")[2]
    assert not re.findall(r'href="(?!#|https?://)[^"]*"', article), "a link to a file of the built book"
    assert 'class="moves"' not in article, "it names a page that nobody can open"


def test_with_an_address_moving_parts_say_where_they_move(copy):
    chapter = copy / "_build/html/chapters/02-angle.html"
    more = '<a href="../manifest.json">labels</a></section>'
    chapter.write_text(chapter.read_text("utf-8").replace("</section>", more, 1), "utf-8")
    project = copy / "pyproject.toml"
    project.write_text(project.read_text("utf-8").replace("\n[tool", URLS + "\n[tool", 1), "utf-8")
    document = joined(Book(copy))
    assert f'It moves at <a href="{PAGES}chapters/02-angle.html">' in document
    assert f'href="{PAGES}manifest.json"' in document, "a file of the built book is linked where it is served"


def test_contents_have_the_pages_of_their_chapters(printed):
    contents = next(page.extract_text() for page in printed.pages if "Contents" in page.extract_text())
    said = {title: int(number) for title, number in re.findall(r"^(.*?) ?(\d+)$", contents, re.M)}
    for title in ("1. The mean", "2. The angle", "Notation"):
        heads = [i for i, page in enumerate(printed.pages, 1) if page.extract_text().startswith(title)]
        assert said[title] == heads[0], f"{title}: the contents say {said[title]}, its pages are {heads}"


def test_it_says_whose_it_is(printed):
    assert printed.metadata.title == "The Toy"
    assert printed.metadata.author == "Ada Toy"
    assert printed.trailer["/Root"]["/Lang"] == "en"
    assert printed.trailer["/Root"]["/MarkInfo"]["/Marked"]
    first = printed.pages[0].extract_text()
    assert "The Toy" in first and "Ada Toy" in first and "Version 0" in first


def test_checks_are_lines_folds_are_open_and_solutions_come_last(document):
    mean = re.search(r'<section class="[^"]*page-01-mean".*?(?=<section class="[^"]*chapter)', document, re.S)[0]
    assert 'class="check-line"' in mean
    assert not re.search(r"<details(?![^>]* open)", mean), "a fold that nobody can open"
    assert mean.index("When is") < mean.index("Much more in") < mean.index("Solution to"), "solutions stand at the end"


def test_without_a_browser_it_says_so_before_any_work(made, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("press.edition.browser.joined", lambda book: pytest.fail("work was done without a browser"))
    with pytest.raises(FileNotFoundError, match="chromium"):
        edition.pdf(Book(made))
