"""Text to measure on, read document by document."""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# What ``datasets.load_dataset`` is asked for.  Both are Parquet files, which need no loading script, at a fixed commit.
HUB = {
    "wikipedia": dict(
        path="wikimedia/wikipedia", name="20231101.en", revision="b04c8d1ceb2f5cd4588862100d08de323dccfbaa"
    ),
    "openwebtext": dict(
        path="Skylion007/openwebtext", name="plain_text", revision="79d93d786212f7344586290adb811d4ae6a1762c"
    ),
}
_KNOWN = f"'stdlib' (needs no network), {', '.join(map(repr, HUB))} or a text file"
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # of a statement, in the order of its fields
_PIECE = 2**16  # characters of a text file that are read at once


@dataclass(frozen=True)
class Corpus:
    """A text and where it comes from.

    Attributes:
        texts: reads it anew from its beginning, document by document; a text file, in pieces of its one document.
        between: what stands between two of them in :attr:`text`: a blank line, nothing between pieces of a file.
        provenance: name, SHA-256 and length, Python's version if that matters; of a corpus on the hub its identifier,
            configuration, split and commit.
    """

    texts: Callable[[], Iterator[str]]
    between: str
    provenance: dict

    @property
    def text(self) -> str:
        """All of it, in memory.

        Raises:
            ValueError: the corpus is on the hub, where it is too large for that.
        """
        if "sha256" not in self.provenance:
            raise ValueError(
                f"corpus: {self.provenance['name']} is too large to be held whole; read it by TokenBatches"
            )
        return self.between.join(self.texts())


def load_corpus(name_or_path: str | os.PathLike = "stdlib") -> Corpus:
    """``"stdlib"``, the documentation that comes with Python; a UTF-8 text file; or a corpus of :data:`HUB`.

    A text file is read once for its SHA-256.  What is on the hub is streamed by the package datasets.

    Raises:
        FileNotFoundError: none of these.
        ValueError: the file is not UTF-8, or holds NUL.
        OSError: it cannot be read.
        ImportError: datasets is not installed.
        ConnectionError: the hub cannot be reached; the same may be raised later, while its documents are read.
    """
    if name_or_path in HUB:
        return _hub_corpus(name_or_path)
    if name_or_path == "stdlib":
        name, between, extra = "stdlib", "\n\n", dict(python=platform.python_version())
        texts = lambda: iter(_stdlib_documents())  # noqa: E731
    elif _is_file(name_or_path):
        name, between, extra = Path(name_or_path).name, "", {}
        texts = lambda: _pieces(Path(name_or_path))  # noqa: E731
    else:
        raise FileNotFoundError(f"corpus: expected {_KNOWN}, got {os.fspath(name_or_path)!r}")
    digest, characters = hashlib.sha256(), 0
    for piece in alternate(texts(), between):
        digest.update(piece.encode())
        characters += len(piece)
    return Corpus(texts, between, dict(name=name, sha256=digest.hexdigest(), characters=characters, **extra))


def _is_file(path: str | os.PathLike) -> bool:
    try:
        return Path(path).is_file()
    except OSError as error:  # a name too long, a folder that may not be looked into
        raise OSError(f"corpus: {os.fspath(path)!r:.80} cannot be looked at ({error.strerror})") from error


@lru_cache(maxsize=1)
def _stdlib_documents() -> tuple[str, ...]:
    """The language reference in ``pydoc_data``, by topic, and the standard library's docstrings, by module."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    paths = (library / f"{name}.py" for name in sorted(sys.stdlib_module_names))
    modules = ("\n\n".join(_docstrings(path)) for path in paths if path.is_file())
    return (*(topics[key] for key in sorted(topics)), *(text for text in modules if text))


def _docstrings(path: Path) -> list[str]:
    """Those of a module, level by level.  Only statements hold definitions, so expressions are not entered."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found, level = [], [ast.parse(path.read_text(encoding="utf-8"))]
    while level:
        found += [ast.get_docstring(node) for node in level if isinstance(node, documented)]
        level = [child for node in level for name in _BLOCKS for child in getattr(node, name, ())]
    return [text for text in found if text]


def _pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end with a line, where its lines are not longer than a piece."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            while piece := file.read(_PIECE) + file.readline(_PIECE):
                if "\0" in piece:
                    raise ValueError("NUL, which is in UTF-16 and in no text")
                yield piece
    except ValueError as error:
        raise ValueError(f"corpus: expected {path.name} to be UTF-8 text, got {error}") from error
    except OSError as error:
        raise OSError(f"corpus: {path} cannot be read ({error.strerror})") from error


def _hub_corpus(name: str) -> Corpus:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            f"corpus: {name!r} needs the package datasets, which the extra normgeom[hub] brings; "
            "'stdlib' and text files need neither it nor a network"
        ) from error
    source = dict(HUB[name], split="train")

    def unreachable(error: Exception) -> ConnectionError:
        return ConnectionError(
            f"corpus: {name!r} cannot be read from the hub ({source['path']}: {error}); "
            "'stdlib' and text files need no network"
        )

    try:
        dataset = load_dataset(**source, streaming=True)
    except Exception as error:  # the hub's, the network's and the file formats' share no class
        raise unreachable(error) from error

    def texts() -> Iterator[str]:
        try:
            for row in dataset:
                yield row["text"]
        except Exception as error:
            raise unreachable(error) from error

    described = dict(dataset=source["path"], configuration=source["name"], split="train", revision=source["revision"])
    return Corpus(texts, "\n\n", dict(name=name, **described))


def alternate(items: Iterable, joint) -> Iterator:
    """The items, with ``joint`` between each two."""
    return itertools.islice((part for item in items for part in (joint, item)), 1, None)
