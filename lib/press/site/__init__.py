"""The Sphinx extension of the book; each of its parts is a module that says what it adds to the pages."""

from __future__ import annotations

from sphinx.application import Sphinx

from press.site import (
    decks,
    folds,
    imprint,
    inventory,
    joined,
    labels,
    landmarks,
    manifest,
    marks,
    outputs,
    previews,
    roles,
    scripts,
)

PARTS = (
    outputs,
    scripts,
    labels,
    manifest,
    folds,
    marks,
    previews,
    joined,
    roles,
    landmarks,
    imprint,
    inventory,
    decks,
)


def setup(app: Sphinx) -> dict:
    """Load the parts."""
    for part in PARTS:
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
