"""What an edition says of itself: title, authors, version, date, commit and address; and how it is cited."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

import yaml

from press.address import Address, address
from press.book import CHAPTERS, Book, chapter_number

FILE = "imprint.json"
CITATION = "CITATION.cff"
SLIP = "slip.yml"  # the form for what is wrong
ENTRY = """@book{{{key},
  title = {{{{{title}}}}},
  author = {{{authors}}},
  year = {{{year}}},
  version = {{{version}}},{more}
}}"""


def imprint(book: Book) -> dict:
    """``title``, ``authors``, ``version``, ``date``, ``commit``, ``project``, and of ``files`` each page's ``source``
    and ``notebook``.

    ``project`` is the table of pyproject.toml that the address is read from; ``commit`` is None outside of a checkout.
    """
    citation = yaml.safe_load((book.root / CITATION).read_text("utf-8"))
    notebooks = {page.name for page in book.notebooks}
    return {
        "title": citation["title"],
        "authors": [_name(author) for author in citation["authors"]],
        "abstract": " ".join(citation["abstract"].split()),
        "version": book.project["version"],
        "date": citation["date-released"].isoformat(),
        "commit": commit(book.root),
        "project": {key: book.project[key] for key in ("name", "version", "urls") if key in book.project},
        "files": {
            f"{CHAPTERS}/{name}": {
                "source": f"{CHAPTERS}/{name}.md",
                "notebook": f"notebooks/{name}.ipynb" if name in notebooks else None,
            }
            for name in book.names
        },
    }


def dumped(content: dict) -> bytes:
    """The imprint as a file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read(folder: Path) -> dict:
    """The imprint among the staged files."""
    return json.loads((folder / FILE).read_text("utf-8"))


def edition(content: dict) -> str:
    """Version and date in words."""
    day = datetime.date.fromisoformat(content["date"])
    return f"Version {content['version']}, {day.day} {day:%B %Y}"


def links(found: Address, content: dict, page: str) -> dict[str, str]:
    """Words → address, of what can be done with a page, ``chapters/01-mean``, by who reads it."""
    files = content["files"][page]
    notebook = {"Open in Colab": found.colab(files["notebook"])} if files["notebook"] else {}
    return notebook | {
        "Source": found.source(files["source"]),
        "Edit": found.edit(files["source"]),
        "Report a slip": slip(found, content, page),
    }


def slip(found: Address, content: dict, where: str) -> str:
    """The form for a slip in a statement or on a page, its place and the edition filled in."""
    return found.issue(SLIP, where=where, version=content["version"])


def bibtex(content: dict, page: str, title: str) -> str:
    """The entry for a bibliography; of a numbered page with its chapter."""
    where = address(content["project"])
    number = chapter_number(page)
    more = {
        "note": f"Chapter {number}, {title}" if number else None,
        "url": where and (where.pages or where.repository),
    }
    return ENTRY.format(
        key=content["project"]["name"],
        title=content["title"],
        authors=" and ".join(f"{{{author}}}" for author in content["authors"]),
        year=content["date"][:4],
        version=content["version"],
        more="".join(f"\n  {key} = {{{value}}}," for key, value in more.items() if value),
    )


def commit(root: Path) -> str | None:
    """The short name of the commit that is checked out, and whether files differ from it."""
    if not (root / ".git").exists():
        return None
    named, changed = (
        subprocess.run(["git", "-C", root, *words], capture_output=True, text=True)
        for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain"])
    )
    if named.returncode:
        return None
    return named.stdout.strip() + (", with changes" if changed.stdout.strip() else "")


def _name(author: dict) -> str:
    return author.get("name") or f"{author['given-names']} {author['family-names']}"
