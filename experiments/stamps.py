"""Stamps: a digest of each module that a measurement uses, from its syntax tree without comments and docstrings."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import normgeom
from press.trees import digest

PACKAGES = ["normgeom", "normgeom_lab", "experiments"]
# Modules for pictures, files and this machinery: they do not affect measured numbers.
ASIDE = (
    "normgeom.view.",
    "normgeom.jobs.",
    "normgeom.records.",
    "normgeom_lab.common.recording.",
    "experiments.registry.",
    "experiments.stamps.",
)


def key(stamp: dict[str, str]) -> str:
    """Return eight characters that identify a whole stamp."""
    return digest(sorted(stamp.items()))


def through(tree: ast.Module) -> dict[str, str]:
    """Return the digests of the modules in :data:`PACKAGES` that a tree imports, directly or through others."""
    found, waiting = {}, list(imported(tree))
    while waiting:
        name = waiting.pop()
        if name not in found and not name.endswith(".figures") and not f"{name}.".startswith(ASIDE):
            found[name], further = _read(_file(name).read_text("utf-8"))
            waiting += further
    return dict(sorted(found.items()))


def of_module(name: str) -> dict[str, str]:
    """Return the digests of a module and of all modules that it imports, directly or through others."""
    tree = ast.parse(Path(find_spec(name).origin).read_text("utf-8"))
    return {name: digest(tree)} | through(tree)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of :data:`PACKAGES` that a tree imports; for public names of normgeom, the defining modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from _home(node.module, alias.name)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "normgeom":
                    yield from (home for name in _attributes(tree, alias.asname) for home in _home("normgeom", name))
                elif _file(alias.name):
                    yield alias.name


def _home(module: str, name: str) -> Iterator[str]:
    if module == "normgeom":
        yield from [f"normgeom.{normgeom._HOME[name]}"] if name in normgeom._HOME else []
    elif _file(f"{module}.{name}"):
        yield f"{module}.{name}"
    elif _file(module):
        yield module


def _attributes(tree: ast.Module, name: str) -> set[str]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in nodes if node.value.id == name}


def _file(name: str) -> Path | None:
    package, *inside = name.split(".")
    if package not in PACKAGES:
        return None
    path = _root(package).joinpath(*inside)
    return next((file for file in (path.with_name(f"{path.name}.py"), path / "__init__.py") if file.is_file()), None)


def _root(package: str) -> Path:
    return Path(find_spec(package).submodule_search_locations[0])


@cache
def _read(text: str) -> tuple[str, list[str]]:
    tree = ast.parse(text)
    return digest(tree), list(imported(tree))
