"""Texts to measure and to train on."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# Path, configuration and commit on the hub: Parquet files, which need no loading script.
HUB = {
    "wikipedia": ("wikimedia/wikipedia", "20231101.en", "b04c8d1ceb2f5cd4588862100d08de323dccfbaa"),
    "openwebtext": ("Skylion007/openwebtext", "plain_text", "79d93d786212f7344586290adb811d4ae6a1762c"),
}


@dataclass(frozen=True)
class Corpus:
    """A text: ``texts()`` reads it anew, ``between`` stands between two of them, ``provenance`` says what it is."""

    texts: Callable[[], Iterable[str]]
    between: str
    provenance: dict

    @property
    def text(self) -> str:
        """All of it; a ValueError for a corpus on the hub."""
        if self.provenance["name"] in HUB:
            raise ValueError(f"corpus: expected 'stdlib' or a text file here, {self.provenance['name']} is too large")
        return self.between.join(self.texts())


def load_corpus(name_or_path: str | os.PathLike = "stdlib") -> Corpus:
    """``"stdlib"``, the documentation that comes with Python; a UTF-8 text file; or ``"wikipedia"`` or
    ``"openwebtext"``, which the package datasets streams from the hub.

    Raises:
        FileNotFoundError: none of these.
        ValueError: the file is not UTF-8.
        ConnectionError: the hub is out of reach, now or while its documents are read; datasets is not installed.

    Example:
        >>> from normgeom.text.corpora import load_corpus
        >>> "itertools" in load_corpus("stdlib").text
        True
    """
    if name_or_path in HUB:
        next(_hub_documents(name_or_path))  # if the hub is out of reach, say so before any work
        return Corpus(lambda: _hub_documents(name_or_path), "\n\n", dict(name=name_or_path, source=HUB[name_or_path]))
    if name_or_path == "stdlib":
        corpus = Corpus(_stdlib_documents, "\n\n", dict(name="stdlib", python=platform.python_version()))
    elif os.path.isfile(name_or_path):
        corpus = Corpus(lambda: _pieces(name_or_path), "", dict(name=Path(name_or_path).name))
    else:
        known = f"'stdlib' (needs no network), {', '.join(map(repr, HUB))} or a text file"
        raise FileNotFoundError(f"corpus: expected {known}, got {os.fspath(name_or_path)!r:.80}")
    digest = hashlib.sha256()
    for text in corpus.texts():
        digest.update(text.encode())
    corpus.provenance["sha256"] = digest.hexdigest()
    return corpus


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
    """A text file in pieces that end with a line, where its lines are not very long."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            yield from iter(lambda: file.read(2**16) + file.readline(2**16), "")
    except UnicodeDecodeError as error:
        raise ValueError(f"corpus: expected {Path(path).name} to be UTF-8 text, got {error}") from error


def _hub_documents(name: str) -> Iterator[str]:
    path, configuration, revision = HUB[name]
    try:
        from datasets import load_dataset

        for row in load_dataset(path, configuration, revision=revision, split="train", streaming=True):
            yield row["text"]
    except Exception as error:  # the hub's, the network's and the file formats' share no class
        raise ConnectionError(
            f"corpus: {name!r} cannot be read from the hub ({error}); it needs a network and the extra normgeom[hub], "
            "'stdlib' and text files need neither"
        ) from error
