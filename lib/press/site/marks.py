"""Under each statement a line of small print: how it is known, what it uses, and what uses it; out of the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from docutils import nodes
from sphinx.application import Sphinx

from press.site.labels import anchors, labels
from press.site.manifest import staged

SHOWN = 4  # references in a line; more are folded
KNOWN = {"proved and checked": ("proved", "checked"), "checked numerically": ("checked",), "open": ("open",)}


def mark(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Append the line to each statement of a page."""
    if app.builder.format != "html":
        return
    entries = {entry["label"]: entry for entry in staged(app)["statements"]}
    read, places = labels(app.env), anchors(app.env)

    def link(label: str) -> str:
        doc, anchor = places[label]
        uri = app.builder.get_relative_uri(docname, doc)
        return f'<a class="reference internal" href="{uri}#{anchor}">{escape(read[label]["ref"])}</a>'

    for node in doctree.findall(lambda node: isinstance(node, nodes.Element) and node.get("label") in entries):
        if "countertype" in node and (words := list(_words(entries[node["label"]], link))):
            node += nodes.raw(text=f'<div class="marks">{" · ".join(words)}</div>', format="html")


def _words(entry: dict, link) -> Iterator[str]:
    for word in _known(entry):
        checks = entry["checks"] if word != "proved" else []
        yield f'<a href="#{checks[0]["anchor"]}">{word}</a>' if checks else word
    for words, used in (("uses", [used["label"] for used in entry["uses"]]), ("used by", entry["used_by"])):
        links = ", ".join(map(link, used))
        if len(used) > SHOWN:
            yield f"<details><summary>{words} {len(used)}</summary> {links}</details>"
        elif used:
            yield f"{words} {links}"


def _known(entry: dict) -> tuple[str, ...]:
    if entry["status"] == "measured":
        return (f"measured at {entry['seeds']['tried']} seeds" if entry["seeds"] else "measured on recorded runs",)
    return KNOWN.get(entry["status"], ())


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", mark)
