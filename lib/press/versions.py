"""The versions: which command was tried last when and with what, noted by the commands themselves; and their page."""

from __future__ import annotations

import csv
import io
import platform
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from press.book import Book
from press.myst import table

FILE, NOTED = "records/tried.csv", "_build/tried.csv"
FIELDS = ("command", "date", "system", "processor", "python", "packages", "outcome")
CHAPTERS = ("torch", "transformers", "numpy", "pandas", "matplotlib", "ipywidgets", "ipython", "jupytext", "papermill")
PAGES = ("Sphinx", "docutils", "myst-parser", "myst-nb", "sphinx-book-theme", "pydata-sphinx-theme")
LIBRARY = ("torch", "transformers", "tokenizers", "numpy", "pandas", "matplotlib", "ipywidgets", "ipython")
PEERS = ("timm", "torchvision", "diffusers", "sentence-transformers", "x-transformers", "transformer-lens", "nnsight")
# Of each command that notes itself, what it tries and the packages that matter for it.
COMMANDS = {
    "make test": ("the book and the library with the pinned versions", CHAPTERS + PAGES),
    "make newest": ("the pages with the newest tool chain", (*PAGES, "sphinx-external-toc", "sphinx-proof")),
    "make floors": ("the library with the oldest packages", LIBRARY),
    "make peers": ("norms in the models of other packages", ("torch", "transformers", *PEERS)),
    "make colab-try": ("notebooks with what is at hand of Colab's versions", (*LIBRARY, "anywidget")),
}
HEAD = """# Versions

**With which versions was this book tried, and when?**

A row is written by its command, at its end, and only when all that it tries has passed; so it says what was, and not
what should be. *Not recorded* means that the command has not passed since rows are written.
"""
REST = """
## What is pinned, and where

`constraints.txt` names one version of every package, and `make book` installs these. The ranges that may be installed
beside other work stand in `pyproject.toml`; `make floors` tries their lower ends. `tests/book/newest.txt` names what
`make newest` takes at its newest, `tests/reruns/colab.txt` what `make colab-try` takes as Colab had it in August 2026,
and `tests/peers/requirements.txt` the packages whose models `make peers` looks into. The formulas of the pages are set
by MathJax 3.2.2, which is served with them out of the package `sphinx-mathjax-offline`. The pinned versions are:

{pinned}

## What builds the pages

Sphinx does, by its own command, told by `_config.yml` and `_toc.yml` in the form of Jupyter Book 1. Until
24 November 2026 Jupyter Book 1.0.4 did, which held Sphinx at 7. Before the change all pages were built both ways and
compared: text, formulas, figures, tables, statements, numbers and the names of all places are the same. The mark `#`
beside some headings now leads to the name that other pages use, where it led to one made of the heading's words; the
theme's switch became a menu.

## What the workflows try

`.github/workflows` calls the same commands on the host of the repository: the tests on Linux, x86-64 and ARM, and on
macOS, with Python 3.11 to the newest that torch has wheels for; the oldest and the newest packages; on every change and
once a week. Until a row above names such a system, read this as a plan.

## What was not tried

- A GPU: no row is from one. `make gpu` is for it, and notes what it measured beside its tables.
- Windows, and macOS where no row names it. The commands need `make`, `bash` and links between files.
- Python 3.12 and newer, where no row names them.
- Of Colab: its Python 3.13 and its torch 2.11, in whose place `make colab-try` has the project's; its pages; its GPUs.
"""


def note(book: Book, command: str, outcome: str) -> None:
    """Note the row of ``command`` among what was built, with the versions of the environment that runs this."""
    _, packages = COMMANDS[command]
    row = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "system": platform.system(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "packages": ", ".join(_installed(packages)),
        "outcome": outcome,
    }
    _write(book.root / NOTED, [*_rows(book.root / NOTED), row])


def keep(book: Book) -> None:
    """Take what was noted into the rows of the book: a command that ends leaves the book as it is."""
    _write(book.root / FILE, [*tried(book), *_rows(book.root / NOTED)])


def tried(book: Book) -> list[dict[str, str]]:
    """The rows of the book."""
    return _rows(book.root / FILE)


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines())) if path.is_file() else []


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    """One row a command, the last of its rows."""
    last = {row["command"]: row for row in rows}
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(last[name] for name in COMMANDS if name in last)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), "utf-8", newline="\n")


def _installed(packages: tuple[str, ...]) -> Iterator[str]:
    for name in packages:
        if found := next(iter(metadata.distributions(name=name)), None):
            yield f"{name} {found.version}"


def versions(book: Book) -> str:
    """The page."""
    noted = {row["command"]: row for row in tried(book)}
    rows = [_row(f"`{command}`: {what}", noted.get(command)) for command, (what, _) in COMMANDS.items()]
    columns = ("command", "tried", "with", "outcome")
    return "\n".join([HEAD, table(columns, rows), REST.format(pinned=_pinned(book))])


def _row(command: str, row: dict[str, str] | None) -> list[str]:
    if row is None:
        return [command, "", "", "not recorded"]
    where = "{date}: {system}, {processor}, Python {python}".format(**row)
    return [command, where, row["packages"], row["outcome"]]


def _pinned(book: Book) -> str:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (book.root / "constraints.txt").read_text("utf-8"), re.M))
    named = (*CHAPTERS, "nbval", *PAGES)
    return ", ".join(f"{name} {pins[name]}" for name in named if name in pins) + "."
