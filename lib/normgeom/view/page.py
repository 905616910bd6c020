"""An executed notebook as one page of HTML: no other file, no network; formulas set, code folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import metadata
from itertools import groupby
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode

from normgeom.view.style import data_uri

# The one bundle of MathJax with every extension and all glyphs inside: the others fetch what a formula needs.
_BUNDLE = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"
MATHJAX = Path(metadata.distribution("sphinx-mathjax-offline").locate_file(_BUNDLE))
UNSEEN = {"setup", "parameters", "injected-parameters"}
FORMULAS = {
    "math_inline": ("inline", r"\(", r"\)"),
    **dict.fromkeys(("math_block", "amsmath"), ("display", r"\[", r"\]")),
}
STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1f2328; font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: break-word; }
header, nav, main { max-width: 46rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 0.75rem; }
h1 { margin-top: 0; }
h3 { font-size: 1.35rem; }
a { color: #0b57a4; }
a:not([href]) { color: inherit; }
table { display: block; overflow-x: auto; border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid #d0d7de; text-align: left; vertical-align: top; }
blockquote { margin: 1rem 0; padding: 0.1rem 1rem; border-left: 4px solid #57606a; background: #f6f8fa; }
pre { overflow-x: auto; padding: 0.6rem 0.8rem; border-radius: 4px; background: #f6f8fa; font: 0.85rem/1.4 monospace; }
pre.output { background: none; border: 1px solid #d0d7de; }
code { font-size: 0.9em; }
pre code { font-size: inherit; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; color: #57606a; }
figure { margin: 1rem 0 0; }
figure img { width: 100%; height: auto; }
:is(.explore, .network) img { display: block; max-width: 100%; height: auto; }
.explore img[hidden] { display: none; }
.explore-slider { display: flex; flex-wrap: wrap; gap: 0.3rem 0.75rem; max-width: 32rem; }
.explore-slider input { flex: 1; min-width: 6rem; }
.display { display: block; overflow-x: auto; overflow-y: hidden; }
@media print {
  pre { white-space: pre-wrap; }
  figure, tr, blockquote { break-inside: avoid; }
}
"""
# The policy: nothing is loaded, whatever a cell put into its output.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
<script>window.MathJax = {options: {enableMenu: false}};</script>
</head>
<body class="mathjax_ignore">
<header>
$head
</header>
<nav aria-label="Contents"><ul>
$contents
</ul></nav>
<main>
$body
</main>
<!-- MathJax, under the Apache License 2.0 -->
<script>$mathjax</script>
</body>
</html>
""")


def page(title: str, head: str, cells: Iterable[NotebookNode]) -> str:
    """The page of an executed notebook.

    Args:
        title: of the browser's window; plain text.
        head: HTML that stands above the notebook; its ``h1`` is the page's.
        cells: nbformat's.  Shown are the text, what was printed, figures with their alt text and tables; code is
            folded.  Setup and parameters are left out, and so is what went to standard error.

    Links to other files keep their words and lose their target.
    """
    sections: list[tuple[str, str]] = []
    body = "\n".join(_cell(cell, sections) for cell in cells)
    contents = "\n".join(f'<li><a href="#{anchor}">{words}</a></li>' for anchor, words in sections)
    mathjax = MATHJAX.read_text("utf-8")
    return PAGE.substitute(title=escape(title), head=head, contents=contents, body=body, style=STYLE, mathjax=mathjax)


def _cell(cell: NotebookNode, sections: list[tuple[str, str]]) -> str:
    if cell.cell_type == "markdown":
        return _text(cell.source, sections)
    if UNSEEN & set(cell.metadata.get("tags", [])):
        return ""
    code = f"<details><summary>Code</summary><pre><code>{escape(cell.source)}</code></pre></details>"
    return "\n".join([code, *_outputs(cell.outputs)])


def _outputs(outputs: Sequence[NotebookNode]) -> Iterator[str]:
    shown = [output for output in outputs if output.get("name") != "stderr"]
    for printed, group in groupby(shown, lambda output: output.output_type == "stream"):
        if printed:
            yield f'<pre class="output">{escape("".join(output.text for output in group))}</pre>'
        else:
            yield from map(_rich, group)


def _rich(output: NotebookNode) -> str:
    data = output.data
    if "image/svg+xml" in data:
        alt = escape(output.metadata.get("alt", ""))
        return f'<figure><img src="{data_uri(data["image/svg+xml"])}" alt="{alt}"></figure>'
    if "text/html" in data:
        return data["text/html"]
    if "text/markdown" in data:  # a table, or how a measurement was recorded
        return _html(_parser.parse(data["text/markdown"]))
    return f'<pre class="output">{escape(data["text/plain"])}</pre>'


def _text(markdown: str, sections: list[tuple[str, str]]) -> str:
    tokens = _parser.parse(markdown)
    for place, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            anchor = f"section-{len(sections) + 1}"
            token.attrSet("id", anchor)
            sections.append((anchor, _html(tokens[place + 1].children)))
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + 1}"  # below the page's own title
        for inner in token.children or ():
            if inner.type == "link_open" and not inner.attrs["href"].startswith("http"):
                inner.attrs = {}
    return _html(tokens)


def _html(tokens: Sequence[Token]) -> str:
    return _parser.renderer.render(tokens, _parser.options, {})


def _formula(renderer, tokens: Sequence[Token], place: int, options, env) -> str:
    form, left, right = FORMULAS[tokens[place].type]
    return f'<span class="math {form} mathjax_process">{left}{escape(tokens[place].content.strip())}{right}</span>'


_parser = MarkdownIt("commonmark").enable("table").use(amsmath_plugin).use(dollarmath_plugin, allow_labels=False)
for _kind in FORMULAS:
    _parser.add_render_rule(_kind, _formula)
