"""Scripts and type served with the book, out of the wheels that carry them, so that no page needs a network."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from press.live import FOLDER

# Not under the book's own _static: Jupyter Book adds every script there to every page.
MATHJAX = "vendor/mathjax"
PLOTLY = "vendor/plotly.min.js"
# By the mark of what a script makes alive: the scripts that a page with it loads, in their order.
LIVE = {
    'class="hold"': ("norms", "page", "hold"),
    'class="network"': ("norms", "page", "type-here"),
    'id="moving-steps"': ("page", "three-steps"),
}
FACES = tuple(f"SourceSerifPro-{face}.ttf" for face in ("Regular", "It", "Semibold"))
MATHJAX_PARTS = ("tex-chtml.js", "input/tex/extensions", "output/chtml/fonts/woff-v2")


def copy_scripts(app: Sphinx) -> None:
    """Copy what pages load before they are written, so that links carry checksums."""
    static = Path(app.outdir, "_static")
    for part in MATHJAX_PARTS:
        _copy(_package("sphinx-mathjax-offline") / "static/mathjax" / part, static / MATHJAX / part)
    for face in FACES:
        _copy(_package("font_source_serif_pro") / "files" / face, static / "vendor" / face)
    _copy(_package("plotly") / "package_data/plotly.min.js", static / PLOTLY)
    if (made := Path(app.srcdir, FOLDER)).is_dir():
        _copy(made, static / "live")


def load_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """plotly.js weighs megabytes, and few pages have a part that is alive: load what a page needs, and only there."""
    raws = list(doctree.findall(nodes.raw)) if doctree else []
    if any("plotly" in raw["classes"] for raw in raws):
        app.add_js_file(PLOTLY, priority=100)
    marks = [mark for mark in LIVE if any(mark in raw.astext() for raw in raws)]
    for name in dict.fromkeys(name for mark in marks for name in LIVE[mark]):
        app.add_js_file(f"live/{name}.js", priority=600)


def _package(name: str) -> Path:
    return Path(find_spec(name).submodule_search_locations[0])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def setup(app: Sphinx) -> None:
    app.config.mathjax_path = f"{MATHJAX}/tex-chtml.js"
    app.connect("builder-inited", copy_scripts)
    app.connect("html-page-context", load_scripts)
