"""Where the book can be found: one line of pyproject.toml, ``[project.urls] Repository``, and the pages' beside it.

While it is missing no page, notebook or file of an edition has a link of this kind; every link is made here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlencode

BRANCH = "main"
REPOSITORY, PAGES = "Repository", "Documentation"
HOSTED = re.compile(r"https://github\.com/(?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?")
COLAB = "https://colab.research.google.com/github"


@dataclass(frozen=True)
class Address:
    """``repository``: https://github.com/OWNER/NAME; ``pages``: where the built book is served, ends with a slash."""

    repository: str
    pages: str | None = None

    def source(self, file: str, line: int | None = None) -> str:
        """A file of the repository, at a line."""
        return f"{self.repository}/blob/{BRANCH}/{quote(file)}" + (f"?plain=1#L{line}" if line else "")

    def edit(self, file: str) -> str:
        """The form in which a file is changed and proposed."""
        return f"{self.repository}/edit/{BRANCH}/{quote(file)}"

    def colab(self, notebook: str) -> str:
        """A notebook of the repository, opened in Colab."""
        return f"{COLAB}/{self.repository.removeprefix('https://github.com/')}/blob/{BRANCH}/{quote(notebook)}"

    def issue(self, template: str, **fields: str) -> str:
        """A new issue by one of the repository's forms, some of its fields filled."""
        return f"{self.repository}/issues/new?{urlencode({'template': template, **fields})}"

    def page(self, path: str) -> str | None:
        """A built page, by its path below the book; None where the pages' address is not known."""
        return self.pages and self.pages + quote(path)


def address(project: dict) -> Address | None:
    """The address in the ``[project]`` table of pyproject.toml, None where there is none.

    Raises:
        ValueError: ``Repository`` is not https://github.com/OWNER/NAME, or the pages have an address and it has not.
    """
    urls = project.get("urls", {})
    repository, pages = urls.get(REPOSITORY), urls.get(PAGES)
    if repository is None:
        if pages:
            raise ValueError(f"[project.urls] {PAGES}: expected {REPOSITORY} beside it, got {pages!r} alone")
        return None
    if not (match := HOSTED.fullmatch(repository)):
        raise ValueError(f"[project.urls] {REPOSITORY}: expected https://github.com/OWNER/NAME, got {repository!r}")
    if pages and not pages.startswith("https://"):
        raise ValueError(f"[project.urls] {PAGES}: expected https://…, got {pages!r}")
    return Address(f"https://github.com/{match['name']}", pages and pages.rstrip("/") + "/")
