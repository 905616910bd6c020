"""The Sphinx extension of the book: numbers, outputs, folds, marks, previews, scripts, icons, labels, joins, slides."""

from __future__ import annotations

from sphinx.application import Sphinx

from press.site import decks, folds, icons, joined, labels, manifest, marks, numbers, outputs, previews, scripts


def setup(app: Sphinx) -> dict:
    """Load the parts."""
    for part in (numbers, outputs, scripts, labels, icons, manifest, folds, marks, previews, joined, decks):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
