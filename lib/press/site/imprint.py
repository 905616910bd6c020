"""On every page: where its source is, where it runs, whom to tell of a slip; which edition it is of, how to cite it."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from press.address import address
from press.imprint import bibtex, edition, links, read

# Filled in when all is built: a new commit alone is no reason to write a page again.
COMMIT = re.compile(r'(<span class="commit">)[^<]*')
SENTENCE = re.compile(r"(?<=[.?!])\s+")
SAID = 160  # letters of a description, as many as search engines show


def name(app: Sphinx, config: Config) -> None:
    """What other books read in the inventory of this one; and what, once it changes, is news for every page."""
    app.imprint = read(Path(app.srcdir))
    app.address = address(app.imprint["project"])
    config.project, config.version = app.imprint["title"], app.imprint["version"]
    if app.address and app.address.pages:
        config.html_baseurl = app.address.pages  # with it Sphinx gives each page its canonical link
    config.press_edition = [edition(app.imprint), *(app.imprint["project"].get("urls", {}).values())]


def dress(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Put the links under the title of a page, the edition at its foot, and what machines read of it in its head."""
    if doctree is None or page not in app.imprint["files"]:
        return
    title = nodes.document.astext(app.env.titles[page])
    if app.address:
        head = _head(links(app.address, app.imprint, page))
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{head}", 1)
    context["body"] += _foot(app.imprint, page, title)
    said = escape(description(doctree) or title)
    context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{said}">\n'


def _head(links: dict[str, str]) -> str:
    shown = (f'<a href="{escape(link)}">{words}</a>' for words, link in links.items())
    return f'<p class="page-links">{" · ".join(shown)}</p>'


def _foot(content: dict, page: str, title: str) -> str:
    entry = escape(bibtex(content, page, title))
    return (
        f'<div class="imprint"><p>{edition(content)}<span class="commit"></span></p>\n'
        f"<details><summary>Cite this page</summary><pre>{entry}</pre></details></div>\n"
    )


def description(doctree: nodes.document) -> str:
    """The first sentences of a page that have no formula, as many as search engines show."""
    said = ""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section):
            continue
        for sentence in _sentences(paragraph):
            if said and len(said) + len(sentence) >= SAID:
                return said
            said = f"{said} {sentence}".strip()
    return said


def _sentences(paragraph: nodes.paragraph) -> list[str]:
    """Those of a paragraph without the ones that hold a formula."""
    text = "".join(
        "\0" if isinstance(node, nodes.math) else node.astext()
        for node in paragraph.findall(lambda node: isinstance(node, (nodes.Text, nodes.math)))
        if not isinstance(node.parent, nodes.math)
    )
    return [sentence for sentence in SENTENCE.split(" ".join(text.split())) if sentence and "\0" not in sentence]


def date(app: Sphinx, exception: Exception | None) -> None:
    """Write the commit into the pages."""
    if exception is not None or app.builder.format != "html":
        return
    made = f", commit {app.imprint['commit']}" if app.imprint["commit"] else ""
    for page in app.imprint["files"]:
        path = Path(app.outdir, app.builder.get_target_uri(page))
        text = path.read_text("utf-8")
        if (dated := COMMIT.sub(rf"\g<1>{made}", text, count=1)) != text:
            path.write_text(dated, "utf-8")


def setup(app: Sphinx) -> None:
    app.add_config_value("press_edition", [], "html", list)
    app.connect("config-inited", name)
    app.connect("html-page-context", dress)
    app.connect("build-finished", date)
