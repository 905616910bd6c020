"""What an edition says of itself: title, authors, version and date, and where its repository is."""

from __future__ import annotations

import yaml

from press.book import Book

FILES = ("pyproject.toml", "CITATION.cff")  # that it is read from
HOST = "https://github.com/"
COLAB = "https://colab.research.google.com/github/{name}/blob/main/{notebook}"


def imprint(book: Book) -> dict:
    """``title``, ``authors``, ``abstract``, ``name``, ``version``, ``date`` and ``urls``.

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
    """Version and date in words."""
    return f"Version {content['version']}, {content['date']}"


def colab(content: dict, notebook: str) -> str | None:
    """Where Colab opens a notebook of the repository; None where no repository is named."""
    repository = content["urls"].get("Repository")
    return repository and COLAB.format(name=repository.removeprefix(HOST).removesuffix(".git"), notebook=notebook)
