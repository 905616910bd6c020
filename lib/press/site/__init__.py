"""The Sphinx extension of the book; each of its parts is a module that says what it adds to the pages."""

from __future__ import annotations

from importlib import import_module

from sphinx.application import Sphinx

PARTS = (
    "numbers",
    "outputs",
    "scripts",
    "labels",
    "icons",
    "manifest",
    "folds",
    "marks",
    "previews",
    "joined",
    "roles",
    "landmarks",
    "imprint",
    "inventory",
    "decks",
)


def setup(app: Sphinx) -> dict:
    """Load the parts."""
    for part in PARTS:
        import_module(f"{__name__}.{part}").setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
