"""Texts to measure and to train on."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# Path, configuration and commit on the hub: Parquet files, which need no loading script.
WIKIPEDIA = ("wikimedia/wikipedia", "20231101.en", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa")


class Corpus(NamedTuple):
    """A text: ``texts()`` reads it again, ``between`` separates two texts, ``provenance`` says what it is."""

    texts: Callable[[], Iterable[str]]
    between: str
    provenance: dict

    @property
    def text(self) -> str:
        return self.between.join(self.texts())


def load_corpus(name: str | os.PathLike = "stdlib") -> Corpus:
    """``"stdlib"``, the documentation that comes with Python; a UTF-8 text file; or ``"wikipedia"``, which the package
    datasets streams from the hub; else a FileNotFoundError.
    """
    if name == "stdlib":
        return Corpus(_stdlib_documents, "\n\n", dict(name=name, python=platform.python_version()))
    if name == "wikipedia":
        return Corpus(_articles, "\n\n", dict(name=name, source=WIKIPEDIA))
    if not os.path.isfile(name):
        known = "'stdlib' (needs no network), 'wikipedia' or a text file"
        raise FileNotFoundError(f"corpus: expected {known}, got {os.fspath(name)!r:.80}")
    with open(name, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Corpus(lambda: _pieces(name), "", dict(name=Path(name).name, sha256=digest))


@lru_cache(maxsize=1)
def _stdlib_documents() -> list[str]:
    """The language reference in ``pydoc_data``, by topic, and the standard library's docstrings, by module."""
    from pydoc_data.topics import topics

    documents = [topics[key] for key in sorted(topics)]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for name in sorted(sys.stdlib_module_names):
        path = Path(sysconfig.get_path("stdlib"), f"{name}.py")
        if path.is_file():
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            docstrings = (ast.get_docstring(node) for node in nodes if isinstance(node, documented))
            documents.append("\n\n".join(filter(None, docstrings)))
    return list(filter(None, documents))


def _pieces(path: str | os.PathLike) -> Iterator[str]:
    """A UTF-8 text file in pieces that end with a line."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            while piece := file.read(2**16) + file.readline():
                yield piece
    except UnicodeDecodeError as error:
        raise ValueError(f"corpus: expected {Path(path).name} to be UTF-8 text, got {error}") from error


def _articles() -> Iterator[str]:
    from datasets import load_dataset

    path, configuration, commit = WIKIPEDIA
    for row in load_dataset(path, configuration, revision=commit, split="train", streaming=True):
        yield row["text"]
