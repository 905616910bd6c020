"""An executed chapter whose code did not change keeps its outputs: words are mended without a kernel."""

from __future__ import annotations

import copy

from nbformat import NotebookNode

RAN = "papermill"  # the metadata that say how a cell's run went


def reused(written: NotebookNode, executed: NotebookNode) -> NotebookNode | None:
    """The executed notebook with the words and the cells' heads of the written one; None where its code is another."""
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
