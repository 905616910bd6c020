"""Add the edition at the foot of every page and, if a repository is named, the theme's buttons at the top."""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from press.book import CHAPTERS, Book
from press.imprint import colab, edition, imprint

BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")


def name(app: Sphinx, config: Config) -> None:
    """Tell Sphinx the book's title and version, and the theme where the repository is."""
    app.imprint = imprint(Book(Path(app.srcdir)))
    config.project, config.version, urls = app.imprint["title"], app.imprint["version"], app.imprint["urls"]
    if pages := urls.get("Documentation"):
        config.html_baseurl = pages.rstrip("/") + "/"  # gives each page its canonical link
    if repository := urls.get("Repository"):
        buttons = dict.fromkeys(BUTTONS, True) | {"launch_buttons": {"colab_url": "https://colab.research.google.com"}}
        config.html_theme_options |= {"repository_url": repository.removesuffix(".git"), "repository_branch": "main"}
        config.html_theme_options |= buttons


def dress(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Add the foot, and make the buttons link to the page's source, whose suffix differs from the staged file's."""
    if doctree is None or not page.startswith(CHAPTERS.name):
        return
    context["body"] += f'<p class="imprint">{escape(edition(app.imprint))}</p>'
    context["page_source_suffix"] = ".md"


def launch(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Point the launch buttons to the page's notebook; the theme would use the path of the page."""
    groups = [button for button in context.get("header_buttons", []) if button.get("label") == "launch-buttons"]
    for button in (button for group in groups for button in group["buttons"]):
        button["url"] = colab(app.imprint, f"notebooks/{page.removeprefix(f'{CHAPTERS}/')}.ipynb")


def setup(app: Sphinx) -> None:
    app.connect("config-inited", name)
    app.connect("html-page-context", dress, priority=400)
    app.connect("html-page-context", launch, priority=900)
