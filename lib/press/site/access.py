"""What pages have for those who listen: alt text, names of the frame's parts, heads of rows, a list of sources."""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from myst_nb.core import render
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

# What stands in a built page of the theme, and what is added to its tag: no setting of the theme adds it.
NAMED = {
    '<div id="pst-primary-sidebar"': 'role="complementary" aria-label="Contents of the book"',
    '<dialog id="pst-primary-sidebar-modal"': 'aria-label="Contents of the book"',
    '<dialog id="pst-secondary-sidebar-modal"': 'aria-label="Contents of the page"',
    '<dialog id="pst-search-dialog"': 'aria-label="Search"',
}
# The first page leads on at once, and is nothing else.
FIRST = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'


class StoredImages:
    """A MyST-NB renderer of stored images, which it shows without their alt text; pyproject.toml names it."""

    @staticmethod
    def handle_mime(renderer: render.NbElementRenderer, data: render.MimeData, inline: bool) -> list | None:
        """Nodes for an image; None leaves the output to MyST-NB."""
        if inline or not data.mime_type.startswith("image/"):
            return None
        images = renderer.render_image(data)
        for image in images:
            image["alt"] = data.output_metadata.get("alt", "")
        return images


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


def head_rows(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mark the first column of a table as heads of its rows if nothing heads it."""
    for head in doctree.findall(nodes.thead):
        if not head[0][0].astext():
            head.parent.next_node(nodes.colspec)["stub"] = 1


def visit_entry(self: HTML5Translator, node: nodes.entry) -> None:
    """A cell; docutils makes an empty one above the rows' names a head as well."""
    HTML5Translator.visit_entry(self, node)
    if not isinstance(node.parent.parent, nodes.thead):
        self.body[-1] = self.body[-1].replace("<th", '<th scope="row"', 1)
    elif not node.astext():
        self.body[-1] = self.body[-1].replace("<th", "<td", 1)
        self.context[-1] = self.context[-1].replace("th", "td")


def visit_citation(self: HTML5Translator, node: nodes.citation) -> None:
    """An entry of the bibliography; the role that docutils gives it has been withdrawn from ARIA."""
    HTML5Translator.visit_citation(self, node)
    self.body[-1] = self.body[-1].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> None:
    app.connect("build-finished", name)
    app.connect("doctree-resolved", head_rows)
    app.add_node(nodes.entry, override=True, html=(visit_entry, HTML5Translator.depart_entry))
    app.add_node(nodes.citation, override=True, html=(visit_citation, HTML5Translator.depart_citation))
