"""Landmarks and names of a page's frame, for those who listen: the theme leaves some out, no setting adds them."""

from __future__ import annotations

from html import escape
from pathlib import Path

from sphinx.application import Sphinx

# In a built page: what stands there, and what is added to its tag.
NAMED = {
    '<div id="pst-primary-sidebar"': 'role="complementary" aria-label="Contents of the book"',
    '<dialog id="pst-primary-sidebar-modal"': 'aria-label="Contents of the book"',
    '<dialog id="pst-secondary-sidebar-modal"': 'aria-label="Contents of the page"',
    '<dialog id="pst-search-dialog"': 'aria-label="Search"',
}
# The first page leads on at once, and is nothing else.
FIRST = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'


def name(app: Sphinx, error: Exception | None) -> None:
    """Add roles and names to the frame of each page."""
    if error or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = named = page.read_text("utf-8")
        for tag, added in NAMED.items():
            named = named.replace(f"{tag} {added}", tag).replace(tag, f"{tag} {added}")
        if named != text:
            page.write_text(named, "utf-8")
    first = Path(app.outdir, "index.html")
    if (text := first.read_text("utf-8")).startswith("<meta"):
        first.write_text(FIRST.format(title=escape(app.config.html_title)) + text, "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", name)
