"""Figures and captions: an opening picture becomes its numbered figure, and the finding of a caption is emphasised."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx

from press.plain import OPENING
from press.site.folds import take

END = re.compile(r"[.?!](?=\s|$)")


def captions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the opening picture by its figure, and emphasise the first sentence of each caption."""
    if app.builder.format != "html":
        return
    for picture in [image for image in doctree.findall(nodes.image) if OPENING in image["classes"]]:
        _open(picture, doctree)
    for caption in list(doctree.findall(nodes.caption)):
        _emphasise(caption)
    for table in doctree.findall(nodes.table):
        if isinstance(table[0], nodes.title):
            _emphasise(table[0])


def _open(picture: nodes.image, doctree: nodes.document) -> None:
    """Replace an opening picture and the line under it by the figure itself, whose caption says more."""
    name = PurePosixPath(picture["uri"]).stem
    figures = [figure for figure in doctree.findall(nodes.figure) if name in figure["ids"]]
    if not figures:
        return
    line = picture.next_node(descend=False, siblings=True)
    if isinstance(line[0], nodes.emphasis) and any(name == link.get("refid") for link in line.findall(nodes.reference)):
        line.parent.remove(line)
    take(figures[0])
    picture.replace_self(figures[0])


def _emphasise(caption: nodes.TextElement) -> None:
    for at, part in enumerate(caption):
        if isinstance(part, nodes.Text) and (end := END.search(part)):
            before, after = part[: end.end()], part[end.end() :]
            finding = nodes.strong("", "", *caption[:at], nodes.Text(before))
            caption[:] = [finding, nodes.Text(after), *caption[at + 1 :]]
            return


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", captions)
