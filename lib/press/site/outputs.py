"""Stored outputs that MyST-NB drops or shows without their alt text."""

from __future__ import annotations

import hashlib
import json
from html import escape

from docutils import nodes
from myst_nb.core import render
from sphinx.application import Sphinx

from press.refusals import PLOTLY

FIGURE = """<div id="{id}" class="plotly-figure" role="img" aria-label="{alt}" style="height:{height}px"></div>
<script>document.addEventListener("DOMContentLoaded", () => Plotly.newPlot("{id}", {figure}));</script>"""


class StoredOutputs:
    """A MyST-NB renderer of figures: images with their alt text, and plotly's JSON as a live figure."""

    mime_priority_overrides = (("html", PLOTLY, 1),)

    @staticmethod
    def handle_mime(renderer: render.NbElementRenderer, data: render.MimeData, inline: bool) -> list | None:
        """Nodes for an image or a plotly figure; None leaves the output to MyST-NB."""
        alt = data.output_metadata.get("alt", "")
        if inline:
            return None
        if data.mime_type.startswith("image/"):
            images = renderer.render_image(data)
            for image in images:
                image["alt"] = alt
            return images
        if data.mime_type == PLOTLY:
            return [nodes.raw(text=_plotly(data.content, alt), format="html", classes=["plotly"])]
        return None


def _plotly(content: dict, alt: str) -> str:
    figure = {key: content[key] for key in ("data", "layout", "frames", "config") if key in content}
    figure["config"] = {"responsive": True, "displaylogo": False} | figure.get("config", {})
    # "</script>" inside a label would end the script.
    text = json.dumps(figure).replace("</", "<\\/")
    identity = f"plotly-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    height = figure.get("layout", {}).get("height", 450)
    return FIGURE.format(id=identity, alt=escape(alt), height=height, figure=text)


def setup(app: Sphinx) -> None:
    """MyST-NB finds renderers by the entry points of installed packages; this one belongs to a book."""
    installed = render.load_mime_renders()
    render.load_mime_renders = lambda: [*installed, StoredOutputs]
