"""What every page says of its edition, and the links that one line of pyproject.toml turns on."""

import json
import re
import shutil
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from press.imprint import bibtex, commit
from toybook import make

LINE = '\n[project.urls]\nRepository = "https://github.com/toys/book"\nDocumentation = "https://toys.example/book"\n'
HOST = "https://github.com/toys/book"
BODY = ".bd-article"


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
        page = soup(made, name)
        assert not page.select(".page-links, [property^=og], [rel=canonical]"), name
        away = [a["href"] for a in page.select(f"{BODY} a[href*=github], {BODY} a[href*=colab]")]
        assert not away, f"{name}: {away}"
        assert "report a slip" not in page.get_text(), name
    assert not (made / "_build/html/sitemap.xml").exists()
    for path in (made / "notebooks").rglob("*.ipynb"):
        assert "Open in Colab" not in path.read_text("utf-8"), path.name


def test_the_links_of_every_page_lead_to_its_own_files(public, book):
    notebooks = {page.name for page in book.notebooks}
    for name in book.names:
        links = {a.text: a["href"] for a in soup(public, name).select(".page-links a")}
        file = urlsplit(links["Source"]).path.removeprefix("/toys/book/blob/main/")
        assert links["Edit"] == f"{HOST}/edit/main/{file}"
        assert file == f"chapters/{name}.md"
        assert (public / file).is_file(), f"{name}: its source is said to be {file}"
        colab = f"https://colab.research.google.com/github/toys/book/blob/main/notebooks/{name}.ipynb"
        assert links.get("Open in Colab") == (colab if name in notebooks else None), name
        if name in notebooks:
            assert (public / f"notebooks/{name}.ipynb").is_file()
        form = parse_qs(urlsplit(links["Report a slip"]).query)
        assert form == {"template": ["slip.yml"], "where": [f"chapters/{name}"], "version": ["0"]}


def test_each_check_leads_to_its_own_line(public):
    page = soup(public, "01-mean")
    checks = page.select(".fold.check")
    assert checks
    lines = (public / "chapters/01-mean.md").read_text("utf-8").splitlines()
    found = [urlsplit(a["href"]) for a in page.select(".fold.check .fold-row a:last-child")]
    assert len(found) == len(checks)
    for url, check in zip(found, checks, strict=True):
        assert url.path == "/toys/book/blob/main/chapters/01-mean.md"
        at = int(url.fragment.removeprefix("L"))
        first = check.find_next("pre").text.strip().splitlines()[0]
        assert lines[at - 1].strip() == first, "the link leads to another line than the first of the check"


def test_a_slip_in_a_statement_comes_with_its_label(public):
    (link,) = soup(public, "01-mean").select("#thm-mean .marks a[href*=issues]")
    assert parse_qs(urlsplit(link["href"]).query)["where"] == ["thm-mean"]


def test_a_page_names_its_address(public):
    (link,) = soup(public, "01-mean").select("link[rel=canonical]")
    assert link["href"] == "https://toys.example/book/chapters/01-mean.html"


def test_every_page_is_described_without_formulas(made, book):
    for name in book.names:
        said = soup(made, name).select_one("meta[name=description]")["content"]
        assert said and "\\" not in said and "$" not in said, f"{name}: {said!r}"


def test_every_page_and_notebook_names_its_edition(made, book):
    for name in book.names:
        words = soup(made, name).select_one(".imprint p").text
        assert re.fullmatch(r"Version 0, \d+ \w+ \d{4}", words), f"{name}: {words!r}"
        assert soup(made, name).select_one(".imprint pre").text.startswith("@book{toy,")
    for page in book.notebooks:
        last = nbformat.read(made / f"notebooks/{page.name}.ipynb", 4).cells[-1]
        assert "Version 0" in last.source and "@book{toy," in last.source, page.name


def test_an_entry_names_the_chapter_and_the_address(public):
    content = json.loads((public / "_build/stage/imprint.json").read_text("utf-8"))
    entry = bibtex(content, "chapters/01-mean", "The mean")
    assert "note = {Chapter 1, The mean}" in entry and "url = {https://toys.example/book/}" in entry
    assert "note" not in bibtex(content, "chapters/index", "A toy book")
    assert entry.count("{") == entry.count("}")


def test_the_commit_is_of_the_checkout(tmp_path):
    assert commit(tmp_path) is None, "outside of a checkout there is none"
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C", tmp_path]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1", "utf-8")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    assert re.fullmatch(r"[0-9a-f]{10}", commit(tmp_path))
    (tmp_path / "file").write_text("2", "utf-8")
    assert commit(tmp_path).endswith(", with changes")


def test_another_book_can_cite_a_statement_and_an_equation(made, tmp_path):
    """Sphinx's own intersphinx, with this book's inventory, from disk."""
    (tmp_path / "conf.py").write_text(
        "extensions = ['sphinx.ext.intersphinx']\n"
        f"intersphinx_mapping = {{'toy': ('https://toys.example', {str(made / '_build/html/objects.inv')!r})}}\n",
        "utf-8",
    )
    (tmp_path / "index.rst").write_text("Words\n=====\n\n:ref:`thm-mean`, :ref:`eq-mean`, :ref:`fig-dot`.\n", "utf-8")
    command = [sys.executable, "-m", "sphinx", "-qnW", "-b", "html", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = BeautifulSoup((tmp_path / "out/index.html").read_text("utf-8"), "html.parser")
    links = {a.text: a["href"] for a in page.select("a.reference.external[href*=toys]")}
    assert links == {
        "Theorem 1.1": "https://toys.example/chapters/01-mean.html#thm-mean",
        "(1.1)": "https://toys.example/chapters/01-mean.html#equation-eq-mean",
        "Fig. 1.1": "https://toys.example/chapters/01-mean.html#fig-dot",
    }
