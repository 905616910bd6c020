"""Run, without make, the chapters whose current code has not been run."""

from __future__ import annotations

import copy
import os

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from sphinx.util.logging import getLogger

from press.book import CHAPTERS, EXECUTED, Book

RAN = "papermill"  # the metadata that describe the run of a cell
log = getLogger(__name__)


def run(book: Book) -> None:
    """Run each chapter that ``_build/run`` does not have with its current code; a change of text alone runs nothing."""
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


def reused(written: NotebookNode, executed: NotebookNode) -> NotebookNode | None:
    """Return the executed notebook with the text and cell metadata of the written one; None if their code differs."""
    old, new = _code(executed), _code(written)
    if [cell.source for cell in old] != [cell.source for cell in new]:
        return None
    result = copy.deepcopy(executed)
    result.cells = copy.deepcopy(written.cells)
    for ran, cell in zip(old, _code(result), strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
        cell.metadata |= {RAN: ran.metadata[RAN]} if RAN in ran.metadata else {}
    return result


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
