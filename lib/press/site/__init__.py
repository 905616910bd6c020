"""The Sphinx extension of the book: numbers, outputs, folds, marks, previews, scripts, icons, labels,
joins, imprint, inventory."""

from __future__ import annotations

from sphinx.application import Sphinx

from press.site import (
    folds,
    icons,
    imprint,
    inventory,
    joined,
    labels,
    manifest,
    marks,
    numbers,
    outputs,
    previews,
    scripts,
)


def setup(app: Sphinx) -> dict:
    """Load the parts."""
    for part in (
        numbers,
        outputs,
        scripts,
        labels,
        icons,
        manifest,
        folds,
        marks,
        previews,
        joined,
        imprint,
        inventory,
    ):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
