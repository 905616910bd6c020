"""The book as an EPUB: the joined document cut into chapters, formulas as MathML, nothing that wants a script."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
import zipfile
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from press.book import Book
from press.edition.browser import drawn
from press.edition.front import About, about

FOLDER, NAME = Path("_build/epub"), "the-geometry-of-layer-normalization.epub"
STYLE, CUT = (Path(__file__).with_name(name) for name in ("epub.css", "epub.js"))
WIDTH = 700  # pixels: what is drawn by scripts is drawn once
SOURCE = re.compile(r'(?<= src=")[^"]*')
NOTHING = re.compile(rb"<path(?![^>]*\sd=)")  # a space, as matplotlib draws it
CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="book/book.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>"""
CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">
<head><title>{title}</title><link rel="stylesheet" type="text/css" href="book.css"/></head>
<body>{body}</body>
</html>"""
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="id">{identifier}</dc:identifier>
<dc:title>{title}</dc:title><dc:creator>{authors}</dc:creator><dc:language>en</dc:language>
<dc:description>{abstract}</dc:description><dc:rights>{licence}</dc:rights><dc:date>{date}</dc:date>
<meta property="dcterms:modified">{modified}</meta>
<meta property="schema:accessMode">textual</meta><meta property="schema:accessMode">visual</meta>
<meta property="schema:accessModeSufficient">textual</meta>
<meta property="schema:accessibilityFeature">MathML</meta>
<meta property="schema:accessibilityFeature">alternativeText</meta>
<meta property="schema:accessibilityFeature">tableOfContents</meta>
<meta property="schema:accessibilityHazard">none</meta>
</metadata>
<manifest>
{manifest}
</manifest>
<spine>
{spine}
</spine>
</package>"""


def epub(book: Book) -> Path:
    """Write the EPUB and say where it is.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    folder = book.root / FOLDER
    with drawn(book, FOLDER, WIDTH) as page:
        chapters = page.evaluate(CUT.read_text("utf-8"))
    files = {"book.css": STYLE.read_bytes()}
    for chapter in chapters:
        body = SOURCE.sub(lambda found: _picture(found[0], folder, files), chapter["body"])
        files[chapter["file"]] = CHAPTER.format(title=escape(chapter["title"]), body=body).encode()
    target = folder / NAME
    pack(files, package(about(book), chapters, files), target)
    return target


def _picture(source: str, folder: Path, files: dict[str, bytes]) -> str:
    """Put a picture among the files, once, and say under which name."""
    if source.startswith("data:"):
        head, _, body = source.partition(",")
        data = base64.b64decode(unquote(body)) if head.endswith(";base64") else unquote_to_bytes(body)
        suffix = mimetypes.guess_extension(head[5:].partition(";")[0])
    else:
        path = folder / unquote(source)
        data, suffix = path.read_bytes(), path.suffix
    data = NOTHING.sub(rb'<path d="M0 0"', data) if suffix == ".svg" else data
    name = f"{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    files[name] = data
    return name


def package(said: About, chapters: list[dict], files: dict[str, bytes]) -> str:
    """What the EPUB has, and in which order it is read."""
    kinds = {chapter["file"]: chapter["kinds"] for chapter in chapters}
    manifest = []
    for number, name in enumerate(files):
        kind = "application/xhtml+xml" if name in kinds else mimetypes.guess_type(name)[0]
        properties = f' properties="{kinds[name]}"' if kinds.get(name) else ""
        manifest.append(f'<item id="f{number}" href="{name}" media-type="{kind}"{properties}/>')
    order = {name: number for number, name in enumerate(files)}
    spine = [f'<itemref idref="f{order[chapter["file"]]}"/>' for chapter in chapters]
    words = {name: escape(str(value)) for name, value in vars(said).items()}
    words |= {"identifier": f"urn:sha256:{hashlib.sha256(b''.join(files.values())).hexdigest()}"}
    words |= {"modified": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return PACKAGE.format(**words, manifest="\n".join(manifest), spine="\n".join(spine))


def pack(files: dict[str, bytes], package: str, target: Path) -> None:
    """Write the archive; that it is an EPUB must be readable at its beginning."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr("book/book.opf", package)
        for name, data in files.items():
            archive.writestr(f"book/{name}", data)
