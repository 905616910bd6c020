"""The links that one line of pyproject.toml turns on."""

import pytest
from press.address import address

PROJECT = {"urls": {"Repository": "https://github.com/norms/book.git", "Documentation": "https://norms.example/book"}}


def test_without_the_line_there_is_no_address():
    assert address({}) is None
    assert address({"urls": {"Other": "https://norms.example"}}) is None


def test_links_point_into_the_repository_and_the_pages():
    found = address(PROJECT)
    assert found.source("chapters/02-x.md") == "https://github.com/norms/book/blob/main/chapters/02-x.md"
    assert found.source("chapters/02-x.md", 7).endswith("/blob/main/chapters/02-x.md?plain=1#L7"), "rendered, no lines"
    assert found.edit("chapters/02-x.md") == "https://github.com/norms/book/edit/main/chapters/02-x.md"
    assert found.colab("notebooks/02-x.ipynb") == (
        "https://colab.research.google.com/github/norms/book/blob/main/notebooks/02-x.ipynb"
    )
    assert found.issue("slip.yml", where="thm-mean & ε") == (
        "https://github.com/norms/book/issues/new?template=slip.yml&where=thm-mean+%26+%CE%B5"
    )
    assert found.page("chapters/02-x.html") == "https://norms.example/book/chapters/02-x.html"


def test_without_the_pages_address_no_page_has_one():
    assert address({"urls": {"Repository": "https://github.com/norms/book/"}}).page("index.html") is None


@pytest.mark.parametrize(
    ("urls", "named"),
    [
        ({"Repository": "https://norms.example/book"}, "Repository.*OWNER/NAME.*norms.example"),
        ({"Repository": "https://github.com/norms"}, "Repository.*OWNER/NAME"),
        ({"Documentation": "https://norms.example"}, "Documentation.*Repository beside it"),
        ({"Repository": "https://github.com/a/b", "Documentation": "norms.example"}, "Documentation.*https://"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(urls, named):
    with pytest.raises(ValueError, match=named):
        address({"urls": urls})
