"""The built book; without it these tests fail, they do not skip."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from press.book import Book

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card, for turning figures
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; where there is none, a reader's tests skip and those of CI fail."""
    if CHROMIUM is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("no Chromium on PATH; .ci/run installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
