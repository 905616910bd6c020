"""What parts of a text are: names in a table's first column head their rows, and sources are entries of a list."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


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
    app.connect("doctree-resolved", head_rows)
    app.add_node(nodes.entry, override=True, html=(visit_entry, HTML5Translator.depart_entry))
    app.add_node(nodes.citation, override=True, html=(visit_citation, HTML5Translator.depart_citation))
