"""The committed notebooks with the library inside: uploading one file to Colab is enough."""

from __future__ import annotations

import base64
import hashlib
import re
import textwrap

import nbformat

from press.book import Book
from press.imprint import commit
from press.notebooks import COLOPHON, FOLDED, NOTEBOOKS, SETUP_TAG
from press.quiet import FOLD
from press.stage import dumps
from press.wheel import wheel

CARRIED = '''\
#@title Setup: run this first
# Installs the library that this cell carries, and what it needs and is not here; torch and all the rest stay.
name, version, file = {name!r}, {version!r}, {file!r}
digest = {digest!r}
needs = {needs!r}
wheel = """
{content}
"""
'''
INSTALL = """
import base64
import importlib
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path


def pip_install(*what, folder):
    command = [sys.executable, "-m", "pip", "install", "--quiet", *what]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


# pip notes the digest of a wheel that it installs from a file.
here = any(digest in (found.read_text("direct_url.json") or "") for found in metadata.distributions(name=name))
missing = [need for needed, need in needs.items() if not any(metadata.distributions(name=needed))]
with tempfile.TemporaryDirectory() as folder:
    if not here:
        path = Path(folder, file)
        path.write_bytes(base64.b64decode(wheel))
        pip_install("--no-deps", "--force-reinstall", str(path), folder=folder)
    if missing:
        pip_install(*missing, folder=folder)
importlib.invalidate_caches()

import torch

device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
done = ", ".join([f"{name} {version}"] * (not here) + missing)
print(f"Installed: {done or 'nothing, all is here'}. torch {torch.__version__} will use: {device}.")"""


def colab(book: Book) -> dict[str, bytes]:
    """Path below the folder of notebooks → content with the library's wheel in the setup cell."""
    source, made = setup_source(book.project, *wheel(book)), commit(book.root)
    folder = book.root / NOTEBOOKS
    paths = sorted(folder.rglob("*.ipynb"))
    return {path.relative_to(folder).as_posix(): _carrying(nbformat.read(path, 4), source, made) for path in paths}


def setup_source(project: dict, file: str, content: bytes) -> str:
    """The code of a cell that installs the wheel ``file`` with ``content`` unless that very wheel is installed."""
    extras = project.get("optional-dependencies", {})
    wanted = [*project.get("dependencies", []), *extras.get("models", []), *extras.get("notebooks", [])]
    needs = {re.match(r"[\w.-]+", need)[0]: need for need in wanted}
    for known in ("torch", project["name"]):
        needs.pop(known, None)
    head = CARRIED.format(
        name=project["name"],
        version=project["version"],
        file=file,
        digest=hashlib.sha256(content).hexdigest(),
        needs=needs,
        content="\n".join(textwrap.wrap(base64.b64encode(content).decode(), 120)),
    )
    return head + INSTALL


def _carrying(notebook: nbformat.NotebookNode, source: str, made: str | None) -> bytes:
    for cell in notebook.cells:
        if made and COLOPHON in cell.metadata.get("tags", []):
            cell.source = cell.source.replace(". To cite it:", f", commit {made}. To cite it:")
        if SETUP_TAG in cell.metadata.get("tags", []):
            cell.source = source
            cell.metadata |= FOLDED
        elif words := cell.metadata.get(FOLD):
            cell.source = f"#@title {words}\n{cell.source}"
    return dumps(notebook).encode()
