"""What all tests share: the folder of the repository, the built book, a browser."""

import os
import shutil
from pathlib import Path

import pytest

# As in press.pdf, which an installed normgeom is tested without.
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def html(root) -> Path:
    """The folder of the built pages, or of another build of them; without them tests fail, they do not skip."""
    pages = root / os.environ.get("PAGES", "_build/html")
    assert (pages / "index.html").exists(), "no built book: run `make book` first"
    return pages


@pytest.fixture(scope="session")
def book(root, html):
    """The book that the pages were built from."""
    from press.book import Book

    return Book(root)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; where there is none, a reader's tests skip and those of CI fail."""
    if path := next(filter(None, map(shutil.which, CHROMIUMS)), None):
        return path
    give_up = pytest.fail if os.environ.get("CI") else pytest.skip
    give_up("no Chromium on PATH; .ci/run installs it")


@pytest.fixture(scope="session")
def browser(chromium):
    """That Chromium, headless."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
