"""Where something of the book stands: a statement, a figure, a table, a command, a name, each by file and line."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import yaml

from press.book import CHAPTERS, MADE, Book
from press.labels import ALIAS, NAMED
from press.library import Library

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.M | re.S)
HEAD = re.compile(r"\A(?:---\n(?P<block>.*?)^---\n|(?P<lines>(?::[\w-]+:[^\n]*\n)+))", re.M | re.S)
EVERYWHERE = ("checks", "view", "view.style")  # what every cell may use says nothing about this one
WORDS = {"figure": "fig.", "equation": "", "eq.": "", "observation": "observation"}


@dataclass(frozen=True)
class Cell:
    """A code cell of a chapter's text: ``line`` is that of its first line of code."""

    file: str
    line: int
    head: dict
    code: str

    @cached_property
    def tree(self) -> ast.Module:
        magic = re.compile(r"^[%!].*$", re.M)
        return ast.parse(magic.sub("pass", self.code))

    @property
    def names(self) -> set[str]:
        """What it uses and does not make: names, and attributes of the library as ``ng.…``."""
        found = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} - self.makes
        attributes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        return found | {text for node in attributes if (text := ast.unparse(node)).startswith(f"{ALIAS}.")}

    @property
    def makes(self) -> set[str]:
        """The names that it leaves behind."""
        stored = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return stored | {n.name for n in self.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}

    @property
    def is_setup(self) -> bool:
        """Parameters, imports, seeds and devices: what every cell needs and none is about."""
        imports = any(isinstance(node, ast.ImportFrom) for node in self.tree.body)
        return imports or "parameters" in self.head.get("tags", []) or f"{ALIAS}.check_parameters" in self.names

    @property
    def captioned(self) -> set[str]:
        """The labels of its figure and its table."""
        heads = (self.head.get("mystnb", {}).get("figure", {}), self.head.get("table", {}))
        return {head["name"] for head in heads if "name" in head}


def where(book: Book, what: str) -> list[str]:
    """The lines that answer ``what``: a label, a number such as ``Fig. 6.2``, a command, a name of the library."""
    label = _label(book, what)
    found = [*(_of_label(book, label) if label else ()), *_of_command(book, what), *_of_name(book, what)]
    return list(dict.fromkeys(found))


def cells(book: Book, name: str) -> list[Cell]:
    """The code cells of a chapter as it is written."""
    file = (CHAPTERS / f"{name}.md").as_posix()
    text, found = (book.root / file).read_text("utf-8"), []
    for match in CELL.finditer(text):
        head = HEAD.match(match[1])
        code = match[1][head.end() if head else 0 :]
        line = 1 + text.count("\n", 0, match.start(1)) + (match[1][: head.end()].count("\n") if head else 0)
        line += len(code) - len(code.lstrip("\n"))
        found.append(Cell(file, line, _head(head) if head else {}, code))
    return found


def _head(match: re.Match) -> dict:
    if match["block"] is not None:
        return yaml.safe_load(match["block"])
    pairs = (line[1:].split(":", 1) for line in match["lines"].splitlines())
    return {key: yaml.safe_load(value) for key, value in pairs}


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
            for words, hit in (("drawn", cell.captioned), ("checked", cell.head.get("verifies", []))):
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
    used, wanted = set(written[at].names), set(written[at].names)
    for cell in reversed(written[:at]):
        if cell.makes & wanted and not cell.is_setup:
            yield f"{cell.file}:{cell.line}: makes {', '.join(sorted(cell.makes & wanted))}"
            wanted = (wanted - cell.makes) | cell.names
            used |= cell.names
    library = Library(book)
    public = {o.name: (o.module.name, o.node.name) for o in library.public}
    homes = (public.get(name) or imports.get(name) for name in sorted(used))
    for module, name in filter(None, homes):
        if module.removeprefix(f"{library.name}.") not in EVERYWHERE:
            yield from _definitions(library, name, module)


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
