"""The figures that the chapters draw for keeps."""

from __future__ import annotations

from press.book import Book

SVG = "image/svg+xml"


def figures(book: Book) -> dict[str, str]:
    """Name → SVG of every figure that has a name, ``mystnb: {figure: {name: …}}``, and a vector form."""
    return {
        cell.metadata["mystnb"]["figure"]["name"]: output.data[SVG].rstrip("\n") + "\n"
        for page in book.notebooks
        for cell in page.cells
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name")
        for output in cell.outputs
        if SVG in output.get("data", {})
    }
