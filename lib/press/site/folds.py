"""Folded cells: one line on the page that opens to the code, and from a check a link to its row in the ledger."""

from __future__ import annotations

import re
from html import escape

from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from press.book import CHAPTERS, LEDGER
from press.ledger import row
from press.site.labels import labels

NAMED = re.compile(r"\{([\w-]+)\}")


def visit(self: HTML5Translator, node: HideCodeCellNode) -> None:
    """A line, with statements named as readers know them; for a check it is marked and has the ledger beside it."""
    _, *verified = re.findall(r"[\w-]+", node["prompt_hide"]) or [""]
    words = NAMED.sub(lambda match: _read(self)[match[1]]["ref"], node["prompt_show"])
    kind = "check" if verified else "code"
    self.body.append(f'<div class="fold {kind}">')
    if verified:
        page = self.builder.get_relative_uri(self.builder.current_docname, (CHAPTERS / LEDGER).as_posix())
        self.body.append(f'<span class="fold-row"><a href="{page}#{row(verified[0])}">ledger</a></span>')
    self.body.append(f'<details class="hide">\n<summary>{escape(words)}</summary>\n')


def depart(self: HTML5Translator, node: HideCodeCellNode) -> None:
    self.body.append("</details>\n</div>\n")


def _read(self: HTML5Translator) -> dict[str, dict[str, str]]:
    if not hasattr(self.builder, "read_labels"):
        self.builder.read_labels = labels(self.builder.env)
    return self.builder.read_labels


def setup(app: Sphinx) -> None:
    app.add_node(HideCodeCellNode, override=True, html=(visit, depart))
