"""Heads of tables: names in a first column without a title head their rows, and an empty cell heads nothing."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def head_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the first column of a table as heads of its rows if nothing heads it."""
    for head in doctree.findall(nodes.thead):
        if not head[0][0].astext():
            head.parent.next_node(nodes.colspec)["stub"] = 1


def visit(self: HTML5Translator, node: nodes.entry) -> None:
    """A cell; docutils makes an empty one above the rows' names a head as well."""
    HTML5Translator.visit_entry(self, node)
    if not isinstance(node.parent.parent, nodes.thead):
        self.body[-1] = self.body[-1].replace("<th", '<th scope="row"', 1)
    elif not node.astext():
        self.body[-1] = self.body[-1].replace("<th", "<td", 1)
        self.context[-1] = self.context[-1].replace("th", "td")


def depart(self: HTML5Translator, node: nodes.entry) -> None:
    HTML5Translator.depart_entry(self, node)


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", head_rows)
    app.add_node(nodes.entry, override=True, html=(visit, depart))
