"""The Sphinx extension of the book; each module is a part, and its docstring says what it adds to the pages.

If the source folder is the book itself, as in ``jupyter-book build .``, the extension runs the chapters that have not
been run, and builds from the stage.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

from press.manifest import FILE
from press.site import access, captions, docstrings, folds, imprint, labels, manifest, previews, scripts, slides

PARTS = (scripts, labels, manifest, folds, captions, previews, access, imprint, docstrings, slides)
STANDARD = ("comments_config", "use_jupyterbook_latex")  # settings of Jupyter Book for extensions that are not used


def setup(app: Sphinx) -> dict:
    """Load all parts; if the source folder is not a stage, make the stage first."""
    root = Path(app.srcdir)
    if not (root / FILE).is_file():
        app.srcdir = type(app.srcdir)(staged(root))
        app.config.external_toc_path = "_toc.yml"
    for name in STANDARD:
        app.add_config_value(name, None, "")
    app.connect("config-inited", serve, priority=100)
    for part in PARTS:
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def serve(app: Sphinx, config: Config) -> None:
    """Make every page load each style sheet and script of ``_static``, except the scripts in ``vendor``."""
    static = Path(app.srcdir, "_static")
    names = sorted(path.relative_to(static).as_posix() for path in static.rglob("*"))
    config.html_static_path = [str(static)]
    config.html_css_files = [name for name in names if name.endswith(".css")]
    config.html_js_files = [name for name in names if name.endswith(".js") and not name.startswith("vendor")]


def staged(root: Path) -> Path:
    """Make the stage of the book in a folder from its current chapters, and return its path."""
    from press.book import Book
    from press.refusals import refusals
    from press.run import run
    from press.stage import STAGE, put, stage

    book = Book(root)
    run(book)
    if found := refusals(book):
        raise ExtensionError("\n".join(f"refused: {message}" for message in found))
    put(root / STAGE, stage(book))
    return root / STAGE
