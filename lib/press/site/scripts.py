"""Scripts served with the book, out of the wheel that carries them, so that no page needs a network."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from press.live import FOLDER

MATHJAX, LOADER = "vendor/mathjax", "vendor/formulas.js"
# By the mark of what is alive: the scripts that a page with it loads, in their order; one brings its own along.
LIVE = {
    'class="hold"': ("norms", "page", "hold"),
    'class="network"': ("norms", "page", "type-here"),
    'id="moving-steps"': ("page", "three-steps"),
    'class="explore"': (),
}
MATHJAX_FOLDERS = ("input/tex/extensions", "output/chtml/fonts/woff-v2")
# MathJax in one script, without the menu of its combined one, a third of that; joined as MathJax joins its own.
MATHJAX_PARTS = ("core", "input/tex", "output/chtml", "output/chtml/fonts/tex", "a11y/assistive-mml")
MATHJAX_HEAD = "window.MathJax = Object.assign({}, window.MathJax, {loader: {load: []}});"


def copy_scripts(app: Sphinx) -> None:
    """Copy what pages load before they are written, so that links carry checksums."""
    static = Path(app.outdir, "_static")
    mathjax = Path(find_spec("sphinx-mathjax-offline").submodule_search_locations[0], "static/mathjax")
    for part in MATHJAX_FOLDERS:
        _copy(mathjax / part, static / MATHJAX / part)
    (static / MATHJAX / "tex-chtml.js").write_text(_mathjax(mathjax), "utf-8")
    if (made := Path(app.srcdir, FOLDER)).is_dir():
        _copy(made, static / "live")


def load_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Few pages have a part that is alive: load what a page needs, and only there."""
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
