"""Stored images, which MyST-NB shows without their alt text."""

from __future__ import annotations

from myst_nb.core import render
from sphinx.application import Sphinx


class StoredImages:
    """A MyST-NB renderer of images with their alt text."""

    @staticmethod
    def handle_mime(renderer: render.NbElementRenderer, data: render.MimeData, inline: bool) -> list | None:
        """Nodes for an image; None leaves the output to MyST-NB."""
        if inline or not data.mime_type.startswith("image/"):
            return None
        images = renderer.render_image(data)
        for image in images:
            image["alt"] = data.output_metadata.get("alt", "")
        return images


def setup(app: Sphinx) -> None:
    """MyST-NB finds renderers by the entry points of installed packages; this one belongs to a book."""
    installed = render.load_mime_renders()
    render.load_mime_renders = lambda: [*installed, StoredImages]
