"""The reference: every public name of the library with its docstring, the statements it computes and their checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import indent

from sphinx.ext.napoleon import Config, GoogleDocstring

from press.book import Book, chapter_number
from press.labels import ALIAS, NAMED, Check, Claims, role
from press.library import Library, Module, Object
from press.myst import table

COLUMNS = ("statement", "function", "check")
NAPOLEON = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
# A number of an equation comes in parentheses of its own.
EQUATIONS = re.compile(r"\((eq-[\w-]*\w(?:, eq-[\w-]*\w)*)\)")


def reference(book: Book) -> str:
    """The table from statement to check, and the docstrings, in MyST."""
    library, claims = Library(book), Claims(book)
    parts = [table(COLUMNS, _rows(library, claims))]
    where = sorted(library.public, key=lambda o: (o.module.name.count("."), o.module.name, o.node.lineno))
    for module, group in groupby(where, key=lambda o: o.module):
        parts += [_head(module, library.name), *(_entry(o, library.name, claims) for o in group)]
    return "\n".join(parts)


def _rows(library: Library, claims: Claims) -> Iterator[list[str]]:
    named = {o.name: set(NAMED.findall("\n".join([o.doc, *(m.doc for m in o.members)]))) for o in library.public}
    for s in claims.statements:
        if functions := [name for name, labels in named.items() if s.label in labels]:
            checks = [check for check in claims.checks if s.label in check.verifies]
            yield [
                s.link,
                ", ".join(f"{{py:obj}}`{name}`" for name in functions),
                ", ".join(f"{{ref}}`{_place(check)} <{check.anchor}>`" for check in checks),
            ]


def _head(module: Module, package: str) -> str:
    about = _linked(module.doc.partition("\n\n")[0], package)
    return f"## {module.name.removeprefix(f'{package}.')}\n\n{_rst(about)}"


def _entry(o: Object, package: str, claims: Claims) -> str:
    lines = [f".. py:currentmodule:: {o.name.rpartition('.')[0]}", "", *_described(o, package)]
    if checks := [check for check in claims.checks if any(calls(name, o.name) for name in check.functions)]:
        lines.append(f"   Called in the checks of {'; '.join(map(_verified, checks))}.")
    return _rst("\n".join(lines))


def _described(o: Object, package: str) -> Iterator[str]:
    yield f".. py:{o.kind}:: {o.name.rpartition('.')[2]}{o.signature}"
    if "classmethod" in o.decorators:
        yield "   :classmethod:"
    yield ""
    yield indent(_linked(str(GoogleDocstring(o.doc, NAPOLEON)), package), "   ") + "\n"
    for member in o.members:
        yield indent("\n".join(_described(member, package)), "   ")


def _linked(doc: str, package: str) -> str:
    """A docstring's reST with its labels as references and the package called as the chapters call it."""
    doc = EQUATIONS.sub(r"\1", doc.replace(f"`{package}.", f"`{ALIAS}."))
    return NAMED.sub(lambda label: f":{role(label[0])}:`{label[0]}`", doc)


def _verified(check: Check) -> str:
    labels = ", ".join(f":{role(label)}:`{label}`" for label in check.verifies)
    return f"{labels} (:ref:`{_place(check)} <{check.anchor}>`)"


def _place(check: Check) -> str:
    number = chapter_number(check.page)
    return f"chapter {number}, cell {check.cell}" if number else f"{check.page.rpartition('/')[2]}, cell {check.cell}"


def _rst(text: str) -> str:
    return f"````{{eval-rst}}\n{text}\n````\n"


def calls(written: str, name: str) -> bool:
    """Whether what a cell wrote, ``ng.Box.of``, is the object ``name`` or something in it."""
    return written == name or written.startswith(f"{name}.")
