"""The reference: every public name of the library with its docstring, the statements it computes and their checks."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby

from press.book import Book, chapter_number
from press.labels import ALIAS, NAMED, Check, Claims, role
from press.myst import table

COLUMNS = ("statement", "function", "check")
# A reference to an equation already shows its number in parentheses.
EQUATIONS = re.compile(r"\((eq-[\w-]*\w(?:, eq-[\w-]*\w)*)\)")


@dataclass(frozen=True)
class Public:
    """A public function or class; ``name`` is what readers write, such as ``ng.Box``."""

    name: str
    value: type

    @property
    def docs(self) -> str:
        """Its docstring and those of its public members."""
        members = vars(self.value).items() if inspect.isclass(self.value) else ()
        return "\n".join(
            [self.value.__doc__ or "", *(getattr(m, "__doc__", "") or "" for n, m in members if n[0] != "_")]
        )


def public(package: str) -> list[Public]:
    """Return every function and class that a package exports, directly or through a module that it exports.

    The package and these modules become importable under the name that the chapters use, ``ng``, for Sphinx.
    """
    library, found = import_module(package), []
    sys.modules[ALIAS] = library
    for name in library.__all__:
        value = getattr(library, name)
        if inspect.ismodule(value):
            sys.modules[f"{ALIAS}.{name}"] = value
            inside = ((n, getattr(value, n)) for n in value.__all__)
            found += [Public(f"{ALIAS}.{name}.{n}", v) for n, v in inside]
        else:
            found.append(Public(f"{ALIAS}.{name}", value))
    return sorted(found, key=lambda p: (p.value.__module__.count("."), p.value.__module__, _line(p.value)))


def _line(value: type) -> int:
    return inspect.getsourcelines(value)[1]


def reference(book: Book) -> str:
    """Return the table of statements with their functions and checks, and the docstrings, in MyST."""
    package, claims = book.project["name"], Claims(book)
    names = public(package)
    parts = [table(COLUMNS, _rows(names, claims))]
    for module, group in groupby(names, key=lambda p: p.value.__module__):
        about = linked(inspect.getdoc(sys.modules[module]).partition("\n\n")[0], package)
        parts += [f"## {module.removeprefix(f'{package}.')}\n", _rst(about), *map(_entry, group)]
    return "\n".join(parts)


def _rows(names: list[Public], claims: Claims) -> Iterator[list[str]]:
    named = {p.name: set(NAMED.findall(p.docs)) for p in names}
    for s in claims.statements:
        if functions := [name for name, labels in named.items() if s.label in labels]:
            checks = [check for check in claims.checks if s.label in check.verifies]
            yield [
                s.link,
                ", ".join(f"{{py:obj}}`{name}`" for name in functions),
                ", ".join(f"{{ref}}`{_place(check)} <{check.anchor}>`" for check in checks),
            ]


def _entry(p: Public) -> str:
    return _rst(f".. autoclass:: {p.name}\n   :members:" if inspect.isclass(p.value) else f".. autofunction:: {p.name}")


def linked(doc: str, package: str) -> str:
    """Return a docstring's reST with its labels as references and the package called ``ng``, as in the chapters."""
    doc = EQUATIONS.sub(r"\1", doc.replace(f"`{package}.", f"`{ALIAS}."))
    return NAMED.sub(lambda label: f":{role(label[0])}:`{label[0]}`", doc)


def _place(check: Check) -> str:
    number = chapter_number(check.page)
    return f"chapter {number}, cell {check.cell}" if number else f"{check.page.rpartition('/')[2]}, cell {check.cell}"


def _rst(text: str) -> str:
    return f"````{{eval-rst}}\n{text}\n````\n"
