"""Serve scripts with the book, copied from an installed package, so that no page needs a network connection."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from press.live import FOLDER

MATHJAX, LOADER = "vendor/mathjax", "vendor/formulas.js"
# The scripts that a page loads, in order, by the mark of an interactive part; sliders bring their own script along.
LIVE = {
    'class="hold"': ("norms", "page", "hold"),
    'class="network"': ("norms", "page", "type-here"),
    'id="moving-steps"': ("page", "three-steps"),
    'class="explore"': (),
}
MATHJAX_FOLDERS = ("input/tex/extensions", "output/chtml/fonts/woff-v2")
# MathJax as one script without the menu, which is a third of the combined script; joined as MathJax joins its own.
MATHJAX_PARTS = ("core", "input/tex", "output/chtml", "output/chtml/fonts/tex", "a11y/assistive-mml")
MATHJAX_HEAD = "window.MathJax = Object.assign({}, window.MathJax, {loader: {load: []}});"


def copy_scripts(app: Sphinx) -> None:
    """Copy the scripts before the pages are written, so that links to them carry checksums."""
    static = Path(app.outdir, "_static")
    mathjax = Path(find_spec("sphinx-mathjax-offline").submodule_search_locations[0], "static/mathjax")
    for part in MATHJAX_FOLDERS:
        _copy(mathjax / part, static / MATHJAX / part)
    (static / MATHJAX / "tex-chtml.js").write_text(_mathjax(mathjax), "utf-8")
    if (made := Path(app.srcdir, FOLDER)).is_dir():
        _copy(made, static / "live")


def load_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Load the scripts of interactive parts only on the pages that have such parts."""
    raws = list(doctree.findall(nodes.raw)) if doctree else []
    marks = [mark for mark in LIVE if any(mark in raw.astext() for raw in raws)]
    for name in dict.fromkeys(name for mark in marks for name in LIVE[mark]):
        app.add_js_file(f"live/{name}.js", priority=300, defer="")
    if marks:
        app.add_css_file("live/live.css", priority=900)


def _mathjax(folder: Path) -> str:
    start, *parts = (folder.joinpath(f"{part}.js").read_text("utf-8") for part in ("startup", *MATHJAX_PARTS))
    known = f"MathJax.loader.preLoad({', '.join(map(repr, MATHJAX_PARTS))});"
    return "\n;".join([MATHJAX_HEAD, start, known, *parts])


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def setup(app: Sphinx) -> None:
    app.config.mathjax_path = LOADER
    app.connect("builder-inited", copy_scripts)
    app.connect("html-page-context", load_scripts)
