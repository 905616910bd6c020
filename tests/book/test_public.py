"""The whole book in a copy with a made-up address: every link of that kind leads where it should; without it, none."""

import subprocess
import sys
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

LINES = '\n[project.urls]\nRepository = "https://github.com/norms/book"\nDocumentation = "https://norms.example/b"\n'
HOST, COLAB = "https://github.com/norms/book", "https://colab.research.google.com/github/norms/book"


@pytest.fixture(scope="module")
def public(root, html, tmp_path_factory):
    """The pages of a copy of the book that has an address."""
    copy = tmp_path_factory.mktemp("public")
    for path in root.iterdir():
        if path.name not in (".git", "_build", "pyproject.toml"):
            (copy / path.name).symlink_to(path)
    (copy / "_build").mkdir()
    (copy / "_build/run").symlink_to(root / "_build/run")
    (copy / "pyproject.toml").write_text((root / "pyproject.toml").read_text("utf-8") + LINES, "utf-8")
    for command in ("stage", "site"):
        done = subprocess.run([sys.executable, "-m", "press", "--root", copy, command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return copy / "_build/html"


def soup(folder, name):
    return BeautifulSoup((folder / f"chapters/{name}.html").read_text("utf-8"), "html.parser")


@pytest.mark.slow
def test_every_link_leads_where_it_should(book, root, public):
    tried = 0
    for name in book.names:
        page = soup(public, name)
        assert page.select(".page-links a"), f"{name}: no links under its title"
        for link in page.select("a[href^='https://github.com/norms'], a[href^='https://colab']"):
            url = urlsplit(link["href"])
            if link["href"].startswith(f"{HOST}/issues/new?"):
                form = parse_qs(url.query)
                assert form["template"] == ["slip.yml"] and form["where"][0], f"{name}: {link['href']}"
            else:
                kind, main, file = unquote(url.path).removeprefix("/github").removeprefix("/norms/book/").split("/", 2)
                assert main == "main" and kind in ("blob", "edit"), f"{name}: {link['href']}"
                assert (root / file).is_file(), f"{name}: leads to {file}, which is not there"
                if url.fragment:
                    written = (root / file).read_text("utf-8").splitlines()[int(url.fragment.removeprefix("L")) - 1]
                    first = link.find_next("pre").text.strip().splitlines()[0]
                    assert written.strip() == first.strip(), f"{name}: {file}#{url.fragment} is not the check's line"
            tried += 1
        statements = page.select(".proof[id]:has(> .marks)")
        slips = page.select(".proof[id] > .marks a[href*='/issues/new']")
        assert len(slips) == len(statements), f"{name}: a statement whose slip nobody can report"
        assert (page.select_one("link[rel=canonical]") or {}).get("href", "").endswith(f"/b/chapters/{name}.html")
    assert tried > 500, f"only {tried} links were tried"


def test_without_an_address_there_is_none(book, root, html):
    if "Repository" in book.project.get("urls", {}):
        pytest.skip("the book has its address")
    for name in book.names:
        page = soup(html, name)
        found = page.select(
            ".page-links, .imprint a, .marks a[href^=http], .fold-row a[href^=http], link[rel=canonical]"
        )
        assert not found, f"{name}: {found[:3]}"
    for path in (root / "notebooks").rglob("*.ipynb"):
        assert "colab.research" not in path.read_text("utf-8"), path.name
