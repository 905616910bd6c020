"""The library as a wheel, the same bytes whenever its files are the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from press.book import Book
from press.stage import put

TOP = ("pyproject.toml", "README.md", "LICENSE")
EPOCH = "315532800"  # 1980-01-01, the first day that a zip file can name


def wheel(book: Book) -> tuple[str, bytes]:
    """File name and content of the wheel of the book's library, built offline by the setuptools that is here."""
    with tempfile.TemporaryDirectory() as folder:
        # A copy, because setuptools keeps what it built: a module deleted since would still be in the wheel.
        source, files = Path(folder, "source"), _sources(book)
        put(source, files)
        for name in files:
            (source / name).chmod(0o644)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "./source"]
        environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
        done = subprocess.run(command, cwd=folder, env=environment, umask=0o022, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"no wheel was built:\n{done.stdout}{done.stderr}")
        built = next(Path(folder).glob("*.whl"))
        return built.name, built.read_bytes()


def _sources(book: Book) -> dict[str, bytes]:
    # The library's data and notebooks are links to folders outside of it.
    name = book.project["name"]
    library = (entry for top in (name, f"{name}_lab") for entry in os.walk(book.root / "lib" / top, followlinks=True))
    found = [
        *(book.root / name for name in TOP),
        *(Path(folder, file) for folder, _, files in library for file in files),
    ]
    return {path.relative_to(book.root).as_posix(): path.read_bytes() for path in found if _is_source(path)}


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
