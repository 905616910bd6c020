"""Add the numbers and addresses of the built pages to the staged manifest, and serve it with the pages."""

from __future__ import annotations

import json
from pathlib import Path

from sphinx.application import Sphinx

from press.manifest import FILE, dumped
from press.site.labels import labels


def staged(app: Sphinx) -> dict:
    """Return the manifest from the staged files."""
    return json.loads(Path(app.srcdir, FILE).read_text("utf-8"))


def write(app: Sphinx, exception: Exception | None) -> None:
    """Add ``number`` and ``anchor`` to each statement, and ``url``, relative to the manifest, to it and its checks."""
    if exception is not None or app.builder.format != "html":
        return
    content, known = staged(app), labels(app.env)

    def url(label: str) -> str:
        return f"{app.builder.get_target_uri(known[label]['doc'])}#{known[label]['anchor']}"

    for entry in content["statements"]:
        label = entry["label"]
        entry |= {"number": known[label]["ref"], "anchor": known[label]["anchor"], "url": url(label)}
        for check in entry["checks"]:
            check["url"] = url(check["anchor"])
    Path(app.outdir, FILE).write_bytes(dumped(content))


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
