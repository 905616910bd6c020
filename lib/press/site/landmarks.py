"""Landmarks and names of a page's frame, for those who listen: the theme leaves some out and has no setting for them."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

# In a built page: what stands there, and what is added to its tag.
NAMED = {
    '<div id="pst-primary-sidebar"': 'role="complementary" aria-label="Contents of the book"',
    '<dialog id="pst-primary-sidebar-modal"': 'aria-label="Contents of the book"',
    '<dialog id="pst-secondary-sidebar-modal"': 'aria-label="Contents of the page"',
    '<dialog id="pst-search-dialog"': 'aria-label="Search"',
}


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


def setup(app: Sphinx) -> None:
    app.connect("build-finished", name)
