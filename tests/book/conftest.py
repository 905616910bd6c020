"""The built book; without it these tests fail, they do not skip."""

from pathlib import Path

import pytest
from press.book import Book


@pytest.fixture(scope="session")
def html(root) -> Path:
    """The folder of the built pages."""
    pages = root / "_build/html"
    assert (pages / "index.html").exists(), "no built book: run `make book` first"
    return pages


@pytest.fixture(scope="session")
def book(root, html) -> Book:
    """The book that the pages were built from."""
    return Book(root)
