"""Accessibility of pages without scripts: alt text, row headers, and a first page with a language and a title."""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from myst_nb.core import render
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

FIRST = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'


class StoredImages:
    """A MyST-NB renderer that gives stored images their alt text, which MyST-NB omits; pyproject.toml registers it."""

    @staticmethod
    def handle_mime(renderer: render.NbElementRenderer, data: render.MimeData, inline: bool) -> list | None:
        """Return nodes for an image, or None to leave the output to MyST-NB."""
        if inline or not data.mime_type.startswith("image/"):
            return None
        images = renderer.render_image(data)
        for image in images:
            image["alt"] = data.output_metadata.get("alt", "")
        return images


def name(app: Sphinx, error: Exception | None) -> None:
    """Give the first page a language and a title."""
    first = Path(app.outdir, "index.html")
    if not error and app.builder.format == "html" and (text := first.read_text("utf-8")).startswith("<meta"):
        first.write_text(FIRST.format(title=escape(app.config.html_title)) + text, "utf-8")


def head_rows(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mark the first column of a table as row headers if its own header is empty."""
    for head in doctree.findall(nodes.thead):
        if not head[0][0].astext():
            head.parent.next_node(nodes.colspec)["stub"] = 1


def visit_entry(self: HTML5Translator, node: nodes.entry) -> None:
    """Write a table cell: a row header gets its scope, and an empty column header becomes an ordinary cell."""
    HTML5Translator.visit_entry(self, node)
    if not isinstance(node.parent.parent, nodes.thead):
        self.body[-1] = self.body[-1].replace("<th", '<th scope="row"', 1)
    elif not node.astext():
        self.body[-1] = self.body[-1].replace("<th", "<td", 1)
        self.context[-1] = self.context[-1].replace("th", "td")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", name)
    app.connect("doctree-resolved", head_rows)
    app.add_node(nodes.entry, override=True, html=(visit_entry, HTML5Translator.depart_entry))
