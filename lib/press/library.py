"""The library's public names and docstrings, read from its source: nothing is imported, nothing runs."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import click
from sphinx.pycode.ast import unparse

from press.book import Book
from press.labels import ALIAS


@dataclass(frozen=True)
class Module:
    """A file of the library, ``toy.norms`` in ``lib/toy/norms.py``."""

    name: str
    file: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.file)

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @property
    def definitions(self) -> dict[str, ast.FunctionDef | ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    @property
    def homes(self) -> dict[str, tuple[str, ...]]:
        """The public names by the module that each comes from: the table ``_HOMES``, where a file has one."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
                return ast.literal_eval(node.value)
        return {}

    @property
    def exported(self) -> list[str]:
        """The names in the table of homes or in ``__all__``, or every function and class without an underscore."""
        if self.homes:
            return sorted(name for names in self.homes.values() for name in names)
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return ast.literal_eval(node.value)
        return [name for name in self.definitions if not name.startswith("_")]

    def imported(self, name: str) -> str | None:
        """The module that ``name`` comes from, by the table of homes or by an import anywhere in the file."""
        for home, names in self.homes.items():
            if name in names:
                return f"{self.name}.{home}"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                return node.module
        return None


@dataclass(frozen=True)
class Object:
    """A public function or class, or a member of one: ``name`` is what readers write, ``ng.Box.fill``."""

    name: str
    module: Module
    node: ast.FunctionDef | ast.ClassDef
    is_member: bool = False

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def decorators(self) -> set[str]:
        return {ast.unparse(decorator).rpartition(".")[2] for decorator in self.node.decorator_list}

    @property
    def kind(self) -> str:
        """The directive of Sphinx's Python domain that describes it."""
        if isinstance(self.node, ast.ClassDef):
            return "class"
        if self.decorators & {"property", "cached_property"}:
            return "property"
        return "method" if self.is_member else "function"

    @property
    def members(self) -> list[Object]:
        """What a class says of its public methods and properties; those without a docstring are not shown."""
        if self.kind != "class":
            return []
        nodes = [node for node in self.node.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        found = [Object(f"{self.name}.{node.name}", self.module, node, True) for node in nodes]
        return [member for member in found if member.doc]

    @property
    def signature(self) -> str:
        """The arguments with defaults as they are written; what may be given is for the docstring to say."""
        if self.kind == "property":
            return ""
        arguments = copy.deepcopy(_constructor(self.node) if self.kind == "class" else self.node.args)
        if (self.is_member or self.kind == "class") and "staticmethod" not in self.decorators:
            (arguments.posonlyargs or arguments.args).pop(0)
        for arg in ast.walk(arguments):
            if isinstance(arg, ast.arg):
                arg.annotation = None
        return f"({unparse(arguments, self.module.source)})"


class Library:
    """The packages under lib/: the one that has the project's name, and the one of its chapters, ``…_lab``."""

    def __init__(self, book: Book):
        self.book, self.name = book, book.project["name"]
        self.lab = f"{self.name}_lab"

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Dotted name → module."""
        lib, found = self.book.root / "lib", {}
        for path in sorted(path for name in (self.name, self.lab) for path in (lib / name).rglob("*.py")):
            inside = path.relative_to(lib).with_suffix("")
            name = ".".join((inside.parent if inside.name == "__init__" else inside).parts)
            file = path.relative_to(self.book.root).as_posix()
            found[name] = Module(name, file, path.read_text("utf-8"))
        return found

    @cached_property
    def public(self) -> list[Object]:
        """Every function and class that the package exports, itself or in an exported module."""
        return list(self._exported(self.modules[self.name], ALIAS))

    @property
    def docstrings(self) -> Iterator[tuple[str, str]]:
        """Where it stands and what it says: every docstring, private ones too."""
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and (doc := ast.get_docstring(node)):
                    yield f"{module.file}, {getattr(node, 'name', 'its head')}", doc

    def _exported(self, module: Module, prefix: str) -> Iterator[Object]:
        for name in module.exported:
            yield from self._named(module, name, f"{prefix}.{name}")

    def _named(self, module: Module, name: str, full: str) -> Iterator[Object]:
        """What ``name`` stands for in ``module``: a definition, or all that a module exports."""
        source, inner = module.imported(name), f"{module.name}.{name}"
        if name in module.definitions:
            yield Object(full, module, module.definitions[name])
        elif source in self.modules and source != module.name:
            yield from self._named(self.modules[source], name, full)
        elif module.name.endswith(f".{name}"):  # the module itself
            yield from self._exported(module, full)
        elif inner in self.modules:
            yield from self._exported(self.modules[inner], full)
        else:
            raise click.ClickException(f"{module.file}: {name} is no function, class or module of the library")


def _constructor(node: ast.ClassDef) -> ast.arguments:
    """The arguments of ``__init__``, or the fields of a class that lists them."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return inner.args
    fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
    names = ["self", *(ast.unparse(field.target) for field in fields)]
    return ast.arguments(
        [], [ast.arg(name) for name in names], None, [], [], None, [field.value for field in fields if field.value]
    )
