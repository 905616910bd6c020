"""A chapter run as a notebook, and what was judged in it."""

import json
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode

# What the last cell of a run prints: whatever was judged in it.
TELL = "import json\nfrom normgeom.checks import verdicts\nprint(json.dumps(verdicts))"


def verdicts_of(notebook: NotebookNode, path: Path, parameters: dict, progress: bool = False) -> list[list]:
    """Run a notebook with these parameters; ``path`` takes it, cell by cell.

    Returns:
        the verdicts, ``[label, holds, breaks, tol]``.

    Raises:
        papermill.exceptions.PapermillExecutionError: a cell failed.
    """
    cell = nbformat.v4.new_code_cell(TELL, metadata=dict(jupyter=dict(source_hidden=True)))
    notebook = nbformat.from_dict(dict(notebook, cells=[*notebook.cells, cell]))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    quiet = dict(progress_bar=progress, request_save_on_cell_execute=progress)
    done = papermill.execute_notebook(path, path, parameters, kernel_name="python3", **quiet)
    # A kernel may hand over one print in several outputs.
    return json.loads("".join(o.text for o in done.cells[-1].outputs if o.get("name") == "stdout"))
