"""Where something of the book stands: a statement, a figure, a table, a command, a name, each by file and line."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from press.book import CHAPTERS, MADE, Book
from press.cells import Cell, behind, cells
from press.labels import NAMED
from press.library import Library

EVERYWHERE = ("checks", "view", "view.style")  # what every cell may use says nothing about this one
WORDS = {"figure": "fig.", "equation": "", "eq.": "", "observation": "observation"}


def where(book: Book, what: str) -> list[str]:
    """The lines that answer ``what``: a label, a number such as ``Fig. 6.2``, a command, a name of the library."""
    label = _label(book, what)
    found = [*(_of_label(book, label) if label else ()), *_of_command(book, what), *_of_name(book, what)]
    return list(dict.fromkeys(found))


def _label(book: Book, what: str) -> str | None:
    """The label that ``what`` is, or that has this number on the built pages."""
    if NAMED.fullmatch(what):
        return what
    built = book.root / "_build/labels.json"
    labels = json.loads(built.read_text("utf-8"))["labels"] if built.is_file() else {}
    for label, entry in labels.items():
        if _plain(what) in {_plain(entry.get(key, "")) for key in ("ref", "numref", "number")} - {""}:
            return label
    return None


def _plain(words: str) -> str:
    kept = (WORDS.get(word, word) for word in words.lower().replace("(", " ").replace(")", " ").split())
    return " ".join(word for word in kept if word)


def _of_label(book: Book, label: str) -> Iterator[str]:
    stated = re.compile(rf"^(?::label: {label}|.*\$\$ \({label}\))$", re.M)
    for name in book.names:
        if name in MADE:
            continue
        text = (book.root / CHAPTERS / f"{name}.md").read_text("utf-8")
        for match in stated.finditer(text):
            yield f"{CHAPTERS / name}.md:{1 + text.count(chr(10), 0, match.start())}: stated"
        written = cells(book, name)
        for at, cell in enumerate(written):
            for words, hit in (("drawn", cell.captioned), ("checked", cell.verifies)):
                if label in hit:
                    yield f"{cell.file}:{cell.line}: {words}"
                    yield from _behind(book, written, at)


def _behind(book: Book, written: list[Cell], at: int) -> Iterator[str]:
    """The library's functions that a cell uses, itself or in the cells that made what it uses."""
    imports = {
        alias.asname or alias.name: (node.module, alias.name)
        for cell in written
        for node in ast.walk(cell.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    used = set(written[at].names)
    for cell, made in behind(written, at):
        yield f"{cell.file}:{cell.line}: makes {', '.join(sorted(made))}"
        used |= cell.names
    library = Library(book)
    public = {o.name: (o.module.name, o.node.name) for o in library.public}
    homes = (public.get(name) or _imported(imports, name) for name in sorted(used))
    for module, name in filter(None, homes):
        if module.removeprefix(f"{library.name}.") not in EVERYWHERE:
            yield from _definitions(library, name, module)


def _imported(imports: dict[str, tuple[str, str]], name: str) -> tuple[str, str] | None:
    """Module and name of what a cell imported: ``show``, or ``lab.sublayers`` of a module imported as ``lab``."""
    head, _, attribute = name.partition(".")
    home = imports.get(head)
    return (".".join(home), attribute) if home and attribute else home


def _of_command(book: Book, what: str) -> Iterator[str]:
    library = Library(book)
    cli = library.modules.get(f"{library.name}.cli")
    for node in cli.definitions.values() if cli else ():
        if node.name.replace("_", "-") == what.removeprefix(f"{library.name} ") and node.decorator_list:
            yield f"{cli.file}:{node.lineno}: the command's options"
            for inner in ast.walk(node):
                for alias in inner.names if isinstance(inner, ast.ImportFrom) else ():
                    yield from _definitions(library, alias.name)


def _of_name(book: Book, what: str) -> Iterator[str]:
    yield from _definitions(Library(book), what.rpartition(".")[2])


def _definitions(library: Library, name: str, below: str = "") -> Iterator[str]:
    """Where the library defines ``name``, in or below the module ``below``."""
    for module in library.modules.values():
        if name in module.definitions and module.name.startswith(below):
            yield f"{module.file}:{module.definitions[name].lineno}: {name}"
