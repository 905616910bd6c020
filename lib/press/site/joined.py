"""A formula in a line and what stands right beside it, a bracket or a comma, are not parted at the end of the line."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

BEFORE, AFTER = re.compile(r"[^\s–—]{1,8}$"), re.compile(r"^[^\s–—]{1,16}(?=[\s–—]|$)|^[.,;:!?)\]’”]+")


def join(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each formula that touches a word or a mark into one inline element with it."""
    if app.builder.format != "html":
        return
    for formula in list(doctree.findall(nodes.math)):
        parent = formula.parent
        at = parent.index(formula)
        before = _beside(BEFORE, parent, at - 1)
        after = _beside(AFTER, parent, at + 1)
        if before or after:
            left = [nodes.Text(parent[at - 1][: -len(before)])] if before else []
            right = [nodes.Text(parent[at + 1][len(after) :])] if after else []
            words = [nodes.Text(before)] if before else []
            joined = nodes.inline("", "", *words, formula.deepcopy(), nodes.Text(after), classes=["joined"])
            parent[at - len(left) : at + 1 + len(right)] = [*left, joined, *right]


def _beside(pattern: re.Pattern, parent: nodes.Element, at: int) -> str:
    found = pattern.search(parent[at]) if 0 <= at < len(parent) and isinstance(parent[at], nodes.Text) else None
    return found[0] if found else ""


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", join, priority=900)
