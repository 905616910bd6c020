"""What stands in the built pages."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

# A dollar sign in the text is mathematics that MyST did not recognise.
RAW_MYST = ("$", "{prf:", "{eq}", "{ref}", "{doc}", "{numref}", "{cite", "{term}", ":::")
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """Collects what a page loads, and the text that a reader sees outside code."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads, self.text, self.hidden = [], [], []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "link" and attributes.get("rel") not in ("stylesheet", "preload", "icon"):
            return
        if tag in LOADS:
            self.loads.append(attributes.get(LOADS[tag]) or "")
        if tag in ("script", "style", "pre", "code"):
            self.hidden.append(tag)

    def handle_endtag(self, tag):
        if self.hidden and self.hidden[-1] == tag:
            self.hidden.pop()

    def handle_data(self, data):
        if not self.hidden:
            self.text.append(data)


@pytest.fixture(scope="module")
def pages(html):
    found = {path.relative_to(html).as_posix(): Page(path) for path in html.rglob("*.html")}
    # The theme leaves templates among its own files.
    return {name: page for name, page in found.items() if not name.startswith("_static/")}


def test_nothing_is_loaded_from_elsewhere(pages):
    for name, page in pages.items():
        away = [address for address in page.loads if address.startswith(("http:", "https:", "//"))]
        assert not away, f"{name} loads {away}"


def test_what_is_loaded_is_there(pages, html):
    for name, page in pages.items():
        files = [address.partition("?")[0] for address in page.loads if not address.startswith("data:")]
        missing = [file for file in files if file and not (html / name).parent.joinpath(file).exists()]
        assert not missing, f"{name} loads {missing}"


def test_no_raw_myst_is_left(pages):
    for name, page in pages.items():
        text = "".join(page.text)
        assert not [mark for mark in RAW_MYST if mark in text], name
