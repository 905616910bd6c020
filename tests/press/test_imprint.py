"""What every page says of its edition, and the buttons that one line of pyproject.toml turns on."""

import shutil

import nbformat
import pytest
from bs4 import BeautifulSoup
from press.book import Book
from press.imprint import imprint
from toybook import make

LINE = '\n[project.urls]\nRepository = "https://github.com/toys/book"\nDocumentation = "https://toys.example/book"\n'
HOST = "https://github.com/toys/book"


def soup(folder, name):
    return BeautifulSoup((folder / f"_build/html/chapters/{name}.html").read_text("utf-8"), "html.parser")


@pytest.fixture(scope="module")
def public(made, tmp_path_factory):
    """The toy book with an address."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("public") / "toy", symlinks=True)
    make(folder, "--touch", "book")
    pyproject = folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text("utf-8") + LINE, "utf-8")
    done = make(folder, "book", "notebooks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "running" not in done.stdout, "an address makes no chapter run again"
    return folder


def test_without_an_address_no_page_and_no_notebook_pretends(made, book):
    for name in book.names:
        assert not soup(made, name).select("a[href*=github], a[href*=colab], [rel=canonical]"), name
    for path in (made / "notebooks").rglob("*.ipynb"):
        assert "Open in Colab" not in path.read_text("utf-8"), path.name


def test_the_buttons_of_every_page_lead_to_its_own_files(public, book):
    notebooks = {page.name for page in book.notebooks}
    for name in book.names:
        page = soup(public, name)
        links = {a["href"] for a in page.select(".article-header-buttons a[href^=https]")}
        assert f"{HOST}/edit/main/chapters/{name}.md" in links and (public / f"chapters/{name}.md").is_file()
        colab = f"https://colab.research.google.com/github/toys/book/blob/main/notebooks/{name}.ipynb"
        assert {link for link in links if "colab" in link} == ({colab} if name in notebooks else set())
        assert any(link.startswith(f"{HOST}/issues/new") for link in links)
        assert page.select_one("link[rel=canonical]")["href"] == f"https://toys.example/book/chapters/{name}.html"
        if name in notebooks:
            assert colab in (public / f"notebooks/{name}.ipynb").read_text("utf-8")


def test_every_page_and_notebook_names_its_edition(made, book):
    for name in book.names:
        assert soup(made, name).select_one(".imprint").text == "Version 0, 2026-01-02"
    for page in book.notebooks:
        last = nbformat.read(made / f"notebooks/{page.name}.ipynb", 4).cells[-1]
        assert "Version 0" in last.source, page.name


def test_an_address_that_leads_nowhere_is_refused(copy):
    with open(copy / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write(LINE.replace("github.com", "norms.example"))
    with pytest.raises(ValueError, match=r"Repository: expected https://github.com/OWNER/NAME, got .*norms.example"):
        imprint(Book(copy))
