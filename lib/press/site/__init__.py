"""The Sphinx extension of the book: chapter numbers, stored outputs, local scripts, the labels' table, the manifest."""

from __future__ import annotations

from sphinx.application import Sphinx

from press.site import labels, manifest, numbers, outputs, scripts


def setup(app: Sphinx) -> dict:
    """Load the parts."""
    for part in (numbers, outputs, scripts, labels, manifest):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
