"""The inventory by which other Sphinx books refer to this one: every statement and equation under its own label."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.inventory import InventoryFile

from press.site.labels import anchors, labels

FILE = "objects.inv"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the inventory again: Sphinx does not know those of statements, and calls figures by their captions."""
    if exception is not None or app.builder.format != "html":
        return
    places, known = anchors(app.env), app.env.get_domain("std").labels
    for label, read in labels(app.env).items():
        if label in places and ("numref" in read or label not in known):
            known[label] = (*places[label], read.get("numref") or read["ref"])
    InventoryFile.dump(str(Path(app.outdir, FILE)), app.env, app.builder)


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write, priority=900)
