"""The imprint of an edition: its title, authors, version, date and addresses."""

from __future__ import annotations

import yaml

from press.book import Book

FILES = ("pyproject.toml", "CITATION.cff")  # the files from which the imprint is read
HOST = "https://github.com/"
COLAB = "https://colab.research.google.com/github/{name}/blob/main/{notebook}"


def imprint(book: Book) -> dict:
    """Return ``title``, ``authors``, ``abstract``, ``name``, ``version``, ``date`` and ``urls``.

    Raises:
        ValueError: ``[project.urls] Repository`` in pyproject.toml is not https://github.com/OWNER/NAME.
    """
    citation = yaml.safe_load((book.root / "CITATION.cff").read_text("utf-8"))
    urls = book.project.get("urls", {})
    if (repository := urls.get("Repository")) and not repository.startswith(HOST):
        raise ValueError(f"[project.urls] Repository: expected {HOST}OWNER/NAME, got {repository!r}")
    return {
        "title": citation["title"],
        "authors": [
            author.get("name") or "{given-names} {family-names}".format(**author) for author in citation["authors"]
        ],
        "abstract": " ".join(citation["abstract"].split()),
        "name": book.project["name"],
        "version": book.project["version"],
        "date": citation["date-released"].isoformat(),
        "urls": urls,
    }


def edition(content: dict) -> str:
    """Return the version and date as text."""
    return f"Version {content['version']}, {content['date']}"


def colab(content: dict, notebook: str) -> str | None:
    """Return the address that opens a notebook of the repository in Colab, or None if no repository is named."""
    repository = content["urls"].get("Repository")
    return repository and COLAB.format(name=repository.removeprefix(HOST).removesuffix(".git"), notebook=notebook)
