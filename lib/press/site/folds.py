"""The folds of a page: how a statement is known, the code and checks of a section, solutions, optional sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx

from press.book import CHAPTERS, LEDGER
from press.ledger import row
from press.quiet import LABEL
from press.site.labels import links
from press.site.manifest import staged
from press.stage import CODE

FURTHER = "Further"
NAMED, TAG = re.compile(r"\{([\w-]+)\}"), re.compile("<[^>]*>")
ABOVE = {"above-input", "above-output"}  # MyST-NB's classes for hidden cells and for hidden code
RECORDED = '<details class="recorded">'
KNOWN = {"proved and checked": "✓ proved and checked", "checked numerically": "✓ checked numerically"}
FIRST, SIZE = re.compile(r"(?:recorded, )?([^,;(]*)"), re.compile(r", (d = \d+)")


def fold(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fold the parts of a page; the code before its first section moves to its end."""
    if app.builder.format != "html":
        return
    link, said = links(app, docname), {}
    ledger = app.builder.get_relative_uri(docname, (CHAPTERS / LEDGER).as_posix())
    entries = {entry["label"]: entry for entry in staged(app)["statements"]}
    for cell in doctree.findall(nodes.container):
        cell[:] = cell.children  # sets the parent of hidden cells, which MyST-NB leaves unset
    for code in doctree.findall(HideCodeCellNode):
        code["title"] = said[code["prompt_hide"].split()[0]] = _title(code, link, ledger)
    for page in _sections(doctree):
        sections = _sections(page)
        for section in (*sections, page):
            words = "Set-up of this page" if section is page else "Code and checks of this section"
            inside = [node for child in section if child not in sections for node in child.findall()]
            if cells := [cell for node in inside for cell in _moved(node)]:
                section += _details("code", _raw(words), *cells)
    for node in list(doctree.findall(nodes.Element)):
        if "countertype" in node and node["label"] in entries:
            entry = entries[node["label"]]
            node["classes"].append(f"known-{entry['status'].split()[0]}")
            if panel := [_raw(line) for line in _panel(entry, link, said)]:
                node += _details("marks", _raw(_known(entry, link)), *panel)
        elif isinstance(node, HideCodeCellNode):
            node.parent.replace(node, _details("result", _raw(escape(node["prompt_show"])), *node))
        elif "dropdown" in node["classes"]:
            node[:] = _details("solution", _raw(escape(node[0].astext())), *node[1:])
        elif isinstance(node, nodes.section) and node[0].astext() == FURTHER:
            node[:] = _details("further", *node)


def _raw(html: str) -> nodes.raw:
    return nodes.raw("", html, format="html")


def _details(kind: str, title: nodes.Node, *inside: nodes.Node) -> list[nodes.Node]:
    return [_raw(f'<details class="fold {kind}"><summary>'), title, _raw("</summary>"), *inside, _raw("</details>")]


def _sections(node: nodes.Element) -> list[nodes.section]:
    return [child for child in node if isinstance(child, nodes.section)]


def _title(node: HideCodeCellNode, link: Callable[[str], str], ledger: str) -> str:
    """Return the line above code: what the code draws, or what it checks with a link to the ledger."""
    first, *labels = node["prompt_hide"].split()
    words = NAMED.sub(lambda match: link(match[1]), escape(node["prompt_show"]))
    named = f"{link(labels[0])}. " if len(labels) == 1 else ""
    if first == CODE:
        return f"<p>{named}{words}</p>"
    return f'<p class="check">{named}{words} <a href="{ledger}#{row(labels[0])}">Ledger</a></p>'


def _moved(node: nodes.Node) -> Iterator[nodes.Node]:
    """Remove and yield what moves to a section's end: hidden cells or code, and notes on how results were recorded."""
    if isinstance(node, nodes.raw) and node.astext().startswith(RECORDED):
        take(node)
        yield node
    elif isinstance(node, HideCodeCellNode) and ABOVE & {*node["classes"]}:
        cell = node.parent
        if isinstance(cell.parent, nodes.section):
            take(node)
            moved = nodes.container("", classes=["cell"]) if cell.children else cell
            moved += [_raw(node["title"]), *node]
            yield moved


def take(node: nodes.Node) -> None:
    """Remove a node from the page, and then the containers around it that are left empty."""
    node.parent.remove(node)
    if isinstance(node.parent, nodes.container) and not node.parent.children:
        take(node.parent)


def _known(entry: dict, link: Callable[[str], str]) -> str:
    """Return how a statement is known; for a measured one, also the model, its size and the number of seeds."""
    if entry["status"] != "measured":
        return KNOWN.get(entry["status"], entry["status"])
    on = entry["checks"][0]["measured_on"].replace("`", "")
    model = LABEL.sub(lambda match: TAG.sub("", link(match[0])), FIRST.match(on)[1].strip())
    seeds = [f"at each of {entry['seeds']['tried']} seeds"] if entry["seeds"] else []
    return f"◦ measured on {', '.join([model, *SIZE.findall(on)[:1], *seeds])}"


def _panel(entry: dict, link: Callable[[str], str], said: dict[str, str]) -> Iterator[str]:
    """Yield the lines that open under a statement's mark: its checks in words, what it uses, and what uses it."""
    for anchor in (check["anchor"] for check in entry["checks"] if check["anchor"] in said):
        yield said[anchor].replace("</p>", f', <a href="#{anchor}">code</a></p>')
    for words, used in (("Uses", [used["label"] for used in entry["uses"]]), ("Used by", entry["used_by"])):
        if used:
            yield f"<p>{words} {', '.join(map(link, used))}.</p>"


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", fold)
