"""Run the chapters without make: those whose code has not run as it is now."""

from __future__ import annotations

import os

import jupytext
import nbformat
from nbclient import NotebookClient
from sphinx.util.logging import getLogger

from press.book import CHAPTERS, EXECUTED, Book
from press.reuse import reused

log = getLogger(__name__)


def run(book: Book) -> None:
    """Write to ``_build/run`` each chapter that is not there with this code; a change of words alone runs nothing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # on two cores more threads are many times slower
    for name in filter(book.is_notebook, book.names):
        target = book.root / EXECUTED / f"{name}.ipynb"
        written = jupytext.read(book.root / CHAPTERS / f"{name}.md")
        ran = reused(written, nbformat.read(target, 4)) if target.is_file() else None
        if ran is None:
            log.info("running %s", name)
            where = {"metadata": {"path": str(book.root)}}
            ran = NotebookClient(written, timeout=None, kernel_name="python3", resources=where).execute()
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(ran, target)
