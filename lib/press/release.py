"""What a release says of itself: its version, the changelog's words on it, the digests of its files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from press.book import Book

SUMS = "SHA256SUMS"
HEAD = r"^## \[(?P<version>[^\]]+)\] - (?P<date>\d{4}-\d\d-\d\d)\n"
SECTION = re.compile(HEAD + r"(?P<text>.*?)(?=^## \[|^\[|\Z)", re.M | re.S)


def section(book: Book) -> re.Match:
    """The changelog's newest dated section.

    Raises:
        ValueError: it is not about the version of pyproject.toml.
    """
    newest, version = SECTION.search((book.root / "CHANGELOG.md").read_text("utf-8")), book.project["version"]
    if newest is None or newest["version"] != version:
        said = f"says {newest['version']}" if newest else "has no dated section"
        raise ValueError(f"pyproject.toml says version {version}, CHANGELOG.md {said}")
    return newest


def notes(book: Book, tag: str = "") -> str:
    """The text of the release called ``tag``, ``v`` and the version; of the version at hand if it has no name.

    Raises:
        ValueError: pyproject.toml, the changelog and the tag are not about one version.
    """
    found = section(book)
    if tag not in ("", f"v{found['version']}"):
        raise ValueError(f"TAG: expected v{found['version']}, the version of pyproject.toml, got {tag!r}")
    return found["text"].strip() + "\n"


def sums(folder: Path) -> str:
    """A line for each file of a folder, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != "." and path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
