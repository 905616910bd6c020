"""What tests of pages share: one walk over each page."""

import pytest
from walk import walk


@pytest.fixture(scope="session")
def walks(browser, book, html):
    """What was seen on each page of the book, by its name."""
    return {name: walk(browser, html / f"chapters/{name}.html") for name in book.names}
